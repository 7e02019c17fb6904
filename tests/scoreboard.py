"""The scoreboard that ends a run of the public tests: a line a problem, what the points depend on, and what to do next."""

import ast
import io
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from handout.problems import Assignment, Problem, load_assignment

# What a problem's line can say, and in which colour.
DONE = "done"
PASSING = "passing"  # but not all of its tests were run
FAILING = "failing"
STARTED = "started"  # some tests pass, the others reach a stub
WAITING = "waiting"  # for another problem, whose stub its tests reach
NOT_STARTED = "not started"
NOT_RUN = "not run"
CANNOT_IMPORT = "cannot be imported"  # the remark of a failing problem whose whole part is broken
COLOURS = {DONE: "green", PASSING: "green", FAILING: "red", STARTED: "yellow", NOT_STARTED: "yellow", WAITING: "yellow"}


@dataclass
class Tally:
    """What happened to the public tests of one problem."""

    existing: int = 0  # tests that were found, chosen for this run or not
    chosen: int = 0
    passed: int = 0
    failed: int = 0
    skipped: list[str] = field(default_factory=list)  # why, for each test that was: "needs a CUDA GPU"
    stubs: list[str] = field(default_factory=list)  # for each test that reached a stub, whose stub it was
    not_allowed: str = ""  # where the first thing in its solution stands that the handout does not allow
    missing: bool = False  # whether its file defines nothing of its name
    timed_out: bool = False


@dataclass(frozen=True)
class Row:
    """One problem's line."""

    problem: Problem
    status: str
    remark: str = ""
    place: str = ""  # "student/memory.py:12", if it is not where the problem's definition begins


def row(problem: Problem, tally: Tally, broken: str = "", single_tests: bool = False) -> Row:
    """Say how far a problem is.

    Args:
        problem: which one.
        tally: what its tests did.
        broken: why its part cannot be imported, if it cannot.
        single_tests: whether tests were asked for by name, so that `tally.existing` knows only of these.
    """
    if broken:
        place = re.search(r": (student/[^:]+:\d+): ", broken)
        return Row(problem, FAILING, CANNOT_IMPORT, place[1] if place else "")
    if tally.missing:
        return Row(problem, FAILING, "not defined")
    if tally.not_allowed:
        return Row(problem, FAILING, f"not allowed: {tally.not_allowed}")
    if tally.failed:
        return Row(problem, FAILING, f"{tally.failed} of {tally.chosen} tests fail")
    if awaited := [stub for stub in tally.stubs if stub != problem.id]:
        first, *others = dict.fromkeys(_number(stub) for stub in awaited)
        return Row(problem, WAITING, f"needs {first}{f' and {len(others)} more' if others else ''}")
    if tally.stubs:
        return (
            Row(problem, STARTED, f"{tally.passed} of {tally.chosen} tests pass")
            if tally.passed
            else Row(problem, NOT_STARTED)
        )
    if tally.passed == 0:
        return Row(problem, NOT_RUN, next(iter(tally.skipped), ""))
    if single_tests:
        return Row(problem, PASSING, "as far as was run")
    if tally.passed < tally.existing:
        return Row(problem, PASSING, f"{tally.passed} of {tally.existing} tests run")
    return Row(problem, DONE)


def _number(id: str) -> str:
    """Return a problem's number, which is shorter than its name."""
    return next((problem.number for problem in load_assignment().problems if problem.id == id), id)


def where(problem: Problem, root: Path) -> str:
    """Return `student/optimizers.py:88`, where a problem's solution stands, or its file if it stands nowhere."""
    path = root / "student" / f"{problem.part}.py"
    name = f"student/{path.name}"
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return name
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == problem.name:
            return f"{name}:{node.lineno}"
    return name


