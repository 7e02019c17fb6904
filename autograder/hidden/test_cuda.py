"""The bonus problem: what only a GPU can show. Its row is graded where there is one, outside the assignment's total.

The allocator's own report is taken in the same process, since there is no other, and held against the answer as a ratio.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from gradescope_utils.autograder_utils.decorators import number, weight

from autograder.probing import refusal


def workloads(seed: int, device: str) -> list[Callable[[], Any]]:
    """Programs that hold and let go of memory; the sizes are no multiples of the allocator's block."""
    random = Random(seed)
    sizes = [random.randint(1 << 20, 1 << 22) for _ in range(4)]

    def block(size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=device)

    def grows_and_shrinks() -> None:
        kept = block(sizes[0])
        block(sizes[1])  # let go at once
        block(sizes[2])
        del kept
        block(sizes[3])

    def holds_all() -> list[torch.Tensor]:
        return [block(size) for size in sizes]

    return [grows_and_shrinks, holds_all, lambda: block(7), lambda: None]


def allocators_peak(fn: Callable[[], object], device: str) -> int:
    """Return the peak above what was held before, as the allocator reports it."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    fn()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


@number("3.6")
@weight(3)
@pytest.mark.parametrize("case", ["peaks", "calls and refusals"])
def test_peak_cuda_bytes_is_the_allocators_peak(observe: Any, seed: int, device: str, case: str) -> None:
    """peak_cuda_bytes: what fn held at most, above what was there, whatever the peak before; CUDA devices only."""

    def probe(lib: Any) -> Any:
        kept = torch.empty(3 << 20, dtype=torch.uint8, device=device)  # is there before and after, so it does not count
        pairs = []
        for fn in workloads(seed, device):
            torch.empty(64 << 20, dtype=torch.uint8, device=device)  # an earlier peak, which must not count
            pairs.append((lib.memory.peak_cuda_bytes(fn, device), allocators_peak(fn, device)))
        return pairs, kept.numel()

    def probe_calls(lib: Any) -> Any:
        calls: list[int] = []
        lib.memory.peak_cuda_bytes(lambda: calls.append(1), torch.device(device, 0))
        return calls, [
            str(refusal(lambda d=d: lib.memory.peak_cuda_bytes(lambda: None, d), names=d)) for d in ("cpu", "meta")
        ]

    if case == "peaks":
        pairs, _ = observe("memory.peak_cuda_bytes", probe, like=([(0, 0)], 0))
        for got, measured in pairs:
            assert abs(got - measured) <= 0.01 * measured, "Another peak than the allocator reports."
    else:
        calls, refusals = observe("memory.peak_cuda_bytes", probe_calls, like=([0], [""]))
        assert calls == [1], "fn is to be called once."
        assert refusals == [str(("refused", "ValueError", True))] * 2, "Another device is a ValueError that names it."
