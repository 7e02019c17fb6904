"""Grading on a GPU, as far as it can be tested where there is none: walls, children, what is judged, and what is said.

Nothing here touches CUDA: its runtime, its allocator and its events are stood in for. `make verify DEVICE=cuda` is the test on a GPU.
"""

import subprocess
import sys
import textwrap
import warnings
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autograder.hidden.test_cuda import test_peak_cuda_bytes_is_the_allocators_peak as peak_row
from autograder.sandbox import accelerator
from autograder.tests.handed_in import ROOT, write
from autograder.tests.running import open_folder, run
from reference import memory

WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU: make verify DEVICE=cuda tries it")


def output_of(script: str, **environment: str) -> list[str]:
    """Return the lines that a Python script prints, in a process of its own at the top of the repository."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@WITHOUT_GPU
def test_without_a_gpu_grading_on_one_is_refused_and_nothing_is_lost():
    with open_folder() as folder:
        out = folder / "results.json"
        out.write_text("of before")
        code, _, said = run("grade", ROOT / "reference", "--device", "cuda", "--out", out)
        assert (code, out.read_text()) == (2, "of before")
    assert said.startswith("grade: DEVICE=cuda needs a GPU, and PyTorch has none here: ") and said.count("\n") == 1


@WITHOUT_GPU
def test_without_a_gpu_verification_on_one_is_skipped_with_a_reason():
    code, out, said = run("verify", "--device", "cuda")
    assert (code, out) == (0, "")
    assert said.startswith("verify: skipped: DEVICE=cuda needs a GPU") and said.count("\n") == 1


def test_only_children_on_a_gpu_may_open_it(tmp_path):
    """/dev/full stands in for a GPU's device file."""
    package = write(tmp_path / "package", {"honest.py": ""})
    script = f"""
        import os, resource, shutil
        from autograder.sandbox import accelerator, landlock
        from autograder.sandbox.warm import warm
        warm()
        accelerator.enter = lambda device: None
        landlock._GPU = ("/dev/ful*",)
        from autograder.sandbox.client import IMPORT_DEADLINE, Deadline, Sandbox
        sandbox = Sandbox(ahead=0)
        folder = sandbox.staging / "one"
        shutil.copytree({str(package)!r}, folder)
        folder.chmod(0o755)
        sandbox.load(folder)

        def probe(lib):
            try:
                os.close(os.open("/dev/full", os.O_RDWR))
                opened = True
            except OSError:
                opened = False
            unlimited = resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
            return opened, unlimited, os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("NVIDIA_TF32_OVERRIDE")

        for device in ("cpu", "cuda", "cpu", "sim", "cuda"):
            child = sandbox.child("honest", device)
            child.reply(IMPORT_DEADLINE)
            child.send(probe)
            print(device, child.reply(Deadline(5, 60)).value, sandbox.features.landlock)
            child.close()
        sandbox.close()
    """

    lines = output_of(script, CUDA_VISIBLE_DEVICES="3")

    assert [line.split()[0] for line in lines] == ["cpu", "cuda", "cpu", "sim", "cuda"]
    for line in lines:
        if line.endswith("True"):  # there is Landlock
            assert line.startswith("cuda (True" if line.startswith("cuda") else f"{line.split()[0]} (False")
        assert ("True, '3', '0'" in line) == line.startswith("cuda")
        assert ("False, '', None" in line) == (not line.startswith("cuda"))


SUITE = '''
    import os
    from pathlib import Path
    from gradescope_utils.autograder_utils.decorators import number, weight

    def note(what, observe, raising=False):
        def probe(lib):
            assert not raising
            return os.getpid()
        pid = 0
        try:
            pid = observe("memory.get_memory_usage", probe, like=0)
        finally:
            with Path(os.environ["NOTES"]).open("a") as file:
                print(what, pid, file=file)

    @number("1.1")
    @weight(1)
    def test_a(observe, device):
        """A."""
        note(device, observe)
        note(device, observe)

    @number("1.1")
    @weight(1)
    def test_b(observe):
        """B."""
        note("cpu", observe)

    @number("1.1")
    @weight(1)
    def test_c(observe, device):
        """C."""
        note(device, observe)

    @number("1.1")
    @weight(1)
    def test_d(observe, device):
        """D."""
        note("lost", observe, raising=True)

    @number("1.1")
    @weight(1)
    def test_e(observe, device):
        """E."""
        note(device, observe)
'''


