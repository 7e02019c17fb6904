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
    raise NotImplementedError("dtypes.float_limits")


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
    raise NotImplementedError("dtypes.underflows_to_zero")


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
    raise NotImplementedError("dtypes.round_to_float")
