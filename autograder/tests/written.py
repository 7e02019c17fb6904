"""Every results.json that a test writes is held against the schema before it is written.

conftest.py switches this on for the process of the tests; run as a program, this is `python -m autograder` with it on, which is
how `running` starts commands.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

SCHEMA = json.loads((ROOT / "autograder" / "results.schema.json").read_text(encoding="utf-8"))


class Checker:
    """Holds results against the schema; what it has seen already, it does not look at again: a row is written a hundred times."""

    def __init__(self) -> None:
        """Compile the schema, and a row's."""
        import jsonschema

        self._whole = jsonschema.Draft202012Validator(SCHEMA)
        self._row = self._whole.evolve(schema={"$ref": "#/$defs/test", "$defs": SCHEMA["$defs"]})
        self._seen: set[str] = set()

    def check(self, content: Any) -> dict[str, Any]:
        """Return results that the platform takes; anything else raises ValidationError."""
        rows = content.get("tests") if isinstance(content, dict) else None
        if not isinstance(rows, list) or not rows:
            self._whole.validate(content)
            raise AssertionError("results without rows")
        for row in rows:
            self._once(row, self._row.validate)
        self._once({**content, "tests": rows[:1]}, self._whole.validate)
        assert isinstance(content, dict)
        return content

    def _once(self, value: Any, validate: Callable[[Any], None]) -> None:
        key = json.dumps(value, sort_keys=True, default=repr)
        if key not in self._seen:
            validate(value)
            self._seen.add(key)


def read(path: Path) -> dict[str, Any]:
    """Read a results.json as the platform does, but without its patience with NaN."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} in the results")

    return Checker().check(json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse))


def check_every_write() -> Callable[[], None]:
    """Have this process check what it writes from now on; return what ends that."""
    from autograder import gradescope

    checker, replace = Checker(), gradescope._replace

    def checked(path: Path, data: bytes) -> None:
        content = json.loads(data)
        if "tests" in content or "output" in content:  # and no file that a test of writing makes up
            checker.check(content)
        replace(path, data)

    def undo() -> None:
        gradescope._replace = replace

    gradescope._replace = checked
    return undo


if __name__ == "__main__":
    import signal

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from autograder.__main__ import start_clean

    start_clean(__file__)
    from autograder.commands import main
    from autograder.terminal import outlive_readers

    outlive_readers()
    check_every_write()
    sys.exit(main(sys.argv[1:]))
