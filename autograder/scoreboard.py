"""What staff see while a submission is graded, and after."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from autograder.grade import Grade
from handout.problems import Assignment

_TELL_EVERY = 30.0  # seconds between two lines about long work, where there is no terminal to draw a bar on
_MARKS = {"passed": "[green]ok[/]", "failed": "[red]lost[/]", "not graded": "[yellow]not graded[/]"}


class Watch:
    """A progress bar on standard error, fed with the grade so far."""

    def __init__(self, title: str) -> None:
        """Prepare a bar called `title`; it shows while the `with` block runs."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=5)
        self._task = self._progress.add_task(escape(title))

    def __enter__(self) -> "Watch":
        """Show the bar, where there is a terminal."""
        if sys.stderr.isatty():
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        if sys.stderr.isatty():
            self._progress.stop()

    def __call__(self, grade: Grade) -> None:
        """Show how far the rows are."""
        done = sum(row.outcome != "not graded" for row in grade.rows)
        self._progress.update(self._task, completed=done, total=len(grade.rows))


@contextmanager
def long_work(total: int, things: str) -> Iterator[Callable[[str, int], None]]:
    """Show on standard error how far work of minutes is, and how long it will take yet.

    Args:
        total: how many things there are to do.
        things: what they are called.

    Yields:
        What is to be called after each step, with a title and the number of things that it has done.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(things))
    clocks = (TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn())
    console = Console(stderr=True, highlight=False)
    progress = Progress(*columns, *clocks, console=console, transient=True, disable=not console.is_terminal)
    progress.speed_estimate_period = 600.0
    bar = progress.add_task("", total=total)
    start = told = time.monotonic()

    def advance(title: str, done: int) -> None:
        nonlocal told
        progress.update(bar, description=escape(title), advance=done)
        now, completed = time.monotonic(), progress.tasks[0].completed
        if progress.disable and now - told > _TELL_EVERY:
            told = now
            left = (now - start) * (total - completed) / completed
            console.print(f"{escape(title)}: {completed:.0f} of {total} {things}, about {left / 60:.0f} min left")

    with progress:
        yield advance


def print_grade(grade: Grade, assignment: Assignment) -> None:
    """Print a line a problem and what was lost, then the total."""
    console = Console(highlight=False)
    for note in grade.notes:
        console.print(f"[yellow]{escape(_printable(note))}[/]")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    table.add_column("problem")
    table.add_column("rows", justify="right")
    table.add_column("points", justify="right")
    for problem in assignment.graded_problems:
        rows = [row for row in grade.rows if row.problem == problem.id]
        passed = sum(row.outcome == "passed" for row in rows)
        points = f"{sum(row.score for row in rows):g} of {problem.points:g}"
        colour = "green" if passed == len(rows) else "red"
        table.add_row(problem.number, f"[{colour}]{problem.id}[/]", f"{passed} of {len(rows)}", points)
    console.print(table)
    for row in grade.rows:
        if row.outcome != "passed":
            console.print(f"\n{_MARKS[row.outcome]} {row.number} {escape(row.name)} [dim]({row.test})[/]")
            console.print(escape(_indented(row.output)))
            if row.staff:
                console.print(f"[dim]{escape(_indented(row.staff[:4000]))}[/]")
    console.print(f"\n[bold]{grade.score:g} of {grade.max_score:g} points[/], isolation: {grade.isolation}")


def _printable(text: str) -> str:
    """Take the commands to the terminal out of what a student wrote."""
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in _printable(text).splitlines())
