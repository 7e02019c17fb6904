"""Runs the hidden suites on submissions, through pytest: each test function becomes a row of the Grade.

pytest collects and parametrises; what it would print is not wanted. A row's cases share one fresh child, and after the
first that fails the others are not run.
"""

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import cloudpickle
import pytest
from _pytest.runner import runtestprotocol

from autograder import leaderboard
from autograder.feedback import Feedback, Reader
from autograder.grade import Grade, Row
from autograder.judge import Judge, Killed, Memory, SuiteBroken
from autograder.misconceptions import Misconception
from autograder.sandbox import landlock
from autograder.sandbox.client import Sandbox
from autograder.settings import case_seed, load_settings
from autograder.submission import Submission
from handout.problems import Assignment

SUITES = Path(__file__).with_name("hidden")
REFERENCE = Path(__file__).parents[1] / "reference"
_BONUS = (
    "A bonus of {:g} points on top of the total. It needs a GPU, and there is none here: the staff grade it elsewhere. "
    "Nothing is lost by this line."
)
_OUT_OF_TIME = "Not graded: the time for the whole submission was used up before this test could run."
_ARGUMENTS = [
    "--import-mode=importlib", "--assert=plain", "--capture=no", "--strict-markers",
    *(f"-pno:{name}" for name in (
        "terminal", "cacheprovider", "faulthandler", "timeout", "logging", "unraisableexception", "threadexception",
        "junitxml", "doctest", "debugging", "warnings", "jaxtyping", "hypothesispytest", "anyio",
    )),
]  # fmt: skip


@dataclass(frozen=True)
class _Task:
    """A row to be, with its cases."""

    row: Row
    cases: tuple[pytest.Function, ...]


