"""Part 10, hidden: everything runs on plain PyTorch models and optimizers but the last row, which takes the student's.

The format of a checkpoint is part of the assignment, so that files that the probes write are read by the student's
`load_checkpoint`, and those that the student's `save_checkpoint` writes are read by the probes: a mistake in one costs
nothing in the other. For the same reason the student's `train` gets a right `train_step` where it calls its own.
"""

import math
import mmap
import os
import random
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from gradescope_utils.autograder_utils.decorators import number, weight
from torch import Tensor, nn

from autograder.hidden import agree
from autograder.probing import refusal
from autograder.sandbox import accelerator

mse = nn.functional.mse_loss


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp())
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def working_in(path: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)


def network(seed: int, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """A small model whose parameters come from a generator of their own."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).to(dtype)
    for p in model.parameters():
        p.data = (torch.randn(p.shape, generator=generator, dtype=torch.float64) / 2).to(dtype)
    return model


def hooked(model: nn.Sequential) -> nn.Sequential:
    """Have a call of the model give another answer than its `forward`, as hooks may."""
    model.register_forward_hook(lambda module, args, output: 1.5 * output)
    return model


def lopsided(predictions: Tensor, targets: Tensor) -> Tensor:
    """A loss that is another one with its arguments the other way round."""
    return mse(predictions, 2 * targets)


def rows(seed: int, *sizes: int, dtype: torch.dtype = torch.float64) -> list[tuple[Tensor, Tensor]]:
    """Batches of so many rows."""
    generator = torch.Generator().manual_seed(seed + 1)
    numbers = [torch.randn(size, 6, generator=generator, dtype=torch.float64).to(dtype) for size in sizes]
    return [(table[:, :5].contiguous(), table[:, 5:].contiguous()) for table in numbers]


def sequences(seed: int, *shapes: tuple[int, int]) -> list[tuple[Tensor, Tensor]]:
    """Batches of so many rows, each of so many positions: the more elements are not the more rows."""
    flat = rows(seed, *(size * length for size, length in shapes))
    return [(x.view(*shape, 5), y.view(*shape, 1)) for (x, y), shape in zip(flat, shapes, strict=True)]


def values(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def moved(model: nn.Module, start: list[Tensor]) -> list[Tensor]:
    return [p - q for p, q in zip(values(model), start, strict=True)]


def largest(reply: Any) -> float:
    """The largest magnitude among all tensors of a reply: the displacement of the parameter that moved most."""
    if isinstance(reply, Tensor):
        return float(reply.abs().max()) if reply.is_floating_point() else 0.0
    if isinstance(reply, dict):
        return largest(list(reply.values()))
    return max(map(largest, reply), default=0.0) if isinstance(reply, (list, tuple)) else 0.0


def plain_step(model, optimizer, loss_fn, microbatches, autocast_dtype=None, max_norm=None) -> float:
    """One step on whole batches, in place of the student's own where the loop around it is judged."""

    def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
        with nullcontext() if autocast_dtype is None else torch.autocast(inputs.device.type, dtype=autocast_dtype):
            return loss_fn(model(inputs), targets)

    optimizer.zero_grad()
    losses = [loss_of(inputs, targets) for inputs, targets in microbatches]
    (sum(losses) / len(losses)).backward()
    if max_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return sum(loss.item() for loss in losses) / len(losses)


def graphs_alive() -> tuple[Callable[[nn.Module, Any, Tensor], None], list[int], list[int]]:
    """Return a forward hook of a layer, and two lists to which each of its calls adds.

    How many graphs of earlier calls are alive still, and how many of them have not been gone through backward.
    """
    hooks: list[weakref.ref] = []  # a hook belongs to the graph that it was put into: the graph's end is its end
    gone_through: list[None] = []
    alive: list[int] = []
    waiting: list[int] = []

    def watch(layer: nn.Module, args: Any, output: Tensor) -> None:
        def hook(gradient: Tensor) -> None:
            gone_through.append(None)

        alive.append(sum(earlier() is not None for earlier in hooks))
        waiting.append(len(hooks) - len(gone_through))
        output.register_hook(hook)
        hooks.append(weakref.ref(hook))

    return watch, alive, waiting


@number("10.1")
@weight(0.5)
@pytest.mark.parametrize("case", ["some seed", "the smallest", "the largest", "out of range"])
def test_seed_everything_seeds_all_three(observe, seed, case):
    """seed_everything: the seed decides what Python, NumPy and PyTorch draw."""
    first = {"the smallest": 0, "the largest": 2**32 - 1}.get(case, seed % 2**31)

    def probe(lib):
        if case == "out of range":
            # What NumPy raises here is a ValueError too, and will do.
            return [[str(refusal(partial(lib.training.seed_everything, s)))] for s in (-1, 2**32)]
        draws: list[list[str]] = []
        for number_of_draws, s in enumerate((first, first ^ 1, first)):
            lib.training.seed_everything(s)
            draws.append([str(random.random()), str(np.random.rand()), str(torch.rand(3).tolist())])
            for _ in range(number_of_draws):
                random.random(), np.random.rand(), torch.rand(2)
        return draws

    draws = observe("training.seed_everything", probe, like=[[""]])
    if case == "out of range":
        assert draws == [[str(("refused", "ValueError", True))]] * 2, "NumPy takes no such seed: a ValueError."
        return
    for source, a, b, c in zip(("Python's random", "NumPy", "PyTorch"), *draws, strict=True):
        assert a == c, f"The same seed again: {source} draws other numbers."
        assert a != b, f"Another seed: {source} draws the same numbers."


@number("10.1")
@weight(0.5)
def test_seed_everything_returns_two_generators(observe, seed):
    """seed_everything: "init" and "data" are two CPU generators of their own, and draw different numbers."""

    def hash_elsewhere(value):
        # In another process the hash of a str is another, and so is that of whatever holds one.
        return hash((value, "elsewhere")) if "'" in repr(value) else hash(value)

    def probe(lib):
        draws: list[Any] = []
        earlier: list[torch.Generator] = []
        for s, hashes in (
            (seed % 2**31, hash),
            ((seed + 12345) % 2**31, hash),
            (seed % 2**31, hash),
            (0, hash),
            (seed % 2**31, hash_elsewhere),
        ):
            # Among the module's names only: what PyTorch has hashed stays where it is.
            with mock.patch.object(lib.training, "hash", getattr(lib.training, "hash", hashes), create=True):
                generators = lib.training.seed_everything(s)
            new = not any(generator is other for generator in generators.values() for other in earlier)
            earlier += generators.values()
            names = sorted(generators)
            devices = [generators[name].device.type for name in names]
            before = torch.get_rng_state().tolist()
            # The second time in the other order: what one draws may not depend on whether the other has drawn before.
            order = names if not draws else names[::-1]
            numbers_of = {name: torch.rand(4, generator=generators[name]).tolist() for name in order}
            numbers = [numbers_of[name] for name in names]
            draws.append((names, devices, numbers, before == torch.get_rng_state().tolist(), new))
        return draws

    draws = observe("training.seed_everything", probe, like=[([""], [""], [[0.0]], True, True)])
    for names, devices, numbers, global_state_kept, _ in draws:
        assert names == ["data", "init"], 'The generators are called "init" and "data".'
        assert devices == ["cpu", "cpu"], "Both are generators on the CPU."
        assert numbers[0] != numbers[1], "Both generators draw the same numbers."
        assert global_state_kept, "To draw from one of the two is to draw from PyTorch's global generator."
    assert draws[0][2] == draws[2][2], "The same seed again: the two generators draw other numbers, or they are one."
    assert draws[0][2] == draws[4][2], (
        "In another process the same seed gives other generators: a str's hash is another in each process."
    )
    assert draws[0][2][0] != draws[1][2][0], 'Another seed: "data" draws the same numbers.'
    assert draws[0][2][1] != draws[1][2][1], 'Another seed: "init" draws the same numbers.'
    assert all(new for *_, new in draws), (
        "A second call of seed_everything returns generators of the first, not new ones."
    )


@number("10.2")
@weight(1)
@pytest.mark.parametrize(
    "sizes",
    [(8,), (7, 1), (2, 5, 3, 1), (4, 4), ((2, 3), (5, 1), (3, 4))],
    ids=["one", "unequal", "four unequal", "equal", "sequences"],
)
def test_train_step_accumulates_to_one_big_batch(compare, seed, sizes):
    """train_step: microbatches, equal or not, take the step of the whole batch, and return its loss."""

    def probe(lib):
        draw = rows if isinstance(sizes[0], int) else sequences
        model, batches = hooked(network(seed)), draw(seed, *sizes)
        start = values(model)
        loss = lib.training.train_step(model, torch.optim.SGD(model.parameters(), lr=0.1), lopsided, batches)
        return {
            "the step and its loss": ([torch.tensor(float(loss), dtype=torch.float64)], moved(model, start)),
            "the caller's microbatches afterwards": batches,
        }

    # In float64 another order of the same sums differs by 1e-15, in a float32 sum of the losses by 1e-7; a mean of means by 1e-2.
    compare("training.train_step", probe, rtol=1e-6)


@number("10.2")
@weight(0.5)
@pytest.mark.parametrize("case", ["three steps", "left from before"])
def test_train_step_clears_old_gradients(compare, seed, case):
    """train_step: gradients from before the step do not count."""

    def probe(lib):
        model, [first, *others] = network(seed), rows(seed, 4, 4, 4)
        start = values(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if case == "left from before":
            mse(model(first[0]), 3 * first[1]).backward()
        for batch in others[:1] if case == "left from before" else [first, *others]:
            lib.training.train_step(model, optimizer, mse, [batch])
        return moved(model, start)

    compare("training.train_step", probe, rtol=1e-9)


def moved_to(place: str, batches: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    return [(inputs.to(place), targets.to(place)) for inputs, targets in batches]


@number("10.2")
@weight(0.5)
@pytest.mark.parametrize("case", ["values", "autocast", "host copies"])
def test_train_step_works_on_an_accelerator(observe, seed, device, case):
    """train_step: on an accelerator the step of the CPU, under its own autocast; its values are read once, at the end."""

    def probe(lib):
        def step(place: str, *sizes: int, dtype: torch.dtype = torch.float64, **options: Any) -> Any:
            model = network(seed, dtype).to(place)
            computed: list[str] = []
            model[0].register_forward_hook(lambda module, args, output: computed.append(str(output.dtype)))
            start, batches = values(model), moved_to(place, rows(seed, *sizes, dtype=dtype))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with accelerator.counting_host_copies(device) as host_copies:
                loss = lib.training.train_step(model, optimizer, mse, batches, **options)
                copies = host_copies()
            step = [
                torch.tensor([float(loss)], dtype=torch.float64),
                *(p.double().flatten().cpu() for p in moved(model, start)),
            ]
            return step, computed, copies

        if case == "autocast":
            options = {"dtype": torch.float32, "autocast_dtype": torch.bfloat16}
            return *(step(place, 6, 2, **options)[:2] for place in ("cpu", device)), 0, 0
        if case == "values":
            return *(step(place, 5, 2, 1, max_norm=0.5)[:2] for place in ("cpu", device)), 0, 0
        few, many = (step(device, *[2] * microbatches) for microbatches in (2, 7))
        return few[:2], few[:2], few[2], many[2]

    steps = [torch.zeros(0, dtype=torch.float64)], [""]
    here, there, few, many = observe("training.train_step", probe, like=(steps, steps, 0, 0))
    assert any(bool(t.any()) for t in here[0][1:]), "A step moves the parameters."
    assert here[1] == there[1], "On an accelerator the model does not compute in the dtype in which it does on the CPU."
    rtol = 0.05 if case == "autocast" else 1e-6
    assert agree(here[0], there[0], rtol), "Another loss or another step on an accelerator than on the CPU."
    assert many <= few, (
        "More microbatches, more waiting: .item(), .cpu() or float() is called for each of them, "
        "or PyTorch's anomaly detection is on, which reads every gradient."
    )


@number("10.2")
@weight(0.5)
@pytest.mark.parametrize(
    "case",
    ["clipped", "below the limit", "no limit", "a limit of 0", "without some gradients", "an optimizer of a part"],
)
def test_train_step_clips_by_the_global_norm(compare, seed, case):
    """train_step: one factor scales all gradients of the whole batch to max_norm, and none is scaled up."""

    def probe(lib):
        # Equal microbatches where the norm makes up for a wrong weight, else one: weights are judged above.
        sizes = (4, 4) if case in ("clipped", "without some gradients") else (8,)
        model, batches = network(seed), rows(seed, *sizes)
        if case == "without some gradients":
            model[0].requires_grad_(False)
            model.register_parameter("unused", nn.Parameter(torch.ones(3, dtype=torch.float64)))
        # No gradient is left from before, since it is open whether those of the others are cleared.
        held = model[2] if case == "an optimizer of a part" else model
        start = values(held)
        # A loss of this size has gradients of norm 10 to 10,000.
        max_norm = {"below the limit": 1e6, "no limit": None, "a limit of 0": 0.0}.get(case, 0.5)
        optimizer = torch.optim.SGD(held.parameters(), lr=1.0)
        lib.training.train_step(
            model, optimizer, lambda prediction, target: 100 * mse(prediction, target + 3), batches, max_norm=max_norm
        )
        return {case: moved(held, start)}

    # PyTorch adds 1e-6 to the norm: 1e-7 of it here. A factor a parameter, or a microbatch, is 1e-1 off.
    compare("training.train_step", probe, scale=largest, rtol=1e-4)


@number("10.2")
@weight(0.5)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, None], ids=["bfloat16", "float16", "no autocast"])
def test_train_step_autocasts_and_keeps_float32_weights(compare, seed, dtype):
    """train_step: under autocast the model computes in the dtype named, and its weights remain float32, unrounded."""

    def probe(lib):
        model, batches = network(seed, torch.float32), rows(seed, 8, dtype=torch.float32)
        start = values(model)
        computed: list[torch.dtype] = []
        model[0].register_forward_hook(lambda module, args, output: computed.append(output.dtype))
        # A step far smaller than bfloat16's rounding of the weights, which would drown it.
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        lib.training.train_step(model, optimizer, mse, batches, autocast_dtype=dtype)
        kinds = [p.dtype for p in model.parameters()]
        return computed, kinds, torch.is_autocast_enabled("cpu"), moved(model, start)

    # Where the loss is computed, inside autocast or after it, moves the step by up to 2e-2; rounded weights by 1 and more.
    compare("training.train_step", probe, scale=largest, rtol=0.08)


@number("10.2")
@weight(0.5)
@pytest.mark.parametrize("case", ["microbatches", "steps", "refusals"])
def test_train_step_returns_a_float_without_graph(observe, compare, seed, case):
    """train_step: one microbatch's graph at a time; the loss is a float; without rows there is none, and no step."""

    def step(lib: Any, batches: list[tuple[Tensor, Tensor]], loss_fn: Any, **options: Any) -> Any:
        model = options.pop("model", None) or network(seed)
        return lib.training.train_step(model, torch.optim.SGD(model.parameters(), lr=0.01), loss_fn, batches, **options)

    def refusing(lib):
        model = network(seed)
        start = values(model)
        rowless = [refusal(partial(step, lib, rows(seed, *sizes), mse, model=model)) for sizes in ((), (0,), (0, 0))]
        negative = [
            refusal(partial(step, lib, rows(seed, 3), mse, model=model, max_norm=limit), names=limit)
            for limit in (-2.5, -0.001)
        ]
        return {"no rows": rowless, "a negative max_norm": negative, "the model afterwards": moved(model, start)}

    def probe(lib):
        watch, alive, waiting = graphs_alive()
        batches, losses = rows(seed, *[2] * 24), []
        for microbatches in [batches] if case == "microbatches" else [[batch] for batch in batches]:
            model = network(seed)
            model[0].register_forward_hook(watch)
            losses.append(step(lib, microbatches, mse, model=model))
        return losses, alive, waiting

    if case == "refusals":
        compare("training.train_step", refusing)
        return
    _, alive, waiting = observe("training.train_step", probe, like=([0.0], [0], [0]))
    assert len(alive) == 24, "The model is not called once for each microbatch."
    # Right: the last call's, if its loss still has a name. Wrong: up to 23.
    assert max(alive) <= 3, "The graphs of earlier microbatches are still in memory when a later one is computed."
    # A graph that has been gone through keeps no activations, whatever names it has.
    assert not any(waiting), (
        "A microbatch goes forward before the one before it has gone backward: the activations of both are in memory."
    )


@number("10.2")
@weight(0.5)
@pytest.mark.parametrize("case", ["by hand", "by a scheduler", "a group of its own", "some parameters only"])
def test_train_step_uses_the_learning_rate_of_the_moment(compare, seed, case):
    """train_step: the optimizer takes the step, with the learning rate and the state that it has at that moment."""

    def probe(lib):
        model, batches = network(seed), rows(seed, 4, 4, 4)
        start = values(model)
        groups: Any = model[2].parameters() if case == "some parameters only" else model.parameters()
        if case == "a group of its own":
            groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.3}]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        for lr, batch in zip((0.2, 0.01, 0.4), batches, strict=True):
            model.zero_grad()  # a step that forgets this is judged elsewhere
            if case == "by hand":
                optimizer.param_groups[0]["lr"] = lr
            lib.training.train_step(model, optimizer, mse, [batch])
            if case == "by a scheduler":
                scheduler.step()
        return moved(model, start)

    compare("training.train_step", probe, rtol=1e-9)


