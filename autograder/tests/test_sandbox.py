"""The sandbox's life: how a child is locked down, how it ends, and that nothing is left of it."""

# Children and folders are looked at through system calls.
# ruff: noqa: PTH109, PTH110, PTH116, PTH118, PTH123, PTH208

import json
import os
import pwd
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch

from autograder.__main__ import _ENVIRONMENT
from autograder.sandbox import child as childs
from autograder.sandbox import cleanup, landlock, limits, package, seccomp, syscalls, uids
from autograder.sandbox.client import IMPORT_DEADLINE, Deadline, Died, Reply, Sandbox, SandboxBroken, TimedOut
from autograder.sandbox.codec import RemoteError
from autograder.sandbox.package import Package
from autograder.sandbox.zygote import Features, _reap
from autograder.tests.cells import ROOT

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a child can import no test
MACHINE = Features.of_this_machine()
AS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not AS_ROOT, reason="needs root")
QUICK = Deadline(cpu=3, wall=10)

MODULES = {
    "honest.py": "def answer():\n    return 42\n",
    "helper/__init__.py": "from student.honest import answer\nSIX = 6\n",
    "extra.py": "from student.helper import answer, SIX\nfrom . import honest\ndef seven():\n    return honest.answer() // SIX\n",
    "torch.py": "raise RuntimeError('a file called torch.py is not torch')\n",
    "conftest.py": "raise RuntimeError('nobody imports a conftest.py')\n",
    "broken.py": "def f(:\n",
    "endless.py": "while True: pass\n",
    "sleeper.py": "import time; time.sleep(100)\n",
    "quitter.py": "import os; os._exit(98)\n",
    "raiser.py": "1 / 0\n",
}


def write_package(sandbox, name, modules=MODULES):
    folder = sandbox.staging / name
    for file, text in modules.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def make(**options):
    sandbox = Sandbox(**{"ahead": 0, **options})
    sandbox.load(write_package(sandbox, "package"))
    return sandbox


@pytest.fixture(scope="module")
def sandbox():
    sandbox = make()
    yield sandbox
    sandbox.close()


@pytest.fixture
def child(sandbox):
    child = sandbox.child("honest")
    assert child.reply(IMPORT_DEADLINE) == Reply(["answer"])
    yield child
    with suppress(OSError):  # the test has ended it
        child.close()


def ask(child, probe, deadline=QUICK):
    child.send(probe)
    return child.reply(deadline)


