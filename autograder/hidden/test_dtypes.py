"""Part 2, what a float can hold: held against torch.finfo, bit patterns, PyTorch's and NumPy's own rounding."""

import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from gradescope_utils.autograder_utils.decorators import number, weight
from torch import Tensor

from autograder.probing import refusal

# (exponent_bits, mantissa_bits, has_inf) of the formats that PyTorch can measure.
FORMATS = {
    torch.float32: (8, 23, True),
    torch.float16: (5, 10, True),
    torch.bfloat16: (8, 7, True),
    torch.float8_e5m2: (5, 2, True),
    torch.float8_e4m3fn: (4, 3, False),
    torch.float64: (11, 52, True),
}
WITH_INFINITY = [dtype for dtype, (_, _, has_inf) in FORMATS.items() if has_inf]
BIT_PATTERNS = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


@dataclass(frozen=True, eq=False)
class Limits:
    """The landmarks of a format; the student's own type may hold more."""

    max: float
    smallest_normal: float
    smallest_subnormal: float
    eps: float
    bits: int

    def __eq__(self, other: object) -> bool:
        """Compare the landmarks."""
        theirs = [getattr(other, each, None) for each in vars(self)]
        return [(type(each), each) for each in theirs] == [(type(each), each) for each in vars(self).values()]


def float_limits(exponent_bits: int, mantissa_bits: int, has_inf: bool = True) -> Limits:
    """Return a format's landmarks, by IEEE 754-2019: for the problems whose solutions may call the student's function.

    Raises:
        ValueError: naming a width that is outside its range.
    """
    if not 2 <= exponent_bits <= (11 if has_inf else 10):
        raise ValueError(f"{exponent_bits} exponent bits")
    if not 1 <= mantissa_bits <= 52:
        raise ValueError(f"{mantissa_bits} fraction bits")
    eps, bias = 2.0**-mantissa_bits, 2 ** (exponent_bits - 1) - 1
    largest = (2 - eps) * 2.0**bias if has_inf else (2 - 2 * eps) * 2.0 ** (bias + 1)
    smallest = 2.0 ** (1 - bias)
    return Limits(largest, smallest, smallest * eps, eps, 1 + exponent_bits + mantissa_bits)


RELIES_ON = {
    "dtypes.underflows_to_zero": {"float_limits": float_limits},
    "dtypes.round_to_float": {"float_limits": float_limits},
}


def name(dtype: torch.dtype) -> str:
    """Return "float16" for torch.float16: the id of a case."""
    return str(dtype).removeprefix("torch.")


def smallest_subnormal(dtype: torch.dtype) -> float:
    """Read the number whose bit pattern is 1."""
    return torch.tensor([1], dtype=BIT_PATTERNS[torch.finfo(dtype).bits]).view(dtype).double().item()


def all_numbers(dtype: torch.dtype) -> Tensor:
    """List the numbers of all bit patterns of an 8-bit or 16-bit format in float32, infinities and NaN included."""
    bits = torch.finfo(dtype).bits
    return torch.arange(2**bits).to(BIT_PATTERNS[bits]).view(dtype).float()


