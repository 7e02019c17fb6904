"""What cheaters try, in children of real sandboxes, as root and as an ordinary user.

Each attack is refused, and succeeds once the walls that it names are taken away: so it is these that refuse it. Where several walls
stand in its way, each is enough alone.
"""

# An attack names the system call that it makes.
# ruff: noqa: PTH101, PTH102, PTH103, PTH104, PTH108, PTH109, PTH115, PTH116, PTH123, PTH208, PTH211

import ctypes
import fcntl
import mmap
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch

from autograder.sandbox import client, codec, landlock, limits, seccomp, syscalls
from autograder.sandbox.client import (
    IMPORT_DEADLINE,
    Deadline,
    Died,
    OverDisk,
    Reply,
    Sandbox,
    Tampered,
    TimedOut,
)
from autograder.sandbox.codec import RemoteError
from autograder.sandbox.zygote import Features
from autograder.tests.cells import WALLS, Grounds

MACHINE = Features.of_this_machine()
pytestmark = pytest.mark.skipif(not (MACHINE.landlock and MACHINE.seccomp), reason="this kernel lacks a wall")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a child can import no test

USER = 61_234
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    **{name: numbers for calls in seccomp._DENIED.values() for name, numbers in calls.items()},
    "clone": seccomp._CLONE,
    "clone3": seccomp._CLONE3,
    "tgkill": seccomp._TGKILL,
}
NUMBER = {name: numbers[0 if syscalls.ON_X86 else 1] for name, numbers in _NUMBERS.items()}


@pytest.fixture(scope="module")
def root_grounds():
    if os.geteuid() != 0:
        pytest.skip("needs root")
    grounds = Grounds()
    yield grounds
    grounds.close()


@pytest.fixture(scope="module")
def user_grounds():
    user = USER if os.geteuid() == 0 else None
    grounds = Grounds(user)
    try:
        assert grounds.facts
    except EOFError:
        pytest.skip("an ordinary user cannot read this repository")
    yield grounds
    grounds.close()


@pytest.fixture(params=["root", "user"])
def grounds(request):
    return request.getfixturevalue(f"{request.param}_grounds")


@pytest.fixture
def form(request):
    return request.node.callspec.params["grounds"]


