"""report.html: one page that needs nothing else, for a screen, a phone and paper.

It is handed around, so its title and its address name nobody. Without identities (`ANONYMOUS=1`) students are numbers that nothing
connects with them, and what they wrote themselves is left out: a file can be called after its author.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from autograder.classroom.export import HandedIn
from autograder.classroom.gradebook import Line
from autograder.classroom.record import Record, path_of
from autograder.classroom.similar import similar
from autograder.classroom.statistics import ClassStatistics, Item, class_statistics
from autograder.misconceptions import misconceptions
from handout.problems import Assignment
from tests.submission import write_atomically

_TEMPLATE = "report.html.j2"
CAUSES = {  # as a person says it, in the order of the report
    "wrong": "another answer than the reference's",
    "raised": "an exception",
    "not allowed": "uses what the rules leave out",
    "timeout": "ran out of time",
    "crash": "ended the process",
    "escape": "was refused by the sandbox",
    "missing": "not handed in, or not defined",
    "not started": "still the stub",
}
_EVENTS = {"timeout": "Timeouts", "crash": "Crashes", "escape": "Attempts to leave the sandbox"}


@dataclass(frozen=True)
class Entry:
    """One submission in the report's list."""

    anchor: str
    name: str
    sid: str
    status: str
    detail: str
    score: float | None
    totals: tuple[float | None, ...]  # with what a person has added, which may differ within a group
    left_out: tuple[str, ...]  # whom of it canvas.csv leaves out, and why
    summed: bool  # whether points that were given while there was no grade are added to one
    seconds: float
    file: str  # results.json, relative to the page; "" without identities


def write_report(
    folder: Path,
    assignment: Assignment,
    handed_in: Sequence[HandedIn],
    records: Mapping[str, Record],
    lines: Sequence[Line],
    anonymous: bool,
) -> None:
    """Write report.html into a run's folder."""
    order = [submission.id for submission in handed_in]
    if anonymous:
        random.SystemRandom().shuffle(order)
    numbers = {id: i for i, id in enumerate(order, start=1)}
    graded = [records[id] for id in order if id in records]
    numbers_of_class = class_statistics(graded, assignment)
    of: dict[str, list[Line]] = {}
    for line in lines:
        of.setdefault(line.submission.id, []).append(line)
    entries = {
        submission.id: _entry(
            submission, numbers[submission.id], records.get(submission.id), of[submission.id], anonymous
        )
        for submission in handed_in
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"points": _points, "percent": _percent, "bar": _bar, "signed": _signed}
    page = environment.get_template(_TEMPLATE).render(
        assignment=assignment,
        anonymous=anonymous,
        numbers=numbers_of_class,
        histogram=_histogram(numbers_of_class),
        parts=[
            (part, [item for item in numbers_of_class.tests if item.number.split(".")[0] == str(part.number)])
            for part in assignment.parts
        ],
        flagged=sorted((item for item in numbers_of_class.tests if item.flag), key=_urgency),
        misunderstood=_misunderstood(numbers_of_class),
        causes=[
            (text, *numbers_of_class.causes[cause])
            for cause, text in CAUSES.items()
            if cause in numbers_of_class.causes
        ],
        events=[(title, _by_submission(numbers_of_class, cause)) for cause, title in _EVENTS.items()],
        entries=entries,
        listed=sorted(entries.values(), key=lambda entry: int(entry.anchor[1:])),
        pairs=similar({record.submission: record.shape for record in graded}),
        isolations=sorted({record.grade.isolation for record in graded}),
        versions=sorted({record.grader for record in graded}),
        rows=_rows(graded, entries, anonymous),
    )
    write_atomically(folder / "report.html", page.encode())


def _entry(submission: HandedIn, number: int, record: Record | None, own: Sequence[Line], anonymous: bool) -> Entry:
    names = [line.student.called for line in own]
    name = f"No. {number}" if anonymous else ", ".join(filter(None, names)) or submission.id
    file = path_of(Path(), submission.id).as_posix() if record and not anonymous else ""
    return Entry(
        anchor=f"s{number}",
        name=name,
        sid="" if anonymous else ", ".join(filter(None, (line.student.sid for line in own))),
        status=own[0].status,
        detail="" if anonymous else own[0].detail,
        score=record.score if record else None,
        totals=() if anonymous else tuple(dict.fromkeys(line.total for line in own)),
        left_out=tuple(
            line.left_out if anonymous else f"{line.student.called} {line.left_out}".lstrip()
            for line in own
            if line.left_out
        ),
        summed=any(line.summed for line in own),
        seconds=record.seconds if record else 0.0,
        file=file,
    )


def _urgency(item: Item) -> tuple[float, float]:
    """Sort what can be a fault of the test before what only is no use."""
    order = {"nobody passes": 0, "the weaker do better": 1, "nobody tried": 2, "everybody passes": 3}
    return order[item.flag], item.discrimination or 0.0


def _misunderstood(numbers: ClassStatistics) -> list[tuple[str, str, int]]:
    """Return problem, sentence and count of what the class gets wrong."""
    says = {
        (wrong.problem, wrong.name): wrong.says
        for part in dict.fromkeys(problem.split(".")[0] for problem, _, _ in numbers.misconceptions)
        for wrong in misconceptions(part)
    }
    return [(problem, says.get((problem, name), name), count) for problem, name, count in numbers.misconceptions]


def _by_submission(numbers: ClassStatistics, cause: str) -> list[tuple[str, str, str]]:
    """Return each submission with an event of a kind, with its rows and what is known of the first."""
    grouped: dict[str, list[Any]] = {}
    for event in numbers.events[cause]:
        grouped.setdefault(event.submission, []).append(event)
    return [(id, ", ".join(sorted({event.number for event in own})), own[0].text) for id, own in grouped.items()]


def _rows(records: Sequence[Record], entries: Mapping[str, Entry], anonymous: bool) -> dict[str, Any]:
    """Return what the page's script shows of each submission; texts that many have stand once."""
    texts: dict[str, int] = {}

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    there = {row.test: row for record in records for row in record.grade.rows}
    place = {test: i for i, test in enumerate(there)}
    students = {}
    for record in records:
        lost = [
            [
                place[row.test],
                number(row.cause or row.outcome),
                number(row.misconception),
                number("" if anonymous else row.output),
            ]
            for row in record.grade.rows
            if row.outcome != "passed"
        ]
        notes = [] if anonymous else list(record.grade.notes)
        name = entries[record.submission].name
        students[entries[record.submission].anchor] = [name, notes, lost if record.final else None]
    tests = [[row.number, row.problem, row.name, row.max_score] for row in there.values()]
    return {"tests": tests, "texts": list(texts), "students": students, "causes": CAUSES}


@dataclass(frozen=True)
class _Column:
    x: float
    y: float
    width: float
    height: float
    count: int
    label: str


def _histogram(numbers: ClassStatistics, width: float = 360, height: float = 130) -> list[_Column]:
    counts = numbers.histogram()
    step = width / len(counts)
    most = max(counts, default=0) or 1
    return [
        _Column(
            i * step + 2,
            height * (1 - count / most),
            step - 4,
            height * count / most,
            count,
            f"{100 * i // len(counts)}",
        )
        for i, count in enumerate(counts)
    ]


def _points(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}".rstrip("0").rstrip(".")


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "\N{MINUS SIGN}")


def _bar(share: float | None) -> Markup:
    """Return a bar as an inline drawing: its length is the share."""
    if share is None:
        return Markup("")
    return Markup(
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="10"/><rect width="{100 * min(share, 1):.1f}" height="10"/></svg>'
    )