@number("10.3")
@weight(0.5)
@pytest.mark.parametrize("num_steps", [1, 12], ids=["one step", "twelve steps"])
def test_train_records_losses(compare, seed, num_steps):
    """train: takes the steps and records the loss of each."""

    def probe(lib):
        model, batches = hooked(network(seed)), rows(seed, *[3] * num_steps)
        start = values(model)
        autocasts: list[bool] = []  # has no effect on float64, so that it is asked for
        model[0].register_forward_hook(lambda *_: autocasts.append(torch.is_autocast_enabled("cpu")))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0005, momentum=0.5)

        def steep(predictions: Tensor, targets: Tensor) -> Tensor:  # no usual limit is above the norm of its gradients
            return 100 * lopsided(predictions, targets)

        with mock.patch.object(lib.training, "train_step", plain_step):
            run = lib.training.train(model, optimizer, steep, batches, num_steps, 10, 0.5)
        return {
            "the loss of each step": run.losses,
            "the steps taken": moved(model, start),
            "autocast in the model": any(autocasts),
        }

    compare("training.train", probe, rtol=1e-9)


class Ballast(torch.autograd.Function):
    """Passes the loss on, and keeps a MiB alive for as long as the loss's graph lives.

    Its own pages, not malloc's: in the heap a loss that is kept may lie in the hole where the last MiB was, and the heap grows.
    """

    @staticmethod
    def forward(ctx: Any, loss: Tensor) -> Tensor:
        ctx.ballast = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for page in range(0, 1 << 20, mmap.PAGESIZE):
            ctx.ballast[page] = 1
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


