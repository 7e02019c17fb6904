"""The commands of a class: what TAs type. Bad input is one line on standard error and exit status 2, and nothing is changed by it."""

import argparse
import os
import signal
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.machine import CannotGrade, check_isolation, warm_up
from autograder.pack import grader_version
from autograder.settings import BadSettings
from autograder.terminal import STOPPING, end_if_stopped, refuse
from handout.problems import BadProblems, load_assignment

if TYPE_CHECKING:  # importing them imports PyTorch
    from autograder.classroom.cells import Cells
    from autograder.classroom.export import Files, HandedIn
    from autograder.classroom.manual import Marks
    from autograder.classroom.record import Record
    from autograder.sandbox.client import Sandbox

COMMANDS = ("class", "merge", "regrade", "synthetic")
_AHEAD = 1  # children that a worker keeps ready: more would only compete with the other workers' for the cores


def add_to(commands: "argparse._SubParsersAction[Any]") -> None:
    """Add the commands to the parser of `python -m autograder`."""
    grade = commands.add_parser("class", help="grade everybody in an export of Gradescope's")
    grade.add_argument("export", type=Path, help='the zip that Gradescope\'s "Export Submissions" gives, or its folder')
    grade.add_argument(
        "--out", type=Path, required=True, help="a folder for the results; one that has some is gone on with"
    )
    grade.add_argument("--workers", type=_count, help="submissions at once (default: a worker a core)")
    grade.add_argument("--anonymous", action="store_true", help="leave names, ids and emails out of report.html")
    grade.add_argument(
        "--device",
        choices=["sim", "cuda"],
        default="sim",
        help="where the rows about an accelerator take place; cuda grades the bonus too, on this machine's GPU (default: %(default)s)",
    )
    grade.add_argument("--cluster", choices=["slurm", "local"], help="grade in jobs, of Slurm or of this machine")
    grade.add_argument("--partition", help="of the Slurm cluster (default: its own)")
    grade.add_argument(
        "--jobs", type=_count, help="how many (default: one for every 100 submissions; on this machine one)"
    )
    grade.add_argument("--part", type=Path, help=argparse.SUPPRESS)  # in a job: a file with the submissions to grade
    grade.add_argument(
        "--isolation",
        choices=["full", "process"],
        default="full",
        help="process: grade even where student code could read the reference (default: %(default)s)",
    )
    merge = commands.add_parser(
        "merge", help="join a GPU's bonus rows with the CPU's results, in a folder of their own"
    )
    merge.add_argument("cpu", type=Path, help="the folder of a run of `class`")
    merge.add_argument("cuda", type=Path, help="the folder of one with --device cuda, of the same export")
    merge.add_argument("--out", type=Path, required=True, help="a folder for both; what is in it is replaced")
    merge.add_argument("--anonymous", action="store_true", help="leave names, ids and emails out of report.html")
    regrade = commands.add_parser(
        "regrade", help="compare two runs: whose score changed, by how much, and by which row"
    )
    regrade.add_argument("before", type=Path, help="the folder of a run of `class`")
    regrade.add_argument("after", type=Path, help="the folder of another run of the same export")
    synthetic = commands.add_parser(
        "synthetic", help="invent a class, as an export of Gradescope's, to try the others on"
    )
    synthetic.add_argument("--out", type=Path, required=True, help="the folder to make")
    synthetic.add_argument("--students", type=_count, default=200, help="submissions (default: %(default)s)")
    synthetic.add_argument("--seed", type=int, default=0, help="another number is another class (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Run one of the commands and return the exit status."""
    return {"class": _class, "merge": _merge, "regrade": _regrade, "synthetic": _synthetic}[options.command](options)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 100_000):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 100,000")
    return int(text)


