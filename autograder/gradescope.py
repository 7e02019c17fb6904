"""A Grade as Gradescope's results.json, and what Gradescope says about a submission."""

import json
import os
import re
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from autograder.grade import Grade, Row
from autograder.markdown import markdown
from autograder.pack import grader_version
from autograder.settings import Settings, load_settings
from autograder.terminal import STOPPING

_MOST_OUTPUT = 100_000  # characters; the platform cuts there, so we cut before it does
_NO_DIAGNOSIS = "This test is lost. Staff have switched off the explanation."
_LIMITED = "limited"  # extra_data of results that are those of the submission before


def results(grade: Grade, execution_time: float, elsewhere: Sequence[Row] = ()) -> dict[str, Any]:
    """Return the content of results.json.

    No `score` at the top: it would override the sum of the rows.

    Args:
        grade: the rows.
        execution_time: seconds so far; the only thing in which two gradings of one submission differ.
        elsewhere: bonus rows that need another machine: lines without score, after the others.
    """
    settings = load_settings()
    notes = grade.notes
    if not grade.finished:
        of_all = f"{grade.rows_run} of {len(grade.rows)}"
        notes = (
            f"Grading is not finished: {of_all} tests have been run, and the others count 0 until they are. "
            "That is not your fault.",
            *notes,
        )
    content: dict[str, Any] = {
        "execution_time": round(execution_time, 1),
        "output": _text("\n".join(notes)),
        "output_format": "md",
        "test_output_format": "md",
        "test_name_format": "text",
        "visibility": settings.row_visibility,
        "stdout_visibility": "hidden",
        "tests": [
            *(_test(row, settings.show_diagnosis) for row in grade.rows),
            *map(_without_score, elsewhere),
        ],
        "extra_data": {"grader": grader_version(), "isolation": grade.isolation, "finished": grade.finished},
    }
    if grade.held_out_loss is not None:
        loss = {"name": "held-out loss", "value": round(grade.held_out_loss, 4), "order": "asc"}
        content["leaderboard"] = [loss]
    return content


def _test(row: Row, show_diagnosis: bool) -> dict[str, Any]:
    output = row.output if show_diagnosis or row.outcome != "failed" else _NO_DIAGNOSIS
    return {
        "number": row.number,
        "name": row.name,
        "score": row.score,
        "max_score": row.max_score,
        "status": "passed" if row.outcome == "passed" else "failed",
        "output": _text(output),
    }


def _without_score(row: Row) -> dict[str, Any]:
    """Return a line about a row that is graded elsewhere; as the platform's documentation has it, with a status and no score."""
    test = _test(
        replace(row, outcome="passed"), show_diagnosis=True
    )  # the other status says in red that something was lost
    del test["score"], test["max_score"]
    return test


@lru_cache(maxsize=1024)  # after each row the text of all rows is asked for again
def _text(text: str) -> str:
    """Return Markdown that the platform takes as it is."""
    text = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    for most in (_MOST_OUTPUT, _MOST_OUTPUT // 10):  # a character reference is up to seven characters
        shown = markdown(text if len(text) <= most else f"{text[: most - 100]}\n[the rest is cut]")
        if len(shown) <= _MOST_OUTPUT:
            break
    return shown


def write_results(path: Path, content: dict[str, Any]) -> None:
    """Replace the file at `path` atomically: whoever reads it finds the old or the new one, whole."""
    data = json.dumps(content, ensure_ascii=False, allow_nan=False).encode()
    data = msgspec.json.format(data, indent=1)  # json's own indenting is Python, and this is written after each row
    # An order to stop waits: between the making of the file and the `try` it would leave the file behind.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        _replace(path, data)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _replace(path: Path, data: bytes) -> None:
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


# What the platform says about a submission: submission_metadata.json


@dataclass(frozen=True)
class Earlier:
    """A submission that came before this one."""

    time: datetime
    failed: bool  # the grader did: it counts against nobody
    results: Any  # its results.json, if it is the latest


@dataclass(frozen=True)
class Metadata:
    """What is used of submission_metadata.json."""

    created_at: datetime
    earlier: tuple[Earlier, ...]  # oldest first


class BadMetadata(ValueError):
    """The metadata are not as the platform documents them."""


def read_metadata(path: Path) -> Metadata:
    """Read submission_metadata.json.

    Raises:
        BadMetadata: if it cannot be read. Its fields may change without notice, so nobody's grade may depend on it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        earlier = [
            Earlier(_time(item["submission_time"]), bool(item.get("autograder_error")), item.get("results"))
            for item in content.get("previous_submissions") or ()
        ]
        return Metadata(_time(content["created_at"]), tuple(sorted(earlier, key=lambda one: one.time)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadMetadata(f"{path} cannot be used: {type(error).__name__}: {error}") from None


def _time(text: str) -> datetime:
    """Parse ISO 8601 with an offset; Python 3.10 knows neither "Z" nor nanoseconds."""
    text = re.sub(r"(?<=\.)(\d{1,6})\d*", lambda match: match[1].ljust(6, "0"), text.replace("Z", "+00:00"))
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return time


def over_the_limit(metadata: Metadata, settings: Settings) -> dict[str, Any] | None:
    """Return the results of the submission before, with a note, if this one is more than the rate limit allows.

    None: it is to be graded, also where there is no result to repeat. Time is that of the submissions and not the clock's, so that a
    regrade a week later is treated as the first grading was.
    """
    since = metadata.created_at - timedelta(hours=settings.window_hours)
    before = [one for one in metadata.earlier if one.time < metadata.created_at]
    counted = [one for one in before if one.time > since and not one.failed]
    if not settings.most_submissions or len(counted) < settings.most_submissions or before[-1].failed:
        return None
    repeated = _taken_over(before[-1].results)
    if repeated is None:
        return None
    until = counted[-settings.most_submissions].time + timedelta(hours=settings.window_hours)
    note = (
        f"This submission was not graded: at most {settings.most_submissions} are within {settings.window_hours:g} hours. "
        f"What stands here are the results of the one before. The next is graded from {until:%Y-%m-%d %H:%M %Z} on."
    )
    told = repeated["extra_data"].get(_LIMITED, repeated["output"])  # what stood there before any such note
    repeated["output"] = "\n\n".join(filter(None, [_text(note), told]))
    repeated["extra_data"] = {**repeated["extra_data"], _LIMITED: told}
    return repeated


_TOP = (
    "output_format",
    "test_output_format",
    "test_name_format",
    "visibility",
    "stdout_visibility",
    "tests",
    "extra_data",
    "leaderboard",
)
_ROW = ("number", "name", "score", "max_score", "status", "output")
_SCORE = ("score", "max_score")


def _taken_over(content: Any) -> dict[str, Any] | None:
    """Return earlier results without what the platform has added to them; None if they are no results of ours."""
    try:
        taken = {name: content[name] for name in _TOP if name in content}
        taken["tests"] = [
            {
                name: test[name] for name in _ROW if name not in _SCORE or test.get("score") is not None
            }  # a bonus has none
            for test in content["tests"]
        ]
        taken["extra_data"] = dict(content["extra_data"])
        return {"execution_time": 0.0, "output": str(content.get("output") or ""), **taken} if taken["tests"] else None
    except (KeyError, TypeError, ValueError):
        return None