@dataclass
class Suites:
    """The collected suites, ready to grade any number of submissions."""

    tasks: tuple[_Task, ...]
    elsewhere: tuple[Row, ...]  # of bonus problems, which need another machine
    assignment: Assignment
    _sandbox: Sandbox
    seed: int = field(default_factory=lambda: load_settings().seed)  # hidden inputs derive from it
    _memory: Memory = field(default_factory=Memory)
    _judge: Judge | None = None
    raised: BaseException | None = None  # by the case that ran last

    def grade(
        self,
        submission: Submission,
        watch: Callable[[Grade], None] = lambda grade: None,
        part: str | None = None,
        checked: bool = True,
    ) -> Grade:
        """Grade one submission.

        Args:
            submission: the student's package.
            watch: is told the grade so far: once with all rows at 0 before any student code runs, then after each row.
            part: the only one whose rows there are to be; None: all.
            checked: hold its source against the allow-lists; what is our own may do more.

        Raises:
            SuiteBroken: if a suite or the reference fails.
            SandboxBroken: if the sandbox does.
        """
        tasks = [task for task in self.tasks if part in (None, task.row.part)]
        grade = replace(self.planned(part), notes=submission.notes)
        watch(grade)
        settings = load_settings()
        until = time.monotonic() + settings.total_seconds
        with self._judging(submission, until) as judge:
            if checked:
                judge.check_sources(sorted({task.row.part for task in tasks}))
            judge.try_examples(sorted({task.row.problem for task in tasks}))
            for i, task in enumerate(tasks):
                last = i == len(tasks) - 1
                ended = last and not settings.leaderboard_cpu_seconds
                row = replace(task.row, output=_OUT_OF_TIME) if time.monotonic() > until else self._row(task, ended)
                grade = replace(grade, rows=(*grade.rows[:i], row, *grade.rows[i + 1 :]))
                if last or tasks[i + 1].row.problem != row.problem:
                    grade = _explained(grade, row.problem, judge.diagnose(row.problem))
                watch(grade)
            entrant = all(row.outcome == "passed" for row in grade.rows if row.problem == leaderboard.PROBLEM)
            if settings.leaderboard_cpu_seconds and part is None and entrant and time.monotonic() < until:
                loss = leaderboard.held_out_loss(self._sandbox, settings.leaderboard_cpu_seconds, settings.seed)
                grade = replace(grade, held_out_loss=loss)
                watch(grade)
        return grade

    def first_lost(self, submission: Submission, rows: Sequence[Row]) -> Row | None:
        """Return the first of some rows that a submission loses, None if it keeps them all.

        The suites alone decide: its source is held against no allow-list. Nothing is diagnosed.
        """
        tasks = {task.row: task for task in self.tasks}
        with self._judging(submission, time.monotonic() + load_settings().total_seconds):
            judged = (self._row(tasks[row], last=False) for row in rows)
            return next((row for row in judged if row.outcome != "passed"), None)

    @contextmanager
    def _judging(self, submission: Submission, until: float) -> Iterator[Judge]:
        """Load a submission and yield its judge. Nothing comes of rows that ran without room for files: NoRoom says so."""
        self._sandbox.check_room()
        folder = self._sandbox.staging / secrets.token_hex(8)
        submission.write(folder)
        try:
            self._sandbox.load(folder)
            self._judge = Judge(self._sandbox, Reader(submission), self._memory, until)
            yield self._judge
            self._sandbox.check_room()
        finally:
            shutil.rmtree(folder)  # the next student must not find it

    def planned(self, part: str | None = None) -> Grade:
        """Return the grade of a submission of which no row has run, with the rows of one part or of all."""
        rows = tuple(task.row for task in self.tasks if part in (None, task.row.part))
        return Grade(rows, isolation_level(self._sandbox))

    def move(self, sandbox: Sandbox) -> None:
        """Grade in another sandbox from now on: each worker of a class has one of its own."""
        self._sandbox = sandbox

    def reseed(self, seed: int) -> None:
        """Derive hidden inputs from another seed from now on."""
        self.seed = seed
        self._memory = Memory()  # the answers were to other questions

    def _row(self, task: _Task, last: bool) -> Row:
        """Run a row's cases until one fails; all of them once more if the kernel ends their child."""
        feedback = self.judge.closed(task.row.problem)
        if feedback is None:
            try:
                feedback = self._first_loss(task, again=False, last=last)
            except Killed:
                feedback = self._first_loss(task, again=True, last=last)
        if feedback is None:
            return replace(task.row, outcome="passed", output="")
        return replace(task.row, outcome="failed", output=feedback.student, staff=feedback.staff, cause=feedback.cause)

    def _first_loss(self, task: _Task, again: bool, last: bool) -> Feedback | None:
        """Run a row's cases in a fresh child, and return what the first one that fails says."""
        passed = False
        self.judge.open_row(task.row, again)
        try:
            for case in task.cases:
                if (error := self._run(case)) is not None:
                    return self.judge.explain(error)
            passed = True
            return None
        finally:
            self.judge.close_row(passed, last)

    def _run(self, case: pytest.Function) -> BaseException | None:
        """Run one case and return what it raised."""
        self.raised = None
        self.judge.open_case(case.nodeid, getattr(case.module, "RELIES_ON", {}))
        # No next item: the case that runs next may be in any suite, since those of a lost row are left out.
        reports = runtestprotocol(case, log=False, nextitem=None)
        if self.raised is None and not all(report.passed for report in reports):
            raise SuiteBroken(f"{case.nodeid} failed without an exception")
        if isinstance(self.raised, (pytest.skip.Exception, pytest.fail.Exception, pytest.exit.Exception)):
            raise SuiteBroken(f"{case.nodeid} skips, fails or ends the run by pytest's own means") from self.raised
        return self.raised

    @property
    def judge(self) -> Judge:
        """The judge of the submission that is being graded, for the fixtures."""
        assert self._judge is not None
        return self._judge


def _explained(grade: Grade, problem: str, known: Mapping[str, Misconception]) -> Grade:
    """Return the grade with the misconceptions behind a problem's rows, by their functions, named in what is read."""
    rows = (
        replace(row, output=f"{known[row.function].says}\n{row.output}", misconception=known[row.function].name)
        if row.problem == problem and row.function in known
        else row
        for row in grade.rows
    )
    return replace(grade, rows=tuple(rows))


def isolation_level(sandbox: Sandbox) -> Literal["full", "process"]:
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
    sandbox: Sandbox,
    assignment: Assignment,
    job: Callable[[Suites], None],
    suites: Path = SUITES,
    device: str = "sim",
) -> None:
    """Collect the hidden suites and call `job` with them, inside pytest's session.

    Args:
        sandbox: made before anything that students may not read was opened.
        assignment: the problems.
        job: what to do with the suites.
        suites: the folder that they are in.
        device: where the rows about an accelerator take place: "sim", or "cuda" where there is a GPU, and then the bonus counts.

    Raises:
        SuiteBroken: if they or the reference are not all there, do not import, or their weights are not the problems' points.
    """
    for folder, name in ((REFERENCE, "{}.py"), (suites, "test_{}.py")):
        for part in assignment.graded_parts:
            if not (folder / name.format(part.id)).is_file():
                raise SuiteBroken(f"{folder / name.format(part.id)} is missing")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the reference computes on the CPU: this process starts no CUDA
    plugin = _Plugin(sandbox, assignment, job, device)
    # Nothing of pytest's own configuration here: a pytest.ini or a conftest.py above must not change a grade.
    arguments = [*_ARGUMENTS, "-c", os.devnull, "--rootdir", str(suites), "--confcutdir", str(suites)]
    files = [suites / f"test_{part.id}.py" for part in assignment.graded_parts]
    if any(problem.bonus for part in assignment.graded_parts for problem in part.problems):
        files.append(suites / "test_cuda.py")
    code = pytest.main([*arguments, *map(str, files)], [plugin])
    if plugin.broken:
        raise plugin.broken
    if code != pytest.ExitCode.OK:
        said = [line[1:].strip() for line in plugin.errors.splitlines() if line.startswith("E ")]
        raise SuiteBroken(f"the hidden suites could not be collected: {''.join(said[-1:])}\n{plugin.errors}")