def points_lines(rows: Iterable[Row], untested: Iterable[Problem]) -> list[str]:
    r"""Say what public tests speak for and what hidden tests decide, so that "all passed" cannot be read as full marks.

    >>> problem = Problem("optimizers.SGD", "8.1", "Gradient descent", 2, False)
    >>> print(*points_lines([Row(problem, DONE)], []), sep="\\n")
    Public tests pass for 2 of the 2 points above. They are examples: hidden tests, which try more, decide all 2.
    """
    graded = [row for row in rows if not row.problem.bonus]
    total = sum(row.problem.points for row in graded)
    partly = ", not counting those of which only some were run" if any(r.status == PASSING for r in graded) else ""
    passed = sum(row.problem.points for row in graded if row.status == DONE)
    lines = []
    if graded:
        lines.append(
            f"Public tests pass for {passed:g} of the {total:g} points above{partly}. "
            f"They are examples: hidden tests, which try more, decide all {total:g}."
        )
    if untested := list(untested):
        names = ", ".join(problem.id for problem in untested)
        lines.append(f"Hidden tests alone decide {sum(p.points for p in untested):g} more points: {names}.")
    return lines


def command_typed() -> str:
    """Return how tests of a part are run here: with make, or with the Python that every machine of this kind has."""
    if "MAKELEVEL" in os.environ:
        return "make test PART="
    return f"{'py' if os.name == 'nt' else 'python3'} -m tests --part "


def next_lines(rows: Iterable[Row], root: Path, command: str, everything: bool) -> list[str]:
    """Say the one thing to do next: mend what is broken, finish what is begun, then begin something.

    Args:
        rows: the scoreboard's.
        root: the folder that holds `student/`.
        command: how tests are run here, as `command_typed` says.
        everything: whether every test was run.
    """
    order = [FAILING, STARTED, NOT_STARTED, WAITING]
    if to_do := [row for row in rows if row.status in order]:
        # A part that cannot be imported hides what else there is to do in it.
        row = min(to_do, key=lambda row: (row.remark != CANNOT_IMPORT, order.index(row.status)))
        place = row.place or where(row.problem, root)
        return [f"Next: {row.problem.id}, {row.status}: {place}", f"      {command}{row.problem.part}"]
    if not everything:
        return ["Next: the other tests", f"      {command.split(' PART')[0].split(' --part')[0]}"]
    by_make = command.startswith("make")
    return ["Next: hand in", "      make submission" if by_make else f"      {command.split(' --part')[0]}.submission"]


def rows_to_show(
    assignment: Assignment, tallies: Mapping[str, Tally], broken: Mapping[str, str], single_tests: bool
) -> list[Row]:
    """Return the rows of the graded parts' problems that this run is about, in the order of the handout."""
    return [
        row(problem, tallies.get(problem.id, Tally()), broken.get(part.id, ""), single_tests)
        for part in assignment.parts
        for problem in part.problems
        # A part whose tests could not even be collected has no tallies; its problems are as broken as it is.
        if (problem.id in tallies and tallies[problem.id].chosen)
        or (part.id in broken and not any(p.id in tallies for p in part.problems) and not problem.bonus)
    ]


def render(rows: Iterable[Row], lines: Iterable[str], width: int, colour: bool) -> str:
    """Return the scoreboard as text for a terminal. It is plain ASCII: Windows consoles can show nothing else for sure."""
    from rich.console import Console, Group  # 50 ms that a run which ends early does not pay
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, pad_edge=False)
    table.add_column("")
    table.add_column("problem", no_wrap=True)
    table.add_column("points", justify="right")
    table.add_column("public tests", no_wrap=True)
    table.add_column("")
    for row in rows:
        points = f"+{row.problem.points:g}" if row.problem.bonus else f"{row.problem.points:g}"
        table.add_row(
            row.problem.number,
            row.problem.id,
            points,
            Text(row.status, style=COLOURS.get(row.status, "")),
            Text(row.remark, style="dim"),
        )
    text = io.StringIO()
    Console(file=text, width=width, force_terminal=colour, no_color=not colour, highlight=False).print(
        Group(table, "", *map(Text, lines))
    )
    return text.getvalue()
