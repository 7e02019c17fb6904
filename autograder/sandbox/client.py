"""The trusted side of the sandbox: hands probes to children, takes their replies, keeps their deadlines."""

import json
import os
import pickle
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from autograder.sandbox import cleanup, codec, syscalls, uids
from autograder.sandbox.child import READY, REQUEST
from autograder.sandbox.codec import RemoteError
from autograder.sandbox.limits import LIMITS
from autograder.sandbox.package import importing
from autograder.sandbox.zygote import Features, Zygote

# Looks through all of sys.modules for each module that a probe names: 2.5 ms of a probe's 3.
if hasattr(cloudpickle.cloudpickle, "_find_imported_submodules"):
    cloudpickle.cloudpickle._find_imported_submodules = lambda *_: []

_POLL = 0.05  # seconds between looks at a child's CPU clock
_WIPED_WITHIN = 3.0  # seconds from a child's end until its files are gone
_DISK_EVERY = 0.1  # seconds between looks at its folder
Probe = Callable[[Any], Any]


class SandboxBroken(Exception):
    """The sandbox itself failed: the grader's fault, never the student's."""


class NoRoom(Exception):
    """The disk is so full that student code could fail for it: nothing that it answers is a verdict on the student."""


@dataclass(frozen=True)
class Deadline:
    """How long an answer may take, in seconds."""

    cpu: float
    wall: float  # far above `cpu`: a busy machine must not cost points


IMPORT_DEADLINE = Deadline(cpu=5.0, wall=60.0)
GPU_IMPORT_DEADLINE = Deadline(cpu=60.0, wall=180.0)  # CUDA starts first


@dataclass(frozen=True)
class Reply:
    """What the probe returned, as `codec.decode` gives it."""

    value: Any


@dataclass(frozen=True)
class TimedOut:
    """No answer within the deadline."""

    waited: bool  # it was idle (asleep, or waiting for something) rather than computing


@dataclass(frozen=True)
class Died:
    """The process ended, or closed its pipe, without an answer."""

    signal: int | None
    exit_code: int | None


@dataclass(frozen=True)
class OverDisk:
    """It wrote more files than it may."""


@dataclass(frozen=True)
class Tampered:
    """Bytes arrived that an honest child never writes."""

    what: str


Outcome = Reply | RemoteError | TimedOut | Died | OverDisk | Tampered


