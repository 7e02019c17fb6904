"""seccomp: which system calls a child may make.

The filter is a classic BPF program over `struct seccomp_data`: number at offset 0, architecture at 4, arguments from 16.
A deny list, since what PyTorch, OpenMP and glibc call differs between releases; what it must keep shut is listed by attack.
"""

import ctypes
import os
import struct
from collections.abc import Sequence

from autograder.sandbox.syscalls import ON_X86, PR_SET_DUMPABLE, PR_SET_PDEATHSIG, PR_SET_SECCOMP, prctl

_EPERM, _ENOSYS, _EOPNOTSUPP = 1, 38, 95
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ARCHITECTURE = 0xC000003E if ON_X86 else 0xC00000B7
_LAST_KNOWN = 462  # newer calls are unknown here, and so are x32's numbers, which begin at 2**30
_CLONE_THREAD = 0x00010000
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPES = 1, 1, 0xF
_MODE_FILTER = 2
_PID = -1  # stands in a program for the pid of the process that loads it

# Numbers on x86_64 and aarch64 (None: does not exist there), by the attack that each call would serve.
_DENIED: dict[str, dict[str, tuple[int | None, int | None]]] = {
    "look into another process, or change it": dict(
        ptrace=(101, 117), process_vm_readv=(310, 270), process_vm_writev=(311, 271), process_madvise=(440, 440),
        process_mrelease=(448, 448), kcmp=(312, 272), pidfd_open=(434, 434), pidfd_getfd=(438, 438),
        perf_event_open=(298, 241), move_pages=(279, 239), migrate_pages=(256, 238),
    ),
    "signal another process": dict(
        tkill=(200, 130), rt_sigqueueinfo=(129, 138), rt_tgsigqueueinfo=(297, 240), pidfd_send_signal=(424, 424),
    ),
    "start a process that outlives the test, or another program": dict(
        fork=(57, None), vfork=(58, None), execve=(59, 221), execveat=(322, 281),
    ),
    "talk to the network or to a service of this machine": dict(
        socket=(41, 198), connect=(42, 203), bind=(49, 200), listen=(50, 201),
    ),
    "change, or watch, the files of the grader's user that it cannot open: Landlock does not cover these": dict(
        chown=(92, None), fchown=(93, 55), lchown=(94, None), fchownat=(260, 54),
        setxattr=(188, 5), lsetxattr=(189, 6), fsetxattr=(190, 7), removexattr=(197, 14), lremovexattr=(198, 15),
        fremovexattr=(199, 16), truncate=(76, 45), inotify_init=(253, None), inotify_init1=(294, 26),
    ),
    "reach kernel code that filters do not see or that is often broken": dict(
        io_uring_setup=(425, 425), io_uring_enter=(426, 426), io_uring_register=(427, 427), bpf=(321, 280),
        userfaultfd=(323, 282), keyctl=(250, 219), add_key=(248, 217), request_key=(249, 218), personality=(135, 92),
        syslog=(103, 116), seccomp=(317, 277), remap_file_pages=(216, 234),
    ),
    "change the view of the file system": dict(
        unshare=(272, 97), setns=(308, 268), mount=(165, 40), umount2=(166, 39), pivot_root=(155, 41), chroot=(161, 51),
        open_tree=(428, 428), move_mount=(429, 429), fsopen=(430, 430), fsconfig=(431, 431), fsmount=(432, 432),
        fspick=(433, 433), mount_setattr=(442, 442), name_to_handle_at=(303, 264), open_by_handle_at=(304, 265),
        mknod=(133, None), mknodat=(259, 33), fanotify_init=(300, 262),
    ),
    "administer the machine": dict(
        init_module=(175, 105), finit_module=(313, 273), delete_module=(176, 106), kexec_load=(246, 104),
        kexec_file_load=(320, 294), reboot=(169, 142), swapon=(167, 224), swapoff=(168, 225), acct=(163, 89),
        quotactl=(179, 60),
    ),
    "leave a message for the next test": dict(
        shmget=(29, 194), shmat=(30, 196), shmctl=(31, 195), semget=(64, 190), semop=(65, 193), semctl=(66, 191),
        msgget=(68, 186), msgsnd=(69, 189), msgrcv=(70, 188), msgctl=(71, 187), mq_open=(240, 180), mq_unlink=(241, 181),
    ),
    "hold memory that no limit counts (6 GB went through memfd)": dict(memfd_create=(319, 279), memfd_secret=(447, 447)),
    "take CPU time from the grader": dict(
        setpriority=(141, 140), ioprio_set=(251, 30), sched_setscheduler=(144, 119), sched_setparam=(142, 118),
        sched_setattr=(314, 274),
    ),
}  # fmt: skip
# Denied for the same reason as chown (and locks, since they tell others something), but shutil.copy and honest code that writes a
# checkpoint make these calls on files of their own, so they are told that it went well. Nobody else is there to lock them out.
_PRETENDED: dict[str, tuple[int | None, int | None]] = dict(
    chmod=(90, None), fchmod=(91, 52), fchmodat=(268, 53), fchmodat2=(452, 452),
    utime=(132, None), utimes=(235, None), futimesat=(261, None), flock=(73, 32),
)  # fmt: skip
_CLONE, _CLONE3, _SOCKETPAIR, _FALLOCATE = (56, 220), (435, 435), (53, 199), (285, 47)
_KILL_CALL, _TGKILL = (62, 129), (234, 131)
_PRCTL, _PRLIMIT64, _SCHED_SETAFFINITY = (157, 167), (302, 261), (203, 122)
_FCNTL, _IOCTL, _UTIMENSAT = (72, 25), (16, 29), (280, 88)
_DENIED_PRCTL = (PR_SET_PDEATHSIG, PR_SET_DUMPABLE)  # surviving the zygote; becoming readable to others of this uid
# Having the kernel send a signal of one's choice to any process of the same user when a pipe can be read; making others wait;
# leaving a message at a file of the system for the next test.
_DENIED_FCNTL = (
    *(8, 10, 15, 1024, 1026),  # F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY
    *(5, 36, 1036, 1038),  # F_GETLK, F_OFD_GETLK, F_SET_RW_HINT, F_SET_FILE_RW_HINT
)
_PRETENDED_FCNTL = (6, 7, 37, 38)  # F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW
_DENIED_IOCTL = (0x5452, 0x8901, 0x8902)  # FIOASYNC, FIOSETOWN, SIOCSPGRP

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand
_PERMIT: Instruction = (_RETURN, 0, 0, _ALLOW)
_REFUSE: Instruction = (_RETURN, 0, 0, _ERRNO | _EPERM)
_PRETEND: Instruction = (_RETURN, 0, 0, _ERRNO | 0)
_LOAD_FIRST_ARGUMENT: Instruction = (_LOAD, 0, 0, 16)
_LOAD_SECOND_ARGUMENT: Instruction = (_LOAD, 0, 0, 24)


