"""Strict comparison of a student's reply with the reference's, both as `sandbox.codec` decodes them.

In this order: type, structure and length, shape, dtype, device, strides and aliasing where asked, finite, values. The first
difference ends it. A `Difference` says what a student may read of a hidden test (the property that failed, never a
value that could give the input away), and beside it what staff read. A probe that answers several questions returns a dict whose
keys are words about them, "where nothing is summed": the student reads them after the property. A key of one word is data.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import isclose, isfinite, isnan
from typing import Any

import numpy as np
import torch

from autograder.sandbox.codec import NumpyScalar, Opaque, TensorReply, plain

Scale = float | Callable[[Any], Any] | None
_REFUSAL_WORDS = ("accepted", "refused")  # with which `probing.refusal` begins
_TENSOR_KINDS = ("Tensor", "Parameter")
_SMALL_COUNT = 1000
_SAME_RATIO = 1e-6
_FACTORS = (
    2, 3, 4, 6, 8, 16, 32,  # operations of a multiply-add, of a training step, bytes and bits
    7, 24, 60, 365, 3600, 86400,  # seconds, minutes, hours, days, weeks, years
    *(base**power for power in (1, 2, 3, 4) for base in (1000, 1024, 1.024)),  # k, M, G, T; Ki, Mi, Gi, Ti; one for the other
)  # fmt: skip


@dataclass(frozen=True)
class Tolerance:
    """How closely two replies must agree."""

    rtol: float = 1e-5  # of the scale; int and bool agree exactly, always
    scale: Scale = None  # a number, or a function of the reference's reply; None: the largest magnitude of that leaf
    strides: bool = False  # compare strides too
    aliasing: bool = False  # compare which tensors of the reply share a storage
    finite: bool = True  # refuse NaN and infinity even where the reference has them


@dataclass(frozen=True)
class Difference:
    """The first place where two replies differ."""

    reason: str  # what the student reads
    detail: str  # what staff read: the place in the reply, and both values
    about: str = ""  # the key of the answer that differs, where the reply has several


def first_difference(expected: Any, got: Any, tolerance: Tolerance) -> Difference | None:
    """Return the first difference between two decoded replies, or None if there is none."""
    scale = tolerance.scale
    if callable(scale):
        scale = float(scale(plain(expected)))
    difference = _Walk(tolerance, scale).compare(expected, got, "reply")
    if difference is None and tolerance.aliasing and _sharing(expected) != _sharing(got):
        return Difference(
            "Tensors share memory where they should not, or are copies where they should be views.",
            f"storage of each tensor: expected {_sharing(expected)}, got {_sharing(got)}",
        )
    return difference


def misfit(like: Any, got: Any, path: str = "reply") -> Difference | None:
    """Return how `got` departs from the types and structure of the example `like`, or None if it does not.

    A list of one element in `like` admits any length; a tensor fixes the dtype, the number of dimensions, and each size that is not 0.
    """
    if isinstance(like, torch.Tensor):
        if difference := _type_difference(torch.Tensor, got, path):
            return difference
        if got.value.dtype != like.dtype:
            return _wrong_dtype(like.dtype, got.value.dtype, path)
        if got.value.dim() != like.dim() or any(
            size not in (0, found) for size, found in zip(like.shape, got.value.shape, strict=True)
        ):
            return _wrong_shape(like.shape, got.value.shape, path)
        return None
    if difference := _type_difference(type(like), got, path):
        return difference
    if isinstance(like, list) and len(like) == 1:
        pairs = [(like[0], item) for item in got]
    elif isinstance(like, (list, tuple)):
        if len(got) != len(like):
            return _wrong_length(type(like).__name__, len(like), len(got), path)
        pairs = list(zip(like, got, strict=True))
    elif isinstance(like, dict):
        if set(like) != set(got):
            return Difference("A dict has other keys than expected.", f"{path}: keys {list(got)}, not {list(like)}")
        pairs = [(like[key], got[key]) for key in like]
    else:
        pairs = []
    for i, (example, item) in enumerate(pairs):
        if difference := misfit(example, item, f"{path}[{i}]"):
            return difference
    return None


class _Walk:
    """One walk over two trees; holds what does not change on the way."""

    def __init__(self, tolerance: Tolerance, scale: float | None) -> None:
        self._tolerance = tolerance
        self._scale = scale

    def compare(self, expected: Any, got: Any, path: str) -> Difference | None:
        if difference := _type_difference(_type_of(expected), got, path):
            return difference
        if isinstance(expected, TensorReply):
            return self._tensors(expected, got, path)
        if isinstance(expected, np.ndarray):
            if expected.dtype != got.dtype:
                return _wrong_dtype(expected.dtype, got.dtype, path)
            a, b = (TensorReply(torch.from_numpy(array.copy()), "cpu", "Tensor") for array in (expected, got))
            return self._tensors(a, b, path)
        if isinstance(expected, tuple) and expected and type(expected[0]) is str and expected[0] in _REFUSAL_WORDS:
            return _refusals(expected, got, path)
        if isinstance(expected, (list, tuple)):
            if len(expected) != len(got):
                return _wrong_length(type(expected).__name__, len(expected), len(got), path)
            pairs: Iterator[tuple[str, Any, Any]] = (
                (f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(expected, got, strict=True))
            )
        elif isinstance(expected, dict):
            if list(map(_key, expected)) != list(map(_key, got)) and set(map(_key, expected)) != set(map(_key, got)):
                return Difference("A dict has other keys than expected.", f"{path}: {list(got)}, not {list(expected)}")
            for key in expected:
                if difference := self.compare(expected[key], got[key], f"{path}[{key!r}]"):
                    return _about(key, difference)
            return None
        elif isinstance(expected, float):
            return self._floats(expected, got, path)
        else:
            if expected == got:
                return None
            return _differs(expected, got, path)
        for at, a, b in pairs:
            if difference := self.compare(a, b, at):
                return difference
        return None

    def _floats(self, expected: float, got: float, path: str) -> Difference | None:
        if not isfinite(got) and (self._tolerance.finite or isfinite(expected)):
            return Difference("A float is NaN or infinite.", f"{path}: {got!r}, not {expected!r}")
        if not isfinite(expected):
            same = expected == got or (isnan(expected) and isnan(got))
        else:
            same = abs(got - expected) <= self._tolerance.rtol * (abs(expected) if self._scale is None else self._scale)
        return None if same else _differs(expected, got, path)

    def _tensors(self, expected: TensorReply, got: TensorReply, path: str) -> Difference | None:
        a, b = expected.value, got.value
        if a.shape != b.shape:
            return _wrong_shape(a.shape, b.shape, path)
        if a.dtype != b.dtype:
            return _wrong_dtype(a.dtype, b.dtype, path)
        if expected.device != got.device:
            reason = f"A tensor lives on {got.device} where {expected.device} is expected."
            return Difference(reason, path)
        if self._tolerance.strides and a.stride() != b.stride():
            reason = "A tensor has other strides than expected: a copy where a view will do, or another layout."
            return Difference(reason, f"{path}: strides {b.stride()}, not {a.stride()}")
        return self._values(a, b, path)

    def _values(self, a: torch.Tensor, b: torch.Tensor, path: str) -> Difference | None:
        if a.is_complex():
            a, b = torch.view_as_real(a), torch.view_as_real(b)
        if not a.is_floating_point():
            wrong = a.ne(b)
        else:
            a, b = a.double(), b.double()
            if self._tolerance.finite and not bool(b.isfinite().all()):
                return Difference("A tensor holds NaN or infinity.", f"{path}: {_place(~b.isfinite(), a, b)}")
            usual = a.isfinite() & b.isfinite()
            largest = a[usual].abs().max() if bool(usual.any()) else torch.zeros(())
            scale = float(largest) if self._scale is None else self._scale
            same = (a - b).abs() <= self._tolerance.rtol * scale
            wrong = ~torch.where(usual, same, (a == b) | (a.isnan() & b.isnan()))
        if not bool(wrong.any()):
            return None
        index = tuple(wrong.nonzero()[0].tolist())
        place = f"; the first place is index {index}" if index else ""
        return Difference(f"A tensor's values differ{place}.", f"{path}: {_place(wrong, a, b)}")


def _differs(expected: Any, got: Any, path: str) -> Difference:
    try:
        relation = _relation(expected, got) if isinstance(expected, (int, float)) else ""
    except OverflowError:  # an int larger than any float
        relation = ""
    reason = f"{_upper(_name(type(expected)))} differs{relation and ': '}{relation}."
    return Difference(reason, f"{path}: {_brief(got)}, not {_brief(expected)}")


def _relation(expected: float, got: float) -> str:
    """Return what a wrong number is to the right one, if that is what a sign, a factor or a unit makes of it; else nothing.

    Of a small count it would give away the right one.
    """
    if abs(expected) < _SMALL_COUNT and isinstance(expected, int):
        return ""
    if isclose(got, -expected, rel_tol=_SAME_RATIO):
        return "it has the other sign"
    for factor in _FACTORS:
        if isclose(got, factor * expected, rel_tol=_SAME_RATIO):
            return f"it is {round(factor, 4):,} times too large"
        if isclose(factor * got, expected, rel_tol=_SAME_RATIO):
            return f"it is {round(factor, 4):,} times too small"
    return ""


def _about(key: object, difference: Difference) -> Difference:
    if type(key) is not str or " " not in key:
        return difference
    return replace(difference, reason=f"{difference.reason.removesuffix('.')} ({key}).", about=key)


def _refusals(expected: tuple[Any, ...], got: tuple[Any, ...], path: str) -> Difference | None:
    """Compare what `probing.refusal` reports of two implementations."""
    if not all(type(item) in (str, bool) for item in got):
        return Difference("What came back says nothing about a refused input.", f"{path}: {_brief(got)}")
    if expected == got:
        return None
    if expected[0] == "accepted":
        reason = "An input that is right is refused."
    elif got[:1] == ("accepted",):
        reason = f"An input that cannot be right is accepted: it must raise {expected[1]}."
    elif got[:2] == expected[:2]:
        reason = (
            f"An input that cannot be right raises {expected[1]}, but the message does not contain the wrong value."
        )
    else:
        reason = f"An input that cannot be right raises something else than {expected[1]}."
    return Difference(reason, f"{path}: {_brief(got)}, not {_brief(expected)}")


def _place(wrong: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> str:
    index = tuple(wrong.nonzero()[0].tolist())
    return (
        f"{int(wrong.sum())} of {wrong.numel()} wrong, first at {index}: {b[index].item()!r}, not {a[index].item()!r}"
    )


def _sharing(tree: Any) -> list[int]:
    """Return, for each tensor of the reply in order, the number of the storage it uses, numbered by first use."""
    seen: dict[int, int] = {}
    return [seen.setdefault(tensor.untyped_storage()._cdata, len(seen)) for tensor in _tensors(tree)]


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, TensorReply):
        yield tree.value
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _tensors(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from _tensors(item)


def _type_of(reply: Any) -> type:
    return torch.Tensor if isinstance(reply, TensorReply) else type(reply)


def _type_difference(expected: type, got: Any, path: str) -> Difference | None:
    """Compare types exactly: a bool is no int, a NumPy number is no Python number, a subclass is not its base."""
    if type(got) is TensorReply and got.kind not in _TENSOR_KINDS:
        return Difference(
            f"A subclass of torch.Tensor came back where {_name(expected)} is expected.", f"{path}: {got.kind}"
        )
    if type(got) is Opaque:
        return Difference(
            f"Something came back that is not plain data where {_name(expected)} is expected.",
            f"{path}: {got.type_name}",
        )
    if _type_of(got) is expected:
        return None
    if type(got) is NumpyScalar:
        reason = f"A NumPy scalar came back where {_name(expected)} is expected."
    else:
        reason = f"{_upper(_name(_type_of(got)))} came back where {_name(expected)} is expected."
    return Difference(reason, f"{path}: {_brief(got)}")


def _wrong_dtype(expected: object, got: object, path: str) -> Difference:
    names = [str(dtype).removeprefix("torch.") for dtype in (got, expected)]
    return Difference(f"The dtype is {names[0]} where {names[1]} is expected.", path)


def _wrong_shape(expected: torch.Size, got: torch.Size, path: str) -> Difference:
    other = (
        "shape than expected" if len(got) == len(expected) else f"number of dimensions than expected ({len(expected)})"
    )
    return Difference(f"A tensor has another {other}.", f"{path}: shape {tuple(got)}, not {tuple(expected)}")


def _wrong_length(kind: str, expected: int, got: int, path: str) -> Difference:
    return Difference(f"A {kind} has another length than expected ({expected}).", f"{path}: length {got}")


def _key(key: object) -> tuple[str, object]:
    return type(key).__name__, key


def _brief(value: Any) -> str:
    """Return a few words for any reply, in little time: printing a tensor of 32 dimensions takes minutes."""
    if isinstance(value, TensorReply):
        return f"a tensor of shape {tuple(value.value.shape)}, {value.value.dtype}"
    if isinstance(value, (dict, np.ndarray, list)) or (isinstance(value, tuple) and len(value) > 4):
        return f"{_name(type(value))} of length {len(value)}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_brief, value))})"
    return repr(value[:200] if isinstance(value, (str, bytes)) else value)[:300]


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _name(kind: type) -> str:
    """Return the type's name with its article."""
    if kind is type(None):
        return "None"
    name = {torch.Tensor: "tensor", torch.dtype: "torch.dtype", np.ndarray: "NumPy array"}.get(kind, kind.__name__)
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
