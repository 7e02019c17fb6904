"""`make watch`: run a part's tests again whenever its file is saved, and redraw the scoreboard.

With `--part`, the other parts are left alone.

Importing PyTorch takes longer than the tests. On Linux a server process imports it once and is forked for each run, so that
each run starts warm and reads the saved files anew. Elsewhere a process that has loaded PyTorch cannot be forked safely, and
each run is a fresh process.
"""

import argparse
import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path

try:
    import pytest

    from handout.problems import Assignment, load_assignment
    from tests.scoreboard import DONE, Tally, command_typed, next_lines, points_lines, render, rows_to_show
except ModuleNotFoundError:  # not the Python of .venv
    from tests.rerun import in_venv

    in_venv("tests.watch")

ROOT = Path(__file__).resolve().parent.parent
STUDENT, TESTS = ROOT / "student", ROOT / "tests"

# What each run would otherwise import. PyTorch imports torch._dynamo when an optimizer is first made.
KEPT_WARM = [
    "torch",
    "torch._dynamo",
    "numpy",
    "einops",
    "jaxtyping",
    "tests.conftest",
    "tests.checks",
    "tests.allowed",
]

# In milliseconds.
SAVE_LASTS, SAVE_STEP = 60, 20  # an editor may write, rename and touch: one save is what happens within the first
TICK = 50  # how often a run is asked whether it has ended


@dataclass
class Board:
    """What is known of all parts, whichever was run last."""

    tallies: dict[str, Tally] = field(default_factory=dict)  # by problem id
    broken: dict[str, str] = field(default_factory=dict)  # part -> why its tests could not run, in a line
    details: dict[str, str] = field(default_factory=dict)  # part -> the same, with the lines that show where

    def replace(self, parts: Iterable[str], news: "Board") -> None:
        """Forget what was known of the parts, and take what a new run found."""
        gone = set(parts)
        self.tallies = {id: t for id, t in self.tallies.items() if id.split(".")[0] not in gone} | news.tallies
        self.broken = {part: text for part, text in self.broken.items() if part not in gone} | news.broken
        self.details = {part: text for part, text in self.details.items() if part not in gone} | news.details


# --- in the process that runs the tests ---


class ResultsTaker:
    """Takes the results out of a run before that draws its own scoreboard: here one is drawn for all parts."""

    def __init__(self) -> None:
        self.board = Board()

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, config: pytest.Config) -> None:
        """Take the results, and leave none."""
        from tests.conftest import RUN, Run

        run = config.stash[RUN]
        self.board = Board(run.tallies, run.broken, run.details)
        config.stash[RUN] = Run()


def run_tests(parts: Sequence[str], answer: Connection) -> None:
    """Run the public tests of the parts, let pytest print what failed, and send a Board."""
    gc.freeze()  # pytest collects garbage at its end, and need not search PyTorch for any
    # Plugins that happen to be installed (anyio's comes with watchfiles) can take longer to load than the tests to run.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    taker = ResultsTaker()
    pytest.main(["-q", "-p", "timeout", *(f"tests/test_{part}.py" for part in parts)], plugins=[taker])
    sys.stdout.flush()
    answer.send(taker.board)


# --- in the process that watches ---


def warm_context() -> ForkServerContext | SpawnContext:
    """Return what starts processes that run tests, with PyTorch imported already where that is safe."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(KEPT_WARM)
    forkserver.ensure_running()  # imports while the watcher sets itself up
    return context


@dataclass
class TestRun:
    """The tests of some parts, running in a process of their own."""

    __test__ = False  # pytest: this is no test

    parts: Sequence[str]
    process: BaseProcess
    answer: Connection
    started: float

    @classmethod
    def start(cls, parts: Sequence[str], context: ForkServerContext | SpawnContext) -> "TestRun":
        """Start running the parts' tests."""
        answer, to_answer = context.Pipe(duplex=False)
        started = time.perf_counter()
        process = context.Process(target=run_tests, args=(parts, to_answer), daemon=True)
        process.start()
        to_answer.close()
        return cls(parts, process, answer, started)

    def result(self) -> Board | None:
        """Return the results, or None while the tests run. A process that ended without any counts as broken parts."""
        if not self.answer.poll():
            return None
        try:
            board = self.answer.recv()
        except EOFError:
            self.process.join()
            reason = f"the tests ended in the middle (exit status {self.process.exitcode})"
            board = Board(broken=dict.fromkeys(self.parts, reason), details={self.parts[0]: reason})
        assert isinstance(board, Board)
        self.stop()
        return board

    def stop(self) -> None:
        """End the process, if it still runs, and wait until it is gone."""
        self.process.kill()
        self.process.join()
        self.answer.close()


