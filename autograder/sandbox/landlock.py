"""Landlock: what a child may open, whoever it runs as.

It may read Python, its packages and the submission, and write its own folder. So it can read neither the hidden tests nor the
reference, leave nothing for the next child, run no program and open no TCP port. Documentation: the kernel's
userspace-api/landlock.
"""

import ctypes
import glob
import os
import struct
import sys
from collections.abc import Iterable

from autograder.sandbox.syscalls import syscall

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446

# Rights on files, from <linux/landlock.h>; the number is the bit.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_CHAR, _MAKE_SOCK, _MAKE_BLOCK = 1 << 6, 1 << 9, 1 << 11
_ALL_OF_ABI_1 = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15  # ABI 2, 3, 5
_TCP_BIND_AND_CONNECT = 3  # ABI 4
_SCOPE_SOCKETS_AND_SIGNALS = 3  # ABI 6: no signal to, and no abstract socket of, a process outside

_SYSTEM = (
    *("/usr", "/lib", "/lib64", "/bin", "/sbin"),
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf"),
    *("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"),
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/sys"),
    *("/sys/devices/system", "/sys/fs/cgroup"),
)

# What CUDA opens besides, by patterns: in children on a GPU alone. The devices are written to.
_GPU = ("/dev/nvidia*", "/dev/nvidia-caps/*")
_GPU_READ = (
    "/proc/driver/nvidia",
    "/proc/devices",
    "/proc/modules",
    "/sys/bus/pci",
    "/sys/devices",
    "/sys/module/nvidia",
)


def abi() -> int:
    """Return the version that the kernel offers, 0 for none."""
    try:
        return syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    except OSError:
        return 0


def python_paths() -> list[str]:
    """Return the folders that this interpreter imports from, without the project's own."""
    packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    return sorted({os.path.realpath(path) for path in [sys.prefix, sys.base_prefix, *packages]})


def opens(path: str) -> bool:
    """Tell whether every child may read `path`: it lies in a system folder, or in the folder of the virtual environment."""
    real = os.path.realpath(path)
    folders = (os.path.realpath(folder) for folder in (*_SYSTEM, *python_paths()))
    return any(os.path.commonpath([real, folder]) == folder for folder in folders)


def build(readable: Iterable[str], writable: Iterable[str], gpu: bool = False) -> int:
    """Return the descriptor of a new rule set: system and Python folders and `readable` to read, `writable` to write.

    With `gpu`, NVIDIA's devices are open too.

    Building costs more than applying, so the zygote builds one a folder and its children share it.
    """
    version = abi()
    handled = _ALL_OF_ABI_1
    handled |= _REFER if version >= 2 else 0
    handled |= _TRUNCATE if version >= 3 else 0
    handled |= _IOCTL_DEV if version >= 5 else 0
    network = _TCP_BIND_AND_CONNECT if version >= 4 else 0
    scoped = _SCOPE_SOCKETS_AND_SIGNALS if version >= 6 else 0
    size = 8 if version < 4 else 16 if version < 6 else 24  # a kernel refuses fields that it does not know
    attributes = struct.pack("<QQQ", handled, network, scoped)[:size]
    rules = syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))

    read = _READ_FILE | _READ_DIR
    write = handled & ~(_EXECUTE | _MAKE_CHAR | _MAKE_BLOCK | _MAKE_SOCK)
    on_a_file = (_READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV) & handled
    if gpu:
        readable = [*readable, *_GPU_READ]
        writable = [*writable, *(path for pattern in _GPU for path in glob.glob(pattern))]
    for paths, rights in (([*_SYSTEM, *python_paths(), *readable], read), ([*writable, "/dev/null"], write)):
        for path in paths:
            try:
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:  # not every system has every path
                continue
            allowed = rights if os.path.isdir(path) else rights & on_a_file
            rule = struct.pack("<Qi", allowed, fd)
            syscall(_ADD_RULE, ctypes.c_int(rules), ctypes.c_int(1), rule, ctypes.c_uint32(0))
            os.close(fd)
    return rules


def restrict_self(rules: int) -> None:
    """Apply a rule set to the calling thread and all that come from it, for good. Needs NO_NEW_PRIVS."""
    syscall(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint32(0))
