"""Hidden tests of part 3, `memory`.

Where a student's number is about memory that PyTorch takes, the test builds the same tensors on the trusted side and
measures there, by addresses of storages; the formulas of `reference/` have no say in it. Each number of a breakdown is
judged in a row of its own. All answers are exact ints.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from math import prod
from random import Random
from typing import Any

import pytest
import torch
from gradescope_utils.autograder_utils.decorators import number, weight
from torch import Tensor, nn

from autograder.probing import refusal

DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.float8_e4m3fn,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.complex64,
    torch.complex128,
    torch.float64,
)


# For the problems whose solutions may call the student's functions.


def get_memory_usage(x: Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return x.numel() * x.element_size()


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of all storages behind tensors, each once."""
    return sum(storage.nbytes() for storage in {tensor.untyped_storage() for tensor in tensors})


RELIES_ON: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "memory.storage_bytes": {"get_memory_usage": get_memory_usage},
    **{
        f"memory.{problem}": {"get_memory_usage": get_memory_usage, "storage_bytes": storage_bytes}
        for problem in ("training_memory", "saved_activation_bytes", "deep_linear_training_bytes")
    },
}


def bytes_held(tensors: Iterable[Tensor]) -> int:
    """Measure, by address, what tensors hold that are all alive."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def random_shape(random: Random) -> tuple[int, ...]:
    """Draw a shape of 0 to 3 dimensions."""
    return tuple(random.randint(1, 6) for _ in range(random.randint(0, 3)))


def random_view(random: Random, x: Tensor) -> Tensor:
    """Look at a tensor in another way, without a copy."""
    rows = x.flatten()  # a view, since all tensors here are contiguous
    first = random.randrange(rows.numel())
    return random.choice(
        [
            lambda: x,
            lambda: x.detach(),
            lambda: x.T if x.dim() == 2 else x.view(-1),
            lambda: rows[first:],
            lambda: rows[first],
            lambda: rows[: first + 1 : 2],
            lambda: x.expand(3, *x.shape),
            lambda: rows[first:].as_strided((2, 2), (0, 0)),
            lambda: x.view(x.shape),
        ]
    )()


# 3.1 get_memory_usage

ABOUT_TENSORS = {
    "dtypes": "of tensors of any shape and dtype",
    "views": "of slices, transposes and expanded tensors",
    "meta": "on the device meta",
}


@number("3.1")
@weight(1)
@pytest.mark.parametrize("case", ["dtypes", "views", "meta"])
def test_get_memory_usage_multiplies_elements_by_their_size(compare: Any, seed: int, case: str) -> None:
    """get_memory_usage: the number of elements times their size, for any shape, dtype and device."""

    def probe(lib: Any) -> Any:
        random = Random(seed)
        if case == "dtypes":
            # The last is so large that its KiB and MiB are not 0; nothing is written into it.
            shapes = [
                *(random_shape(random) for _ in range(30)),
                (0,),
                (3, 0, 2),
                (),
                (300, random.randint(1200, 1300)),
            ]
            tensors = [torch.zeros(shape, dtype=dtype) for shape in shapes for dtype in DTYPES]
        elif case == "views":  # elements of the view count, whatever is under it
            bases = [torch.zeros(shape, dtype=random.choice(DTYPES)) for shape in [(4, 8), (5,), (2, 3, 4)] * 20]
            tensors = [random_view(random, base) for base in bases]
        else:
            tensors = [
                torch.empty(random.randint(40_000, 60_000), 12288, dtype=dtype, device="meta") for dtype in DTYPES
            ]
        return {ABOUT_TENSORS[case]: [lib.memory.get_memory_usage(x) for x in tensors]}

    compare("memory.get_memory_usage", probe)


# 3.2 storage_bytes


@number("3.2")
@weight(1)
@pytest.mark.parametrize("case", ["one storage", "several storages"])
def test_storage_bytes_counts_each_storage_once_and_whole(compare: Any, seed: int, case: str) -> None:
    """storage_bytes: slices, transposes and expanded tensors count their storage once, and whole."""

    def probe(lib: Any) -> Any:
        random = Random(seed)
        answers = []
        for drawn in range(60):
            bases = [
                torch.zeros(random.choice([(4, 8), (5,), (2, 3, 4), ()]))
                for _ in range(1 if case == "one storage" else 3)
            ]
            tensors = [random_view(random, random.choice(bases)) for _ in range(random.randint(1, 5))]
            if drawn % 10 == 0:  # whatever is drawn, a tensor is there twice now and then
                tensors.append(tensors[0])
            answers.append(lib.memory.storage_bytes(tensors))
        return {f"views of {case}": answers}

    compare("memory.storage_bytes", probe)


@number("3.2")
@weight(0.5)
@pytest.mark.parametrize("case", ["dtypes", "empty", "iterables", "parameters"])
def test_storage_bytes_takes_any_tensors(compare: Any, seed: int, case: str) -> None:
    """storage_bytes: any dtype, empty tensors, parameters and gradients, in any iterable."""

    def probe(lib: Any) -> Any:
        random = Random(seed)
        if case == "dtypes":
            tensors = [torch.zeros(random.randint(1, 9), dtype=dtype) for dtype in DTYPES]
            # One storage, read as numbers of another size.
            return {
                "tensors of several dtypes": lib.memory.storage_bytes(tensors),
                "one storage read in two dtypes": lib.memory.storage_bytes(
                    [tensors[-1], tensors[-1].view(torch.int16)]
                ),
            }
        if case == "empty":
            x = torch.zeros(random.randint(2, 9))
            empty = [torch.zeros(0), torch.zeros(3, 0)]
            return {
                "no tensors": lib.memory.storage_bytes([]),
                "empty tensors": lib.memory.storage_bytes(empty),
                "an empty slice": lib.memory.storage_bytes([x[:0]]),
                "empty tensors beside others": lib.memory.storage_bytes([*empty, x, x[:0]]),
            }
        if case == "iterables":
            tensors = [torch.zeros(random_shape(random)) for _ in range(6)]
            iterables = (tuple(tensors), iter(tensors), (x for x in tensors), dict(enumerate(tensors)).values())
            # Many of one size, so that some take the place of one that is dropped. Which do is chance, and with it the answer.
            size, many = random.randint(2, 9), 40
            made = lib.memory.storage_bytes(torch.zeros(size, dtype=torch.float64) for _ in range(many))
            return {
                "in any iterable": [lib.memory.storage_bytes(iterable) for iterable in iterables],
                "whether all count that a generator makes": made == many * size * 8,
            }
        p = nn.Parameter(torch.zeros(random.randint(2, 9), 3))
        p.grad = torch.zeros(p.shape)
        return {
            "a parameter and its data": lib.memory.storage_bytes([p, p.data, p.detach()]),
            "a parameter and its gradient": [lib.memory.storage_bytes(x) for x in ([p, p.grad], [p[0], p.grad.T])],
        }

    compare("memory.storage_bytes", probe)


@number("3.2")
@weight(0.5)
def test_storage_bytes_tells_meta_tensors_apart(compare: Any, seed: int) -> None:
    """storage_bytes: on the device meta, where all addresses are 0, storages still count one by one."""

    def probe(lib: Any) -> Any:
        random = Random(seed)
        x, y = (torch.empty(random.randint(2, 9), random.randint(2, 9), device="meta") for _ in range(2))
        lists = ([x, y], [x, x.T, y, y[1:]], [x, torch.empty(x.shape, device="meta")])
        return {"on the device meta": [lib.memory.storage_bytes(tensors) for tensors in lists]}

    compare("memory.storage_bytes", probe)


# 3.3 training_memory. A scene is a model and an optimizer (or none), built alike on both sides.

Scene = tuple[nn.Module, torch.optim.Optimizer | None]


def mlp(random: Random, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """Build layers of drawn sizes."""
    sizes = [random.randint(2, 9) for _ in range(4)]
    layers = [nn.Linear(m, n, dtype=dtype) for m, n in zip(sizes, sizes[1:], strict=False)]
    return nn.Sequential(*layers)


def run_backward(model: nn.Sequential) -> None:
    """Give all parameters that want one a gradient."""
    first = next(model.parameters())  # a layer's weight: (outputs, inputs)
    model(torch.ones(2, first.shape[1], dtype=first.dtype)).sum().backward()


class OneBuffer(nn.Module):
    """A model whose parameters are slices of one buffer, and do not even cover it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        buffer = torch.zeros(3 * size + 5)
        self.a = nn.Parameter(buffer[:size])
        self.b = nn.Parameter(buffer[size : 3 * size].view(2, size))