class Sandbox:
    """A zygote and the children it keeps ready. Make it before opening anything that students may not read."""

    def __init__(self, features: Features | None = None, ahead: int = 2) -> None:
        """Fork the zygote.

        Args:
            features: what to use of this machine; None for all it has.
            ahead: children to keep locked and ready. Two hide the cost of a fork where there are cores for it.

        Raises:
            SandboxBroken: if there is no range of user ids, or no folder that children can reach.
        """
        self.features = features or Features.of_this_machine()
        self._ahead = ahead
        self._ready: deque[Child] = deque()
        self._on_gpu: deque[Child] = deque()
        self._coming = 0  # children that the zygote will send without being asked
        self._root = _make_root(self.features.own_uid)
        try:
            claimed = uids.claim() if self.features.own_uid else None
        except uids.NoRange as error:
            shutil.rmtree(self._root)
            raise SandboxBroken(str(error)) from None
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sys.stdout.flush()  # else each child would print what is buffered here
        self._pid = os.fork()
        if self._pid == 0:
            try:
                # The grader's own files, terminals and other sandboxes are nothing to this process or its children.
                close_all_but(0, 1, 2, theirs.fileno(), *([claimed.lock] if claimed else []))
                Zygote(theirs, self._root / "cells", self.features, claimed, ahead).main()
            except BaseException:
                traceback.print_exc()  # the grader only sees that it is gone
            finally:
                os._exit(1)
        theirs.close()
        if claimed:
            os.close(claimed.lock)  # the zygote holds it now
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)  # no /proc/<grader>/mem for children of the same user

    def hand_over(self) -> tuple[bytes, int]:
        """Give the sandbox away: return what `adopt` needs in another process, and a descriptor to send along and close."""
        state = {"root": str(self._root), "pid": self._pid, "ahead": self._ahead, "features": asdict(self.features)}
        return json.dumps(state).encode(), self._control.detach()

    @classmethod
    def adopt(cls, state: bytes, control: int) -> "Sandbox":
        """Return the sandbox that another process has handed over; that one waits for the zygote's end."""
        known = json.loads(state)
        self = cls.__new__(cls)
        self.features = Features(**known["features"])
        self._ahead = known["ahead"]
        self._ready, self._on_gpu = deque(), deque()
        self._coming = 0
        self._root = Path(known["root"])
        self._control = socket.socket(fileno=control)
        self._pid = known["pid"]
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        return self

    @property
    def staging(self) -> Path:
        """A folder that children can read, for the submission's files."""
        return self._root / "submission"

    def check_room(self, graders: int = 1) -> None:
        """Check that a child of each of so many graders finds the room that it may use: else its answers are the disk's.

        Raises:
            NoRoom: if there is less, also a while after the files of the last child should be gone.
        """
        until = time.monotonic() + _WIPED_WITHIN
        while _free_bytes(self._root) < graders * LIMITS.disk:
            if time.monotonic() > until:
                each = f", for each of {graders} workers," if graders > 1 else ""
                raise NoRoom(
                    f"less than {LIMITS.disk >> 20} MiB{each} are free in {self._root.parent}, and student code may use as much: "
                    "make room there, or name another folder in TMPDIR"
                )
            time.sleep(0.05)

    def load(self, submission: Path) -> None:
        """Serve children for the package in the folder `submission` from now on."""
        for child in self._ready:
            child.close_pipes()
        self._ready.clear()
        self._tell({"do": "load", "submission": str(submission)})
        while "loaded" not in self._hear():
            self._ready.pop().close_pipes()  # kept ready for the submission before; the zygote has ended it
        self._coming = self._ahead

    def child(self, part: str | None, device: str = "cpu") -> "Child":
        """Return a fresh child that is importing the student's module `part`; None: one that runs no student code.

        Args:
            part: the module.
            device: what it is made ready for. One for "cuda", and no other, may open the GPU.
        """
        gpu = device == "cuda"
        ready = self._on_gpu if gpu else self._ready
        if gpu or (not ready and not self._coming):
            self._tell({"do": "fork", "gpu": gpu})
        while not ready:
            self._hear()
        child = ready.popleft()
        if part is not None:
            child.send_pickled(pickle.dumps(importing(part, device)))  # nothing of it is the suites' own
        return child

    def end(self, pid: int, dying: bool = False, last: bool = False, gpu: bool = False) -> dict[str, Any]:
        """End a child, if it is `dying` already wait for it and return how it ended by itself."""
        # Without Landlock the next child could see what this one left outside its folder: it is swept away first.
        wait = dying or not self.features.landlock
        self._tell({"do": "end", "pid": pid, "dying": dying, "report": wait, "last": last or gpu})
        self._coming += bool(self._ahead and not last and not gpu)
        while wait:
            message = self._hear()
            if message.get("ended") == pid:
                return message
        return {}

    def close(self) -> None:
        """End everything and remove every file."""
        for child in self._ready:
            child.close_pipes()
        self._ready.clear()
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # a zygote forked later has a copy of this descriptor
        self._control.close()
        deadline = time.monotonic() + 5
        with suppress(ChildProcessError):  # it was adopted: who made it buries it
            while not self.buried():
                if time.monotonic() > deadline:
                    os.kill(self._pid, signal.SIGKILL)
                time.sleep(0.002)

    def buried(self) -> bool:
        """Where it was made: if the zygote has ended, reap it, remove what it could not if it was killed, and return True."""
        ended, _ = os.waitpid(self._pid, os.WNOHANG)
        if ended:
            cleanup.remove(self._root)
        return bool(ended)

    def _tell(self, message: dict[str, Any]) -> None:
        try:
            self._control.send(json.dumps(message).encode())
        except OSError as error:
            raise SandboxBroken(f"the sandbox's zygote is gone ({error})") from None

    def _hear(self) -> dict[str, Any]:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 65536, 3)
        except ConnectionResetError:  # it died before it read all that it was told
            data, descriptors = b"", []
        if not data:
            raise SandboxBroken("the sandbox's zygote is gone: was it killed for its memory?")
        message: dict[str, Any] = json.loads(data)
        if "child" in message:
            child = Child(self, message["child"], Path(message["folder"]), message["gpu"], *descriptors)
            if message["gpu"]:
                self._on_gpu.append(child)
            else:
                self._coming -= self._coming > 0
                self._ready.append(child)
        return message