def call(number, *arguments):
    """Make a system call, or raise OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if type(a) is int else a for a in arguments))
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


# Files


def read_the_reference(facts, lib):
    return Path(facts.reference).read_text()


def read_what_only_the_grader_may(facts, lib):
    return Path(facts.private).read_text()


def read_through_a_symbolic_link(facts, lib):
    os.symlink(facts.reference, "link")
    return Path("link").read_text()


def read_through_the_parent_folder(facts, lib):
    here = os.open(".", os.O_PATH | os.O_DIRECTORY)
    return os.read(os.open("../" * 20 + facts.reference, os.O_RDONLY, dir_fd=here), 100)


def read_through_proc_self_root(facts, lib):
    return Path(f"/proc/self/root{facts.reference}").read_text()


def reopen_a_path_descriptor(facts, lib):
    fd = os.open(facts.reference, os.O_PATH)
    return os.read(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY), 100)


def map_the_reference(facts, lib):
    with open(facts.reference, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        return bytes(view)


def link_a_file_into_the_folder(facts, lib):
    os.link(facts.results, "mine")
    return "linked"


def list_the_folder_of_the_reference(facts, lib):
    return os.listdir(facts.folder)


def overwrite_the_results(facts, lib):
    with open(facts.results, "r+") as file:
        return file.write(facts.secret)


def truncate_the_results(facts, lib):
    os.truncate(facts.results, len(facts.secret))
    return "truncated"


def open_the_results_to_all(facts, lib):
    mode = os.stat(facts.results).st_mode ^ 0o022
    os.chmod(facts.results, mode)  # seccomp pretends that it went well
    if os.stat(facts.results).st_mode != mode:
        raise PermissionError("unchanged")
    os.chmod(facts.results, 0o666)  # for the attacks that follow
    return "changed"


def make_the_results_old(facts, lib):
    before = os.stat(facts.results).st_mtime_ns
    time.sleep(0.02)  # file times are coarse
    os.utime(facts.results)
    if os.stat(facts.results).st_mtime_ns == before:
        raise PermissionError("unchanged")
    return "changed"


def leave_a_file_where_all_may_write(facts, lib):
    path = f"{facts.writable}/{os.getpid()}"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    os.unlink(path)
    return "left"


def move_a_file_out(facts, lib):
    Path("mine").write_text("x")
    os.rename("mine", f"{facts.writable}/{os.getpid()}")
    os.unlink(f"{facts.writable}/{os.getpid()}")
    return "moved"


def leave_a_file_in_tmp(facts, lib):
    path = f"/tmp/accounting-attack-{os.getpid()}"
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    os.unlink(path)
    return "left"


def leave_shared_memory(facts, lib):
    import _posixshmem

    name = f"/accounting-attack-{os.getpid()}"
    os.close(_posixshmem.shm_open(name, os.O_CREAT | os.O_RDWR, 0o600))
    _posixshmem.shm_unlink(name)
    return "left"


def change_the_submission(facts, lib):
    file = Path(lib.honest.__file__)
    file.write_text(file.read_text())
    return "changed"


def open_a_device(facts, lib):
    return os.open("/dev/ptmx", os.O_RDWR)


def open_a_setting_of_the_kernel(facts, lib):
    return os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)


# Other processes


def read_a_command_line(facts, lib):
    return Path(f"/proc/{facts.victim}/cmdline").read_bytes()


def read_an_environment(facts, lib):
    return Path(f"/proc/{facts.victim}/environ").read_bytes()


def list_open_files(facts, lib):
    return [os.readlink(f"/proc/{facts.victim}/fd/{fd}") for fd in os.listdir(f"/proc/{facts.victim}/fd")]


def stack_of(pid):
    line = next(line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if line.endswith("[stack]"))
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    return start, end - start


def read_memory(facts, lib):
    start, size = stack_of(facts.victim)
    with open(f"/proc/{facts.victim}/mem", "rb", buffering=0) as memory:
        memory.seek(start)
        return facts.secret.encode() in memory.read(size)


def read_memory_by_system_call(facts, lib):
    start, size = stack_of(facts.victim)
    buffer = ctypes.create_string_buffer(size)
    mine, theirs = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), size), (ctypes.c_ulong * 2)(start, size)
    call(NUMBER["process_vm_readv"], facts.victim, mine, 1, theirs, 1, 0)
    return facts.secret.encode() in buffer.raw


def read_its_own_maps(facts, lib):
    return Path("/proc/self/maps").read_text()[:100]


def trace(facts, lib):
    return call(NUMBER["ptrace"], 0x4206, facts.victim, 0, 0)  # PTRACE_SEIZE


def signal_a_process(facts, lib):
    os.kill(facts.victim, 0)
    return "permitted"


def signal_the_grader(facts, lib):
    os.kill(facts.grader, 0)
    return "permitted"


def signal_the_zygote(facts, lib):
    os.kill(os.getppid(), 0)
    return "permitted"


def signal_a_thread(facts, lib):
    return call(NUMBER["tgkill"], facts.victim, facts.victim, 0)


def name_a_process(facts, lib):
    return call(NUMBER["pidfd_open"], facts.victim, 0)


def limit_another(facts, lib):
    return resource.prlimit(facts.victim, resource.RLIMIT_CORE, (0, 0))


def slow_another_down(facts, lib):
    os.setpriority(os.PRIO_PROCESS, facts.victim, 19)
    return "slowed"


def move_another_to_one_processor(facts, lib):
    os.sched_setaffinity(facts.victim, os.sched_getaffinity(facts.victim))
    return "moved"


def schedule_another(facts, lib):
    os.sched_setscheduler(facts.victim, os.SCHED_BATCH, os.sched_param(0))
    return "scheduled"


def become_root(facts, lib):
    os.setresuid(0, 0, 0)
    return os.getuid()


# The network and other channels


def connect_by_tcp(facts, lib):
    return socket.create_connection(tuple(facts.stream_internet), 5).fileno()


def listen_by_tcp(facts, lib):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()


def send_by_udp(facts, lib):
    return socket.socket(type=socket.SOCK_DGRAM).sendto(b"answers", tuple(facts.datagram_internet))


def ask_by_netlink(facts, lib):
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).fileno()


def connect_to_a_named_socket(facts, lib):
    return socket.socket(socket.AF_UNIX).connect(facts.stream_unix)


def connect_to_an_abstract_socket(facts, lib):
    return socket.socket(socket.AF_UNIX).connect(facts.stream_abstract)


def send_from_a_pair_to_a_named_socket(facts, lib):
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"answers", facts.datagram_unix)


def send_from_a_pair_to_an_abstract_socket(facts, lib):
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"answers", facts.datagram_abstract)


def give_a_pair_a_name(facts, lib):
    return socket.socketpair()[0].bind(f"\0accounting-attack-{os.getpid()}")


def set_up_io_uring(facts, lib):
    return call(NUMBER["io_uring_setup"], 1, ctypes.create_string_buffer(120))


def leave_a_shared_segment(facts, lib):
    segment = call(NUMBER["shmget"], 0, 4096, 0o1600)
    return call(NUMBER["shmctl"], segment, 0, 0)  # IPC_RMID


def leave_a_message_queue(facts, lib):
    queue = call(NUMBER["msgget"], 0, 0o1600)
    return call(NUMBER["msgctl"], queue, 0, 0)


def leave_a_semaphore(facts, lib):
    semaphore = call(NUMBER["semget"], 0, 1, 0o1600)
    return call(NUMBER["semctl"], semaphore, 0, 0)


def leave_a_key(facts, lib):
    return call(NUMBER["add_key"], b"user", b"answers", b"42", 2, -2)


def hold_memory_in_a_file_of_no_folder(facts, lib):
    return os.memfd_create("answers")


def watch_a_folder(facts, lib):
    watch = call(NUMBER["inotify_init1"], 0)
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.inotify_add_watch(ctypes.c_int(watch), facts.folder.encode(), ctypes.c_uint32(0x20))


# Processes and privileges of its own


def fork(facts, lib):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return os.waitpid(pid, 0)


def fork_by_clone(facts, lib):
    pid = call(NUMBER["clone"], int(signal.SIGCHLD), 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return os.waitpid(pid, 0)


def fork_by_clone3(facts, lib):
    arguments = (ctypes.c_uint64 * 8)(0, 0, 0, 0, int(signal.SIGCHLD))
    pid = call(NUMBER["clone3"], arguments, 64)
    if pid == 0:
        os._exit(0)
    return os.waitpid(pid, 0)


def run_a_program(facts, lib):
    return subprocess.run(["/bin/echo", "run"], stdout=subprocess.PIPE, check=True).stdout


def become_a_program(facts, lib):
    os.execv("/bin/true", ["true"])


def spawn_a_program(facts, lib):
    return os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)[1] == 0 or 1 / 0


def become_readable(facts, lib):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(syscalls.PR_SET_DUMPABLE, 1, 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "prctl")
    return "readable"


def outlive_the_zygote(facts, lib):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(syscalls.PR_SET_PDEATHSIG, 0, 0, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "prctl")
    return "outlives"


def own_the_signals_of_a_pipe(facts, lib):
    return fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getpid())


def own_the_signals_of_a_reply(facts, lib):
    return fcntl.fcntl(4, 15, bytes(8))  # F_SETOWN_EX


def choose_the_signal_of_a_pipe(facts, lib):
    return fcntl.fcntl(os.pipe()[0], 10, int(signal.SIGKILL))  # F_SETSIG


def own_the_signals_of_a_socket(facts, lib):
    return fcntl.ioctl(socket.socketpair()[0], 0x8901, os.getpid().to_bytes(4, "little"))  # FIOSETOWN


def ask_for_signals_of_a_socket(facts, lib):
    return fcntl.ioctl(socket.socketpair()[0], 0x5452, b"\1\0\0\0")  # FIOASYNC


def lease_a_file(facts, lib):
    Path("file").touch()
    return fcntl.fcntl(os.open("file", os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)


def be_notified_of_a_folder(facts, lib):
    return fcntl.fcntl(os.open(".", os.O_RDONLY), fcntl.F_NOTIFY, 1)


_WHOLE_FILE = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)  # struct flock


def see_a_lock(facts, lib):
    """A lock on a file that all may read is seen by whoever asks, by its range and its owner."""
    file = os.open("file", os.O_RDWR | os.O_CREAT)
    fcntl.fcntl(file, fcntl.F_SETLK, _WHOLE_FILE)
    kind, *_ = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_OFD_GETLK, _WHOLE_FILE))
    return kind != fcntl.F_UNLCK


def wait_for_the_lock_of_another(facts, lib):
    first, second = (os.open("file", os.O_RDWR | os.O_CREAT) for _ in range(2))
    for lock in (
        lambda file: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB),
        lambda file: fcntl.fcntl(file, fcntl.F_OFD_SETLK, _WHOLE_FILE),
    ):
        lock(first)
        try:
            lock(second)
        except BlockingIOError:
            continue
        raise PermissionError("nobody holds a lock")
    return "locked"


def hint_at_a_files_life(facts, lib):
    """The hint stays with the file; older kernels take it from whoever can open that."""
    first, second = (os.open("file", os.O_RDWR | os.O_CREAT) for _ in range(2))
    fcntl.fcntl(first, 1036, (3).to_bytes(8, "little"))  # F_SET_RW_HINT
    return fcntl.fcntl(second, 1035, bytes(8)) == (3).to_bytes(8, "little")


@dataclass(frozen=True)
class Row:
    attack: object
    walls: str  # names of features; a number after Landlock's is the ABI that it needs
    refused_with: tuple = ("builtins.PermissionError",)
    forms: tuple = ("root", "user")

    def standing(self, form):
        """Return the walls of this attack that this machine and form have."""
        names = [wall.split(":") for wall in self.walls.split()]
        walls = [name for name, *abi in names if landlock.abi() >= int(abi[0] if abi else 0)]
        return [wall for wall in walls if form == "root" or wall != "own_uid"]


OS_ERROR = ("builtins.OSError",)  # EXDEV, ENOSYS
ROWS = [
    Row(read_the_reference, "landlock"),
    Row(read_what_only_the_grader_may, "landlock own_uid"),
    Row(read_through_a_symbolic_link, "landlock"),
    Row(read_through_the_parent_folder, "landlock"),
    Row(read_through_proc_self_root, "landlock"),
    Row(reopen_a_path_descriptor, "landlock"),
    Row(map_the_reference, "landlock"),
    Row(link_a_file_into_the_folder, "landlock", OS_ERROR),
    Row(list_the_folder_of_the_reference, "landlock"),
    Row(overwrite_the_results, "landlock"),
    Row(truncate_the_results, "landlock:3 seccomp"),
    Row(open_the_results_to_all, "seccomp own_uid"),
    Row(make_the_results_old, "seccomp"),
    Row(leave_a_file_where_all_may_write, "landlock"),
    Row(move_a_file_out, "landlock", OS_ERROR),
    Row(leave_a_file_in_tmp, "landlock"),
    Row(leave_shared_memory, "landlock"),
    Row(change_the_submission, "landlock own_uid"),
    Row(open_a_device, "landlock"),
    Row(open_a_setting_of_the_kernel, "landlock own_uid", forms=("root",)),
    Row(read_a_command_line, "landlock"),
    Row(read_an_environment, "landlock own_uid"),
    Row(list_open_files, "landlock own_uid"),
    Row(read_memory, "landlock own_uid"),
    Row(read_memory_by_system_call, "landlock seccomp own_uid"),
    Row(read_its_own_maps, "landlock"),
    Row(trace, "landlock seccomp own_uid"),
    Row(signal_a_process, "landlock:6 seccomp own_uid"),
    Row(signal_the_grader, "landlock:6 seccomp own_uid"),
    Row(signal_the_zygote, "landlock:6 seccomp own_uid"),
    Row(signal_a_thread, "landlock:6 seccomp own_uid"),
    Row(name_a_process, "seccomp"),
    Row(limit_another, "seccomp own_uid"),
    Row(slow_another_down, "seccomp own_uid"),
    Row(move_another_to_one_processor, "seccomp own_uid"),
    Row(schedule_another, "seccomp own_uid"),
    Row(become_root, "own_uid", forms=("root",)),
    Row(connect_by_tcp, "landlock:4 seccomp"),
    Row(listen_by_tcp, "landlock:4 seccomp"),
    Row(send_by_udp, "seccomp"),
    Row(ask_by_netlink, "seccomp"),
    Row(connect_to_a_named_socket, "seccomp"),
    Row(connect_to_an_abstract_socket, "landlock:6 seccomp"),
    Row(send_from_a_pair_to_a_named_socket, "seccomp"),
    Row(send_from_a_pair_to_an_abstract_socket, "landlock:6 seccomp"),
    Row(give_a_pair_a_name, "seccomp"),
    Row(set_up_io_uring, "seccomp"),
    Row(leave_a_shared_segment, "seccomp"),
    Row(leave_a_message_queue, "seccomp"),
    Row(leave_a_semaphore, "seccomp"),
    Row(leave_a_key, "seccomp"),
    Row(hold_memory_in_a_file_of_no_folder, "seccomp"),
    Row(watch_a_folder, "seccomp"),
    Row(fork, "seccomp"),
    Row(fork_by_clone, "seccomp"),
    Row(fork_by_clone3, "seccomp", OS_ERROR),
    Row(run_a_program, "landlock seccomp"),
    Row(become_a_program, "landlock seccomp"),
    Row(spawn_a_program, "landlock seccomp"),
    Row(become_readable, "seccomp"),
    Row(outlive_the_zygote, "seccomp"),
    Row(own_the_signals_of_a_pipe, "seccomp"),
    Row(own_the_signals_of_a_reply, "seccomp"),
    Row(choose_the_signal_of_a_pipe, "seccomp"),
    Row(own_the_signals_of_a_socket, "seccomp"),
    Row(ask_for_signals_of_a_socket, "seccomp"),
    Row(lease_a_file, "seccomp"),
    Row(be_notified_of_a_folder, "seccomp"),
    Row(see_a_lock, "seccomp"),
    Row(wait_for_the_lock_of_another, "seccomp"),
    Row(hint_at_a_files_life, "seccomp"),
]


def _setting(name):
    try:
        return int(Path("/proc/sys/kernel", name).read_text())
    except OSError:
        return 0


# Where the machine itself refuses the attack, taking our walls away shows nothing.
REFUSED_ANYWAY = {
    "trace": _setting("yama/ptrace_scope"),
    "read_memory": _setting("yama/ptrace_scope"),
    "read_memory_by_system_call": _setting("yama/ptrace_scope"),
    "set_up_io_uring": _setting("io_uring_disabled"),
}


def succeeded(row, outcome):
    if isinstance(outcome, RemoteError):
        # This kernel does not have what is attacked, or came as far as looking for the memory.
        return "[Errno 38]" in outcome.message or (row.attack is set_up_io_uring and "[Errno 12]" in outcome.message)
    if row.attack is become_a_program:
        return outcome == Died(None, 0)
    return isinstance(outcome, Reply) and outcome.value is not False


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.attack.__name__)
def test_an_attack_is_refused_by_each_of_its_walls(grounds, form, row):
    if form not in row.forms:
        pytest.skip("as this user the attack is no attack")

    def refused(outcome):
        return isinstance(outcome, RemoteError) and set(row.refused_with) & set(outcome.type_names)

    outcome = grounds.attack(row.attack)
    assert refused(outcome), outcome
    walls = row.standing(form)
    assert walls
    if form == "root" and len(walls) > 1:
        for wall in walls:
            outcome = grounds.attack(row.attack, without=tuple(other for other in WALLS if other != wall))
            assert refused(outcome), (wall, outcome)
    if not REFUSED_ANYWAY.get(row.attack.__name__):
        outcome = grounds.attack(row.attack, without=tuple(walls) if len(walls) < 2 else WALLS)
        assert succeeded(row, outcome), outcome


def test_the_grader_of_the_same_user_cannot_be_read_whatever_walls_are_missing(user_grounds):
    for name in ("mem", "environ", "maps", "fd"):

        def peek(facts, lib, name=name):
            return os.open(f"/proc/{facts.grader}/{name}", os.O_RDONLY)

        outcome = user_grounds.attack(peek, without=WALLS)
        assert isinstance(outcome, RemoteError) and outcome.type_names[0] == "builtins.PermissionError"
        assert isinstance(user_grounds.attack(lambda facts, lib: os.getppid() and peek(facts, lib)), RemoteError)


def test_a_pipe_cannot_stop_another_process(user_grounds):
    victim = user_grounds.facts.victim

    def stop(facts, lib):
        reading, writing = os.pipe()
        fcntl.fcntl(reading, fcntl.F_SETOWN, facts.victim)
        fcntl.fcntl(reading, 10, int(signal.SIGSTOP))
        fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC)
        return os.write(writing, b"x")

    def stopped():
        time.sleep(0.05)
        state = Path(f"/proc/{victim}/stat").read_text().rsplit(")", 1)[1].split()[0]
        os.kill(victim, signal.SIGCONT)
        return state == "T"

    assert isinstance(user_grounds.attack(stop, without=("landlock",)), RemoteError)
    assert not stopped()
    if landlock.abi() >= 6:
        assert isinstance(user_grounds.attack(stop, without=("seccomp",)), Reply)
        assert not stopped()
    if os.geteuid() == 0:  # else SIGCONT cannot be sent
        assert isinstance(user_grounds.attack(stop, without=WALLS), Reply)
        assert stopped()


# The filter itself, rule by rule


def verdict(program, number, *arguments, architecture=seccomp._ARCHITECTURE):
    """Run the filter as the kernel does."""
    data = {0: number & 0xFFFFFFFF, 4: architecture}
    for i in range(6):
        data[16 + 8 * i] = (arguments[i] if i < len(arguments) else 0) & 0xFFFFFFFF
    accumulator, place = 0, 0
    for _ in range(len(program)):
        code, yes, no, operand = program[place]
        place += 1
        if code == seccomp._RETURN:
            return operand
        if code == seccomp._LOAD:
            accumulator = data[operand]
        elif code == seccomp._AND:
            accumulator &= operand
        else:
            holds = {
                seccomp._EQUAL: accumulator == operand & 0xFFFFFFFF,
                seccomp._AT_LEAST: accumulator >= operand,
                seccomp._ANY_BIT: bool(accumulator & operand),
            }[code]
            place += yes if holds else no
    raise AssertionError("the filter does not end")


PERMIT, REFUSE, UNKNOWN = seccomp._ALLOW, seccomp._ERRNO | seccomp._EPERM, seccomp._ERRNO | seccomp._ENOSYS
ME = seccomp._PID


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request, monkeypatch):
    monkeypatch.setattr(seccomp, "ON_X86", request.param == "x86_64")
    return 0 if request.param == "x86_64" else 1


def test_every_denied_call_is_refused_and_permitted_once_its_rule_is_gone(machine, monkeypatch):
    program = seccomp.program()
    for why, calls in seccomp._DENIED.items():
        for name, numbers in calls.items():
            if numbers[machine] is not None:
                assert verdict(program, numbers[machine]) == REFUSE, name
                monkeypatch.setitem(seccomp._DENIED, why, {k: v for k, v in calls.items() if k != name})
                assert verdict(seccomp.program(), numbers[machine]) == PERMIT, name
                monkeypatch.setitem(seccomp._DENIED, why, calls)


def test_what_honest_code_does_to_its_own_files_is_only_pretended(machine, monkeypatch):
    for name, numbers in list(seccomp._PRETENDED.items()):
        if numbers[machine] is not None:
            assert verdict(seccomp.program(), numbers[machine]) == seccomp._ERRNO | 0, name
            monkeypatch.delitem(seccomp._PRETENDED, name)
            assert verdict(seccomp.program(), numbers[machine]) == PERMIT, name


def test_what_pytorch_needs_is_permitted(machine):
    program = seccomp.program()
    needed = dict(read=(0, 63), write=(1, 64), mmap=(9, 222), munmap=(11, 215), futex=(202, 98), openat=(257, 56))
    for name, numbers in needed.items():
        assert verdict(program, numbers[machine]) == PERMIT, name


@pytest.mark.parametrize(
    ("call", "arguments", "expected"),
    [
        ("_CLONE", (0x003D0F00,), PERMIT), ("_CLONE", (17,), REFUSE), ("_CLONE", (0x4011,), REFUSE),
        ("_CLONE", (1 << 16 << 32 | 17,), REFUSE), ("_CLONE3", (0,), UNKNOWN),
        ("_KILL_CALL", (ME, 6), PERMIT), ("_KILL_CALL", (0, 9), REFUSE), ("_KILL_CALL", (1, 0), REFUSE),
        ("_TGKILL", (ME, ME, 6), PERMIT), ("_TGKILL", (5, ME, 6), REFUSE),
        ("_PRLIMIT64", (0, 7), PERMIT), ("_PRLIMIT64", (ME, 7), PERMIT), ("_PRLIMIT64", (5, 7), REFUSE),
        ("_SCHED_SETAFFINITY", (0,), PERMIT), ("_SCHED_SETAFFINITY", (ME,), PERMIT), ("_SCHED_SETAFFINITY", (5,), REFUSE),
        ("_SOCKETPAIR", (1, 1), PERMIT), ("_SOCKETPAIR", (1, 1 | 0o2000000), PERMIT), ("_SOCKETPAIR", (2, 1), REFUSE),
        ("_SOCKETPAIR", (1, 2), REFUSE), ("_SOCKETPAIR", (1, 5), REFUSE), ("_SOCKETPAIR", (1, 3 | 0o2000000), REFUSE),
        ("_PRCTL", (1, 0), REFUSE), ("_PRCTL", (4, 1), REFUSE), ("_PRCTL", (15,), PERMIT), ("_PRCTL", (38, 1), PERMIT),
        *(("_FCNTL", (4, command), REFUSE) for command in (5, 8, 10, 15, 36, 1024, 1026, 1036, 1038)),
        *(("_FCNTL", (4, command), seccomp._ERRNO | 0) for command in (6, 7, 37, 38)),
        *(("_FCNTL", (4, command), PERMIT) for command in (0, 1, 2, 3, 4, 1030, 1031)),
        *(("_IOCTL", (4, command), REFUSE) for command in (0x5452, 0x8901, 0x8902)), ("_IOCTL", (1, 0x5401), PERMIT),
        ("_UTIMENSAT", (-100, 99, 0, 0), REFUSE), ("_UTIMENSAT", (-100, 99, 99, 0), seccomp._ERRNO | 0),
        ("_FALLOCATE", (5,), seccomp._ERRNO | seccomp._EOPNOTSUPP),
    ],
    ids=str,
)  # fmt: skip
def test_a_call_is_judged_by_its_arguments(machine, call, arguments, expected):
    number = getattr(seccomp, call)[machine]
    assert verdict(seccomp.program(), number, *arguments) == expected


def test_numbers_of_another_meaning_are_not_looked_up(machine):
    program = seccomp.program()
    for architecture in (0x40000003, 0x40000028, 0):  # i386, arm
        assert verdict(program, 39, architecture=architecture) == seccomp._KILL
    for number in (seccomp._LAST_KNOWN + 1, 0x40000000, 0x40000000 + 56, 0x40000000 + 520, -1):  # x32
        assert verdict(program, number) == UNKNOWN
    assert verdict(program, seccomp._LAST_KNOWN) == PERMIT


@pytest.mark.parametrize(
    ("header", "pattern", "machine"),
    [("x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(\w+) (\d+)", 0),
     ("asm-generic/unistd.h", r"#define __NR(?:3264)?_(\w+) (\d+)", 1)],
)  # fmt: skip
def test_the_numbers_are_those_of_the_kernels_headers(header, pattern, machine):
    import re

    path = Path("/usr/include", header)
    if not path.exists():
        pytest.skip("no kernel headers here")
    known = {name: int(number) for name, number in re.findall(pattern, path.read_text())}
    known = {name.removeprefix("3264_"): number for name, number in known.items()}
    named = dict(clone=seccomp._CLONE, clone3=seccomp._CLONE3, kill=seccomp._KILL_CALL, tgkill=seccomp._TGKILL,
                 socketpair=seccomp._SOCKETPAIR, prctl=seccomp._PRCTL, prlimit64=seccomp._PRLIMIT64,
                 sched_setaffinity=seccomp._SCHED_SETAFFINITY, fcntl=seccomp._FCNTL, ioctl=seccomp._IOCTL,
                 utimensat=seccomp._UTIMENSAT, fallocate=seccomp._FALLOCATE)  # fmt: skip
    for name, numbers in [
        *named.items(),
        *seccomp._PRETENDED.items(),
        *(item for calls in seccomp._DENIED.values() for item in calls.items()),
    ]:
        if name in known:
            assert numbers[machine] == known[name], name


@pytest.mark.skipif(not syscalls.ON_X86, reason="x86 only")
def test_the_calls_of_32_bits_end_the_process(grounds):
    def int_0x80(facts, lib):
        code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        code.write(b"\xb8\x14\0\0\0\xcd\x80\xc3")  # mov eax, 20 (getpid); int 0x80; ret
        return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))() == os.getpid()

    assert grounds.attack(int_0x80) == Died(int(signal.SIGSYS), None)
    assert grounds.attack(int_0x80, without=("seccomp",)) in (Reply(True), Died(int(signal.SIGSEGV), None))


@pytest.mark.skipif(not syscalls.ON_X86, reason="x86 only")
def test_the_calls_of_x32_are_unknown(grounds):
    def x32(facts, lib):
        return call(0x40000000 + 39)

    outcome = grounds.attack(x32)
    assert "[Errno 38]" in outcome.message


def test_every_denied_call_is_refused_inside_a_child(grounds):
    def try_all(facts, lib):
        libc = ctypes.CDLL(None, use_errno=True)
        errors = {}
        for name, number in NUMBER.items():
            if number is not None and name not in (
                "fork",
                "vfork",
                "clone",
                "tgkill",
            ):  # would do something with such arguments
                ctypes.set_errno(0)
                libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)
                errors[name] = ctypes.get_errno()
        return errors

    errors = grounds.attack(try_all).value
    assert errors.pop("clone3") == 38
    assert set(errors.values()) == {1}, {name: error for name, error in errors.items() if error != 1}
    # Without the filter the kernel looks at the arguments, at least where it asks for no privilege first.
    errors = grounds.attack(try_all, without=("seccomp",)).value
    assert sum(error == 1 for error in errors.values()) < len(errors) / 2


# Ends


def close_the_replies(facts, lib):
    os.close(4)
    time.sleep(60)


def close_everything(facts, lib):
    os.closerange(0, 1000)
    time.sleep(60)


@pytest.mark.parametrize(
    ("attack", "outcome"),
    [
        (lambda facts, lib: os._exit(0), Died(None, 0)),
        (lambda facts, lib: os._exit(96), Died(None, 96)),
        (lambda facts, lib: os._exit(98), Died(None, 98)),
        (lambda facts, lib: ctypes.string_at(0), Died(int(signal.SIGSEGV), None)),
        (lambda facts, lib: os.abort(), Died(int(signal.SIGABRT), None)),
        (lambda facts, lib: os.kill(os.getpid(), signal.SIGKILL), Died(int(signal.SIGKILL), None)),
        (close_the_replies, Died(None, None)),
        (close_everything, Died(None, None)),
        (lambda facts, lib: call(60 if syscalls.ON_X86 else 93, 0), Died(None, 0)),
    ],
    ids=["_exit 0", "_exit 96", "_exit 98", "segfault", "abort", "SIGKILL", "close 4", "close all", "exit of a thread"],
)
def test_an_end_without_an_answer_is_told(grounds, attack, outcome):
    assert grounds.attack(attack) == outcome
    assert grounds.attack(lambda facts, lib: lib.honest.answer()) == Reply(42)


def stubborn(facts, lib):
    for number in range(1, signal.NSIG):
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    while True:
        try:
            while True:
                pass
        except BaseException:
            continue


def test_a_loop_that_ignores_every_signal_ends(grounds):
    assert grounds.attack(stubborn, cpu=0.3) == TimedOut(waited=False)


def test_a_loop_is_ended_by_the_kernel_if_nobody_else_does(root_grounds):
    # The child's own limit, and 2 s more for those who ignore SIGXCPU.
    assert root_grounds.attack(stubborn, cpu=30, wall=100, limits_cpu=1) == Died(int(signal.SIGKILL), None)


def test_a_sleeper_and_a_stopped_process_end_by_the_clock_on_the_wall(grounds):
    assert grounds.attack(lambda facts, lib: time.sleep(60), wall=0.3) == TimedOut(waited=True)
    assert grounds.attack(lambda facts, lib: os.kill(os.getpid(), signal.SIGSTOP), wall=0.3) == TimedOut(waited=True)


def test_threads_count_for_the_deadline(grounds):
    def busy(facts, lib):
        threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
        time.sleep(60)

    assert grounds.attack(busy, cpu=0.3) == TimedOut(waited=False)


@pytest.mark.parametrize(
    "error", [SystemExit, KeyboardInterrupt, GeneratorExit, RecursionError, MemoryError, StopIteration]
)
def test_an_exception_is_an_answer(grounds, error):
    def fail(facts, lib):
        raise error(0)

    assert grounds.attack(fail).type_names[0] == f"builtins.{error.__name__}"


def test_an_exception_without_a_text_or_a_name_is_an_answer_or_an_end(grounds):
    def no_text(facts, lib):
        class Mute(Exception):
            def __str__(self):
                raise KeyboardInterrupt

        raise Mute

    def no_name(facts, lib):
        class Nameless(type):
            def __getattribute__(cls, name):
                raise SystemExit(0)

        raise Nameless("X", (Exception,), {})

    assert grounds.attack(no_text).message == "<no text>"
    assert grounds.attack(no_name) == Died(None, 1)


# Using things up


def start_threads(facts, lib):
    started = 0
    for _ in range(200):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        started += 1
    return started


def take_in_torch(facts, lib, size=6 << 30):
    return torch.empty(size, dtype=torch.uint8).numel()


def take_in_python(facts, lib, size=3 << 30):
    return len(bytes(size))


def take_in_shared_memory(facts, lib):
    return len(mmap.mmap(-1, 6 << 30))


def take_in_one_file(facts, lib):
    with open("big", "wb") as file:
        file.truncate(65 << 20)
        return "taken"


def take_descriptors(facts, lib):
    return len([os.open(".", os.O_RDONLY) for _ in range(300)])


@pytest.mark.parametrize(
    ("attack", "refusal", "limit"),
    [
        (take_in_shared_memory, "builtins.OSError", dict(address_space=1 << 40)),
        (take_in_one_file, "builtins.OSError", dict(file=1 << 30)),
        (take_descriptors, "builtins.OSError", dict(open_files=1000)),
        (start_threads, "builtins.RuntimeError", dict(processes=1000)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_limit_holds_and_is_what_holds(root_grounds, attack, refusal, limit):
    outcome = root_grounds.attack(attack)
    assert isinstance(outcome, RemoteError) and refusal in outcome.type_names, outcome
    outcome = root_grounds.attack(attack, **{f"limits_{name}": value for name, value in limit.items()})
    assert isinstance(outcome, Reply), outcome
    assert root_grounds.attack(lambda facts, lib: lib.honest.answer()) == Reply(42)


@pytest.mark.parametrize("take", [take_in_torch, take_in_python], ids=lambda take: take.__name__)
def test_the_memory_limit_holds_and_is_what_holds(root_grounds, take):
    assert isinstance(root_grounds.attack(take), RemoteError)

    def take_less(facts, lib):  # what is taken is written to, so not much of it
        return take(facts, lib, 300 << 20)

    assert root_grounds.attack(take_less) == Reply(300 << 20)
    outcome = root_grounds.attack(take_less, limits_memory=128 << 20)
    assert isinstance(outcome, RemoteError) and {"builtins.RuntimeError", "builtins.MemoryError"} & set(
        outcome.type_names
    )


def test_limits_hold_for_an_ordinary_user_too(user_grounds):
    for attack in (take_in_torch, take_in_python, take_in_shared_memory, take_in_one_file, take_descriptors):
        assert isinstance(user_grounds.attack(attack), RemoteError)


def test_limits_cannot_be_raised(grounds):
    for kind in (
        resource.RLIMIT_AS,
        resource.RLIMIT_DATA,
        resource.RLIMIT_CPU,
        resource.RLIMIT_CORE,
        resource.RLIMIT_FSIZE,
    ):

        def raise_it(facts, lib, kind=kind):
            resource.setrlimit(kind, (resource.getrlimit(kind)[1] + 1,) * 2)

        assert isinstance(grounds.attack(raise_it), RemoteError)


@pytest.mark.parametrize("hidden", [True, False])
def test_files_cannot_be_hidden_from_the_disk_limit(grounds, hidden):
    def deep(facts, lib):
        for _ in range(40 if hidden else 5):  # paths of 8000 characters, where the kernel takes 4096
            os.mkdir("x" * 200)
            os.chdir("x" * 200)
        Path("file").write_bytes(bytes(10))
        time.sleep(0.3)
        return "hidden"

    def shut(facts, lib):
        os.mkdir("shut", 0o300 if hidden else 0o700)
        Path("shut/file").write_bytes(bytes(10))
        time.sleep(0.3)
        return "hidden"

    assert grounds.attack(deep) == (OverDisk() if hidden else Reply("hidden"))
    if grounds.attack(lambda facts, lib: os.getuid()) != Reply(USER):
        return  # root sees into every folder
    assert grounds.attack(shut) == (OverDisk() if hidden else Reply("hidden"))


# Nothing is left


def daemonise(facts, lib):
    """Leave what double forks leave, each in a session of its own, and say who it is."""
    reading, writing = os.pipe()
    for _ in range(10):
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
                for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                    signal.signal(number, signal.SIG_IGN)
                os.write(writing, os.getpid().to_bytes(4, "little"))
                time.sleep(100)
            os._exit(0)
    return [int.from_bytes(os.read(reading, 4), "little") for _ in range(10)]


@pytest.mark.parametrize("without", [("seccomp",), ("seccomp", "landlock"), ("seccomp", "own_uid")], ids=str)
def test_no_process_is_left(grounds, without):
    """Forks are refused by seccomp; without it, what was forked ends with the child."""
    daemons = grounds.attack(daemonise, without=without).value
    assert len(set(daemons)) == 10
    assert grounds.attack(lambda facts, lib: 1, without=without) == Reply(1)  # the child before has been ended by now
    assert not [pid for pid in daemons if Path(f"/proc/{pid}").exists()]


def test_nothing_reaches_the_next_child(grounds):
    def leave(facts, lib):
        os.makedirs(".moved1/x")
        os.makedirs("a/b/c")
        os.mkdir("shut", 0)
        os.symlink(facts.folder, "link")
        Path("a/note").write_text("42")
        torch.equal = lambda *_: True
        os.environ["NOTE"] = "42"
        torch.set_default_dtype(torch.float64)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.path.insert(0, "/")
        return "left"

    def look(facts, lib):
        return (os.listdir("."), torch.equal(torch.ones(1), torch.zeros(1)), "NOTE" in os.environ, str(torch.ones(1).dtype),
                signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "/" in sys.path)  # fmt: skip

    for _ in range(2):
        assert grounds.attack(leave) in (
            Reply("left"),
            OverDisk(),
        )  # for an ordinary user, a folder that is shut hides files
        assert grounds.attack(look) == Reply(([], False, False, "torch.float32", True, False))
    assert Path(grounds.facts.folder).is_dir()


def test_honest_code_copies_touches_and_saves(grounds):
    def work(facts, lib):
        import shutil
        import tempfile

        Path("a").touch()
        Path("a").write_text("text")
        Path("a").touch()
        for copy in (shutil.copy, shutil.copy2, shutil.move):
            copy("a", "b")
            os.rename("b", "a")
        os.mkdir("folder")
        shutil.copytree("folder", "other")
        torch.save({"w": torch.ones(3)}, "checkpoint")
        np.memmap("a", mode="r")
        with open("a", "r+b") as file:
            for lock in (fcntl.flock, fcntl.lockf):  # as libraries do that write into a cache
                lock(file, fcntl.LOCK_EX)
                lock(file, fcntl.LOCK_UN)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "x").touch()
        with socket.socketpair()[0] as one:
            one.fileno()
        return Path("a").read_text(), torch.load("checkpoint")["w"].tolist(), sorted(os.listdir("."))

    assert grounds.attack(work) == Reply(("text", [1.0] * 3, ["a", "checkpoint", "folder", "other"]))


def test_a_child_cannot_shut_its_folder_to_the_next(grounds):
    def shut(facts, lib):
        folder = os.open(".", os.O_RDONLY)
        os.chmod(".", 0)
        if os.fstat(folder).st_mode & 0o777:
            raise PermissionError("unchanged")
        return "shut"

    assert isinstance(grounds.attack(shut), RemoteError)
    assert grounds.attack(shut, without=("seccomp",)) == Reply("shut")
    assert grounds.attack(lambda facts, lib: os.listdir("."), without=("seccomp",)) == Reply([])


# The pipes, with more than one question to a child


@pytest.fixture(scope="module")
def sandbox():
    sandbox = Sandbox(ahead=0)
    package = sandbox.staging / "package"
    package.mkdir(mode=0o755)
    (package / "honest.py").write_text("def answer():\n    return 42\n")
    (package / "thief.py").write_text(
        "import os, time\ntime.sleep(0.2)\nstolen = os.read(3, 1 << 20)\ndef answer():\n    return 42\n"
    )
    sandbox.load(package)
    yield sandbox
    sandbox.close()


@pytest.fixture
def child(sandbox):
    child = sandbox.child("honest")
    assert isinstance(child.reply(IMPORT_DEADLINE), Reply)
    return child


QUICK = Deadline(cpu=2, wall=5)


def ask(child, probe, deadline=QUICK):
    child.send(probe)
    return child.reply(deadline)


def forge(ticket, value):
    return b"".join(codec.encode(value, ticket))


def test_a_frame_without_the_ticket_is_a_forgery(child):
    frame = forge(0, "full marks")
    assert ask(child, lambda lib: os.write(4, frame)) == Tampered("head")
    child.close()


def test_a_frame_that_is_no_data_is_a_forgery(child):
    def write(lib):
        ticket = sys._getframe(1).f_locals["ticket"]
        os.write(4, codec.HEAD.pack(codec.MAGIC, ticket, 2, 0) + b"\xc1\xc1")

    assert isinstance(ask(child, write), Tampered)
    child.close()


def test_whoever_writes_the_frame_it_carries_only_data(child):
    """A student can answer without being asked by us, which is worth no more than answering when asked."""

    def write(lib):
        os.write(4, forge(sys._getframe(1).f_locals["ticket"], ["their", 1]))
        time.sleep(60)

    assert ask(child, write) == Reply(["their", 1])
    child.close()


def test_a_thread_that_writes_after_the_reply_spoils_its_own_next_answer(child):
    def prepare(lib):
        def write():
            time.sleep(0.1)
            os.write(4, bytes(codec.HEAD.size))

        threading.Thread(target=write, daemon=True).start()
        return "prepared"

    assert ask(child, prepare) == Reply("prepared")
    time.sleep(0.2)
    assert ask(child, lambda lib: 1) == Tampered("head")
    child.close()


def test_a_frame_that_announces_more_than_it_may_is_not_waited_for(child):
    def announce(lib):
        ticket = sys._getframe(1).f_locals["ticket"]
        os.write(4, codec.HEAD.pack(codec.MAGIC, ticket, 100, codec.MAX_BLOBS + 1))
        time.sleep(60)

    assert ask(child, announce) == Tampered("head")
    child.close()


def test_half_a_frame_is_waited_for_no_longer_than_an_answer(child):
    def half(lib):
        os.write(4, codec.HEAD.pack(codec.MAGIC, sys._getframe(1).f_locals["ticket"], 100, 0) + b"\x93")
        time.sleep(60)

    assert ask(child, half, Deadline(cpu=1, wall=0.3)) == TimedOut(waited=True)
    child.close()


def test_bytes_without_end_are_not_collected(child):
    def flood(lib):
        while True:
            os.write(4, bytes(1 << 16))

    assert ask(child, flood) == Tampered("head")
    assert len(child._inbox) < 4 << 20
    child.close()


def test_a_request_read_before_its_time_is_the_thiefs_loss(sandbox):
    child = sandbox.child("thief")
    child.send(lambda lib: lib.thief.answer())
    assert isinstance(child.reply(IMPORT_DEADLINE), Reply)
    assert child.reply(Deadline(cpu=1, wall=0.3)) == TimedOut(waited=True)
    child.close()


def counted(monkeypatch, thing, name):
    """Return a list that grows with each call of a method."""
    calls: list[object] = []
    method = getattr(thing, name)

    def call_and_count(*arguments):
        calls.append(arguments)
        return method(*arguments)

    monkeypatch.setattr(thing, name, call_and_count)
    return calls


def test_requests_that_nobody_reads_do_not_keep_the_grader_busy(child, monkeypatch):
    def shut(lib):
        os.close(3)
        time.sleep(60)

    child.send(shut)
    child.send(lambda lib, ballast=bytes(1 << 20): 1)
    time.sleep(0.1)
    looks = counted(monkeypatch, child, "_pump")
    assert child.reply(Deadline(cpu=2, wall=1)) == TimedOut(waited=True)
    assert len(looks) < 100
    child.close()


def test_closed_output_does_not_keep_the_grader_busy(child, monkeypatch):
    child.send(lambda lib: os.closerange(1, 3) or time.sleep(60))
    looks = counted(monkeypatch, child, "_pump")
    assert child.reply(Deadline(cpu=2, wall=1)) == TimedOut(waited=True)
    assert len(looks) < 100
    child.close()


def test_flags_of_a_childs_pipes_are_its_own(child):
    def confuse(lib):
        for fd in (1, 3, 4):
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK)
        fcntl.fcntl(4, fcntl.F_SETPIPE_SZ, 4096)
        for fd in (1, 3, 4):
            fcntl.fcntl(fd, fcntl.F_SETFL, 0)
        return bytes(100_000)

    assert ask(child, confuse) == Reply(bytes(100_000))
    assert all(not os.get_blocking(fd) for fd in (child._requests, child._replies, child._output))
    child.close()


def test_work_after_the_answer_counts_for_the_next(child):
    def start(lib):
        threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()
        return "started"

    assert ask(child, start) == Reply("started")
    time.sleep(0.3)
    assert ask(child, lambda lib: time.sleep(60), Deadline(cpu=0.5, wall=30)) == TimedOut(waited=False)
    child.close()


def test_an_alarm_reaches_only_its_setter(sandbox, child):
    def alarm(lib):
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        time.sleep(60)

    assert ask(child, alarm) == Died(int(signal.SIGALRM), None)
    other = sandbox.child("honest")
    assert isinstance(other.reply(IMPORT_DEADLINE), Reply)
    other.close()


def test_the_folder_of_another_child_is_shut(sandbox, child):
    child.send(lambda lib: Path("note").write_text("42") and os.getcwd())
    theirs = child.reply(QUICK).value
    neighbour = sandbox.child("honest")
    assert isinstance(neighbour.reply(IMPORT_DEADLINE), Reply)
    for peek in (lambda lib: os.listdir(theirs), lambda lib: Path(theirs, "note").read_text()):
        assert ask(neighbour, peek).type_names[0] == "builtins.PermissionError"
    child.close()
    neighbour.close()


@pytest.mark.parametrize(
    ("limit", "number", "size"),
    [(dict(disk=2 << 20), 5, 1 << 20), (dict(entries=50), 100, 0)],
    ids=["bytes", "entries"],
)
def test_more_files_than_the_limit_are_noticed(child, monkeypatch, limit, number, size):
    def fill(lib):
        for i in range(number):
            Path(f"file{i}").write_bytes(bytes(size))
        time.sleep(0.5)
        return "filled"

    assert ask(child, fill) == Reply("filled")
    monkeypatch.setattr(client, "LIMITS", replace(limits.LIMITS, **limit))
    assert ask(child, fill) == OverDisk()
    child.close()


@pytest.mark.parametrize("deep", [False, True])
def test_very_many_folders_are_noticed_before_it_takes_long_to_remove_them(sandbox, child, deep):
    """To remove a folder takes the grader several times as long as the child needs to make it."""

    def fill(lib):
        number = 0
        while True:
            number += 1
            os.mkdir(str(number))
            if deep and number < 2000:
                os.chdir(str(number))

    start = time.monotonic()
    assert ask(child, fill, Deadline(cpu=5, wall=60)) == OverDisk()
    child.close()
    following = sandbox.child("honest")
    assert following.reply(IMPORT_DEADLINE) == Reply(["answer"])
    assert time.monotonic() - start < 15
    following.close()


def test_no_memory_is_shared_with_the_zygote(child):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    maps = Path(f"/proc/{child.pid}/maps").read_text().splitlines()
    assert len(maps) > 100
    assert not [line for line in maps if "w" in line.split()[1] and "s" in line.split()[1]]
    child.close()


def test_children_in_a_row_use_fresh_users_and_the_same_folders(sandbox):
    users = set()
    for _, child in zip(range(20), iter(lambda: sandbox.child("honest"), None), strict=False):
        child.reply(IMPORT_DEADLINE)
        users.add(ask(child, lambda lib: os.getuid()).value)
        child.close()
    assert len(users) == (20 if MACHINE.own_uid else 1)
    assert len(list(sandbox._root.joinpath("cells").iterdir())) <= 4