def moments_in_training(seed: int) -> Iterator[Scene]:
    """Yield scenes of one training run as it begins; look at each before the next is asked for."""
    model = mlp(Random(seed))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    yield model, None
    yield model, optimizer
    run_backward(model)
    yield model, None
    yield model, optimizer
    optimizer.step()
    yield model, optimizer
    yield model, None
    optimizer.zero_grad()
    yield model, optimizer


def scenes_of_parameters(case: str, seed: int) -> Iterator[Scene]:
    """Yield models with parameters of all kinds."""
    random = Random(seed)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        size = random.randint(2, 9)
        model = mlp(random, dtype)
        if case == "tied":
            layer = nn.Linear(size, size, dtype=dtype)
            model = nn.Sequential(layer, nn.Linear(size, size, dtype=dtype), layer)
            model[1].weight = layer.weight  # one parameter in two layers
            yield model, None
            model[1].weight = nn.Parameter(layer.weight.detach().T[1:])  # two parameters on one storage
        elif case == "buffers":
            model.append(nn.BatchNorm1d(size, dtype=dtype))
            model.register_buffer("mask", torch.zeros(size, dtype=dtype), persistent=False)  # in no state_dict
            yield nn.BatchNorm1d(size, affine=False, dtype=dtype), None  # no parameters at all
        elif case == "frozen":
            model[0].requires_grad_(False)
        else:
            model.append(OneBuffer(size))
        yield model, None