def runs(pid):
    """Tell whether a process runs: a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(holds, seconds=10.0):
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


# Inside a child


def test_a_child_imports_one_module_and_answers(child):
    assert ask(child, lambda lib: lib.honest.answer()) == Reply(42)
    before = {m for m in sys.modules if m.startswith("student")}  # by another test, in the process that is forked here
    outcome = ask(child, lambda lib: [m for m in sys.modules if m.startswith("student")])
    assert set(outcome.value) - before | {"student"} == {"student", "student.honest"}


def test_modules_of_a_submission_import_each_other_and_shadow_nothing(sandbox):
    child = sandbox.child("extra")
    assert child.reply(IMPORT_DEADLINE) == Reply(["answer", "SIX", "honest", "seven"])
    assert ask(child, lambda lib: (lib.extra.seven(), lib.helper.SIX)) == Reply((7, 6))

    def others(lib):
        import importlib

        importlib.invalidate_caches()
        found = []
        for name in (
            "honest",
            "conftest",
            "autograder.settings",
            "autograder.plugin",
            "reference",
            "handout",
            "student.none",
        ):
            if name not in sys.modules:  # what is loaded already is no secret
                with suppress(ImportError):
                    importlib.import_module(name)
                    found.append(name)
        found += sys.modules["autograder"].__path__  # where more of it could be looked for
        found += [path for path in sys.path if os.path.exists(os.path.join(path, "pyproject.toml"))]
        return found, torch.ones(1).item()

    assert ask(child, others) == Reply(([], 1.0))
    child.close()


def test_a_traceback_names_the_students_line(sandbox):
    child = sandbox.child("raiser")
    error = child.reply(IMPORT_DEADLINE)
    assert isinstance(error, RemoteError) and error.type_names[0] == "builtins.ZeroDivisionError"
    assert error.frames[-1].file.endswith("package/raiser.py") and error.frames[-1].line == 1
    assert "1 / 0" in error.traceback
    assert ask(child, lambda lib: lib.honest.__file__).value.endswith("/package/honest.py")
    child.close()


def test_a_module_that_does_not_compile_says_where(sandbox):
    child = sandbox.child("broken")
    error = child.reply(IMPORT_DEADLINE)
    assert error.type_names[0] == "builtins.SyntaxError"
    assert (error.frames[-1].file.split("/")[-1], error.frames[-1].line, error.frames[-1].column) == ("broken.py", 1, 7)
    child.close()


def test_a_child_has_five_descriptors(child):
    def descriptors(lib):
        kinds = []
        for fd in range(256):
            with suppress(OSError):
                mode = os.fstat(fd).st_mode
                kinds.append((fd, "pipe" if stat.S_ISFIFO(mode) else "device" if stat.S_ISCHR(mode) else "other"))
        return kinds

    expected = [(0, "device"), (1, "pipe"), (2, "pipe"), (3, "pipe"), (4, "pipe")]
    assert ask(child, descriptors) == Reply(expected)


def test_a_child_has_an_environment_and_a_folder_of_its_own(child, monkeypatch):
    def surroundings(lib):
        import tempfile

        here = os.getcwd()
        with tempfile.NamedTemporaryFile() as file:
            inside = file.name.startswith(here + "/")
        return (
            dict(os.environ),
            here,
            os.listdir(here),
            inside,
            sys.argv,
            stat.S_IMODE(os.stat(".").st_mode),
            os.umask(0),
        )

    environment, here, files, inside, argv, mode, umask = ask(child, surroundings).value
    own = {"PATH", "HOME", "TMPDIR", "LANG", "USER", "PYTHONDONTWRITEBYTECODE", "OMP_NUM_THREADS"}
    assert set(environment) == own | {"CUDA_VISIBLE_DEVICES"} and environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["HOME"] == environment["TMPDIR"] == here
    assert (files, inside, argv, mode, umask) == ([], True, ["student"], 0o700, 0o077)


@needs_root
def test_what_the_kernel_says_of_a_child(child):
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{child.pid}/status").read_text().splitlines())
    uid = status["Uid"].split()
    assert len(set(uid)) == 1 and int(uid[0]) in range(40_000, 56_000)
    assert status["Gid"].split() == uid and status["Groups"].strip() == ""
    for capabilities in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[capabilities], 16) == 0, capabilities
    assert status["NoNewPrivs"] == "1" and status["Threads"] == "1"
    assert status["Seccomp"] == "2"
    assert Path(f"/proc/{child.pid}/oom_score_adj").read_text() == "1000\n"
    own = Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()
    assert own[2] == own[3] == str(child.pid)  # leads a group and a session of its own
    assert Path(f"/proc/{child.pid}/mem").stat().st_uid == 0  # not dumpable
    ceilings = {
        line[:25].strip(): line[25:].split() for line in Path(f"/proc/{child.pid}/limits").read_text().splitlines()
    }
    assert ceilings["Max cpu time"][1] == "22"
    assert ceilings["Max file size"][:2] == [str(64 << 20)] * 2
    assert ceilings["Max open files"][:2] == ["256"] * 2
    assert ceilings["Max processes"][:2] == ["64"] * 2
    for nothing in ("core file size", "locked memory", "msgqueue size", "nice priority", "realtime priority"):
        assert ceilings[f"Max {nothing}"][:2] == ["0"] * 2, nothing
    data, space = (int(ceilings[f"Max {name}"][0]) for name in ("data size", "address space"))
    assert 2 << 30 < data < 4 << 30 and 4 << 30 < space < 20 << 30


def test_a_child_that_outlived_its_zygote_ends_before_student_code_runs():
    pid = os.fork()
    if pid == 0:
        nobody = 2**22 + 1
        cell = childs.Cell(
            Path("/"), Path("/"), {}, None, None, None, limits.Footprint(1 << 33, 1 << 36), zygote=nobody
        )
        childs.run(cell, childs.Pipes(*os.pipe(), 1))
    assert os.WEXITSTATUS(os.waitpid(pid, 0)[1]) == 96


def test_a_child_is_locked_down_in_an_order_that_holds(monkeypatch):
    """Each step needs rights that a later one takes away, and no student code runs before the last."""
    calls: list[str] = []

    def recorded(name):
        return lambda *_: calls.append(name)

    names = {1: "death signal", 4: "not dumpable", 24: "capability", 38: "no new privileges"}
    monkeypatch.setattr(syscalls, "prctl", lambda option, *_: calls.append(names[option]))
    for module, name in [
        (childs, "_keep_only"), (childs, "_take_signals"), (limits, "apply"), (childs, "_prefer_for_oom"), (childs, "_become"),
        (childs, "_move_in"), (landlock, "restrict_self"), (childs, "_write"), (childs, "_serve"), (os, "close"),
    ]:  # fmt: skip
        monkeypatch.setattr(module, name, recorded(name))
    monkeypatch.setattr(os, "getppid", lambda: 7)
    monkeypatch.setattr(os, "_exit", recorded("_exit"))
    filter_ = seccomp.Filter()
    monkeypatch.setattr(filter_, "load", recorded("seccomp"), raising=True)
    cell = childs.Cell(Path("/"), Path("/"), {}, 40_000, 9, filter_, limits.Footprint(0, 0), zygote=7)
    childs.run(cell, childs.Pipes(0, 0, 0))
    assert calls == [
        "_keep_only", "_take_signals", "apply", "_prefer_for_oom", "_become", "no new privileges", "death signal",
        "not dumpable", "_move_in", "restrict_self", "close", "seccomp", "_write", "_serve", "_exit",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (limits, "apply"),
        (childs, "_keep_only"),
        (childs, "_move_in"),
        (landlock, "restrict_self"),
        (seccomp.Filter, "load"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_child_that_cannot_be_locked_down_is_the_sandboxs_fault(monkeypatch, module, name):
    def fail(*_):
        raise PermissionError("no")

    monkeypatch.setattr(module, name, fail)
    sandbox = Sandbox(ahead=0)
    monkeypatch.undo()
    try:
        sandbox.load(write_package(sandbox, "package"))
        with pytest.raises(SandboxBroken, match="could not lock itself down"):
            sandbox.child("honest").reply(IMPORT_DEADLINE)
    finally:
        sandbox.close()


def test_what_a_module_did_at_import_does_not_reach_the_probe(child):
    def change(lib):
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.manual_seed(5)
        np.random.seed(5)
        os.chdir("/usr")
        return "changed"

    def look(lib):
        import random

        return (
            str(torch.ones(1).dtype),
            torch.is_grad_enabled(),
            torch.rand(1).item(),
            random.random(),
            os.getcwd() != "/usr",
        )

    fresh = ask(child, look)
    assert fresh.value[:2] == ("torch.float32", True) and fresh.value[4]
    assert ask(child, change) == Reply("changed")
    assert ask(child, look) == fresh


def test_a_process_that_names_itself_like_a_field_of_proc_hides_no_memory(child):
    def pretend(lib):
        import ctypes

        ctypes.CDLL(None).prctl(15, b"VmHWM: 1")  # PR_SET_NAME

    ask(child, pretend)
    assert "Name:\tVmHWM: 1\n" in Path(f"/proc/{child.pid}/status").read_text()
    assert child.peak_memory() > 10 << 20


def test_an_optimizer_does_not_bring_the_compiler():
    """In a process of its own: other tests may have imported the compiler into this one."""
    report = in_a_clean_process("""
        def use(lib):
            weight = torch.nn.Parameter(torch.ones(3))
            for kind in (torch.optim.SGD, torch.optim.AdamW):
                optimizer = kind([weight], lr=0.5)
                weight.grad = torch.ones(3)
                optimizer.step()
                optimizer.zero_grad()
                optimizer.load_state_dict(optimizer.state_dict())
            import inspect
            inspect.getmodule(inspect.currentframe())  # looks at every module
            return weight.detach().mean().item() < 1, "torch._dynamo.eval_frame" in sys.modules
        def compile_it(lib):
            import torch._dynamo.eval_frame
            return torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item()
        report = ask(use).value, ask(compile_it).value
    """)
    assert report == [[True, False], 2.0]  # whoever needs the compiler still gets it


def test_an_optimizer_works_where_the_internals_are_other_ones():
    """What is done to do without the compiler is done to internals of PyTorch: without it the optimizer just brings it."""
    report = in_a_clean_process(
        """
        def use(lib):
            weight = torch.nn.Parameter(torch.ones(3))
            optimizer = torch.optim.SGD([weight], lr=0.5)
            weight.grad = torch.ones(3)
            optimizer.step()
            return weight.tolist()
        report = ask(use).value, "torch._dynamo.eval_frame" in sys.modules
        """,
        before="warm_module.spare_dynamo = lambda: None",
    )
    assert report == [[0.5] * 3, True]


def test_children_may_use_two_threads():
    report = in_a_clean_process("""
        def use(lib):
            torch.set_num_threads(2)
            x = torch.ones(600, 600)
            return (x @ x).sum().item(), torch.get_num_threads()
        report = ask(use, Deadline(20, 60)).value
    """)
    assert report == [600.0**3, 2]


_CLEAN = """
import json, os, sys
sys.path[0] = {root!r}
import cloudpickle, torch
from autograder.sandbox import warm as warm_module
{before}
warm_module.warm()
from autograder.sandbox.client import IMPORT_DEADLINE, Deadline, Died, Reply, Sandbox
sandbox = Sandbox(ahead=0)
folder = sandbox.staging / "package"
folder.mkdir(mode=0o755)
(folder / "honest.py").write_text("def answer(): return 42\\n")
sandbox.load(folder)
child = sandbox.child("honest")
assert isinstance(child.reply(IMPORT_DEADLINE), Reply)
def ask(probe, deadline=Deadline(20, 60)):
    child.send(probe)
    return child.reply(deadline)
