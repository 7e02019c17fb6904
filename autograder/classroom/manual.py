"""Marks that a person gives: `manual.csv` in the run's folder. It is read and never written, so no run can overwrite it.

    who,points,why
    submission_409194023,2,"the handwritten derivation"
    00123,-1,"handed in a day late"

`who` is a submission, or one student of it by their id or email, as it is or as it stands in grades.csv.
"""

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from autograder.classroom.export import HandedIn, Student
from autograder.classroom.spreadsheet import unshielded

NAME = "manual.csv"
_COLUMNS = ("who", "points", "why")


class BadMarks(Exception):
    """The file cannot be taken as it is; nothing is changed."""


@dataclass(frozen=True)
class Mark:
    """Points that a person adds."""

    who: str
    points: float
    why: str


@dataclass(frozen=True)
class Marks:
    """All of a run's."""

    marks: tuple[Mark, ...]

    def of(self, submission: HandedIn, student: Student | None) -> tuple[Mark, ...]:
        """Return the marks of one student; None: of whoever handed the submission in."""
        names = {submission.id, *((student.sid, student.email) if student else ())} - {""}
        return tuple(mark for mark in self.marks if mark.who in names)


def read_marks(path: Path, handed_in: Iterable[HandedIn]) -> Marks:
    """Return the marks in the file at `path`; none if there is no file.

    Raises:
        BadMarks: if a line is not a mark, or is of nobody in the export.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return Marks(())
    except (OSError, UnicodeDecodeError) as error:
        raise BadMarks(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    known: dict[str, int] = {}
    for submission in handed_in:
        for name in {
            submission.id,
            *(name for student in submission.students for name in (student.sid, student.email)),
        }:
            known[name] = known.get(name, 0) + 1
    reader = csv.DictReader(text.splitlines(), restval="", strict=True)
    try:
        if tuple(reader.fieldnames or ()) != _COLUMNS:
            raise BadMarks(f"{path}: the first line must be {','.join(_COLUMNS)}")
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:  # a quote that is never closed would take in all marks below it
        raise BadMarks(f"{path}, from line {reader.line_num + 1} on: {error}; is a quote closed?") from None
    marks = []
    for number, row in rows:
        who, points = (row["who"] or "").strip(), (row["points"] or "").strip()
        line = f"{path}, line {number}"
        if None in row:
            raise BadMarks(
                f"{line}: more than three fields; a number is written with a point, a text with commas in quotes"
            )
        if not who and not points:
            continue
        if who not in known:
            who = unshielded(who)
        if not who or who not in known:
            raise BadMarks(f"{line}: nobody in the export has the submission, id or email {who!r}")
        if known[who] > 1:
            raise BadMarks(f"{line}: {who!r} stands for {known[who]} submissions: name the submission")
        try:
            value = float(points)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise BadMarks(f"{line}: {points!r} is no number of points")
        marks.append(Mark(who, value, row["why"] or ""))
    return Marks(tuple(marks))