def scenes_of_gradients(case: str, seed: int) -> Iterator[Scene]:
    """Yield models with gradients of all kinds."""
    random = Random(seed)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        model = mlp(random, dtype)
        if case == "frozen":
            model[0].requires_grad_(False)
        run_backward(model)
        if case == "frozen":
            model[1].requires_grad_(False)  # it keeps the gradient that it has
        elif case == "some":
            model[random.randrange(3)].zero_grad()
            yield model, torch.optim.SGD(model[0].parameters(), lr=0.1)  # trains a part of what has gradients
        elif case == "zeros":
            model.zero_grad(set_to_none=False)
        elif case == "one buffer":  # as in data-parallel training, where gradients are sent in buckets
            parameters = list(model.parameters())
            bucket = torch.zeros(sum(p.numel() for p in parameters) + 7, dtype=dtype)
            for p, piece in zip(parameters, bucket[:-7].split([p.numel() for p in parameters]), strict=True):
                p.grad = piece.view_as(p)
        elif case == "in the parameters' storage":
            both = torch.zeros(2, random.randint(2, 9), dtype=dtype)
            model[0].scale = nn.Parameter(both[0])
            model[0].scale.grad = both[1]
        yield model, None


def scenes_of_state(case: str, seed: int) -> Iterator[Scene]:
    """Yield models with optimizers of all kinds."""
    random = Random(seed)
    for dtype in (torch.float32, torch.bfloat16):
        model = mlp(random, dtype)
        builders: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
            "AdamW": torch.optim.AdamW,
            "no state": partial(torch.optim.SGD, lr=0.1),
            "Adagrad": torch.optim.Adagrad,
            "amsgrad": partial(torch.optim.Adam, amsgrad=True),
            "some gradients": torch.optim.AdamW,
            "Python counters": partial(torch.optim.SGD, lr=0.1),
            "in the gradients' storage": partial(torch.optim.SGD, lr=0.1),
            "a learning rate that is a tensor": torch.optim.AdamW,
        }
        parameters = list(model.parameters())
        optimizer = builders[case](parameters)
        run_backward(model)
        if case == "some gradients":
            model[1].zero_grad()
        optimizer.step()
        if case == "Python counters":
            moments = torch.zeros(2, 3 + sum(p.numel() for p in parameters), dtype=dtype)  # all in one buffer
            for p in parameters:
                optimizer.state[p] = {
                    "step": 7,
                    "m": moments[0, : p.numel()],
                    "v": moments[1, : p.numel()],
                    "name": "p",
                }
        elif case == "in the gradients' storage":
            for p in parameters:
                both = torch.zeros(2, *p.shape, dtype=dtype)
                p.grad, optimizer.state[p] = both[0], {"m": both[1]}
        elif case == "a learning rate that is a tensor":
            optimizer.param_groups[0]["lr"] = torch.tensor(0.1)  # in the group, and not in the state
        yield model, optimizer


