"""Runs commands and reads what they cost from the kernel: seconds of the wall and the CPU, and memory of a tree of processes."""

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


@dataclass(frozen=True)
class Cost:
    """Seconds of one run of a command, all its processes together."""

    wall: float
    cpu: float


def run(command: Sequence[str]) -> Cost:
    """Run a command to its end; its children's CPU time counts once they are waited for, as all of ours are."""
    begin = time.perf_counter()
    pid = start(command)
    _, status, usage = os.wait4(pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise RuntimeError(f"{' '.join(command)} ended with status {status}")
    return Cost(time.perf_counter() - begin, usage.ru_utime + usage.ru_stime)


def start(command: Sequence[str]) -> int:
    """Start a command, without a terminal, and return its pid."""
    null = os.open(os.devnull, os.O_RDWR)
    actions = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
    here = Path.cwd()
    os.chdir(_ROOT)
    try:
        return os.posix_spawn(command[0], list(command), _ENVIRONMENT, file_actions=actions)
    finally:
        os.chdir(here)
        os.close(null)


def peak_pss(command: Sequence[str]) -> float:
    """Return the largest sum of proportional set sizes of a command's process tree, in MB, looking 20 times a second."""
    pid, peak = start(command), 0.0
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        peak = max(peak, pss(pid))
        time.sleep(0.05)
    return peak


def pss(pid: int, cgroup: str = "") -> float:
    """Return the proportional set sizes of a process and all below it, in MB; with a name, only of those in that control group."""
    total = 0.0
    for process in _tree(pid):
        with suppress(OSError):
            if cgroup and cgroup not in Path(f"/proc/{process}/cgroup").read_text(encoding="ascii"):
                continue
            rollup = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
            if size := re.search(r"^Pss:\s+(\d+)", rollup, re.M):  # none of a process that is ending
                total += int(size[1]) / 1000
    return total


def _tree(root: int) -> list[int]:
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        with suppress(OSError):
            for thread in Path(f"/proc/{pid}/task").iterdir():  # a child belongs to the thread that forked it
                todo += map(int, (thread / "children").read_text(encoding="ascii").split())
    return found