def test_a_child_on_a_gpu_serves_its_part_until_a_row_is_lost(tmp_path):
    """After a sticky error CUDA refuses everything in that process."""
    write(tmp_path, {"test_memory.py": textwrap.dedent(SUITE)})
    script = f"""
        from autograder.sandbox import accelerator
        from autograder.sandbox.warm import warm
        warm()
        accelerator.enter = lambda device: None
        from autograder.sandbox.client import Sandbox
        sandbox = Sandbox()
        from pathlib import Path
        from autograder.plugin import run_suites
        from autograder.submission import read_submission
        from handout.problems import Assignment, Part, Problem
        problem = Problem("memory.get_memory_usage", "1.1", "", 5, False)
        assignment = Assignment("", (Part("memory", 1, "", True, (problem,)),))
        submission = read_submission(Path("reference"), frozenset({{"memory"}}))

        def job(suites):
            print(*(row.outcome for row in suites.grade(submission).rows))

        run_suites(sandbox, assignment, job, Path({str(tmp_path)!r}), device="cuda")
        sandbox.close()
    """

    (outcomes,) = output_of(script, NOTES=str(tmp_path / "notes"))

    notes = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    assert outcomes == "passed passed passed failed passed"
    assert [what for what, _ in notes] == ["cuda", "cuda", "cpu", "cuda", "lost", "cuda"]
    first, again, cpu, third, _, after = (pid for _, pid in notes)
    assert first == again == third and cpu != first
    assert after not in ("0", first)


def test_the_process_that_children_come_from_starts_neither_cuda_nor_autograd():
    script = """
        import torch
        def refuse(*args, **kwargs):
            raise AssertionError("started")
        torch.cuda._lazy_init = torch.autograd.backward = torch.autograd.grad = torch.Tensor.backward = refuse
        from autograder.sandbox.warm import warm
        warm()
        print(torch.cuda.is_initialized())
    """
    assert output_of(script) == ["False"]


class Allocator:
    """CUDA's allocator: blocks of 512 bytes, and a peak."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = self.peak = 0
        empty = torch.empty

        def make(size: int, dtype: torch.dtype, device: str) -> torch.Tensor:
            assert device == "cuda"
            tensor, size = empty(size, dtype=dtype), -(-size // 512) * 512
            self.held += size
            self.peak = max(self.peak, self.held)
            weakref.finalize(tensor, self.free, size)
            return tensor

        monkeypatch.setattr(torch, "empty", make)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", self.reset)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: self.held)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: self.peak)

    def free(self, size: int) -> None:
        self.held -= size

    def reset(self, device: object = None) -> None:
        self.peak = self.held


def no_reset(fn: Any, device: Any) -> int:
    before = torch.cuda.memory_allocated(device)
    fn()
    return torch.cuda.max_memory_allocated(device) - before


def nothing_subtracted(fn: Any, device: Any) -> int:
    torch.cuda.reset_peak_memory_stats(device)
    fn()
    return torch.cuda.max_memory_allocated(device)


def what_is_left(fn: Any, device: Any) -> int:
    before = torch.cuda.memory_allocated(device)
    fn()
    return torch.cuda.memory_allocated(device) - before


def called_twice(fn: Any, device: Any) -> int:
    fn()
    return memory.peak_cuda_bytes(fn, device)


def any_device(fn: Any, device: Any) -> int:
    return memory.peak_cuda_bytes(fn, "cuda")


def judged(solution: Any, case: str) -> str:
    """Return what the bonus row's case says of a solution, "" if nothing."""
    lib = SimpleNamespace(memory=SimpleNamespace(peak_cuda_bytes=solution))
    try:
        peak_row(lambda problem, probe, like: probe(lib), 7, "cuda", case)
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("case", ["peaks", "calls and refusals"])
def test_the_bonus_is_won_by_the_reference(monkeypatch, case):
    Allocator(monkeypatch)
    assert judged(memory.peak_cuda_bytes, case) == ""


@pytest.mark.parametrize(
    ("solution", "case"),
    [
        (no_reset, "peaks"),
        (nothing_subtracted, "peaks"),
        (what_is_left, "peaks"),
        (called_twice, "calls and refusals"),
        (any_device, "calls and refusals"),
    ],
)
def test_the_bonus_is_lost_by_mistakes(monkeypatch, solution, case):
    Allocator(monkeypatch)
    assert judged(solution, case)


def test_products_on_a_gpu_are_timed_by_its_events(monkeypatch):
    class Event:
        clock = 0.0

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            Event.clock += 1.0
            self.at = Event.clock

        def elapsed_time(self, end: "Event") -> float:  # in milliseconds
            return 1000 * (end.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    with accelerator.timing_products("cuda") as seconds:
        x = torch.ones(3, 3)
        (x @ x + 1).relu()
        torch.bmm(x[None], x[None])
        assert seconds == []
    assert seconds == [1.0, 1.0]


def test_waiting_for_a_gpu_is_counted_by_pytorchs_own_warnings(monkeypatch):
    modes = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with accelerator.counting_host_copies("cuda") as host_copies:
        warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)
        warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)
        warnings.warn("something else", stacklevel=1)
        assert host_copies() == 2
    assert modes == ["warn", "default"]
