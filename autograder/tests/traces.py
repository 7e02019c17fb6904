"""What a grader leaves on the machine: processes and files."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from autograder.costs import pss

_FIRST_UID, _UIDS = 40_000, 256  # as sandbox.uids hands them out: so many a grader


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def all_processes() -> list[int]:
    """Return the pids of this machine."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def descendants(pid: int) -> list[int]:
    """Return the pids of all processes below `pid`. What detaches itself stays below: the zygote is a subreaper."""
    parents = {process: int(status["PPid"]) for process in all_processes() if (status := _status(process))}
    found, new = [], [pid]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        found += new
    return found


def parent(pid: int) -> int:
    """Return the pid of a process's parent, 0 if it has ended."""
    return int(_status(pid).get("PPid", "0"))


def students(pid: int) -> list[int]:
    """Return the processes of students below the process `pid` of a grader: its children's children."""
    zygotes = [child for child in descendants(pid) if parent(child) == pid]
    return [child for child in descendants(pid) if child not in zygotes]


def runs(pid: int) -> bool:
    """Tell whether a process runs: a zombie does not."""
    return _status(pid).get("State", "Z")[0] not in "ZX"


def runs_something(pid: int) -> bool:
    """Tell whether a process is more than one thread that sleeps, as a child kept ready is."""
    status = _status(pid)
    return bool(status) and (status["Threads"] != "1" or not status["State"].startswith("S"))


def uids(pid: int) -> range:
    """Return the user ids that the children of the grader `pid` have, told by those that are kept ready."""
    for child in students(pid):
        uid = int(_status(child).get("Uid", "0").split()[0])
        if uid >= _FIRST_UID:
            first = uid - (uid - _FIRST_UID) % _UIDS
            return range(first, first + _UIDS)
    return range(0)


def catches(pid: int, signal: int) -> bool:
    """Tell whether a process has come to handle a signal."""
    return bool(int(_status(pid).get("SigCgt", "0"), 16) >> (signal - 1) & 1)


def left_files(owners: range) -> list[Path]:
    """Return what these users own in the folders that everybody may write."""
    found = []
    for folder in (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path("/dev/mqueue")):
        if folder.is_dir():
            for path in folder.iterdir():
                try:
                    owner = path.lstat().st_uid
                except FileNotFoundError:
                    continue
                if owner in owners:
                    found.append(path)
    return found


def cells(pid: int) -> list[Path]:
    """Return the folders in which the children of the grader `pid` live, found by where those kept ready are."""
    for child in students(pid):
        try:
            home = Path(f"/proc/{child}/cwd").readlink()
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
        if home.parent.name == "cells":
            return sorted(home.parent.iterdir())
    return []


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Wait until `condition()` holds; return whether it came to."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Usage:
    """The most that the processes below a grader hold at once, looked at five times a second while a `with` block runs."""

    def __init__(self, pid: int) -> None:
        """Watch the grader `pid`."""
        self.memory = (
            0.0  # MB that are resident; what a fork shares with its parent counts in each, so this is too much
        )
        self.threads = 0
        self.disk = 0.0  # MB in the children's folders
        self._pid = pid
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Usage":
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        """End."""
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.2):
            self.memory = max(self.memory, pss(self._pid))
            below = descendants(self._pid)
            self.threads = max(self.threads, sum(int(_status(pid).get("Threads", "0")) for pid in below))
            with suppress(OSError):  # what is looked at goes away
                files = [path for cell in cells(self._pid) for path in cell.rglob("*")]
                self.disk = max(self.disk, sum(path.lstat().st_blocks * 512 for path in files[:30_000]) / 1e6)
