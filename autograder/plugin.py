"""Runs the hidden suites on submissions, through pytest: its reports become a Grade.

pytest collects and parametrises; what it would print is not wanted. A row is a test function. Its cases share one fresh child, and
after the first that fails the others are not run.

Whose fault is a failure? Ours, unless student data was there: then it is a verdict on them.
"""

import os
import random
import secrets
import shutil
import signal
import time
import traceback
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from _pytest.runner import runtestprotocol

from autograder.compare import Difference, Tolerance, first_difference, misfit
from autograder.feedback import Feedback, Reader
from autograder.grade import Grade, Row
from autograder.probing import inspecting
from autograder.sandbox.client import (
    IMPORT_DEADLINE,
    Child,
    Deadline,
    Died,
    Outcome,
    Probe,
    Reply,
    Sandbox,
    SandboxBroken,
    TimedOut,
)
from autograder.sandbox import landlock
from autograder.sandbox.codec import plain, snapshot
from autograder.sandbox.package import Package
from autograder.settings import SETTINGS
from autograder.submission import Submission
from handout.problems import Assignment

SUITES = Path(__file__).with_name("hidden")
REFERENCE = Path(__file__).parents[1] / "reference"
_UNMEASURED_CPU = 0.15  # seconds that the reference is taken to need where it is not run
_ARGUMENTS = [
    "--import-mode=importlib", "--assert=plain", "--capture=no", "--strict-markers",
    *(f"-pno:{name}" for name in (
        "terminal", "cacheprovider", "faulthandler", "timeout", "logging", "unraisableexception", "threadexception",
        "junitxml", "doctest", "debugging", "warnings", "jaxtyping", "hypothesispytest", "anyio",
    )),
]  # fmt: skip


class SuiteBroken(Exception):
    """The suites or the reference are at fault, so there is no grade."""


@dataclass(frozen=True)
class _Expected:
    """What a probe yields on the reference, kept for the next submission."""

    request: bytes  # the probe, pickled
    reply: Any
    cpu: float  # seconds it took


@dataclass(frozen=True)
class _Task:
    """A row to be, with its cases."""

    row: Row
    cases: tuple[pytest.Item, ...]


@dataclass
class Suites:
    """The collected suites, ready to grade any number of submissions."""

    tasks: tuple[_Task, ...]
    assignment: Assignment
    _sandbox: Sandbox
    _memory: dict[tuple[str, int], _Expected] = field(default_factory=dict)
    _judge: "_Judge | None" = None

    def grade(self, submission: Submission, watch: Callable[[Grade], None] = lambda grade: None) -> Grade:
        """Grade one submission.

        Args:
            submission: the student's package.
            watch: is told the grade so far: once with all rows at 0 before any student code runs, then after each row.

        Raises:
            SuiteBroken: if a suite, the reference or the sandbox fails.
        """
        grade = Grade(tuple(task.row for task in self.tasks), isolation_level(self._sandbox), submission.notes)
        watch(grade)
        folder = self._sandbox.staging / secrets.token_hex(8)
        submission.write(folder)
        try:
            self._sandbox.load(folder)
            return self._grade(submission, grade, watch)
        finally:
            shutil.rmtree(folder)  # the next student must not find it

    def _grade(self, submission: Submission, grade: Grade, watch: Callable[[Grade], None]) -> Grade:
        self._judge = judge = _Judge(self._sandbox, Reader(submission), self._memory)
        judge.check_sources(sorted({task.row.problem.split(".")[0] for task in self.tasks}))
        for i, task in enumerate(self.tasks):
            row = judge.row(task, last=i == len(self.tasks) - 1)
            grade = replace(grade, rows=(*grade.rows[:i], row, *grade.rows[i + 1 :]))
            watch(grade)
        return grade

    @property
    def judge(self) -> "_Judge":
        """The judge of the submission that is being graded, for the fixtures."""
        assert self._judge is not None
        return self._judge


def isolation_level(sandbox: Sandbox) -> str:
    """Return "full" if no student can read the reference or another's work, else "process"."""
    features = sandbox.features
    if features.landlock:
        closed = not any(landlock.opens(str(folder)) for folder in (SUITES, REFERENCE))
    else:
        closed = features.own_uid and not any(_world_readable(folder) for folder in (SUITES, REFERENCE))
    return "full" if features.seccomp and closed else "process"


