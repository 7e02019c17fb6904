"""Part 10: the training loop.

Everything meets here: a model, an optimizer, a loss and batches. They come as arguments, so nothing is imported from
the other parts, and everything here works with PyTorch's own models and optimizers as well.

What a run promises: stopped at any step, saved, loaded in a new process and continued, it takes bit for bit the steps
that it would have taken uninterrupted (on the same machine, on the CPU).
"""

import copy
import os
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.optim import Optimizer

Batch: TypeAlias = tuple[Shaped[Tensor, "rows ..."], Shaped[Tensor, "rows ..."]]
LossFunction: TypeAlias = Callable[[Shaped[Tensor, "rows ..."], Shaped[Tensor, "rows ..."]], Float[Tensor, ""]]


@dataclass(frozen=True)
class TrainingRun:
    """What a training run did and what it cost.

    Attributes:
        losses: the loss of each step, before its update.
        step_seconds: how long each step took, in seconds.
        num_flops: the FLOPs of all steps together.
        mfu: model FLOPs utilisation: FLOPs per second of all steps together, as a fraction of the peak.
    """

    losses: list[float]
    step_seconds: list[float]
    num_flops: int
    mfu: float


def seed_everything(seed: int) -> dict[str, torch.Generator]:
    """Seed every source of random numbers, and return two generators that nothing else draws from.

    Seeds Python's `random`, NumPy's global generator and PyTorch's (`torch.manual_seed` seeds the GPUs' as well). Data and
    initialisation have generators of their own, so that a change of the model does not change the order of the data.

    Args:
        seed: 0 or more and below 2³², which is what NumPy takes.

    Returns:
        Two generators on the CPU, "init" and "data", new ones at each call. The seed decides what each will draw, in
        this process and in any other, and the two draw different numbers. Neither is PyTorch's global generator.

    Raises:
        ValueError: the seed is out of range.

    Example:
        >>> generators = seed_everything(7)
        >>> sorted(generators)
        ['data', 'init']
        >>> first = torch.rand(3, generator=generators["data"])
        >>> again = torch.rand(3, generator=seed_everything(7)["data"])
        >>> torch.equal(first, again)
        True

    Source:
        PyTorch's documentation, "Reproducibility".
    """
    raise NotImplementedError("training.seed_everything")


def train_step(
    model: nn.Module,
    optimizer: Optimizer,
    loss_fn: LossFunction,
    microbatches: Sequence[Batch],
    autocast_dtype: torch.dtype | None = None,
    max_norm: float | None = None,
) -> float:
    """Take one optimizer step on the mean loss of a batch that comes in pieces.

    A batch too large for memory is cut into microbatches, and the gradients of the pieces are accumulated. With n_i
    rows in piece i, the loss and its gradient are those of the whole batch:

        loss = Σ_i (n_i / Σ_j n_j) · loss_fn(model(inputs_i), targets_i)

    In this order: the gradients of the optimizer's parameters are cleared, so that nothing left over from before counts;
    each microbatch goes forward and backward by itself, so that no more than one microbatch's activations are alive at
    a time; the gradients are clipped; the optimizer takes its step, with whatever learning rate its groups hold at that
    moment.

    Losses stay on their device until the end: each time the host reads a value (`.item()`, `float()`, `.cpu()`), it waits
    for the device, so that is not done for each microbatch.

    Args:
        model: called as `model(inputs)`; in training mode (`model.train()`).
        optimizer: any optimizer over the model's parameters. It may hold only some of them: the others are not changed
            and whether their old gradients are cleared is open, but their gradients are gradients of the model.
        loss_fn: called as `loss_fn(model(inputs), targets)`; returns the mean over the rows, a 0-d tensor.
        microbatches: pairs `(inputs, targets)`, whose first axis are the rows; the pieces may differ in the number of
            rows, and in the size of a row (such as the length of its sequence).
        autocast_dtype: if given (`torch.bfloat16`), the model runs under `torch.autocast` with this dtype on the device
            of the inputs; the loss may as well. Parameters and gradients keep their own dtype.
        max_norm: if given, all gradients together are scaled down to this norm where theirs is larger:
            g ← g · min(1, max_norm / √(Σ g²)), the sum running over all elements of all gradients of the model, whether
            or not the optimizer holds their parameters.

    Returns:
        The mean loss before the step: a `float`, which keeps no autograd graph alive.

    Raises:
        ValueError: there are no rows (no microbatch has any), or `max_norm` is negative (the message names it). No
            parameter has changed then.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.zeros_(model.weight)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        >>> x, y = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[0.0], [3.0], [0.0]])
        >>> train_step(model, optimizer, nn.functional.mse_loss, [(x[:2], y[:2]), (x[2:], y[2:])])
        3.0
        >>> model.weight.item()  # the gradient was -2·(1·0 + 2·3 + 3·0)/3 = -4
        2.0

    Source:
        Clipping: Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks" (ICML 2013).
        Mixed precision: Micikevicius et al., "Mixed Precision Training" (ICLR 2018).
    """
    raise NotImplementedError("training.train_step")


