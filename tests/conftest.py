"""The pytest plugin of the public tests: it keeps what a student sees short, and ends in the scoreboard.

It also lets one broken part break nothing else: a part that cannot be imported costs a line, and the tests of the other
parts run.
"""

import gc
import importlib
import linecache
import sys
import threading
import traceback
import types
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from handout.problems import SPANNING_PROBLEMS, load_assignment
from tests.advice import advice
from tests.scoreboard import Tally, command_typed, next_lines, points_lines, render, rows_to_show

ROOT = Path(__file__).resolve().parent.parent
STUDENT = ROOT / "student"

# Far above what any public test takes; an endless loop should not need Ctrl-C.
SECONDS_PER_TEST = 60
SECONDS_OF_IMPORT = 10  # after which a line says what is being waited for


@dataclass
class Run:
    """What this run has learned so far."""

    tallies: dict[str, Tally] = field(default_factory=dict)  # by problem id
    broken: dict[str, str] = field(default_factory=dict)  # part -> why it cannot be imported, and where
    details: dict[str, str] = field(default_factory=dict)  # part -> the same, and the source line if Python gives one
    errors: dict[str, str] = field(
        default_factory=dict
    )  # an exception and its place in a solution -> the test that met it


RUN = pytest.StashKey[Run]()
PROBLEM = pytest.StashKey[str]()
KIND = "resource accounting"  # the key under which a report says that it is no ordinary failure


class PartCannotBeImported(pytest.fail.Exception):  # type: ignore[name-defined]  # a class, though held by a function
    """A test asked for something from a file of the student's that cannot be imported.

    As pytest's own outcomes it is no `Exception`: a test that waits for some error does not take it for one.
    """


class BrokenPart(types.ModuleType):
    """Stands in for a part that cannot be imported, so that its tests are collected, chosen and counted all the same."""

    def __getattr__(self, name: str) -> None:
        """Fail like the import."""
        __tracebackhide__ = True
        if name.startswith("__"):
            raise AttributeError(name)  # what the import system and pytest look for
        raise PartCannotBeImported(f"{self.__name__} cannot be imported")


class CannotRun(pytest.exit.Exception):  # type: ignore[name-defined]  # as above
    """Nothing can be run."""


CannotRun.__name__ = "error"  # pytest prints it before the text


class NotStarted(pytest.skip.Exception):  # type: ignore[name-defined]  # as above
    """A test reached a stub."""


class NotAllowed(pytest.Item):
    """Fails with what solutions use and may not. There is one only where a rule is broken: nobody gets a pass for none."""

    lines: Iterable[str] = ()

    def reportinfo(self) -> tuple[Path, None, str]:
        """Head the report with the item's name."""
        return self.path, None, self.name

    def runtest(self) -> None:
        """Say what is not allowed, and where."""
        pytest.fail("\n".join(self.lines), pytrace=False)


