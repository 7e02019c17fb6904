"""What rows take place on, from inside the process: `sim`, the simulated accelerator, or `cuda`, a real one.

A probe asks here for what only the device knows: how often the host waited for its values, and how long its products took. On
CUDA the answers are PyTorch's and the GPU's own; on `sim` the device is a few lines of Python, and counts.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autograder.sandbox import sim

PRODUCT_SECONDS = 100.0  # on `sim`, whose clock is ahead of time: far above what a busy machine adds


def enter(device: str) -> None:
    """Make this process ready for rows on `device`, before student code is imported."""
    if device == sim.NAME and not sim.is_registered():
        sim.register()
    if device == "cuda" and not torch.cuda.is_initialized():
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")  # what is slow the first time is no row's


@contextmanager
def counting_host_copies(device: str) -> Iterator[Callable[[], int]]:
    """Yield a function that says how often the host has copied values from the device, and so waited for it."""
    if device != "cuda":
        before = sim.ACTIVITY.host_copies
        yield lambda: sim.ACTIVITY.host_copies - before
        return
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield lambda: sum("synchronizing CUDA operation" in str(warning.message) for warning in seen)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@contextmanager
def timing_products(device: str, copies: bool = False) -> Iterator[list[float]]:
    """Yield a list that will hold, when the block has ended, the seconds that each matrix product took the device.

    Args:
        device: `sim` or `cuda`.
        copies: whether on `sim` a copy to the host takes as long as a product. On CUDA it takes what it takes.
    """
    seconds: list[float] = []
    if device == "cuda":
        with _Stopwatch() as stopwatch:
            yield seconds
        torch.cuda.synchronize()
        seconds += [start.elapsed_time(end) / 1000 for start, end in stopwatch.events]
        return
    before = sim.ACTIVITY.worked
    sim.ACTIVITY.product_seconds = PRODUCT_SECONDS
    sim.ACTIVITY.copy_seconds = PRODUCT_SECONDS if copies else 0.0
    try:
        yield seconds
    finally:
        sim.ACTIVITY.product_seconds = sim.ACTIVITY.copy_seconds = 0.0
        sim.ACTIVITY.wait()
    seconds += [PRODUCT_SECONDS] * round((sim.ACTIVITY.worked - before) / PRODUCT_SECONDS)


class _Stopwatch(TorchDispatchMode):
    """Puts an event before and after each matrix product into the GPU's queue."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Let the operator run."""
        if func._schema.name.removeprefix("aten::") not in sim.PRODUCTS:
            return func(*args, **(kwargs or {}))
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        result = func(*args, **(kwargs or {}))
        end.record()
        self.events.append((start, end))
        return result
