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
    losses: list[float]
    step_seconds: list[float]
    num_flops: int
    mfu: float


def seed_everything(seed: int) -> dict[str, torch.Generator]:
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
    num_rows = sum(len(inputs) for inputs, _ in microbatches)
    if num_rows == 0:
        raise ValueError(f"a step needs at least one row, but the {len(microbatches)} microbatches have {num_rows}")
    if max_norm is not None and not max_norm >= 0:
        raise ValueError(f"max_norm must be 0 or more, not {max_norm}")

    model.zero_grad()
    mean_loss: Tensor | float = 0.0
    for inputs, targets in microbatches:
        with nullcontext() if autocast_dtype is None else torch.autocast(inputs.device.type, dtype=autocast_dtype):
            loss = loss_fn(model(inputs), targets) * len(inputs)  # n_i / Σ_j n_j
        loss.backward()  # adds to the gradients, and frees this microbatch's graph
        mean_loss = mean_loss + loss.detach()  # stays on the device: the host waits once, at the end
    mean_loss = mean_loss / num_rows
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= num_rows
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
