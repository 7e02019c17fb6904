"""The hidden suites without a sandbox: a pytest plugin for writing suites, and the baseline of `make bench`.

    pytest -p autograder.plain autograder/hidden --submission reference

Student code runs in this very process, so nothing that this prints is a grade.
"""

import random
import resource
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autograder.compare import Tolerance, first_difference, misfit
from autograder.probing import relying
from autograder.sandbox import sim
from autograder.sandbox.codec import plain, snapshot
from autograder.sandbox.package import Package
from autograder.sandbox.warm import warm
from autograder.settings import case_seed, load_settings


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the folder that holds the modules to judge."""
    parser.addoption("--submission", default="reference", help="folder with the modules to judge")
    parser.addoption("--own-cpu", help="file for the CPU seconds that the submission's answers take in a warm process")


def pytest_configure(config: pytest.Config) -> None:
    """Make the submission importable as `student`, whatever its folder is called."""
    if config.getoption("--own-cpu"):
        warm()  # a child finds it done: what PyTorch does once a process is not the submission's own computing
    # For all rows, since it must be before the first that runs backward: `torch.accelerator` says here that there is one.
    sim.register()
    package = types.ModuleType("student")
    package.__path__ = [str(Path(config.getoption("--submission")).resolve())]
    sys.modules["student"] = package


_own_cpu = [0.0]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Write what was measured."""
    if path := config.getoption("--own-cpu"):
        Path(path).write_text(str(_own_cpu[0]), encoding="ascii")


def run_probe(probe: Callable[[Any], Any], package: Package) -> Any:
    """Run a probe with the generators as a child finds them."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    start = time.process_time()
    try:
        return snapshot(probe(package))
    finally:
        if package._name == "student":
            _own_cpu[0] += time.process_time() - start


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the bonus, which needs a GPU."""
    items[:] = [item for item in items if item.path.name != "test_cuda.py"]


@pytest.fixture
def device() -> str:
    """The accelerator that rows about one take place on."""
    return sim.NAME


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A number of this case's own, the same as in grading."""
    return case_seed(request.node.name, load_settings().seed)


@pytest.fixture
def relied(request: pytest.FixtureRequest) -> Callable[..., Callable[[Any], Any]]:
    """Return a problem's probe as the suite has it run."""
    relies_on = getattr(request.module, "RELIES_ON", {})
    return lambda problem_id, probe: relying(problem_id.split(".")[0], relies_on.get(problem_id, {}), probe)


@pytest.fixture
def compare(relied: Callable[..., Callable[[Any], Any]]) -> Callable[..., None]:
    """Compare the student's reply with the reference's."""

    def compare(problem_id: str, probe: Callable[[Any], Any], **tolerance: Any) -> None:
        probe = relied(problem_id, probe)
        expected = run_probe(probe, Package("reference"))
        difference = first_difference(expected, run_probe(probe, Package("student")), Tolerance(**tolerance))
        assert difference is None, f"{problem_id}: {difference}"

    return compare


@pytest.fixture
def observe(relied: Callable[..., Callable[[Any], Any]]) -> Callable[..., Any]:
    """Return the student's reply, checked against an example."""

    def observe(problem_id: str, probe: Callable[[Any], Any], *, like: Any) -> Any:
        reply = run_probe(relied(problem_id, probe), Package("student"))
        difference = misfit(like, reply)
        assert difference is None, f"{problem_id}: {difference}"
        return plain(reply)

    return observe


@pytest.fixture
def observe_memory(observe: Callable[..., Any]) -> Callable[..., tuple[Any, int]]:
    """Return the student's reply and how many bytes the peak of this process grew meanwhile."""

    def observe_memory(problem_id: str, probe: Callable[[Any], Any], *, like: Any) -> tuple[Any, int]:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        reply = observe(problem_id, probe, like=like)
        return reply, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10

    return observe_memory
