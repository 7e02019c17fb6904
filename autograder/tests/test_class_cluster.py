"""The same class in jobs: of a real Slurm, and of this machine."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autograder.classroom.cluster import Cluster
from autograder.classroom.record import all_records
from autograder.tests import slurm, traces
from autograder.tests.classes import GOOD, SLOW, WRONG, export, grades, results
from autograder.tests.running import run, started

CLASS = {"submission_1": GOOD, "submission_2": SLOW, "submission_3": WRONG, "submission_4": {"hw.zip": b"cut"}}
SCORES = {"submission_1": "13", "submission_2": "12", "submission_3": "12", "submission_4": ""}


def scores(out: Path) -> dict[str, str]:
    return {id: line["Total Score"] for id, line in grades(out).items()}


@pytest.fixture(scope="module")
def cluster(shared) -> Iterator[dict[str, str]]:
    """A running Slurm."""
    if os.geteuid() != 0 or slurm.missing():
        if os.environ.get("CI"):  # there it is installed, so that nobody takes a skipped test for one that passed
            pytest.fail(f"Slurm is not there: {', '.join(slurm.missing()) or 'this is not root'}")
        pytest.skip(
            f"needs root and Slurm: {', '.join(slurm.missing())} (apt-get install slurmctld slurmd slurm-client munge)"
        )
    with slurm.cluster(shared / "slurm") as environment:
        yield environment


def test_a_slurm_array_of_which_a_job_is_killed_yields_every_grade(shared, tree, cluster):
    out = shared / "slurm-out"
    arguments = ["class", export(shared / "class", CLASS), "--out", out, "--cluster", "slurm", "--partition", "class"]
    with started(*arguments, "--jobs", 2, "--workers", 1, tree=tree, **cluster) as command:
        assert traces.eventually(lambda: (out / "jobs" / "running.json").exists(), 60)
        kind, first, second = json.loads((out / "jobs" / "running.json").read_text())
        assert kind == "slurm" and first.split("_")[0] == second.split("_")[0], "not one array"
        assert traces.eventually(lambda: len(queued(cluster, "RUNNING")) == 2, 60)
        # The second job has the submission that runs until its time is up.
        assert traces.eventually(lambda: any((out / "jobs").glob(f"{second}/*.out")), 60)
        subprocess.run(["scancel", "--signal=KILL", second], env={**os.environ, **cluster}, check=True)
        code, printed, err = command.end(180)
        assert code == 0, err
        assert traces.eventually(command.has_left_nothing)
    assert scores(out) == SCORES
    assert "3 of 4 submissions graded" in printed
    assert queued(cluster) == []
    assert len([path for path in (out / "jobs").iterdir() if path.is_dir() and path.name[0].isdigit()]) >= 3, (
        "nothing was handed out again"
    )


def queued(cluster: dict[str, str], state: str = "all") -> list[str]:
    command = ["squeue", "--noheader", "--array", "--format=%i", *(["--states", state] if state != "all" else [])]
    return subprocess.run(command, env={**os.environ, **cluster}, capture_output=True, text=True).stdout.split()


def test_a_run_that_is_killed_leaves_jobs_that_the_next_one_ends(shared, tree, cluster):
    out = shared / "again-out"
    arguments = [
        "class",
        export(shared / "again", {"submission_1": WRONG}),
        "--out",
        out,
        "--cluster",
        "slurm",
        "--workers",
        1,
    ]
    with started(*arguments, tree=tree, **cluster) as command:
        assert traces.eventually(lambda: (out / "jobs" / "running.json").exists(), 60)
        command.process.kill()
        command.end()
    old = queued(cluster)
    assert len(old) == 1
    code, _, err = run(*arguments, tree=tree, **cluster)
    assert code == 0, err
    assert scores(out) == {"submission_1": "12"} and queued(cluster) == []


def test_a_partition_that_there_is_not_is_refused_with_one_line(shared, tree, cluster):
    arguments = [
        "class",
        export(shared / "none", {"submission_1": GOOD}),
        "--out",
        shared / "none-out",
        "--cluster",
        "slurm",
    ]
    code, out, err = run(*arguments, "--partition", "nowhere", tree=tree, **cluster)
    assert code == 2 and len(err.splitlines()) == 1 and "invalid partition" in err.lower() and out == ""


def test_without_slurm_jobs_of_slurm_are_refused_with_one_line(shared, tree):
    arguments = [
        "class",
        export(shared / "none2", {"submission_1": GOOD}),
        "--out",
        shared / "none2-out",
        "--cluster",
        "slurm",
    ]
    code, out, err = run(*arguments, tree=tree, PATH="/nowhere")
    assert code == 2 and len(err.splitlines()) == 1 and out == "", err


def test_jobs_of_this_machine_yield_the_same_results_as_workers(shared, tree):
    folder = export(shared / "local", {id: CLASS[id] for id in ("submission_1", "submission_3", "submission_4")})
    for out, options in (
        (shared / "jobs-out", ["--cluster", "local", "--jobs", 2, "--workers", 1]),
        (shared / "workers-out", []),
    ):
        code, _, err = run("class", folder, "--out", out, *options, tree=tree)
        assert code == 0, err
    assert not (shared / "jobs-out" / "jobs").exists(), "logs of jobs that all went well are of no use"
    assert results(shared / "jobs-out") == results(shared / "workers-out")
    assert (shared / "jobs-out" / "grades.csv").read_text() == (shared / "workers-out" / "grades.csv").read_text()
    export(shared / "local", {"submission_3": GOOD})  # handed in anew: what stands there of it is no result of a job
    code, _, err = run("class", folder, "--out", shared / "jobs-out", "--cluster", "local", tree=tree)
    assert code == 0 and scores(shared / "jobs-out")["submission_3"] == "13", err


def test_what_no_job_came_to_grade_has_no_grade_and_what_is_left_of_jobs_goes_with_the_next_run(shared, tree):
    """Not the one of the files that it had before, either."""
    folder, out = export(shared / "dying", {"submission_1": GOOD}), shared / "dying-out"
    assert run("class", folder, "--out", out, tree=tree)[0] == 0
    export(folder, {"submission_1": SLOW})
    with started("class", folder, "--out", out, "--cluster", "local", "--workers", 1, tree=tree) as command:
        for _ in range(2):
            assert traces.eventually(lambda: graders(command.process.pid), 60)
            os.kill(graders(command.process.pid)[0], signal.SIGKILL)
            assert traces.eventually(lambda: not graders(command.process.pid), 30)
        code, _, err = command.end()
    assert code == 1 and "no result of 1 of 1 submissions" in err, err
    line = grades(out)["submission_1"]
    assert (line["Total Score"], line["Status"]) == ("", "not graded") and "run `make class` again" in line[
        "Why not graded"
    ]
    assert not all_records(out), "nor is there a grade for `make merge` and `make regrade`"
    # As a run that was killed leaves it; its job is any process that is called so.
    job = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "submitit"])
    (out / "jobs" / "running.json").write_text(json.dumps(["local", str(job.pid)]))
    (out / "jobs" / "part-1-0-0.txt").write_text("submission_1\n")
    export(folder, {"submission_1": GOOD})
    code, _, err = run("class", folder, "--out", out, tree=tree)
    assert code == 0 and scores(out) == {"submission_1": "13"}, err
    assert job.wait(1) == -signal.SIGTERM and not (out / "jobs").exists()


def graders(pid: int) -> list[int]:
    """Return the first process of each job's grader, below a run."""
    parts = {child for child in traces.descendants(pid) if b"\0--part\0" in command_line(child)}
    return [child for child in parts if traces.parent(child) not in parts]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_logs_are_kept_where_a_job_has_failed(shared):
    out = shared / "failed-out"
    out.mkdir()
    failing = ["sh", "-c", "echo what happened >&2; exit 3"]
    assert Cluster("local", None, 1, 1).run(out, ["submission_1"], lambda part: failing) == ["submission_1"]
    assert any("what happened" in path.read_text() for path in (out / "jobs").glob("*/*.err"))
    assert not [path for path in (out / "jobs").iterdir() if path.is_file()]


@pytest.mark.parametrize("processes", [0, 6], ids=["while they start", "while they grade"])
def test_ctrl_c_ends_jobs_of_this_machine_in_one_line(shared, tree, processes):
    folder, out = export(shared / "stopped", {"submission_1": SLOW}), shared / f"stopped-out{processes}"
    arguments = ["class", folder, "--out", out, "--cluster", "local", "--workers", 1]
    with started(*arguments, tree=tree) as command:
        assert traces.eventually(lambda: (out / "jobs" / "running.json").exists(), 60)
        assert traces.eventually(lambda: len(traces.descendants(command.process.pid)) >= processes, 60)
        command.signal(signal.SIGINT, whole_group=True)
        code, _, err = command.end(30)
        assert code == 130 and [line for line in err.splitlines() if " graded" not in line] == ["class: stopped"], err
        assert command.has_left_nothing()
