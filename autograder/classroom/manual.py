"""Marks that a person gives: `manual.csv` in the run's folder. It is read and never written, so no run can overwrite it.

    who,points,why
    submission_409194023,2,"the handwritten derivation"
    00123,-1,"handed in a day late"

`who` is a submission, or one student of it by their id or email, as it is or as it stands in grades.csv. Several marks of one student add
up; the same one twice is refused.
"""

import csv
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from autograder.classroom.export import NOBODY, HandedIn, Student
from autograder.classroom.spreadsheet import unshielded

NAME = "manual.csv"
_COLUMNS = ("who", "points", "why")
_POINTS = re.compile(r"[+-]?([0-9]{1,6}(\.[0-9]*)?|\.[0-9]+)")
_NUMBER = re.compile(r"[\d.,]*\d[\d.,]*")
_HOW = "save it as CSV, comma-separated, in UTF-8"


class BadMarks(Exception):
    """The file cannot be taken as it is; nothing is changed."""


@dataclass(frozen=True)
class Mark:
    """Points that a person adds."""

    points: float
    why: str
    given: frozenset[tuple[str, Student]]  # to whom: submission and student

    def repeats(self, other: "Mark") -> bool:
        """Tell whether it is another for the same student, in the same words, however they are punctuated."""
        said = [unicodedata.normalize("NFKC", mark.why).casefold() for mark in (self, other)]
        words = [re.findall(r"[^\W_]+", text) for text in said]
        return bool(self.given & other.given) and self.points == other.points and words[0] == words[1]


@dataclass(frozen=True)
class Marks:
    """All of a run's."""

    marks: tuple[Mark, ...]

    def of(self, submission: HandedIn, student: Student) -> tuple[Mark, ...]:
        """Return the marks of one student."""
        return tuple(mark for mark in self.marks if (submission.id, student) in mark.given)


def read_marks(path: Path, handed_in: Iterable[HandedIn]) -> Marks:
    """Return the marks in the file at `path`; none if there is no file.

    Raises:
        BadMarks: if a line is not a mark, or is of nobody in the export.
    """
    for file in files_of_marks(path.parent):
        if file.name != path.name:
            raise BadMarks(f"{file} is not read: marks are in {path.name}, so rename or remove it")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        if path.is_symlink():
            raise BadMarks(f"{path} is a link to a file that is not there") from None
        return Marks(())
    except UnicodeDecodeError:
        raise BadMarks(f"{path} is not in UTF-8: {_HOW}") from None
    except OSError as error:
        raise BadMarks(f"{path} cannot be read: {error.strerror}") from None
    reader = csv.DictReader(text.splitlines(keepends=True), restval="", strict=True)
    try:
        # A spreadsheet writes a comma more for each column that once had something in it.
        reader.fieldnames = "\0".join(reader.fieldnames or ()).rstrip("\0").split("\0")
        if tuple(reader.fieldnames) != _COLUMNS:
            raise BadMarks(f"{path}: the first line must be {','.join(_COLUMNS)}: {_HOW}")
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:  # a quote that is never closed would take in all marks below it
        raise BadMarks(f"{path}, from line {reader.line_num + 1} on: {error}; is a quote closed?") from None
    known = _known(handed_in)
    marks: dict[int, Mark] = {}  # by line
    for number, row in rows:
        if further := sum(len(field.splitlines()) - 1 for field in row.values() if isinstance(field, str) and field):
            first = number - further
            raise BadMarks(f"{path}, line {first}: a field goes on until line {number}; is there a stray quote?")
        try:
            if mark := _mark(row, known):
                for line, other in marks.items():
                    if mark.repeats(other):
                        raise BadMarks(f"the same mark as in line {line}, for the same student: is it there twice?")
                marks[number] = mark
        except BadMarks as error:
            raise BadMarks(f"{path}, line {number}: {error}") from None
    return Marks(tuple(marks.values()))


def files_of_marks(folder: Path) -> list[Path]:
    """Return the files that somebody may take for one of marks: `manual (1).csv`, `manual.xlsx`; an editor's backup is none."""
    if not folder.is_dir():
        return []
    named = (path for path in folder.iterdir() if path.name.casefold().startswith("manual"))
    return sorted(path for path in named if path.is_file() and not path.name.endswith("~"))


def _known(handed_in: Iterable[HandedIn]) -> dict[str, set[tuple[str, Student]]]:
    """Return whom each name stands for: those of the submission, or one student, in each submission that they are in."""
    known: dict[str, set[tuple[str, Student]]] = {}
    for submission in handed_in:
        for student in submission.students or (NOBODY,):
            for name in {submission.id, student.sid, *student.names} - {""}:
                known.setdefault(name, set()).add((submission.id, student))
    return known


def _mark(row: Mapping[str | None, str], known: Mapping[str, set[tuple[str, Student]]]) -> Mark | None:
    """Return the mark of a line; None: it is empty.

    Raises:
        BadMarks: if it is not a mark, or is of nobody in the export.
    """
    who, points, why = ((row[column] or "").strip() for column in _COLUMNS)
    if any(row.get(None, ())):
        raise BadMarks("more than three fields; a number is written with a point, a text with commas in quotes")
    if not who and not points:
        return None
    spelled = (who, who.casefold(), unshielded(who), unshielded(who).casefold())
    given = next((known[name] for name in spelled if name in known), None)
    if given is None:
        zeros = next((name for name in known if name != who and name.lstrip("0") == who.lstrip("0")), None)
        hint = f": has a spreadsheet changed the zeros of {zeros!r}?" if zeros else ""
        raise BadMarks(f"nobody in the export has the submission, id or email {unshielded(who)!r}{hint}")
    if any(student.id_is_shared and student.sid in spelled for _, student in given):
        raise BadMarks(f"{who!r} is the id of people with different emails: name the submission, or the email")
    if (submissions := len({id for id, _ in given})) > 1:
        raise BadMarks(f"{who!r} stands for {submissions} submissions: name the submission")
    if len(given) > 1 and not any(id in spelled for id, _ in given):
        raise BadMarks(f"{who!r} stands for {len(given)} members of a group: name one by what is theirs alone")
    if not _POINTS.fullmatch(points):
        raise BadMarks(f"{points!r} is no number of points such as 2, 0.5 or -1")
    if _NUMBER.fullmatch(why):
        raise BadMarks(f"{why!r} is no reason: is it a decimal comma? {points}.{why} is written with a point")
    return Mark(float(points), why, frozenset(given))
