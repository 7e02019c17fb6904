"""A class is graded whole whatever happens meanwhile: killed workers, a killed grader, a full disk, a second run on the same folder."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autograder.classroom.export import Files
from autograder.classroom.folder import pending
from autograder.classroom.pool import Lost
from autograder.tests import traces
from autograder.tests.classes import GOOD, PART, SLOW, WRONG, export, grades, results, small_tree
from autograder.tests.handed_in import reference
from autograder.tests.running import Command, run, started

MIXED = {
    "submission_1": GOOD,
    "submission_2": WRONG,
    "submission_3": {"hw.zip": b"PK\3\4 cut off"},
    "submission_4": {"student/strides (1).py": reference("strides"), "work.ipynb": b"{}"},
    "submission_5": {"student/strides.py": b"def broken(:\n"},
    "submission_6": {"student/strides.py": b"raise SystemExit(0)\n"},
    "submission_7": {"student/strides.py": b"x = " + b"(" * 5000 + b")" * 5000},
    "submission_8": {},
}


@pytest.fixture(scope="module")
def mixed(shared, tree) -> Path:
    """A class of all kinds, graded by two workers."""
    out = shared / "mixed-out"
    code, printed, err = run("class", export(shared / "mixed", MIXED), "--out", out, "--workers", 2, tree=tree)
    assert code == 0, err
    assert "Traceback" not in err
    # Whoever has no grade is named, with the reason.
    assert [line.split(":")[0] for line in err.splitlines() if line.startswith("submission_")] == [
        "submission_3",
        "submission_4",
    ]
    assert "6 of 8 submissions graded" in printed
    return out


def test_one_bad_submission_costs_only_itself(mixed):
    lines = grades(mixed)
    assert {id: (line["Status"], line["Total Score"]) for id, line in lines.items()} == {
        "submission_1": ("graded", "13"),
        "submission_2": ("graded", "12"),
        "submission_3": ("unreadable", ""),  # no zero, which would look like a mark
        "submission_4": ("no files", "0"),
        "submission_5": ("graded", "0"),
        "submission_6": ("graded", "0"),
        "submission_7": ("graded", "0"),
        "submission_8": ("no folder", ""),
    }
    assert lines["submission_2"]["4.2 strides.flat_index"] == "0"
    assert lines["submission_1"]["SID"] == "0000" and lines["submission_1"]["Email"] == "s0000@x.edu"
    assert "there is student/strides (1).py, work.ipynb." in lines["submission_4"]["Why not graded"]
    assert "there is student/strides (1).py, work.ipynb." in (mixed / "report.html").read_text(encoding="utf-8")
    assert "not a folder" in lines["submission_3"]["Why not graded"] or "zip" in lines["submission_3"]["Why not graded"]


def test_every_submission_has_a_results_file_that_says_what_it_is(mixed):
    found = results(mixed)
    assert set(found) == set(MIXED) - {"submission_8"}
    assert found["submission_3"]["extra_data"]["status"] == "unreadable"
    assert {test["score"] for test in found["submission_3"]["tests"]} == {0}
    lost = [test for test in found["submission_2"]["tests"] if test["status"] == "failed"]
    assert {test["extra_data"]["problem"] for test in lost} == {"strides.flat_index"}


def workers_of(command: Command) -> list[int]:
    """Return the pids of the workers of a run: forks of the grader that have a submission, and no zygote below them."""
    return [pid for pid in traces.descendants(command.process.pid) if traces.parent(pid) == command.process.pid][1:]


def zygotes_of(command: Command) -> list[int]:
    """Return the pids of the zygotes of a run's workers."""
    cells = next(pid for pid in traces.descendants(command.process.pid) if traces.parent(pid) == command.process.pid)
    return [pid for pid in traces.descendants(cells) if traces.parent(pid) == cells and traces.runs(pid)]


def test_one_cause_of_two_deaths_is_told_once():
    assert Lost("submission_1", ("ended", "ended")).why == "the worker ended while it graded this, twice"