class _Plugin:
    """The hooks and fixtures."""

    def __init__(self, sandbox: Sandbox, assignment: Assignment, job: Callable[[Suites], None], device: str) -> None:
        self._sandbox = sandbox
        self._assignment = assignment
        self._job = job
        self._device = device
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
        cases = [item for item in session.items if isinstance(item, pytest.Function)]  # a suite holds nothing else
        for module in {case.module for case in cases}:
            cloudpickle.register_pickle_by_value(module)  # children cannot import a suite
        try:
            tasks, elsewhere = plan(cases, self._assignment, self._device)
            self._suites = Suites(tasks, elsewhere, self._assignment, self._sandbox)
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
            self._suites.raised = call.excinfo.value
            call.excinfo = None  # no text is made of it
        return (yield)

    @pytest.fixture
    def seed(self, request: pytest.FixtureRequest) -> int:
        """A number of this case's own, from the term's seed."""
        assert self._suites is not None
        return case_seed(request.node.name, self._suites.seed)

    @pytest.fixture
    def device(self) -> str:
        """The accelerator that the row takes place on: by this fixture a row says that it is about one."""
        return self._device

    @pytest.fixture
    def compare(self) -> Callable[..., None]:
        """Hold the student's reply against the reference's."""
        assert self._suites is not None
        return self._suites.judge.compare

    @pytest.fixture
    def observe_memory(self) -> Callable[..., tuple[Any, int]]:
        """Return the student's reply and how many bytes their process grew meanwhile."""
        assert self._suites is not None
        return self._suites.judge.observe_memory

    @pytest.fixture
    def observe(self) -> Callable[..., Any]:
        """Return the student's reply as plain data, to be held against a measurement."""
        assert self._suites is not None
        return self._suites.judge.observe


def plan(
    items: Sequence[pytest.Function], assignment: Assignment, device: str
) -> tuple[tuple[_Task, ...], tuple[Row, ...]]:
    """Return a task a test function, in the order of the handout; and apart the rows of the bonus, which needs a GPU.

    Where the rows about an accelerator take place on one, the bonus is among the tasks.

    Raises:
        SuiteBroken: if a row has no number, weight or sentence, or the weights of a problem are not its points.
    """
    problems = {problem.number: problem for part in assignment.graded_parts for problem in part.problems}
    tasks = []
    for test, group in groupby(items, key=lambda item: f"{item.path.name}::{item.originalname}"):
        cases = tuple(group)
        function = cases[0].function
        problem = problems.get(getattr(function, "__number__", ""))
        weight = getattr(function, "__weight__", 0)
        sentence = (function.__doc__ or "").strip().split("\n")[0]
        if problem is None or weight <= 0 or not sentence:
            raise SuiteBroken(f"{test} needs the @number of a graded problem, a @weight above 0 and a docstring")
        row = Row(problem.number, problem.id, test, sentence, weight)
        if "device" in cases[0].fixturenames:
            row = replace(row, device=device)
        tasks.append(_Task(row, cases))
    if len({task.row.test for task in tasks}) != len(tasks):
        raise SuiteBroken("two test functions have one name")
    for problem in problems.values():
        weight = sum(task.row.max_score for task in tasks if task.row.problem == problem.id)
        if weight != problem.points:
            raise SuiteBroken(f"the rows of {problem.id} weigh {weight:g}, but it has {problem.points:g} points")
    order = list(problems)
    tasks.sort(key=lambda task: order.index(task.row.number))
    here = tuple(task for task in tasks if device == "cuda" or not problems[task.row.number].bonus)
    elsewhere = (replace(task.row, output=_BONUS.format(task.row.max_score)) for task in tasks if task not in here)
    return here, tuple(elsewhere)
