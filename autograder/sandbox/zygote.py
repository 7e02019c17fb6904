"""The process that all children are forked from.

Forked from the grader once PyTorch is warm and before a suite, the reference or a result was ever opened, so nothing in its
memory, or in a child's, is worth reading. It forks, kills, reaps and wipes; it never runs a line of student code, and it
alone reaps, so the pid of a child that has died is not used again while the grader still names it.

It speaks JSON over a SEQPACKET socket. To it: `load` a submission, fork a child (`fork`), `end` one. From it: `child` with three
descriptors, `loaded`, `ended`.
"""

import gc
import json
import os
import pickle
import select
import shutil
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from autograder.sandbox import child, cleanup, codec, landlock, limits, seccomp, syscalls
from autograder.sandbox.package import compiled
from autograder.sandbox.uids import UidRange

_COMPILE_SECONDS = 10.0
_MOST_CODE = 2 << 20
_GRACE = 0.2  # seconds between a closed pipe and the end of the process, which takes its memory down first


@dataclass(frozen=True)
class Features:
    """What this machine offers for keeping a child in."""

    landlock: bool
    seccomp: bool
    own_uid: bool  # the grader is root, so each child gets a uid of its own

    @classmethod
    def of_this_machine(cls) -> "Features":
        """Ask the kernel."""
        return cls(landlock.abi() > 0, seccomp.available(), os.geteuid() == 0)


@dataclass
class _Slot:
    """A folder that one child at a time lives in, with the rule set that lets it write there."""

    folder: Path
    rules: int | None = None
    busy: bool = False