def tensors_of_state(optimizer: torch.optim.Optimizer | None) -> list[Tensor]:
    """Return the tensors in an optimizer's state."""
    states = optimizer.state.values() if optimizer is not None else ()
    return [value for state in states for value in state.values() if isinstance(value, Tensor)]


def gradients_of(model: nn.Module) -> list[Tensor]:
    """Return the gradients that exist."""
    return [p.grad for p in model.parameters() if p.grad is not None]


@number("3.3")
@weight(1)
def test_training_memory_measures_what_exists(observe: Any, seed: int) -> None:
    """training_memory: all five numbers as a training run begins, from before its first gradients to after a step."""

    def probe(lib: Any) -> Any:
        found = [lib.memory.training_memory(model, optimizer) for model, optimizer in moments_in_training(seed)]
        return [(f.parameters, f.gradients, f.optimizer_state, f.activations, f.total) for f in found]

    got = observe("memory.training_memory", probe, like=[(0, 0, 0, 0, 0)])
    for answer, (model, optimizer) in zip(got, moments_in_training(seed), strict=True):
        parameters, gradients = bytes_held(model.parameters()), bytes_held(gradients_of(model))
        state = bytes_held(tensors_of_state(optimizer))
        assert answer[0] == parameters, "The parameters' bytes are not what a plain model holds."
        assert answer[1] == gradients, (
            "The gradients' bytes are not what exists, before or after a backward pass or zero_grad."
        )
        assert answer[2] == state, "The state's bytes are not what the optimizer holds, before or after its first step."
        assert answer[3] == 0, "Between two steps there are no activations."
        assert answer[4] == parameters + gradients + state, "The total is not the sum of the four."


@number("3.3")
@weight(1)
@pytest.mark.parametrize("case", ["tied", "buffers", "frozen", "one buffer"])
def test_training_memory_counts_parameters_by_storage(observe: Any, seed: int, case: str) -> None:
    """training_memory: parameters that are tied, frozen or slices of one buffer; buffers are not parameters."""

    def probe(lib: Any) -> Any:
        return [lib.memory.training_memory(*scene).parameters for scene in scenes_of_parameters(case, seed)]

    got = observe("memory.training_memory", probe, like=[0])
    measured = [bytes_held(model.parameters()) for model, _ in scenes_of_parameters(case, seed)]
    assert got == measured, f"The parameters' bytes are not what the model holds ({case})."


@number("3.3")
@weight(1)
@pytest.mark.parametrize("case", ["frozen", "some", "zeros", "one buffer", "in the parameters' storage"])
def test_training_memory_counts_gradients_that_exist(observe: Any, seed: int, case: str) -> None:
    """training_memory: gradients that are None hold nothing, those in one buffer hold that buffer."""

    def probe(lib: Any) -> Any:
        return [lib.memory.training_memory(*scene).gradients for scene in scenes_of_gradients(case, seed)]

    got = observe("memory.training_memory", probe, like=[0])
    measured = [bytes_held(gradients_of(model)) for model, _ in scenes_of_gradients(case, seed)]
    assert got == measured, f"The gradients' bytes are not what exists ({case})."


