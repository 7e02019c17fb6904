"""A warm grader in a process of its own, for tests that grade many submissions.

It is the real thing: a clean environment, the zygote forked before anything secret is open, the hidden suites inside pytest.
Only the import of PyTorch is shared by all submissions of a test session. Run as a program, it reads a submission's path a line and answers
with its grade as one line of JSON.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Grader:
    """The other end of the process."""

    def __init__(self, user: int | None = None) -> None:
        """Start the process, as `user` if one is given."""
        from autograder.__main__ import _ENVIRONMENT

        command = [sys.executable, "-s", __file__]
        switch: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": []}
        self._process = subprocess.Popen(
            command, env=_ENVIRONMENT, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **switch
        )

    def grade(self, submission: Path) -> dict[str, Any]:
        """Return the grade of the folder or zip at `submission`: `asdict` of a Grade."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{submission}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the grader ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process and its sandbox."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def _serve() -> None:
    sys.path[0] = str(ROOT)
    from autograder.machine import open_sandbox
    from handout.problems import load_assignment

    answers = os.fdopen(os.dup(1), "w")  # nothing but grades may go there
    os.dup2(2, 1)
    with open_sandbox("process" if os.environ.get("ISOLATION") == "process" else "full") as sandbox:
        from autograder.plugin import Suites, run_suites
        from autograder.submission import read_submission

        assignment = load_assignment()
        modules = frozenset(part.id for part in assignment.parts)

        def job(suites: Suites) -> None:
            for line in sys.stdin:
                grade = suites.grade(read_submission(Path(line.rstrip("\n")), modules))
                print(json.dumps(asdict(grade)), file=answers, flush=True)

        run_suites(sandbox, assignment, job)


if __name__ == "__main__":
    _serve()
