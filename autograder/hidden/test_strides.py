"""Part 4, `strides`: what PyTorch itself says of shapes, strides and views, held against the student's answers.

Where PyTorch has a verdict (`stride`, `is_contiguous`, `view`), it is asked for it on the trusted side, about tensors on the
`meta` device; a probe only sends the cases and brings the answers back. All cases of one kind go in one probe.
"""

import itertools
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from gradescope_utils.autograder_utils.decorators import number, weight

from autograder.probing import refusal

Shape = tuple[int, ...]
Layout = tuple[Shape, Shape]  # sizes and strides


ODD = 2**53 + 1  # a number that no float is


# --- right functions, for the problems that may call the student's ---


def contiguous_strides(shape: Sequence[int]) -> Shape:
    """Return the strides of a new tensor, or refuse a negative size."""
    for size in shape:
        if size < 0:
            raise ValueError(f"{size} is negative")
    return tuple(math.prod(max(size, 1) for size in shape[i + 1 :]) for i in range(len(shape)))


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether a tensor is contiguous, or refuse what cannot be one."""
    if len(shape) != len(strides):
        raise ValueError(f"{len(shape)} sizes and {len(strides)} strides")
    for stride in strides:
        if stride < 0:
            raise ValueError(f"{stride} is negative")
    expected = contiguous_strides(shape)
    return 0 in shape or all(size == 1 or a == b for size, a, b in zip(shape, strides, expected, strict=True))


RELIES_ON = {
    "strides.is_contiguous": {"contiguous_strides": contiguous_strides},
    "strides.view_strides": {"contiguous_strides": contiguous_strides, "is_contiguous": is_contiguous},
}


# --- cases: drawn and measured on the trusted side ---


def measured_strides(shape: Shape) -> Shape:
    """The strides that PyTorch gives to a new tensor."""
    return torch.empty(shape, device="meta").stride()


def tensor(layout: Layout) -> torch.Tensor:
    """A tensor with these sizes and strides and no memory."""
    return torch.empty_strided(*layout, device="meta")


def measured_view(layout: Layout, new_shape: Shape) -> tuple[Shape, Shape] | None:
    """The sizes and strides of PyTorch's own view, or None where it says that there is none."""
    try:
        view = tensor(layout).view(new_shape)
    except RuntimeError as error:
        assert "view size is not compatible" in str(error), f"not a question of strides: {error}"
        return None
    return tuple(view.shape), view.stride()


def draw_shape(rng: random.Random, sizes: Shape) -> Shape:
    """A shape of up to four axes."""
    return tuple(rng.choice(sizes) for _ in range(rng.randint(0, 4)))


def draw_strides(rng: random.Random, shape: Shape, kinds: tuple[str, ...]) -> Shape:
    """Strides that such a tensor can have in PyTorch: of a new tensor, a permuted, sliced or expanded one, or any."""
    kind = rng.choice(kinds)
    if kind == "any":
        return tuple(rng.randint(0, 12) for _ in shape)
    axes = list(range(len(shape)))
    if kind == "permuted":
        rng.shuffle(axes)
    parent = [shape[axis] + (rng.choice((0, 0, 1, 2)) if kind == "sliced" else 0) for axis in axes]
    strides = [0] * len(shape)
    for axis, stride in zip(axes, measured_strides(tuple(parent)), strict=True):
        strides[axis] = 0 if kind == "expanded" and rng.random() < 0.5 else stride
    return tuple(strides)