@number("10.3")
@weight(0.5)
def test_train_keeps_memory_flat(observe_memory, seed):
    """train: the memory of 200 steps is that of two, since no loss holds its graph."""

    def loss_fn(outputs, targets):
        return Ballast.apply(mse(outputs, targets))

    def probe(lib):
        model, [batch] = network(seed), rows(seed, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        with mock.patch.object(lib.training, "train_step", plain_step):
            run = lib.training.train(model, optimizer, loss_fn, [batch] * 200, 200, 10, 1e9)
        return len(run.losses)

    taken, grown = observe_memory("training.train", probe, like=0)
    assert taken == 200, "There is not one loss a step."
    # 200 MiB where the graphs of all steps stay. The code and pages of libraries are 20 MiB, huge pages 10 MiB of noise.
    assert grown < 80 << 20, "Memory grows with the number of steps: a loss that is kept holds the graph of its step."


@number("10.3")
@weight(0.5)
def test_train_takes_exactly_its_batches(compare, seed):
    """train: takes num_steps batches and not one more, whatever gives them, and refuses too few."""

    def probe(lib):
        def attempt(batches: Any, num_steps: int, peak: float = 1e9) -> Any:
            model = network(seed)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with mock.patch.object(lib.training, "train_step", plain_step):
                return len(lib.training.train(model, optimizer, mse, batches, num_steps, 10, peak).losses)

        given = []

        def giving(how_many: int):
            for batch in rows(seed, *[2] * how_many):
                given.append(len(batch[0]))
                yield batch

        from_generator = attempt(giving(9), 4), len(given)
        from_list = (
            attempt(rows(seed, 2, 2, 2, 2), 3),
            attempt(rows(seed, 2, 2, 2), 3),
            attempt(tuple(rows(seed, 2)), 1),
        )
        refusals = [
            refusal(lambda: attempt(rows(seed, 2, 2), 3), names=3),
            refusal(lambda: attempt(giving(4), 7), names=7),
        ]
        given.clear()
        refusals += [refusal(partial(attempt, giving(2), num_steps), names=num_steps) for num_steps in (0, -1, -4)]
        refusals += [refusal(partial(attempt, giving(2), 1, peak), names=peak) for peak in (0.0, -2.5)]
        return {
            "batches from a generator": from_generator,
            "batches from a sequence": from_list,
            "what is refused": refusals,
            "batches taken by refused calls": len(given),
        }

    compare("training.train", probe)


@number("10.3")
@weight(0.25)
def test_train_stops_its_clock_when_the_accelerator_is_done(observe, seed, device):
    """train: a step's seconds last until the accelerator has done all of the step's work."""
    size = 8192 if device == "cuda" else 8

    def probe(lib):
        model, batches = network(seed).to(device), moved_to(device, rows(seed, 3, 3, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(size, size).to(device)

        def step_that_works_on(*arguments: Any, **options: Any) -> float:
            loss = plain_step(*arguments, **options)
            for _ in range(8):  # queued when the loss has been read, and more than all before
                x @ x
            return loss

        def mse_that_works_on(predictions: Tensor, targets: Tensor) -> Tensor:
            return mse(predictions, targets) + 0 * (x @ x).sum()

        with (
            mock.patch.object(lib.training, "train_step", step_that_works_on),
            accelerator.timing_products(device) as seconds,
        ):
            run = lib.training.train(model, optimizer, mse_that_works_on, iter(batches), len(batches), 10, 1e9)
        worked = sum(seconds) / len(batches) or math.inf  # all steps are the same work
        return [round(float(taken) / worked, 2) for taken in run.step_seconds]  # two who make one mistake answer alike

    ratios = observe("training.train", probe, like=[0.0])
    # The first step shows it: a later one can begin with what the one before has left.
    assert all(ratio >= 0.7 for ratio in ratios), (
        "A step's seconds are fewer than the accelerator has worked in it. Before the clock is stopped, "
        "torch.accelerator.synchronize() waits for it."
    )


@number("10.3")
@weight(0.25)
@pytest.mark.parametrize("case", ["FLOPs and MFU", "seconds"])
def test_train_accounts_for_its_steps(compare, observe, seed, case):
    """train: the seconds of each step, the FLOPs of all of them, and the MFU that follows."""
    pauses = [0.0, 0.012, 0.0, 0.0, 0.006, 0.0] if case == "seconds" else [0.0] * 3
    flops_per_step, peak = 3_000_000_000_000_000_001, 3.5e19  # too large a number for a float to hold exactly

    def run(lib: Any) -> tuple[Any, float, float]:
        model, batches = network(seed), rows(seed, *[2] * len(pauses))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        remaining = iter(pauses)
        waited = 0.0

        def slow_batches() -> Iterator[tuple[Tensor, Tensor]]:
            nonlocal waited
            for i, batch in enumerate(batches):
                if i == 2 and case == "seconds":
                    start = time.perf_counter()
                    time.sleep(0.06)
                    waited = time.perf_counter() - start
                yield batch

        def slow_mse(predictions: Tensor, targets: Tensor) -> Tensor:
            time.sleep(next(remaining))
            return mse(predictions, targets)

        begin = time.perf_counter()
        with mock.patch.object(lib.training, "train_step", plain_step):
            run = lib.training.train(model, optimizer, slow_mse, slow_batches(), len(pauses), flops_per_step, peak)
        return run, waited, time.perf_counter() - begin

    def accounts(lib):
        done, _, _ = run(lib)
        # What the MFU makes of the run's own seconds is the same number whatever the clock says.
        return {
            "num_flops of all steps": done.num_flops,
            "mfu, given step_seconds": done.mfu * sum(done.step_seconds) * peak / flops_per_step,
        }

    def times(lib):
        done, waited, elapsed = run(lib)
        return done.step_seconds, waited, elapsed

    if case == "FLOPs and MFU":
        compare("training.train", accounts, rtol=1e-6)
        return
    seconds, waited, elapsed = observe("training.train", times, like=([0.0], 0.0, 0.0))
    assert len(seconds) == len(pauses), "step_seconds has one number for each step."
    # Only bounds that no other load on the machine can break: a step takes no less than the pause inside it.
    assert all(s >= 0.95 * pause for s, pause in zip(seconds, pauses, strict=True)), (
        "A step took longer than its seconds say."
    )
    assert all(s > 0 for s in seconds), "A step takes more than 0 seconds."
    assert sum(seconds) <= elapsed * 1.001, "The steps' seconds add up to more than the whole call took."
    assert sum(seconds) + waited <= elapsed * 1.001, "The clock ran while the next batch was being fetched."


class Run:
    """All that a run consists of: a model with buffers, an optimizer with state, and two generators."""

    def __init__(self, seed: int, place: str = "cpu") -> None:
        first, activation, last = network(seed)  # in float64: how float32 rounds depends on the number of threads
        # Of classes that pickle knows, so that saving a whole model works, and loses only what it should. Right after `first`
        # the normalisation would leave that layer's bias a gradient of rounding errors, by whose sign AdamW takes whole steps.
        self.model = nn.Sequential(first, activation, nn.BatchNorm1d(7, dtype=torch.float64), last).to(place)
        self.place = place
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.02 + 0.01 * (seed % 5))
        self.generators = {name: torch.Generator().manual_seed(seed + i) for i, name in enumerate(("data", "noise"))}
        self.losses: list[float] = []

    def go_on(self, steps: int) -> "Run":
        """Take some steps, on data that the generators draw."""
        for _ in range(steps):
            x = torch.randn(4, 5, generator=self.generators["data"], dtype=torch.float64)
            y = x[:, :1] + torch.randn(4, 1, generator=self.generators["noise"], dtype=torch.float64)
            self.optimizer.zero_grad()
            loss = mse(self.model(x.to(self.place)), y.to(self.place))
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
        return self

    def state(self) -> dict[str, Any]:
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "generators": {name: generator.get_state() for name, generator in self.generators.items()},
        }

    def restore(self, state: dict[str, Any]) -> "Run":
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name, generator in self.generators.items():
            generator.set_state(state["generators"][name])
        return self

    @property
    def parts(self) -> tuple[nn.Module, torch.optim.Optimizer, dict[str, torch.Generator]]:
        """What load_checkpoint takes after the path."""
        return self.model, self.optimizer, self.generators


@contextmanager
def largest_file(limit: int) -> Iterator[None]:
    """Let no file grow beyond `limit` bytes: what a full disk does to a write."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


UNWRITABLE = "OSError or RuntimeError"  # of a file that cannot be written


def error_of(call: Callable[[], object]) -> str:
    """The kind of error that a call raises, "none" if none; Ctrl-C is one as well."""
    try:
        call()
    except NotImplementedError:
        raise
    except (OSError, RuntimeError):
        return UNWRITABLE
    except (Exception, KeyboardInterrupt) as error:
        return type(error).__name__
    return "none"


def holds(path: Path, run: Run) -> bool:
    """Tell whether something of a run is in a file, whatever its format: the numbers of a weight, or of its moments."""
    [weight, *_] = run.model.parameters()
    content = path.read_bytes() if path.is_file() else b""
    return any(t.detach().numpy().tobytes() in content for t in (weight, run.optimizer.state[weight]["exp_avg"]))


@number("10.4")
@weight(0.5)
@pytest.mark.parametrize("case", ["a new file", "an old file", "no generators"])
def test_save_checkpoint_holds_the_whole_run(compare, seed, case):
    """save_checkpoint: the states of the model, the optimizer and each generator, and the step; nothing else changes."""

    def probe(lib):
        run = Run(seed).go_on(3)
        generators = {} if case == "no generators" else run.generators
        with folder() as here:
            path = here / "run.pt"
            if case == "an old file":
                path.write_bytes(b"old" * 100_000)
            lib.training.save_checkpoint(
                str(path) if case == "a new file" else path, run.model, run.optimizer, 3, generators
            )
            there, saved = path.is_file(), None
            with suppress(Exception):
                # Whether it can be read more strictly is judged elsewhere. A probe runs student code in the sandbox only.
                saved = torch.load(path, weights_only=False)
        content = {}
        for key in ("model", "optimizer", "step", "generators"):
            part = saved.get(key) if isinstance(saved, dict) else None
            # An OrderedDict, as state_dict returns it, is as good as a dict.
            content[f'the file\'s "{key}"'] = (
                part if isinstance(part, int) else dict(part) if isinstance(part, dict) else None
            )
        return {
            "is there a file": there,
            "is it a dict": isinstance(saved, dict),
            **content,
            "the run after saving": run.state(),
        }

    # The steps before are the reference's own only up to rounding: it depends on the number of threads.
    compare("training.save_checkpoint", probe, rtol=1e-6)


@number("10.4")
@weight(0.5)
def test_save_checkpoint_can_be_read_safely(observe, seed):
    """save_checkpoint: torch.load reads the file with weights_only=True, which runs no code; a negative step is refused."""

    def probe(lib):
        run = Run(seed).go_on(1)
        with folder() as here:

            def save(step: int, name: str = "run.pt") -> None:
                lib.training.save_checkpoint(here / name, run.model, run.optimizer, step, run.generators)

            save(0)
            path = here / "run.pt"
            if not path.is_file():
                return False, "", False, [], True
            reading, whole = error_of(lambda: torch.load(path, weights_only=True)), holds(path, run)
            before, files = path.read_bytes(), sorted(here.iterdir())
            run.go_on(1)
            refusals = [
                str(refusal(partial(save, step, name), names=step)) for step, name in ((-6, "run.pt"), (-1, "new.pt"))
            ]
            kept = sorted(here.iterdir()) == files and path.read_bytes() == before
        return True, reading, whole, refusals, kept

    there, reading, whole, refusals, kept = observe(
        "training.save_checkpoint", probe, like=(False, "", False, [""], False)
    )
    assert there, "After save_checkpoint there is no file at the path."
    assert whole, "The file that save_checkpoint has written holds nothing of the run."
    assert reading == "none", "torch.load(path, weights_only=True) cannot read the file: it holds more than plain data."
    assert set(refusals) == {str(("refused", "ValueError", True))}, "A negative step is a ValueError that names it."
    assert kept, "A negative step is refused, but something has been written. Check it first."


class Witness:
    """Looks at a file at the moment at which it is pickled itself, and goes into the pickle as a 0."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: list[bytes] = []

    def __reduce__(self) -> tuple[type, tuple[int]]:
        self.seen.append(self.path.read_bytes() if self.path.exists() else b"")
        return int, (0,)


class Interrupt:
    """Is pickled at the moment at which somebody presses Ctrl-C."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        raise KeyboardInterrupt


def put_into(run: Run, thing: object) -> Run:
    """Have the optimizer and the model, whichever of the two is saved, say that they hold `thing`; pickle refuses a function."""
    run.optimizer.state[next(run.model.parameters())]["thing"] = thing
    run.model.register_state_dict_post_hook(lambda module, state, prefix, metadata: state.update(thing=thing))
    return run


@number("10.4")
@weight(0.5)
@pytest.mark.parametrize("case", ["the disk is full", "something cannot be written", "in the middle", "at the end"])
def test_save_checkpoint_is_atomic(observe, seed, case):
    """save_checkpoint: until the new file is whole, and after any error, the old one is there."""

    def probe(lib):
        run = Run(seed).go_on(1)
        results, sources = [], [True]
        with folder() as here:
            path = here / "run.pt"

            def save(step: int, path: Any = path) -> str:
                return error_of(
                    lambda: lib.training.save_checkpoint(path, run.model, run.optimizer, step, run.generators)
                )

            lib.training.save_checkpoint(path, run.model, run.optimizer, 1, run.generators)
            if not holds(path, run):
                return [], path.is_file(), -1, True
            old = path.read_bytes()

            def renaming(real: Any) -> Any:
                def rename(source: Any, target: Any, **where: Any) -> Any:
                    if Path(target).resolve() == path.resolve():
                        results.append(("was not asked to", path.exists() and path.read_bytes() == old))
                        sources.append(here.resolve() in Path(source).resolve().parents)  # or in a folder there
                    return real(source, target, **where)

                return rename

            if case == "the disk is full":
                for limit in (0, 100, len(old) // 2, len(old) - 200):
                    with largest_file(limit):
                        raised = save(2)
                    results.append((raised, path.exists() and path.read_bytes() == old))
            elif case == "at the end":
                # Somebody has the old file open: a rename leaves them what they read, a copy is written into it.
                with (
                    path.open("rb") as opened,
                    mock.patch("os.rename", renaming(os.rename)),
                    mock.patch("os.replace", renaming(os.replace)),
                ):
                    raised = save(2)
                    results.append(("was not asked to", raised == "none" and opened.read() == old))
                    path.write_bytes(old)
                    with working_in(here):  # where a name without a folder is a file's
                        sources.append(save(2, Path(path.name)) == "none")
                path.write_bytes(old)
            else:
                witness = Witness(path)
                if case == "in the middle":
                    run.optimizer.state[next(run.model.parameters())]["witness"] = witness
                else:
                    put_into(run, lambda: None)
                raised = save(2)
                if case == "in the middle":
                    results.append(("was not asked to", raised == "none" and all(seen == old for seen in witness.seen)))
                    path.write_bytes(old)
                else:
                    results.append((raised, path.exists() and path.read_bytes() == old))
            # The same process reads the old file again: nothing has changed, so PyTorch can.
            usable = path.exists() and path.read_bytes() == old
            step = torch.load(path, weights_only=False)["step"] if usable else -1
        return results, usable, int(step), all(sources)

    results, usable, _, beside = observe("training.save_checkpoint", probe, like=([("", True)], True, 0, True))
    assert results, (
        "Not even a first checkpoint is saved: at the path there is no file, or one that holds nothing of the run."
    )
    for raised, old_is_there in results:
        assert raised != "none", "Writing failed, and no error was raised."
        assert old_is_there, "The old checkpoint is damaged or gone before the new one is whole."
        assert raised == UNWRITABLE or case != "the disk is full", (
            "On a full disk another error than the OSError or RuntimeError of who writes is raised."
        )
    assert usable, "The old checkpoint can't be loaded any more."
    assert beside, (
        "The new file comes from another folder, if only for a path that is a bare name. "
        "Between two disks a rename is a copy, which is not atomic."
    )


@number("10.4")
@weight(0.5)
def test_save_checkpoint_leaves_nothing_behind(observe, seed):
    """save_checkpoint: one file is there after a save, and after one that failed no other; those around it are as before."""
    around = ("run.tmp", "run.temp", "run.part", "tmp.pt", "temp.pt")  # and of other people's

    def probe(lib):
        run = Run(seed).go_on(1)
        with folder() as here:
            for name in around:
                (here / name).write_text(name, encoding="utf-8")

            def left_by_saving(run: Run, name: str = "run.pt") -> list[str]:
                error_of(lambda: lib.training.save_checkpoint(here / name, run.model, run.optimizer, 1, run.generators))
                return sorted(file.name for file in here.iterdir() if file.name not in around)

            saved = [left_by_saving(run), left_by_saving(run.go_on(1))]
            whole = holds(here / "run.pt", run)
            with largest_file(1000):
                failed = [left_by_saving(run)]
            failed += [left_by_saving(put_into(Run(seed).go_on(1), thing)) for thing in (lambda: None, Interrupt())]
            (here / "folder").mkdir()  # no file can be renamed to it
            failed.append([name for name in left_by_saving(run, "folder") if name != "folder"])
            kept = all((here / name).is_file() and (here / name).read_bytes() == name.encode() for name in around)
        return saved, whole, failed, kept

    saved, whole, failed, kept = observe("training.save_checkpoint", probe, like=([[""]], True, [[""]], True))
    assert all("run.pt" in names for names in saved) and whole, (
        "After saving, there is no checkpoint of the run at the path."
    )
    assert saved == [["run.pt"]] * 2, "After saving there are other files beside the checkpoint."
    assert failed == [["run.pt"]] * 4, "After a save that failed there are other files beside the old checkpoint."
    assert kept, (
        "Saving has changed another file in the folder. The unfinished file needs a name that is nobody else's."
    )


@number("10.5")
@weight(0.5)
@pytest.mark.parametrize("cut", [1, 4], ids=["after one step", "after four"])
def test_load_checkpoint_resumes_the_run(observe, seed, cut):
    """load_checkpoint: a run that is cut, loaded and continued is bit for bit the uncut run, its data order included."""

    def probe(lib):
        uncut = Run(seed).go_on(7)
        first = Run(seed).go_on(cut)
        with folder() as here:
            saved = {**first.state(), "step": cut}
            if cut == 4:
                saved["generators"]["of others"] = torch.Generator().get_state()
            torch.save(saved, here / "run.pt")
            rest = Run(seed + 1).go_on(2)  # as different as can be
            rest.losses.clear()
            path, generators = here / "run.pt", dict(rest.generators)
            step = lib.training.load_checkpoint(str(path) if cut == 4 else path, rest.model, rest.optimizer, generators)
            in_place = all(generators.get(name) is generator for name, generator in rest.generators.items())
        rest.go_on(7 - cut)
        ends = [torch.cat([t.flatten().double() for t in run.model.state_dict().values()]) for run in (uncut, rest)]
        return step, in_place, uncut.losses, first.losses + rest.losses, ends

    like = (0, True, [0.0], [0.0], [torch.zeros(0, dtype=torch.float64)] * 2)
    step, in_place, losses, resumed_losses, [end, resumed_end] = observe("training.load_checkpoint", probe, like=like)
    assert step == cut, "The answer is the step that was saved."
    assert in_place, (
        "After loading there are other generators in the dict. Those that were there are changed in place: "
        "whoever holds one draws from it."
    )
    assert losses[cut] == resumed_losses[cut], (
        "The first step after loading is another one: model or generators differ."
    )
    assert losses == resumed_losses, "A later step after loading is another one: the optimizer's state differs."
    assert torch.equal(end, resumed_end), "The last weights or buffers are not bit for bit those of the uncut run."


def without(parts: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: part for key, part in parts.items() if key != name}


def load_right_file(lib: Any, here: Path) -> dict[str, Any]:
    """Tell how a file that is right is loaded, the model or the generators: what of them and how well is judged elsewhere."""
    saved, run = Run(9), Run(10)
    torch.save({**saved.state(), "step": 1}, here / "right.pt")
    answer = refusal(lambda: lib.training.load_checkpoint(here / "right.pt", *run.parts))
    restored, expected = run.state(), saved.state()
    same = torch.equal(restored["model"]["0.weight"], expected["model"]["0.weight"]) or torch.equal(
        restored["generators"]["data"], expected["generators"]["data"]
    )
    return {"a right file": answer, "is anything of a right file loaded": same}


def loads_something(lib: Any, here: Path) -> bool:
    """Tell whether a file that is right is loaded."""
    answer, same = load_right_file(lib, here).values()
    return answer == ("accepted",) and same


@number("10.5")
@weight(0.5)
def test_load_checkpoint_refuses_unreadable_files(compare, seed):
    """load_checkpoint: a damaged file is a ValueError that names it, a missing one a FileNotFoundError; nothing changes."""

    def probe(lib):
        with folder() as here:
            path = here / "run.pt"
            torch.save({**Run(seed).go_on(1).state(), "step": 1}, path)
            whole = path.read_bytes()
            run = Run(seed + 1).go_on(1)
            answers = []
            for content in (
                b"",
                b"no checkpoint",
                whole[:50],
                whole[: len(whole) // 2],
                whole[:-1],
                whole[300:],
                b"\0" * 999,
            ):
                path.write_bytes(content)
                answers.append(refusal(lambda: lib.training.load_checkpoint(path, *run.parts), names=path.name))
            path.unlink()
            answers.append(refusal(lambda: lib.training.load_checkpoint(path, *run.parts), kinds=(FileNotFoundError,)))
            return {
                "what is refused": answers,
                "the run afterwards": (run.state(), run.go_on(2).losses),
                **load_right_file(lib, here),
            }

    compare("training.load_checkpoint", probe, rtol=1e-6)


@number("10.5")
@weight(0.5)
def test_load_checkpoint_is_all_or_nothing(compare, seed):
    """load_checkpoint: a file that lacks a part or does not fit is a ValueError that names it, and nothing changes."""

    def probe(lib):
        good = {**Run(seed).go_on(1).state(), "step": 1}
        unusable: list[Any] = [without(good, part) for part in good]
        unusable += [
            torch.ones(3),
            {**good, "generators": {"data": good["generators"]["data"]}},
            *(
                {**good, "generators": {**good["generators"], list(good["generators"])[-1]: state}}
                for state in (torch.ones(3), torch.zeros(7, dtype=torch.uint8))
            ),
            {**good, "model": {**good["model"], "3.weight": torch.ones(2, 7)}},  # the parameters before it fit
            {**good, "model": {**good["model"], "3.scale": torch.ones(1)}},
            *({**good, "model": without(good["model"], entry)} for entry in ("0.bias", "2.running_mean")),
            {**good, "optimizer": torch.optim.SGD([nn.Parameter(torch.ones(3))], lr=0.5).state_dict()},
        ]
        run = Run(seed + 1).go_on(1)
        answers = []
        with folder() as here:
            path = here / "run.pt"
            for content in unusable:
                torch.save(content, path)
                answers.append(refusal(lambda: lib.training.load_checkpoint(path, *run.parts), names=path.name))
            return {
                "what is refused": answers,
                "the run afterwards": (run.state(), run.go_on(2).losses),
                **load_right_file(lib, here),
            }

    compare("training.load_checkpoint", probe, rtol=1e-6)


@number("10.5")
@weight(0.25)
def test_load_checkpoint_resumes_on_an_accelerator(observe, seed, device):
    """load_checkpoint: a run on an accelerator, cut, loaded and continued there, does what it does on the CPU."""

    def probe(lib):
        def resume(place: str) -> tuple[list[float], list[str]]:
            with folder() as here:
                torch.save({**Run(seed, place).go_on(3).state(), "step": 3}, here / "run.pt")
                run = Run(seed + 1, place).go_on(1)
                lib.training.load_checkpoint(here / "run.pt", *run.parts)
            state = [value for state in run.optimizer.state.values() for value in state.values() if value.dim() > 0]
            return run.go_on(3).losses[1:], sorted({t.device.type for t in (*run.model.parameters(), *state)})

        with folder() as elsewhere:
            if not loads_something(lib, elsewhere):
                return [], [], []
        return resume("cpu")[0], *resume(device)

    here, there, places = observe("training.load_checkpoint", probe, like=([0.0], [0.0], [""]))
    assert here, "Nothing of a file that is right is loaded on the CPU either."
    assert places == [device], "After loading, the model or the optimizer's state is not on the accelerator any more."
    # In float32 an accelerator adds up in another order; a state or a generator that is not restored is off by 1e-1.
    same = all(abs(a - b) <= 1e-3 * abs(a) for a, b in zip(here, there, strict=True))
    assert same, "Resumed on an accelerator, a run takes other steps than resumed on the CPU."


@number("10.5")
@weight(0.25)
def test_load_checkpoint_works_without_the_saving_device(observe, seed):
    """load_checkpoint: a file that was written on a GPU that is not here can be loaded."""

    def probe(lib):
        run = Run(seed + 1)
        with folder() as here:
            if not loads_something(lib, here):
                return False, [""]
            # Every tensor in the file says that it comes from a GPU that no machine has.
            with mock.patch("torch.serialization.location_tag", lambda storage: "cuda:99"):
                torch.save({**Run(seed).go_on(2).state(), "step": 2}, here / "run.pt")
            lib.training.load_checkpoint(here / "run.pt", *run.parts)  # what it restores is judged above
        return True, [p.device.type for p in run.model.parameters()]

    loads, places = observe("training.load_checkpoint", probe, like=(True, [""]))
    assert loads, "Nothing of a file that is right is loaded, wherever it was written."
    assert set(places) == {"cpu"}, "A model that was on the CPU is not there any more."


@number("10.6")
@weight(1)
@pytest.mark.parametrize("cut", [1, 5], ids=["after one step", "after five"])
def test_together_a_cut_run_is_the_uncut_run(observe, seed, cut):
    """Your own model, optimizer, data and loop together: a run cut and resumed is bit for bit the uncut run."""
    vocab_size, length, num_steps = 97, 8, 9

    def probe(lib):
        with folder() as here:
            drawn = random.Random(seed)
            np.array([drawn.randrange(vocab_size) for _ in range(3000)], dtype="uint16").tofile(here / "tokens.bin")
            tokens = lib.data.open_tokens(here / "tokens.bin", "uint16")
            seen: list[tuple[Tensor, Tensor]] = []

            def begin(run_seed):
                generators = lib.training.seed_everything(run_seed)
                model = lib.model.DeepLinear(dim=length, num_layers=3)
                optimizer = lib.optimizers.AdamW(model.parameters(), lr=1e-2)

                def batches():
                    while True:
                        inputs, targets = lib.data.get_batch(tokens, 16, length, "cpu", generators["data"])
                        seen.append((inputs / vocab_size, targets[:, -1] / vocab_size))
                        yield seen[-1]

                return model, optimizer, generators, batches()

            def go_on(model, optimizer, batches, steps):
                return lib.training.train(model, optimizer, mse, batches, steps, 1000, 1e12).losses

            uncut, optimizer, _, batches = begin(seed % 2**31)
            start = values(uncut)
            losses = go_on(uncut, optimizer, batches, num_steps)
            first_batch = seen[0]

            model, optimizer, generators, batches = begin(seed % 2**31)
            resumed = go_on(model, optimizer, batches, cut)
            lib.training.save_checkpoint(here / "run.pt", model, optimizer, cut, generators)

            model, optimizer, generators, batches = begin((seed + 1) % 2**31)
            step = lib.training.load_checkpoint(here / "run.pt", model, optimizer, generators)
            resumed += go_on(model, optimizer, batches, num_steps - cut)
        return step, losses, resumed, start, values(uncut), values(model), first_batch

    # Of exactly these sizes: they are multiplied below, and a column times a row could be larger than all memory.
    matrices = [
        torch.ones(length, length),
        torch.ones(length, length),
        torch.ones(length, length),
        torch.ones(length, 1),
    ]
    like = (0, [0.0], [0.0], matrices, matrices, matrices, (torch.ones(16, length), torch.ones(16)))
    step, losses, resumed, start, uncut, model, (x, y) = observe("training.together", probe, like=like)
    assert len(losses) == num_steps and step == cut, "The number of steps is not the one that was asked for."
    prediction = x.double()
    for w in start:
        prediction = prediction @ w.double()
    expected = (prediction.squeeze(-1) - y.double()).square().mean().item()
    assert abs(losses[0] - expected) <= 1e-4 * expected, (
        "The first loss is not the first weights' error on the first batch."
    )
    assert not any(map(torch.equal, start, uncut)), "Training does not change all of the weights."
    assert losses[:cut] == resumed[:cut], "Begun with the same seed, a second run takes other steps."
    assert losses == resumed, "The run that was cut and resumed takes other steps than the uncut one."
    assert all(map(torch.equal, uncut, model)), (
        "The run that was cut and resumed ends with other weights than the uncut one."
    )
