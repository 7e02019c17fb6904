"""The grader's commands as processes, with every results.json held against the schema (`written`); each with a folder for its temporary files that must be empty in the end."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autograder.tests import traces
from autograder.tests.handed_in import ROOT

COPIED = ("handout", "student", "tests", "reference", "autograder")


@contextmanager
def open_folder() -> Iterator[Path]:
    """Yield a new folder that every user may enter; pytest's own are closed."""
    folder = Path(tempfile.mkdtemp(prefix="accounting-tests-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def copy_of_the_tree(folder: Path) -> Path:
    """Copy the grader to `folder`/tree, for everybody to read."""
    tree = folder / "tree"
    tree.mkdir()
    for name in ("LICENSE", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tree)
    for name in COPIED:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for path in (tree, *tree.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return tree


@dataclass
class Command:
    """A running `python -m autograder`, or one that has ended."""

    process: "subprocess.Popen[str]"
    temporary: Path  # where it keeps its temporary files

    def signal(self, number: int, whole_group: bool = False) -> None:
        """Send a signal to it, or as a terminal does to it and all that it started."""
        if whole_group:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    def end(self, seconds: float = 120) -> tuple[int, str, str]:
        """Wait for it; return its exit status and what it wrote on standard output and standard error."""
        out, err = self.process.communicate(timeout=seconds)
        return self.process.returncode, out, err

    def has_left_nothing(self) -> bool:
        """Tell whether its temporary files are gone, and every process of the session that it began."""
        running = [pid for pid in traces.all_processes() if self._is_ours(pid)]
        # PyTorch makes an empty folder for its compiler when pytest tells of a suite that does not import.
        files = [path for path in self.temporary.iterdir() if not path.name.startswith("torchinductor_")]
        return not running and not files

    def _is_ours(self, pid: int) -> bool:
        """Tell whether a process is the grader, its zygote (of the same session) or a child, which lives among the files."""
        try:
            return os.getsid(pid) == self.process.pid or str(self.temporary) in str(Path(f"/proc/{pid}/cwd").readlink())
        except OSError:
            return False


@contextmanager
def started(
    *arguments: Any, tree: Path = ROOT, python: str = sys.executable, user: int | None = None, **environment: str
) -> Iterator[Command]:
    """Start a command in a session of its own, with more in its environment; end it if it still runs in the end."""
    with open_folder() as temporary:
        switch: dict[str, Any] = {}
        if user is not None:
            os.chown(temporary, user, user)
            switch = {"user": user, "group": user, "extra_groups": []}
        process = subprocess.Popen(
            [python, str(tree / "autograder" / "tests" / "written.py"), *map(str, arguments)],
            cwd=tree,
            env={"PATH": os.environ["PATH"], "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **switch,
        )
        try:
            yield Command(process, temporary)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def run(*arguments: Any, **options: Any) -> tuple[int, str, str]:
    """Run a command to its end; check that it leaves nothing behind."""
    with started(*arguments, **options) as command:
        ended = command.end()
        assert traces.eventually(command.has_left_nothing), [*command.temporary.iterdir()]
        return ended