@number("3.3")
@weight(0.5)
def test_training_memory_measures_an_accelerator_alike(observe: Any, seed: int, device: str) -> None:
    """training_memory: a training run holds as much on an accelerator as it holds on the CPU."""

    def probe(lib: Any) -> Any:
        def held(place: str) -> tuple[int, int, int, int, int]:
            model = mlp(Random(seed)).to(place)
            first = next(model.parameters())
            model(torch.ones(2, first.shape[1]).to(place)).sum().backward()
            with torch.device(place):
                model.append(OneBuffer(Random(seed).randint(2, 9)))
            optimizer = torch.optim.AdamW(model.parameters())
            optimizer.step()
            found = lib.memory.training_memory(model, optimizer)
            return found.parameters, found.gradients, found.optimizer_state, found.activations, found.total

        return held("cpu"), held(device)

    numbers = (0, 0, 0, 0, 0)
    here, there = observe("memory.training_memory", probe, like=(numbers, numbers))
    assert any(here), "A training run holds something."
    assert here == there, "The same training run is said to hold another number of bytes on an accelerator."


@number("3.3")
@weight(0.5)
@pytest.mark.parametrize(
    "case",
    [
        "AdamW",
        "no state",
        "Adagrad",
        "amsgrad",
        "some gradients",
        "Python counters",
        "in the gradients' storage",
        "a learning rate that is a tensor",
    ],
)
def test_training_memory_counts_all_state(observe: Any, seed: int, case: str) -> None:
    """training_memory: every tensor of the optimizer's state counts, 0-d step counters too, and Python numbers do not."""

    def probe(lib: Any) -> Any:
        return [lib.memory.training_memory(*scene).optimizer_state for scene in scenes_of_state(case, seed)]

    got = observe("memory.training_memory", probe, like=[0])
    measured = [bytes_held(tensors_of_state(optimizer)) for _, optimizer in scenes_of_state(case, seed)]
    assert got == measured, f"The state's bytes are not what the optimizer holds ({case})."


# 3.4 saved_activation_bytes. A call is (fn, inputs, parameters), built alike on both sides.

Call = tuple[Callable[..., Any], list[Tensor], list[Tensor]]


def saved_bytes(fn: Callable[..., Any], inputs: list[Tensor], parameters: list[Tensor]) -> int:
    """Measure what autograd saves, by address; the tensors are kept, so that no address is used twice."""
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.detach())
        return saved[-1]

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = fn(*inputs)
    given = {tensor.untyped_storage().data_ptr() for tensor in (*inputs, *parameters)}
    del result
    return bytes_held(tensor for tensor in saved if tensor.untyped_storage().data_ptr() not in given)


def attention(x: Tensor, w: Tensor, heads: int = 2) -> Tensor:
    """Attend in plain PyTorch, with one weight for queries, keys and values: many views, few storages."""
    q, k, v = ((x @ w).unflatten(-1, (heads, -1)).transpose(-2, -3)).chunk(3, dim=-1)
    return torch.softmax(q @ k.transpose(-1, -2), dim=-1) @ v


def drop(x: Tensor) -> Tensor:
    """Drop every other element, with a mask made on the spot: new memory, and a leaf."""
    mask = (torch.arange(x.numel()) % 2).view(x.shape).to(x.dtype)
    return x * mask


class Scale(nn.Module):
    """A layer whose parameter is saved as it is, not as a view."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, size))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply each column by its number."""
        return x * self.scale


