"""The hidden suites: what Gradescope runs.

A row that takes the fixture `device` takes place on an accelerator: the simulated one of `sandbox/sim.py`, or a real one. It asks
what the student's code does there, and holds it against what the same code does on the CPU, so that a wrong formula costs nothing
there. Inputs are drawn on the CPU and moved. `agree` is for these rows.
"""

from collections.abc import Sequence

from torch import Tensor


def agree(here: Sequence[Tensor], there: Sequence[Tensor], rtol: float = 1e-9) -> bool:
    """Tell whether tensors computed on the CPU and on an accelerator are the same, within `rtol` of the largest of each."""
    return len(here) == len(there) and all(
        a.shape == b.shape and bool(((a - b).abs() <= rtol * a.abs().max()).all()) if a.numel() else a.shape == b.shape
        for a, b in zip(here, there, strict=True)
    )
