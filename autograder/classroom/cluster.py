"""A run in parts, as jobs of a Slurm cluster or, by the same code, as processes of this machine.

A job is `python -m autograder class` again, on the submissions that stand in a file, on one machine with some workers. What it yields are
results in the run's folder, on a file system that the machines share; nothing else comes back. A job that is killed leaves submissions
without results, which are handed out once more.
"""

import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from autograder.classroom.progress import Progressing
from autograder.classroom.record import Status, load
from autograder.terminal import STOPPING
from tests.submission import write_atomically

Kind = Literal["slurm", "local"]
_ROOT = Path(__file__).parents[2]
_SHARE = 100  # submissions a job, where nothing else is asked for
_ROUNDS = 2
_POLL = 2.0  # seconds between looks at the jobs and the folder
_HOURS = 4  # that a job may take; what it has not done then is handed out again
_PATIENCE = 30.0  # seconds for jobs of this machine to end
_GB = 2.5  # a worker: a child may hold 2 GiB


class NoCluster(Exception):
    """Jobs cannot be handed in here."""


@dataclass(frozen=True)
class Cluster:
    """Where jobs go, and what each gets."""

    kind: Kind
    partition: str | None
    jobs: int | None  # None: one for every hundred submissions, or one on this machine
    workers: int  # a job
    gpu: bool = False

    def run(self, folder: Path, ids: Sequence[str], command: Callable[[Path], list[str]]) -> list[str]:
        """Grade `ids` into `folder` by jobs, and return those that still have no result.

        Args:
            folder: of the run.
            ids: the submissions.
            command: makes the arguments of `python -m autograder` for a file with submissions, one a line.

        Raises:
            NoCluster: if jobs cannot be handed in.
        """
        place = _place(folder)
        place.mkdir(exist_ok=True)
        statuses: dict[str, Status] = {}
        left, rounds = list(ids), 0
        with Progressing(len(left)) as show:
            while left and rounds < _ROUNDS:
                statuses |= self._round(place, folder, left, command, show, f"{int(time.time())}-{rounds}")
                left, rounds = [id for id in left if id not in statuses], rounds + 1
        if not left and rounds <= 1 and not {"crashed", "grader failed"} & set(statuses.values()):
            remove_logs(folder)  # which say nothing that anybody wants to know
        return left

    def _round(
        self,
        place: Path,
        folder: Path,
        ids: list[str],
        command: Callable[[Path], list[str]],
        show: Progressing,
        name: str,
    ) -> dict[str, Status]:
        """Hand out the submissions once, wait for the jobs to end, and return the statuses of those that have a result then."""
        count = self.jobs or (math.ceil(len(ids) / _SHARE) if self.kind == "slurm" else 1)
        parts = []
        for i in range(min(count, len(ids))):
            part = place / f"part-{name}-{i}.txt"
            write_atomically(part, "".join(f"{id}\n" for id in ids[i::count]).encode())
            parts.append(part)
        jobs: Sequence[Any] = ()
        statuses: dict[str, Status] = {}
        try:
            # In the jobs too, to which a terminal sends it as well: it is us who end them.
            with _held_back(signal.SIGINT):
                jobs = self._submit(place, [command(part) for part in parts])
            write_atomically(place / "running.json", json.dumps([self.kind, *(job.job_id for job in jobs)]).encode())
            running = True
            while running and len(statuses) < len(ids):
                missing = len(ids) - len(statuses)
                time.sleep(max(_POLL, missing / 2000))  # a look is a file a submission, on a disk that others use too
                running = _any_running(self.kind, jobs)  # first: a job may write until it ends
                for id in ids:
                    if id not in statuses and (record := load(folder, id)):
                        statuses[id] = record.status
                        show.result(id, record.status, record.detail)
                show.tick()
        finally:
            with _held_back(*STOPPING):
                _cancel(self.kind, jobs)
                (place / "running.json").unlink(missing_ok=True)
                for part in parts:
                    part.unlink(missing_ok=True)
        return statuses

    def _submit(self, place: Path, commands: Sequence[list[str]]) -> Sequence[Any]:
        import submitit

        try:
            executor = submitit.AutoExecutor(folder=place / "%j", cluster=self.kind)
            executor.update_parameters(
                name="autograder",
                cpus_per_task=self.workers,
                mem_gb=math.ceil(1 + _GB * self.workers),
                timeout_min=60 * _HOURS,
                gpus_per_node=int(self.gpu),
                **({"slurm_partition": self.partition} if self.partition else {}),
            )
            functions = [submitit.helpers.CommandFunction(command, verbose=False, cwd=_ROOT) for command in commands]
            with redirect_stderr(io.StringIO()):  # sbatch's own lines: the last of them is in the exception
                return executor.submit_array(functions)
        except (RuntimeError, OSError, submitit.core.utils.FailedJobError) as error:
            raise NoCluster(f"no job could be handed in: {str(error).strip().splitlines()[-1]}") from None