def _world_readable(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o005 for folder in (path, *path.resolve().parents))


def run_suites(
    sandbox: Sandbox, assignment: Assignment, job: Callable[[Suites], None], suites: Path = SUITES
) -> None:
    """Collect the hidden suites and call `job` with them, inside pytest's session.

    Raises:
        SuiteBroken: if they do not import, or their weights are not the problems' points.
    """
    plugin = _Plugin(sandbox, assignment, job)
    # Nothing of pytest's own configuration here: a pytest.ini or a conftest.py above must not change a grade.
    arguments = [*_ARGUMENTS, "-c", os.devnull, "--rootdir", str(suites), "--confcutdir", str(suites)]
    code = pytest.main([*arguments, *(str(suites / f"test_{part.id}.py") for part in assignment.graded_parts)], [plugin])
    if plugin.broken:
        raise plugin.broken
    if code != pytest.ExitCode.OK:
        raise SuiteBroken(f"the hidden suites could not be collected:\n{plugin.errors}")


class _Plugin:
    """The hooks and fixtures."""

    def __init__(self, sandbox: Sandbox, assignment: Assignment, job: Callable[[Suites], None]) -> None:
        self._sandbox = sandbox
        self._assignment = assignment
        self._job = job
        self._suites: Suites | None = None
        self.errors = ""
        self.broken: BaseException | None = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Keep why a suite could not be collected."""
        if report.failed:
            self.errors += str(report.longrepr)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Grade, in the place where pytest would run each test once."""
        if session.testsfailed:
            raise session.Interrupted("collection failed")
        for module in {item.module for item in session.items if isinstance(item, pytest.Function)}:
            cloudpickle.register_pickle_by_value(module)  # children cannot import a suite
        try:
            self._suites = Suites(plan(session.items, self._assignment), self._assignment, self._sandbox)
            self._job(self._suites)
        except BaseException as error:  # pytest would turn it into an exit code
            self.broken = error
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        """Give the judge the exception itself: a report holds only its text."""
        if call.excinfo is not None:
            if call.when != "call":
                raise SuiteBroken(f"{item.nodeid}: its {call.when} failed") from call.excinfo.value
            assert self._suites is not None
            self._suites.judge.raised = call.excinfo.value
            call.excinfo = None  # no text is made of it
        return (yield)

    @pytest.fixture
    def seed(self, request: pytest.FixtureRequest) -> int:
        """A number of this case's own, from the term's seed."""
        return zlib.crc32(f"{SETTINGS.seed} {request.node.name}".encode())

    @pytest.fixture
    def compare(self) -> Callable[..., None]:
        """Hold the student's reply against the reference's."""
        assert self._suites is not None
        return self._suites.judge.compare

    @pytest.fixture
    def observe(self) -> Callable[..., Any]:
        """Return the student's reply as plain data, to be held against a measurement."""
        assert self._suites is not None
        return self._suites.judge.observe


def plan(items: Sequence[pytest.Item], assignment: Assignment) -> tuple[_Task, ...]:
    """Return a task a test function, in the order of the handout.

    Raises:
        SuiteBroken: if a row has no number, weight or sentence, or the weights of a problem are not its points.
    """
    problems = {problem.number: problem for problem in assignment.graded_problems}
    tasks = []
    for test, group in groupby(items, key=lambda item: f"{item.path.name}::{item.originalname}"):  # type: ignore[attr-defined]
        cases = tuple(group)
        function = cases[0].function  # type: ignore[attr-defined]
        problem = problems.get(getattr(function, "__number__", ""))
        weight = getattr(function, "__weight__", 0)
        sentence = (function.__doc__ or "").strip().split("\n")[0]
        if problem is None or weight <= 0 or not sentence:
            raise SuiteBroken(f"{test} needs the @number of a graded problem, a @weight above 0 and a docstring")
        visibility, tags = getattr(function, "__visibility__", "visible"), getattr(function, "__tags__", ())
        row = Row(problem.number, problem.id, test, sentence, weight, visibility, tuple(tags))
        tasks.append(_Task(row, cases))
    if len({task.row.test for task in tasks}) != len(tasks):
        raise SuiteBroken("two test functions have one name")
    for problem in problems.values():
        weight = sum(task.row.max_score for task in tasks if task.row.problem == problem.id)
        if weight != problem.points:
            raise SuiteBroken(f"the rows of {problem.id} weigh {weight:g}, but it has {problem.points:g} points")
    order = list(problems)
    return tuple(sorted(tasks, key=lambda task: order.index(task.row.number)))


