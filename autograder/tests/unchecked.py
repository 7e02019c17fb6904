"""A warm grader that holds no source against the allow-lists, so that what attacks the sandbox gets as far as the sandbox.

The allow-lists refuse most attacks unrun. They are for honest students, who then know what was meant; whoever gets round them must
find the sandbox shut.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

if __name__ == "__main__":
    from pathlib import Path

    sys.path[0] = str(Path(__file__).parents[2])

from autograder.tests import grading


class UncheckedGrader(grading.Grader):
    """The other end of the process."""

    def __init__(self, user: int | None = None) -> None:
        """Start the process, as `user` if one is given."""
        from autograder.__main__ import _ENVIRONMENT

        switch: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        self._process = subprocess.Popen(
            [sys.executable, "-s", __file__],
            env=_ENVIRONMENT,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **switch,
        )


def _serve() -> None:
    from autograder import commands

    checked = commands._sandbox

    @contextmanager
    def unchecked(isolation: str) -> Iterator[Any]:
        with checked(isolation) as sandbox:
            from autograder.plugin import _Judge

            assert callable(_Judge.check_sources)
            _Judge.check_sources = lambda self, parts: None  # type: ignore[method-assign]
            yield sandbox

    commands._sandbox = unchecked
    grading._serve()


if __name__ == "__main__":
    _serve()
