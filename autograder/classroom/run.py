"""Grades everybody: the reference first, as a check of the grader itself, then whoever has no result yet.

A result is written once and never again. Whatever ends a run, another one on the same folder goes on with what has no result.
"""

import errno
import os
import re
import time
import traceback
from collections.abc import Hashable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle

from autograder.classroom import shape
from autograder.classroom.cells import Cells
from autograder.classroom.export import BadExport, Files
from autograder.classroom.folder import remove_halves
from autograder.classroom.pool import Alone, CannotGoOn, Lost, Pool
from autograder.classroom.progress import Progressing
from autograder.classroom.record import Record, Status, digest, load, save
from autograder.grade import Grade
from autograder.misconceptions import Drifted, check
from autograder.pack import grader_version
from autograder.plugin import REFERENCE, Suites, run_suites
from autograder.sandbox.client import IMPORT_DEADLINE, NoRoom, Reply, Sandbox, SandboxBroken
from autograder.scoreboard import Watch
from autograder.settings import load_settings
from autograder.submission import Submission, UnreadableSubmission, read_submission
from handout.problems import Assignment

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_MOST_NOTES = 3  # in the line that says why there are no files
# Where a child finds its files: another place in each run, and of no interest.
_PLACES = re.compile(r"/[^\s\"']*/accounting-grader-\w+/(submission/[0-9a-f]{16}|cells/child\d+)")


class SelfCheckFailed(Exception):
    """The reference does not get full marks, so nobody's marks could be trusted."""


def grade_all(
    cells: Cells,
    own: Sandbox,
    assignment: Assignment,
    files: Files,
    folder: Path,
    todo: Mapping[str, Hashable],
    workers: int,
    device: str,
) -> None:
    """Grade submissions into `folder`, on so many workers.

    Args:
        cells: where the workers' sandboxes come from.
        own: a sandbox for the self-check.
        assignment: what is graded.
        files: the export.
        folder: of the run.
        todo: the submissions to grade, each with the state of its files when the run began.
        workers: how many at once, but where the device is "cuda".
        device: where the rows about an accelerator take place.

    Raises:
        SelfCheckFailed: if the reference does not get full marks.
        CannotGoOn: if results can no longer be written.
        SuiteBroken: if the suites cannot be loaded.
    """
    cloudpickle.register_pickle_by_value(shape)  # children cannot import it

    def job(suites: Suites) -> None:
        try:
            _check_self(suites, assignment)
            own.check_room(min(workers, len(todo)))
        except NoRoom as error:
            raise CannotGoOn(str(error)) from None
        except OSError as error:
            raise _as_stop(error, folder) from None
        own.close()
        planned = suites.planned()
        work = partial(_work, suites, files.path, todo, folder, planned, _modules(assignment))
        # CUDA, which the reference has started in this process, does not survive a fork.
        pool = Alone(cells, work) if device == "cuda" else Pool(cells, work, min(workers, len(todo)))
        try:
            with Progressing(len(todo)) as show:
                for result in pool.results(todo):
                    if isinstance(result, Lost):
                        save(_without_grade(result.id, "crashed", result.why, planned), folder)
                        show.result(result.id, "crashed", result.why)
                    elif result is not None:
                        show.result(result.id, result.answer["status"], result.answer["detail"])
                    show.tick()
        except OSError as error:
            raise _as_stop(error, folder) from None
        finally:
            pool.close()
            remove_halves(folder, todo)

    run_suites(own, assignment, job, device=device)


def _check_self(suites: Suites, assignment: Assignment) -> None:
    """Grade the reference: by this the reference's replies are there for all workers."""
    try:
        for part in assignment.graded_parts:
            check(part.id)
    except Drifted as error:
        raise SelfCheckFailed(f"a misconception no longer applies, so nobody would be told of it: {error}") from None
    with Watch("self-check: the reference") as watch:
        grade = suites.grade(read_submission(REFERENCE, _modules(assignment)), watch)
    lost = [row for row in grade.rows if row.outcome != "passed"]
    if lost:
        rows = "".join(f"\n  {row.test}: {row.outcome}: {row.output}" for row in lost[:10])
        raise SelfCheckFailed(
            f"the reference gets {grade.score:g} of {grade.max_score:g} points, so nobody is graded:{rows}"
        )


