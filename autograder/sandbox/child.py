"""A fork of the zygote: locks itself down, then answers probes until it is killed."""

import gc
import os
import pickle
import random
import resource
import signal
import struct
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch

from autograder.sandbox import codec, landlock, limits, seccomp, syscalls
from autograder.sandbox.package import Finder, Package

REQUEST = struct.Struct("<QI")  # ticket, length of the pickled probe that follows

# Descriptors of a child. Two pipes instead of one socket: a socket could carry descriptors to the grader.
_REQUESTS, _REPLIES, _RULES = 3, 4, 5

READY = b"R"  # written once locked, before student code runs: a death without it is the sandbox's fault
# What torch.empty returns is then the same garbage each time, instead of zeros by good luck: glibc fills what malloc hands out.
_M_PERTURB, _GARBAGE = -6, 0xA5

_SET_UP_FAILED = 98
_ORPHANED = 96
_PROJECT = os.path.realpath(Path(__file__).parents[2])


@dataclass(frozen=True)
class Cell:
    """All that a child needs to know, from the zygote."""

    folder: Path  # its own: working directory, home and temporary files
    submission: Path  # the student's package
    codes: Mapping[str, bytes]  # its modules that are compiled already
    uid: int | None  # None: the zygote is not root, so the child runs as the same user
    rules: int | None  # descriptor of a Landlock rule set; None: the kernel has none
    filter: seccomp.Filter | None
    footprint: limits.Footprint
    zygote: int  # pid
    gpu: bool = False  # it may open the GPUs that the grader may
    visible_gpus: str | None = None  # the grader's CUDA_VISIBLE_DEVICES


@dataclass(frozen=True)
class Pipes:
    """A child's ends."""

    requests: int
    replies: int
    output: int


def prepare() -> None:
    """Do once, in the zygote, what is the same for every child: each would have to copy the pages that it touches."""
    for number in range(1, signal.NSIG):
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file grown too large is an OSError in the student's code
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Ctrl-C, and the closing of a terminal, reach the whole group: the grader decides what to do.
    signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    os.umask(0o077)
    with suppress(OSError):  # the last capability's number depends on the kernel
        for capability in range(64):
            syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)
    os.environ.clear()
    os.environ.update(
        PATH="/usr/bin:/bin",
        LANG="C.UTF-8",
        USER="student",
        PYTHONDONTWRITEBYTECODE="1",
        OMP_NUM_THREADS="1",
        CUDA_VISIBLE_DEVICES="",
    )
    syscalls.libc.mallopt(_M_PERTURB, _GARBAGE)
    sys.dont_write_bytecode = True
    sys.argv[:] = sys.orig_argv[:] = ["student"]
    sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != _PROJECT]
    sys.modules["autograder"].__path__ = []  # what is loaded can be used, nothing more of it can be imported
    gc.set_threshold(10_000)  # collections that copy the zygote's pages are rare
    _settle()


def run(cell: Cell, pipes: Pipes) -> NoReturn:
    """Lock this process down and serve; never returns."""
    stage = "start"
    try:
        _keep_only(pipes, cell.rules)
        stage = "signals"
        _take_signals()
        stage = "limits"
        if cell.gpu:
            limits.apply(cell.footprint, cell.uid is not None, limits.GPU_LIMITS)
        else:
            limits.apply(cell.footprint, cell.uid is not None)
        _prefer_for_oom()
        stage = "user"
        if cell.uid is not None:
            _become(cell.uid)
        stage = "privileges"
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of user, which clears it
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)  # no ptrace and no /proc/<pid>/mem for others of this user
        if os.getppid() != cell.zygote:
            os._exit(_ORPHANED)
        stage = "folder"
        _move_in(cell)
        if cell.rules is not None:
            stage = "Landlock"
            landlock.restrict_self(_RULES)
            os.close(_RULES)
        if cell.filter is not None:
            stage = "seccomp"
            cell.filter.load()
        _write(READY)
    except BaseException as error:
        with suppress(BaseException):
            os.write(2, f"sandbox: {stage} failed: {error!r}\n".encode())
        os._exit(_SET_UP_FAILED)
    try:
        _serve(cell)
    finally:  # what a signal or a hostile exception raises must not unwind into the zygote's frames
        os._exit(1)


def _keep_only(pipes: Pipes, rules: int | None) -> None:
    """Leave the five descriptors of a child and close the rest: the zygote's socket, other children's pipes."""
    high = [os.dup(fd) for fd in (pipes.requests, pipes.replies, pipes.output)]
    spare = os.dup(rules) if rules is not None else None
    while min(high) <= _RULES or (spare is not None and spare <= _RULES):  # a low number would be overwritten below
        high = [os.dup(fd) for fd in high]
        spare = os.dup(spare) if spare is not None else None
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(high[2], 1)
    os.dup2(high[2], 2)
    os.dup2(high[0], _REQUESTS, inheritable=False)
    os.dup2(high[1], _REPLIES, inheritable=False)
    if spare is not None:
        os.dup2(spare, _RULES, inheritable=False)
    syscalls.close_from(_RULES + (spare is not None))


def _take_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.setsid()  # away from the terminal: no TIOCSTI, no Ctrl-C of its own


def _prefer_for_oom() -> None:
    """Be the first that the kernel ends when memory runs out, before the grader."""
    with suppress(OSError):
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # else /proc/self belongs to root
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(score, b"1000")
        os.close(score)


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (uid, uid, uid):
        raise PermissionError(f"still {os.getresuid()}, {os.getresgid()}")


def _move_in(cell: Cell) -> None:
    os.chdir(cell.folder)
    os.environ["HOME"] = os.environ["TMPDIR"] = str(cell.folder)
    if cell.gpu:
        if cell.visible_gpus is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = cell.visible_gpus
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # whatever PyTorch is told: products in float32 are to be that
    tempfile.tempdir = None
    sys.meta_path.insert(0, Finder(cell.submission, cell.codes))


def _serve(cell: Cell) -> NoReturn:
    package = Package("student")
    while True:
        ticket, length = REQUEST.unpack(_read(REQUEST.size))
        request = _read(length)
        with suppress(OSError):
            os.chdir(cell.folder)
        _settle()
        soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
        if soft < hard - 2:
            resource.setrlimit(resource.RLIMIT_CPU, (hard - 2, hard))
        try:
            parts = codec.encode(pickle.loads(request)(package), ticket)
        except BaseException as error:  # SystemExit and KeyboardInterrupt are the student's too
            parts = codec.encode_error(error, ticket)
        for stream in (sys.stdout, sys.stderr):
            with suppress(BaseException):
                stream.flush()
        _write(b"".join(parts))


def _settle() -> None:
    """Set what importing the student's module may have changed to where the reference finds it."""
    torch.set_default_dtype(torch.float32)
    if torch.get_default_device().type != "cpu":
        torch.set_default_device("cpu")
    torch.set_grad_enabled(True)
    torch.default_generator.manual_seed(0)  # torch.manual_seed formats the stack for each kind of accelerator: 2 ms
    random.seed(0)
    np.random.seed(0)


def _read(size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(_REQUESTS, min(size - len(data), 1 << 20))
        if not chunk:  # the grader is gone
            os._exit(0)
        data += chunk
    return bytes(data)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(_REPLIES, view) :]