def draw_new_shape(rng: random.Random, shape: Shape, with_ones: bool) -> Shape:
    """A shape with as many elements: neighbours joined and axes cut, at random."""
    sizes: list[int] = []
    for size in shape:
        if sizes and rng.random() < 0.4:
            sizes[-1] *= size
        else:
            sizes.append(size)
    for i, size in reversed(list(enumerate(sizes))):
        divisors = [d for d in range(2, size) if size % d == 0]
        if divisors and rng.random() < 0.5:
            divisor = rng.choice(divisors)
            sizes[i : i + 1] = [divisor, size // divisor]
    if not with_ones:
        return tuple(size for size in sizes if size != 1)
    for _ in range(rng.randint(0, 2)):
        sizes.insert(rng.randint(0, len(sizes)), 1)
    return tuple(sizes)


def observed(observe: Any, name: str, cases: Sequence[tuple[Any, ...]], like: list[Any], lists: bool) -> Any:
    """Return the student's answers about some cases, as tuples; with `lists` they must be the same of lists, and leave those alone.

    One row of each problem asks for that, so that it costs no more.
    """

    def probe(lib: Any) -> Any:
        function = getattr(lib.strides, name)
        answers = [function(*case) for case in cases]
        kinds = itertools.cycle((list, list, list, tuple))  # by turns, so that each argument is the tuple beside lists
        listed = [[next(kinds)(x) if isinstance(x, tuple) else x for x in case] for case in cases if lists]
        again = [function(*case) for case in listed]
        left = [tuple(tuple(x) if isinstance(x, list) else x for x in case) for case in listed]
        return answers, again if lists else answers, left == [tuple(case) for case in cases if lists]

    answers, again, unchanged = observe(f"strides.{name}", probe, like=(like, like, True))
    assert answers == again, f"{name} answers otherwise where it is given lists: any sequence of ints will do"
    assert unchanged, f"{name} changes the lists that it is given: make a list or a tuple of its own"
    return answers


# --- 4.1 same_storage ---


Pairs = dict[str, list[tuple[torch.Tensor, torch.Tensor]]]  # by what they are


def views_and_copies(seed: int) -> Pairs:
    """All pairs of a tensor, its views and its copies."""
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
    views = [x, x[1:], x[:, 1], x.t(), x.view(6, 4), x[0].expand(3, 6), x.detach(), x.view(torch.int32), x[:0]]
    copies = [x.clone(), x.t().contiguous(), x.t().reshape(24), x + 0, torch.zeros_like(x)]
    return {
        "two views of one tensor": list(itertools.product(views, repeat=2)),
        "a view and a copy": [*itertools.product(views, copies), *itertools.product(copies, views)],
        "two copies, or one and itself": list(itertools.product(copies, repeat=2)),
    }


def tensors_without_bytes(seed: int) -> Pairs:
    """Pairs of tensors that are empty, or on the meta device: views of each other, and separate ones."""
    pairs: Pairs = {}
    for device, shape in itertools.product(("cpu", "meta"), ((0,), (0, 3), (2, 3))):
        x, y = torch.zeros(shape, device=device), torch.zeros(shape, device=device)
        kind = "on the device meta" if device == "meta" else "without elements"
        views = [(x, x), (x, x.t() if x.dim() == 2 else x.view(0, 1)), (x, x.flatten())]
        pairs.setdefault(f"views of one tensor {kind}", []).extend(views)
        pairs.setdefault(f"two tensors {kind}", []).extend([(x, y), (x.flatten(), y)])
    return pairs


@number("4.1")
@weight(1)
@pytest.mark.parametrize("pairs", [views_and_copies, tensors_without_bytes], ids=["views and copies", "no bytes"])
def test_same_storage_of_views_and_copies(compare, seed, pairs):
    """same_storage: views share it wherever they start; copies, and separate tensors without bytes, do not."""

    def probe(lib):
        asked, untouched = pairs(seed), pairs(seed)
        replies = {what: [lib.strides.same_storage(a, b) for a, b in some] for what, some in asked.items()}
        on_the_cpu = [
            (tensor, copy)
            for what in asked
            for pair, copies in zip(asked[what], untouched[what], strict=True)
            for tensor, copy in zip(pair, copies, strict=True)
            if tensor.device.type == "cpu"
        ]
        unchanged = all(torch.equal(tensor, copy) for tensor, copy in on_the_cpu)
        return {**replies, "whether the tensors are as they were": unchanged}

    compare("strides.same_storage", probe)


# --- 4.2 flat_index ---


@number("4.2")
@weight(1)
def test_flat_index_is_where_the_storage_has_the_element(compare, observe, seed):
    """flat_index: where the storage has the element; ValueError for unequal lengths and negative numbers."""
    rng = random.Random(seed)
    cases: list[tuple] = [((), (), 0), ((), (), 5), ((3,), (0,), 2), ((2, 1), (ODD, 1))]  # no axes; an expanded axis
    places = [0, 5, 2, 2 * ODD + 1]
    for _ in range(60):
        storage = torch.arange(rng.randint(600, 700))  # each element is its own place
        parent = storage[rng.choice((0, 0, 7, 31)) :][:360].view(3, 4, 5, 6)
        x = parent.permute(*rng.sample(range(4), 4))[rng.randint(0, 1) :, :, rng.randint(0, 1) :: 2]
        x = x.select(1, 1) if rng.random() < 0.5 else x
        index = tuple(rng.randrange(size) for size in x.shape)
        cases.append((index, x.stride(), *([x.storage_offset()] if x.storage_offset() else [])))  # without one it is 0
        places.append(int(x[index]))

    def probe_refusals(lib):
        flat_index = lib.strides.flat_index
        return {
            "more numbers in the index than strides": refusal(lambda: flat_index((1, 2), (4,))),
            "more strides than numbers in the index": [
                refusal(lambda: flat_index((1,), (4, 1))),
                refusal(lambda: flat_index((), (1,), 3)),
            ],
            # Alone, beside a 0, and where the sum is not negative.
            "a negative index": [
                refusal(lambda case=case: flat_index(*case), names=-27)
                for case in [
                    ((1, -27), (4, 1)),
                    ((-27,), (0,)),
                    ((27, -27), (4, 1)),
                    ((-27,), (-27,)),
                    ([1, -27], [4, 1]),
                ]
            ],
            "a negative stride": [
                refusal(lambda case=case: flat_index(*case), names=-27)
                for case in [((0, 0), (4, -27)), ((9, 1), (20, -27)), ((1, 1), (20, -27))]
            ],
            "a negative offset": [
                refusal(lambda case=case: flat_index(*case), names=-27)
                for case in [((1, 2), (4, 1), -27), ((9, 2), (4, 1), -27), ((), (), -27)]
            ],
        }

    got = observed(observe, "flat_index", cases, [0], lists=True)
    assert got == places, "flat_index names another place than the one where PyTorch keeps the element"
    compare("strides.flat_index", probe_refusals)


# --- 4.3 contiguous_strides ---


def same_strides_as_pytorch(observe, shapes, lists=False):
    measured = [measured_strides(shape) for shape in shapes]
    got = observed(observe, "contiguous_strides", [(shape,) for shape in shapes], measured, lists)
    assert got == measured, "contiguous_strides: torch.empty(shape).stride() says something else for some of the shapes"


@number("4.3")
@weight(1)
def test_contiguous_strides_are_those_of_a_new_tensor(observe, seed):
    """contiguous_strides: what PyTorch gives to a new tensor, from no axis to many."""
    rng = random.Random(seed)
    drawn = [draw_shape(rng, (1, 2, 3, 5, 8)) for _ in range(400)]
    same_strides_as_pytorch(
        observe, [(), (1,), (7,), (2, 3, 5, 7, 11, 13), (49152, 12288, 3), (3, ODD), (2, 1, ODD, 3), *drawn]
    )


@number("4.3")
@weight(1)
def test_contiguous_strides_of_empty_shapes(compare, observe, seed):
    """contiguous_strides: axes of size 0, and lists, as in PyTorch; ValueError naming a negative size."""
    rng = random.Random(seed)
    drawn = [draw_shape(rng, (0, 0, 1, 2, 3, 5)) for _ in range(200)]
    same_strides_as_pytorch(observe, [(0,), (0, 0), (3, 0, 2), (0, 4), (4, 0), (2, 0, 3, 0, 4), *drawn], lists=True)

    def probe_refusals(lib):
        shapes = [(-27,), (2, -27, 3), (-27, 2), (0, -27), (-27, 0), (-27, -27), [2, -27]]
        refusals = [refusal(lambda shape=shape: lib.strides.contiguous_strides(shape), names=-27) for shape in shapes]
        return {"a negative size": refusals}

    compare("strides.contiguous_strides", probe_refusals)


# --- 4.4 is_contiguous ---


def same_verdict_as_pytorch(observe, layouts, lists=False):
    measured = [tensor(layout).is_contiguous() for layout in layouts]
    got = observed(observe, "is_contiguous", layouts, [True], lists)
    assert got == measured, "is_contiguous: Tensor.is_contiguous() says something else for some of the tensors"


@number("4.4")
@weight(1)
def test_is_contiguous_of_permuted_sliced_and_expanded_tensors(observe, seed):
    """is_contiguous: what PyTorch says of new, permuted, sliced and expanded tensors."""
    rng = random.Random(seed)
    shapes = [draw_shape(rng, (2, 3, 5)) for _ in range(500)]
    drawn = [(shape, draw_strides(rng, shape, ("new", "permuted", "sliced", "expanded", "any"))) for shape in shapes]
    large: list[Layout] = [((3, ODD), (ODD, 1)), ((3, ODD), (ODD - 1, 1))]
    same_verdict_as_pytorch(
        observe, [((), ()), ((2, 2), (0, 0)), ((5,), (1,)), ((5,), (2,)), ((2, 3), (1, 2)), *large, *drawn]
    )


@number("4.4")
@weight(1)
def test_is_contiguous_with_axes_of_size_one_and_zero(compare, observe, seed):
    """is_contiguous: axes of size 1 and 0, and lists; ValueError for unequal lengths and negative numbers."""
    rng = random.Random(seed)
    layouts = [
        ((1,), (0,)),
        ((1,), (9,)),
        ((3, 1), (1, 99)),
        ((1, 3), (0, 1)),
        ((1, 3), (3, 2)),
        ((2, 1, 3), (3, 0, 1)),
    ]
    layouts += [((0,), (1,)), ((0,), (7,)), ((2, 0), (5, 7)), ((0, 3), (1, 1)), ((3, 0, 2), (2, 2, 1))]
    for _ in range(500):
        shape = draw_shape(rng, (1, 1, 2, 3))
        strides = draw_strides(rng, shape, ("new", "new", "permuted"))
        layouts.append((shape, tuple(rng.randint(0, 9) if n == 1 else s for n, s in zip(shape, strides, strict=True))))
        if rng.random() < 0.2:
            shape = (*shape, 0)
            layouts.append((shape, draw_strides(rng, shape, ("new", "any"))))
    same_verdict_as_pytorch(observe, layouts, lists=True)

    def probe_refusals(lib):
        is_contiguous = lib.strides.is_contiguous
        return {
            "another number of strides than of sizes": [
                refusal(lambda: is_contiguous((2, 3), (1,))),
                refusal(lambda: is_contiguous((3,), (3, 1))),
                refusal(lambda: is_contiguous((0,), ())),
                refusal(lambda: is_contiguous((), (1,))),
            ],
            "a negative size": [
                refusal(lambda: is_contiguous((2, -27), (1, 1)), names=-27),
                refusal(lambda: is_contiguous((-27, -27), (27, 1)), names=-27),
                refusal(lambda: is_contiguous((0, -27), (1, 1)), names=-27),
            ],
            "a negative stride": [
                refusal(lambda: is_contiguous((2, 3), (3, -27)), names=-27),
                refusal(lambda: is_contiguous((2, 3), (-27, 1)), names=-27),
                refusal(lambda: is_contiguous((2, 1), (1, -27)), names=-27),
                refusal(lambda: is_contiguous((-27,), (-27,)), names=-27),
            ],
            "a negative stride where there are no elements": [
                refusal(lambda: is_contiguous((0, 3), (3, -27)), names=-27),
                refusal(lambda: is_contiguous((0,), (-27,)), names=-27),
            ],
        }

    compare("strides.is_contiguous", probe_refusals)


# --- 4.5 view_strides ---


def same_view_as_pytorch(observe, cases, lists=False):
    """`cases` are pairs of a layout and a new shape. A stride of size 1 is compared with nothing: it is never used."""
    measured = [measured_view(layout, new_shape) for layout, new_shape in cases]
    like = [None if view is None else view[1] for view in measured]
    asked = [(*layout, new_shape) for layout, new_shape in cases]
    got = observed(observe, "view_strides", asked, like, lists)
    for view, answer in zip(measured, got, strict=True):
        if view is not None:
            new_shape, expected = view
            wrong = any(a != b for size, a, b in zip(new_shape, answer, expected, strict=True) if size != 1)
            assert not wrong, "view_strides: x.view(new_shape).stride() says something else for some of the cases"


@number("4.5")
@weight(0.5)
def test_view_strides_of_contiguous_tensors(observe, seed):
    """view_strides: any shape with as many elements is a view of a contiguous tensor."""
    rng = random.Random(seed)
    cases = [(((), ()), ()), (((), ()), (1, 1)), (((6,), (1,)), (2, 3)), (((2, 3), (3, 1)), (6,)), (((1,), (1,)), ())]
    cases.append((((6 * ODD,), (1,)), (3, ODD, 2)))
    for _ in range(300):
        shape = draw_shape(rng, (2, 3, 4, 6))
        cases.append(((shape, measured_strides(shape)), draw_new_shape(rng, shape, with_ones=False)))
    same_view_as_pytorch(observe, cases)


@number("4.5")
@weight(1)
def test_view_strides_of_permuted_sliced_and_expanded_tensors(observe, seed):
    """view_strides: the view's strides where PyTorch makes one, None exactly where it refuses."""
    rng = random.Random(seed)
    cases = [
        (((3, 2), (1, 3)), (6,)),  # a transpose cannot be flattened,
        (((3, 2), (1, 3)), (3, 2)),  # but stays as it is,
        (((4, 6), (1, 4)), (2, 2, 6)),  # and each axis can be cut
        (((2, 3), (0, 0)), (6,)),  # one number, expanded twice
        (((2, 3), (0, 0)), (3, 2)),
        (((2, 3), (0, 1)), (6,)),
        (((4, 3), (6, 2)), (12,)),  # every other element: evenly spaced
        (((4, 3), (8, 2)), (12,)),
        (((2, 6), (12, 2)), (4, 3)),
        (((2, 6), (13, 2)), (4, 3)),
    ]
    for _ in range(700):
        shape = draw_shape(rng, (2, 3, 4, 6))
        strides = draw_strides(rng, shape, ("permuted", "sliced", "sliced", "expanded", "any"))
        cases.append(((shape, strides), draw_new_shape(rng, shape, with_ones=False)))
    same_view_as_pytorch(observe, cases)


@number("4.5")
@weight(1)
def test_view_strides_with_axes_of_size_one_and_zero(observe, seed):
    """view_strides: axes of size 1 come and go; empty tensors keep strides with their shape, or get new ones; lists."""
    rng = random.Random(seed)
    cases = [
        (((1, 1), (5, 9)), (1,)),
        (((1,), (7,)), ()),
        (((2, 1, 3), (3, 99, 1)), (6,)),
        (((2, 1, 3), (4, 1, 1)), (6,)),
    ]
    for _ in range(500):
        shape = draw_shape(rng, (1, 1, 2, 3, 4))
        strides = draw_strides(rng, shape, ("new", "permuted", "sliced", "expanded"))
        strides = tuple(rng.randint(0, 9) if n == 1 else s for n, s in zip(shape, strides, strict=True))
        cases.append(((shape, strides), draw_new_shape(rng, shape, with_ones=True)))
    cases += [  # no elements
        (((2, 0), (5, 7)), (2, 0)),
        (((2, 0), (5, 7)), (2, -1)),
        (((2, 0), (5, 7)), (0, 2)),
        (((2, 0), (5, 7)), (3, 0, 4)),
        (((2, 0), (5, 7)), (5, -1)),
        (((0,), (1,)), (-1, 3)),
        (((0,), (3,)), (-1,)),
        (((0, 3), (1, 0)), (3, 0)),
        (((0, 3), (1, 9)), (0, 3)),
        (((3, 0, 2), (0, 5, 1)), (6, 0)),
    ]
    same_view_as_pytorch(observe, cases, lists=True)


@number("4.5")
@weight(0.5)
def test_view_strides_works_out_minus_one(observe, seed):
    """view_strides: a size of -1 is worked out from the number of elements."""
    rng = random.Random(seed)
    cases = [(((), ()), (-1,)), (((2, 3), (3, 1)), (-1,)), (((2, 3), (1, 2)), (-1,)), (((2, 3), (1, 2)), (2, -1))]
    for _ in range(300):
        shape = draw_shape(rng, (2, 3, 4, 6))
        strides = draw_strides(rng, shape, ("new", "permuted", "sliced"))
        new_shape = [*draw_new_shape(rng, shape, with_ones=False)] or [1]
        new_shape[rng.randrange(len(new_shape))] = -1
        cases.append(((shape, strides), tuple(new_shape)))
    same_view_as_pytorch(observe, cases)


@number("4.5")
@weight(1)
def test_view_strides_refuses_what_cannot_be_right(compare, seed):
    """view_strides: ValueError, not None, for other numbers of elements, two -1s, negatives, unequal lengths."""
    rng = random.Random(seed)
    cases = [
        ((6,), (7,)),
        ((2, 3), ()),
        ((2, 3), (0, 6)),
        ((0, 3), (1,)),
        ((), (2,)),
        ((2, 3), (-1, 4)),
        ((2, 3), (12, -1)),
    ]
    for _ in range(50):
        shape, new_shape = draw_shape(rng, (2, 3, 4)), draw_shape(rng, (2, 3, 4))
        if math.prod(shape) != math.prod(new_shape):
            cases.append((shape, new_shape))

    def probe_numbers_of_elements(lib):
        view_strides = lib.strides.view_strides
        layouts = [(shape, torch.empty(shape).stride(), new_shape) for shape, new_shape in cases]
        return {
            "a size that is cut": tuple(view_strides((6,), (1,), (2, 3))),  # whether a list will do is judged above
            "another number of elements": [refusal(lambda case=case: view_strides(*case)) for case in layouts],
        }

    def probe_numbers(lib):
        view_strides = lib.strides.view_strides
        return {
            "two sizes of -1": [
                refusal(lambda: view_strides((2, 3), (3, 1), (-1, -1))),
                refusal(lambda: view_strides((2, 3), (3, 1), (-1, 6, -1))),
            ],
            "a -1 beside a size of 0": [
                refusal(lambda: view_strides((0,), (1,), (-1, 0))),
                refusal(lambda: view_strides((0, 3), (3, 1), (0, -1))),
                refusal(lambda: view_strides((2, 3), (3, 1), (0, -1))),
            ],
            "a new size below -1": [
                refusal(lambda: view_strides((2, 3), (3, 1), (-27, 3)), names=-27),
                refusal(lambda: view_strides((2, 3), (3, 1), (-3, -2))),
                refusal(lambda: view_strides((4,), (1,), (-2, -2)), names=-2),
            ],
            "a negative size": [
                refusal(lambda: view_strides((2, -27), (3, 1), (-1,)), names=-27),
                refusal(lambda: view_strides((-27, -27), (27, 1), (729,)), names=-27),
                refusal(lambda: view_strides((0, -27), (1, 1), (0,)), names=-27),
            ],
            "a negative stride": [
                refusal(lambda: view_strides((2, 3), (-27, 1), (6,)), names=-27),
                refusal(lambda: view_strides((2, 3), (-27, 1), (2, 3)), names=-27),
                refusal(lambda: view_strides((2, 1), (1, -27), (2,)), names=-27),
                refusal(lambda: view_strides((2, 3), (-27, -27), (3, 2)), names=-27),
            ],
            "a negative stride where there are no elements": [
                refusal(lambda: view_strides((0, 3), (3, -27), (0, 3)), names=-27),
                refusal(lambda: view_strides((0, 3), (3, -27), (0,)), names=-27),
            ],
            "another number of strides than of sizes": [
                refusal(lambda: view_strides((0,), (), (0,))),
                refusal(lambda: view_strides((), (1,), ())),
                refusal(lambda: view_strides((2, 3), (1,), (6,))),
                refusal(lambda: view_strides((6,), (3, 1), (6,))),
            ],
        }

    compare("strides.view_strides", probe_numbers_of_elements)
    compare("strides.view_strides", probe_numbers)


# --- 4.6 sliding_windows ---


def some_tensors(seed):
    """Tensors of all layouts, by what they are; those of floats are views of the first."""
    x = torch.randn(4, 5, 12, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return views_of(x)


def views_of(x):
    """A tensor and views of it of all layouts, and some of ints, by what they are."""
    ints = torch.arange(40).view(4, 10)
    return {
        "of a contiguous tensor": x,
        "of a transpose": x.transpose(0, 2)[:, :, :4],
        "of a slice": x[1:, 2, 1::2],
        "of an expanded tensor": x[:1].expand(3, 5, 12),
        "of a tensor of ints": ints,
        "of a vector": x[0, 0],
        "of a tensor without elements": x[:0],
        "of a slice's transpose": ints[:, 3:].t(),
    }


@number("4.6")
@weight(1)
def test_sliding_windows_hold_the_neighbours(compare, seed):
    """sliding_windows: every window in order, for any step, layout and dtype, and gradients go back to each element."""

    def probe(lib):
        sliding_windows = lib.strides.sliding_windows
        tensors = some_tensors(seed)
        settings = [(1, 1), (2, 1), (3, 1), (3, 2), (2, 3), (4, 5)]
        windows = {what: [sliding_windows(x, size, step) for size, step in settings] for what, x in tensors.items()}
        whole = [sliding_windows(x, x.shape[-1]) for x in tensors.values()]
        leaf = tensors["of a contiguous tensor"].clone().requires_grad_()
        for x in views_of(leaf).values():  # their gradients add up
            if x.requires_grad:
                several = sliding_windows(x, 4)
                if several.requires_grad:  # windows that are cut off lack in the sum
                    (several * torch.arange(several.numel()).view(several.shape)).sum().backward()
        return {
            **windows,
            "of one window": whole,
            "the gradient of x": leaf.grad,
            "the tensors afterwards": list(tensors.values()),
        }

    compare("strides.sliding_windows", probe, rtol=1e-9)


def neighbours(windows: torch.Tensor, x: torch.Tensor) -> bool:
    """Tell whether these are windows of two neighbours in `x`, a vector: the first two, in rows or in columns."""
    windows = windows if windows.shape[-1] == 2 else windows.T
    return windows.dim() == 2 and windows[:2].tolist() == x.unfold(-1, 2, 1)[:2].tolist()


@number("4.6")
@weight(1)
def test_sliding_windows_copies_nothing(compare, observe, seed):
    """sliding_windows: in the storage of the input, contiguous or not; an error if size or step does not fit."""

    def probe(lib):
        tensors = list(some_tensors(seed).values())
        pairs = [(x, lib.strides.sliding_windows(x, 3, 2)) for x in tensors]
        x = torch.arange(9)
        return pairs, lib.strides.sliding_windows(x, 2)

    # Of any sizes: what the windows hold is judged above.
    like = [(x.new_empty([0] * x.dim()), x.new_empty([0] * (x.dim() + 1))) for x in some_tensors(seed).values()]
    pairs, plain = observe("strides.sliding_windows", probe, like=(like, torch.zeros(0, 0, dtype=torch.long)))
    # Here only that it is no other view.
    assert neighbours(plain, torch.arange(9)), "sliding_windows: these are not windows of neighbours"
    for x, windows in pairs:
        shared = x.untyped_storage().data_ptr() == windows.untyped_storage().data_ptr()
        assert shared, "The windows lie in a storage of their own: somewhere on the way there is a copy."

    def probe_refusals(lib):
        x = torch.arange(20.0).view(4, 5)
        wrong = {
            "a size that does not fit": [(6, 1), (0, 1), (-1, 1), (0, 2), (6, 9), (-5, 1)],
            "a step below 1": [(2, 0), (2, -1), (5, 0), (-1, -1)],
        }
        kinds = (ValueError, RuntimeError, IndexError)
        return {
            what: [refusal(lambda s=s: lib.strides.sliding_windows(x, *s), kinds=kinds) for s in settings]
            for what, settings in wrong.items()
        }

    compare("strides.sliding_windows", probe_refusals)


# --- 4.7 causal_mask ---


@number("4.7")
@weight(0.5)
def test_causal_mask_allows_no_look_ahead(compare):
    """causal_mask: True where the key is not after the query; ValueError naming a negative length."""

    def probe(lib):
        causal_mask = lib.strides.causal_mask
        return {
            "of several positions": causal_mask(7),
            "of one position or none": [causal_mask(1), causal_mask(0)],
            "a negative length": [
                refusal(lambda: causal_mask(-27), names=-27),
                refusal(lambda: causal_mask(-1), names=-1),
            ],
        }

    compare("strides.causal_mask", probe)


@number("4.7")
@weight(0.5)
def test_causal_mask_is_made_where_it_is_asked_for(observe, device):
    """causal_mask: on an accelerator, on meta, on the CPU, and without a device on PyTorch's default one."""

    def probe(lib):
        places = [device, torch.device(device), torch.device("meta"), "meta", "cpu", None]
        masks = [lib.strides.causal_mask(3, place) for place in places]
        with torch.device(device):
            masks.append(lib.strides.causal_mask(3))
        here, there = lib.strides.causal_mask(5), lib.strides.causal_mask(5, device)
        return [mask.device.type for mask in masks], bool(torch.equal(here, there.cpu()))

    found, same = observe("strides.causal_mask", probe, like=([""], True))
    expected = [device, device, "meta", "meta", "cpu", "cpu", device]
    assert found == expected, "causal_mask: the mask is not on the device that was asked for"
    assert same, "causal_mask: another mask on an accelerator than on the CPU"