def calls(case: str, seed: int) -> list[Call]:
    """Build the forward passes of a case."""
    random = Random(seed)
    batch, dim, hidden = random.randint(2, 5), random.randint(6, 8), random.randint(9, 14)
    # All sizes differ, so no number is right by chance: batch < dim < hidden.

    def leaf(*shape: int) -> Tensor:
        return torch.linspace(0.5, 1.5, prod(shape)).reshape(shape).requires_grad_()

    x, w, v = leaf(batch, dim), leaf(dim, hidden), leaf(hidden, dim)
    if case == "layers":
        activations = (nn.ReLU(), nn.Tanh(), nn.GELU(), nn.Softmax(-1), nn.LayerNorm(hidden))
        models = [nn.Sequential(nn.Linear(dim, hidden), act, nn.Linear(hidden, dim)) for act in activations]
        return [(model, [x.detach()], list(model.parameters())) for model in models]
    if case == "attention":
        sequence, weight = leaf(batch, dim, 4), leaf(4, 12)
        return [(attention, [sequence, weight], []), (attention, [sequence.detach(), weight], [weight])]
    if case == "masks":  # not only floats are saved
        model = nn.Sequential(nn.Linear(dim, hidden), nn.Dropout(0.5), nn.Linear(hidden, dim))
        return [
            (drop, [x], []),
            (lambda x, w: drop(x @ w).exp(), [x, w], []),
            (model, [x], list(model.parameters())),
            (lambda x: torch.where(x > 1, x, -x), [x], []),
            (lambda w: nn.functional.embedding(torch.arange(batch), w), [w], []),
        ]
    if case == "transposes":
        return [
            (lambda x: nn.functional.linear(x, v).tanh(), [x], [w, v]),
            (lambda x: nn.functional.linear(x, w.T).tanh(), [x], [w, v]),
            (lambda x: x.T @ x, [x], []),
            (lambda y: (y * y).sum(), [x.T], []),
        ]
    if case == "one storage":  # an input and a parameter that are slices of the same storage as what is saved
        rows = leaf(3 * batch, dim)
        return [
            (lambda a: (a * rows[:batch]).sum(), [rows[batch : 2 * batch]], []),
            (lambda x: x.exp() @ rows.T, [x], [rows[1]]),
            (lambda a, b: (a * b).exp(), [x, x.detach()], []),
        ]
    if case == "not leaves":  # parameters that were computed: is_leaf is False, and yet they are parameters
        doubled = v * 2
        return [(lambda x: torch.tanh(x @ w) @ doubled, [x], [w, doubled]), (lambda x: x.exp() * x, [x * 2], [])]
    if case == "captured":  # neither input nor parameter, so it counts, leaf or not
        constant = leaf(batch, dim)
        model = nn.Sequential(nn.Linear(dim, hidden), Scale(hidden))
        return [
            (model, [x], []),
            (model, [x], list(model[0].parameters())),
            (model, [x.detach()], []),  # nothing that is given needs a gradient
            (lambda x: x * constant, [x], []),
            (lambda x: x * constant, [x], [constant]),
            (lambda x: x @ w, [x.detach()], [w]),
        ]
    if case == "once":
        return [
            (lambda x: (y := x.exp()) * y + y.tanh() * y, [x], []),
            (lambda x: torch.exp(x).T.exp().T * 2, [x], []),
            (lambda x: (y := x.exp())[1:] * y[:-1], [x], []),  # slices that begin at different places
        ]
    if case == "whole":
        return [
            (lambda x: (x @ w).chunk(3, dim=1)[1].exp().sum() + (x @ w)[:, :2].pow(2).sum(), [x], [w]),
            (lambda x: x * torch.full((1,), 2.0).expand(batch, dim), [x], []),
            (lambda x: x * torch.arange(1000.0)[:dim], [x], []),
        ]
    if case == "nothing to save":

        @torch.no_grad()
        def without(x: Tensor) -> Tensor:
            return x.exp()

        return [(without, [x], []), (torch.exp, [x.detach()], []), (lambda x: x + 1, [x], []), (lambda: None, [], [])]
    if case == "dropped":  # graphs that die while fn runs: their memory is given to the next, at this size reliably

        def forget(x: Tensor) -> None:
            for _ in range(8):
                (x * 2).square()

        large = leaf(50, 100)
        return [(forget, [large], []), (lambda x: [x.exp().sum().item() for _ in range(3)], [large], [])]
    if case == "called once":  # one fn in both, that saves more each time: a call too many, before or after, shows
        times = count(1)
        return [(lambda x: x.repeat(next(times), 1).exp(), [x], [])] * 2
    if case == "under no_grad":
        return [(torch.exp, [x], [])]
    assert case == "backward inside"
    return [(lambda x: torch.autograd.grad((x @ w).tanh().sum(), x), [x], [w])]