# --- what is run ---


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--part`."""
    parser.addoption("--part", metavar="PART", help="run the tests of one part only, e.g. optimizers")


def pytest_configure(config: pytest.Config) -> None:
    """Check what was asked for, and shorten pytest's report where the command line does not say otherwise."""
    config.stash[RUN] = Run()
    part = config.getoption("part")
    with_tests = [part.id for part in load_assignment().graded_parts]
    if part is not None and part not in with_tests:
        raise CannotRun(f"there is no part {part!r}: choose from {', '.join(with_tests)}", returncode=2)
    _check_student_package()
    config.option.continue_on_collection_errors = True
    if config.option.tbstyle == "auto":
        config.option.tbstyle = "short"
    if config.option.reportchars == "fE":  # pytest's default: the scoreboard says it
        config.option.reportchars = ""


def _check_student_package() -> None:
    """Make sure that it is this folder's `student` that will be tested, and not another one on the path."""
    try:
        package = importlib.import_module("student")
    except ModuleNotFoundError:
        raise CannotRun(f"there is no folder {STUDENT}: the solutions go there", returncode=2) from None
    except Exception as error:
        raise CannotRun(f"student/__init__.py cannot be imported: {_one_line(error)}", returncode=2) from None
    found = [Path(folder).resolve() for folder in package.__path__]
    if found != [STUDENT]:
        raise CannotRun(f"'import student' finds {found[0]}, and not {STUDENT}: look at PYTHONPATH", returncode=2)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the tests of the parts that were not asked for, or that are not graded yet."""
    if not collection_path.is_file():
        return None
    wanted, part = config.getoption("part"), collection_path.stem.removeprefix("test_")
    ungraded = {part.id for part in load_assignment().parts if not part.graded}
    return True if part in ungraded or wanted not in (None, part) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep the garbage collector out of the imports, and for good out of what they made.

    It would look again and again at PyTorch's million objects, of which none is garbage: a third of the whole run's time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    result = yield
    gc.freeze()
    if was_enabled:
        gc.enable()
    return result


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Import a part before its tests do, and put a stand-in in its place if it fails.

    Tests can still be impossible to collect, when they name something at their top that the student's file lacks.
    """
    part = collector.path.stem.removeprefix("test_")
    if not isinstance(collector, pytest.Module) or part not in {part.id for part in load_assignment().parts}:
        return (yield)
    run = collector.config.stash[RUN]
    try:
        with _saying_what_takes_long(part):
            importlib.import_module(f"student.{part}")
    except (Exception, SystemExit) as error:
        run.broken[part], run.details[part] = _why_broken(part, error)
        stand_in = BrokenPart(f"student.{part}")
        sys.modules[stand_in.__name__] = stand_in
        setattr(sys.modules["student"], part, stand_in)
    report = yield
    if report.failed:
        if part not in run.broken:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = crash.message.splitlines()[0] if crash else str(report.longrepr).splitlines()[-1]
            why = f"tests/{collector.path.name} cannot be collected: {message.removeprefix('E').strip()}"
            run.broken[part] = run.details[part] = why
        report.longrepr = run.broken[part]
    return report


@contextmanager
def _saying_what_takes_long(part: str) -> Iterator[None]:
    """Print one line if the import of a part seems to have no end."""
    importing = threading.get_ident()

    def say() -> None:
        frames = traceback.walk_stack(sys._current_frames().get(importing))
        places = ((Path(frame.f_code.co_filename), line) for frame, line in frames)
        for path, line in (place for place in places if place[0].is_relative_to(STUDENT)):
            at = f"{path.relative_to(ROOT).as_posix()}:{line}: {linecache.getline(str(path), line).strip()}"
            break
        else:
            at = "its start"
        print(
            f"student/{part}.py is still being imported after {SECONDS_OF_IMPORT} s. Look for a loop without an end, "
            f"outside the functions (Ctrl-C stops this). It is at {at}",
            file=sys.stderr,
            flush=True,
        )

    timer = threading.Timer(SECONDS_OF_IMPORT, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> Generator[None, object, object]:
    """Note what each test is about before -k and -m take tests away; then add what the solutions of the others may not use."""
    _note_problems(items, config)
    result = yield
    items += _not_allowed(items, config.stash[RUN])
    return result


def _note_problems(items: Iterable[pytest.Item], config: pytest.Config) -> None:
    """Note which problem each test is about, and give it its time."""
    known = {problem.id for problem in load_assignment().problems}
    limited = config.pluginmanager.hasplugin("timeout") and config.getoption("timeout", None) is None
    for item in items:
        if limited:
            item.add_marker(pytest.mark.timeout(SECONDS_PER_TEST))
        if marker := item.get_closest_marker("problem"):
            if marker.args[0] not in known:
                raise pytest.UsageError(f"{item.nodeid}: handout/problems.toml has no problem {marker.args[0]!r}")
            item.stash[PROBLEM] = marker.args[0]
            config.stash[RUN].tallies.setdefault(marker.args[0], Tally()).existing += 1


def _not_allowed(items: Iterable[pytest.Item], run: Run) -> list[NotAllowed]:
    """Return what fails for the rules that are broken by the problems that these tests are about."""
    modules = {item.stash[PROBLEM]: item.parent for item in items if item.parent and PROBLEM in item.stash}
    if not modules:
        return []
    from tests.allowed import check_part  # PyTorch is imported here, where the garbage collector is out of the way

    sources = {
        path.relative_to(STUDENT).as_posix(): path.read_bytes() for path in STUDENT.rglob("*.py") if path.is_file()
    }
    found = []
    for part in {problem.split(".")[0]: None for problem in modules if problem.split(".")[0] not in run.broken}:
        here = [problem for problem in modules if problem.split(".")[0] == part]
        lines: dict[str, None] = {}  # a line once, however many problems it is a part of
        for violation in check_part(part, sources):
            for problem in here if violation.problem is None else {violation.problem}.intersection(here):
                tally = run.tallies[problem]
                # The name stands in the lines above; 80 columns hold both only if it is short.
                place = "line " if violation.file == f"{part}.py" else f"{violation.file}:"
                tally.not_allowed = tally.not_allowed or f"{place}{violation.line}"
                lines[str(violation)] = None
        if lines:
            item = NotAllowed.from_parent(modules[here[0]], name=f"{part}: only what the handout allows")
            item.lines = lines
            found.append(item)
    return found


def pytest_collection_finish(session: pytest.Session) -> None:
    """Count the tests that will be run."""
    for item in session.items:
        if PROBLEM in item.stash:
            session.config.stash[RUN].tallies[item.stash[PROBLEM]].chosen += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Say so if -k names no test."""
    if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.option.keyword:
        print(f"\nno public test is called {session.config.option.keyword!r}", file=sys.stderr, flush=True)
        session.exitstatus = 2


# --- how each test ends ---


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Turn the NotImplementedError of a stub into a skip: what was not begun is not an error.

    PyTorch raises NotImplementedError too, which is one.
    """
    tally = pyfuncitem.config.stash[RUN].tallies.get(pyfuncitem.stash.get(PROBLEM, ""))
    if tally and tally.timed_out:
        pytest.fail("not run: another test of this problem never ended", pytrace=False)
    if tally and _is_missing(pyfuncitem.stash[PROBLEM]):
        part, name = pyfuncitem.stash[PROBLEM].split(".")
        tally.missing = True
        pytest.fail(f"student/{part}.py defines no {name}", pytrace=False)
    try:
        return (yield)
    except NotImplementedError as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if PROBLEM not in pyfuncitem.stash or not Path(frame.f_code.co_filename).resolve().is_relative_to(STUDENT):
            raise
        tested, known = pyfuncitem.stash[PROBLEM], {problem.id for problem in load_assignment().problems}
        stub = str(error) if str(error) in known else tested
        pyfuncitem.config.stash[RUN].tallies[tested].stubs.append(stub)
        raise NotStarted(f"{stub} is not started") from None


def _is_missing(problem: str) -> bool:
    """Whether a problem has a definition of its own to solve it, and the student's file lacks it."""
    part, name = problem.split(".")
    module = sys.modules.get(f"student.{part}")
    return (
        module is not None
        and not isinstance(module, BrokenPart)
        and problem not in SPANNING_PROBLEMS
        and not hasattr(module, name)
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the test's and the student's own lines of a traceback only, and count."""
    excinfo = call.excinfo
    kind = ""
    tally = item.config.stash[RUN].tallies.get(item.stash.get(PROBLEM, ""))
    if excinfo is not None:
        if excinfo.errisinstance(PartCannotBeImported):
            kind = "cannot import"
        elif excinfo.errisinstance(NotStarted):
            kind = "not started"
        elif isinstance(excinfo.value, pytest.fail.Exception) and str(excinfo.value).startswith("Timeout"):
            excinfo.value.msg = f"stopped after {SECONDS_PER_TEST} s: is there a loop that never ends?"
            if tally:
                tally.timed_out = True
        if item.config.option.tbstyle == "short" and not item.config.getoption("fulltrace"):
            excinfo.traceback = type(excinfo.traceback)(_own_frames(excinfo.tb))
    report = yield
    if excinfo is not None and report.failed and item.config.option.tbstyle == "short":
        _shorten(report, excinfo.value, item.config.stash[RUN])
    report.user_properties.append((KIND, kind))
    if tally is None or kind == "not started":
        return report
    if report.failed:
        tally.failed += 1
    elif report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        tally.skipped.append(reason.removeprefix("Skipped: "))
    elif report.when == "call":
        tally.passed += 1
    return report


def _shorten(report: pytest.TestReport, error: BaseException, run: Run) -> None:
    """Show an error that comes from one line of the solution once, with advice; the next time, only that it came again."""
    if not isinstance(error, Exception) or isinstance(error, AssertionError):
        return
    *_, (frame, line) = traceback.walk_tb(error.__traceback__ and _own_frames(error.__traceback__))
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(STUDENT):
        return
    place = f"{path.relative_to(ROOT).as_posix()}:{line}"
    test = report.nodeid.split("::")[-1]
    first = run.errors.setdefault(f"{place} {_one_line(error)}", test)
    if first != test:
        report.longrepr = f"{place}: the same {type(error).__name__} as in {first}"
    elif text := advice(error):
        report.sections.append(("hint", text))


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """Give tests that reach a stub, or a part that cannot be imported, a name of their own and no traceback."""
    kind = dict(report.user_properties).get(KIND)
    if kind == "not started":
        return kind, "n", ("NOT STARTED", {"yellow": True})
    if kind == "cannot import":
        return kind, "E", ("CANNOT IMPORT", {"red": True})
    return None


# --- the end ---


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the scoreboard."""
    run, assignment = config.stash[RUN], load_assignment()
    single_tests = any("::" in argument for argument in config.args)
    rows = rows_to_show(assignment, run.tallies, run.broken, single_tests)
    if not rows or config.option.collectonly:
        return
    shown = {row.problem.id for row in rows}
    all_files = all(Path(argument).resolve() in (ROOT, ROOT / "tests") for argument in config.args)
    everything = all_files and shown.issuperset(run.tallies) and not config.getoption("part")
    untested = [problem for problem in assignment.graded_problems if problem.id not in shown]
    lines = points_lines(rows, untested if everything else []) + next_lines(rows, ROOT, command_typed(), everything)
    terminalreporter.section("scoreboard")
    for part, details in run.details.items():
        if any(row.problem.part == part for row in rows):
            terminalreporter.line(details, red=True)
    writer = terminalreporter._tw  # its width and colours have no public name
    terminalreporter.line(render(rows, lines, writer.fullwidth, writer.hasmarkup).rstrip())


# --- errors ---


def _why_broken(part: str, error: BaseException) -> tuple[str, str]:
    """Say in a line why a part cannot be imported and which line of the student's is to blame; then the same with details."""
    if not (STUDENT / f"{part}.py").exists():
        why = f"student/{part}.py is missing"
        return why, why
    if isinstance(error, SyntaxError):
        places = [(error.filename or "", error.lineno or 1)]
    else:
        places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [(Path(name).resolve(), line) for name, line in places if Path(name).resolve().is_relative_to(STUDENT)]
    place = f"{own[-1][0].relative_to(ROOT).as_posix()}:{own[-1][1]}: " if own else ""
    hint = f" ({text})" if (text := advice(error)) else ""
    why = f"student/{part}.py cannot be imported: {place}{_one_line(error)}{hint}"
    if isinstance(error, SyntaxError) and error.text:
        # As Python shows it: the source line, and a caret.
        source = "".join(traceback.format_exception_only(type(error), error)).splitlines()[1:-1]
        return why, "\n".join([why, *source])
    return why, why


def _one_line(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


def _own_frames(tb: types.TracebackType) -> types.TracebackType:
    """Return a traceback without the frames of PyTorch, Python and pytest; the same one if it has no others."""
    entries = [tb]
    while following := entries[-1].tb_next:
        entries.append(following)
    own: types.TracebackType | None = None
    for entry in reversed(entries):
        path = Path(entry.tb_frame.f_code.co_filename)
        if path.is_relative_to(STUDENT) or path.is_relative_to(ROOT / "tests"):
            own = types.TracebackType(own, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return own or tb
