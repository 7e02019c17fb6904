"""A Grade as Gradescope's results.json."""

import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

from autograder.grade import Grade, Row

_MOST_OUTPUT = 100_000  # characters; the platform cuts there, so we cut before it does


def results(grade: Grade, execution_time: float) -> dict[str, Any]:
    """Return the content of results.json.

    No `score` at the top: it would override the sum of the rows.

    Args:
        grade: the rows.
        execution_time: seconds so far; the only thing in which two gradings of one submission differ.
    """
    return {
        "execution_time": round(execution_time, 1),
        "output": _text("\n".join(grade.notes)),
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [_test(row) for row in grade.rows],
        "extra_data": {"isolation": grade.isolation},
    }


def _test(row: Row) -> dict[str, Any]:
    test: dict[str, Any] = {
        "number": row.number,
        "name": row.name,
        "score": row.score,
        "max_score": row.max_score,
        "status": "passed" if row.outcome == "passed" else "failed",
        "output": _text(row.output),
        "visibility": row.visibility,
    }
    if row.tags:
        test["tags"] = list(row.tags)
    return test


def _text(text: str) -> str:
    text = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    return text if len(text) <= _MOST_OUTPUT else text[: _MOST_OUTPUT - 20] + "\n[the rest is cut]"


def write_results(path: Path, content: dict[str, Any]) -> None:
    """Replace the file at `path` atomically: whoever reads it finds the old or the new one, whole."""
    data = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False).encode()
    # An order to stop waits: between the making of the file and the `try` it would leave the file behind.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
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
