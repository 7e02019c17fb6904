"""Checks the grader on submissions whose grade is known: the reference, the stubs, and a submission for each misconception."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autograder.grade import Grade, Row
from autograder.misconceptions import Drifted, Misconception, misconceptions
from autograder.plugin import Suites, run_suites
from autograder.sandbox.client import Sandbox
from autograder.scoreboard import Watch
from autograder.submission import Submission, read_submission
from handout.problems import Assignment

_ROOT = Path(__file__).parents[1]
# The row that runs a student's own parts together is about each of them.
_TOGETHER = "training.together"


@dataclass(frozen=True)
class Verdict:
    """What came of a submission whose grade is known."""

    about: str  # a line of the table
    points: str
    faults: tuple[str, ...]  # what is wrong with it; nothing where all is well


def verify(sandbox: Sandbox, assignment: Assignment, parts: Sequence[str], device: str = "sim") -> int:
    """Grade the reference, the stubs and the misconceptions of some parts, print a table, and return 0 if all get what they must."""
    verdicts: list[Verdict] = []

    def job(suites: Suites) -> None:
        modules = frozenset(part.id for part in assignment.parts)
        reference = read_submission(_ROOT / "reference", modules)
        stubs = read_submission(_ROOT / "student", modules)
        for name, submission, share in (("reference", reference, 1.0), ("stubs", stubs, 0.0)):
            with Watch(name) as watch:
                verdicts.append(_uniform(name, suites.grade(submission, watch), share))
        verdicts.extend(_part(suites, reference, part) for part in parts)

    run_suites(sandbox, assignment, job, device=device)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "points", ""):
        table.add_column(column, justify="right" if column == "points" else "left")
    for verdict in verdicts:
        table.add_row(verdict.about, verdict.points, "[red]wrong[/]" if verdict.faults else "[green]ok[/]")
    console = Console(highlight=False)
    console.print(table)
    for verdict in verdicts:
        for fault in verdict.faults:
            console.print(f"\n{escape(fault)}", soft_wrap=True)
    return int(any(verdict.faults for verdict in verdicts))


def _uniform(name: str, grade: Grade, share: float) -> Verdict:
    """Judge a submission that must get the same share of every row."""
    faults = tuple(
        f"{name}: {row.test} is {row.outcome}\n{row.output}\n{row.staff}"
        for row in grade.rows
        if row.score != share * row.max_score
    )
    return Verdict(name, f"{grade.score:g} of {grade.max_score:g}", faults)


def _part(suites: Suites, reference: Submission, part: str) -> Verdict:
    """Judge the misconceptions of a part: only its rows are run, since all other parts are the reference's own."""
    known = misconceptions(part)
    about = f"{part}: {len(known)} misconceptions"
    faults: list[str] = []
    for i, misconception in enumerate(known):
        with Watch(f"{about}, {i} done") as watch:
            try:
                faults += faults_of(misconception, grade_of(suites, reference, misconception, watch))
            except Drifted as error:
                faults.append(str(error))
    return Verdict(about, "less", tuple(faults))


def grade_of(
    suites: Suites, reference: Submission, misconception: Misconception, watch: Callable[[Grade], None]
) -> Grade:
    """Grade the rows of a misconception's part as if a student had handed it in among right parts."""
    files = {**reference.files, f"{misconception.part}.py": misconception.source().encode()}
    return suites.grade(replace(reference, files=files), watch, misconception.part)


def faults_of(misconception: Misconception, grade: Grade) -> Sequence[str]:
    """Return what is wrong with the grade of a misconception.

    It must lose each row that it is known to lose, none of any other problem, and be named in what the student reads, with no
    other in its place.
    """
    lost = [row for row in grade.rows if row.outcome != "passed"]
    names = {row.function for row in lost}
    kept = misconception.loses - names
    besides = [
        row
        for row in lost
        if row.function not in misconception.loses | misconception.tolerates and row.problem != _TOGETHER
    ]
    elsewhere = [row for row in lost if row.problem not in (misconception.problem, _TOGETHER)]
    named = Counter(row.misconception for row in lost if row.misconception)
    faults = [f"keeps {name}" for name in sorted(kept)]
    faults += [f"loses besides {_brief(row)}" for row in besides]
    faults += [f"loses {_brief(row)}, of another problem" for row in elsewhere]
    if not named[misconception.name]:
        faults.append("is not named" + "".join(f"\n      {_brief(row)}" for row in lost))
    faults += [
        f"is taken for {row.misconception} in {row.test}"
        for row in lost
        if row.misconception not in ("", misconception.name)
    ]
    return [f"{misconception.part}, {misconception.name}: {fault}" for fault in faults]


def _brief(row: Row) -> str:
    return f"{row.test}: {' '.join(row.output.split())[:200]}"