def _modules(assignment: Assignment) -> frozenset[str]:
    return frozenset(part.id for part in assignment.parts)


# In a worker

_opened: dict[Path, Files] = {}  # the export, opened by this worker for itself: a zip's descriptor has one position


def _work(
    suites: Suites,
    export: Path,
    todo: Mapping[str, Hashable],
    folder: Path,
    planned: Grade,
    modules: frozenset[str],
    id: str,
    sandbox: Sandbox,
) -> dict[str, Any]:
    """Grade one submission and write its results; return what the parent shows."""
    try:
        if export not in _opened:
            _opened[export] = Files(export)
        suites.move(sandbox)
        record = _examine(suites, _opened[export], folder, planned, modules, id, sandbox)
        if _opened[export].state(id) != todo[id]:
            raise BadExport(f"the files of {id} have changed")
        save(record, folder)
    except BadExport as error:
        raise CannotGoOn(f"the export is not what it was when the run began: {error}") from None
    except NoRoom as error:
        raise CannotGoOn(str(error)) from None
    except OSError as error:
        raise _as_stop(error, folder) from None
    return {"status": record.status, "detail": record.detail}


def _examine(
    suites: Suites, files: Files, folder: Path, planned: Grade, modules: frozenset[str], id: str, sandbox: Sandbox
) -> Record:
    start = time.monotonic()
    try:
        submission = files.read(id, modules)
    except (UnreadableSubmission, OSError) as error:
        return _without_grade(id, "unreadable", str(error), planned)
    known = load(folder, id)
    if (
        known and known.final and known.digest == digest(submission)
    ):  # written by a worker that died before it could say so
        return known
    try:
        grade = suites.grade(submission)
        numbers = _shape(sandbox, submission.files)
    except (NoRoom, SandboxBroken):
        raise
    except Exception as error:  # ours: it costs nobody but this one, and the traceback says where
        if isinstance(error, OSError) and error.errno in _FULL:
            raise _as_stop(error, folder) from None
        text = "".join(traceback.format_exception(error))
        return _without_grade(id, "grader failed", f"{error}".split("\n")[0] or repr(error), planned, text)
    grade = replace(grade, rows=tuple(replace(row, staff=_PLACES.sub("student", row.staff)) for row in grade.rows))
    status, detail = _outcome(submission, grade)
    seconds = time.monotonic() - start
    return Record(id, status, detail, grade, seconds, digest(submission), grader_version(), tuple(numbers))


def _outcome(submission: Submission, grade: Grade) -> tuple[Status, str]:
    """Return the status of a submission that was gone through, and why it is not the usual one."""
    if not grade.finished:  # the rows that were not run count 0, which is no mark
        of_all = f"{grade.rows_run} of {len(grade.rows)} tests"
        return "unfinished", f"{of_all} were run within {load_settings().total_seconds:g} seconds"
    if not submission.files:
        return "no files", " ".join(submission.notes[:_MOST_NOTES]) or "there is no Python file in it"
    return "graded", ""


def _shape(sandbox: Sandbox, sources: Any) -> list[int]:
    child = sandbox.child(None)
    child.send(shape.probe(sources))
    outcome = child.reply(IMPORT_DEADLINE)
    child.close(last=True)
    if isinstance(outcome, Reply) and type(outcome.value) is list:
        return [number for number in outcome.value if type(number) is int]
    return []


def _without_grade(id: str, status: Status, detail: str, planned: Grade, staff: str = "") -> Record:
    """Return the record of a submission that has no grade: its rows say so, and that it is not the student's fault."""
    grade = Grade(planned.rows, planned.isolation, (f"Not graded: {detail}", *([staff] if staff else [])))
    return Record(id, status, detail, grade, 0.0, "", grader_version())


def _as_stop(error: OSError, folder: Path) -> Exception:
    if error.errno in _FULL:
        return CannotGoOn(
            f"{os.strerror(error.errno)}: make room where {folder} or temporary files are, and run it again"
        )
    return CannotGoOn(f"results cannot be written: {error}")
