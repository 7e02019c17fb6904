"""Checks the grader on submissions whose grade is known."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from autograder.grade import Grade
from autograder.plugin import Suites, run_suites
from autograder.sandbox.client import Sandbox
from autograder.scoreboard import Watch
from autograder.submission import read_submission
from handout.problems import Assignment

_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class _Known:
    """A submission and the share of the points that it must get."""

    name: str
    folder: Path
    share: float


_KNOWN = (_Known("reference", _ROOT / "reference", 1.0), _Known("stubs", _ROOT / "student", 0.0))


def verify(sandbox: Sandbox, assignment: Assignment) -> int:
    """Grade each known submission, print a table, and return 0 if all get what they must, else 1."""
    modules = frozenset(part.id for part in assignment.parts)
    grades: list[tuple[_Known, Grade]] = []

    def job(suites: Suites) -> None:
        for known in _KNOWN:
            with Watch(known.name) as watch:
                grades.append((known, suites.grade(read_submission(known.folder, modules), watch)))

    run_suites(sandbox, assignment, job)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("submission", "points", "must be", ""):
        table.add_column(column, justify="right" if column in ("points", "must be") else "left")
    wrong = []
    for known, grade in grades:
        rows = [row for row in grade.rows if row.score != known.share * row.max_score]
        wrong += [(known, row) for row in rows]
        verdict = "[red]wrong[/]" if rows else "[green]ok[/]"
        table.add_row(known.name, f"{grade.score:g}", f"{known.share * grade.max_score:g}", verdict)
    console = Console(highlight=False)
    console.print(table)
    for known, row in wrong:
        console.print(f"\n{known.name}: {row.test} is {row.outcome}\n{row.output}\n{row.staff}", markup=False)
    return 1 if wrong else 0
