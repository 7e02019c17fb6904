"""What each staff command does. Bad input is one line on standard error and exit status 2."""

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from autograder.machine import CannotGrade, check_device, open_sandbox
from autograder.settings import BadSettings, load_settings
from autograder.terminal import STOPPING, Parser, Stopped, end_if_stopped, heed_stops, refuse
from handout.problems import BadProblems, load_assignment

if TYPE_CHECKING:  # importing it imports PyTorch, which not every command needs
    from autograder.classroom.cells import Cells
    from autograder.sandbox.client import Sandbox

_Place = TypeVar("_Place")


def main(arguments: list[str]) -> int:
    """Run one command and return the exit status."""
    parser = Parser(prog="python -m autograder", description="Grade submissions.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    grade = commands.add_parser("grade", help="grade one submission and write results.json")
    grade.add_argument("submission", type=Path, help="a folder or a zip")
    grade.add_argument("--out", type=Path, default=Path("results.json"), help="where to write (default: %(default)s)")
    grade.add_argument(
        "--metadata", type=Path, help="Gradescope's submission_metadata.json: what a student does then ends in a result"
    )
    _isolation(grade)
    _device(grade)
    verify = commands.add_parser("verify", help="check that known submissions get what they must")
    verify.add_argument("--quick", action="store_true", help="only the reference and the stubs, no misconceptions")
    verify.add_argument("--part", type=_part, help="of the misconceptions only those of this part")
    _isolation(verify)
    _device(verify)
    mutate = commands.add_parser("mutate", help="check that the hidden tests see each small change of the reference")
    mutate.add_argument("--part", type=_part, help="the only part whose mutants are run")
    mutate.add_argument("--sample", type=_count, metavar="N", help="run only N mutants of each part")
    _isolation(mutate)
    soak = commands.add_parser("soak", help="grade known submissions again and again: no verdict may differ")
    soak.add_argument("--part", type=_part, help="the only part whose rows are run")
    soak.add_argument(
        "--times",
        type=_count,
        default=20,
        metavar="N",
        help="runs; of the reference ten times as many (default: %(default)s)",
    )
    soak.add_argument(
        "--sample",
        type=_count,
        metavar="N",
        help="only N equivalents and N misconceptions of each part; N runs of the reference",
    )
    _isolation(soak)
    commands.add_parser("stubs", help="write student/ anew from reference/")
    commands.add_parser("pack", help="pack what Gradescope gets into dist/autograder.zip")
    commands.add_parser("bench", help="measure grading against plain pytest of the same suites")

    from autograder.classroom import commands as classroom

    classroom.add_to(commands)

    options = parser.parse_args(arguments)
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        heed_stops()
        if options.command == "grade":
            return _grade(options.submission, options.out, options.isolation, options.metadata, options.device)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        if options.command == "verify":
            return _verify(options.isolation, options.quick, options.part, options.device)
        if options.command in classroom.COMMANDS:
            return classroom.run(options)
        if options.command == "mutate":
            return _mutate(options.isolation, options.part, options.sample)
        if options.command == "soak":
            return _soak(options.isolation, options.part, options.times, options.sample)
        if options.command == "bench":
            from autograder.bench import main as bench

            return bench()
        if options.command == "pack":
            from autograder.pack import main as pack

            return pack()
        from autograder.stubs import main as stubs

        stubs()
        return 0
    except (BadProblems, BadSettings) as error:
        return refuse(options.command, error)
    except Stopped as stop:
        print(f"{options.command}: stopped", file=sys.stderr)
        return stop.exit_status


def _isolation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--isolation",
        choices=["full", "process"],
        default="full",
        help="process: grade even where student code could read the reference (default: %(default)s)",
    )


def _part(name: str) -> str:
    known = [part.id for part in load_assignment().graded_parts]
    if name not in known:
        raise argparse.ArgumentTypeError(f"no part is called {name!r}: there are {', '.join(known)}")
    return name


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a number of 1 or more, not {text!r}")
    return int(text)


def _device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        choices=["sim", "cuda"],
        default="sim",
        help="where the rows about an accelerator take place; cuda grades the bonus too, on this machine's GPU (default: %(default)s)",
    )