def parts_to_run(changed: Iterable[Path], assignment: Assignment, wanted: str | None = None) -> list[str]:
    """Return the parts whose tests a change concerns: a part's file or tests that part, any other file all that are wanted.

    >>> parts_to_run([STUDENT / "memory.py"], load_assignment())
    ['memory']
    """
    known = [part.id for part in assignment.graded_parts if (TESTS / f"test_{part.id}.py").exists()]
    names = {path.stem.removeprefix("test_") if path.parent == TESTS else path.stem for path in changed}
    concerned = [part for part in known if part in names] if names <= set(known) else known
    return [part for part in concerned if wanted in (None, part)]


def draw(board: Board, run: Sequence[str], assignment: Assignment) -> str:
    """Return the scoreboard: the parts that were just run line by line, every other part in one."""
    rows = rows_to_show(assignment, board.tallies, board.broken, single_tests=False)
    just_run = [row for row in rows if row.problem.part in run]
    others = [row for row in rows if row.problem.part not in run]
    lines = []
    for part in assignment.graded_parts:
        if own := [row for row in others if row.problem.part == part.id]:
            done = sum(row.status == DONE for row in own)
            lines.append(f"{part.number}. {part.id}: {done} of {len(own)} done")
    everything = len(lines) + len(run) == len(assignment.graded_parts)
    lines += ["", *points_lines(rows, []), *next_lines([*just_run, *others], ROOT, command_typed(), everything)]
    on_terminal = sys.stdout.isatty()
    width = os.get_terminal_size().columns if on_terminal else 120
    details = [text for part, text in board.details.items() if part in run]
    return "\n".join([*details, render(just_run, lines, width, on_terminal)])


def watch(wanted: str | None = None) -> None:
    """Run the tests of all parts, or of the one that is wanted, and then those of each part that is saved, until Ctrl-C."""
    import watchfiles  # not at the top: each process that runs tests imports this file

    assignment, board = load_assignment(), Board()
    context = warm_context()
    _clear_screen()
    print(f"The first run of {f'the tests of {wanted}' if wanted else 'all tests'} ...", flush=True)
    everything = parts_to_run([STUDENT], assignment, wanted)
    run: TestRun | None = TestRun.start(everything, context)
    try:
        for changes in watchfiles.watch(
            STUDENT,
            TESTS,
            watch_filter=watchfiles.PythonFilter(),
            debounce=SAVE_LASTS,
            step=SAVE_STEP,
            rust_timeout=TICK,
            yield_on_timeout=True,
        ):
            if _stops:  # Python drops what is raised while an object is being deleted
                raise KeyboardInterrupt
            if parts := parts_to_run([Path(path) for _, path in changes], assignment, wanted) if changes else []:
                if run:
                    run.stop()  # what it would say is out of date
                    parts = [part for part in everything if part in {*parts, *run.parts}]
                _clear_screen()
                print(f"{', '.join(parts)} ...", flush=True)
                run = TestRun.start(parts, context)
            if run and (news := run.result()):
                board.replace(run.parts, news)
                print(draw(board, run.parts, assignment))
                seconds = time.perf_counter() - run.started
                print(
                    f"({seconds:.1f} s. Save a file in student/ to run its tests again; Ctrl-C ends this.)", flush=True
                )
                run = None
    finally:
        if run:
            run.stop()


def _clear_screen() -> None:
    """Start a new page, if there is a terminal to turn pages on."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console().clear()


_stops: list[int] = []  # signals that came


def _stop_on_signal(number: int, frame: object) -> None:
    """Make `kill` end the watcher the way Ctrl-C does, with its processes."""
    _stops.append(number)
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """Watch until Ctrl-C; return 2 if there is nothing to watch."""
    parser = argparse.ArgumentParser(prog="python -m tests.watch", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", metavar="PART", help="run the tests of one part only, e.g. optimizers")
    part, parts = parser.parse_args(arguments).part, [part.id for part in load_assignment().graded_parts]
    if part not in (None, *parts):
        print(f"there is no part {part!r}: choose from {', '.join(parts)}", file=sys.stderr)
        return 2
    if not STUDENT.is_dir():
        print(f"there is no folder {STUDENT}", file=sys.stderr)
        return 2
    os.chdir(ROOT)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop_on_signal)
    try:
        watch(part)
    except KeyboardInterrupt:
        print("\nstopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