"""


def in_a_clean_process(body, before="", environment=_ENVIRONMENT, arguments=()):
    """Run `body` where the sandbox was made in a new process, and return what it leaves in `report`."""
    import textwrap

    program = _CLEAN.format(root=str(ROOT), before=before) + textwrap.dedent(body)
    program += "\nsandbox.close()\nprint(json.dumps(report))\n"
    process = subprocess.run(
        [sys.executable, "-s", "-", *arguments],
        input=program,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0
    return json.loads(process.stdout.splitlines()[-1])


# Deadlines and ends


def test_an_answer_may_take_so_much_cpu_time(child):
    start = time.monotonic()
    assert ask(child, lambda lib: [None for _ in iter(int, 1)], Deadline(cpu=0.3, wall=60)) == TimedOut(waited=False)
    assert time.monotonic() - start < 30


def test_an_answer_may_take_so_long(child):
    assert ask(child, lambda lib: __import__("time").sleep(60), Deadline(cpu=5, wall=0.3)) == TimedOut(waited=True)


def test_waiting_costs_no_cpu_time_and_answers_are_measured_one_by_one(child):
    def work(lib):
        import time

        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass
        return "done"

    for _ in range(3):  # 0.9 s in all
        assert ask(child, work, Deadline(cpu=0.6, wall=60)) == Reply("done")


@pytest.mark.parametrize(
    ("part", "outcome"),
    [("endless", TimedOut(waited=False)), ("sleeper", TimedOut(waited=True)), ("quitter", Died(None, 98))],
)
def test_an_import_has_a_deadline_too(sandbox, part, outcome):
    child = sandbox.child(part)
    assert child.reply(Deadline(cpu=0.5, wall=60 if part == "endless" else 1)) == outcome
    if not isinstance(outcome, Died):
        child.close()


def test_output_is_drained_and_its_beginning_kept(child):
    def shout(lib):
        os.write(1, b"the beginning")
        for _ in range(200):
            os.write(1, b"x" * (1 << 20))
        return "heard"

    assert ask(child, shout, Deadline(cpu=20, wall=60)) == Reply("heard")
    assert len(child.printed) == limits.LIMITS.output == 64 << 10
    assert b"the beginning" in child.printed


def test_what_is_printed_before_an_end_is_kept(sandbox):
    child = sandbox.child("honest")
    child.reply(IMPORT_DEADLINE)
    assert ask(child, lambda lib: (os.write(2, b"last words"), os._exit(3))) == Died(None, 3)
    assert child.printed == b"last words"


def test_a_stop_of_a_traced_child_is_not_its_end():
    """PTRACE_TRACEME makes the zygote the tracer, whose waitpid then reports stops too."""
    pid = os.fork()
    if pid == 0:
        syscalls.libc.ptrace(0, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(7)
    assert _reap(pid, grace=0.3) == (False, 0)
    os.kill(pid, signal.SIGKILL)
    assert _reap(pid, grace=None)[0]


@pytest.mark.skipif(not syscalls.ON_X86, reason="names the call by its number")
def test_a_child_that_asks_to_be_traced_is_ended_all_the_same():
    sandbox = make(features=replace(MACHINE, seccomp=False))

    def stop(lib):
        syscalls.libc.ptrace(0, 0, 0, 0)
        os.close(4)  # the grader asks how it ended
        os.kill(os.getpid(), signal.SIGUSR1)  # stops it: the tracer decides
        return "alive"

    child = sandbox.child("honest")
    child.reply(IMPORT_DEADLINE)
    assert ask(child, stop) == Died(None, None)
    assert not runs(child.pid)
    sandbox.close()


# Many children


def test_children_are_kept_ready_and_answer_in_turn():
    sandbox = make(ahead=2)
    pids = []
    for _ in range(5):
        child = sandbox.child("honest")
        assert eventually(lambda: len(sandbox._ready) < 2)
        child.send(lambda lib: lib.honest.answer())
        assert [child.reply(IMPORT_DEADLINE), child.reply(QUICK)] == [Reply(["answer"]), Reply(42)]
        pids.append(child.pid)
        child.close()
    assert len(set(pids)) == 5
    assert len(list((sandbox._root / "cells").iterdir())) <= 3
    sandbox.close()
    assert not any(map(runs, pids))


def test_after_the_last_child_no_other_is_made_ready():
    sandbox = make(ahead=1)

    def children():
        return Path(f"/proc/{sandbox._pid}/task/{sandbox._pid}/children").read_text().split()

    child = sandbox.child("honest")
    child.reply(IMPORT_DEADLINE)
    child.close(last=True)
    assert eventually(lambda: not runs(child.pid))
    time.sleep(0.2)  # enough to fork another
    assert children() == []
    sandbox.load(write_package(sandbox, "second"))  # answered once the end is done
    child = sandbox.child("honest")
    assert isinstance(child.reply(IMPORT_DEADLINE), Reply)
    child.close()
    assert eventually(lambda: len(children()) == 1 and not runs(child.pid))
    sandbox.close()


def test_without_a_reserve_no_child_is_made_before_it_is_asked_for():
    sandbox = make(ahead=0)
    child = sandbox.child("honest")
    child.reply(IMPORT_DEADLINE)
    child.close()
    children = Path(f"/proc/{sandbox._pid}/task/{sandbox._pid}/children")
    assert eventually(lambda: children.read_text() == "", 1)
    sandbox.close()


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_second_submission_is_served_and_the_first_no_more(ahead):
    sandbox = make(ahead=ahead)
    first = sandbox.staging / "package"
    running = sandbox.child("honest")
    running.reply(IMPORT_DEADLINE)
    sandbox.load(write_package(sandbox, "second", {"honest.py": "def answer():\n    return 43\n"}))
    assert eventually(lambda: not runs(running.pid))
    running.close()  # late, and no harm
    child = sandbox.child("honest")
    child.reply(IMPORT_DEADLINE)
    assert ask(child, lambda lib: lib.honest.answer()) == Reply(43)
    if MACHINE.landlock:
        assert ask(child, lambda lib: os.listdir(first)).type_names[0] == "builtins.PermissionError"
    child.close()
    sandbox.close()


def test_code_is_compiled_once_by_a_locked_child(sandbox, monkeypatch):
    codes = package.compiled(sandbox.staging / "package")
    assert set(codes) == {f"student.{name}" for name in ("honest", "helper", "extra", "torch", "conftest", "endless", "sleeper",
                                                         "quitter", "raiser")}  # fmt: skip
    child = sandbox.child("honest")
    child.reply(IMPORT_DEADLINE)
    assert ask(child, lambda lib: sorted(vars(sys.meta_path[0])["_codes"])) == Reply(sorted(codes))
    child.close()


@pytest.mark.parametrize(
    "source",
    ["x = " + "(" * 5000 + ")" * 5000, "x = '" + "y" * (3 << 20) + "'\n", "\0", "\xff"],
    ids=["parentheses", "too large", "null", "encoding"],
)
def test_a_source_that_is_hard_to_compile_costs_only_itself(source):
    sandbox = Sandbox(ahead=0)
    folder = write_package(sandbox, "package", {"honest.py": MODULES["honest.py"]})
    (folder / "hard.py").write_bytes(source.encode("latin-1"))
    (folder / "hard.py").chmod(0o644)
    start = time.monotonic()
    sandbox.load(folder)
    child = sandbox.child("honest")
    child.reply(IMPORT_DEADLINE)
    assert ask(child, lambda lib: lib.honest.answer()) == Reply(42)
    child.close()
    sandbox.close()
    assert time.monotonic() - start < 9  # not the deadline of the compiling child


def test_warnings_of_the_compiler_do_not_hold_it_up():
    """In a process of its own: pytest collects warnings, where others print them into a pipe that nobody reads yet."""
    report = in_a_clean_process("""
        import time
        (folder / "honest.py").write_text("x = 1 is 1\\n" * 3000)
        start = time.monotonic()
        sandbox.load(folder)
        report = time.monotonic() - start
    """)
    assert report < 9


def test_two_sandboxes_live_side_by_side():
    first, second = make(), make()
    children = [sandbox.child("honest") for sandbox in (first, second)]
    users = []
    for child in children:
        child.reply(IMPORT_DEADLINE)
        users.append(ask(child, lambda lib: os.getuid()).value)
    if AS_ROOT:
        assert users[0] // uids.SIZE != users[1] // uids.SIZE or abs(users[0] - users[1]) >= uids.SIZE
    start = time.monotonic()
    first.close()  # although the second's zygote holds a copy of its socket
    assert time.monotonic() - start < 4
    assert not runs(children[0].pid)
    assert ask(children[1], lambda lib: lib.honest.answer()) == Reply(42)
    second.close()


# Nothing is left


def test_closing_leaves_nothing():
    sandbox = make(ahead=2)
    root, zygote = sandbox._root, sandbox._pid
    child = sandbox.child("honest")
    child.reply(IMPORT_DEADLINE)
    assert ask(child, lambda lib: Path("file").write_text("x")) == Reply(1)
    pids = [child.pid, *(ready.pid for ready in sandbox._ready), zygote]
    descriptors = len(os.listdir("/proc/self/fd"))
    child.close()
    sandbox.close()
    assert not root.exists()
    assert not any(map(runs, pids))
    assert len(os.listdir("/proc/self/fd")) < descriptors
    with pytest.raises(ChildProcessError):
        os.waitpid(zygote, os.WNOHANG)


def test_a_sandbox_whose_zygote_was_killed_is_broken_and_its_children_die():
    sandbox = make()
    child = sandbox.child("honest")
    child.reply(IMPORT_DEADLINE)
    child.send(lambda lib: __import__("time").sleep(60))
    os.kill(sandbox._pid, signal.SIGKILL)
    assert eventually(lambda: not runs(child.pid))
    with pytest.raises(SandboxBroken, match="gone"):
        child.reply(QUICK)
    with pytest.raises(SandboxBroken, match="gone"):
        sandbox.child("honest")
    root = sandbox._root
    sandbox.close()
    assert not root.exists()


def test_a_zygote_that_dies_while_the_grader_waits_for_it_is_noticed():
    sandbox = make()
    os.kill(sandbox._pid, signal.SIGSTOP)
    threading.Timer(0.2, os.kill, (sandbox._pid, signal.SIGKILL)).start()
    with pytest.raises(SandboxBroken, match="killed for its memory"):
        sandbox.child("honest")
    sandbox.close()


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_when_the_grader_is_killed_everything_dies_and_nothing_stays(state):
    program = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from autograder.tests.test_sandbox import IMPORT_DEADLINE, make
sandbox = make(ahead=1)
child = sandbox.child("honest")
child.reply(IMPORT_DEADLINE)
if {state == "busy"}:
    child.send(lambda lib: [None for _ in iter(int, 1)])
print(sandbox._pid, child.pid, sandbox._root, flush=True)
import time
time.sleep(100)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    zygote, child, root = process.stdout.readline().split()
    assert runs(zygote) and runs(child)
    process.kill()
    process.wait()
    process.stdout.close()
    assert eventually(lambda: not runs(zygote) and not runs(child))
    assert not Path(root).exists()


def test_a_deep_folder_is_emptied_without_recursion():
    # Not in pytest's own folder: should this fail, the next pytest would die of recursion while it cleans up.
    top = Path(tempfile.mkdtemp(prefix="deep-"))
    here = os.open(top, os.O_RDONLY)
    for i in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
        if i % 100 == 0:
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    cleanup.empty(top)
    top.rmdir()  # fails if there is anything in it


def test_emptying_follows_no_link_and_opens_what_is_shut(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    outside.chmod(0o755)
    (outside / "kept").write_text("kept")
    top = tmp_path / "top"
    for folder in ("a/b/c", ".moved1/x", ".moved2/y/z", "shut/in"):
        (top / folder).mkdir(parents=True)
    (top / "a" / "link").symlink_to(outside)
    (top / "link").symlink_to(outside)
    (top / "a" / "b" / "loop").symlink_to("..")
    os.link(outside / "kept", top / "a" / "hard")
    os.mkfifo(top / "a" / "pipe")
    (top / "shut" / "in" / "file").write_text("x")
    for folder in (top / "shut" / "in", top / "shut", top):
        folder.chmod(0)
    cleanup.empty(top)
    assert list(top.iterdir()) == []
    assert (outside / "kept").read_text() == "kept"
    assert stat.S_IMODE(outside.stat().st_mode) != 0o700


def test_an_ordinary_user_empties_what_is_shut():
    if not AS_ROOT:
        pytest.skip("the test above is this one")
    program = """
