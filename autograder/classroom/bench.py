"""What a class costs: against fresh processes without a sandbox, one a submission, of the same suites.

Everybody hands in a right solution, so that every row of every suite runs on both sides. What a further submission costs is the difference
between two runs that differ in nothing but their number: the start and the self-check are paid once a class, and are told apart.
"""

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress
from rich.table import Table

from autograder.classroom.record import all_records
from autograder.costs import Cost, peak_pss, run, start
from handout.problems import load_assignment

_ROOT = Path(__file__).parents[2]
_CORES = len(os.sched_getaffinity(0))
_PAIRS = 3
_FURTHER = 6 * _CORES  # submissions, beyond one a core
_SMALL = 1000  # submissions of one small part, for how the cost grows
_WINDOW = 100


@dataclass(frozen=True)
class _Classes:
    """Folders of submissions."""

    few: Path  # an export of one submission a core
    more: Path  # the same, and so many further ones
    many: Path  # a thousand small ones
    single: tuple[Path, ...]  # the submissions of `more`


def add_to(table: Table, progress: Progress) -> bool:
    """Measure, add the rows to the table, and return whether a target is missed."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        classes = _make(Path(folder))
        return _throughput(Path(folder), classes, table, progress) | _growth(Path(folder), classes, table, progress)


def _throughput(folder: Path, classes: _Classes, table: Table, progress: Progress) -> bool:
    wall, base, cpu, starts = [], [], [], []
    task = progress.add_task("a class, against a fresh process a submission", total=_PAIRS)
    for _ in range(_PAIRS):
        few = run(_class(classes.few, folder / "out", _CORES))
        more = run(_class(classes.more, folder / "out", _CORES))
        wall.append((more.wall - few.wall) / _FURTHER)
        cpu.append((more.cpu - few.cpu) / _FURTHER)
        starts.append(few.wall - wall[-1])
        base.append(_plain(classes.single[: 2 * _CORES]).wall / (2 * _CORES))
        progress.advance(task)
    records = all_records(folder / "out")
    wrong = [id for id, record in records.items() if record.score != record.grade.max_score]
    if wrong:
        raise RuntimeError(f"right solutions lost points, so nothing is measured: {wrong}")
    rows = len(next(iter(records.values())).grade.rows)
    ratios = [b / a for a, b in zip(wall, base, strict=True)]
    own = _own_cpu(classes.single[0], folder / "own")
    row_cpu = 1000 * (statistics.median(cpu) - own) / rows
    one, all_ = (peak_pss(_class(classes.few, folder / "out", workers)) for workers in (1, _CORES))
    worker = (all_ - one) / max(1, _CORES - 1)
    table.add_row(f"[bold]a class: {_CORES} at once, {rows} rows, each in a fresh child[/]")
    table.add_row(
        "  wall a submission, s", f"{statistics.median(wall):.2f}", f"{statistics.median(base):.2f}",
        f"1/{statistics.median(ratios):.2f}", f"1/{max(ratios):.2f} to 1/{min(ratios):.2f}", "1/4.00",
    )  # fmt: skip
    table.add_row("  cpu a submission, s", f"{statistics.median(cpu):.2f}", f"own computing {own:.2f}", "", "", "")
    table.add_row("  cpu a row beyond its own computing, ms", f"{row_cpu:.1f}", "", "", "", "15.0")
    table.add_row("  start and self-check, s, once", f"{statistics.median(starts):.1f}", "", "", "", "")
    table.add_row("  memory (PSS) a further worker takes, MB", f"{worker:.0f}", "", "", "", "60")
    return statistics.median(ratios) < 4 or row_cpu > 15 or worker > 60


def _growth(folder: Path, classes: _Classes, table: Table, progress: Progress) -> bool:
    """Compare what a submission costs around the hundredth and around the thousandth."""
    out = folder / "many-out"
    task = progress.add_task("a thousand small submissions", total=_SMALL)
    pid = start(_class(classes.many, out, _CORES))
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        progress.update(task, completed=sum(1 for _ in out.glob("results/*")))
        time.sleep(1)
    times = sorted(path.stat().st_mtime for path in out.glob("results/*/results.json"))
    if len(times) != _SMALL:
        raise RuntimeError(f"only {len(times)} of {_SMALL} submissions were graded")
    early, late = (
        statistics.median(b - a for a, b in zip(part, part[_CORES:], strict=False))
        for part in (times[_WINDOW // 2 : 3 * _WINDOW // 2], times[-_WINDOW:])
    )
    table.add_row(
        f"  a small submission around the {_SMALL}th against the {_WINDOW}th, s",
        f"{late:.3f}", f"{early:.3f}", f"{late / early:.2f}", "", "0.85 to 1.15",
    )  # fmt: skip
    return not 0.85 <= late / early <= 1.15


def _class(export: Path, out: Path, workers: int) -> list[str]:
    shutil.rmtree(out, ignore_errors=True)
    return [sys.executable, "-m", "autograder", "class", str(export), "--out", str(out), "--workers", str(workers)]


def _plain(submissions: Sequence[Path]) -> Cost:
    """Grade submissions as `pytest` would, in a fresh process each, as many at once as there are cores."""
    begin, left, running = time.perf_counter(), list(submissions), 0
    while left or running:
        while left and running < _CORES:
            start(_pytest("--submission", str(left.pop())))
            running += 1
        os.wait()
        running -= 1
    return Cost(time.perf_counter() - begin, 0.0)


def _own_cpu(submission: Path, file: Path) -> float:
    """Return the CPU seconds that a submission's own answers to all probes take, in one process."""
    run(_pytest("--submission", str(submission), "--own-cpu", str(file)))
    return float(file.read_text(encoding="ascii"))


def _pytest(*options: str) -> list[str]:
    suites = sorted(str(path) for path in (_ROOT / "autograder" / "hidden").glob("test_*.py"))
    return [sys.executable, "-m", "pytest", "-q", "-p", "autograder.plain", *suites, *options]


def _make(folder: Path) -> _Classes:
    """Write the classes: the reference, each time with a part in another right version."""
    parts = [part.id for part in load_assignment().graded_parts]
    versions = [
        (part, path.read_bytes())
        for part in parts
        for path in sorted((_ROOT / "autograder" / "tests" / "equivalents" / part).glob("*.py"))
    ]
    solution = {part: (_ROOT / "reference" / f"{part}.py").read_bytes() for part in parts}
    right = [{**solution, **dict([versions[i * 7 % len(versions)]])} for i in range(_CORES + _FURTHER)]
    small = [{parts[0]: solution[parts[0]]}] * _SMALL
    single = _export(folder / "more", right)
    _export(folder / "few", right[:_CORES])
    _export(folder / "many", small)
    return _Classes(folder / "few", folder / "more", folder / "many", single)


def _export(folder: Path, submissions: Sequence[dict[str, bytes]]) -> tuple[Path, ...]:
    places = []
    lines = []
    for i, files in enumerate(submissions, start=1):
        places.append(folder / f"submission_{i}")
        places[-1].mkdir(parents=True)
        for part, content in files.items():
            (places[-1] / f"{part}.py").write_bytes(content)
        lines.append(f"submission_{i}:\n  :submitters: []\n")
    (folder / "submission_metadata.yml").write_text("".join(lines), encoding="utf-8")
    return tuple(places)
