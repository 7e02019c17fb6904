"""Run the public tests: `python -m tests [--part PART] [pytest's options]`, which is what `make test` does.

With a Python that has no PyTorch or pytest, `.venv` is made first and used.
"""

import importlib.util
import subprocess
import sys

from tests import environment


def main(arguments: list[str]) -> int:
    """Run pytest on `tests/`; return its exit status, or 2 if the part does not exist or no environment could be made."""
    if not all(importlib.util.find_spec(name) for name in ("torch", "pytest", "rich")):
        if status := environment.main([]):
            return status
        return subprocess.call([str(environment.venv_python()), "-m", "tests", *arguments])

    import pytest

    # Plugins that come with packages in .venv and do nothing here, though one takes a second to import.
    without = [option for name in ("anyio", "hypothesispytest", "jaxtyping") for option in ("-p", f"no:{name}")]
    return int(pytest.main(["-q", *without, *arguments]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