import os, tempfile
from pathlib import Path
import sys
sys.path.insert(0, sys.argv[1])
os.setresgid(61234, 61234, 61234); os.setresuid(61234, 61234, 61234)
from autograder.sandbox import cleanup
top = Path(tempfile.mkdtemp(dir="/tmp"))
(top / "shut" / "in").mkdir(parents=True)
(top / "shut" / "in" / "file").write_text("x")
for folder in (top / "shut" / "in", top / "shut", top):
    folder.chmod(0)
print(cleanup.disk_usage(str(top), 10))
cleanup.empty(top)
print(list(top.iterdir()))
top.rmdir()
"""
    out = subprocess.run(
        [sys.executable, "-c", program, str(ROOT)], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert out == "inf\n[]\n"


def test_a_folder_that_cannot_be_emptied_is_not_used_again(monkeypatch):
    def fail(top):
        raise OSError("it stays")

    monkeypatch.setattr(cleanup, "empty", fail)
    sandbox = make()
    monkeypatch.undo()
    folders = []
    for _ in range(3):
        child = sandbox.child("honest")
        child.reply(IMPORT_DEADLINE)
        folders.append(ask(child, lambda lib: (Path("note").write_text("42"), os.getcwd())).value[1])
        child.close()
    assert len(set(folders)) == 3
    sandbox.close()


def test_disk_usage_counts_blocks_and_entries(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(os.urandom(100_000))
    (tmp_path / "a" / "link").symlink_to("/usr")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert 100_000 <= cleanup.disk_usage(str(tmp_path), 10) < 200_000
    assert cleanup.disk_usage(str(tmp_path), 4) == float("inf")
    assert cleanup.disk_usage(str(tmp_path / "gone"), 4) == 0


# Users


@pytest.fixture
def locks(tmp_path, monkeypatch):
    monkeypatch.setattr(uids, "LOCKS", tmp_path / "locks")
    monkeypatch.setattr(uids, "_running_uids", lambda: set())
    monkeypatch.setattr(pwd, "getpwall", lambda: [])
    return tmp_path / "locks"


@needs_root
def test_ranges_of_user_ids_are_disjoint_and_run_out(locks, monkeypatch):
    monkeypatch.setattr(uids, "_RANGES", [range(40_000, 40_256), range(40_256, 40_512)])
    first, second = uids.claim(), uids.claim()
    assert set(first.ids).isdisjoint(second.ids)
    with pytest.raises(uids.NoRange, match="all 2 ranges"):
        uids.claim()
    os.close(first.lock)
    third = uids.claim()
    assert third.ids == first.ids
    for claimed in (second, third):
        os.close(claimed.lock)
    assert stat.S_IMODE(locks.stat().st_mode) == 0o700


@needs_root
def test_a_range_that_somebody_uses_is_left_out(locks, monkeypatch):
    monkeypatch.setattr(uids, "_RANGES", [range(40_000, 40_256), range(40_256, 40_512), range(40_512, 40_768)])
    monkeypatch.setattr(uids, "_running_uids", lambda: {40_000})
    account = type("Account", (), {"pw_uid": 40_511})
    monkeypatch.setattr(pwd, "getpwall", lambda: [account])
    claimed = uids.claim()
    assert claimed.ids.start == 40_512
    os.close(claimed.lock)


@needs_root
def test_running_processes_are_seen():
    process = subprocess.Popen(["sleep", "60"], user=55_990)
    assert eventually(lambda: 55_990 in uids._running_uids())
    assert syscalls.uid_runs(55_990) and not syscalls.uid_runs(55_991)
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    cleanup.kill_uid(55_990, {int(pid) for pid in children} - {process.pid})
    assert not Path(f"/proc/{process.pid}").exists()
    process.wait()


@needs_root
@pytest.mark.parametrize("wrong", ["open", "somebody's", "link", "file"])
def test_a_lock_folder_that_others_could_use_is_refused(locks, tmp_path, wrong):
    if wrong == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        locks.symlink_to(tmp_path / "elsewhere")
    elif wrong == "file":
        locks.write_text("")
    else:
        locks.mkdir(mode=0o700)
        if wrong == "open":
            locks.chmod(0o701)
        else:
            os.chown(locks, 61_234, 0)
    with pytest.raises((uids.NoRange, FileExistsError)):
        uids.claim()


@needs_root
def test_no_range_means_no_sandbox_and_nothing_left(monkeypatch, tmp_path):
    def fail():
        raise uids.NoRange("all in use")

    monkeypatch.setattr(uids, "claim", fail)
    monkeypatch.setenv("TMPDIR", "/tmp")
    before = set(Path("/tmp").glob("accounting-grader-*"))
    with pytest.raises(SandboxBroken, match="all in use"):
        Sandbox()
    assert set(Path("/tmp").glob("accounting-grader-*")) <= before


def test_ids_go_round():
    taken = uids.UidRange(range(40_000, 40_003), -1)
    assert [taken.take() for _ in range(5)] == [40_001, 40_002, 40_000, 40_001, 40_002]


@needs_root
def test_a_temporary_folder_that_children_cannot_reach_is_refused(monkeypatch, tmp_path):
    tmp_path.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SandboxBroken, match="set TMPDIR"):
        Sandbox()
    assert list(tmp_path.iterdir()) == []


@needs_root
def test_a_repository_that_is_shut_to_children_can_grade(tmp_path):
    """Root's own folder is a usual place for it; the children need nothing in it."""
    copy = tmp_path / "shut" / "repository"
    for folder in ("autograder", "handout", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "hidden"))
    (tmp_path / "shut").chmod(0o700)
    program = (
        _CLEAN.format(root=str(copy), before="")
        + "print(ask(lambda lib: lib.honest.answer()).value)\nsandbox.close()\n"
    )
    out = subprocess.run(
        [sys.executable, "-s", "-"], input=program, env=_ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True
    )
    assert out.stdout == "42\n"