def _class(options: argparse.Namespace) -> int:
    from autograder.classroom.cluster import end_jobs_of_a_killed_run, remove_logs
    from autograder.classroom.export import BadExport, Files, read_export
    from autograder.classroom.folder import (
        Locked,
        OtherExport,
        is_merged,
        left_behind,
        lock,
        other_grades,
        pending,
        remove_halves,
        save_students,
        set_aside,
    )
    from autograder.classroom.gradebook import gone_marks
    from autograder.classroom.manual import NAME, BadMarks, read_marks

    assignment = load_assignment()
    modules = frozenset(part.id for part in assignment.parts)
    folder: Path = options.out
    try:
        if options.partition and options.cluster != "slurm":
            raise CannotGrade("a partition is one of a Slurm cluster: say CLUSTER=slurm too")
        if options.jobs and not options.cluster:
            raise CannotGrade("jobs are those of a cluster: say CLUSTER=slurm or CLUSTER=local too")
        if options.device == "cuda" and not options.cluster and not any(Path("/dev").glob("nvidia[0-9]*")):
            raise CannotGrade("there is no GPU of NVIDIA's here")
        files = Files(options.export)
        if options.part:
            ids = options.part.read_text(encoding="utf-8").split("\n")[:-1]
            return _grade(files, folder, pending(files, folder, ids, modules), options)
        export = read_export(files)
        _make_folder(folder, options.export)
        if is_merged(folder):
            raise CannotGrade(f"{folder} is what `make merge` wrote: name the folder of a run, or a new one")
        with lock(folder):
            gone = left_behind(folder, export.handed_in)
            marks = read_marks(folder / NAME, export.handed_in)
            if gone_now := gone_marks(folder):
                print(f"class: {gone_now}")
            ids = [submission.id for submission in export.handed_in if submission.has_files]
            if other := other_grades(folder, ids, options.device):
                raise CannotGrade(f"{folder} has grades of {other}")
            for warning in export.warnings:
                print(f"class: {warning}")
            if gone:
                print(f"class: not in this export, so not in the grade book, though there are results: {_some(gone)}")
            end_jobs_of_a_killed_run(folder)
            remove_halves(folder, ids)
            save_students(folder, export.handed_in)
            todo = pending(files, folder, ids, modules)
            set_aside(folder, todo)
            if len(todo) < len(ids):
                print(f"{len(ids) - len(todo)} of {len(ids)} submissions are graded already")
            if options.cluster:
                todo = _grade_by_jobs(folder, todo, options)
            else:
                if todo and (status := _grade(files, folder, todo, options)):
                    return status
                remove_logs(folder)  # of jobs of a run before
            end_if_stopped()
            if options.cluster and todo:
                refuse(
                    "class",
                    f"there is no result of {len(todo)} of {len(ids)} submissions, see {folder}/jobs: run it again",
                )
                _finish(folder, export.handed_in, marks, folder, options.anonymous)
                return 1  # the jobs' end is nobody's bad input
            return _finish(folder, export.handed_in, marks, folder, options.anonymous)
    except (BadExport, BadMarks, CannotGrade, Locked, OtherExport) as error:
        return refuse("class", error)
    except OSError as error:
        return refuse(
            "class", f"cannot write {error.filename or 'into ' + str(folder)}: {error.strerror}. What is graded is kept"
        )


def _grade_by_jobs(folder: Path, ids: list[str], options: argparse.Namespace) -> list[str]:
    """Grade these submissions by jobs, and return those that have no result then."""
    from autograder.classroom.cluster import Cluster, NoCluster, command

    workers = options.workers or (8 if options.cluster == "slurm" else len(os.sched_getaffinity(0)))
    cluster = Cluster(options.cluster, options.partition, options.jobs, workers, gpu=options.device == "cuda")
    where = [options.export.resolve(), "--out", folder.resolve()]
    how = ["--workers", workers, "--isolation", options.isolation, "--device", options.device]
    try:
        return cluster.run(folder, ids, lambda part: command("class", *where, *how, "--part", part))
    except NoCluster as error:
        raise CannotGrade(error) from None


def _grade(files: "Files", folder: Path, ids: list[str], options: argparse.Namespace) -> int:
    """Grade these submissions on this machine; return 0 if all were dealt with."""
    todo = {id: files.state(id) for id in ids}
    with sandboxes(options.isolation) as (cells, own):
        from autograder.classroom.pool import CannotGoOn, cores
        from autograder.classroom.run import SelfCheckFailed, grade_all
        from autograder.judge import SuiteBroken

        try:
            grade_all(cells, own, load_assignment(), files, folder, todo, options.workers or cores(), options.device)
        except CannotGoOn as error:
            return refuse("class", f"{error}. What is graded is kept")
        except (SelfCheckFailed, SuiteBroken) as error:
            end_if_stopped()
            refuse("class", error)
            return 1
        except (BadSettings, BadProblems):
            raise
        except Exception:
            end_if_stopped()
            traceback.print_exc()
            refuse("class", "the grader failed; the traceback above says where. What is graded is kept")
            return 1
    return 0