def check_saved_bytes(observe: Any, case: str, seed: int, sentence: str) -> None:
    """Compare a student's numbers with what autograd saves on this side."""

    def ask(measure: Callable[..., int]) -> list[int]:
        with torch.set_grad_enabled(case != "under no_grad"):
            return [measure(*call) for call in calls(case, seed)]

    def probe(lib: Any) -> Any:
        return ask(
            lambda fn, inputs, parameters: lib.memory.saved_activation_bytes(
                fn, *inputs, parameters=(p for p in parameters)
            )
        )

    got = observe("memory.saved_activation_bytes", probe, like=[0])
    assert got == ask(saved_bytes), f"{sentence} ({case})"


@number("3.4")
@weight(1)
@pytest.mark.parametrize("case", ["layers", "attention", "masks"])
def test_saved_activation_bytes_is_what_autograd_saves(observe: Any, seed: int, case: str) -> None:
    """saved_activation_bytes: what autograd really saves in layers, attention and dropout."""
    check_saved_bytes(observe, case, seed, "Not what autograd saves in a forward pass.")


@number("3.4")
@weight(1)
@pytest.mark.parametrize("case", ["transposes", "one storage", "not leaves", "captured"])
def test_saved_activation_bytes_tells_inputs_and_parameters_by_storage(observe: Any, seed: int, case: str) -> None:
    """saved_activation_bytes: inputs and parameters are left out by storage, and nothing else is."""
    check_saved_bytes(observe, case, seed, "Compare storages to tell what belongs to inputs and parameters.")


@number("3.4")
@weight(0.5)
@pytest.mark.parametrize("case", ["once", "whole"])
def test_saved_activation_bytes_counts_storages_once_and_whole(observe: Any, seed: int, case: str) -> None:
    """saved_activation_bytes: a storage that is saved twice counts once, and one that is saved in part counts whole."""
    check_saved_bytes(observe, case, seed, "Count each storage once, and whole.")


@number("3.4")
@weight(0.5)
@pytest.mark.parametrize("case", ["nothing to save", "under no_grad", "called once", "dropped", "backward inside"])
def test_saved_activation_bytes_counts_all_that_is_packed(observe: Any, seed: int, case: str) -> None:
    """saved_activation_bytes: 0 where nothing is saved, and all that is saved even if fn drops it again."""
    sentence = (
        "Count what autograd packs in one call of fn, and keep it: what is dropped leaves its address to the next."
    )
    check_saved_bytes(observe, case, seed, sentence)


# 3.5 deep_linear_training_bytes


def random_sizes(seed: int) -> list[tuple[int, int, int, torch.dtype]]:
    """Draw (batch, dim, num_layers, dtype); edges first."""
    random = Random(seed)
    dtypes = (torch.float32, torch.float64, torch.bfloat16)
    edges = [(1, 1, 1), (0, 3, 2), (3, 2, 0), (5, 1, 3)]
    drawn = [(random.randint(1, 7), random.randint(1, 9), random.randint(1, 4)) for _ in range(12)]
    return [(*sizes, dtypes[i % 3]) for i, sizes in enumerate([*edges, *drawn])]


def deep_linear(dim: int, num_layers: int, dtype: torch.dtype) -> tuple[list[nn.Parameter], Callable[[Tensor], Tensor]]:
    """Build the model whose memory is predicted: its weights, and its forward pass."""
    weights = [nn.Parameter(torch.ones(dim, dim, dtype=dtype)) for _ in range(num_layers)]
    weights.append(nn.Parameter(torch.ones(dim, 1, dtype=dtype)))

    def forward(x: Tensor) -> Tensor:
        for matrix in weights:
            x = x @ matrix
        return x.squeeze(-1)

    return weights, forward