def test_the_project_is_not_among_what_every_child_may_read():
    assert not landlock.opens(str(ROOT / "reference"))
    assert landlock.opens("/usr/lib") and landlock.opens(sys.prefix + "/lib")


# Secrets

# Only its halves are ever in a program's text, so a scan that contains this text does not find itself.
_HALVES = "5b1f7c3e9a", "2d8046ef71"


@needs_root
def test_no_secret_of_the_grader_is_in_a_childs_memory(tmp_path):
    """Planted in the environment before the clean start, and in the grader once the sandbox is made."""
    report = in_a_clean_process(
        """
        secret = "".join(HALVES)
        planted = [secret * 3, secret.encode(), {secret: [secret]}, torch.tensor(list(secret.encode()), dtype=torch.uint8)]
        os.environ["LATER"] = secret
        needle = b"".join(half.encode() for half in HALVES)

        def memory_of(pid):
            found, read = 0, 0
            with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
                for line in maps:
                    start, end = (int(part, 16) for part in line.split()[0].split("-"))
                    if line.split()[1][0] != "r" or line.rstrip().endswith(("[vvar]", "[vsyscall]", "[vvar_vclock]")):
                        continue
                    tail = b""
                    for place in range(start, end, 1 << 24):
                        try:
                            memory.seek(place)
                            piece = memory.read(min(1 << 24, end - place))
                        except (OSError, ValueError, OverflowError):
                            continue
                        found += (tail + piece).count(needle)
                        tail = piece[-len(needle):]
                        read += len(piece)
            return found, read

        def from_inside(lib, halves=HALVES):
            import ctypes, gc
            needle = b"".join(half.encode() for half in halves)
            # The stack holds the environment and the arguments that the process began with, here in one piece.
            environ = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
            objects = [o for o in gc.get_objects() if type(o) in (dict, list, tuple)]
            gc.unfreeze()
            objects = [o for o in gc.get_objects() if type(o) is dict]
            text = needle.decode()
            strings = [s for o in objects for pair in list(o.items()) for s in pair if type(s) is str and text in s]
            return len(objects) > 1000, [s for s in strings if s != text], dict(os.environ).get("LATER"), bool(environ)

        inside = ask(from_inside).value
        fresh = sandbox.child("honest")
        fresh.reply(IMPORT_DEADLINE)
        report = memory_of(fresh.pid), memory_of(sandbox._pid), memory_of(os.getpid())[0], inside
        """,
        before=f"HALVES = {_HALVES!r}",
        arguments=["honest-argument"],
    )
    (in_child, read), (in_zygote, _), in_grader, inside = report
    assert read > 100 << 20  # the scan has seen PyTorch
    assert in_grader > 3  # and finds what is there
    assert (in_child, in_zygote) == (0, 0)
    assert inside == [True, [], None, True]


