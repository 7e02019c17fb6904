"""The few system calls that Python has no function for, through libc."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
_with_gil = ctypes.PyDLL(None, use_errno=True)  # a call through `libc` lets go of Python's lock meanwhile

ON_X86 = platform.machine() == "x86_64"  # else aarch64
SUPPORTED = platform.system() == "Linux" and platform.machine() in ("x86_64", "aarch64")

# prctl options, from <linux/prctl.h>
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

_CLOSE_RANGE = 436
_PRIO_USER = 2
_ESRCH = 3


def prctl(option: int, value: int = 0, pointer: object = None) -> None:
    """Make the system call prctl, or raise OSError."""
    third = ctypes.c_ulong(0) if pointer is None else pointer
    if libc.prctl(option, ctypes.c_ulong(value), third, ctypes.c_ulong(0), ctypes.c_ulong(0)) < 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}: {os.strerror(ctypes.get_errno())}")


def syscall(number: int, *arguments: object) -> int:
    """Make a system call by its number, or raise OSError."""
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"syscall {number}: {os.strerror(ctypes.get_errno())}")
    return result


def close_from(fd: int) -> None:
    """Close every file descriptor from `fd` up."""
    try:
        syscall(_CLOSE_RANGE, ctypes.c_uint(fd), ctypes.c_uint(0xFFFFFFFF), ctypes.c_uint(0))
    except OSError:  # kernels before 5.9
        os.closerange(fd, os.sysconf("SC_OPEN_MAX"))


def fork() -> int:
    """Fork a process of one thread, and only that: os.fork has Python's modules reset their locks in the child.

    A process without a second thread forks while nothing is locked, so there is nothing to reset; looking for it took 1.2 ms a child,
    since whatever is looked at is copied.
    """
    pid: int = _with_gil.fork()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "the system cannot make another process")
    return pid


def uid_runs(uid: int) -> bool:
    """Tell whether any process runs as `uid`: one call, where a scan of /proc reads a file a process."""
    ctypes.set_errno(0)
    return not (libc.getpriority(_PRIO_USER, uid) == -1 and ctypes.get_errno() == _ESRCH)


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that all threads of a process have used.

    The clock's number is made as glibc's clock_getcpuclockid makes it. Unlike /proc it needs no permission and no parsing.
    """
    import time

    return time.clock_gettime((~pid << 3) | 2)
