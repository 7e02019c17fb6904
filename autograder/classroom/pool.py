"""A worker a core: forked from one warm parent, so that PyTorch, the suites and the reference's replies are there once.

The parent hands out one submission at a time and never runs one itself. A worker that dies costs the submission that it had: that one
is tried once more by a new worker, and then counts as crashed.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from autograder.classroom.cells import Cells
from autograder.sandbox import syscalls
from autograder.sandbox.client import Sandbox, SandboxBroken
from autograder.settings import load_settings
from autograder.terminal import STOPPING

_TRIES = 2
_TICK = 0.5  # seconds
_PATIENCE = 120  # seconds beyond the total for one submission: far more than the judge itself allows


class CannotGoOn(Exception):
    """Every further submission would meet the same: a full disk, no sandbox. What is graded is kept."""


@dataclass(frozen=True)
class Done:
    """A submission that a worker has dealt with."""

    id: str
    answer: dict[str, Any]  # what `work` returned


@dataclass(frozen=True)
class Lost:
    """A submission at which workers died, each time that it was tried."""

    id: str
    how: tuple[str, ...]  # each of them: "was ended by SIGKILL"

    @property
    def why(self) -> str:
        """What happened, in a line."""
        first, *others = dict.fromkeys(self.how)
        rest = "".join(f", and the next one {other}" for other in others) or ", twice"
        return f"the worker {first} while it graded this{rest}"


@dataclass
class _Worker:
    pid: int
    channel: socket.socket
    id: str | None = None
    since: float = 0.0


Work = Callable[[str, Sandbox], dict[str, Any]]


class Pool:
    """The workers."""

    def __init__(self, cells: Cells, work: Work, count: int) -> None:
        """Prepare to fork workers when there is work.

        Args:
            cells: where their sandboxes come from.
            work: called in a worker with a submission's id and the worker's sandbox; returns what is to be told, as JSON.
            count: workers.
        """
        self._cells = cells
        self._work = work
        self._count = count
        self._patience = load_settings().total_seconds + _PATIENCE  # then a worker that has not answered is killed
        self._workers: list[_Worker] = []
        gc.collect()
        gc.freeze()  # a collection in a worker would touch, and so copy, every page that is shared

    def results(self, ids: Iterable[str]) -> Iterator[Done | Lost | None]:
        """Yield what became of each id, in the order in which it happens, and None now and then.

        Raises:
            CannotGoOn: if there is no point in trying the others.
        """
        todo = deque(ids)
        deaths: dict[str, list[str]] = {}
        while todo or any(worker.id for worker in self._workers):
            while todo and len(self._workers) < self._count and self._start():
                pass
            for worker in self._workers:
                if worker.id is None and todo:
                    self._hand_out(worker, todo.popleft())
            yield None
            for worker in self._listen():
                id, message = worker.id, _hear(worker)
                worker.id = None
                assert id is not None
                if message is None:
                    own = deaths.setdefault(id, [])
                    own.append(self._bury(worker))
                    if len(own) < _TRIES:
                        todo.appendleft(id)
                    else:
                        yield Lost(id, tuple(own))
                elif "stop" in message:
                    raise CannotGoOn(message["stop"])
                else:
                    yield Done(id, message)

    def close(self) -> None:
        """End every worker at once: a result is written whole or not at all."""
        for worker in self._workers:
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
        while self._workers:
            self._bury(self._workers[0])

    def _start(self) -> bool:
        """Fork a worker; return whether there was a sandbox for it. One worker at least there must be."""
        try:
            sandbox = self._cells.sandbox()
        except SandboxBroken as error:
            if not self._workers:
                raise CannotGoOn(str(error)) from None
            print(f"{len(self._workers)} workers, for there is room for no more: {error}", file=sys.stderr)
            self._count = len(self._workers)
            return False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        sys.stdout.flush()  # else the worker would print it again
        # No order to stop may unwind the child into our frames.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        pid = os.fork()
        if pid == 0:
            try:
                _become_worker(parent)
                ours.close()
                for other in self._workers:
                    other.channel.close()
                self._cells.forget()
                _serve(theirs, sandbox, self._work)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        os.close(sandbox.hand_over()[1])  # the worker holds it now
        self._workers.append(_Worker(pid, ours))
        return True

    def _hand_out(self, worker: _Worker, id: str) -> None:
        worker.id, worker.since = id, time.monotonic()
        with suppress(OSError):  # a worker that has died meanwhile is found by `_listen`
            worker.channel.send(id.encode())

    def _listen(self) -> list[_Worker]:
        """Return the workers that have something to say, or have died, after waiting a moment for one."""
        busy = {worker.channel.fileno(): worker for worker in self._workers if worker.id}
        poll = select.poll()
        for fd in busy:
            poll.register(fd, select.POLLIN)
        ready = [busy[fd] for fd, _ in poll.poll(_TICK * 1000)]
        for worker in busy.values():
            if worker not in ready and time.monotonic() - worker.since > self._patience:
                os.kill(worker.pid, signal.SIGKILL)
        return ready

    def _bury(self, worker: _Worker) -> str:
        """Reap a worker that has ended and say how it did."""
        worker.channel.close()
        self._workers.remove(worker)
        try:
            code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        except ChildProcessError:
            return "ended"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"


class Alone:
    """No workers: this process grades, one submission after the other."""

    def __init__(self, cells: Cells, work: Work) -> None:
        self._cells = cells
        self._work = work
        self._sandbox: Sandbox | None = None

    def results(self, ids: Iterable[str]) -> Iterator[Done | Lost | None]:
        """Yield what became of each id, as a `Pool` does."""
        for id in ids:
            deaths: list[str] = []
            while len(deaths) < _TRIES:
                try:
                    self._sandbox = self._sandbox or self._cells.sandbox()
                    yield Done(id, self._work(id, self._sandbox))
                    break
                except SandboxBroken as error:
                    self.close()
                    deaths.append(f"lost its sandbox ({error})")
            else:
                yield Lost(id, tuple(deaths))

    def close(self) -> None:
        """End the sandbox."""
        if self._sandbox:
            self._sandbox.close()
        self._sandbox = None


def _hear(worker: _Worker) -> dict[str, Any] | None:
    """Return a worker's message; None: it has died."""
    try:
        data = worker.channel.recv(1 << 20)
        message: dict[str, Any] = json.loads(data)
    except (OSError, ValueError):
        return None
    return message


def _become_worker(parent: int) -> None:
    """Leave it to the parent to stop, and end when it does, however it ends."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _serve(channel: socket.socket, sandbox: Sandbox, work: Work) -> NoReturn:
    while id := channel.recv(4096):
        try:
            answer = work(id.decode(), sandbox)
        except CannotGoOn as error:
            answer = {"stop": str(error)}
        except SandboxBroken as error:  # a new worker has a new one
            print(f"{id.decode()}: {error}", file=sys.stderr)
            os._exit(1)
        channel.send(json.dumps(answer).encode())
    os._exit(0)


def cores() -> int:
    """Return how many cores this process may use: a container's quota counts, not what the machine has."""
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        if quota != "max":
            count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return count