@needs_root
def test_the_clean_start_forgets_the_environment(tmp_path):
    """The staff's commands start over before they import anything, so a variable is not even in their first stack page."""
    secret = "".join(_HALVES)
    submission = tmp_path / "submission"
    submission.mkdir()
    (submission / "memory.py").write_text("import time\ntime.sleep(30)\n")
    submission.chmod(0o755)
    command = [sys.executable, "-m", "autograder", "grade", str(submission), "--out", str(tmp_path / "results.json")]
    environment = {**os.environ, "TOKEN": secret, "PYTHONSTARTUP": secret}
    grader = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:

        def descendants():
            found, todo = [], [grader.pid]
            while todo:
                with suppress(FileNotFoundError):
                    for pid in Path(f"/proc/{(p := todo.pop())}/task/{p}/children").read_text().split():
                        found.append(int(pid))
                        todo.append(int(pid))
            return found

        def locked():
            with suppress(FileNotFoundError, ProcessLookupError):
                return [pid for pid in descendants() if "Seccomp:\t2" in Path(f"/proc/{pid}/status").read_text()]
            return []

        assert eventually(lambda: len(locked()) > 0 or grader.poll() is not None, 60)
        assert grader.poll() is None, "the grader ended"
        pids = [grader.pid, *descendants()]
        assert len(pids) >= 3
        for pid in pids:
            for place in ("environ", "cmdline"):
                with suppress(FileNotFoundError, ProcessLookupError):
                    assert secret.encode() not in Path(f"/proc/{pid}/{place}").read_bytes()

        def scanned():
            sizes = [_scan(pid, secret.encode()) for pid in locked()]
            return any(size > 100 << 20 for size in sizes)

        assert eventually(scanned, 30)
    finally:
        grader.terminate()
        with suppress(subprocess.TimeoutExpired):
            grader.wait(20)
        grader.kill()


