"""What a grader leaves on the machine: processes and files."""

import os
import time
from collections.abc import Callable
from pathlib import Path

STUDENT_UIDS = range(40_000, 56_000)  # what sandbox.uids hands out


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def descendants(pid: int) -> list[int]:
    """Return the pids of all processes below `pid`. What detaches itself stays below: the zygote is a subreaper."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (status := _status(int(entry.name))):
            parents[int(entry.name)] = int(status["PPid"])
    found, new = [], [pid]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        found += new
    return found


def students(pid: int) -> list[int]:
    """Return the processes of students below the process `pid` of a grader: its children's children."""
    zygotes = [child for child in descendants(pid) if _status(child).get("PPid") == str(pid)]
    return [child for child in descendants(pid) if child not in zygotes]


def runs_something(pid: int) -> bool:
    """Tell whether a process is more than one thread that sleeps, as a child kept ready is."""
    status = _status(pid)
    return bool(status) and (status["Threads"] != "1" or not status["State"].startswith("S"))


def left_files() -> list[Path]:
    """Return what students' users own in the folders that everybody may write."""
    found = []
    for folder in (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path("/dev/mqueue")):  # noqa: S108
        if folder.is_dir():
            for path in folder.iterdir():
                try:
                    owner = path.lstat().st_uid
                except FileNotFoundError:
                    continue
                if owner in STUDENT_UIDS:
                    found.append(path)
    return found


def cells(pid: int) -> list[Path]:
    """Return the folders in which the children of the grader `pid` live, found by where those kept ready are."""
    for child in students(pid):
        try:
            home = Path(os.readlink(f"/proc/{child}/cwd"))
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
