"""Strict comparison: for each property, replies that differ in nothing else."""

import time
from collections import OrderedDict, namedtuple
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from autograder.compare import Difference, Tolerance, first_difference, misfit
from autograder.sandbox.codec import snapshot

F64 = torch.float64


def difference(expected: Any, got: Any, **tolerance: Any) -> Difference | None:
    """Compare two values as the grader does: after both have crossed."""
    return first_difference(snapshot(expected), snapshot(got), Tolerance(**tolerance))


def reason(expected: Any, got: Any, **tolerance: Any) -> str:
    found = difference(expected, got, **tolerance)
    return found.reason if found else ""


class Int(int):
    pass


class Float(float):
    pass


class Liar(torch.Tensor):
    """Says that it is equal to whatever it is held against."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in (torch.equal, torch.allclose, torch.isclose):
            return True
        return super().__torch_function__(function, types, args, kwargs or {})


class EqualsAll:
    """Has an `__eq__` of its own."""

    def __eq__(self, other):
        return True

    __hash__ = object.__hash__


Pair = namedtuple("Pair", "a b")

SAME = {
    "None": None,
    "ints": [0, -1, 2**70, -(2**70)],
    "bools": (True, False),
    "float": 1 / 3,
    "text": "naïve \0 text",
    "bytes": b"\xff",
    "nested": {"a": [1, (2.0, None)], 3: {"b": torch.arange(3)}},
    "dtype": torch.bfloat16,
    "tensor": torch.randn(3, 4, dtype=F64),
    "empty tensor": torch.zeros(0, 3),
    "0-d tensor": torch.tensor(2.5),
    "int tensor": torch.arange(4),
    "bool tensor": torch.tensor([True, False]),
    "complex tensor": torch.randn(3, dtype=torch.complex128),
    "float8 tensor": torch.ones(3).to(torch.float8_e4m3fn),
    "bfloat16 tensor": torch.randn(3).bfloat16(),
    "NumPy array": np.arange(6).reshape(2, 3),
}


@pytest.mark.parametrize("value", SAME.values(), ids=SAME)
def test_a_value_does_not_differ_from_itself(value):
    assert difference(value, value, strides=True, aliasing=True) is None


@pytest.mark.parametrize(
    ("expected", "got", "words"),
    [
        (1, True, "A bool came back where an int is expected"),
        (True, 1, "An int came back where a bool is expected"),
        (0, False, "A bool"),
        (1, 1.0, "A float came back where an int"),
        (1.0, 1, "An int came back where a float"),
        (1, Int(1), "not plain data where an int"),
        (1.0, Float(1.0), "not plain data where a float"),
        (1, np.int64(1), "A NumPy scalar came back where an int"),
        (1.0, np.float64(1.0), "A NumPy scalar came back where a float"),
        (True, np.bool_(True), "A NumPy scalar came back where a bool"),
        (1, torch.tensor(1), "A tensor came back where an int"),
        (1.0, torch.tensor(1.0, dtype=F64), "A tensor came back where a float"),
        (torch.tensor(1), 1, "An int came back where a tensor"),
        (torch.zeros(2), np.zeros(2, dtype=np.float32), "A NumPy array came back where a tensor"),
        (np.zeros(2), torch.zeros(2, dtype=F64), "A tensor came back where a NumPy array"),
        (torch.zeros(2), [0.0, 0.0], "A list came back where a tensor"),
        ([1], (1,), "A tuple came back where a list"),
        ((1,), [1], "A list came back where a tuple"),
        ("a", b"a", "A bytes"),
        ("float32", torch.float32, "A torch.dtype came back where a str"),
        (torch.float32, "float32", "A str came back where a torch.dtype"),
        (None, 0, "An int came back where None"),
        (0, None, "None came back where an int"),
        (1, EqualsAll(), "not plain data where an int"),
        ([], EqualsAll(), "not plain data where a list"),
        (torch.ones(2), EqualsAll(), "not plain data where a tensor"),
        (torch.ones(2), torch.zeros(2).as_subclass(Liar), "A subclass of torch.Tensor came back where a tensor"),
        (torch.ones(2), torch.ones(2).as_subclass(Liar), "A subclass of torch.Tensor"),
        (torch.ones(2), torch.ones(2).to_sparse(), "not plain data where a tensor"),
    ],
)  # fmt: skip
def test_types_agree_exactly(expected, got, words):
    assert words in reason(expected, got)
    assert words in reason([0, {"k": (expected,)}], [0, {"k": (got,)}])


def test_a_parameter_is_a_tensor_and_a_named_tuple_is_a_tuple():
    p = nn.Parameter(torch.ones(3))
    assert difference(torch.ones(3), p) is None
    assert difference(p, torch.ones(3)) is None
    assert difference((1, 2), Pair(1, 2)) is None
    assert difference({"a": 1}, OrderedDict(a=1)) is None


@pytest.mark.parametrize(
    ("expected", "got", "words"),
    [
        ([1, 2], [1], "A list has another length than expected (2)"),
        ([1], [1, 2], "A list has another length"),
        ([], [None], "A list has another length"),
        ((1, 2), (1, 2, 3), "A tuple has another length"),
        ({"a": 1}, {"b": 1}, "other keys"),
        ({"a": 1}, {}, "other keys"),
        ({}, {"a": 1}, "other keys"),
        ({1: 0}, {True: 0}, "other keys"),
        ({1: 0}, {1.0: 0}, "other keys"),
        ({"a": 1}, {"a": 2}, "An int differs"),
        ([0, [0, [1]]], [0, [0, [2]]], "An int differs"),
        ("a", "b", "A str differs"),
        (b"a", b"b", "A bytes differs"),
        (True, False, "A bool differs"),
        (2**70, 2**70 + 1, "An int differs"),
        (torch.float16, torch.bfloat16, "A torch.dtype differs"),
    ],
)  # fmt: skip
def test_structure_and_plain_values_agree_exactly(expected, got, words):
    assert words in reason(expected, got, rtol=1.0)


@pytest.mark.parametrize(
    ("expected", "got", "words"),
    [
        (2.5, -2.5, "A float differs: it has the other sign."),
        (-2.5, -5.0, "A float differs: it is 2 times too large."),
        (5e9, 2.5e9, "A float differs: it is 2 times too small."),
        (4 * 2**30, 4 * 10**9, "An int differs: it is 1.0737 times too small."),
        (4 * 10**9, 4, "An int differs: it is 1,000,000,000 times too small."),
        (3.0, 3.0 * 2**20, "A float differs: it is 1,048,576 times too large."),
        (1000, 2001, "An int differs."),
        (4, 8, "An int differs."),
        (True, False, "A bool differs."),
        (0.0, 1e-300, "A float differs."),
        (inf, -inf, "A float differs: it has the other sign."),
        (inf, 1.0, "A float differs."),
        (2**70, 10**400, "An int differs."),
        (10**400, 2 * 10**400, "An int differs."),
    ],
)
def test_a_number_off_by_a_sign_a_factor_or_a_unit_says_so(expected, got, words):
    """But no small count does: that would be to say which it is."""
    assert reason(expected, got, finite=False) == words


def test_the_order_of_a_dicts_keys_does_not_count():
    assert difference({"a": 1, "b": 2}, {"b": 2, "a": 1}) is None


def test_a_key_of_several_words_says_what_differs():
    expected = {"where all is summed": 1, "of a slice": [torch.ones(2)], "layers.0.weight": 3}
    assert reason(expected, {**expected, "where all is summed": 2}) == "An int differs (where all is summed)."
    assert reason(expected, {**expected, "of a slice": [torch.ones(3)]}) == (
        "A tensor has another shape than expected (of a slice)."
    )
    assert reason(expected, {**expected, "layers.0.weight": 2}) == "An int differs."
    refused = {"a negative size": ("refused", "ValueError", True)}
    assert reason(refused, {"a negative size": ("accepted",)}) == (
        "An input that cannot be right is accepted: it must raise ValueError (a negative size)."
    )


@pytest.mark.parametrize(
    ("expected", "got"),
    [  # each broadcasts, and torch.allclose or NumPy's assert would let it pass
        (torch.ones(5), torch.ones(1)),
        (torch.ones(3, 1), torch.ones(1, 3)),
        (torch.ones(2, 3), torch.tensor(1.0)),
        (torch.tensor(1.0), torch.ones(1)),
        (torch.zeros(0), torch.tensor(0.0)),
        (torch.zeros(0, 3), torch.zeros(3, 0)),
        (torch.zeros(0), torch.zeros(0, 1)),
        (np.ones((2, 3)), np.ones(3)),
        (torch.arange(4), torch.arange(4).view(2, 2)),
    ],
)  # fmt: skip
def test_shapes_are_not_broadcast(expected, got):
    assert "dimensions" in reason(expected, got) or "shape" in reason(expected, got)


def test_dtypes_agree_whatever_the_values_are():
    for a, b in [
        (torch.float32, F64),
        (torch.float16, torch.bfloat16),
        (torch.int64, torch.int32),
        (torch.bool, torch.uint8),
    ]:
        text = reason(torch.ones(2, dtype=a), torch.ones(2, dtype=b))
        assert text == f"The dtype is {b} where {a} is expected.".replace("torch.", "")
    assert "dtype" in reason(np.ones(2), np.ones(2, dtype=np.float32))
    assert "dtype" in reason(torch.zeros(0), torch.zeros(0, dtype=F64))


def test_a_device_is_named():
    expected, got = snapshot(torch.ones(2)), snapshot(torch.ones(2))
    object.__setattr__(got, "device", "cuda")
    found = first_difference(expected, got, Tolerance())
    assert found and found.reason == "A tensor lives on cuda where cpu is expected."


def test_strides_count_only_where_the_test_asks():
    x = torch.arange(12.0).view(3, 4)
    copied = x.T.contiguous()
    assert difference(x.T, copied) is None
    assert "strides" in reason(x.T, copied, strides=True)
    assert difference(x.T, x.clone().T, strides=True) is None


def test_aliasing_counts_only_where_the_test_asks():
    def pair(view: bool) -> Any:
        x = torch.arange(6.0)
        return [x, {"y": (x.view(2, 3) if view else x.clone().view(2, 3),)}]

    assert difference(pair(True), pair(False)) is None
    assert "share memory" in reason(pair(True), pair(False), aliasing=True)
    assert "share memory" in reason(pair(False), pair(True), aliasing=True)
    assert difference(pair(True), pair(True), aliasing=True) is None
    three = [torch.zeros(2) for _ in range(3)]
    assert "share memory" in reason([*three, three[0]], [*three, three[1]], aliasing=True)


def test_aliasing_does_not_hide_a_wrong_value():
    x = torch.ones(2)
    assert "values differ" in reason([x, x], [x, x + 1], aliasing=True)


# Values

TINY = torch.randn(2, 4096, generator=torch.Generator().manual_seed(0), dtype=F64).softmax(-1) * 1e-3


@pytest.mark.parametrize("wrong", [torch.zeros_like(TINY), TINY.mean().expand(2, 4096), TINY.flip(-1)])
def test_tolerance_scales_with_what_is_expected(wrong):
    assert torch.allclose(TINY, wrong, atol=1e-2)  # what a fixed tolerance says of all three
    assert "values differ" in reason(TINY, wrong.contiguous())


def test_tolerance_is_relative_to_the_largest_magnitude():
    expected = torch.tensor([1000.0, 1e-3], dtype=F64)
    assert difference(expected, expected + torch.tensor([0, 0.9e-2])) is None
    assert "values differ; the first place is index (1,)" in reason(expected, expected + torch.tensor([0, 1.1e-2]))
    assert difference(expected, -expected) is not None
    assert difference(-expected, -expected + torch.tensor([0, 0.9e-2])) is None  # whatever its sign
    assert "values differ" in reason(torch.ones(1000), torch.ones(1000) + torch.eye(1000)[3] * 1e-3)  # largest, not sum


def test_tolerance_does_not_scale_with_what_the_student_returns():
    assert "values differ" in reason(torch.ones(2), torch.ones(2) * 5, rtol=0.9)
    assert reason(1.0, 4.0, rtol=0.9) == "A float differs: it is 4 times too large."


def test_each_leaf_has_a_scale_of_its_own():
    expected = [torch.tensor([1e6], dtype=F64), torch.tensor([1.0], dtype=F64), 1.0]
    assert (
        reason(expected, [expected[0], torch.tensor([2.0], dtype=F64), 1.0])
        == "A tensor's values differ; the first place is index (0,)."
    )
    assert reason(expected, [*expected[:2], 1.1]) == "A float differs."


def test_a_scale_that_the_test_names_counts_for_all_leaves():
    expected, got = [torch.tensor([1e-6], dtype=F64), 1e-6], [torch.zeros(1, dtype=F64), 0.0]
    assert difference(expected, got, scale=1.0) is None
    assert difference(expected, got, scale=lambda reply: reply[0].new_ones(()) * 1.0) is None
    assert difference(expected, got, scale=lambda reply: float(reply[0].abs().max())) is not None
    assert difference(expected, got, scale=0.0) is not None


def test_an_expected_zero_is_met_exactly():
    assert difference(0.0, 0.0) is None
    assert difference(0.0, -0.0) is None
    assert reason(0.0, 5e-324) == "A float differs."
    zeros = torch.zeros(3, dtype=F64)
    assert difference(zeros, -zeros) is None
    assert "values differ" in reason(zeros, zeros + 1e-300)


def test_rtol_of_zero_means_equality():
    assert difference(0.1 + 0.2, 0.1 + 0.2, rtol=0.0) is None
    assert difference(0.3, 0.1 + 0.2, rtol=0.0) is not None
    x = torch.randn(5)
    assert difference(x, x.clone(), rtol=0.0) is None
    assert difference(x, x * (1 + 1e-6), rtol=0.0) is not None


def test_ints_of_tensors_agree_exactly():
    x = torch.tensor([10**15])
    assert "values differ" in reason(x, x + 1, rtol=1.0)
    assert "values differ" in reason(torch.tensor([True]), torch.tensor([False]), rtol=1.0)
    assert "values differ" in reason(np.array([10**15]), np.array([10**15 + 1]))
    assert "values differ" in reason(torch.tensor([2**63 - 1]), torch.tensor([2**63 - 2]))  # alike in float64


def test_complex_values_count_in_both_parts():
    x = torch.tensor([1 + 1j], dtype=torch.complex128)
    assert difference(x, x + 1e-9j) is None
    assert "values differ" in reason(x, x + 1j)
    assert "values differ" in reason(x, x + 1)


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_nan_and_infinity_are_refused_even_where_they_are_expected(bad):
    x = torch.tensor([1.0, bad])
    assert "NaN or infinity" in reason(torch.ones(2), x)
    assert "NaN or infinity" in reason(x, x)
    assert "NaN or infinite" in reason(1.0, bad)
    assert "NaN or infinite" in reason(bad, bad)
    assert "NaN or infinity" in reason(np.ones(2), np.array([1.0, bad]))


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_nan_and_infinity_may_be_admitted_in_the_same_places(bad):
    x, y = torch.tensor([1.0, bad]), torch.tensor([bad, 1.0])
    assert difference(x, x, finite=False) is None
    assert difference(bad, bad, finite=False) is None
    for a, b in [(x, y), (torch.ones(2), x), (x, torch.ones(2)), (torch.ones(2) * inf, x.new_full((2,), -inf))]:
        assert "values differ" in reason(a, b, finite=False) or "NaN" in reason(a, b, finite=False)
    for a, b in [(1.0, bad), (bad, 1.0), (inf, -inf), (nan, inf), (inf, nan)]:
        assert reason(a, b, finite=False)


def test_infinity_does_not_make_the_scale_infinite():
    expected = torch.tensor([1.0, inf])
    assert "values differ" in reason(expected, torch.tensor([2.0, inf]), finite=False)
    assert difference(expected, torch.tensor([1.0 + 1e-6, inf]), finite=False) is None


def test_a_huge_scale_cannot_overflow_into_agreement():
    big = torch.tensor([1e308, 1.0], dtype=F64)
    assert "values differ" in reason(big, -big)
    assert reason(1e308, -1e308)


def test_the_student_reads_no_value_and_staff_read_both():
    found = difference([torch.tensor([1.25, 2.5])], [torch.tensor([1.25, 7.5])])
    assert found is not None
    assert "7.5" not in found.reason and "2.5" not in found.reason
    assert "7.5" in found.detail and "2.5" in found.detail and "reply[0]" in found.detail
    for expected, got in [(3, 7), (3.5, 7.5), ("three", "seven"), ({"three": 1}, {"seven": 1}), (3, "seven")]:
        found = difference(expected, got)
        assert found is not None
        assert not any(word in found.reason for word in ("3", "7", "three", "seven")), found.reason
        assert any(word in found.detail for word in ("7", "seven"))


# misfit: the types and the structure that an answer has, without an expected value

FITS = [
    (0, 7), (0.0, 7.5), (False, True), ("", "text"), (b"", b"x"), (None, None),
    ([0], []), ([0], [1, 2, 3]), ([0, 0], [1, 2]), ((0, 0.0), (1, 2.0)), ([(0, "")], [(1, "a"), (2, "b")]),
    ({"a": 0}, {"a": 5}), (torch.zeros(0), torch.ones(7)), (torch.zeros(0, 0), torch.ones(7, 2)),
    (torch.float32, torch.float64),
]  # fmt: skip
MISFITS = [
    (0, True, "A bool"), (0, 1.0, "A float"), (0, np.int64(1), "NumPy scalar"), (0, torch.tensor(1), "A tensor"),
    (0.0, 1, "An int"), (0.0, Float(1), "not plain data"), ("", None, "None"), (None, 0, "An int"), (0, EqualsAll(), "not plain data"),
    ([0], (1,), "A tuple"), ((0, 0), [0, 0], "A list"), ([0], [1, True], "A bool"), ([0, 0], [1], "another length"),
    ([0, 0], [1, 2, 3], "another length"), ((0, 0), (1,), "another length"), ((0,), (0, 0), "another length"),
    ([(0, 0.0)], [(1, 1.0), (1, 1)], "An int"), ({"a": 0}, {"b": 0}, "other keys"), ({"a": 0}, {"a": 0.0}, "A float"),
    (torch.zeros(0), torch.zeros(2, dtype=F64), "The dtype is float64 where float32"),
    (torch.zeros(0), torch.zeros(2, 2), "dimensions"), (torch.zeros(0), torch.tensor(0.0), "dimensions"),
    (torch.zeros(0), [0.0], "A list"), (torch.zeros(0), torch.zeros(2).as_subclass(Liar), "A subclass of torch.Tensor"),
    ([[0]], [[1], [2.0]], "A float"), ([0, [0]], [0, [0, None]], "None"),
]  # fmt: skip


@pytest.mark.parametrize(("like", "value"), FITS)
def test_an_answer_that_fits_its_example(like, value):
    assert misfit(like, snapshot(value)) is None


@pytest.mark.parametrize(("like", "value", "words"), MISFITS)
def test_an_answer_that_does_not_fit_its_example(like, value, words):
    found = misfit(like, snapshot(value))
    assert found is not None and words in found.reason


def test_a_size_in_the_example_is_the_size_asked_for_and_0_admits_any():
    like = torch.zeros(0, 3)
    assert misfit(like, snapshot(torch.ones(7, 3))) is None
    assert misfit(like, snapshot(torch.ones(0, 3))) is None
    for shape in ((3, 7), (3, 1), (3, 0)):
        assert misfit(like, snapshot(torch.ones(shape))).reason == "A tensor has another shape than expected."


def test_a_reply_of_unasked_sizes_is_refused_before_anything_is_computed_with_it():
    """Column times row, each small enough to send, is a matrix that the grader has no memory for."""
    from autograder.hidden.test_training import test_together_a_cut_run_is_the_uncut_run as row

    size = 3000
    weights = [torch.ones(1, size), torch.ones(size, 1)]
    reply = (1, [0.0] * 9, [0.0] * 9, weights, weights, weights, (torch.ones(size, 1), torch.ones(size)))

    def observe(problem, probe, *, like):
        difference = misfit(like, snapshot(reply))
        raise LookupError(difference.reason if difference else "computed with")

    with pytest.raises(LookupError, match="another"):
        row(observe, 0, 1)


def test_misfit_admits_nan_for_the_test_to_judge():
    assert misfit(0.0, snapshot(nan)) is None


# --- what probing.refusal reports ---


@pytest.mark.parametrize(
    ("expected", "got", "reason"),
    [
        (("accepted",), ("refused", "ValueError", True), "An input that is right is refused."),
        (("refused", "ValueError", True), ("accepted",), "is accepted: it must raise ValueError."),
        (("refused", "ValueError", True), ("refused", "ValueError", False), "does not contain the wrong value."),
        (("refused", "ValueError", True), ("refused", "TypeError", True), "something else than ValueError."),
        (("refused", "ValueError", True), ("accepted", np.zeros(2)), "says nothing about a refused input."),
    ],
)
def test_a_refusal_that_differs_is_told_in_words(expected, got, reason):
    difference = first_difference(snapshot([expected]), snapshot([got]), Tolerance())

    assert difference is not None and difference.reason.endswith(reason)
    assert first_difference(snapshot([expected]), snapshot([expected]), Tolerance()) is None


def test_a_difference_in_a_tensor_of_many_dimensions_is_told_at_once():
    start = time.process_time()

    difference = first_difference(snapshot(3), snapshot(torch.zeros(1).expand([2] * 16)), Tolerance())

    assert difference is not None and len(difference.detail) < 300
    assert time.process_time() - start < 1