def _finish(folder: Path, handed_in: "Sequence[HandedIn]", marks: "Marks", of: Path, anonymous: bool) -> int:
    """Write the grade book and the report from the results that there are, and from the marks of the run in the folder `of`."""
    from autograder.classroom.gradebook import kept_instead, lines, set_aside_edited, write_grades
    from autograder.classroom.merge import problems_of
    from autograder.classroom.progress import printable
    from autograder.classroom.record import load
    from autograder.classroom.report import write_report

    assignment = load_assignment()
    records = {}
    for submission in handed_in:
        if submission.has_files and (record := load(folder, submission.id)):  # else it is of files that are gone
            records[submission.id] = record
    students = lines(handed_in, records, marks, kept_instead(of))
    if edited := set_aside_edited(folder):
        print(f"{folder}/grades.csv was edited, and is kept as {edited.name}: marks are given in manual.csv")
    write_grades(folder, students, assignment, problems_of(records, assignment))
    write_report(folder, assignment, handed_in, records, students, anonymous)
    graded = sum(record.final for record in records.values())
    print(f"{graded} of {len(handed_in)} submissions graded: {folder}/grades.csv, canvas.csv and report.html")
    if summed := [line for line in students if line.summed]:
        names = [printable(f"{line.who}: {line.manual:g} + {sum(line.points.values()):g}") for line in summed]
        print(f"manual marks given when there was no grade are added to one now, is that right? {_some(names)}")
    for why in sorted({line.left_out for line in students} - {""}):
        own = [line for line in students if line.left_out == why]
        names = [printable(f"{line.student.called or 'nobody'} ({line.submission.id})") for line in own]
        print(f"canvas.csv leaves out who {why}: {_some(names)}")
    ours = [id for id, record in records.items() if record.status == "grader failed"]
    if ours:
        refuse(
            "class",
            f"the grader failed on {_some(sorted(ours))}: run it again",
        )
        return 1
    if all(line.total is None for line in students):
        return refuse("class", f"nobody has a grade: {folder}/grades.csv says why")
    return 0


def _some(names: Sequence[str]) -> str:
    """Return the first ten of them, and how many more there are."""
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _merge(options: argparse.Namespace) -> int:
    from autograder.classroom.folder import Locked, is_merged, load_students, lock, mark_merged, save_students
    from autograder.classroom.gradebook import gone_marks
    from autograder.classroom.manual import NAME, BadMarks, files_of_marks, read_marks
    from autograder.classroom.merge import merged, write
    from autograder.classroom.record import all_records

    folder: Path = options.out
    try:
        for run in (options.cpu, options.cuda):
            _check_run(run)
            if folder.resolve().is_relative_to(run.resolve()):
                raise CannotGrade(f"{folder} is one of the runs, or inside it: name another folder")
        handed_in = load_students(options.cpu)
        if not handed_in:
            raise CannotGrade(f"{options.cpu} does not say who handed in what: run `make class` on it again")
        cpu, cuda = all_records(options.cpu), all_records(options.cuda)
        _check_pair(cpu, cuda, options)
        if (folder / "results").is_dir() and not is_merged(folder):
            raise CannotGrade(f"{folder} has results of a run: name another folder")
        if not all_records(folder).keys() <= cpu.keys():
            raise CannotGrade(f"{folder} has results of other submissions: name another folder")
        _make_folder(folder)
        with lock(folder):
            marks = read_marks(options.cpu / NAME, handed_in)
            records, said = merged(cpu, cuda, load_assignment())
            said += filter(None, [gone_marks(options.cpu)])
            unread = [*files_of_marks(options.cuda), *files_of_marks(folder)]
            said += [f"{file} is not read: marks are in {options.cpu / NAME}" for file in unread]
            print("".join(f"{line}\n" for line in said), end="")
            mark_merged(folder)
            write(records, folder)
            save_students(folder, handed_in)
            return _finish(folder, handed_in, marks, options.cpu, options.anonymous)
    except (BadMarks, CannotGrade, Locked) as error:
        return refuse("merge", error)
    except OSError as error:
        return refuse("merge", f"cannot write into {folder}: {error.strerror}")


