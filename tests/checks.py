"""The assertions of the public tests: strict comparisons whose messages show what was expected, what came and a hint.

Strict means: the type counts (a bool, a NumPy integer or a 0-d tensor is not an int), then structure, shape, dtype and device, and
only then the values. Nothing is broadcast, and tolerances are relative to what is expected.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

# A float written out in a test has been through the same few double operations as the student's, in any order.
FLOAT_RTOL = 1e-9
# Single-precision arithmetic done in another order; a mistake is far larger.
TENSOR_RTOL = 1e-5


def check_equal(got: object, expected: object, hint: str = "", rtol: float = FLOAT_RTOL) -> None:
    """Fail unless `got` has the type and the value of `expected`, all the way down tuples, lists, dicts and dataclasses.

    Ints, bools, strings and None are compared exactly, floats relative to the expected one, tensors as `check_close` does it.

    >>> check_equal((48, True), (48, True))
    """
    __tracebackhide__ = True
    if problem := _difference(got, expected, "", rtol):
        _fail(problem, hint)


def check_close(got: object, expected: Tensor, hint: str = "", rtol: float = TENSOR_RTOL) -> None:
    """Fail unless `got` is a tensor of the same shape, dtype and device with |got - expected| <= rtol * max|expected|.

    >>> check_close(Tensor([1.0, 2.0]), Tensor([1.0, 2.0]))
    """
    __tracebackhide__ = True
    if problem := _tensor_difference(got, expected, "", rtol):
        _fail(problem, hint)


def check_raises(kind: type[Exception], call: Callable[[], object], names: object = None, hint: str = "") -> None:
    """Fail unless `call()` raises `kind` with a message that contains `names`, the value that cannot be right.

    NotImplementedError passes through: it is what a stub raises, and never the error that a test asks for.

    >>> check_raises(ValueError, lambda: int("-3 bytes"), names=-3)
    """
    __tracebackhide__ = True
    try:
        value = call()
    except NotImplementedError:
        raise
    except kind as error:
        if names is not None and not says_which(str(error), names):
            _fail([f"{kind.__name__} is right, but its message has to name the offending value", f"  expected: ... {names} ...",
                   f"  got:      {_clipped(str(error)) or '(no message)'}"], hint)  # fmt: skip
    except Exception as error:
        # Chained, so that the report also shows the student's own line.
        raise AssertionError(
            _message([f"expected {kind.__name__}, got {type(error).__name__}: {_clipped(str(error))}"], hint)
        ) from error
    else:
        naming = "" if names is None else f" that names {names}"
        _fail([f"expected {kind.__name__}{naming}, got no error", f"  returned: {_described(value)}"], hint)


def says_which(text: str, value: object) -> bool:
    """Tell whether an error's text names a value: as `str` writes it, a dtype also without its module, a number in any format.

    >>> says_which("int64 is not floating-point", Tensor().long().dtype), says_which("lr is -1.00e-01, and must be 0 or more", -0.1)
    (True, True)
    """
    if str(value).removeprefix("torch.") in text:
        return True
    return isinstance(value, (int, float)) and any(
        math.isclose(number, value, rel_tol=0.05) for number in _numbers(text)
    )


def _numbers(text: str) -> Iterator[float]:
    """Yield the numbers of a text: 1,000,000 and 1_000_000 as one, 12% as 0.12."""
    for digits, percent in re.findall(r"([-+]?\d[\d,_]*(?:\.\d*)?(?:[eE][-+]?\d+)?)(%?)", text):
        yield float(digits.replace(",", "").replace("_", "")) / (100 if percent else 1)


def _difference(got: Any, expected: Any, where: str, rtol: float) -> list[str] | None:
    """Return the lines that describe the first difference, or None if there is none; `where` leads to it ("[2].total")."""
    if isinstance(expected, Tensor):
        return _tensor_difference(got, expected, where, rtol)
    # As in the hidden tests, a torch.Size or a named tuple is a tuple, and a defaultdict a dict.
    alike = any(isinstance(got, kind) and isinstance(expected, kind) for kind in (tuple, dict))
    if type(got) is not type(expected) and not alike:
        return _two_lines(f"wrong type{_at(where)}", expected, got) + _type_advice(got, expected)
    if isinstance(expected, (tuple, list)):
        if len(got) != len(expected):
            return _two_lines(f"wrong length{_at(where)}: expected {len(expected)}, got {len(got)}", expected, got)
        names = [f".{name}" for name in getattr(expected, "_fields", ())] or [f"[{i}]" for i in range(len(expected))]
        pairs = [(where + name, a, b) for name, a, b in zip(names, got, expected, strict=True)]
    elif isinstance(expected, dict):
        if got.keys() != expected.keys():
            return _two_lines(f"wrong keys{_at(where)}", list(expected), list(got))
        pairs = [(f"{where}[{key!r}]", got[key], value) for key, value in expected.items()]
    elif is_dataclass(expected) and not isinstance(expected, type):
        pairs = [(f"{where}.{f.name}", getattr(got, f.name), getattr(expected, f.name)) for f in fields(expected)]
    else:
        return None if _same_value(got, expected, rtol) else _two_lines(f"wrong value{_at(where)}", expected, got)
    for place, a, b in pairs:
        if problem := _difference(a, b, place, rtol):
            return problem
    return None


def _same_value(got: Any, expected: Any, rtol: float) -> bool:
    if isinstance(expected, float) and math.isfinite(expected):
        return math.isfinite(got) and abs(got - expected) <= rtol * abs(expected)
    if isinstance(expected, float) and math.isnan(expected):
        return math.isnan(got)
    return bool(got == expected)


def _tensor_difference(got: object, expected: Tensor, where: str, rtol: float) -> list[str] | None:
    if not isinstance(got, Tensor):
        return [
            f"wrong type{_at(where)}",
            f"  expected: {_tensor_described(expected)}",
            f"  got:      {_described(got)}",
        ]
    for aspect in ("shape", "dtype", "device"):
        a, b = getattr(got, aspect), getattr(expected, aspect)
        if a != b:
            show = tuple if aspect == "shape" else str
            return [f"wrong {aspect}{_at(where)}", f"  expected: {show(b)}", f"  got:      {show(a)}"]
    a, b = got.detach(), expected.detach()
    if a.dtype.is_floating_point:
        a, b = a.double(), b.double()
        finite = b[b.isfinite()]
        scale = finite.abs().max().item() if finite.numel() else 0.0
        # inf and NaN are right only where they are expected; their differences are NaN, so they are compared by themselves.
        wrong = ~((a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= rtol * scale))
    else:
        wrong = a != b
    if not wrong.any():
        return None
    index = tuple(wrong.nonzero()[0].tolist())
    lines = [
        f"wrong values{_at(where)}: {int(wrong.sum())} of {wrong.numel()} differ in a tensor of shape {tuple(got.shape)}, {got.dtype}",
        f"  first at index {index}" if index else "  in the only element",
        f"  expected: {b[index].item()!r}",
        f"  got:      {a[index].item()!r}",
    ]
    if a.dtype.is_floating_point:
        lines.append(f"  tolerance: {rtol * scale:.3g} (rtol {rtol:g} of the largest expected value)")
    return lines


def _type_advice(got: object, expected: object) -> list[str]:
    """Say how to turn what looks like a number into the plain one that is asked for."""
    wanted = type(expected)
    if wanted not in (int, float, bool):
        return []
    if isinstance(got, Tensor) or type(got).__module__ == "numpy":
        return [f"  (a plain Python {wanted.__name__} is wanted: .item() makes one)"]
    if wanted is int and isinstance(got, bool):
        return ["  (a bool is not a number here)"]
    if wanted is int and isinstance(got, float):
        return [
            "  (bytes and FLOPs are whole numbers: use // or integers from the start, so that large ones stay exact)"
        ]
    return []


def _two_lines(headline: str, expected: object, got: object) -> list[str]:
    return [headline, f"  expected: {_described(expected)}", f"  got:      {_described(got)}"]


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return _tensor_described(value)
    if value is None or is_dataclass(value) or hasattr(value, "_fields"):
        return _clipped(repr(value))
    module = "" if type(value).__module__ == "builtins" else f"{type(value).__module__}."
    return f"{module}{type(value).__qualname__} {_clipped(repr(value))}"


def _tensor_described(value: Tensor) -> str:
    number = f" {value.item()!r}" if value.numel() == 1 and value.device.type != "meta" else ""
    return f"tensor{number} of shape {tuple(value.shape)}, {value.dtype}, on {value.device}"


def _clipped(text: str, width: int = 200) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[:width]} ..."


def _at(where: str) -> str:
    return f" at {where.removeprefix('.')}" if where else ""


def _message(lines: list[str], hint: str) -> str:
    return "\n".join([*lines, f"  hint: {hint}"] if hint else lines)


def _fail(lines: list[str], hint: str) -> None:
    __tracebackhide__ = True
    raise AssertionError(_message(lines, hint)) from None