def numbers_and_ties(dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Return finite numbers of a format, and those halfway from each to the next, exact in float32.

    Of an 8-bit format it is all of them; of a 16-bit one the smallest, those beside powers of two, and about 2000 drawn ones.
    """
    numbers = all_numbers(dtype)
    finite = numbers[numbers.isfinite()].double().unique()
    patterns = (torch.arange(len(finite)) - len(finite) // 2).abs()  # of the bits but the sign's
    fractions = patterns % 2 ** FORMATS[dtype][1]
    drawn = torch.rand(len(finite), generator=generator) < 2000 / len(finite)
    kept = drawn | (patterns < 64) | (fractions <= 1) | (fractions == fractions.max())
    return torch.cat([finite[kept], ((finite[1:] + finite[:-1]) / 2)[kept[:-1]], torch.tensor([-0.0])]).float()


def with_its_bits(y: object) -> tuple[object, Tensor | None]:
    """Return a reply, and its bits as whole numbers: those differ to the diagnosis however near two numbers are."""
    if not isinstance(y, Tensor):
        return y, None
    return y, y.double().nan_to_num(nan=-12345.5, posinf=math.inf, neginf=-math.inf).view(torch.int64)


def rounded_by_student(observe, probe, dtype=torch.float32):
    """Ask for a tensor of one dimension; the probe returns it `with_its_bits`."""
    got, _ = observe(
        "dtypes.round_to_float", probe, like=(torch.zeros(0, dtype=dtype), torch.zeros(0, dtype=torch.int64))
    )
    return got


def same_bits(x: Tensor, y: Tensor) -> bool:
    """Whether two float32 tensors agree bit for bit, all NaN being one."""
    return torch.equal(x.nan_to_num(nan=-12345.5, posinf=math.inf, neginf=-math.inf).view(torch.int32),
                       y.nan_to_num(nan=-12345.5, posinf=math.inf, neginf=-math.inf).view(torch.int32))  # fmt: skip


@number("2.1")
@weight(1)
@pytest.mark.parametrize("dtype", WITH_INFINITY, ids=name)
def test_float_limits_agree_with_finfo(observe, dtype):
    """float_limits: max, smallest normal number, eps and bits are those of torch.finfo."""
    exponent_bits, mantissa_bits, _ = FORMATS[dtype]

    def probe(lib):
        limits = lib.dtypes.float_limits(exponent_bits, mantissa_bits)
        return limits.max, limits.smallest_normal, limits.eps, limits.bits

    info = torch.finfo(dtype)
    largest, smallest_normal, eps, bits = observe("dtypes.float_limits", probe, like=(0.0, 0.0, 0.0, 0))
    assert largest == info.max, "the largest finite number differs from torch.finfo's"
    assert smallest_normal == info.smallest_normal, "the smallest normal number differs from torch.finfo's"
    assert eps == info.eps, "eps differs from torch.finfo's"
    assert bits == info.bits, "the number of bits differs from torch.finfo's"


@number("2.1")
@weight(1)
@pytest.mark.parametrize("case", ["e4m3fn", "other widths"])
def test_float_limits_without_infinity_go_further(compare, observe, case):
    """float_limits: without infinity the largest exponent holds numbers too, all but one pattern."""
    widths = [(4, 3)] if case == "e4m3fn" else [(e, m) for e in range(2, 11) for m in (1, 2, 3, 7, 10, 52)]

    def probe(lib):
        return {"the largest number": [lib.dtypes.float_limits(*width, has_inf=False).max for width in widths]}

    if case == "e4m3fn":
        (largest,) = observe("dtypes.float_limits", probe, like={"the largest number": [0.0]}).values()
        assert largest == [torch.finfo(torch.float8_e4m3fn).max], (
            "the largest number of a format without infinity differs from torch.finfo's"
        )
    else:
        compare("dtypes.float_limits", probe, rtol=0)


@number("2.1")
@weight(1)
def test_float_limits_of_any_widths(compare, observe):
    """float_limits: any width from 2 to 11 and from 1 to 52 bits, and none outside, subnormals included."""
    widths = [(e, m) for e in range(2, 12) for m in (*range(1, 8), 10, 16, 23, 37, 52)]
    without_infinity = [(e, m) for e in range(2, 11) for m in (1, 3, 10, 52)]
    formats = list(FORMATS.values())

    def probe_subnormals(lib):
        return [lib.dtypes.float_limits(*format).smallest_subnormal for format in formats]

    def probe(lib):
        limits = [lib.dtypes.float_limits(e, m, True) for e, m in widths]
        largest = [x.max for x in limits]  # without infinity it has a row of its own
        limits += [lib.dtypes.float_limits(e, m, False) for e, m in without_infinity]
        return {
            "the largest number": largest,
            "the smallest normal number": [x.smallest_normal for x in limits],
            "the smallest subnormal number": [x.smallest_subnormal for x in limits],
            "the field eps": [x.eps for x in limits],
            "the number of bits": [x.bits for x in limits],
        }

    def probe_refusals(lib):
        float_limits = lib.dtypes.float_limits
        return {
            "the largest number": float_limits(5, 2).max,
            "too few exponent bits": [
                refusal(lambda: float_limits(1, 10), names=1),
                refusal(lambda: float_limits(0, 10), names=0),
                refusal(lambda: float_limits(-5, 10), names=-5),
                refusal(lambda: float_limits(1, 3, has_inf=False), names=1),
            ],
            "too many exponent bits": [
                refusal(lambda: float_limits(12, 10), names=12),
                refusal(lambda: float_limits(40, 10), names=40),
                refusal(lambda: float_limits(12, 3, has_inf=False), names=12),
            ],
            "too few fraction bits": [
                refusal(lambda: float_limits(5, 0), names=0),
                refusal(lambda: float_limits(8, -7), names=-7),
                refusal(lambda: float_limits(4, 0, has_inf=False), names=0),
            ],
            "too many fraction bits": [
                refusal(lambda: float_limits(5, 53), names=53),
                refusal(lambda: float_limits(8, 70), names=70),
                refusal(lambda: float_limits(4, 53, has_inf=False), names=53),
            ],
            "11 exponent bits without infinity": refusal(lambda: float_limits(11, 4, has_inf=False), names=11),
        }

    measured = [smallest_subnormal(dtype) for dtype in FORMATS]
    assert observe("dtypes.float_limits", probe_subnormals, like=[0.0]) == measured, (
        "the smallest subnormal number differs from PyTorch's number of bit pattern 1"
    )
    compare("dtypes.float_limits", probe, rtol=0)
    compare("dtypes.float_limits", probe_refusals, rtol=0)


def numbers_near_underflow(dtype: torch.dtype, rng: random.Random) -> list[float]:
    """Draw numbers about the smallest of a format, and others, all so exact that PyTorch rounds them to it only once."""
    smallest = torch.finfo(torch.float32).smallest_normal if dtype != torch.float64 else 0.0
    values = [
        smallest_subnormal(dtype) * eighths / 8
        for eighths in (*range(1, 12), *(rng.randint(1, 200) for _ in range(40)))
    ]
    if dtype == torch.float32:
        values = [float(np.float32(value)) for value in values]
    values += [smallest, 1e-8, 1.0, 1e30, math.inf, 0.0]
    values += [-value for value in values] + [math.nan]
    return values if dtype == torch.float64 else torch.tensor(values, dtype=torch.float32).tolist()


def underflows_as_pytorch_rounds(observe, values, dtype):
    def probe(lib):
        return [lib.dtypes.underflows_to_zero(value, dtype) for value in values]

    rounded = torch.tensor(values, dtype=torch.float64).to(dtype).double()
    measured = [value != 0 and after == 0 for value, after in zip(values, rounded.tolist(), strict=True)]
    assert observe("dtypes.underflows_to_zero", probe, like=[False]) == measured, (
        f"a number is said to be lost that PyTorch keeps in {name(dtype)}, or to be kept that PyTorch turns into 0"
    )


def underflows_once(compare, observe, near):
    """Hold numbers beside a tie, as multiples of it, against one rounding."""

    def probe_float16(lib):
        return [lib.dtypes.underflows_to_zero(2.0**-25 * factor, torch.float16) for factor in near]

    def probe_others(lib):
        dtypes = (torch.float32, torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fn)
        ties = [smallest_subnormal(dtype) / 2 for dtype in dtypes]
        underflows = lib.dtypes.underflows_to_zero
        return {
            **{
                f"beside a tie in {name(dtype)}": [underflows(tie * factor, dtype) for factor in near]
                for dtype, tie in zip(dtypes, ties, strict=True)
            },
            "the smallest float64": [underflows(5e-324, torch.float64), underflows(5e-324, torch.float32)],
        }

    measured = [bool(np.float64(2.0**-25 * factor).astype(np.float16) == 0) for factor in near]  # NumPy rounds once
    assert observe("dtypes.underflows_to_zero", probe_float16, like=[False]) == measured, (
        "a float64 beside the tie is judged otherwise than by rounding it once"
    )
    compare("dtypes.underflows_to_zero", probe_others)


@number("2.2")
@weight(1)
def test_underflows_to_zero_rounds_once(compare, observe, seed):
    """underflows_to_zero: true where one rounding makes 0 of a number that is not 0; refuses other dtypes."""
    rng = random.Random(seed)

    def probe_refusals(lib):
        underflows_to_zero = lib.dtypes.underflows_to_zero
        return {
            "a small number in float32": underflows_to_zero(1e-46, torch.float32),
            "a dtype that is not in FLOAT_FORMATS": [
                refusal(lambda: underflows_to_zero(1e-8, torch.int32), names=torch.int32),
                refusal(lambda: underflows_to_zero(0.0, torch.bool), names=torch.bool),
                refusal(lambda: underflows_to_zero(1e-8, torch.complex64), names=torch.complex64),
                refusal(lambda: underflows_to_zero(1.0, torch.float8_e4m3fnuz), names=torch.float8_e4m3fnuz),
                refusal(lambda: underflows_to_zero(1e-8, torch.float8_e5m2fnuz), names=torch.float8_e5m2fnuz),
            ],
        }

    for dtype in FORMATS:
        underflows_as_pytorch_rounds(observe, numbers_near_underflow(dtype, rng), dtype)
    # So near to the tie that a detour through float32, whose eps is 2^-23, lands on it.
    near = [1.0, *(1 + sign * 2.0 ** -rng.randint(30, 52) for sign in (1, -1) for _ in range(10))]
    underflows_once(compare, observe, near)
    compare("dtypes.underflows_to_zero", probe_refusals)


def rounds_to_subnormals(observe, generator):
    """Ask for float64s as multiples of the smallest: float64's own format keeps them, and others of fewer bits round them."""
    dropped = 32  # bits, in the formats of fewer
    narrower = [11, 10, 7, 5, 2]  # exponent bits of theirs
    multiples = torch.cat([
        torch.arange(-40, 41),
        torch.randint(-(2**53), 2**53, (400,), generator=generator),
        (2 * torch.randint(-(2**20), 2**20, (100,), generator=generator) + 1) << (dropped - 1),  # ties
    ]).double()  # fmt: skip
    coarse = multiples.float().double()  # a detour through float32, which has a row of its own, does not show in those

    def spacing(exponent_bits: int) -> float:
        return 2.0 ** (2 - 2 ** (exponent_bits - 1) - 52)

    def probe(lib):
        round_to_float = lib.dtypes.round_to_float
        results = [round_to_float(multiples * spacing(11), 11, 52)]
        results += [round_to_float(coarse * spacing(bits), bits, 52 - dropped) for bits in narrower]
        return with_its_bits(torch.cat(results))

    kept, *rounded = rounded_by_student(observe, probe, torch.float64).split(len(multiples))
    assert torch.equal(kept, multiples * spacing(11)), "a subnormal number of float64 is changed by rounding to float64"
    expected = (coarse / 2.0**dropped).round() * 2.0**dropped
    for bits, got in zip(narrower, rounded, strict=True):
        assert torch.equal(got, expected * spacing(bits)), (
            "a small float64 is rounded otherwise than to a multiple of the format's smallest number, ties to even"
        )


@number("2.3")
@weight(1)
def test_round_to_float_is_float16_bit_for_bit(observe, seed):
    """round_to_float: bit for bit `.to(torch.float16)`, for its numbers, midpoints between them and others."""
    generator = torch.Generator().manual_seed(seed)
    others = torch.randn(2000, generator=generator) * 10 ** torch.empty(2000).uniform_(-9, 4, generator=generator)
    others = torch.cat([others, torch.tensor([math.inf, -math.inf, math.nan])])
    x = torch.cat([numbers_and_ties(torch.float16, generator), others])

    def probe(lib):
        return with_its_bits(lib.dtypes.round_to_float(x, 5, 10))

    got = rounded_by_student(observe, probe)
    assert got.shape == x.shape, "the result has another shape"
    assert same_bits(got, x.to(torch.float16).float()), (
        "a number is rounded otherwise than by PyTorch: look at ties, subnormals, -0.0 and infinity"
    )


@number("2.3")
@weight(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fn, torch.float64], ids=name)
def test_round_to_float_agrees_in_other_formats(observe, seed, dtype):
    """round_to_float: bfloat16, float8_e5m2 and float8_e4m3fn as PyTorch rounds to them; float64's subnormal numbers."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.float64:
        rounds_to_subnormals(observe, generator)
        return
    exponent_bits, mantissa_bits, has_inf = FORMATS[dtype]
    others = torch.randn(2000, generator=generator) * 10 ** torch.empty(2000).uniform_(-8, 4, generator=generator)
    limit = torch.finfo(dtype).max
    numbers = torch.cat([numbers_and_ties(dtype, generator), others.clamp(-limit, limit)])
    halves = [torch.float16, torch.bfloat16] if torch.finfo(dtype).bits == 8 else []  # they have numbers between those
    for own in (torch.float32, torch.float64, *halves):
        x = numbers.to(own)

        def probe(lib, x=x):
            return with_its_bits(lib.dtypes.round_to_float(x, exponent_bits, mantissa_bits, has_inf))

        got = rounded_by_student(observe, probe, own)
        assert torch.equal(got, x.to(dtype).to(own)), (
            f"a number in range, in {name(own)}, is rounded otherwise than by PyTorch: look at ties and subnormals"
        )


@number("2.3")
@weight(1)
@pytest.mark.parametrize("case", ["float16", "float32", "any widths"])
def test_round_to_float_rounds_float64_once(compare, observe, seed, case):
    """round_to_float: float64 is rounded once, to formats of any widths."""
    rng = random.Random(seed)

    def numbers_beside_ties(mantissa_bits: int, smallest: int, largest: int) -> list[float]:
        """Draw normal numbers, ties, and float64s so near to a tie that a detour through float32 lands on it."""
        values = []
        for _ in range(300):
            step = 2 * rng.randrange(2 ** min(mantissa_bits, 40)) + 1  # a tie: an odd number of half spacings
            tie = 1 + step / 2 ** (min(mantissa_bits, 40) + 1)
            value = rng.choice([rng.uniform(1, 2), tie, tie * (1 + 2.0**-45), tie * (1 - 2.0**-45)])
            values.append(rng.choice([1, -1]) * math.ldexp(value, rng.randint(smallest, largest)))
        return values

    def probe_pytorch(lib):
        widths = (5, 10) if case == "float16" else (8, 23)
        return with_its_bits(lib.dtypes.round_to_float(x, *widths))

    def probe_any(lib):
        return [lib.dtypes.round_to_float(values, *width) for values, width in zip(tensors, widths, strict=True)]

    if case == "any widths":
        # Normal numbers inside the range only: subnormals and overflow have rows of their own.
        widths = [(4, 2), (3, 4), (6, 9), (7, 1), (8, 10), (9, 14), (11, 20), (11, 52), (5, 30), (2, 5)]
        tensors = [
            torch.tensor(numbers_beside_ties(m, 2 - 2 ** (e - 1), 2 ** (e - 1) - 2), dtype=torch.float64)
            for e, m in widths
        ]
        compare("dtypes.round_to_float", probe_any, rtol=0)
    else:
        x = torch.tensor(numbers_beside_ties(10 if case == "float16" else 23, -14, 14), dtype=torch.float64)
        got = rounded_by_student(observe, probe_pytorch, torch.float64)
        if case == "float16":
            measured = torch.from_numpy(x.numpy().astype(np.float16).astype(np.float64))  # NumPy rounds once
        else:
            measured = x.to(torch.float32).double()
        assert torch.equal(got, measured), "a float64 is rounded otherwise than once, to nearest, ties to even"


@number("2.3")
@weight(1)
def test_round_to_float_overflows_and_keeps_the_rest(compare, seed):
    """round_to_float: overflows to infinity or saturates; keeps NaN, -0.0, shape, dtype and input; refuses others."""
    formats = [(5, 10, True), (5, 2, True), (3, 4, True), (4, 3, True), (8, 7, True)]
    formats += [(4, 3, False), (3, 2, False), (2, 3, False), (5, 2, False)]

    def probe_overflow(lib):
        values_of: dict[str, list[Tensor]] = {}
        signs_of: dict[str, list[Tensor]] = {}
        for exponent_bits, mantissa_bits, has_inf in formats:
            kind = "with infinity" if has_inf else "without infinity"
            bias = 2 ** (exponent_bits - 1) - 1
            power = 2.0**bias
            eps = 2.0**-mantissa_bits
            # From below the largest number to far above it, in both layouts, by quarters of its spacing.
            edges = [(2 - k * eps / 4) * power * scale for k in range(14) for scale in (1, 2)]
            values = [*edges, 3 * power, 4 * power, 5 * power, 1e38, math.inf, math.nan, 0.0]
            x = torch.tensor([*values, *(-value for value in values)], dtype=torch.float64)
            halves = [torch.float16, torch.bfloat16] if exponent_bits < 5 else []  # that hold even what overflows
            for dtype in (torch.float64, torch.float32, *halves):
                y = lib.dtypes.round_to_float(x.to(dtype), exponent_bits, mantissa_bits, has_inf)
                values_of.setdefault(f"in formats {kind}", []).append(y)
                signs_of.setdefault(f"the signs in formats {kind}", []).append(torch.signbit(y) & ~torch.isnan(y))
        return {**values_of, **signs_of}

    def probe_what_stays(lib):
        generator = torch.Generator().manual_seed(seed)
        # All of them numbers of the format, so that only what this probe is about can go wrong ...
        x = torch.randint(-7, 8, (3, 4, 5), generator=generator) / 4
        # ... but for these, which rounding would change if it were done in place.
        y = torch.rand(20, generator=generator)
        untouched = y.clone()
        inputs = [
            x[0],
            x.transpose(0, 2)[::2],
            x[:, :1].expand(3, 4, 5),
            x[0, 0, 0],
            x[:0],
            x.to(torch.float16),
            x.to(torch.bfloat16),
            x.to(torch.float64),
        ]
        before = [value.clone() for value in inputs]
        round_to_float = lib.dtypes.round_to_float
        results = [round_to_float(value, 4, 2) for value in inputs]
        round_to_float(y, 4, 2)
        unchanged = [torch.equal(y, untouched)] + [
            torch.equal(value, copy) for value, copy in zip(inputs, before, strict=True)
        ]
        # Nothing is to be rounded here, so that x itself has the right values.
        own = {dtype: x.to(dtype) for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}
        results += [round_to_float(value, *FORMATS[dtype]) for dtype, value in own.items()]
        # Numbers of x's own format, whose logarithm is rounded up to a whole number.
        nearly_powers = {
            dtype: torch.tensor([(1 - 2.0 ** -(FORMATS[dtype][1] + 1)) * 2.0**k for k in range(-12, 16)], dtype=dtype)
            for dtype in own
        }
        return {
            "of any shape, layout and dtype": results,
            "just below a power of two, in x's own format": [
                round_to_float(value, *FORMATS[dtype]) for dtype, value in nearly_powers.items()
            ],
            "of a tensor that requires grad": round_to_float(torch.nn.Parameter(x[0].clone()), 4, 2).detach(),
            "whether x is as it was": unchanged,
            "whether the result is a new tensor": [
                value.untyped_storage().data_ptr() != result.untyped_storage().data_ptr()
                for value, result in zip([*inputs, *own.values()], results, strict=True)
            ],
            "a tensor that is not of floating-point numbers": [
                refusal(lambda: round_to_float(torch.tensor([1, 2]), 4, 2), names=torch.int64),
                refusal(lambda: round_to_float(torch.tensor([True]), 4, 2), names=torch.bool),
                refusal(lambda: round_to_float(torch.tensor([1j, 2]), 4, 2), names=torch.complex64),
            ],
            "a width outside its range": [
                refusal(lambda: round_to_float(x, 1, 2), names=1),
                refusal(lambda: round_to_float(x, 13, 2), names=13),
                refusal(lambda: round_to_float(x, 4, 0), names=0),
                refusal(lambda: round_to_float(x, 4, 55), names=55),
                refusal(lambda: round_to_float(x, 11, 2, has_inf=False), names=11),
            ],
        }

    compare("dtypes.round_to_float", probe_overflow, rtol=0, finite=False)
    compare("dtypes.round_to_float", probe_what_stays, rtol=0)