def program() -> list[Instruction]:
    """Return the filter; `load` puts the loading process's pid into it."""
    code: list[Instruction] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _ARCHITECTURE),
        (_RETURN, 0, 0, _KILL),  # int 0x80 and other ways to give the numbers another meaning
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 0, 1, _LAST_KNOWN + 1),
        (_RETURN, 0, 0, _ERRNO | _ENOSYS),
    ]

    def rule(numbers: tuple[int | None, int | None], *verdict: Instruction) -> None:
        number = numbers[0 if ON_X86 else 1]
        if number is not None:
            code.extend([(_EQUAL, 0, len(verdict), number), *verdict])

    for calls in _DENIED.values():
        for numbers in calls.values():
            rule(numbers, _REFUSE)
    for numbers in _PRETENDED.values():
        rule(numbers, _PRETEND)
    # Path.touch() makes the file only where setting its time to now (no times given) has failed.
    rule(_UTIMENSAT, (_LOAD, 0, 0, 32), (_EQUAL, 0, 1, 0), _REFUSE, _PRETEND)
    # glibc falls back from clone3, whose flags are behind a pointer, to clone, whose flags can be looked at.
    rule(_CLONE3, (_RETURN, 0, 0, _ERRNO | _ENOSYS))
    rule(_CLONE, _LOAD_FIRST_ARGUMENT, (_ANY_BIT, 0, 1, _CLONE_THREAD), _PERMIT, _REFUSE)  # threads, no processes
    for call in (_KILL_CALL, _TGKILL):  # os.abort() and raise() signal the process itself
        rule(call, _LOAD_FIRST_ARGUMENT, (_EQUAL, 0, 1, _PID), _PERMIT, _REFUSE)
    for call in (_PRLIMIT64, _SCHED_SETAFFINITY):
        rule(call, _LOAD_FIRST_ARGUMENT, (_EQUAL, 1, 0, 0), (_EQUAL, 0, 1, _PID), _PERMIT, _REFUSE)
    # A datagram socket can still send to any other by its name, pair or not.
    is_unix = (_LOAD_FIRST_ARGUMENT, (_EQUAL, 0, 4, _AF_UNIX))
    is_stream = (_LOAD_SECOND_ARGUMENT, (_AND, 0, 0, _SOCK_TYPES), (_EQUAL, 0, 1, _SOCK_STREAM))
    rule(_SOCKETPAIR, *is_unix, *is_stream, _PERMIT, _REFUSE)
    rule(_PRCTL, _LOAD_FIRST_ARGUMENT, *_none_of(_DENIED_PRCTL))
    locks = [step for value in _PRETENDED_FCNTL for step in ((_EQUAL, 0, 1, value), _PRETEND)]
    rule(_FCNTL, _LOAD_SECOND_ARGUMENT, *locks, *_none_of(_DENIED_FCNTL))
    rule(_IOCTL, _LOAD_SECOND_ARGUMENT, *_none_of(_DENIED_IOCTL))
    rule(_FALLOCATE, (_RETURN, 0, 0, _ERRNO | _EOPNOTSUPP))  # fills a disk faster than anyone looks; glibc then writes
    code.append(_PERMIT)
    return code


def _none_of(values: Sequence[int]) -> list[Instruction]:
    return [*((_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)), _PERMIT, _REFUSE]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class Filter:
    """The program as bytes, made once in the zygote."""

    def __init__(self) -> None:
        code = program()
        self._length = len(code)
        self._bytes = b"".join(struct.pack("<HBBI", *step[:3], 0 if step[3] == _PID else step[3]) for step in code)
        self._pids = [8 * i + 4 for i, step in enumerate(code) if step[3] == _PID]

    def load(self) -> None:
        """Filter the calling process's system calls, for good. Needs NO_NEW_PRIVS.

        Raises:
            OSError: if the kernel has no seccomp filters.
        """
        raw = bytearray(self._bytes)
        for place in self._pids:
            struct.pack_into("<I", raw, place, os.getpid())
        buffer = (ctypes.c_char * len(raw)).from_buffer(raw)
        prctl(PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(_Program(self._length, ctypes.addressof(buffer))))


def available() -> bool:
    """Tell whether this kernel takes filters: it then looks at the pointer and says EFAULT."""
    try:
        prctl(PR_SET_SECCOMP, _MODE_FILTER, None)
    except OSError as error:
        return error.errno == 14  # EFAULT
    return False