def _scan(pid, needle):
    """Return how many bytes of a process could be read, or fail if they hold `needle`."""
    read = 0
    with (
        suppress(FileNotFoundError, ProcessLookupError),
        open(f"/proc/{pid}/maps") as maps,
        open(f"/proc/{pid}/mem", "rb", buffering=0) as memory,
    ):
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if line.split()[1][0] == "r" and "[v" not in line:
                with suppress(OSError, ValueError, OverflowError):
                    memory.seek(start)
                    data = memory.read(end - start)
                    read += len(data)
                    assert needle not in data
    return read


# Pieces


def test_a_package_imports_its_parts_on_first_use(monkeypatch):
    library = Package("json")
    assert library.decoder.JSONDecoder
    with pytest.raises(ModuleNotFoundError):
        print(library.nothing)


@pytest.mark.parametrize(
    ("file", "name"),
    [("memory.py", "student.memory"), ("extra/__init__.py", "student.extra"), ("a/b.py", "student.a.b")],
)
def test_a_file_is_a_module(file, name):
    assert package.module_name(file) == name


def test_limits_stay_below_what_is_allowed_already(monkeypatch):
    asked: dict[int, tuple[int, int]] = {}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (5, 10))
    monkeypatch.setattr(resource, "setrlimit", asked.__setitem__)
    limits.apply(limits.Footprint(1 << 20, 2 << 20), own_uid=True)
    assert all(soft <= 10 and hard <= 10 for soft, hard in asked.values())
    assert resource.RLIMIT_NPROC in asked
    asked.clear()
    limits.apply(limits.Footprint(1 << 20, 2 << 20), own_uid=False)
    assert resource.RLIMIT_NPROC not in asked  # it would count all processes of the grader's user