def _grade(path: Path, out: Path, isolation: str, metadata: Path | None, device: str) -> int:
    from autograder.submission import Submission, UnreadableSubmission, read_submission

    assignment = load_assignment()
    try:
        try:
            _check_writable(out, path)
            check_device(device)
            _set_aside(out)
        finally:  # an order to stop that came earlier leaves no results of another submission there either
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        try:
            submission = read_submission(path, frozenset(part.id for part in assignment.parts))
        except UnreadableSubmission as error:
            if metadata is None:
                raise CannotGrade(error) from None
            submission = Submission({}, "", (str(error),))  # a student's doing: every row at 0, and why
        with open_sandbox(isolation) as sandbox:
            from autograder.grade import Grade
            from autograder.gradescope import results, write_results
            from autograder.plugin import Suites, run_suites
            from autograder.scoreboard import Watch, print_grade

            load_settings()
            if metadata is not None and _repeats_results(metadata, out):
                return 0
            start = time.monotonic()
            known: list[Grade] = []

            def job(suites: Suites) -> None:
                with Watch(str(path)) as show:

                    def watch(grade: Grade) -> None:
                        end_if_stopped()
                        known[:] = [grade]
                        write_results(out, results(grade, time.monotonic() - start, suites.elsewhere))
                        show(grade)

                    suites.grade(submission, watch)

            try:
                run_suites(sandbox, assignment, job, device=device)
            except BaseException:
                end_if_stopped()
                out.unlink(missing_ok=True)  # our fault: no file that looks like a mark, so that it is graded again
                raise
        print_grade(known[0], assignment)
        return 0
    except CannotGrade as error:
        return refuse("grade", error)
    except BadSettings:
        raise
    except Exception as error:
        from autograder.sandbox.client import NoRoom

        if isinstance(error, NoRoom):
            return refuse("grade", error)
        return _blame_ourselves("grade", "there is no grade", error)


def _repeats_results(metadata: Path, out: Path) -> bool:
    """Write the results of the submission before if this one is beyond the rate limit; tell whether it is."""
    from autograder.gradescope import BadMetadata, over_the_limit, read_metadata, write_results

    try:
        repeated = over_the_limit(read_metadata(metadata), load_settings())
    except BadMetadata as error:
        print(f"grade: no rate limit for this submission: {error}", file=sys.stderr)
        return False
    if repeated is None:
        return False
    write_results(out, repeated)
    print("not graded: beyond the rate limit, so the results of the submission before were written")
    return True


def _verify(isolation: str, quick: bool, part: str | None, device: str) -> int:
    try:
        check_device(device)
    except CannotGrade as error:
        print(f"verify: skipped: {error}", file=sys.stderr)
        return 0

    def check(sandbox: "Sandbox") -> int:
        from autograder.verify import verify

        assignment = load_assignment()
        every = [part.id for part in assignment.graded_parts]
        parts = [] if quick or device == "cuda" else [part] if part else every  # no misconception is about CUDA alone
        return verify(sandbox, assignment, parts, device)

    return _check_ourselves("verify", open_sandbox(isolation), check)


def _mutate(isolation: str, part: str | None, sample: int | None) -> int:
    def check(sandbox: "Sandbox") -> int:
        from autograder.mutate import BadSurvivors, mutate

        try:
            return mutate(sandbox, load_assignment(), part, sample)
        except BadSurvivors as error:
            return refuse("mutate", error)

    return _check_ourselves("mutate", open_sandbox(isolation), check)


def _soak(isolation: str, part: str | None, times: int, sample: int | None) -> int:
    from autograder.classroom.commands import sandboxes

    def check(made: "tuple[Cells, Sandbox]") -> int:
        from autograder.soak import soak

        return soak(*made, load_assignment(), part, times, sample)

    return _check_ourselves("soak", sandboxes(isolation), check)


def _check_ourselves(command: str, place: AbstractContextManager[_Place], check: Callable[[_Place], int]) -> int:
    """Run a check of the grader itself in a place that student code is locked into."""
    try:
        with place as made:
            load_settings()
            return check(made)
    except CannotGrade as error:
        return refuse(command, error)
    except (BadSettings, BadProblems):
        raise
    except Exception as error:
        return _blame_ourselves(command, "nothing is known", error)


def _blame_ourselves(command: str, outcome: str, error: Exception) -> int:
    """Say in one line what is wrong with the grader, below the traceback if the line is not all that there is to say."""
    reason = f"{type(error).__name__}: {error}"
    if type(error).__name__ in ("SuiteBroken", "SandboxBroken"):  # their words are a sentence for staff
        reason, _, details = str(error).partition("\n")
        if details:
            print(details, file=sys.stderr)
        if (cause := error.__cause__) is not None:
            reason += f": {type(cause).__name__}: {cause}"
            if frames := traceback.extract_tb(cause.__traceback__):
                reason += f" ({frames[-1].filename}:{frames[-1].lineno})"
            traceback.print_exc()
    else:
        traceback.print_exc()
    print(f"{command}: the grader failed, so {outcome}: {reason}", file=sys.stderr)
    return 1


def _check_writable(out: Path, submission: Path) -> None:
    """Find out before grading, and without touching what is there, whether the results can be written."""
    import tempfile

    if out.resolve() == submission.resolve() or submission.resolve() in out.resolve().parents:
        raise CannotGrade(f"{out} is the submission, or inside it: name another file for the results")
    if out.is_symlink() or (out.exists() and not out.is_file()):  # a device would be replaced for the whole machine
        raise CannotGrade(f"{out} is a folder or no plain file: name a file for the results")
    try:
        with tempfile.TemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise CannotGrade(f"cannot write {out}: {error.strerror}") from None


def _set_aside(out: Path) -> None:
    """Move what stands at `out` to `out`~: from here on there are results of this submission there, or none."""
    try:
        if out.exists():
            out.replace(out.with_name(f"{out.name}~"))
    except OSError as error:
        raise CannotGrade(f"cannot replace {out}: {error.strerror}") from None
