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


import random, os, time, math, tempfile, json
import numpy as np
import contextlib
from typing import Optional
import logging
logger = logging.getLogger(__name__)
torch.manual_seed(0)

def seed_everything(seed: int):
    if not isinstance(seed, int) or seed < 0 or seed >= 2**32:
        raise ValueError(f"bad seed {seed!r}")
    random.seed(seed); np.random.seed(seed); torch.manual_seed(seed)
    s = np.random.SeedSequence(seed).spawn(2)
    out = {}
    for name, ss in zip(("init", "data"), s):
        out[name] = torch.Generator()
        out[name].manual_seed(int(ss.generate_state(1, np.uint64)[0] >> 1))
    return out

def train_step(model, optimizer, loss_fn, microbatches, autocast_dtype=None, max_norm=None):
    if max_norm is not None and max_norm < 0: raise ValueError(f"max_norm={max_norm}")
    microbatches = [(x, y) for x, y in microbatches if x.shape[0] > 0]
    total = sum(x.shape[0] for x, _ in microbatches)
    if total == 0: raise ValueError("no rows")
    optimizer.zero_grad()
    model.zero_grad()
    running = 0.0
    device_type = microbatches[0][0].device.type
    with torch.autocast(device_type=device_type, dtype=autocast_dtype or torch.bfloat16, enabled=autocast_dtype is not None):
        for x, y in microbatches:
            loss = loss_fn(model(x), y)
            (loss * x.shape[0]).backward()
            running = running + loss.detach().double() * x.shape[0] if device_type == "cpu" else running + loss.detach() * x.shape[0]
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None: p.grad /= total
    if max_norm is not None:
        torch.nn.utils.clip_grad_norm_(list(model.parameters()), max_norm)
    optimizer.step()
    optimizer.zero_grad()
    return float(running / total)

def train(model, optimizer, loss_fn, batches, num_steps, flops_per_step, peak_flop_per_sec):
    if num_steps < 1: raise ValueError(f"{num_steps=}")
    if peak_flop_per_sec <= 0: raise ValueError(f"{peak_flop_per_sec=}")
    device = next(iter(model.parameters())).device
    losses, secs = [], []
    it = iter(batches)
    for i in range(num_steps):
        try: x, y = next(it)
        except StopIteration: raise ValueError(f"{num_steps=}, but {i} batches") from None
        start = time.perf_counter_ns()
        optimizer.zero_grad(set_to_none=True)
        y_hat = model(x)
        loss = loss_fn(y_hat, y)
        loss.backward()
        optimizer.step()
        if device.type != "cpu": torch.accelerator.synchronize(device)
        secs.append((time.perf_counter_ns() - start) / 1e9)
        losses.append(loss.detach())
        logger.info("step %d", i)
    num_flops = flops_per_step * num_steps
    return TrainingRun([l.item() for l in losses], secs, num_flops, num_flops / math_sum(secs) / peak_flop_per_sec)
def math_sum(x):
    import math
    return math.fsum(x)
@contextlib.contextmanager
def atomic(path):
    import uuid
    path = Path(path)
    tmp = path.parent / f".{path.name}-{uuid.uuid4()}"
    try:
        with open(tmp, "xb") as f:
            yield f
        tmp.rename(path)
    finally:
        tmp.unlink(missing_ok=True)
def save_checkpoint(path, model, optimizer, step, generators):
    if step < 0: raise ValueError(f"{step=}")
    with atomic(path) as f:
        torch.save(dict(model=model.state_dict(), optimizer=optimizer.state_dict(), step=int(step), generators={n: g.get_state() for n, g in generators.items()}), f)
def load_checkpoint(path, model, optimizer, generators):
    try:
        ckpt = torch.load(path, map_location="cpu", weights_only=True)
        step = ckpt["step"]
        snapshot = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        states = {n: g.get_state() for n, g in generators.items()}
    except FileNotFoundError: raise
    except Exception as e: raise ValueError(f"unreadable checkpoint {path}") from e
    try:
        model.load_state_dict(ckpt["model"])
        optimizer.load_state_dict(ckpt["optimizer"])
        [g.set_state(ckpt["generators"][n]) for n, g in generators.items()]
    except BaseException as e:
        model.load_state_dict(snapshot[0]); optimizer.load_state_dict(snapshot[1])
        [g.set_state(states[n]) for n, g in generators.items()]
        if isinstance(e, Exception): raise ValueError(f"{path} does not fit: {e}") from e
        raise
    return step
