"""Sandboxes for workers, from a process that has never held a secret.

A zygote must be forked before a suite or the reference is loaded, but a worker that dies takes its zygote along, and its successor
needs a new one. So a process is set aside first, warm and ignorant, from which zygotes are forked whenever one is wanted.
"""

import os
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from typing import NoReturn

from autograder.sandbox import syscalls
from autograder.sandbox.client import Sandbox, SandboxBroken, close_all_but
from autograder.terminal import STOPPING

_PATIENCE = 10.0  # seconds for zygotes to end their children and remove their files


class Cells:
    """The process, and what is asked of it. Make it before opening anything that students may not read."""

    def __init__(self, ahead: int) -> None:
        """Fork it.

        Args:
            ahead: children that each zygote keeps ready.
        """
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()  # else each process forked from it would print what is buffered here
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _serve(theirs, ahead)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        theirs.close()

    def sandbox(self) -> Sandbox:
        """Return a new sandbox.

        Raises:
            SandboxBroken: if there can be none.
        """
        try:
            self._control.send(b"sandbox")
            data, descriptors, _, _ = socket.recv_fds(self._control, 65536, 1)
        except OSError:
            data, descriptors = b"", []
        if not data:
            raise SandboxBroken("the process that sandboxes are forked from is gone")
        if not descriptors:
            raise SandboxBroken(data.decode())
        return Sandbox.adopt(data, descriptors[0])

    def forget(self) -> None:
        """In a worker: keep nothing of it."""
        self._control.close()

    def close(self) -> None:
        """Wait until every sandbox is gone, with its files. Their owners must have closed them, or ended."""
        self._control.close()
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _serve(control: socket.socket, ahead: int) -> NoReturn:
    """Make sandboxes until the other end is closed, then wait for their zygotes."""
    close_all_but(0, 1, 2, control.fileno())
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the grader decides what to do
    made: list[Sandbox] = []
    with suppress(ConnectionError):
        while control.recv(64):
            made = _not_buried(made)
            try:
                sandbox = Sandbox(ahead=ahead)
            except (SandboxBroken, OSError) as error:
                control.send(str(error).encode())
                continue
            made.append(sandbox)
            state, descriptor = sandbox.hand_over()
            socket.send_fds(control, [state], [descriptor])
            os.close(descriptor)
    until = time.monotonic() + _PATIENCE
    while (made := _not_buried(made)) and time.monotonic() < until:
        time.sleep(0.005)
    os._exit(0)


def _not_buried(made: list[Sandbox]) -> list[Sandbox]:
    """Bury the sandboxes whose zygotes have ended, and return the others."""
    return [sandbox for sandbox in made if not sandbox.buried()]
