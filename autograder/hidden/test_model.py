"""Part 7, hidden: initialisation is judged by properties, everything else against the reference."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
import torch
from gradescope_utils.autograder_utils.decorators import number, weight
from torch import Tensor, nn

from autograder.hidden import agree
from autograder.probing import refusal


class PlainLinear(nn.Module):
    """Stands in for the student's Linear where DeepLinear is judged: a mistake in one costs nothing in the other."""

    def __init__(self, input_dim: int, output_dim: int) -> None:
        super().__init__()
        if input_dim < 1:  # as Linear does: DeepLinear may leave it to its layers
            raise ValueError(f"input_dim must be at least 1, not {input_dim}")
        self.weight = nn.Parameter(torch.randn(input_dim, output_dim))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def normal(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def described(module: nn.Module) -> list[tuple[str, tuple[int, ...], torch.dtype, bool]]:
    return [(name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in module.named_parameters()]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Let new tensors have another dtype in this block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@number("7.1")
@weight(1)
@pytest.mark.parametrize(
    "shape", [(6, 4), (3, 1, 4), (2, 3, 5, 4), (4,)], ids=["batch", "sequence", "heads", "one row"]
)
def test_linear_multiplies_by_its_weight(compare, seed, shape):
    """Linear: multiplies the last axis by its one parameter, the weight of shape (input_dim, output_dim)."""

    def probe(lib):
        output_dim = 4 if shape == (6, 4) else 7  # a square weight, whose shape does not tell its axes apart
        w, x, upstream = normal(seed, (4, output_dim), shape, (*shape[:-1], output_dim))
        if len(shape) == 4:  # as heads lie in memory once they are before the sequence
            x = x.transpose(1, 2).contiguous().transpose(1, 2)
        layer = lib.model.Linear(4, output_dim)
        parameters = described(layer)
        layer = layer.double()
        if not isinstance(layer.weight, nn.Parameter) or layer.weight.shape != w.shape:
            return parameters, None
        with torch.no_grad():
            layer.weight.copy_(w)
        y = layer(x.requires_grad_())
        (y * upstream).sum().backward()
        return parameters, (y.detach(), x.grad, layer.weight.grad)

    # float64: orders of summation differ by 1e-15; a transposed weight or a bias by the size of the values.
    compare("model.Linear", probe, rtol=1e-9)


@number("7.1")
@weight(0.5)
@pytest.mark.parametrize(
    ("input_dim", "output_dim"),
    [(512, 32), (32, 512), (16, 8), (0, 5), (4, 7)],
    ids=[
        "more inputs than outputs",
        "more outputs than inputs",
        "the global seed",
        "no inputs",
        "another default dtype",
    ],
)
def test_linear_draws_its_weight(observe, seed, input_dim, output_dim):
    """Linear: the weight is drawn from PyTorch's global generator, with mean 0 and standard deviation 1/√input_dim."""

    def probe(lib):
        if input_dim == 0:
            return [
                str(refusal(lambda: lib.model.Linear(input_dim, output_dim), names=input_dim)),
                str(refusal(lambda: lib.model.Linear(3, -5), names=-5)),
                str(refusal(lambda: lib.model.Linear(-27, 3), names=-27)),
                str(refusal(lambda: lib.model.Linear(-27, 0), names=-27)),
                str(refusal(lambda: lib.model.Linear(1, 0))),
            ], []
        if input_dim == 4:
            with default_dtype(torch.float64):
                return [str(lib.model.Linear(input_dim, output_dim).weight.dtype)], []
        weights = []
        for offset in (0, 1, 0):
            torch.manual_seed(seed + offset)
            weights += [lib.model.Linear(input_dim, output_dim).weight.detach() for _ in range(2)]
        return [], weights

    answers, weights = observe("model.Linear", probe, like=([""], [torch.zeros(0, 0)]))
    if input_dim == 0:
        refused = str(("refused", "ValueError", True))
        assert answers[0] == refused, "Without inputs there is no 1/√input_dim: a ValueError that names it."
        assert answers[1] == refused, "A negative number of outputs is a ValueError that names it."
        assert answers[2:4] == [refused] * 2, "A negative number of inputs is a ValueError that names it."
        assert answers[4] == str(("accepted",)), "One input is enough, and there may be no outputs."
        return
    if input_dim == 4:
        assert answers == ["torch.float64"], "The weight should be in PyTorch's default dtype, float64 here."
        return
    first, second, other, _, again, _ = (w.double() for w in weights)
    assert torch.equal(first, again), "torch.manual_seed should decide the weight's values."
    assert not torch.equal(first, other), "Another seed should give another weight."
    assert not torch.equal(first, second), "Two layers should have different weights."
    if input_dim >= 32:
        # 16,384 values. Right: std·√input_dim is 0.987 (1 if one corrects for the cut) with a deviation of 0.006, and a
        # cut at 2 instead of 3, judged elsewhere, makes it 0.88. Glorot's std is 1.37 or 0.34 here, He's 1.41,
        # PyTorch's own layer's 0.58. The mean's deviation is σ/128: all bounds are six deviations or more away.
        nominal = 1 / math.sqrt(input_dim)
        assert abs(first.mean().item()) < 6.5 * nominal / math.sqrt(first.numel()), (
            "The mean of the weight should be 0."
        )
        assert 0.84 < first.std().item() / nominal < 1.04, (
            "The standard deviation of the weight should be 1/√input_dim."
        )


@number("7.1")
@weight(0.5)
def test_linear_cuts_its_weight(observe, seed):
    """Linear: the weight is distributed normally, and what falls outside ±3 standard deviations is drawn again."""

    def probe(lib):
        torch.manual_seed(seed)
        return lib.model.Linear(1000, 1000).weight.detach()  # square: how it lies is judged above

    w = observe("model.Linear", probe, like=torch.zeros(1000, 1000)).double()
    assert w.std() > 0, "All values of the weight are the same: they should be drawn."
    # In units of the σ that the values themselves show (0.98658: std of a normal of σ = 1, cut at ±3), so that a wrong
    # standard deviation, judged above, does not count twice. Its error is 0.07 %: all bounds are five deviations away and more.
    sigmas = w * (0.98658 / w.std())
    largest = sigmas.abs().max().item()
    at_the_border = int((sigmas.abs() >= largest * (1 - 1e-6)).sum())
    assert at_the_border < 8, (
        "Values outside ±3 standard deviations are moved to the border; they should be drawn again."
    )
    # A million values. Not cut: 2,700 lie outside; drawn again once, 7 of them still do. Between 2.985 and 3 lie 130.
    assert largest < 3.015, (
        "Values lie beyond ±3 standard deviations. What falls outside should be drawn again until it falls inside."
    )
    assert largest > 2.985, "No value comes near ±3 standard deviations: cut too early, or another distribution."
    # 220 values or more in each of 120 bins. 2,700 set to one value are 19 deviations in a bin even where it is fullest.
    edges = torch.linspace(-3, 3, 121, dtype=torch.float64)
    expected = w.numel() * torch.special.ndtr(edges).diff() / (2 * torch.special.ndtr(edges[-1]) - 1)
    found = torch.histc(sigmas, bins=120, min=-3, max=3)
    assert ((found - expected).abs() < 7 * expected.sqrt()).all(), (
        "The values are not distributed normally between the cuts. "
        "What falls outside should be drawn again from the same distribution."
    )


@number("7.2")
@weight(1)
@pytest.mark.parametrize(
    ("dim", "num_layers"), [(5, 3), (4, 0), (3, 12), (4, -2)], ids=["three layers", "none", "twelve", "too few"]
)
def test_deeplinear_has_layers_of_its_own(compare, seed, dim, num_layers):
    """DeepLinear: parameters layers.0.weight … final.weight, each layer with values of its own."""

    def probe(lib):
        torch.manual_seed(seed)
        with mock.patch.object(lib.model, "Linear", PlainLinear):
            if num_layers < 0:
                wrong = [
                    ((dim, num_layers), num_layers),
                    ((dim, -1), -1),
                    ((0, 3), 0),
                    ((-27, 3), -27),
                    ((-27, 0), -27),
                ]
                return [refusal(lambda case=case: lib.model.DeepLinear(*case), names=value) for case, value in wrong]
            model = lib.model.DeepLinear(dim, num_layers)
        values = [tuple(p.flatten().tolist()) for p in model.parameters()]
        return described(model), len(set(values))

    compare("model.DeepLinear", probe)


@number("7.2")
@weight(0.5)
def test_deeplinear_works_on_an_accelerator(observe, seed, device):
    """DeepLinear: moved to an accelerator, it computes there what it computes on the CPU, gradients too."""

    def probe(lib):
        (x,) = normal(seed, (6, 5))

        def run(place):
            made: list[PlainLinear] = []

            class Recorded(PlainLinear):
                """A layer that is found even where PyTorch does not know of it, which is judged elsewhere."""

                def __init__(self, input_dim: int, output_dim: int) -> None:
                    super().__init__(input_dim, output_dim)
                    made.append(self)

            torch.manual_seed(seed)
            with mock.patch.object(lib.model, "Linear", Recorded):
                model = lib.model.DeepLinear(5, 3).double()
            for module in (model, *made):
                module.double().to(place)
            leaf = x.to(place).detach().requires_grad_()
            y = model(leaf)
            y.square().sum().backward()
            return [y.detach().flatten(), leaf.grad.flatten()]

        here, there = run("cpu"), run(device)
        return here, [t.cpu() for t in there], [t.device.type for t in there]

    numbers = [torch.zeros(0, dtype=torch.float64)]
    here, there, places = observe("model.DeepLinear", probe, like=(numbers, numbers, [""]))
    assert set(places) == {device}, "What comes out is not on the accelerator, where the model and its input are."
    assert agree(here, there), "Other values on an accelerator than on the CPU."


@number("7.2")
@weight(0.5)
@pytest.mark.parametrize(
    ("batch", "dim", "num_layers"),
    [(6, 5, 3), (1, 4, 2), (3, 6, 0), (0, 3, 1)],
    ids=["three layers", "a batch of one", "no layers", "an empty batch"],
)
def test_deeplinear_follows_the_reference(compare, seed, batch, dim, num_layers):
    """DeepLinear: one number a row, layer after layer, with the gradients of the reference."""

    def probe(lib):
        w_final, x, upstream, *w_layers = normal(seed, (dim, 1), (batch, dim), (batch,), *[(dim, dim)] * num_layers)
        made: list[PlainLinear] = []

        class Recorded(PlainLinear):
            """A layer that is found even where PyTorch does not know of it, which is judged above, as names are."""

            def __init__(self, input_dim: int, output_dim: int) -> None:
                super().__init__(input_dim, output_dim)
                made.append(self.double())

        with mock.patch.object(lib.model, "Linear", Recorded):
            model = lib.model.DeepLinear(dim, num_layers).double()
        candidates: list[list[nn.Parameter]] = [list(model.parameters()), [layer.weight for layer in made]]
        for weights in candidates:
            square = [p for p in weights if p.numel() == dim * dim]
            final = [p for p in weights if p.numel() == dim]
            if len(square) == num_layers and len(final) == 1:
                break
        else:
            return [tuple(p.shape) for p in weights]
        with torch.no_grad():
            for p, w in zip([*square, *final], [*w_layers, w_final], strict=True):
                p.copy_(w / math.sqrt(dim) if p.shape == w.shape else w.T / math.sqrt(dim))
        y = model(x.requires_grad_())
        if y.shape != upstream.shape:
            return y.detach()
        (y * upstream).sum().backward()
        return y.detach(), x.grad, [p.grad for p in [*square, *final]]

    compare("model.DeepLinear", probe, rtol=1e-9)


@number("7.3")
@weight(0.5)
def test_num_parameters_counts_elements(compare, seed):
    """num_parameters: the elements of all parameters, frozen ones too, buffers not."""

    def probe(lib):
        sizes = torch.randint(1, 30, (4,), generator=torch.Generator().manual_seed(seed)).tolist()
        a, b, c, d = sizes
        frozen = nn.Sequential(nn.Linear(a, b), nn.Linear(b, c))
        frozen[0].requires_grad_(False)
        nested = nn.ModuleDict({"x": nn.Linear(a, b), "y": nn.ModuleList([nn.LayerNorm(c), nn.Embedding(d, 3)])})
        empty = nn.Module()
        empty.register_parameter("none", None)
        empty.weight = nn.Parameter(torch.zeros(0, 5))
        models = [nn.Linear(a, b), frozen, nested, nn.BatchNorm1d(c), empty, nn.Linear(70_000, 70_000, device="meta")]
        return [lib.model.num_parameters(model) for model in models]

    compare("model.num_parameters", probe)


@number("7.3")
@weight(0.5)
def test_num_parameters_counts_tied_weights_once(compare, seed):
    """num_parameters: a parameter that is used in several places counts once."""

    def probe(lib):
        a, b = torch.randint(1, 30, (2,), generator=torch.Generator().manual_seed(seed)).tolist()
        head = nn.Sequential(nn.Embedding(a, b), nn.Linear(b, a))
        head[1].weight = head[0].weight
        layer = nn.Linear(b, b)
        looped = nn.Sequential(layer, nn.ReLU(), layer, layer)
        alias = nn.Linear(a, b)
        alias.same = alias.weight
        return [lib.model.num_parameters(model) for model in (head, looped, alias)]

    compare("model.num_parameters", probe)