def predictions(lib: Any, sizes: Iterable[tuple[int, int, int, torch.dtype]]) -> list[tuple[int, int, int, int, int]]:
    """Ask for the five numbers of each size."""
    found = [lib.memory.deep_linear_training_bytes(*size) for size in sizes]
    return [(f.parameters, f.gradients, f.optimizer_state, f.activations, f.total) for f in found]


@number("3.5")
@weight(1)
def test_deep_linear_training_bytes_predicts_what_training_holds(observe: Any, seed: int) -> None:
    """deep_linear_training_bytes: parameters, gradients and moments are what a training step leaves in memory."""
    sizes = random_sizes(seed)
    got = observe(
        "memory.deep_linear_training_bytes", lambda lib: [p[:3] for p in predictions(lib, sizes)], like=[(0, 0, 0)]
    )
    for answer, (batch, dim, num_layers, dtype) in zip(got, sizes, strict=True):
        weights, forward = deep_linear(dim, num_layers, dtype)
        optimizer = torch.optim.AdamW(weights)
        forward(torch.ones(batch, dim, dtype=dtype)).sum().backward()
        optimizer.step()
        moments = [tensor for tensor in tensors_of_state(optimizer) if tensor.dim() > 0]  # the counters are to be ints
        assert answer[0] == bytes_held(weights), "The parameters' bytes are not what the model holds."
        assert answer[1] == bytes_held(p.grad for p in weights if p.grad is not None), (
            "Every parameter gets a gradient."
        )
        assert answer[2] == bytes_held(moments), "The state's bytes are not those of AdamW's two moments."


@number("3.5")
@weight(1)
def test_deep_linear_training_bytes_predicts_activations(observe: Any, seed: int) -> None:
    """deep_linear_training_bytes: activations are what autograd saves in the forward pass."""
    sizes = random_sizes(seed)
    got = observe("memory.deep_linear_training_bytes", lambda lib: [p[3] for p in predictions(lib, sizes)], like=[0])
    for answer, (batch, dim, num_layers, dtype) in zip(got, sizes, strict=True):
        weights, forward = deep_linear(dim, num_layers, dtype)
        measured = saved_bytes(forward, [torch.ones(batch, dim, dtype=dtype)], [*weights])
        assert answer == measured, (
            "The activations' bytes are not what autograd saves: which product needs which input?"
        )


@number("3.5")
@weight(0.5)
def test_deep_linear_training_bytes_is_exact(compare: Any, seed: int) -> None:
    """deep_linear_training_bytes: the total is the exact sum, also of numbers too large for a float."""
    random = Random(seed)
    large = [(random.getrandbits(40) | 1, random.getrandbits(34) | 1, random.getrandbits(9) | 1) for _ in range(20)]
    dtypes = (torch.float16, torch.float32, torch.float8_e4m3fn)
    sizes = [(*size, dtypes[i % 3]) for i, size in enumerate(large)] + [(0, 0, 0, torch.float32)]
    compare("memory.deep_linear_training_bytes", lambda lib: {"the total": [p[4] for p in predictions(lib, sizes)]})


@number("3.5")
@weight(0.5)
def test_deep_linear_training_bytes_refuses_what_cannot_be(compare: Any) -> None:
    """deep_linear_training_bytes: negative counts and types that hold no gradients are refused by name."""
    one = [(-3, 4, 2), (4, -3, 2), (4, 2, -3), (-3, 0, 0), (0, -3, 0), (0, 0, -3)]
    several = [(-3, -3, 2), (-3, 2, -3), (2, -3, -3), (-3, -3, -3)]
    wrong = {
        "a negative count": [*one, *several],
        "a dtype that is not floating-point": [
            (4, 2, 3, dtype) for dtype in (torch.int64, torch.bool, torch.complex64)
        ],
    }

    def probe(lib: Any) -> Any:
        predict = lib.memory.deep_linear_training_bytes
        refusals = {
            what: [refusal(partial(predict, *given), names=given[3] if len(given) == 4 else -3) for given in cases]
            for what, cases in wrong.items()
        }
        return {**refusals, "the parameters of a usual model": predict(4, 1, 3, torch.float32).parameters}

    compare("memory.deep_linear_training_bytes", probe)