class _Lost(Exception):
    """The student's reply loses the row."""

    def __init__(self, feedback: Feedback) -> None:
        super().__init__(feedback.student)
        self.feedback = feedback


class _Judge:
    """Grades the rows of one submission, one after the other."""

    def __init__(self, sandbox: Sandbox, reader: Reader, memory: dict[tuple[str, int], _Expected]) -> None:
        self._sandbox = sandbox
        self._reader = reader
        self._memory = memory
        self._reference = Package("reference")
        self._closed: dict[str, Feedback] = {}  # parts and problems whose other rows are not run, and why
        self._task: _Task | None = None
        self._case = ("", 0)  # node id, number of the question in it
        self._child: Child | None = None
        self._imported = False
        self._answered = False  # student data has reached the test
        self.raised: BaseException | None = None

    def check_sources(self, parts: Sequence[str]) -> None:
        """Close the problems whose source uses what the handout's allow-lists leave out.

        Parsing runs no student code, but a hostile source can crash the parser, so it is done in a child.
        """
        sources = {file: content.decode("utf-8", "replace") for file, content in self._reader.submission.files.items()}
        present = [part for part in parts if f"{part}.py" in sources]
        outcomes = {tuple(present): self._inspect(present, sources)}
        if not isinstance(outcomes[tuple(present)], Reply):  # one of the files is to blame: find out which
            outcomes = {(part,): self._inspect([part], sources) for part in present}
        for group, outcome in outcomes.items():
            if isinstance(outcome, Reply):
                for problem, line in reversed(outcome.value):  # the first of a problem is the one that is shown
                    self._closed[problem] = self._reader.not_allowed(line)
            else:
                self._closed[group[0]] = self._reader.unparsable(group[0], outcome)

    def _inspect(self, parts: Sequence[str], sources: dict[str, str]) -> Outcome:
        child = self._sandbox.child(None)
        child.send(inspecting(parts, sources))
        outcome = child.reply(IMPORT_DEADLINE)
        if not isinstance(outcome, Died):
            child.close()
        return outcome

    def row(self, task: _Task, last: bool) -> Row:
        """Run a row's cases until one fails."""
        part = task.row.problem.split(".")[0]
        if f"{part}.py" not in self._reader.submission.files:
            self._closed.setdefault(part, self._reader.missing_file(part))
        for closed in (part, task.row.problem):
            if feedback := self._closed.get(closed):
                return replace(task.row, outcome="failed", output=feedback.student, staff=feedback.staff)
        self._task, self._child = task, None
        feedback = None
        try:
            for case in task.cases:
                if feedback := self._run_case(case):
                    break
        finally:
            if self._child is not None:
                self._child.close(last)
                self._child = None
        if feedback is None:
            return replace(task.row, outcome="passed", output="", staff="")
        shown = getattr(task.cases[0].function, "__hide_errors__", feedback.student)  # type: ignore[attr-defined]
        return replace(task.row, outcome="failed", output=shown, staff=feedback.staff)

    def _run_case(self, case: pytest.Item) -> Feedback | None:
        self._case, self._answered, self.raised = (case.nodeid, 0), False, None
        torch.set_default_dtype(torch.float32)
        # No next item: the case that runs next may be in any suite, since those of a lost row are left out.
        reports = runtestprotocol(case, log=False, nextitem=None)
        error = self.raised
        if error is None and all(report.passed for report in reports):
            return None
        if isinstance(error, _Lost):
            return error.feedback
        if isinstance(error, (SuiteBroken, SandboxBroken)) or (error and not isinstance(error, Exception)):
            raise error  # ours, or the order to stop
        if isinstance(error, AssertionError) and self._answered:
            sentence = error.args[0] if error.args and isinstance(error.args[0], str) else "A property does not hold."
            return Feedback(sentence, _trace(error))
        if isinstance(error, Exception) and self._answered:
            return Feedback("Your answer cannot be used: it is not what the docstring asks for.", _trace(error))
        raise SuiteBroken(f"{case.nodeid} failed before any student code was judged") from error

    def compare(self, problem: str, probe: Probe, **tolerance: Any) -> None:
        """Run the probe on both sides, and lose the row at the first difference."""
        options = Tolerance(**tolerance)
        expected, reply = self._ask(problem, probe, with_reference=True)
        assert expected is not None
        if difference := first_difference(expected.reply, reply, options):
            raise _Lost(self._explain(difference))

    def observe(self, problem: str, probe: Probe, *, like: Any) -> Any:
        """Return the student's reply as plain data of the structure of `like`, or lose the row."""
        _, reply = self._ask(problem, probe, with_reference=False)
        if difference := misfit(like, reply):
            raise _Lost(self._explain(difference))
        return plain(reply)

    def _explain(self, difference: Difference) -> Feedback:
        return Feedback(difference.reason, difference.detail)

    def _ask(self, problem: str, probe: Probe, with_reference: bool) -> tuple[_Expected | None, Any]:
        """Put the probe to the student's child, meanwhile to the reference, and return both answers."""
        assert self._task is not None
        if problem != self._task.row.problem:
            raise SuiteBroken(f"{self._task.row.test} has the number of {self._task.row.problem} and asks for {problem}")
        key = self._case
        self._case = key[0], key[1] + 1
        expected = self._memory.get(key)
        request = expected.request if expected else cloudpickle.dumps(probe)
        if self._child is None:
            self._child = self._sandbox.child(problem.split(".")[0])
            self._imported = False
        self._child.send_pickled(request)
        if with_reference and expected is None:
            expected = self._memory[key] = self._run_reference(probe, request)
        return expected, self._answer(problem, request, expected.cpu if expected else _UNMEASURED_CPU)

    def _run_reference(self, probe: Probe, request: bytes) -> _Expected:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        start = time.process_time()
        try:
            reply = snapshot(probe(self._reference))
        except Exception as error:
            raise SuiteBroken(f"the reference fails in {self._case[0]}") from error
        return _Expected(request, reply, time.process_time() - start)

    def _answer(self, problem: str, request: bytes, reference_cpu: float) -> Any:
        assert self._child is not None
        part, name = problem.split(".")
        if not self._imported:
            imported = self._child.reply(IMPORT_DEADLINE)
            if isinstance(imported, Died) and imported.signal == signal.SIGKILL:
                # Ready children are the first that the kernel ends when memory runs out, whoever has used it up.
                self._child = self._sandbox.child(part)
                self._child.send_pickled(request)
                imported = self._child.reply(IMPORT_DEADLINE)
            if not isinstance(imported, Reply):
                feedback = self._reader.import_fault(part, imported, bytes(self._child.printed))
                self._close(part, feedback, imported)
                raise _Lost(feedback)
            self._answered = True
            # The child can put anything in the place of a list of names.
            defined = [name for name in imported.value if type(name) is str] if type(imported.value) is list else []
            if name not in defined and hasattr(getattr(self._reference, part), name):
                feedback = self._reader.missing_name(problem)
                self._closed[problem] = feedback
                raise _Lost(feedback)
            self._imported = True
        cpu = 2.0 + 20 * reference_cpu
        outcome = self._child.reply(Deadline(cpu, wall=20.0 + 10 * cpu))
        if isinstance(outcome, Reply):
            self._answered = True
            return outcome.value
        feedback = self._reader.fault(problem, outcome, bytes(self._child.printed))
        if isinstance(outcome, TimedOut):
            later = "An earlier test of this problem ran out of time, so this one was not run."
            self._closed[problem] = Feedback(f"{later}\n{feedback.student}", "")
        self._drop(outcome)
        raise _Lost(feedback)

    def _close(self, part: str, feedback: Feedback, outcome: Outcome) -> None:
        self._closed[part] = feedback
        self._drop(outcome)

    def _drop(self, outcome: Outcome) -> None:
        if isinstance(outcome, Died):
            self._child = None  # ended and reaped


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))