def test_killed_at_any_point_nothing_is_lost_torn_or_graded_twice(shared, tree, mixed):
    """And the results are the same with one worker as with two."""
    out = shared / "killed-out"
    written: dict[str, int] = {}
    for seconds in (0.3, 1.1):
        with started("class", shared / "mixed", "--out", out, "--workers", 1, tree=tree) as command:
            count = len(written)
            assert traces.eventually(lambda count=count: len(files(out)) > count, 60)
            time.sleep(seconds)
            command.process.kill()
            command.end()
            assert traces.eventually(command.has_left_nothing)
        now = files(out)
        assert all(now[name] == written[name] for name in written if "submission_3" not in name)
        written = now
        results(out)  # each is whole
    code, printed, err = run("class", shared / "mixed", "--out", out, "--workers", 1, tree=tree)
    assert code == 0, err
    assert printed.count("are graded already") == 1  # not once more by each process that is forked after it
    now = files(out)
    assert all(now[name] == written[name] for name in written if "submission_3" not in name)
    assert results(out) == results(mixed)
    assert [path.name for path in out.rglob("*") if path.name.startswith(".")] == [".lock"]


def files(out: Path) -> dict[str, int]:
    """Return the results files, and which file of the disk each is: one that is written again is another."""
    return {path.parent.name: path.stat().st_ino for path in out.glob("results/*/results.json")}


