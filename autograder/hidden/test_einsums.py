"""Part 5, `einsums`: named axes give what the index juggling gave, and the signatures' axes are enforced.

Everything is drawn at random in float64, where right code, whatever the order of its sums, agrees with the reference to 1e-14
of the largest number; a wrong axis, scale or order is off by 0.1 and more. Sizes that a mistake could mix up differ.
"""

import inspect
import itertools
import typing
from functools import partial

import beartype
import jaxtyping
import pytest
import torch
from einops import EinopsError
from gradescope_utils.autograder_utils.decorators import number, weight
from jaxtyping import jaxtyped

from autograder.probing import refusal

RTOL = 1e-9
LEADING = [(), (2,), (2, 3), (2, 1, 3)]  # what `...` stands for
LED = "with no leading axis, or several"
UNCHANGED = "whether the arguments are as they were"
# What einops or PyTorch raises where the sizes do not fit will do (einops' layers raise KeyError for another number of axes); so will
# a check of the student's own, or the arithmetic that it begins with.
REFUSALS = (
    *(ValueError, TypeError, RuntimeError, LookupError, ArithmeticError),
    *(EinopsError, AssertionError, jaxtyping.TypeCheckError),
)


def attention_scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return the scaled dot products: for the problems that may call the student's function, as those below."""
    return q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5


def sum_hidden(x: torch.Tensor) -> torch.Tensor:
    """Return the sum over the last axis."""
    return x.sum(dim=-1)


def split_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Return the heads of the last axis before the sequence; PyTorch refuses a cut that is not even."""
    return x.unflatten(-1, (heads, x.shape[-1] // heads)).transpose(-3, -2)


def merge_heads(x: torch.Tensor) -> torch.Tensor:
    """Return the heads side by side in the last axis."""
    return x.transpose(-3, -2).flatten(start_dim=-2)


RELIES_ON = {
    "einsums.attention_scores": {"sum_hidden": sum_hidden},
    "einsums.mean_pool": {"sum_hidden": sum_hidden},
    "einsums.project_heads": {"split_heads": split_heads, "merge_heads": merge_heads},
    "einsums.bilinear": {"sum_hidden": sum_hidden},
    "einsums.causal_attention": {"attention_scores": attention_scores, "sum_hidden": sum_hidden},
}


class Numbers:
    """Normal random tensors, each other than the last."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float64) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._dtype = dtype

    def __call__(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator, dtype=torch.float64).to(self._dtype)

    def mask(self, queries: int, keys: int) -> torch.Tensor:
        """A random mask that lets each query attend to one key at least, and hides one from each but the last."""
        mask = torch.rand(queries, keys, generator=self._generator) < 0.5
        mask[torch.arange(queries), torch.arange(queries) % keys] = True
        mask[torch.arange(queries - 1), torch.arange(1, queries) % keys] = False
        return mask


class Watched:
    """Calls a function, and notes whether it leaves the tensors that it is given as they are."""

    def __init__(self, function: typing.Callable) -> None:
        self._function = function
        self.unchanged: list[bool] = []

    def __call__(self, *arguments: object, **options: object) -> torch.Tensor:
        tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
        before = [x.clone() for x in tensors]
        result = self._function(*arguments, **options)
        self.unchanged.append(all(torch.equal(x, copy) for x, copy in zip(tensors, before, strict=True)))
        return result


# --- 5.1 to 5.3: one einsum, two reductions ---


@number("5.1")
@weight(1)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["float64", "bfloat16"])
def test_attention_scores_of_queries_and_keys(compare, seed, dtype):
    """attention_scores: scaled dot products, whatever axes lead, in the arguments' dtype; an error if d differs."""

    def probe(lib):
        draw = Numbers(seed, dtype)
        scores = Watched(lib.einsums.attention_scores)
        sizes = [(4, 7, 5), (7, 4, 5), (6, 6, 6), (1, 3, 16), (3, 1, 1)]
        return {
            "with one leading axis": [scores(draw(2, q, d), draw(2, k, d)) for q, k, d in sizes],
            LED: [scores(draw(*axes, 4, 5), draw(*axes, 7, 5)) for axes in LEADING],
            "two sizes of d": refusal(lambda: scores(draw(2, 4, 5), draw(2, 7, 6)), kinds=REFUSALS),
            UNCHANGED: scores.unchanged,
        }

    # bfloat16 keeps 8 bits: three roundings, here or there, are below 0.02; a missing scale is off by 0.5 and more.
    compare("einsums.attention_scores", probe, rtol=RTOL if dtype == torch.float64 else 0.025)


@number("5.2")
@weight(1)
def test_mean_pool_averages_the_sequence(compare, seed):
    """mean_pool: the mean over the sequence of each example; an error unless there are three axes."""

    def probe(lib):
        draw = Numbers(seed)
        mean_pool = Watched(lib.einsums.mean_pool)
        shapes = [(4,), (4, 5), (2, 3, 4, 5), (1, 4, 5, 1), (1, 2, 3, 4, 5)]
        return {
            "of three axes": [mean_pool(draw(*s)) for s in [(3, 4, 5), (4, 4, 4), (1, 1, 1), (2, 1, 3), (1, 6, 2)]],
            "in the dtype of x": mean_pool(draw(2, 3, 5).float()).dtype,
            "another number of axes than three": [
                refusal(lambda s=s: mean_pool(draw(*s)), kinds=REFUSALS) for s in shapes
            ],
            UNCHANGED: mean_pool.unchanged,
        }

    compare("einsums.mean_pool", probe, rtol=RTOL)


@number("5.3")
@weight(1)
def test_sum_hidden_sums_the_last_axis(compare, seed):
    """sum_hidden: the sum over the last axis, whatever axes lead, in the dtype of the argument."""

    def probe(lib):
        draw = Numbers(seed)
        sum_hidden = Watched(lib.einsums.sum_hidden)
        return {
            LED: [sum_hidden(draw(*axes, 5)) for axes in LEADING],
            "of axes of one size": sum_hidden(draw(4, 4, 4)),
            "in the dtype of x": sum_hidden(draw(3, 5).float()).dtype,
            UNCHANGED: sum_hidden.unchanged,
        }

    compare("einsums.sum_hidden", probe, rtol=RTOL)


# --- 5.4 to 5.6: heads ---


@number("5.4")
@weight(1)
def test_split_heads_puts_every_number_in_its_place(compare, seed):
    """split_heads: for heads ≠ d and heads = d, whatever axes lead; an error if the cut is not even."""

    def probe(lib):
        draw = Numbers(seed)
        split_heads = Watched(lib.einsums.split_heads)
        return {
            "with one leading axis": [
                split_heads(draw(2, 5, h * d), h) for h, d in [(3, 4), (4, 3), (4, 4), (1, 6), (6, 1)]
            ],
            LED: [split_heads(draw(*axes, 5, 12), heads=3) for axes in LEADING],
            "a cut that is not even": [
                refusal(lambda h=h: split_heads(draw(2, 5, 12), h), kinds=REFUSALS) for h in (5, 24, 0)
            ],
            UNCHANGED: split_heads.unchanged,
        }

    compare("einsums.split_heads", probe, rtol=0)


@number("5.5")
@weight(1)
def test_merge_heads_puts_every_number_in_its_place(compare, seed):
    """merge_heads: for heads ≠ d and heads = d, whatever axes lead; an error if there are fewer than three axes."""

    def probe(lib):
        draw = Numbers(seed)
        merge_heads = Watched(lib.einsums.merge_heads)
        return {
            "with one leading axis": [
                merge_heads(draw(2, h, 5, d)) for h, d in [(3, 4), (4, 3), (5, 5), (1, 6), (6, 1)]
            ],
            LED: [merge_heads(draw(*axes, 3, 5, 4)) for axes in LEADING],
            "fewer than three axes": [
                refusal(lambda s=s: merge_heads(draw(*s)), kinds=REFUSALS) for s in [(5, 4), (4,), ()]
            ],
            UNCHANGED: merge_heads.unchanged,
        }

    compare("einsums.merge_heads", probe, rtol=0)


@number("5.6")
@weight(1)
def test_project_heads_multiplies_each_head(compare, seed):
    """project_heads: each head times the same matrix, square or not, for heads ≠ d and heads = d."""

    def probe(lib):
        draw = Numbers(seed)
        project_heads = Watched(lib.einsums.project_heads)
        sizes = [(3, 4, 5), (4, 3, 2), (4, 4, 4), (1, 3, 5), (3, 1, 1)]
        return {
            "with one leading axis": [project_heads(draw(2, 5, h * d), draw(d, e), h) for h, d, e in sizes],
            UNCHANGED: project_heads.unchanged,
        }

    compare("einsums.project_heads", probe, rtol=RTOL)


@number("5.6")
@weight(1)
def test_project_heads_with_any_leading_axes(compare, seed):
    """project_heads: no leading axis, or several; an error if the matrix does not fit the heads."""

    def probe(lib):
        draw = Numbers(seed)
        projected = [lib.einsums.project_heads(draw(*axes, 5, 12), draw(4, 2), heads=3) for axes in LEADING]
        single = lib.einsums.project_heads(draw(5, 12).float(), draw(4, 2).float(), 3)
        cases = [(draw(5, 12), draw(3, 2), 3), (draw(5, 12), draw(4, 2), 4), (draw(5, 12), draw(4, 2), 5)]
        refused = [refusal(lambda case=case: lib.einsums.project_heads(*case), kinds=REFUSALS) for case in cases]
        return {
            LED: projected,
            "in the dtype of the arguments": single.dtype,
            "a matrix that does not fit the heads": refused,
        }

    compare("einsums.project_heads", probe, rtol=RTOL)


# --- 5.7, 5.8 ---


@number("5.7")
@weight(1)
@pytest.mark.parametrize("case", ["pairs", "leading axes"])
def test_bilinear_multiplies_from_both_sides(compare, seed, case):
    """bilinear: x A y of each pair, for square and other matrices, whatever axes lead; an error if a size does not fit."""

    def probe(lib):
        draw = Numbers(seed)
        bilinear = Watched(lib.einsums.bilinear)
        if case == "pairs":
            sizes = [(3, 5), (5, 3), (4, 4), (1, 2)]
            forms = [bilinear(draw(6, i), draw(i, j), draw(6, j)) for i, j in sizes]
            return {"of pairs": forms, UNCHANGED: bilinear.unchanged}
        cases = [(draw(6, 4), draw(3, 5), draw(6, 5)), (draw(6, 3), draw(3, 5), draw(6, 4))]
        single = bilinear(draw(6, 3).float(), draw(3, 5).float(), draw(6, 5).float())
        return {
            LED: [bilinear(draw(*axes, 3), draw(3, 5), draw(*axes, 5)) for axes in LEADING],
            "in the dtype of the arguments": single.dtype,
            "a size that does not fit": [refusal(lambda case=case: bilinear(*case), kinds=REFUSALS) for case in cases],
        }

    compare("einsums.bilinear", probe, rtol=RTOL)


@number("5.8")
@weight(1)
def test_patchify_puts_patches_and_pixels_in_reading_order(compare, seed):
    """patchify: patches and their pixels in reading order, a pixel's channels together; an error if they don't fit."""

    def probe(lib):
        draw = Numbers(seed)
        patchify = Watched(lib.einsums.patchify)
        sizes = [(1, 4, 6, 2), (1, 6, 4, 2), (1, 4, 4, 2), (1, 2, 8, 2)]
        sizes += [(3, 4, 8, 2), (3, 9, 6, 3), (5, 4, 4, 4), (3, 2, 3, 1), (2, 4, 4, 2)]
        cases = [(draw(2, 3, 6, 5), 2), (draw(2, 3, 5, 6), 2), (draw(2, 3, 4, 4), 3), (draw(2, 4, 3, 3), 2)]
        return {
            "of images": [patchify(draw(2, c, height, width), p) for c, height, width, p in sizes],
            "a height or width that is no multiple of the patch": [
                refusal(lambda case=case: patchify(*case), kinds=REFUSALS) for case in cases
            ],
            UNCHANGED: patchify.unchanged,
        }

    compare("einsums.patchify", probe, rtol=0)


# --- 5.9 causal_attention ---


@number("5.9")
@weight(1)
def test_causal_attention_agrees_with_pytorch(observe, seed):
    """causal_attention: with the causal mask it gives what scaled_dot_product_attention(is_causal=True) gives."""
    draw = Numbers(seed)
    cases = [tuple(draw(*axes, length, 4) for _ in "qkv") for axes, length in itertools.product(LEADING, (1, 5))]
    measured = [torch.nn.functional.scaled_dot_product_attention(*case, is_causal=True) for case in cases]

    def probe(lib):
        masks = [torch.ones(q.shape[-2], q.shape[-2]).tril() == 1 for q, _, _ in cases]
        return [lib.einsums.causal_attention(q, k, v, mask) for (q, k, v), mask in zip(cases, masks, strict=True)]

    got = observe("einsums.causal_attention", probe, like=measured)
    for a, b in zip(got, measured, strict=True):
        assert a.shape == b.shape, "causal_attention: not the shape that scaled_dot_product_attention gives"
        assert (a - b).abs().max() <= RTOL * b.abs().max(), (
            "causal_attention: other values than PyTorch's attention gives"
        )


@number("5.9")
@weight(1)
def test_causal_attention_with_any_mask(compare, seed):
    """causal_attention: any mask, size, dtype and size of scores; gradients flow, and the arguments stay as they are."""

    def attend(lib, dtype):
        causal_attention = Watched(lib.einsums.causal_attention)
        replies = []
        for axes, (queries, keys, d, e) in itertools.product(LEADING, [(4, 7, 5, 3), (7, 4, 3, 5), (6, 6, 2, 2)]):
            draw = Numbers(seed + len(axes), dtype)
            arguments = draw(*axes, queries, d), draw(*axes, keys, d), draw(*axes, keys, e), draw.mask(queries, keys)
            replies.append(causal_attention(*arguments))
        return {f"in {str(dtype).removeprefix('torch.')}": replies, UNCHANGED: causal_attention.unchanged}

    def attend_far_from_0(lib):
        draw = Numbers(seed)
        q, k, v = draw(2, 4, 5), draw(2, 6, 5), draw(2, 6, 3)
        # All scores of a query lie about 1e5 above 0 or below: there exp is infinite or 0, and no number that is merely low is
        # below the scores. Beside each other they are as before. -1e9 is low enough.
        q[..., 0] = torch.tensor([500.0, -500.0, 500.0, -500.0])
        k[..., 0] = 500.0
        attended = lib.einsums.causal_attention(q, k, v, draw.mask(4, 6))
        wrong = [
            (draw(4, 5), draw(6, 4), draw(6, 3), draw.mask(4, 6)),
            (draw(4, 5), draw(6, 5), draw(7, 3), draw.mask(4, 6)),
            (draw(4, 5), draw(6, 5), draw(6, 3), draw.mask(4, 7)),
            (draw(4, 5), draw(6, 5), draw(6, 3), draw.mask(3, 6)),
        ]
        return {
            "where the scores are far from 0": attended,
            "sizes that do not fit": [
                refusal(lambda case=case: lib.einsums.causal_attention(*case), kinds=REFUSALS) for case in wrong
            ],
        }

    def probe_gradients(lib):
        draw = Numbers(seed)
        q, k, v, weights = draw(2, 4, 5), draw(2, 6, 5), draw(2, 6, 3), draw(2, 4, 3)
        leaves = [x.requires_grad_() for x in (q, k, v)]
        (lib.einsums.causal_attention(*leaves, draw.mask(4, 6)) * weights).sum().backward()
        return {"the gradients of q, k and v": [leaf.grad for leaf in leaves]}

    # A wrong mask, scale or axis is off by 0.1 and more of the largest value; right bfloat16 code by 0.02 at most.
    for dtype, rtol in {torch.float64: RTOL, torch.float32: 1e-4, torch.bfloat16: 0.03}.items():
        compare("einsums.causal_attention", partial(attend, dtype=dtype), rtol=rtol)
    compare("einsums.causal_attention", probe_gradients, rtol=RTOL)
    compare("einsums.causal_attention", attend_far_from_0, rtol=RTOL)


# --- 5.10 annotations ---


def right_calls(name: str) -> list[tuple]:
    """Arguments that the annotations of a function must let pass, one call for each number of leading axes."""
    make = {
        "attention_scores": lambda *axes: (torch.ones(*axes, 4, 5), torch.ones(*axes, 7, 5)),
        "mean_pool": lambda: (torch.ones(2, 3, 5),),
        "sum_hidden": lambda *axes: (torch.ones(*axes, 5),),
        "split_heads": lambda *axes: (torch.ones(*axes, 5, 12), 3),
        "merge_heads": lambda *axes: (torch.ones(*axes, 3, 5, 4),),
        "project_heads": lambda *axes: (torch.ones(*axes, 5, 12), torch.ones(4, 2), 3),
        "bilinear": lambda *axes: (torch.ones(*axes, 3), torch.ones(3, 5), torch.ones(*axes, 5)),
        "patchify": lambda: (torch.ones(2, 3, 4, 6), 2),
        "causal_attention": lambda *axes: (
            torch.ones(*axes, 4, 5),
            torch.ones(*axes, 7, 5),
            torch.ones(*axes, 7, 6),
            torch.ones(4, 7, dtype=torch.bool),
        ),
    }[name]
    return [make()] if name in ("mean_pool", "patchify") else [make(*axes) for axes in LEADING]


# The shape of what comes out, after the leading axes.
RESULTS: dict[str, tuple[int, ...]] = {
    "attention_scores": (4, 7),
    "mean_pool": (2, 5),
    "sum_hidden": (),
    "split_heads": (3, 5, 4),
    "merge_heads": (5, 12),
    "project_heads": (5, 6),
    "bilinear": (),
    "patchify": (2, 6, 12),
    "causal_attention": (4, 6),
}

# For each function: which argument gets which shape, one with too few or too many axes, or with another size of an axis that
# it shares with another argument.
WRONG_SHAPES: dict[str, list[tuple[int, tuple[int, ...]]]] = {
    "attention_scores": [(0, (5,)), (1, (5,)), (1, (7, 6))],
    "mean_pool": [(0, (3, 5)), (0, (2, 2, 3, 5)), (0, (5,))],
    "sum_hidden": [(0, ())],
    "split_heads": [(0, (12,))],
    "merge_heads": [(0, (5, 4))],
    "project_heads": [(0, (12,)), (1, (4,)), (1, (1, 4, 2))],
    "bilinear": [(0, ()), (1, (3,)), (1, (1, 3, 5)), (1, (4, 5)), (1, (3, 6)), (2, ())],
    "patchify": [(0, (3, 4, 6)), (0, (1, 2, 3, 4, 6))],
    "causal_attention": [(0, (5,)), (1, (7, 6)), (2, (6,)), (2, (8, 6)), (3, (7,)), (3, (4, 8)), (3, (3, 7))],
}

# The same of what comes out. (Where `...` is all of it, any shape is right.)
WRONG_RESULTS: dict[str, list[tuple[int, ...]]] = {
    "attention_scores": [(4,), (5, 7), (4, 8)],
    "mean_pool": [(5,), (2, 5, 1), (3, 5), (2, 6)],
    "sum_hidden": [],
    "split_heads": [(5, 4), (3, 6, 4)],
    "merge_heads": [(12,), (6, 12)],
    "project_heads": [(6,), (6, 6)],
    "bilinear": [],
    "patchify": [(6, 12), (2, 2, 3, 12), (3, 6, 12)],
    "causal_attention": [(6,), (5, 6), (4, 7)],
}

# A call of one function: its arguments, what comes out, what jaxtyping must do, and what the student reads where it does not.
Call = tuple[tuple, torch.Tensor, str, str]


def annotated_calls(name: str) -> list[Call]:
    """Calls that the annotations of a function must let pass, or must stop on their way in or out."""
    calls: list[Call] = []
    for axes, arguments in zip(LEADING, right_calls(name), strict=False):
        calls.append((arguments, torch.ones((*axes, *RESULTS[name])), "passed", "refuse a call that is right"))
    right, result, _, _ = calls[0]
    is_float = [isinstance(x, torch.Tensor) and x.is_floating_point() for x in right]
    other = tuple(x.bfloat16() if floats else x for x, floats in zip(right, is_float, strict=True))  # easily forgotten
    calls.append((other, result.bfloat16(), "passed", "refuse a call that is right, in bfloat16"))

    def replaced(place: int, tensor: torch.Tensor) -> tuple:
        return (*right[:place], tensor, *right[place + 1 :])

    for place, shape in WRONG_SHAPES[name]:
        what = "number of axes" if len(shape) != right[place].dim() else "size of an axis that two arguments share"
        arguments = replaced(place, torch.ones(shape).to(right[place].dtype))
        calls.append((arguments, result, "stopped on the way in", f"let a wrong {what} pass"))
    for place, x in enumerate(right):
        if isinstance(x, torch.Tensor):
            calls.append((replaced(place, x.long()), result, "stopped on the way in", "let a tensor of integers pass"))
    for shape in WRONG_RESULTS[name]:
        what = "number of axes" if len(shape) != result.dim() else "size of an axis"
        calls.append((right, torch.ones(shape), "stopped on the way out", f"let a wrong {what} out"))
    calls.append((right, result.long(), "stopped on the way out", "let a tensor of integers out"))
    return calls


def outcomes(function: typing.Callable, calls: list[tuple[tuple, torch.Tensor]]) -> list[str]:
    """What jaxtyping's checker, with beartype, does with each call, if it goes by the annotations of a function.

    The calls go to a stand-in that bears these annotations and returns the given result: so a mistake in the function itself
    costs points where it belongs, and not here too.
    """
    inside, result = False, torch.ones(())

    def stand_in(*args: object, **kwargs: object) -> torch.Tensor:
        nonlocal inside
        inside = True
        return result

    # eval_str: with `from __future__ import annotations` they are strings
    signature = inspect.signature(inspect.unwrap(function), eval_str=True)
    annotations = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    annotations["return"] = signature.return_annotation
    vars(stand_in)["__signature__"] = signature  # inspect looks for it
    stand_in.__annotations__ = {name: each for name, each in annotations.items() if each is not inspect.Parameter.empty}
    if not stand_in.__annotations__:
        return ["has none"]
    enforced = jaxtyped(typechecker=beartype.beartype)(stand_in)
    seen = []
    for arguments, comes_out in calls:
        inside, result = False, comes_out.to("meta")  # values would be written into each of jaxtyping's messages
        try:
            enforced(*(x.to("meta") if isinstance(x, torch.Tensor) else x for x in arguments))
            seen.append("passed")
        except jaxtyping.TypeCheckError:
            seen.append("stopped on the way out" if inside else "stopped on the way in")
    return seen


@number("5.10")
@weight(1)
def test_annotations_are_enforced(observe):
    """annotations: under jaxtyping's checker with beartype they let right calls pass and stop wrong ranks, axes and dtypes."""
    calls = {name: annotated_calls(name) for name in RESULTS}
    sent = {name: [(arguments, result) for arguments, result, _, _ in calls[name]] for name in calls}

    def probe(lib):
        replies = {}
        for name in sent:
            function = getattr(lib.einsums, name)
            try:
                function(*sent[name][0][0])
            except NotImplementedError:
                raise  # not started: no annotation of its own yet
            except Exception:  # a mistake that other rows are about
                pass
            try:
                replies[name] = outcomes(function, sent[name])
            except Exception as error:  # Python, jaxtyping or beartype cannot make sense of the annotations
                replies[name] = [type(error).__name__]
        return replies

    replies = observe("einsums.annotations", probe, like={name: [""] for name in calls})
    for name, seen in replies.items():
        assert seen != ["has none"], f"{name}: it has no annotations"
        assert len(seen) == len(calls[name]), f"{name}: jaxtyping cannot read its annotations"
        for (_, _, expected, complaint), got in zip(calls[name], seen, strict=True):
            assert got == expected, f"{name}: its annotations {complaint}"