def test_the_clock_of_another_process_counts_all_its_threads():
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert eventually(lambda: syscalls.cpu_seconds(process.pid) > 0.2)
    finally:
        process.kill()
        process.wait()
    with pytest.raises(OSError, match="Invalid"):
        syscalls.cpu_seconds(process.pid)
    before = syscalls.cpu_seconds(os.getpid())
    thread = threading.Thread(target=sum, args=(range(3_000_000),))
    thread.start()
    thread.join()
    assert syscalls.cpu_seconds(os.getpid()) > before


def test_warming_keeps_to_one_thread():
    report = in_a_clean_process("""
        threads = len(os.listdir("/proc/self/task"))
        report = threads, torch.get_num_threads()
    """)
    assert report == [1, 1]


def test_without_landlock_what_a_child_left_elsewhere_is_swept_away_before_the_next_answers():
    report = in_a_clean_process(
        """
        import dataclasses
        sandbox.close()
        from autograder.sandbox.client import Features
        sandbox = Sandbox(dataclasses.replace(Features.of_this_machine(), landlock=False))
        package = sandbox.staging / "package"
        package.mkdir(mode=0o755)
        sandbox.load(package)

        def leave(lib):
            import os
            os.makedirs(f"/tmp/left-{os.getuid()}/deep/er")
            open(f"/dev/shm/left-{os.getuid()}", "w").close()
            return os.getuid()

        def look(lib):
            import glob
            return glob.glob("/tmp/left-*") + glob.glob("/dev/shm/left-*")

        def ask(probe):
            child = sandbox.child(None)
            child.send(probe)
            outcome = child.reply(Deadline(5, 20))
            child.close()
            return outcome.value

        report = ask(leave) >= 40000, ask(look)
        """
    )

    assert report == [True, []]