class Child:
    """One locked process of the student's, seen from outside."""

    def __init__(
        self, sandbox: Sandbox, pid: int, folder: Path, gpu: bool, requests: int, replies: int, output: int
    ) -> None:
        self.pid = pid
        self._gpu = gpu
        self.printed = bytearray()
        self._sandbox = sandbox
        self._folder = folder
        self._requests, self._replies, self._output = requests, replies, output
        for fd in (requests, replies, output):
            os.set_blocking(fd, False)
        self._outbox = bytearray()
        self._inbox = bytearray()
        self._locked = False  # it has said READY, so from here on its end is the student's doing
        self._tickets: deque[int] = deque()
        self._cpu_before = 0.0  # CPU seconds when the last answer came
        self._next_look = 0.0
        self._free_before = _free_bytes(folder)
        self._open = {replies, output}
        self._ended = False

    def send(self, probe: Probe) -> None:
        """Put a probe to the child; `reply` takes the answers in the same order."""
        self.send_pickled(cloudpickle.dumps(probe))

    def send_pickled(self, request: bytes) -> None:
        """Put a probe that is pickled already to the child."""
        ticket = int.from_bytes(os.urandom(8), "little")  # a reply cannot be written before its request was read
        self._tickets.append(ticket)
        self._outbox += REQUEST.pack(ticket, len(request)) + request
        self._push()

    def reply(self, deadline: Deadline) -> Outcome:
        """Return the answer to the oldest open request. After anything but Reply and RemoteError the child is done for."""
        ticket = self._tickets.popleft()
        until = time.monotonic() + deadline.wall
        sizes: tuple[int, int] | None = None
        while True:
            if sizes is None and len(self._inbox) >= codec.HEAD.size:
                try:
                    sizes = codec.frame_sizes(bytes(self._inbox[: codec.HEAD.size]), ticket)
                except codec.BadFrame as error:
                    return Tampered(str(error))
            if sizes is not None and len(self._inbox) >= codec.HEAD.size + sum(sizes):
                return self._take(*sizes)
            if ended := self._pump(deadline, until):
                return ended

    def peak_memory(self) -> int:
        """Return the most bytes of memory that the process has held at once."""
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
        # The first line holds the process's name, which the student may choose; a line break in it is escaped.
        peak = next(line for line in status[1:] if line.startswith("VmHWM:"))
        return int(peak.split()[1]) << 10

    def close(self, last: bool = False) -> None:
        """End the child, if it has not ended; the zygote does so behind our back, and readies another unless this was the last."""
        if self._ended:
            return
        self._ended = True
        self._drain()
        self.close_pipes()
        self._sandbox.end(self.pid, last=last, gpu=self._gpu)

    def close_pipes(self) -> None:
        """Close our ends."""
        for fd in (self._requests, self._replies, self._output):
            os.close(fd)

    def _take(self, header: int, blobs: int) -> Outcome:
        start = codec.HEAD.size
        frame, self._inbox = self._inbox[: start + header + blobs], self._inbox[start + header + blobs :]
        with suppress(ProcessLookupError, OSError):
            self._cpu_before = syscalls.cpu_seconds(self.pid)
        try:
            value = codec.decode(bytes(frame[start : start + header]), frame[start + header :])
        except codec.BadFrame as error:
            return Tampered(str(error))
        return value if isinstance(value, RemoteError) else Reply(value)

    def _pump(self, deadline: Deadline, until: float) -> Outcome | None:
        """Move what can be moved for a moment; return why there will be no answer, if there will be none."""
        poll = select.poll()
        for fd in self._open:
            poll.register(fd, select.POLLIN)
        if self._outbox:
            poll.register(self._requests, select.POLLOUT)
        for fd, _ in poll.poll(_POLL * 1000):
            if fd == self._requests:
                self._push()
            elif fd == self._output:
                self._drain()
            elif not self._pull():
                return self._death()
        try:
            cpu = syscalls.cpu_seconds(self.pid) - self._cpu_before
        except OSError:
            return self._death()
        if cpu > deadline.cpu:
            return TimedOut(waited=False)
        now = time.monotonic()
        if now > until:
            return TimedOut(waited=cpu < deadline.cpu / 2)
        if now > self._next_look:
            used = cleanup.disk_usage(str(self._folder), LIMITS.entries)
            self._next_look = time.monotonic() + _DISK_EVERY
            if used > LIMITS.disk:
                return OverDisk()
            # Files that are unlinked but open are in no folder: when the disk runs full meanwhile, this child is the suspect.
            free = _free_bytes(self._folder)
            if free < LIMITS.disk and self._free_before - free > LIMITS.disk:
                return OverDisk()
        return None

    def _push(self) -> None:
        try:
            while self._outbox:
                del self._outbox[: os.write(self._requests, self._outbox)]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # shows as the end of the replies; polling a pipe that nobody reads would not wait
            self._outbox.clear()

    def _pull(self) -> bool:
        """Read replies; return whether there may be more."""
        try:
            data = os.read(self._replies, 1 << 20)
        except BlockingIOError:
            return True
        self._inbox += data
        if data and not self._locked:
            self._locked = True
            del self._inbox[: len(READY)]
        return bool(data)

    def _drain(self) -> None:
        """Take what was printed, keep its beginning, drop the rest."""
        with suppress(BlockingIOError):
            for _ in range(64):
                data = os.read(self._output, 1 << 16)
                if not data:
                    self._open.discard(self._output)
                    return
                self.printed += data[: LIMITS.output - len(self.printed)]

    def _death(self) -> Died:
        self._drain()
        self._ended = True
        ending = self._sandbox.end(self.pid, dying=True, gpu=self._gpu)
        self.close_pipes()
        if not self._locked:  # by no exit status, which a student can choose
            raise SandboxBroken(f"a child could not lock itself down: {self.printed.decode(errors='replace').strip()}")
        return Died(ending["signal"], ending["exit"])


def _make_root(for_other_users: bool) -> Path:
    """Make the folder that holds the children's folders and the submission, reachable by their users."""
    root = Path(tempfile.mkdtemp(prefix="accounting-grader-"))
    try:
        if for_other_users:
            root.chmod(0o711)
            for folder in root.parents:
                if not folder.stat().st_mode & 0o001:
                    raise SandboxBroken(
                        f"temporary files go to {root.parent}, which other users cannot enter: set TMPDIR"
                    )
        for name in ("cells", "submission"):
            (root / name).mkdir(mode=0o711)  # to be passed through, not listed
    except BaseException:
        shutil.rmtree(root)
        raise
    return root


def close_all_but(*kept: int) -> None:
    """Close every descriptor of this process but these."""
    low = 0
    for fd in sorted(kept):
        if fd > low:  # an empty range at 0 would be taken for all of them
            os.closerange(low, fd)
        low = fd + 1
    syscalls.close_from(low)


def _free_bytes(folder: Path) -> int:
    """Return how much an ordinary user may still write where `folder` is."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize
