"""Part 6, where the time goes: formulas and the student's counter held against FlopCounterMode, run by the grader."""

import importlib
import math
import random
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch
from gradescope_utils.autograder_utils.decorators import number, weight
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.flop_counter import FlopCounterMode

from autograder.probing import refusal
from autograder.sandbox import accelerator

# Sizes or counts that whoever looks at their product, or at one of them, lets through.
TWO_NEGATIVE = ((-1, -1, 4), (-1, 3, -1), (2, -1, -1))
BESIDE_0 = ((0, -1, 4), (-1, 0, 4), (2, 0, -1), (-1, 3, 0))
WORDS = ("batch", "head", "query", "key", "d", "seq", "hidden", "i", "j", "out_dim")


def matmul_flops(m: int, k: int, n: int) -> int:
    """Return the FLOPs of (m, k) @ (k, n), or refuse a negative size: for the problems that may call the student's function."""
    for size in (m, k, n):
        if size < 0:
            raise ValueError(f"{size} is negative")
    return 2 * m * k * n


RELIES_ON = {
    "flops.einsum_flops": {"matmul_flops": matmul_flops},
    "flops.deep_linear_flops": {"matmul_flops": matmul_flops},
    "flops.training_step_flops": {"matmul_flops": matmul_flops},
    "flops.count_flops": {"matmul_flops": matmul_flops},
}


def refused(names: float, function: Callable[..., Any], *inputs: tuple[Any, ...]) -> list[Any]:
    """Say of each input how it was refused; where two values of it are wrong they are equal, and one name is right for both."""
    return [refusal(partial(function, *given), names=names) for given in inputs]


def tried(call: Callable[[], Any]) -> tuple[tuple[str, ...], Any]:
    """Return what a call with a right input answers, and before it whether it was refused: then the others are still asked."""
    try:
        return ("accepted",), call()
    except ValueError:
        return ("refused", "ValueError"), None


def counted(fn: Callable[[], object]) -> int:
    """Count the FLOPs of `fn()` as PyTorch does."""
    with FlopCounterMode(display=False) as counter:
        fn()
    return counter.get_total_flops()


def deep_linear(
    batch: int, dim: int, num_layers: int, input_requires_grad: bool
) -> tuple[Callable[[], Tensor], Callable[[], Any]]:
    """Return the forward pass of the deep linear model, and its whole training step."""
    x = torch.ones(batch, dim, requires_grad=input_requires_grad)
    weights = [torch.ones(dim, n, requires_grad=True) for n in (*[dim] * num_layers, 1)]

    def forward() -> Tensor:
        y = x
        for w in weights:
            y = y @ w
        return y.squeeze(-1)

    return forward, lambda: forward().sum().backward()


def draw_models(seed: int) -> list[tuple[int, int, int]]:
    """Draw (batch, dim, num_layers), all different numbers."""
    rng = random.Random(seed)
    return [(rng.randint(20, 40), rng.randint(9, 19), rng.randint(1, 7)) for _ in range(6)]


@number("6.1")
@weight(1)
@pytest.mark.parametrize("case", ["counted", "rules"])
def test_matmul_flops_are_those_that_pytorch_counts(compare, observe, seed, case):
    """matmul_flops: two for each of the m·k·n triples, as PyTorch counts them, exact however large."""
    rng = random.Random(seed)
    sizes = [tuple(rng.randint(1, 40) for _ in range(3)) for _ in range(30)]
    large = [tuple(rng.randint(10**6, 10**7) for _ in range(3)) for _ in range(10)]  # products beyond 2^53

    def probe(lib):
        return [lib.flops.matmul_flops(*mkn) for mkn in sizes]

    def probe_rules(lib):
        matmul_flops = lib.flops.matmul_flops
        return {
            "a product too large for a float": [matmul_flops(*mkn) for mkn in large],
            "a size of 0": [matmul_flops(0, 3, 4), matmul_flops(3, 0, 4), matmul_flops(3, 4, 0)],
            "a negative size": [
                refusal(lambda: matmul_flops(-2, 3, 4), names=-2),
                refusal(lambda: matmul_flops(2, -3, 4), names=-3),
                refusal(lambda: matmul_flops(2, 3, -4), names=-4),
            ],
            "two negative sizes": refused(-1, matmul_flops, *TWO_NEGATIVE),
            "a negative size beside a 0": refused(-1, matmul_flops, *BESIDE_0),
        }

    if case == "counted":
        measured = [counted(partial(torch.mm, torch.ones(m, k), torch.ones(k, n))) for m, k, n in sizes]
        assert observe("flops.matmul_flops", probe, like=[0]) == measured, "the count differs from PyTorch's"
    else:
        compare("flops.matmul_flops", probe_rules)


def draw_einsum(rng: random.Random) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Draw a pattern and two shapes: sizes from 2 to 5, every summed axis in both operands and at least one of them."""
    names = rng.sample(WORDS, len(WORDS))
    batch, left_only, right_only = ([names.pop() for _ in range(rng.randint(0, 2))] for _ in range(3))
    summed = [names.pop() for _ in range(rng.randint(1, 2))]
    left, right, output = batch + left_only + summed, batch + right_only + summed, batch + left_only + right_only
    for axes in (left, right, output):
        rng.shuffle(axes)
    sizes = {axis: rng.randint(2, 5) for axis in (*left, *right)}
    pattern = f"{' '.join(left)}, {' '.join(right)} -> {' '.join(output)}"
    return pattern, tuple(sizes[axis] for axis in left), tuple(sizes[axis] for axis in right)


def counted_einsum(pattern: str, *shapes: tuple[int, ...]) -> int:
    """Count an einsum over named axes, run by PyTorch, which wants them to be letters."""
    letters = {axis: "abcdefghijklmnop"[i] for i, axis in enumerate(WORDS)}
    equation = "".join(letters.get(word, word) for word in pattern.replace(",", " , ").split())
    return counted(lambda: torch.einsum(equation, *(torch.ones(shape) for shape in shapes)))


@number("6.2")
@weight(1)
def test_einsum_flops_are_those_that_pytorch_counts(observe, seed):
    """einsum_flops: products that sum over shared axes cost what PyTorch counts."""
    rng = random.Random(seed)
    einsums = [draw_einsum(rng) for _ in range(25)]

    def probe(lib):
        return [lib.flops.einsum_flops(*einsum) for einsum in einsums]

    measured = [counted_einsum(*einsum) for einsum in einsums]
    assert observe("flops.einsum_flops", probe, like=[0]) == measured, (
        "the count differs from PyTorch's: take the product of all axis sizes, each axis once, and two FLOPs for each"
    )


@number("6.2")
@weight(1)
def test_einsum_flops_without_shared_sums(compare, seed):
    """einsum_flops: one FLOP a product where nothing is summed, two where any axis is; refuses what does not fit."""
    rng = random.Random(seed)
    a, b, c = (rng.randint(3, 90) for _ in range(3))

    def probe(lib):
        def flops(*einsum):
            return tried(lambda: lib.flops.einsum_flops(*einsum))

        return {
            "where nothing is summed": [
                flops("i, j -> i j", (a,), (b,)),
                flops("batch i, batch i -> batch i", (a, b), (a, b)),
                flops("i j, i -> j i", (a, b), (a,)),
            ],
            "where all is summed": flops("i, i ->", (a,), (a,)),
            "where an axis of one operand is summed": [
                flops("i j, k -> i k", (a, b), (c,)),
                flops("i, j -> ", (a,), (b,)),
            ],
            "where an axis has size 0": flops("i k, k j -> i j", (a, 0), (0, b)),
            "where an axis has size 1": flops("i k, k j -> i j", (a, 1), (1, b)),
            "where an operand is a single number": [flops("i, -> i", (a,), ()), flops(", i -> ", (), (a,))],
            "without spaces around comma and arrow": flops("batch i,i batch->batch", (a, b), (b, a)),
            "a name with an underscore": flops("long_axis i, i j -> long_axis j", (a, b), (b, c)),
            "a name with a digit": flops("i1 i2, i2 j -> i1 j", (a, b), (b, c)),
            "a name with a capital": flops("B i, i J -> B J", (a, b), (b, c)),
            "a product too large for a float": flops("i j, j k -> i k", [10**7, 10**7 + 1], [10**7 + 1, 3]),
        }

    def probe_refusals(lib):
        einsum_flops = lib.flops.einsum_flops
        return {
            "where an axis has size 0": einsum_flops("query d, d key -> query key", (2, 0), (0, 4)),
            "an axis that only the result has": refusal(
                lambda: einsum_flops("query d, key d -> query value", (2, 3), (4, 3)), names="value"
            ),
            "an axis with two sizes": refusal(
                lambda: einsum_flops("query width, width key -> query key", (2, 3), (5, 4)), names="width"
            ),
            "an axis with two sizes, one of them 1": refusal(
                lambda: einsum_flops("query width, width key -> query key", (2, 1), (5, 4)), names="width"
            ),
            "an axis twice in one operand": [
                refusal(lambda: einsum_flops("twin twin, twin key -> key", (3, 3), (3, 4)), names="twin"),
                refusal(lambda: einsum_flops("key d, twin twin -> key", (4, 2), (3, 3)), names="twin"),
            ],
            "an axis twice in the output": refusal(
                lambda: einsum_flops("twin d, d key -> twin twin", (3, 2), (2, 4)), names="twin"
            ),
            "a shape with another number of axes": [
                refusal(lambda: einsum_flops("i j, j k -> i k", (2, 3, 4), (3, 4)), names="i j, j k -> i k"),
                refusal(lambda: einsum_flops("i j, j k -> i k", (2, 3), (3,)), names="i j, j k -> i k"),
            ],
            "another number of shapes than two": [
                refusal(lambda: einsum_flops("i j, j k -> i k", (2, 3)), names="i j, j k -> i k"),
                refusal(lambda: einsum_flops("i j, j k -> i k", (2, 3), (3, 4), (4, 5)), names="i j, j k -> i k"),
            ],
            "a pattern with one operand": refusal(lambda: einsum_flops("i j -> i", (2, 3)), names="i j -> i"),
            "a pattern with three operands": [
                refusal(partial(einsum_flops, "i j, j k, k -> i", *shapes), names="i j, j k, k -> i")
                for shapes in (((2, 3), (3, 4), (4,)), ((2, 3), (3, 4)))
            ],
            "a pattern with parentheses": refusal(  # as many axes as words, so that these are all that is wrong
                lambda: einsum_flops("(i j) k, k -> (i j)", (2, 3, 4), (4,)), names="(i j) k, k -> (i j)"
            ),
            "a pattern with an ellipsis": refusal(
                lambda: einsum_flops("... j, j k -> ... k", (2, 3), (3, 4)), names="... j, j k -> ... k"
            ),
            "a pattern with two arrows": refusal(  # right if either is all that is looked at
                lambda: einsum_flops("i j, j k -> i -> k", (2, 3), (3, 4)), names="i j, j k -> i -> k"
            ),
            "a name that is no word": refusal(
                lambda: einsum_flops("i $, $ k -> i k", (2, 3), (3, 4)), names="i $, $ k -> i k"
            ),
            "a pattern without an arrow": refusal(lambda: einsum_flops("i j, j k", (2, 3), (3, 4)), names="i j, j k"),
            "a negative size": [
                refusal(lambda: einsum_flops("i j, j k -> i k", (-2, 3), (3, 4)), names=-2),
                refusal(lambda: einsum_flops("i j, j k -> i k", (2, -3), (-3, 4)), names=-3),
            ],
            **{
                what: refused(-1, einsum_flops, *(("i j, j k -> i k", (i, j), (j, k)) for i, j, k in sizes))
                for what, sizes in (("two negative sizes", TWO_NEGATIVE), ("a negative size beside a 0", BESIDE_0))
            },
        }

    compare("flops.einsum_flops", probe)
    compare("flops.einsum_flops", probe_refusals)


@number("6.3")
@weight(1)
@pytest.mark.parametrize("case", ["measured", "rules"])
def test_elementwise_flops_are_one_an_element(compare, observe, seed, case):
    """elementwise_flops: as many as the result of an elementwise operation has elements."""
    rng = random.Random(seed)
    shapes = [tuple(rng.randint(1, 8) for _ in range(rng.randint(0, 5))) for _ in range(30)] + [
        (),
        (0,),
        (3, 0, 2),
        (1, 1),
    ]

    def probe(lib):
        return [lib.flops.elementwise_flops(shape) for shape in shapes]

    def probe_rules(lib):
        elementwise_flops = lib.flops.elementwise_flops
        return {
            "a product too large for a float": elementwise_flops([10**7, 10**7 + 1, 10**7 + 3]),
            "a shape that is a torch.Size": elementwise_flops(torch.Size([2, 3])),
            "a negative size": [
                refusal(lambda: elementwise_flops((-2,)), names=-2),
                refusal(lambda: elementwise_flops((4, -3, 5)), names=-3),
            ],
            "two negative sizes": refused(-1, elementwise_flops, ((-1, -1),), *((shape,) for shape in TWO_NEGATIVE)),
            "a negative size beside a 0": refused(-1, elementwise_flops, ((0, -1),), *((shape,) for shape in BESIDE_0)),
        }

    if case == "measured":
        measured = [torch.ones(shape).add(1).numel() for shape in shapes]
        assert observe("flops.elementwise_flops", probe, like=[0]) == measured, (
            "the count differs from the number of elements that an elementwise operation computes"
        )
    else:
        compare("flops.elementwise_flops", probe_rules)


@number("6.4")
@weight(1)
def test_deep_linear_flops_forward_is_what_pytorch_counts(observe, seed):
    """deep_linear_flops: the forward pass costs what PyTorch counts."""
    models = draw_models(seed)

    def probe(lib):
        return [lib.flops.deep_linear_flops(*model).forward for model in models]

    measured = [counted(deep_linear(*model, False)[0]) for model in models]
    assert observe("flops.deep_linear_flops", probe, like=[0]) == measured, (
        "the FLOPs of the forward pass differ from those that PyTorch counts"
    )


@number("6.4")
@weight(1)
def test_deep_linear_flops_backward_computes_what_is_wanted(observe, seed):
    """deep_linear_flops: the backward pass computes no gradient of an input that wants none."""
    models = draw_models(seed)

    def probe(lib):
        return [lib.flops.deep_linear_flops(*model).backward for model in models]

    measured = [counted(step) - counted(forward) for forward, step in (deep_linear(*model, False) for model in models)]
    assert observe("flops.deep_linear_flops", probe, like=[0]) == measured, (
        "the FLOPs of the backward pass differ from those that PyTorch counts where the input wants no gradient"
    )


@number("6.4")
@weight(1)
def test_deep_linear_flops_of_the_whole_step(compare, observe, seed):
    """deep_linear_flops: the whole step, with the input's gradient too, and with counts of 0; refuses negative ones."""
    models = draw_models(seed)

    def probe(lib):
        steps = [lib.flops.deep_linear_flops(*model, input_requires_grad=True) for model in models]
        return [(step.backward, step.total) for step in steps]

    def probe_edges(lib):
        deep_linear_flops = lib.flops.deep_linear_flops
        steps = {
            "no square layers": deep_linear_flops(6, 5, 0),
            "no square layers, and the input's gradient": deep_linear_flops(6, 5, 0, input_requires_grad=True),
            "a batch of 0": deep_linear_flops(0, 5, 3),
            "a dim of 0": deep_linear_flops(6, 0, 3),
            "a step too large for a float": deep_linear_flops(10**6 + 1, 10**6 + 3, 97),
        }
        return {
            **{what: (step.forward, step.backward, step.total) for what, step in steps.items()},
            "a negative count": [
                refusal(lambda: deep_linear_flops(-6, 5, 3), names=-6),
                refusal(lambda: deep_linear_flops(6, -5, 3), names=-5),
                refusal(lambda: deep_linear_flops(6, 5, -3), names=-3),
            ],
            "two negative counts": refused(-1, deep_linear_flops, *TWO_NEGATIVE),
            "a negative count beside a 0": refused(-1, deep_linear_flops, *BESIDE_0),
        }

    measured = []
    for model in models:
        forward, step = deep_linear(*model, True)
        total = counted(step)
        measured.append((total - counted(forward), total))
    assert observe("flops.deep_linear_flops", probe, like=[(0, 0)]) == measured, (
        "the FLOPs of a step differ from those that PyTorch counts where the input wants a gradient"
    )
    compare("flops.deep_linear_flops", probe_edges)


@number("6.5")
@weight(1)
@pytest.mark.parametrize("case", ["counted", "rules"])
def test_training_step_flops_are_six_a_token_and_parameter(compare, observe, seed, case):
    """training_step_flops: forward and backward pass, where every parameter multiplies every token."""
    models = draw_models(seed)

    def probe(lib):
        return [lib.flops.training_step_flops(batch, num_layers * dim * dim + dim) for batch, dim, num_layers in models]

    def probe_rules(lib):
        training_step_flops = lib.flops.training_step_flops
        return {
            "a step too large for a float": training_step_flops(4 * 10**6 + 1, 70 * 10**9 + 1),
            "a count of 0": [training_step_flops(num_tokens=0, num_parameters=5), training_step_flops(5, 0)],
            "a negative count": [
                refusal(lambda: training_step_flops(-4, 5), names=-4),
                refusal(lambda: training_step_flops(4, -5), names=-5),
            ],
            "two negative counts": refused(-1, training_step_flops, (-1, -1)),
            "a negative count beside a 0": refused(-1, training_step_flops, (0, -1), (-1, 0)),
        }

    if case == "counted":
        measured = [counted(deep_linear(*model, True)[1]) for model in models]
        assert observe("flops.training_step_flops", probe, like=[0]) == measured, (
            "the FLOPs of a training step differ from those that PyTorch counts in forward and backward pass"
        )
    else:
        compare("flops.training_step_flops", probe_rules)


def forward_workloads(seed: int) -> dict[str, Callable[[], Any]]:
    """Build programs that multiply matrices by each of the four operators."""
    rng = random.Random(seed)
    b, m, k, n = rng.randint(2, 5), rng.randint(6, 9), rng.randint(10, 20), rng.randint(21, 30)
    linear = nn.Linear(k, n)
    x, w, batched = torch.ones(m, k), torch.ones(k, n), torch.ones(b, m, k)
    return {
        "mm": lambda: (x @ w, torch.mm(w.T, x.T)),
        "addmm": lambda: (linear(x), torch.addmm(torch.ones(n), x, w)),
        "bmm": lambda: (
            torch.bmm(batched, torch.ones(b, k, n)),
            torch.einsum("bmk,bnk->bmn", batched, torch.ones(b, n, k)),
        ),
        "baddbmm": lambda: torch.baddbmm(torch.ones(1, n), batched, torch.ones(b, k, n)),
        "broadcast": lambda: (batched @ w, linear(batched), torch.ones(3, b, m, k) @ torch.ones(3, 1, k, n)),
    }


@number("6.6")
@weight(1)
@pytest.mark.parametrize("workload", ["mm", "addmm", "bmm", "baddbmm", "broadcast"])
def test_count_flops_counts_matrix_products(observe, seed, workload):
    """count_flops: mm, addmm, bmm and baddbmm, as PyTorch counts them."""

    def probe(lib):
        return lib.flops.count_flops(forward_workloads(seed)[workload])

    measured = counted(forward_workloads(seed)[workload])
    assert observe("flops.count_flops", probe, like=0) == measured, f"the count differs from PyTorch's ({workload})"


def backward_workload(seed: int, kind: str) -> Callable[[], Any]:
    """Build a program that computes gradients."""
    rng = random.Random(seed)
    batch, dim, hidden = rng.randint(3, 9), rng.randint(10, 20), rng.randint(21, 30)
    x = torch.ones(batch, dim)
    if kind == "deep linear":
        return deep_linear(batch, dim, 3, False)[1]
    if kind == "mlp with a frozen layer":
        model = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.Linear(hidden, 1))
        model[2].requires_grad_(False)
        return lambda: model(x).sum().backward()
    q, k, v = (torch.ones(2, batch, dim, requires_grad=True) for _ in range(3))
    return lambda: (torch.softmax(q @ k.mT, -1) @ v).sum().backward()


@number("6.6")
@weight(1)
@pytest.mark.parametrize("kind", ["deep linear", "mlp with a frozen layer", "attention"])
def test_count_flops_counts_the_backward_pass(observe, seed, kind):
    """count_flops: gradients are matrix products too."""

    def probe(lib):
        return lib.flops.count_flops(backward_workload(seed, kind))

    measured = counted(backward_workload(seed, kind))
    assert observe("flops.count_flops", probe, like=0) == measured, f"the count differs from PyTorch's ({kind})"


def odd_workloads(**overload: Any) -> list[Callable[[], Any]]:
    """Build programs without matrix products, and with other overloads of them.

    Args:
        overload: what the last program's products are called with besides: FlopCounterMode fails at most of the overloads for `out_dtype`,
            and is asked for the same products without it.
    """
    x, w = torch.ones(3, 4), torch.ones(4, 5)
    batched, weights = torch.ones(2, 3, 4), torch.ones(2, 4, 5)
    # The CPU has no kernel for `out_dtype`, but this device takes everything.
    left, right = (t.to("meta", torch.bfloat16) for t in (batched, weights))
    wide = torch.ones(3, 4, dtype=torch.float64)
    return [
        lambda: None,
        lambda: torch.softmax(x * 2 + x.exp(), dim=-1).sum(),
        lambda: (torch.mv(x, torch.ones(4)), torch.dot(torch.ones(4), torch.ones(4)), torch.outer(torch.ones(3), torch.ones(4))),
        lambda: torch.ones(3, 0) @ torch.ones(0, 5),
        lambda: wide @ torch.ones(4, 5, dtype=torch.float64),  # an operator that is handed on without its keywords
        lambda: (torch.mm(x, w, out=torch.empty(3, 5)), torch.bmm(batched, weights, out=torch.empty(2, 3, 5))),
        lambda: torch.addmm(torch.ones(5), x, w, beta=0.5, alpha=2.0, out=torch.empty(3, 5)),
        lambda: torch.baddbmm(torch.ones(2, 1, 5), batched, weights, beta=0.5, alpha=2.0, out=torch.empty(2, 3, 5)),
        lambda: (torch.mm(left[0], right[0], **overload), torch.bmm(left, right, **overload)),
    ]  # fmt: skip


def other_products() -> dict[str, Callable[[], Any]]:
    """Build programs whose products PyTorch executes as other operators. Which runs attention is its choice, so the reference is asked."""
    batched, weights, heads = torch.ones(2, 3, 4), torch.ones(2, 4, 5), torch.ones(2, 2, 8, 16)
    return {
        "a convolution": lambda: torch.conv1d(batched, torch.ones(5, 3, 2)),
        "addbmm": lambda: torch.addbmm(torch.ones(3, 5), batched, weights),
        "fused attention": lambda: nn.functional.scaled_dot_product_attention(heads, heads, heads),
    }


@number("6.6")
@weight(1)
def test_count_flops_counts_nothing_else(compare, observe):
    """count_flops: nothing but the four operators, in all overloads; calls once from 0, and lets errors through."""

    def probe_odd_workloads(lib):
        return [lib.flops.count_flops(fn) for fn in odd_workloads(out_dtype=torch.float32) for _ in range(2)]

    def probe_other_products(lib):
        return {what: lib.flops.count_flops(fn) for what, fn in other_products().items()}

    def probe_calls(lib):
        count_flops = lib.flops.count_flops
        x, w = torch.ones(2, 3), torch.ones(3, 4)
        calls = []

        def product():
            calls.append("product")
            return x @ w

        def failure():
            calls.append("failure")
            product()
            raise KeyError("stop")

        modes = len(_get_current_dispatch_mode_stack())
        first = count_flops(product)
        error = refusal(lambda: count_flops(failure), names="stop", kinds=(KeyError,))
        left_behind = len(_get_current_dispatch_mode_stack()) - modes
        return {
            "one product": first,
            "what fn raises goes through": error,
            "modes that are left on after fn has raised": left_behind,
            "one product, after fn has raised": count_flops(product),
            "the calls of fn": calls,
        }

    measured = [counted(fn) for fn in odd_workloads() for _ in range(2)]
    assert observe("flops.count_flops", probe_odd_workloads, like=[0]) == measured, (
        "the count differs from PyTorch's: only mm, addmm, bmm and baddbmm count, in every overload, and each call starts at 0"
    )
    compare("flops.count_flops", probe_other_products)
    compare("flops.count_flops", probe_calls)


A100, H100, H200 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H200"
HALF, FP8 = (torch.float16, torch.bfloat16), (torch.float8_e4m3fn, torch.float8_e5m2)


@number("6.7")
@weight(1)
def test_promised_flop_per_sec_is_the_dense_peak(compare):
    """promised_flop_per_sec: the dense peak of a GPU for a dtype, a float; refuses other cards, dtypes and CPUs."""
    known = {
        "an A100 in float32": [(A100, torch.float32)],
        "an A100 in 16 bits": [(A100, dtype) for dtype in HALF],
        "an H100 or H200 in float32": [(device_name, torch.float32) for device_name in (H100, H200)],
        "an H100 or H200 in 16 bits": [(device_name, dtype) for device_name in (H100, H200) for dtype in HALF],
        "an H100 or H200 in 8 bits": [(device_name, dtype) for device_name in (H100, H200) for dtype in FP8],
    }
    others = {
        "a card on PCIe": ["NVIDIA H100 PCIe", "NVIDIA A100-PCIE-40GB", "NVIDIA H100 pcie"],
        "an NVL card": ["NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA H200 Nvl", "NVIDIA H100 nvl"],
        "a GPU that is not in the table": ["NVIDIA A10", "NVIDIA V100-SXM2-16GB", "NVIDIA L40S"],
        "no GPU at all": ["cpu", "Intel(R) Xeon(R) Platinum 8480", ""],
    }

    def probe(lib):
        peak = lib.flops.promised_flop_per_sec
        return {what: [tried(partial(peak, *gpu)) for gpu in gpus] for what, gpus in known.items()}

    def probe_refusals(lib):
        promised_flop_per_sec = lib.flops.promised_flop_per_sec
        return {
            "the model's name alone": tried(lambda: promised_flop_per_sec("H100", torch.float32)),
            **{
                what: [refusal(partial(promised_flop_per_sec, name, torch.bfloat16), names=name) for name in names]
                for what, names in others.items()
            },
            "a card on PCIe, in float32": refusal(
                lambda: promised_flop_per_sec("NVIDIA H100 PCIe", torch.float32), names="PCIe"
            ),
            "an A100 in 8 bits": refusal(
                lambda: promised_flop_per_sec(A100, torch.float8_e4m3fn), names=torch.float8_e4m3fn
            ),
            "a dtype that is not in the table": [
                refusal(lambda: promised_flop_per_sec(H100, torch.float64), names=torch.float64),
                refusal(lambda: promised_flop_per_sec(H200, torch.int64), names=torch.int64),
            ],
        }

    compare("flops.promised_flop_per_sec", probe, rtol=0)  # looked up, and halved at most: nothing rounds
    compare("flops.promised_flop_per_sec", probe_refusals)


@number("6.8")
@weight(1)
@pytest.mark.parametrize("case", ["values", "refusals"])
def test_mfu_is_the_part_of_the_promise_that_is_kept(compare, seed, case):
    """mfu: FLOPs per second, divided by the peak; seconds and peak must be more than 0."""
    rng = random.Random(seed)
    runs = [(10 ** rng.uniform(9, 18), 10 ** rng.uniform(-3, 3), 10 ** rng.uniform(12, 15)) for _ in range(20)]

    def probe(lib):
        mfu = lib.flops.mfu
        return {
            "some runs": [mfu(*run) for run in runs],
            "no FLOPs": mfu(0, 1.5, 1e12),
            "from ints": mfu(6, 3, 2),
            "a peak below 1": mfu(6, 0.5, 0.25),
            "more than the peak": mfu(2 * 10**15, 1.0, 989 * 10**12),
        }

    def probe_refusals(lib):
        mfu = lib.flops.mfu
        return {
            "a usual run": mfu(1e12, 2.0, 1e12),
            "0 seconds": [
                refusal(lambda: mfu(1e12, 0, 1e12), names=0),
                refusal(lambda: mfu(1e12, 0.0, 1e12), names=0.0),
            ],
            "negative seconds": refusal(lambda: mfu(1e12, -2.5, 1e12), names=-2.5),
            "a peak of 0": refusal(lambda: mfu(1e12, 2.0, 0.0), names=0.0),
            "a negative peak": refusal(lambda: mfu(1e12, 2.0, -7e12), names=-7e12),
            "negative FLOPs": refusal(lambda: mfu(-4, 2.0, 1e12), names=-4),
            "two negative values": refused(-1.0, mfu, (1e12, -1.0, -1.0), (-1.0, -1.0, 1e12), (-1.0, 2.0, -1.0)),
            "a negative value beside no FLOPs": refused(-1.0, mfu, (0, -1.0, 1e12), (0, 2.0, -1.0)),
        }

    compare("flops.mfu", probe if case == "values" else probe_refusals, rtol=1e-12)


PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm")  # by name: operators cannot be pickled into a child


class SlowProducts(TorchDispatchMode):
    """Makes matrix products take a prescribed time, by a clock that nothing else moves."""

    def __init__(self, seconds: list[float]) -> None:
        super().__init__()
        self.seconds = seconds  # of each product in turn
        self.now = 1000.0
        self.products = 0
        self.clock_reads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let the operator run, and let the clock jump if it is a product."""
        if str(func.overloadpacket) in PRODUCTS:
            self.now += self.seconds[min(self.products, len(self.seconds) - 1)]
            self.products += 1
        return func(*args, **(kwargs or {}))

    def read(self, *clock: object) -> float:
        """Stand in for time.perf_counter and its kin."""
        self.clock_reads += 1
        return self.now

    def read_cpu(self) -> float:
        """Stand in for time.process_time and its kin: the CPU's time is not the wall's."""
        self.clock_reads += 1
        return self.now / 8

    def read_ns(self, *clock: object) -> int:
        """Stand in for time.perf_counter_ns and its kin."""
        self.clock_reads += 1
        return round(self.now * 1e9)

    @contextmanager
    def on_all_clocks(self, module: ModuleType) -> Iterator[ModuleType]:
        """Put this clock in place of every clock that `module` can have imported, and yield the module with it."""
        fakes: dict[Any, Callable[..., float]] = {
            **dict.fromkeys((time.time, time.perf_counter, time.monotonic, time.clock_gettime), self.read),
            **dict.fromkeys(
                (time.time_ns, time.perf_counter_ns, time.monotonic_ns, time.clock_gettime_ns), self.read_ns
            ),
            **dict.fromkeys((time.process_time, time.thread_time), self.read_cpu),
        }
        replaced = [
            (place, name, value)
            for place in (time, timeit, module)
            for name, value in vars(place).items()
            if type(value) is type(time.time) and value in fakes
        ]
        for place, name, value in replaced:
            setattr(place, name, fakes[value])
        try:
            with imported_anew(module) as again:
                yield again
        finally:
            for place, name, value in replaced:
                setattr(place, name, value)


@contextmanager
def imported_anew(module: ModuleType) -> Iterator[ModuleType]:
    """Yield a second import of a module: a clock that the first keeps in a default argument or a class stays as it was."""
    if module.__spec__ is None:  # it came from no file
        yield module
        return
    package = module.__name__.partition(".")[0]
    own = {name: sys.modules[name] for name in list(sys.modules) if name == "timeit" or name.startswith(f"{package}.")}
    for name in own:
        del sys.modules[name]
    try:
        with suppress(Exception):  # not every right solution can be imported twice
            module = importlib.import_module(module.__name__)
        yield module
    finally:
        sys.modules.update(own)


def prescribed_median(observe, warmup, timed):
    """Let each product take a prescribed time, in units of 1/64 s, and hold the result against the median."""
    seconds = [units / 64 for units in (*warmup, *timed)]

    def probe(lib):
        slow = SlowProducts(seconds)
        with slow.on_all_clocks(lib.flops) as flops, slow:
            median = flops.time_matmul(torch.ones(4, 5), torch.ones(5, 6), warmup=len(warmup), repeats=len(timed))
        return median, slow.products, slow.clock_reads

    median, products, clock_reads = observe("flops.time_matmul", probe, like=(0.0, 0, 0))
    assert products == len(seconds), "the product was not computed exactly warmup + repeats times"
    # A clock of another kind (datetime's) is judged by the real seconds only.
    if clock_reads:
        expected = statistics.median(seconds[len(warmup) :])
        assert abs(median - expected) <= 1e-6 * expected, "the result is not the median of the timed products alone"


class StopWatch(TorchDispatchMode):
    """Notes how long each matrix product takes inside."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let the operator run, and note how long a product took."""
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        if str(func.overloadpacket) in PRODUCTS:
            self.seconds.append(time.perf_counter() - start)
        return result


def real_seconds(observe, repeats):
    """Hold the result against the time that the products and the call really take."""

    def probe(lib):
        x, w = torch.ones(256, 256), torch.ones(256, 256)
        with StopWatch() as watch:
            start = time.perf_counter()
            median = lib.flops.time_matmul(x, w, 2, repeats)
            whole = time.perf_counter() - start
        return median, watch.seconds, whole

    # Both bounds hold however busy the machine is: each timed product contains what the stopwatch saw of it, and the
    # call contains them all. 2 % are for two clocks that do not run quite alike.
    median, inside, whole = observe("flops.time_matmul", probe, like=(0.0, [0.0], 0.0))
    assert len(inside) >= repeats, "fewer products were computed than were to be timed"
    assert median >= 0.98 * min(inside[-repeats:]), "the result is less than the products really took"
    assert median <= 1.02 * whole, "the result is more than the whole call took: are these seconds?"


@number("6.9")
@weight(0.5)
def test_time_matmul_is_the_median_of_the_timed_runs(compare, observe):
    """time_matmul: the median seconds of `repeats` products, each timed alone after the warm-up; refuses bad counts."""

    def probe_refusals(lib):
        x, w = torch.ones(2, 3), torch.ones(3, 4)
        time_matmul = lib.flops.time_matmul
        return {
            "one repeat without a warm-up": time_matmul(x, w, warmup=0, repeats=1) >= 0,
            "0 repeats": refusal(lambda: time_matmul(x, w, warmup=1, repeats=0), names=0),
            "negative repeats": refusal(lambda: time_matmul(x, w, warmup=3, repeats=-2), names=-2),
            "a negative warm-up": refusal(lambda: time_matmul(x, w, warmup=-3, repeats=5), names=-3),
            "negative counts": refused(-1, time_matmul, (x, w, -1, 1), (x, w, 0, -1), (x, w, -1, -1)),
        }

    # The first, the middle one, the last, the smallest, the largest, the mean and the median all differ.
    for warmup, timed in [([300, 200], [8, 1, 16, 3, 64, 4, 2]), ([300], [64, 1, 8, 2]), ([], [5, 3, 90])]:
        prescribed_median(observe, warmup, timed)
    real_seconds(observe, repeats=5)
    compare("flops.time_matmul", probe_refusals)


@number("6.9")
@weight(0.5)
def test_time_matmul_waits_for_the_accelerator(observe, device):
    """time_matmul: an accelerator's seconds for one product, not those for queueing it, nor those for the warm-up."""
    size = 8192 if device == "cuda" else 8
    runs = [(4, 1), (1, 3)]

    def probe(lib):
        x, w = torch.ones(size, size).to(device), torch.ones(size, size).to(device)
        reply = []
        for warmup, repeats in runs:
            with accelerator.timing_products(device, copies=True) as seconds:
                median = lib.flops.time_matmul(x, w, warmup, repeats)
            timed = statistics.median(seconds[-repeats:]) if len(seconds) >= repeats else math.inf
            reply.append(round(float(median) / timed, 2))  # two who make one mistake answer alike
        return reply

    for ratio in observe("flops.time_matmul", probe, like=[0.0]):
        assert ratio >= 0.9, (
            "The clock was stopped before the accelerator was done: torch.accelerator.synchronize() waits for it."
        )
        assert ratio <= 1.5, (
            "More than the product was timed: the accelerator was still busy with the warm-up when the clock was started, or the "
            "product was copied. torch.accelerator.synchronize(), before each reading, only waits."
        )
