"""What grading costs, always as a ratio to a baseline measured in the same run: machines are noisy, and differ.

Pairs of runs are interleaved, so that a slow minute of the machine hits both sides. Memory is measured in a run of its own, since
looking costs time.
"""

import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table

from autograder.classroom import bench as a_class
from autograder.costs import peak_pss, run

_ROOT = Path(__file__).parents[1]
_PAIRS = 5


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