def _place(folder: Path) -> Path:
    """Return where jobs are told what to do, and write their logs."""
    return folder.resolve() / "jobs"


def remove_logs(folder: Path) -> None:
    """Remove all that jobs have left."""
    shutil.rmtree(_place(folder), ignore_errors=True)


@contextmanager
def _held_back(*signals: signal.Signals) -> Iterator[None]:
    """Let signals wait until the `with` block ends; what is started in it never gets them, unless it asks for them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def command(*arguments: object) -> list[str]:
    """Return the command line of `python -m autograder` with these arguments."""
    return [sys.executable, "-m", "autograder", *map(str, arguments)]


def _any_running(kind: str, jobs: Sequence[Any]) -> bool:
    if kind == "local":
        return any(not job.done() for job in jobs)
    return bool(_queued({job.job_id.split("_")[0] for job in jobs}))


def _queued(ids: set[str]) -> list[str]:
    """Return which of these jobs Slurm has not ended. `sacct` would know, but needs a data base that not every cluster has."""
    ended = subprocess.run(
        ["squeue", "--noheader", "--array", "--format=%i", f"--jobs={','.join(sorted(ids))}"],
        capture_output=True,
        text=True,
    )
    if ended.returncode and "Invalid job id" not in ended.stderr:  # the controller is busy, or away for a moment
        return sorted(ids)
    return ended.stdout.split()


def _cancel(kind: str, jobs: Sequence[Any]) -> None:
    """End jobs that have not, and wait until they are gone."""
    if kind == "slurm":
        _cancel_slurm({job.job_id.split("_")[0] for job in jobs})
    else:
        until = time.monotonic() + _PATIENCE
        while (running := [job for job in jobs if not job.done()]) and time.monotonic() < until:
            for job in running:  # again and again: one that is just starting a process has passed nothing on to it
                _end_local(int(job.job_id))
            time.sleep(0.5)


def _cancel_slurm(ids: set[str]) -> None:
    if not ids:  # none could be handed in
        return
    subprocess.run(["scancel", *ids], capture_output=True)
    until = time.monotonic() + 60
    while _queued(ids) and time.monotonic() < until:
        time.sleep(0.2)


def _end_local(pid: int) -> bool:
    """End a job of this machine with all that it has started; return whether the process of that number still was one."""
    try:
        if b"submitit" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return False
        for child in _below(pid):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)  # the grader among them cleans up after itself
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError):
        return False
    return True


def _below(pid: int) -> list[int]:
    """Return the processes that a job runs: submitit's, and the grader that it started."""
    found, todo = [], [pid]
    for _ in range(3):
        todo = [
            int(child)
            for parent in todo
            if Path(f"/proc/{parent}/task/{parent}/children").exists()
            for child in Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split()
        ]
        found += todo
    return found


def end_jobs_of_a_killed_run(folder: Path) -> None:
    """End what a run has handed in that was killed: it would grade what the next one, in jobs or not, grades."""
    place = _place(folder)
    try:
        kind, *ids = json.loads((place / "running.json").read_bytes())
    except (OSError, ValueError):
        return
    if kind == "slurm":
        _cancel_slurm({id.split("_")[0] for id in ids})
    else:
        until = time.monotonic() + _PATIENCE
        while any([_end_local(int(id)) for id in ids]) and time.monotonic() < until:
            time.sleep(0.5)
    for path in (place / "running.json", *place.glob("part-*.txt")):
        path.unlink(missing_ok=True)
