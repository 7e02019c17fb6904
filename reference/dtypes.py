"""What a float can hold: the limits of a format, and rounding to it.

A float of 1 + E + M bits has a sign, an exponent field e of E bits and a fraction field f of M bits. With
bias = 2^(E-1) - 1 it stands for

    ± (1 + f / 2^M) · 2^(e - bias)      if e > 0: normal numbers, whose leading 1 is not stored
    ± (    f / 2^M) · 2^(1 - bias)      if e = 0: subnormal numbers, and zero

In the IEEE formats the largest e is set aside: f = 0 there is infinity, all else NaN. float8_e4m3fn has no infinity
("fn": finite, and NaN) and uses the largest e for numbers too; only the pattern whose bits are all ones is NaN.

Source: IEEE 754-2019, section 3.4; Micikevicius et al., "FP8 Formats for Deep Learning" (2022), table 1.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

# (exponent_bits, mantissa_bits, has_inf) of PyTorch's formats.
FLOAT_FORMATS: dict[torch.dtype, tuple[int, int, bool]] = {
    torch.float64: (11, 52, True),
    torch.float32: (8, 23, True),
    torch.float16: (5, 10, True),
    torch.bfloat16: (8, 7, True),
    torch.float8_e5m2: (5, 2, True),
    torch.float8_e4m3fn: (4, 3, False),
}


@dataclass(frozen=True)
class FloatLimits:
    """The landmarks of a float format, exact."""

    max: float  # the largest finite number
    smallest_normal: float  # the smallest positive number with all its bits of precision
    smallest_subnormal: float  # the smallest positive number
    eps: float  # from 1 to the next larger number
    bits: int  # the sign's bit included


def float_limits(exponent_bits: int, mantissa_bits: int, has_inf: bool = True) -> FloatLimits:
    """Compute the limits of a float format from the widths of its fields.

    Args:
        exponent_bits: E, from 2 to 11 (float64's), so that each limit is a Python float.
        mantissa_bits: M, the stored bits of the fraction, from 1 to 52 (float64's).
        has_inf: True for formats laid out as IEEE's; False for those that give up infinity, as float8_e4m3fn does (this
            module's docstring says which patterns are then numbers). Without infinity `exponent_bits` is at most 10:
            the largest number of 11 would be too large for a Python float.

    Returns:
        The limits: `max`, `smallest_normal`, `smallest_subnormal` and `eps` as floats, `bits` as an int. For PyTorch's
        own formats they agree with `torch.finfo`.

    Raises:
        ValueError: naming the value, if a width is outside its range.

    Example:
        >>> float_limits(4, 3)
        FloatLimits(max=240.0, smallest_normal=0.015625, smallest_subnormal=0.001953125, eps=0.125, bits=8)
        >>> float_limits(4, 3, has_inf=False).max
        448.0

    Source: IEEE 754-2019, table 3.5; "FP8 Formats for Deep Learning", table 1.
    """
    max_exponent_bits = 11 if has_inf else 10
    if not 2 <= exponent_bits <= max_exponent_bits:
        raise ValueError(f"exponent_bits must be from 2 to {max_exponent_bits}, got {exponent_bits}")
    if not 1 <= mantissa_bits <= 52:
        raise ValueError(f"mantissa_bits must be from 1 to 52, got {mantissa_bits}")
    bias = 2 ** (exponent_bits - 1) - 1
    eps = 2.0**-mantissa_bits
    smallest_normal = 2.0 ** (1 - bias)
    if has_inf:  # the largest exponent field but one, all fraction bits set: (1 + (1 - eps)) · 2^bias
        largest = (2 - eps) * 2.0**bias
    else:  # the largest exponent field, all fraction bits set but the last, since all of them set is NaN
        largest = (2 - 2 * eps) * 2.0 ** (bias + 1)
    return FloatLimits(
        max=largest,
        smallest_normal=smallest_normal,
        smallest_subnormal=eps * smallest_normal,
        eps=eps,
        bits=1 + exponent_bits + mantissa_bits,
    )


def underflows_to_zero(value: float, dtype: torch.dtype) -> bool:
    """Tell whether a number that is not 0 becomes 0 when it is rounded to `dtype`.

    Args:
        value: any Python float, which is a float64. It is rounded once, to nearest, ties to even. (PyTorch rounds
            twice on the way from float64 to a 16-bit or 8-bit format, through float32, and is wrong for a few numbers.)
        dtype: one of the formats in `FLOAT_FORMATS`.

    Returns:
        True if `value` is lost. 0.0 and -0.0 are not lost, nor are infinities and NaN.

    Raises:
        ValueError: naming the dtype, if it is not in `FLOAT_FORMATS`.

    Example:
        >>> underflows_to_zero(1e-8, torch.float16), underflows_to_zero(1e-8, torch.bfloat16)
        (True, False)

    Source: IEEE 754-2019, section 4.3.1 (roundTiesToEven).
    """
    if dtype not in FLOAT_FORMATS:
        raise ValueError(f"dtype must be one of FLOAT_FORMATS, got {dtype}")
    limits = float_limits(*FLOAT_FORMATS[dtype])
    # Halfway between 0 and the smallest subnormal is a tie, and 0 is the even one of the two. (float64's own smallest
    # subnormal halved is 0.0 in Python, so that nothing lies in between: a float64 never underflows in float64.)
    return 0 < abs(value) <= limits.smallest_subnormal / 2


def round_to_float(
    x: Float[Tensor, "..."], exponent_bits: int, mantissa_bits: int, has_inf: bool = True
) -> Float[Tensor, "..."]:
    """Round each element to the nearest number of a float format, without leaving the tensor's own dtype.

    - To nearest, ties to even: of two numbers equally near, the one whose last fraction bit is 0.
    - Subnormal numbers of the format are kept; what is nearer to 0 becomes 0 and keeps its sign, and -0.0 stays -0.0.
    - Overflow, that is rounding beyond the format's `max` as if there were larger exponents, gives ±inf where the
      format has it. Where it has not, all that is too large becomes ±max, ±inf included.
    - NaN stays NaN.

    Args:
        x: a tensor of any shape, of dtype float16, bfloat16, float32 or float64, on the CPU; it is not modified. Its
            dtype can hold the results. Each element is rounded once: for float32 tensors the result is bit for bit that
            of `x.to(dtype).to(torch.float32)`, as long as x is in the format's range; for float64 tensors PyTorch
            rounds twice and can differ. x may require grad, as parameters do; whether the result does is not specified.
            (PyTorch's 8-bit dtypes, as x's own, may be taken or refused.)
        exponent_bits: as in `float_limits`.
        mantissa_bits: as in `float_limits`.
        has_inf: as in `float_limits`.

    Returns:
        A new tensor of x's shape and dtype, also where nothing is to be rounded: never x itself, nor a view of it.

    Raises:
        ValueError: naming the value, if a width is outside its range, or the dtype, if x is not of a
            floating-point one.

    Example:
        >>> x = torch.tensor([0.1, 2049.0, 70000.0])
        >>> round_to_float(x, exponent_bits=5, mantissa_bits=10).tolist()
        [0.0999755859375, 2048.0, inf]
        >>> round_to_float(x, exponent_bits=4, mantissa_bits=3, has_inf=False).tolist()
        [0.1015625, 448.0, 448.0]

    Source: IEEE 754-2019, section 4.3.1 (roundTiesToEven) and 7.4 (overflow).
    """
    limits = float_limits(exponent_bits, mantissa_bits, has_inf)
    if not x.is_floating_point():
        raise ValueError(f"x must have a floating-point dtype, got {x.dtype}")
    wide = x.to(torch.float64)
    significand, exponent = torch.frexp(wide)  # x = significand · 2^exponent, 0.5 <= |significand| < 1
    # A normal number keeps 1 + mantissa_bits significant bits. Below smallest_normal the spacing no longer shrinks, so
    # each halving of x costs one of them. At 0 bits only the smallest subnormal is left to round to, at -1 not even
    # that.
    halvings = (math.frexp(limits.smallest_normal)[1] - exponent).clamp(min=0)
    kept_bits = (1 + mantissa_bits - halvings).clamp(min=-1)
    multiples = torch.round(significand * _power_of_two(kept_bits))  # of the spacing, 2^(exponent - kept_bits)
    half = torch.div(exponent - kept_bits, 2, rounding_mode="floor")  # in two steps: 2^-1074 is no normal float64
    rounded = multiples * _power_of_two(half) * _power_of_two(exponent - kept_bits - half)
    rounded = torch.where(wide.isfinite(), rounded, wide)
    if has_inf:
        rounded = torch.where(rounded.abs() > limits.max, rounded.sign() * math.inf, rounded)
    else:
        rounded = rounded.clamp(-limits.max, limits.max)
    return rounded.to(x.dtype)


def _power_of_two(exponent: Tensor) -> Tensor:
    """Return 2^exponent in float64, exactly, from -1022 to 1023: a fraction field of 0 beside the biased exponent."""
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)