def _check_pair(cpu: "Mapping[str, Record]", cuda: "Mapping[str, Record]", options: argparse.Namespace) -> None:
    """Refuse two runs that are not one of the CPU and one of a GPU, by this grader: points are those of its assignment."""
    bonus = {problem.id for problem in load_assignment().problems if problem.bonus}

    def has_bonus(records: "Mapping[str, Record]") -> bool:
        return any(row.problem in bonus for record in records.values() for row in record.grade.rows)

    graders = {record.grader for records in (cpu, cuda) for record in records.values() if record.final}
    if len(graders) > 1:
        raise CannotGrade(f"the two runs are of different versions of the grader: {', '.join(sorted(graders))}")
    if graders - {grader_version()}:
        raise CannotGrade(
            f"both runs are of another version of the grader: {', '.join(graders)}; this one is {grader_version()}. Merge with that one, "
            "or grade both anew"
        )
    if not has_bonus(cuda):
        raise CannotGrade(f"{options.cuda} has no row of a bonus problem: name a run with DEVICE=cuda as CUDA")
    if has_bonus(cpu):
        raise CannotGrade(f"{options.cpu} has rows of bonus problems already: name a run of the CPU as CPU")


def _regrade(options: argparse.Namespace) -> int:
    from autograder.classroom.manual import BadMarks
    from autograder.classroom.regrade import changes, submissions, told

    try:
        for run in (options.before, options.after):
            _check_run(run)
        if not submissions(options.before) & submissions(options.after):
            raise CannotGrade(
                f"{options.before} and {options.after} have no submission in common: name two runs of one class"
            )
        lines = told(changes(options.before, options.after), options.before, options.after)
    except (BadMarks, CannotGrade) as error:
        return refuse("regrade", error)
    print("\n".join(lines))
    return 0


def _check_run(folder: Path) -> None:
    if not (folder / "results").is_dir():
        raise CannotGrade(f"there are no results of a class in {folder}")


def _make_folder(folder: Path, export: Path | None = None) -> None:
    """Find out before grading whether results can be written, and that they do not go where the submissions are."""
    import tempfile

    if export and export.is_dir():
        place, results = export.resolve(), (folder / "results").resolve()
        if folder.resolve().is_relative_to(place) or results.is_relative_to(place) or place.is_relative_to(results):
            raise CannotGrade(f"results in {folder} would be in the export: name another folder for them")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CannotGrade(f"cannot write into {folder}: {error.strerror}") from None


@contextmanager
def sandboxes(isolation: str) -> "Iterator[tuple[Cells, Sandbox]]":
    """Yield where sandboxes come from, and a first one, made while this process holds nothing that a student may not read."""
    warm_up()
    from autograder.classroom.cells import Cells
    from autograder.sandbox.client import SandboxBroken

    cells = Cells(_AHEAD)
    try:
        own = cells.sandbox()
    except SandboxBroken as error:
        cells.close()
        raise CannotGrade(error) from None
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        check_isolation(own, isolation)
        yield cells, own
    finally:
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave files behind
        own.close()
        cells.close()


def _synthetic(options: argparse.Namespace) -> int:
    from autograder.classroom.synthetic import write_class

    try:
        submissions = write_class(options.out, options.students, options.seed)
    except OSError as error:
        return refuse("synthetic", f"cannot make {options.out}: {error.strerror}: name a folder that is not there yet")
    kinds: dict[str, int] = {}
    for submission in submissions:
        kinds[submission.kind] = kinds.get(submission.kind, 0) + 1
    print("\n".join(f"{count:5}  {kind}" for kind, count in kinds.items()))
    print(f"{len(submissions)} invented submissions: {options.out}")
    return 0
