"""What rows take place on, from inside the process: `sim`, the simulated accelerator, or `cuda`, a real one.

A probe asks here for what only the device knows: how often the host waited for its values, and how long its products took. On
CUDA the answers are PyTorch's and the GPU's own; on `sim` the device is a few lines of Python, and counts.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autograder.sandbox import sim

PRODUCT_SECONDS = 100.0  # on `sim`, whose clock is ahead of time: far above what a busy machine adds
PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm")  # by name: operators cannot be pickled into a child


def enter(device: str) -> None:
    """Make this process ready for rows on `device`, before student code is imported."""
    if device == sim.NAME and not sim.is_registered():
        sim.register()


@contextmanager
def counting_host_copies(device: str) -> Iterator[Callable[[], int]]:
    """Yield a function that says how often the host has copied values from the device, and so waited for it."""
    before = sim.ACTIVITY.host_copies
    yield lambda: sim.ACTIVITY.host_copies - before


@contextmanager
def timing_products(device: str) -> Iterator[list[float]]:
    """Yield a list that will hold, when the block has ended, the seconds that each matrix product took the device."""
    seconds: list[float] = []
    before = sim.ACTIVITY.worked
    sim.ACTIVITY.product_seconds = PRODUCT_SECONDS
    try:
        yield seconds
    finally:
        sim.ACTIVITY.product_seconds = 0.0
        sim.ACTIVITY.wait()
    seconds += [PRODUCT_SECONDS] * round((sim.ACTIVITY.worked - before) / PRODUCT_SECONDS)
