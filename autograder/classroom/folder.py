"""A run's folder: who has a grade in it already, and who may write into it."""

import fcntl
import json
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from autograder.classroom.export import Files, HandedIn, Student
from autograder.classroom.record import digest, load, path_of
from autograder.pack import grader_version
from tests.submission import write_atomically

_STUDENTS = "students.json"
_MERGED = ".merged"


def pending(files: Files, folder: Path, ids: Iterable[str], modules: frozenset[str]) -> list[str]:
    """Return those of `ids` that have no grade, or one of other files than they have now."""
    todo = []
    for id in ids:
        record = load(folder, id)
        if record is None or not record.final:
            todo.append(id)
            continue
        try:
            changed = digest(files.read(id, modules)) != record.digest
        except Exception:  # a worker will find out what it is, where it can do no harm
            changed = True
        if changed:
            todo.append(id)
    return todo


def other_grades(folder: Path, ids: Iterable[str], device: str) -> str | None:
    """Say of what the grades in the folder are, and what to do, if those that a run on `device` gives must not be mixed with them."""
    for id in ids:
        record = load(folder, id)
        if record and record.final and record.grader != grader_version():
            return f"another version of the grader ({id}): name a new folder, and compare the two with `make regrade`"
        if record and record.final and record.device not in (None, device):
            how = "with" if record.device == "cuda" else "without"
            return f"a run {how} DEVICE=cuda ({id}): name a new folder, and join the two with `make merge`"
    return None


def left_behind(folder: Path, handed_in: Sequence[HandedIn]) -> list[str]:
    """Return the submissions that have results in the folder and are not in this export.

    Raises:
        OtherExport: if that are all: the export is another assignment's, or another section's.
    """
    there = {path.name for path in folder.glob("results/*") if path.is_dir()}
    gone = there - {submission.id for submission in handed_in}
    if there and gone == there:
        raise OtherExport(
            f"{folder} has results of another export: of its {len(there)} submissions none is in this one. Name a new folder"
        )
    return sorted(gone)


def remove_halves(folder: Path, ids: Iterable[str]) -> None:
    """Remove what a writer that was killed has left: files under temporary names."""
    for id in ids:
        path = path_of(folder, id)
        for half in path.parent.glob(f".{path.name}.*"):
            half.unlink(missing_ok=True)


def set_aside(folder: Path, ids: Iterable[str]) -> None:
    """Rename the results of submissions that are about to be graded: a run that does not come to them leaves no grade of other files.

    An attempt that failed takes no place of an older one, which may be a grade.
    """
    for id in ids:
        path, record = path_of(folder, id), load(folder, id)
        kept = path.with_name(f"{path.name}~")
        with suppress(FileNotFoundError):
            if kept.exists() and not (record and record.final):
                path.unlink()
            else:
                path.replace(kept)


def save_students(folder: Path, handed_in: Sequence[HandedIn]) -> None:
    """Keep who handed in what, so that the grade book can be written without the export."""
    write_atomically(folder / _STUDENTS, json.dumps([asdict(one) for one in handed_in], ensure_ascii=False).encode())


def load_students(folder: Path) -> list[HandedIn]:
    """Return who handed in what; of a folder that does not say so, nobody."""
    try:
        content = json.loads((folder / _STUDENTS).read_bytes())
        return [HandedIn(**{**one, "students": tuple(Student(**each) for each in one["students"])}) for one in content]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def mark_merged(folder: Path) -> None:
    """Say that the folder holds two runs: a run that went on in it would leave out the marks that are the CPU's."""
    write_atomically(folder / _MERGED, b"")


def is_merged(folder: Path) -> bool:
    """Tell whether the folder holds two runs."""
    return (folder / _MERGED).exists()


class OtherExport(Exception):
    """The folder is of other submissions."""


class Locked(Exception):
    """Another run uses the folder."""


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keep every other run out of `folder`.

    The kernel drops the lock when this process ends, however it ends, and forked ones do not hold it.

    Raises:
        Locked: if there is another run.
    """
    with (folder / ".lock").open("a+", encoding="utf-8") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            who = file.read().strip() or "another run"
            raise Locked(f"{folder} is in use by {who}: wait for it, or stop it") from None
        file.truncate(0)
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        file.write(f"process {os.getpid()} on {platform.node()} since {now}\n")
        file.flush()
        yield
