"""What grading costs, always as a ratio to a baseline measured in the same run: machines are noisy, and differ.

Pairs of runs are interleaved, so that a slow minute of the machine hits both sides. Memory is measured in a run of its own, since
looking costs time.
"""

import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table

_ROOT = Path(__file__).parents[1]
_PAIRS = 5
_ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


@dataclass(frozen=True)
class Cost:
    """Seconds of one run of a command, all its processes together."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Comparison:
    """Two commands that do the same work."""

    title: str
    ours: list[str]
    baseline: list[str]
    wall_target: float  # ratio ours / baseline
    cpu_target: float | None


def main() -> int:
    """Measure, print a table, and return 1 if a target is missed."""
    from autograder.classroom import bench as a_class

    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder, "results.json"))
        python = sys.executable
        suites = sorted(str(path) for path in (_ROOT / "autograder" / "hidden").glob("test_*.py"))
        grade = [python, "-m", "autograder", "grade", "reference", "--out", out]
        comparisons = (
            Comparison(
                "grade one submission, cold, against plain pytest of the hidden suites",
                grade,
                [python, "-m", "pytest", "-q", "-p", "autograder.plain", *suites],
                wall_target=1.0,
                cpu_target=1.0,
            ),
            Comparison(
                "make test, cold, against importing torch and torch._dynamo",
                [python, "-m", "tests"],
                [python, "-c", "import torch, torch._dynamo"],
                wall_target=1.3,
                cpu_target=None,
            ),
        )
        console = Console(highlight=False)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("", "ours", "baseline", "ratio", "range", "target"):
            table.add_column(column, justify="left" if not column else "right")
        missed = False
        for comparison in comparisons:
            missed |= _compare(comparison, table)
        peak = peak_pss(grade)
        missed |= peak > 400
        table.add_row("peak PSS of the process tree, MB", f"{peak:.0f}", "", "", "", "400")
        with Progress(console=Console(stderr=True), transient=True) as progress:
            missed |= a_class.add_to(table, progress)
        console.print(table)
    return int(missed)


def _compare(comparison: Comparison, table: Table) -> bool:
    """Add a comparison's rows to the table; return whether a target is missed."""
    ours, baseline = [], []
    run(comparison.ours), run(comparison.baseline)  # the file cache
    for _ in track(range(_PAIRS), comparison.title, console=Console(stderr=True), transient=True):
        ours.append(run(comparison.ours))
        baseline.append(run(comparison.baseline))
    table.add_row(f"[bold]{comparison.title}[/]")
    missed = False
    for name, target in (("wall", comparison.wall_target), ("cpu", comparison.cpu_target)):
        a, b = [getattr(cost, name) for cost in ours], [getattr(cost, name) for cost in baseline]
        ratios = [x / y for x, y in zip(a, b, strict=True)]
        ratio = statistics.median(ratios)
        table.add_row(
            f"  {name}, s",
            f"{statistics.median(a):.2f}",
            f"{statistics.median(b):.2f}",
            f"{ratio:.2f}",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
            f"{target:.2f}" if target else "",
        )
        missed |= target is not None and ratio > target
    return missed


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
