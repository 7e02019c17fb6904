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
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be 0 or more and below 2**32, not {seed}")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # of every device
    # seed and seed + 1 would do as well, but then the data of one run would be the initialisation of the next.
    init_seed, data_seed = np.random.SeedSequence(seed).generate_state(2)
    return {
        "init": torch.Generator().manual_seed(int(init_seed)),
        "data": torch.Generator().manual_seed(int(data_seed)),
    }


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
    num_rows = sum(len(inputs) for inputs, _ in microbatches)
    if num_rows == 0:
        raise ValueError(f"a step needs at least one row, but the {len(microbatches)} microbatches have {num_rows}")
    if max_norm is not None and not max_norm >= 0:
        raise ValueError(f"max_norm must be 0 or more, not {max_norm}")

    optimizer.zero_grad()
    mean_loss: Tensor | float = 0.0
    for inputs, targets in microbatches:
        with nullcontext() if autocast_dtype is None else torch.autocast(inputs.device.type, dtype=autocast_dtype):
            loss = loss_fn(model(inputs), targets) * (len(inputs) / num_rows)  # n_i / Σ_j n_j
        loss.backward()  # adds to the gradients, and frees this microbatch's graph
        mean_loss = mean_loss + loss.detach()  # stays on the device: the host waits once, at the end
    if max_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return float(mean_loss)


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
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, not {num_steps}")
    if not peak_flop_per_sec > 0:
        raise ValueError(f"peak_flop_per_sec must be more than 0, not {peak_flop_per_sec}")

    losses: list[float] = []
    step_seconds: list[float] = []
    remaining = iter(batches)
    for step in range(num_steps):
        batch = next(remaining, None)
        if batch is None:
            raise ValueError(f"num_steps is {num_steps}, but there were only {step} batches")
        device = batch[0].device
        _wait_for(device)
        start = time.perf_counter()
        losses.append(train_step(model, optimizer, loss_fn, [batch]))
        _wait_for(device)
        step_seconds.append(time.perf_counter() - start)

    num_flops = num_steps * flops_per_step
    return TrainingRun(losses, step_seconds, num_flops, mfu=num_flops / sum(step_seconds) / peak_flop_per_sec)


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()


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
    if step < 0:
        raise ValueError(f"step must be 0 or more, not {step}")
    path = Path(path)
    unfinished = path.with_name(f"{path.name}.unfinished")  # in the same folder: renames are atomic within a disk
    try:
        with unfinished.open("wb") as file:
            torch.save({**_state(model, optimizer, generators), "step": step}, file)
            file.flush()
            os.fsync(file.fileno())  # the content has to reach the disk before the name does
        unfinished.replace(path)
    except BaseException:  # a KeyboardInterrupt too
        unfinished.unlink(missing_ok=True)
        raise


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
    with Path(path).open("rb") as file:  # raises FileNotFoundError
        try:
            checkpoint = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # what a damaged file raises depends on where it is damaged
            raise ValueError(f"{path} cannot be read as a checkpoint: {error}") from error
    if not isinstance(checkpoint, dict):
        raise ValueError(f"{path} holds a {type(checkpoint).__name__}, which is no checkpoint")

    # A copy, since loading writes into the tensors that a state_dict refers to.
    before = copy.deepcopy(_state(model, optimizer, generators))
    try:
        _restore(checkpoint, model, optimizer, generators)
        return int(checkpoint["step"])
    except Exception as error:  # each part says in its own way that a state does not fit
        _restore(before, model, optimizer, generators)
        raise ValueError(f"{path} does not fit this model, optimizer and generators: {error}") from error


def _state(model: nn.Module, optimizer: Optimizer, generators: dict[str, torch.Generator]) -> dict[str, Any]:
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "generators": {name: generator.get_state() for name, generator in generators.items()},
    }


def _restore(
    state: dict[str, Any], model: nn.Module, optimizer: Optimizer, generators: dict[str, torch.Generator]
) -> None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    for name, generator in generators.items():
        generator.set_state(state["generators"][name])
