"""What the class did: numbers of the whole, of each problem and of each hidden test. Knows nothing of how they are shown."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autograder.classroom.record import Record
from autograder.grade import Row
from handout.problems import Assignment

_UNTRIED = ("missing", "not started")
_ENOUGH = 5  # submissions for a correlation to be shown


@dataclass(frozen=True)
class Item:
    """A hidden test, or all those of a problem, over the class."""

    number: str
    id: str  # the problem's, or the test function's name
    title: str
    points: float
    graded: int  # submissions
    tried: int  # of these: it was there, and no stub
    rate: float | None  # of those who tried: share that passes, or share of the points that is reached
    discrimination: (
        float | None
    )  # correlation with the rest of the score, of those who tried; None: too few, or all the same
    misconceptions: tuple[tuple[str, int], ...] = ()

    @property
    def flag(self) -> str:
        """What is suspicious about it, if anything is."""
        if not self.tried:
            return "nobody tried" if self.graded else ""
        if self.rate == 0:
            return "nobody passes"
        if self.rate == 1:
            return "everybody passes"
        if self.discrimination is not None and round(self.discrimination, 2) < 0:
            return "the weaker do better"
        return ""


@dataclass(frozen=True)
class Event:
    """Something about one submission that a person may want to look at."""

    submission: str
    number: str  # of the problem
    test: str
    text: str  # for staff


@dataclass(frozen=True)
class ClassStatistics:
    """All of it."""

    scores: tuple[float, ...]  # of those who have a grade, in rising order
    most: float  # points that there are
    problems: tuple[Item, ...]
    tests: tuple[Item, ...]
    misconceptions: tuple[tuple[str, str, int], ...]  # problem, name, submissions
    causes: Mapping[str, tuple[int, int]]  # submissions and rows lost by each
    events: Mapping[str, tuple[Event, ...]]  # timeouts, crashes, escapes
    slowest: tuple[tuple[str, float], ...]  # submission and seconds

    @property
    def mean(self) -> float:
        """The mean score; 0 without any."""
        return statistics.fmean(self.scores) if self.scores else 0.0

    @property
    def median(self) -> float:
        """The median score; 0 without any."""
        return statistics.median(self.scores) if self.scores else 0.0

    def histogram(self, bins: int = 10) -> list[int]:
        """Return how many scores lie in each of so many equal ranges; full marks belong to the last."""
        counts = [0] * bins
        for score in self.scores:
            counts[max(0, min(bins - 1, int(score / self.most * bins)))] += 1
        return counts


def class_statistics(records: Sequence[Record], assignment: Assignment) -> ClassStatistics:
    """Count over the submissions of a class; only those with a grade enter the rates."""
    graded = [record for record in records if record.final]
    there = {row.test: row for record in graded for row in record.grade.rows}
    rows = sorted(there.values(), key=lambda row: tuple(map(int, row.number.split("."))))
    columns = _columns(graded, rows)
    totals = [record.grade.score for record in graded]
    tests = tuple(_test(row, columns[row.test], totals) for row in rows)
    problems = tuple(
        _problem(assignment, id, [columns[row.test] for row in rows if row.problem == id], totals)
        for id in dict.fromkeys(row.problem for row in rows)
    )
    misconceptions = Counter(
        pair
        for record in graded
        for pair in {(row.problem, row.misconception) for row in record.grade.rows if row.misconception}
    )
    lost = [(record.submission, row) for record in graded for row in record.grade.rows if row.cause]
    causes: dict[str, tuple[int, int]] = {
        cause: (len({id for id, row in lost if row.cause == cause}), sum(row.cause == cause for _, row in lost))
        for cause in sorted({row.cause for _, row in lost})
    }
    events = {
        cause: tuple(Event(id, row.number, row.function, _what_happened(row)) for id, row in lost if row.cause == cause)
        for cause in ("timeout", "crash", "escape")
    }
    slowest = sorted(((record.submission, record.seconds) for record in graded), key=lambda pair: -pair[1])
    return ClassStatistics(
        scores=tuple(sorted(totals)),
        most=sum(problem.points for problem in assignment.graded_problems),
        problems=problems,
        tests=tests,
        misconceptions=tuple((problem, name, count) for (problem, name), count in misconceptions.most_common()),
        causes=causes,
        events=events,
        slowest=tuple(slowest[:10]),
    )


def _what_happened(row: Row) -> str:
    """Return one line about an event: of an escape, what was refused, which only staff read."""
    lines = (row.staff if row.cause == "escape" else row.output).strip().split("\n")
    return lines[-1] if row.cause == "escape" else lines[0]


def _columns(records: Sequence[Record], rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return each test's row of every record, in the same order; one that a record lacks was not graded."""
    own = [{row.test: row for row in record.grade.rows} for record in records]
    return {
        row.test: [has.get(row.test) or replace(row, outcome="not graded", cause="") for has in own] for row in rows
    }


def _tried(row: Row) -> bool:
    return row.outcome != "not graded" and row.cause not in _UNTRIED


def _test(row: Row, column: Sequence[Row], totals: Sequence[float]) -> Item:
    tried = [(each, total) for each, total in zip(column, totals, strict=True) if _tried(each)]
    named = Counter(each.misconception for each, _ in tried if each.misconception)
    return Item(
        row.number,
        row.function,
        row.name,
        row.max_score,
        len(column),
        len(tried),
        statistics.fmean(each.outcome == "passed" for each, _ in tried) if tried else None,
        correlation([each.score for each, _ in tried], [total - each.score for each, total in tried]),
        tuple(named.most_common(3)),
    )


def _problem(assignment: Assignment, id: str, columns: Sequence[Sequence[Row]], totals: Sequence[float]) -> Item:
    problem = assignment.problem(id)
    tried = []
    for rows, total in zip(zip(*columns, strict=True), totals, strict=True):
        if any(_tried(row) for row in rows):
            points = sum(row.score for row in rows)
            tried.append((points, total - points))
    return Item(
        problem.number,
        id,
        problem.title,
        problem.points,
        len(totals),
        len(tried),
        statistics.fmean(points for points, _ in tried) / problem.points if tried else None,
        correlation([points for points, _ in tried], [rest for _, rest in tried]),
    )


def correlation(xs: Iterable[float], ys: Iterable[float]) -> float | None:
    """Return Pearson's r; None if there are too few pairs, or no spread."""
    xs, ys = list(xs), list(ys)
    if len(xs) < _ENOUGH or len(set(xs)) < 2 or len(set(ys)) < 2:
        return None
    return statistics.correlation(xs, ys)