class Zygote:
    """State of the forked process."""

    def __init__(
        self, control: socket.socket, root: Path, features: Features, uids: UidRange | None, ahead: int
    ) -> None:
        self._control = control
        self._root = root
        self._features = features
        self._uids = uids
        self._ahead = ahead  # children to keep ready
        self._submission: Path | None = None
        self._codes: dict[str, bytes] = {}
        self._slots: list[_Slot] = []
        self._live: dict[int, tuple[_Slot, int | None]] = {}
        self._filter = seccomp.Filter() if features.seccomp else None
        self._visible_gpus = os.environ.get("CUDA_VISIBLE_DEVICES")

    def main(self) -> NoReturn:
        """Serve until the grader closes its end, or dies: then end the children and remove every file."""
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        self._footprint = limits.Footprint.of_this_process()
        child.prepare()
        gc.freeze()
        try:
            while message := self._control.recv(65536):
                self._obey(json.loads(message))
        except ConnectionError:
            pass  # the grader closed its end while something was on the way
        finally:
            for pid in list(self._live):
                self._end(pid)
            shutil.rmtree(self._root.parent, ignore_errors=True)
        os._exit(0)

    def _obey(self, order: dict[str, Any]) -> None:
        if order["do"] == "load":
            for pid in list(self._live):
                self._end(pid)
            self._submission = Path(order["submission"])
            for slot in self._slots:
                self._forget_rules(slot)
            self._codes = self._compile()
            self._tell({"loaded": True})
            for _ in range(self._ahead):
                self._spawn()
        elif order["do"] == "fork":
            self._spawn(order["gpu"])
        elif order["do"] == "end":
            ending = self._end(order["pid"], order["dying"])
            if order["report"]:
                self._tell({"ended": order["pid"], **ending})
            if self._ahead and not order["last"]:
                self._spawn()

    def _tell(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self._control, [json.dumps(message).encode()], list(descriptors))

    def _fork(self, serve_codes: bool = True, gpu: bool = False) -> tuple[int, _Slot, int, int, int]:
        """Fork a child and return its pid, its slot and the grader's ends of its pipes."""
        slot = next((slot for slot in self._slots if not slot.busy), None) or self._new_slot()
        uid = self._uids.take() if self._uids else None
        assert self._submission is not None
        if gpu:
            self._forget_rules(slot)  # they are for children without
        if slot.rules is None and self._features.landlock:
            slot.rules = landlock.build([str(self._submission)], [str(slot.folder)], gpu)
        if uid is not None:
            os.chown(slot.folder, uid, uid)
        request_read, request_write = os.pipe()
        reply_read, reply_write = os.pipe()
        output_read, output_write = os.pipe()
        codes = self._codes if serve_codes else {}
        cell = child.Cell(
            slot.folder,
            self._submission,
            codes,
            uid,
            slot.rules,
            self._filter,
            self._footprint,
            os.getpid(),
            gpu,
            self._visible_gpus,
        )
        pid = syscalls.fork()
        if pid == 0:
            child.run(cell, child.Pipes(request_read, reply_write, output_write))
        if gpu:
            self._forget_rules(slot)  # and these for the one with
        for fd in (request_read, reply_write, output_write):
            os.close(fd)
        slot.busy = True
        self._live[pid] = slot, uid
        return pid, slot, request_write, reply_read, output_read

    def _spawn(self, gpu: bool = False) -> None:
        pid, slot, *ends = self._fork(gpu=gpu)
        self._tell({"child": pid, "folder": str(slot.folder), "gpu": gpu}, ends)
        for fd in ends:
            os.close(fd)

    def _new_slot(self) -> _Slot:
        slot = _Slot(self._root / f"child{len(self._slots)}")
        slot.folder.mkdir(mode=0o700)
        self._slots.append(slot)
        return slot

    def _forget_rules(self, slot: _Slot) -> None:
        if slot.rules is not None:
            os.close(slot.rules)
            slot.rules = None

    def _end(self, pid: int, dying: bool = False) -> dict[str, Any]:
        """Kill a child and whatever it started, reap it, wipe its folder, and say how it had ended by itself."""
        if pid not in self._live:  # a child of an earlier submission, ended by `load`
            return {"signal": None, "exit": None}
        slot, uid = self._live.pop(pid)
        by_itself, status = _reap(pid, grace=_GRACE if dying else 0)
        if not by_itself:
            for kill in (os.killpg, os.kill):  # its group, if it has come to have one
                with suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)
            _reap(pid, grace=None)
        if uid is not None:
            cleanup.kill_uid(uid, set(self._live))
            if not self._features.landlock:
                cleanup.sweep(uid)
        else:
            cleanup.kill_orphans(set(self._live))
        with suppress(OSError):  # a folder that cannot be emptied stays busy: no other child may find what is in it
            cleanup.empty(slot.folder)
            slot.busy = False
        if not by_itself:
            return {"signal": None, "exit": None}
        if os.WIFSIGNALED(status):
            return {"signal": os.WTERMSIG(status), "exit": None}
        return {"signal": None, "exit": os.WEXITSTATUS(status)}

    def _compile(self) -> dict[str, bytes]:
        """Let a locked child compile the submission; whatever goes wrong there, each child then compiles for itself."""
        assert self._submission is not None
        pid, _, requests, replies, output = self._fork(serve_codes=False)
        request = pickle.dumps(_Compile(self._submission))
        os.set_blocking(replies, False)
        with suppress(BrokenPipeError):  # it could not lock itself down: the next child will say why
            os.write(requests, child.REQUEST.pack(0, len(request)) + request)
        frame = b""
        deadline = time.monotonic() + _COMPILE_SECONDS
        codes: object = None
        while len(frame) < _MOST_CODE and (left := deadline - time.monotonic()) > 0:
            if not select.select([replies], [], [], left)[0]:
                break
            chunk = os.read(replies, 1 << 20)
            if not chunk:
                break
            frame += chunk
            frame = frame.removeprefix(child.READY)  # no frame begins with it: see codec.MAGIC
            if len(frame) >= codec.HEAD.size:
                with suppress(codec.BadFrame):
                    header, blobs = codec.frame_sizes(frame[: codec.HEAD.size], 0)
                    if len(frame) >= codec.HEAD.size + header + blobs:
                        codes = codec.loads(frame)
                        break
        for fd in (requests, replies, output):
            os.close(fd)
        self._end(pid)
        if not isinstance(codes, dict):
            return {}
        return {name: code for name, code in codes.items() if type(name) is str and type(code) is bytes}


@dataclass(frozen=True)
class _Compile:
    root: Path

    def __call__(self, lib: object) -> dict[str, bytes]:
        return compiled(self.root)


def _reap(pid: int, grace: float | None) -> tuple[bool, int]:
    """Wait `grace` seconds for the end of `pid` (None: for ever); return whether it has ended, and its status.

    Only an exit or a fatal signal is an end: a child that called PTRACE_TRACEME has made this process its tracer, and its
    stops come back from waitpid too.
    """
    deadline = None if grace is None else time.monotonic() + grace
    while True:
        ended, status = os.waitpid(pid, 0 if deadline is None else os.WNOHANG)
        if ended and not os.WIFSTOPPED(status):
            return True, status
        if deadline is not None:
            if time.monotonic() >= deadline:
                return False, 0
            time.sleep(0.002)
