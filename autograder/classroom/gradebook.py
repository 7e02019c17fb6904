"""grades.csv, a line a student with everything that is known, and canvas.csv, what Canvas imports of it.

Names, ids and emails are quoted, numbers are not, so that whoever reads the file can tell an id from a number. Where there is no grade the
cells are empty: a zero would look like one.
"""

import csv
import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from autograder.classroom.export import NOBODY, HandedIn, Student
from autograder.classroom.manual import NAME, Marks
from autograder.classroom.progress import printable
from autograder.classroom.record import Record
from autograder.classroom.spreadsheet import shielded
from handout.problems import Assignment
from tests.submission import write_atomically

_MARKS = "marks.json"


@dataclass(frozen=True)
class Line:
    """One student's grade."""

    submission: HandedIn
    student: Student
    status: str
    points: Mapping[str, float]  # by the problem's id; empty if there is no grade
    manual: float | None  # points that a person added
    detail: str
    elsewhere: bool  # whether the student is in another submission too
    instead: bool  # whether points, be it 0, were given while there was no grade, and so perhaps in its place

    @property
    def summed(self) -> bool:
        """Whether what a person gave while there was no grade is added to one."""
        return self.instead and bool(self.points)

    @property
    def key(self) -> str:
        """What the student is known by in another submission too."""
        return self.student.email.casefold() or self.student.own_id or self.who

    @property
    def who(self) -> str:
        """The submission, and the student as far as there is a name; of two of one name the email or id too."""
        called = self.student.called
        twins = called and sum(each.called == called for each in self.submission.students) > 1
        further = (self.student.email or self.student.sid) if twins else ""
        return ", ".join(filter(None, (self.submission.id, called, further)))

    @property
    def total(self) -> float | None:
        """All points, of which no more can be taken off than there are; None: there is neither a grade nor points that a person gave.

        What is only taken off counts once there is a grade.
        """
        if not self.points and not self.instead:
            return None
        return max(0.0, sum(self.points.values()) + (self.manual or 0))

    @property
    def left_out(self) -> str:
        """Why canvas.csv leaves out the student, where somebody must do something about it."""
        if self.elsewhere:
            return "is in more than one submission"
        return "has neither an id nor an email" if self.total is not None and not self.student.names else ""


def lines(
    handed_in: Sequence[HandedIn], records: Mapping[str, Record], marks: Marks, instead: Mapping[str, float]
) -> list[Line]:
    """Return a line for each student of each submission, in the order of the export.

    Args:
        handed_in: the export.
        records: what is known of the submissions.
        marks: that a person gave.
        instead: the points of those who had them while there was no grade, as `kept_instead` returns them.
    """
    submissions: dict[str, set[str]] = {}  # by student's id and email
    for submission in handed_in:
        for student in submission.students:
            for name in student.names:
                submissions.setdefault(name, set()).add(submission.id)
    result = []
    for submission in handed_in:
        record = records.get(submission.id)
        points: dict[str, float] = {}
        if record and record.final:
            for row in record.grade.rows:
                points[row.problem] = points.get(row.problem, 0) + row.score
        if record:
            status, detail = str(record.status), record.detail
        elif submission.has_files:
            status, detail = "not graded", "there is no result: run `make class` again"
        else:
            status, detail = "no folder", ""
        for student in submission.students or (NOBODY,):
            given = marks.of(submission, student)
            manual = sum(mark.points for mark in given) if given else None
            elsewhere = any(len(submissions[name]) > 1 for name in student.names)
            line = Line(submission, student, status, points, manual, detail, elsewhere, instead=False)
            stands = not points and any(mark.points >= 0 for mark in given)
            given_instead = stands or (manual is not None and instead.get(line.key) == manual)
            result.append(replace(line, instead=given_instead))
    return result


def write_grades(folder: Path, lines: Sequence[Line], assignment: Assignment, problems: Sequence[str]) -> None:
    """Write both files, and keep what they were written from.

    Args:
        folder: where to.
        lines: the students.
        assignment: whose title Canvas shows.
        problems: the ids of the problems that have a column.
    """
    most = sum(problem.points for problem in assignment.graded_problems)
    numbered = [f"{assignment.problem(id).number} {id}" for id in problems]
    head = ["Name", "SID", "Email", "Submission ID", "Status", "Total Score", "Max Points", "Manual", *numbered]
    table: list[list[object]] = [[*head, "Submission Time", "Why not graded"]]
    for line in lines:
        who = line.student
        table.append([
            *map(shielded, (who.name, who.sid, who.email, line.submission.id, line.status)),
            _number(line.total), _number(most), _number(line.manual),
            *(_number(line.points.get(id)) for id in problems),
            *map(shielded, (line.submission.created_at, line.detail)),
        ])  # fmt: skip
    # Canvas finds a student by the SIS id or login; any further column would become an assignment of its own.
    canvas: list[list[object]] = [["Student", "ID", "SIS User ID", "SIS Login ID", "Section", assignment.title]]
    canvas.append(["Points Possible", "", "", "", "", _number(most)])
    for line in lines:
        if line.total is not None and not line.left_out:
            who = line.student
            canvas.append([shielded(who.name), "", shielded(who.own_id), shielded(who.email), "", _number(line.total)])
    book = _text(table)
    _keep(folder, lines, book)
    write_atomically(folder / "grades.csv", book)
    write_atomically(folder / "canvas.csv", _text(canvas))


def manual_marks(lines: Sequence[Line]) -> dict[str, float]:
    """Return the points that a person has given, by student."""
    return {line.who: line.manual for line in lines if line.manual is not None}


def gone_marks(folder: Path) -> str | None:
    """Say whose marks no longer count because their file is gone; None: it is there, or there were none."""
    before = kept_marks(folder)
    if not before or (folder / NAME).exists():
        return None
    return f"{folder / NAME} is gone, and with it the marks of {', '.join(map(printable, before))}"


def _keep(folder: Path, lines: Sequence[Line], book: bytes) -> None:
    """Keep with what manual marks a grade book is written, whose were given while there was no grade, and what is not edited.

    That is the new one, and the one that stands there until it is replaced.
    """
    own = {line.key: line.manual for line in lines if line.instead}
    ours = {"sha256": [hashlib.sha256(book).hexdigest(), _digest(folder)]}
    kept = {"written": manual_marks(lines), "instead": own, "book": ours}
    write_atomically(folder / _MARKS, json.dumps(kept, ensure_ascii=False).encode())


def kept_marks(folder: Path) -> dict[str, float]:
    """Return the manual marks that the grade book in a folder was written with, by student as `manual_marks` names them."""
    return _kept(folder, "written")


def kept_instead(folder: Path) -> dict[str, float]:
    """Return the manual marks that were given while there was no grade, by the student's key."""
    return _kept(folder, "instead")


def set_aside_edited(folder: Path) -> Path | None:
    """Keep a grades.csv that is not what was written under another name, and return it; None: it is."""
    book = folder / "grades.csv"
    if _digest(folder) in ("", *_kept(folder, "book").get("sha256", ())):
        return None
    names = (f"{book.name}~{number if number > 1 else ''}" for number in count(1))
    kept = next(path for path in map(book.with_name, names) if not path.exists())
    write_atomically(kept, book.read_bytes())
    return kept


def _digest(folder: Path) -> str:
    """Return a hash of grades.csv; of none, the empty text."""
    book = folder / "grades.csv"
    return hashlib.sha256(book.read_bytes()).hexdigest() if book.exists() else ""


def _kept(folder: Path, what: str) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / _MARKS).read_bytes())[what])
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _number(value: float | None) -> float | str:
    if value is None:
        return ""
    return int(value) if value == int(value) else round(value, 6)


def _text(table: Sequence[Sequence[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_NONNUMERIC).writerows(table)
    return text.getvalue().encode()
