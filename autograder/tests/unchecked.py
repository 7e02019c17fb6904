"""A warm grader that holds no source against the allow-lists, so that what attacks the sandbox gets as far as the sandbox.

The allow-lists refuse most attacks unrun. They are for honest students, who then know what was meant; whoever gets round them must
find the sandbox shut.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])

from autograder.tests import grading


class UncheckedGrader(grading.Grader):
    """The other end of the process."""

    def __init__(self, user: int | None = None, tree: Path = grading.ROOT, walls: bool = True) -> None:
        """Start the process, as `user` if one is given, from another copy of the project if one is given.

        Without `walls` it is one on a kernel that has neither Landlock nor seccomp.
        """
        from autograder.__main__ import _ENVIRONMENT

        switch: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        self._process = subprocess.Popen(
            [sys.executable, "-s", str(tree / "autograder" / "tests" / "unchecked.py")],
            env=_ENVIRONMENT if walls else {**_ENVIRONMENT, "ISOLATION": "process"},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **switch,
        )


def _serve() -> None:
    from autograder import machine

    if os.environ.get("ISOLATION") == "process":
        from autograder.sandbox.zygote import Features

        Features.of_this_machine = staticmethod(lambda: Features(False, False, False))
    checked = machine.open_sandbox

    @contextmanager
    def unchecked(isolation: str) -> Iterator[Any]:
        with checked(isolation) as sandbox:
            from autograder.judge import Judge
            from autograder.sandbox.client import Reply

            assert callable(Judge._inspect)
            Judge._inspect = lambda self, parts, sources: Reply([])
            yield sandbox

    machine.open_sandbox = unchecked
    grading._serve()


if __name__ == "__main__":
    _serve()
