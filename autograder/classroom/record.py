"""What is known of one submission: its results.json, as Gradescope reads it, with what only staff need beside it.

There is one file a submission. It is written once, atomically, when the submission is graded, and it is all that the report, the grade
book and a second run look at.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from autograder.grade import Grade, Row
from autograder.gradescope import results, write_results
from autograder.submission import Submission

# "no files": graded, but nothing of the assignment was handed in. The others are no grades: a second run tries again.
Status = Literal["graded", "no files", "unreadable", "unfinished", "crashed", "grader failed"]
_FINAL = ("graded", "no files")


@dataclass(frozen=True)
class Record:
    """One submission after grading."""

    submission: str  # "submission_123"
    status: Status
    detail: str  # one line: why there is no grade, or nothing to grade
    grade: Grade
    seconds: float  # that grading took
    digest: str  # of the files that were graded
    grader: str  # version of the grader
    shape: tuple[int, ...] = ()  # of its syntax, see shape.py

    @property
    def final(self) -> bool:
        """Whether this is a grade, rather than the reason why there is none."""
        return self.status in _FINAL

    @property
    def score(self) -> float | None:
        """Points reached; None: there is no grade."""
        return self.grade.score if self.final else None

    @property
    def device(self) -> str | None:
        """Where the rows about an accelerator took place, "sim" or "cuda"; None: there are none."""
        return next(
            (device for device in ("cuda", "sim") if any(row.device == device for row in self.grade.rows)), None
        )


def path_of(folder: Path, id: str) -> Path:
    """Return where the results of a submission are below a run's folder."""
    return folder / "results" / id / "results.json"


def digest(submission: Submission) -> str:
    """Return a hash of what is graded."""
    total = hashlib.sha256()
    for name, content in sorted(submission.files.items()):
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()[:32]


def save(record: Record, folder: Path) -> None:
    """Write a record, whole or not at all.

    Raises:
        OSError: if it cannot be written.
    """
    path = path_of(folder, record.submission)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = results(record.grade, record.seconds)
    for test, row in zip(content["tests"], record.grade.rows, strict=True):
        test["extra_data"] = {name: getattr(row, name) for name in _ROW if getattr(row, name)}
    content["extra_data"] |= {
        "submission": record.submission,
        "status": record.status,
        "detail": record.detail,
        "notes": list(record.grade.notes),  # above it they are Markdown
        "digest": record.digest,
        "grader": record.grader,
        "shape": list(record.shape),
    }
    write_results(path, content)


_ROW = (
    "problem",
    "test",
    "device",
    "outcome",
    "output",
    "cause",
    "misconception",
    "staff",
)  # the output above is Markdown


def load(folder: Path, id: str) -> Record | None:
    """Read a record; None: there is none, or the file is not whole."""
    try:
        return _record(json.loads(path_of(folder, id).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def all_records(folder: Path) -> dict[str, Record]:
    """Return every record below a run's folder, by submission."""
    ids = sorted(path.parent.name for path in folder.glob("results/*/results.json"))
    return {id: record for id in ids if (record := load(folder, id))}


def _record(content: Mapping[str, Any]) -> Record:
    extra = content["extra_data"]
    if extra["status"] not in get_args(Status):
        raise ValueError(extra["status"])
    rows = tuple(
        Row(
            number=test["number"],
            name=test["name"],
            max_score=test["max_score"],
            **{"output": "", **test["extra_data"]},
        )
        for test in content["tests"]
    )
    return Record(
        submission=extra["submission"],
        status=extra["status"],
        detail=extra["detail"],
        grade=Grade(rows, extra["isolation"], tuple(extra["notes"])),
        seconds=float(content["execution_time"]),
        digest=extra["digest"],
        grader=extra["grader"],
        shape=tuple(extra["shape"]),
    )