@contextmanager
def on_hangup(handler: signal.Handlers) -> Iterator[None]:
    """Let what is started in the block take a closed terminal so, whichever way these tests themselves were started."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_ctrl_c_and_a_closed_terminal_leave_nothing_behind_and_say_how_to_go_on(shared, tree, number):
    folder = export(shared / "stopped", {"submission_1": SLOW, "submission_2": SLOW})
    with (
        on_hangup(signal.SIG_DFL),
        started("class", folder, "--out", shared / "stopped-out", "--workers", 2, tree=tree) as command,
    ):
        assert traces.eventually(lambda: len(workers_of(command)) == 2, 60)
        command.signal(number, whole_group=True)
        code, _, err = command.end()
        assert code == 128 + number and err.splitlines()[-1].startswith("class: stopped"), err
        assert "Traceback" not in err
        assert traces.eventually(command.has_left_nothing)


def test_under_nohup_a_closed_terminal_stops_and_costs_nothing(shared, tree):
    folder = export(shared / "nohup", {"submission_1": GOOD, "submission_2": GOOD})
    with (
        on_hangup(signal.SIG_IGN),
        started("class", folder, "--out", shared / "nohup-out", "--workers", 1, tree=tree) as command,
    ):
        assert traces.eventually(lambda: len(workers_of(command)) == 1, 60)
        command.signal(signal.SIGHUP, whole_group=True)
        code, _, err = command.end()
    assert code == 0 and "sandbox" not in err, err
    assert {line["Total Score"] for line in grades(shared / "nohup-out").values()} == {"13"}


def test_a_dead_worker_costs_only_its_own_submission_which_the_next_run_tries_again(shared, tree):
    """As it does with a submission that has been changed meanwhile, and with no other."""
    folder = export(shared / "dead", {"submission_1": SLOW, "submission_2": GOOD, "submission_3": GOOD})
    out = shared / "dead-out"
    with started("class", folder, "--out", out, "--workers", 1, tree=tree) as command:
        for victims in (zygotes_of, workers_of):
            assert traces.eventually(lambda: len(workers_of(command)) == 1, 60)
            (worker,), (victim,) = workers_of(command), victims(command)
            os.kill(victim, signal.SIGKILL)
            assert traces.eventually(lambda worker=worker, command=command: worker not in workers_of(command))
        code, _, err = command.end()
        how = "the worker ended with status 1 while it graded this, and the next one was ended by SIGKILL"
        assert code == 0 and f"submission_1: crashed: {how}" in err, err
        assert traces.eventually(command.has_left_nothing), "a zygote that is killed cannot remove its own folder"
    lines = grades(out)
    assert (lines["submission_1"]["Status"], lines["submission_1"]["Total Score"]) == ("crashed", "")
    assert (lines["submission_2"]["Status"], lines["submission_2"]["Total Score"]) == ("graded", "13")
    before = files(out)
    export(folder, {"submission_1": GOOD, "submission_2": GOOD, "submission_3": WRONG})
    shutil.rmtree(folder / "submission_2")
    code, printed, err = run("class", folder, "--out", out, tree=tree)
    assert code == 0 and "2 of 3 submissions graded" in printed, err
    lines = grades(out)
    assert [line["Total Score"] for line in lines.values()] == ["13", "", "12"], "a grade of files that are not there"
    assert lines["submission_2"]["Status"] == "no folder"
    assert files(out)["submission_2"] == before["submission_2"], "what was graded once is kept"


def test_a_second_run_on_one_folder_is_refused_and_names_the_first(shared, tree):
    folder = export(shared / "twice", {"submission_1": SLOW})
    with started("class", folder, "--out", shared / "twice-out", tree=tree) as first:
        assert traces.eventually(
            lambda: (shared / "twice-out" / ".lock").exists() and (shared / "twice-out" / ".lock").read_text() != ""
        )
        code, out, err = run("class", folder, "--out", shared / "twice-out", tree=tree)
        assert code == 2 and out == "" and len(err.splitlines()) == 1
        assert f"in use by process {first.process.pid} on " in err
        first.signal(signal.SIGTERM)
        code, _, err = first.end()
        assert code == 143, err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small file system")
def test_a_full_disk_stops_the_run_and_loses_nothing(shared, tree):
    out = shared / "full-out"
    out.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", out], capture_output=True).returncode:
        pytest.skip("this container may not mount a file system")
    try:
        folder = export(shared / "full", {f"submission_{i}": GOOD for i in range(1, 9)})
        code, _, err = run("class", folder, "--out", out, "--workers", 1, tree=tree)
        assert code == 2 and "No space left on device" in err.splitlines()[-1] and "Traceback" not in err, err
        kept = files(out)
        assert 0 < len(kept) < 8
        assert {found["extra_data"]["status"] for found in results(out).values()} == {"graded"}
        assert not list(out.rglob("*.json.*"))
        subprocess.run(["mount", "-o", "remount,size=8m", out], check=True)
        code, _, err = run("class", folder, "--out", out, "--workers", 1, tree=tree)
        assert code == 0, err
        assert {line["Total Score"] for line in grades(out).values()} == {"13"} and len(grades(out)) == 8
        assert kept.items() <= files(out).items()
    finally:
        subprocess.run(["umount", out], check=True)


def test_files_that_are_removed_meanwhile_stop_the_run_and_are_no_grade_of_0(shared, tree):
    folder, out = export(shared / "emptied", {f"submission_{i}": SLOW for i in range(1, 4)}), shared / "emptied-out"
    with started("class", folder, "--out", out, "--workers", 1, tree=tree) as command:
        assert traces.eventually(lambda: any(map(traces.runs_something, traces.students(command.process.pid))), 60)
        for i in (1, 2, 3):
            shutil.rmtree(folder / f"submission_{i}" / "student")
        code, _, err = command.end()
    assert code == 2 and "the export is not what it was when the run began: the files of" in err.splitlines()[-1], err
    assert not files(out)


@contextmanager
def disk(folder: Path, mib: int) -> Iterator[Path]:
    """Yield a disk of its own, of so many MiB."""
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("this container may not mount a file system")
    folder.chmod(0o1777)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_nobody_gets_a_grade_from_rows_that_ran_while_the_disk_of_temporary_files_was_full(shared, tree):
    folder = export(shared / "crowded", {f"submission_{i}": GOOD for i in range(1, 7)})
    out = shared / "crowded-out"
    with disk(shared / "crowded-tmp", 400) as temporary:
        arguments = "class", folder, "--out", out, "--workers", 1
        with started(*arguments, tree=tree, TMPDIR=str(temporary)) as command:
            assert traces.eventually(lambda: files(out), 60)
            with (temporary / "else").open("wb") as other:
                os.posix_fallocate(other.fileno(), 0, 300 << 20)
            code, _, err = command.end()
        assert code == 2 and "Traceback" not in err, err
        assert re.search("less than 256 MiB are free in .*crowded-tmp.*TMPDIR", err.splitlines()[-1]), err
        assert 0 < len(files(out)) < 6
        code, _, err = run(*arguments, tree=tree, TMPDIR=str(temporary))  # there is none at the start
        assert code == 2 and err.splitlines()[-1].startswith("class: less than 256 MiB are free in"), err
        (temporary / "else").unlink()
        code, _, err = run(*arguments, tree=tree, TMPDIR=str(temporary))
        assert code == 0, err
    assert {line["Total Score"] for line in grades(out).values()} == {"13"} and len(grades(out)) == 6


def test_an_export_that_is_replaced_meanwhile_stops_the_run(shared, tree):
    folder, out = export(shared / "moved", {f"submission_{i}": SLOW for i in range(1, 4)}), shared / "moved-out"
    with started("class", folder, "--out", out, "--workers", 1, tree=tree) as command:
        assert traces.eventually(lambda: (out / "students.json").exists(), 60)
        folder.rename(shared / "moved-away")
        code, _, err = command.end()
    assert code == 2 and "Traceback" not in err and "crashed" not in err, err
    assert "the export is not what it was when the run began" in err.splitlines()[-1]


def test_nobody_is_graded_if_the_reference_does_not_get_full_marks(shared):
    folder = shared / "broken"
    folder.mkdir()
    tree = small_tree(folder)
    solution = tree / "reference" / "strides.py"
    another_each_time = "def flat_index(*args, **kwargs):\n    return id(object())\n"
    solution.write_text(f"{reference('strides')}\n\n{another_each_time}", encoding="utf-8")
    code, _, err = run(
        "class", export(shared / "nobody", {"submission_1": GOOD}), "--out", shared / "nobody-out", tree=tree
    )
    assert code == 1 and err.startswith("class: the reference gets 12 of 13 points, so nobody is graded")
    assert not list((shared / "nobody-out").glob("results/*"))


@pytest.fixture(scope="module")
def hurried(shared) -> Path:
    """A grader that gives a submission little time: by that another version."""
    (shared / "hurried").mkdir()
    tree = small_tree(shared / "hurried")
    settings = tree / "autograder" / "settings.toml"
    text = settings.read_text(encoding="utf-8")
    settings.write_text(text.replace("total_seconds = 480", "total_seconds = 8"), encoding="utf-8")
    return tree


def test_grades_of_another_version_of_the_grader_are_not_mixed(shared, mixed, hurried):
    code, out, err = run("class", shared / "mixed", "--out", mixed, tree=hurried)
    assert code == 2 and "another version of the grader" in err and len(err.splitlines()) == 1


def test_who_runs_out_of_the_total_time_has_no_grade_and_is_tried_again(shared, hurried):
    folder, out = export(shared / "late", {"submission_1": SLOW}), shared / "late-out"
    code, printed, err = run("class", folder, "--out", out, tree=hurried)
    assert code == 2 and "0 of 1 submissions graded" in printed
    assert err.splitlines()[-1] == f"class: nobody has a grade: {out}/grades.csv says why"
    assert re.search(r"^submission_1: unfinished: \d+ of 15 tests were run within 8 seconds", err, re.MULTILINE), err
    (line,) = grades(out).values()
    assert (line["Status"], line["Total Score"], line["4.2 strides.flat_index"]) == ("unfinished", "", "")
    assert "within 8 seconds" in line["Why not graded"] and "within 8 seconds" in (out / "report.html").read_text()
    assert len((out / "canvas.csv").read_text().splitlines()) == 2
    assert pending(Files(folder), out, ["submission_1"], frozenset({PART})) == ["submission_1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere", "--out", "x"], "there is no folder"),
        (["mixed", "--out", "mixed"], "would be in the export"),
        (["x/results", "--out", "x"], "would be in the export"),
        (["mixed", "--out", "/dev/null/x"], "cannot write into"),
        (["mixed", "--out", "x", "--workers", "0"], "--help says more"),
        (["mixed"], "--help says more"),
        (["mixed", "--out", "x", "--partition", "cpu"], "say CLUSTER=slurm too"),
        (["mixed", "--out", "x", "--jobs", "2"], "say CLUSTER=slurm or CLUSTER=local too"),
        pytest.param(
            ["mixed", "--out", "x", "--device", "cuda"],
            "there is no GPU",
            marks=pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="there is one"),
        ),
    ],
)
def test_bad_input_is_refused(shared, tree, mixed, arguments, words):
    shutil.copytree(shared / "mixed", shared / "x" / "results", dirs_exist_ok=True)
    ours = ("nowhere", "mixed", "x", "x/results")
    arguments = [shared / argument if argument in ours else argument for argument in arguments]
    code, out, err = run("class", *arguments, tree=tree)
    assert code == 2 and words in err and "Traceback" not in err and out == ""
    assert len(err.splitlines()) == 1


def test_an_invented_class_is_the_same_for_the_same_seed(shared):
    for name in ("a", "b"):
        code, out, _ = run("synthetic", "--out", shared / name, "--students", 5, "--seed", 3)
        assert code == 0 and "5 invented submissions" in out
    first, second = (
        {path.relative_to(shared / name): path.read_bytes() for path in (shared / name).rglob("*") if path.is_file()}
        for name in ("a", "b")
    )
    assert first == second
    code, out, err = run("synthetic", "--out", shared / "a")
    assert code == 2 and "name a folder that is not there yet" in err and len(err.splitlines()) == 1