def train(
    model: nn.Module,
    optimizer: Optimizer,
    loss_fn: LossFunction,
    batches: Iterable[Batch],
    num_steps: int,
    flops_per_step: int,
    peak_flop_per_sec: float,
) -> TrainingRun:
    """Take `num_steps` steps, each on one batch, and account for them.

        num_flops = num_steps · flops_per_step
        mfu = num_flops / Σ step_seconds / peak_flop_per_sec

    A step's clock starts when its batch is there and stops when the device has done all of its work (an accelerator
    works on after PyTorch's calls have returned: `torch.accelerator.synchronize()`).

    Args:
        model: called as `model(inputs)`; in training mode (`model.train()`).
        optimizer: any optimizer over the model's parameters, or over some of them.
        loss_fn: called as `loss_fn(model(inputs), targets)`; returns the mean over the rows, a 0-d tensor.
        batches: gives pairs `(inputs, targets)`. Exactly `num_steps` are taken: one more, and a generator behind
            them would be a batch ahead when the run is saved.
        num_steps: number of steps, 1 or more.
        flops_per_step: FLOPs of one step, forward and backward.
        peak_flop_per_sec: what the device could do, more than 0.

    Returns:
        The run's losses, seconds, FLOPs and MFU.

    Raises:
        ValueError: `num_steps` or `peak_flop_per_sec` is too small (no batch has been taken then), or there are fewer
            than `num_steps` batches; the message names the value: with too few batches, `num_steps`.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> _ = nn.init.zeros_(model.weight)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
        >>> batch = (torch.tensor([[1.0]]), torch.tensor([[1.0]]))
        >>> run = train(model, optimizer, nn.functional.mse_loss, [batch] * 3, 3, 6, 1e12)
        >>> run.losses
        [1.0, 0.25, 0.0625]
        >>> run.num_flops
        18

    Source:
        MFU: Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways" (2022), section 4.1.
    """
    raise NotImplementedError("training.train")


def save_checkpoint(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: Optimizer,
    step: int,
    generators: dict[str, torch.Generator],
) -> None:
    """Write down everything that a run needs in order to go on.

    The file holds a dict with four keys, written by `torch.save`:

        "model"       model.state_dict()
        "optimizer"   optimizer.state_dict()
        "step"        step
        "generators"  for each name in `generators`, the generator's get_state()

    so that `torch.load(path, weights_only=True)` can read it, which runs no code from the file.

    The write is atomic: at every moment `path` is either what it was before or the whole new checkpoint. If writing
    fails (the disk is full, the process is killed), the old file is still there and whole; after an error, or Ctrl-C, no
    other file is left beside it either. Meanwhile the unfinished file has a name that is nobody else's: beside `run.pt`
    there may be a `run.tmp` of somebody's.

    Args:
        path: the file; an old one is replaced.
        model: any module.
        optimizer: the optimizer of its parameters.
        step: number of steps taken so far, 0 or more.
        generators: the generators whose future draws are part of the run, by name, as `seed_everything` returns them.

    Raises:
        ValueError: `step` is negative; the message names it. Nothing has been written then.
        OSError or RuntimeError: the disk is full, as Python or PyTorch reports it.

    Example:
        >>> import tempfile
        >>> model = nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "checkpoint.pt"
        ...     save_checkpoint(path, model, optimizer, 5, {"data": torch.Generator()})
        ...     checkpoint = torch.load(path, weights_only=True)
        >>> sorted(checkpoint), checkpoint["step"]
        (['generators', 'model', 'optimizer', 'step'], 5)

    Source:
        PyTorch's tutorial "Saving and Loading Models"; Python's documentation of `os.replace`.
    """
    raise NotImplementedError("training.save_checkpoint")


def load_checkpoint(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: Optimizer,
    generators: dict[str, torch.Generator],
) -> int:
    """Put a run back to where `save_checkpoint` wrote it down.

    `model`, `optimizer` and `generators` are changed in place. The file is read onto the CPU first, and its tensors go
    from there to where the model is, so that a checkpoint from a GPU can be loaded on a machine without one.

    It is all or nothing: after an error, the model, the optimizer and the generators are as they were before.

    Args:
        path: the file, in the format of `save_checkpoint`.
        model: a module of the same architecture as the saved one.
        optimizer: an optimizer of the same kind over the same parameters.
        generators: the generators to put back, by name; all of them must be in the file, which may hold more.

    Returns:
        The step that was saved, an `int`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be read (it is cut off, or no checkpoint), lacks a part that is to be put back, or
            does not fit the model (an entry of its state is missing, one too many, or of another shape), the optimizer
            or the generators; the message names the file.

    Example:
        >>> import tempfile
        >>> model = nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> generators = {"data": torch.Generator().manual_seed(1)}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "checkpoint.pt"
        ...     save_checkpoint(path, model, optimizer, 5, generators)
        ...     uninterrupted = torch.rand(3, generator=generators["data"])
        ...     load_checkpoint(path, model, optimizer, generators)
        5
        >>> torch.equal(torch.rand(3, generator=generators["data"]), uninterrupted)
        True

    Source:
        PyTorch's tutorial "Saving and Loading Models" and its documentation of `torch.load`.
    """
    raise NotImplementedError("training.load_checkpoint")
