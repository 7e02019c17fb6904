"""Two runs held side by side: whose score changed, by how much, and which row did it."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from autograder.classroom.export import HandedIn
from autograder.classroom.folder import is_merged, load_students
from autograder.classroom.gradebook import Line, gone_marks, kept_marks, lines, manual_marks
from autograder.classroom.manual import NAME, read_marks
from autograder.classroom.progress import printable
from autograder.classroom.record import Record, all_records


@dataclass(frozen=True)
class Change:
    """One submission that two runs grade differently."""

    submission: str
    earlier: str | None  # the one in whose place it was handed in since
    called: str  # its students
    before: Record | None
    after: Record | None
    rows: tuple[tuple[str, float, str], ...]  # test, points more or less, "lost -> passed"
    files: bool  # whether both are grades, of different files

    @property
    def points(self) -> float | None:
        """How many points more; None: one of the runs has no grade."""
        before, after = (record.score if record else None for record in (self.before, self.after))
        return None if before is None or after is None else after - before


def changes(before: Path, after: Path) -> list[Change]:
    """Return the submissions whose score, rows, status or files are not the same, those with the largest loss first."""
    old, new, again = _counting(before), _counting(after), _handed_in_again(before, after)
    called = {one.id: ", ".join(student.called for student in one.students) for one in _students(before, after)}
    found = []
    pairs: list[tuple[str | None, str]] = [
        (None, id) for id in (old.keys() | new.keys()) - again.keys() - set(chain(*again.values()))
    ]
    pairs += [(earlier, id) for id, each in again.items() for earlier in each]
    for earlier, id in sorted(pairs, key=lambda pair: (len(pair[1]), pair[1], pair[0] or "")):
        a, b = old.get(earlier or id), new.get(id)
        rows = _rows(a, b)
        files = bool(a and b and a.final and b.final and a.digest != b.digest)
        if rows or files or (a and a.status) != (b and b.status):
            found.append(Change(id, earlier, called.get(id, ""), a, b, rows, files))
    return sorted(found, key=lambda change: (change.points is not None, change.points or 0))


def submissions(folder: Path) -> set[str]:
    """Return those of a run: in its grade book or, in a folder that does not say who handed in, with results."""
    return {one.id for one in load_students(folder)} or set(all_records(folder))


def _counting(folder: Path) -> dict[str, Record]:
    """Return the records that are in the grade book of a run: not those of submissions that were replaced, or have no files any more."""
    without_files = {one.id for one in load_students(folder) if not one.has_files}
    counting = submissions(folder) - without_files
    return {id: record for id, record in all_records(folder).items() if id in counting}


def _handed_in_again(before: Path, after: Path) -> dict[str, list[str]]:
    """Return by each submission that only the later run has those of its students that only the earlier one has."""
    old, new = ({one.id: one for one in load_students(folder)} for folder in (before, after))
    earlier = {name: id for id in old.keys() - new for student in old[id].students for name in student.names}
    found = {
        id: sorted({earlier[name] for student in new[id].students for name in student.names if name in earlier})
        for id in new.keys() - old
    }
    return {id: each for id, each in found.items() if each}


def _students(before: Path, after: Path) -> list[HandedIn]:
    return [*load_students(before), *load_students(after)]


def _rows(before: Record | None, after: Record | None) -> tuple[tuple[str, float, str], ...]:
    if not (before and after and before.final and after.final):
        return ()
    old, new = ({row.test: row for row in record.grade.rows} for record in (before, after))
    found = []
    for test in dict.fromkeys([*old, *new]):
        a, b = old.get(test), new.get(test)
        outcome = [row.outcome if row else "not there" for row in (a, b)]
        points = (b.score if b else 0.0) - (a.score if a else 0.0)
        if points or outcome[0] != outcome[1]:
            found.append((test, points, " -> ".join(outcome)))
    return tuple(found)


def told(found: Iterable[Change], before: Path, after: Path) -> list[str]:
    """Return the lines to print."""
    found = list(found)
    said = []
    for change in found:
        scores = " -> ".join(_score(record) for record in (change.before, change.after))
        points = "" if change.points is None else f"  {change.points:+g}"
        places = " -> ".join(filter(None, (change.earlier, change.submission)))
        who = printable(", ".join(filter(None, (places, change.called))))
        said.append(f"{who}  {scores}{points}{'  of other files' if change.files else ''}")
        for record in (change.before, change.after):
            if record and record.status != "graded":
                said.append(f"    {record.status}{': ' if record.detail else ''}{printable(record.detail)}")
        said += [f"    {row_points:+g}  {test}: {outcome}" for test, row_points, outcome in change.rows]
    by_row: dict[str, list[float]] = {}
    for change in found:
        for test, row_points, _ in change.rows:
            by_row.setdefault(test, []).append(row_points)
    if by_row:
        said += ["", "by row:"]
        most = sorted(by_row.items(), key=lambda pair: -len(pair[1]))
        said += [f"  {test}: {len(each)} submissions, {sum(each):+g} points" for test, each in most]
    total = len((submissions(before) | submissions(after)) - set(chain(*_handed_in_again(before, after).values())))
    changed = [change.points for change in found if change.points]
    up, down = sum(points > 0 for points in changed), sum(points < 0 for points in changed)
    said.append(f"{len(found)} of {total} submissions differ: {up} have more points, {down} fewer")
    return said + _about_marks(before, after)


def _about_marks(before: Path, after: Path) -> list[str]:
    """Return the lines about marks that a person gave, which do not come from either run."""
    if is_merged(before) or is_merged(after):  # whose marks are in the folder of the CPU's run
        return []
    if (before / NAME).exists() and not (after / NAME).exists():
        return [
            f"{before / NAME} has marks that a person gave, and {after} has none: copy it there and run `make class` again"
        ]
    old, new = _manual(before), _manual(after)
    stale = [
        gone_marks(run) or f"the grade book of {run} does not have the marks of its {NAME}: run `make class` again"
        for run, own in {before: old, after: new}.items()
        if manual_marks(own) != kept_marks(run)
    ]
    given = [{line.key: line for line in own if line.manual is not None} for own in (old, new)]
    for key in given[0] | given[1]:
        a, b = (each.get(key) for each in given)
        if _points(a) != _points(b):
            who = next(line.who for line in (b, a) if line)
            stale.append(f"manual marks: {printable(who)}: {_points(a)} -> {_points(b)}")
    return stale


def _manual(folder: Path) -> list[Line]:
    """Return the students of a run, with the points that a person has given them."""
    handed_in = load_students(folder)
    return lines(handed_in, {}, read_marks(folder / NAME, handed_in), {})


def _points(line: Line | None) -> str:
    return "none" if line is None else f"{line.manual:g}"


def _score(record: Record | None) -> str:
    if record is None:
        return "not there"
    return f"{record.score:g}" if record.score is not None else record.status
