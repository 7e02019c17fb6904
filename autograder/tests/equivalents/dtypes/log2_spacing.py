import math, torch
import numpy as np
from typing import NamedTuple
from fractions import Fraction
class FloatLimits(NamedTuple):
    max: float
    smallest_normal: float
    smallest_subnormal: float
    eps: float
    bits: int
def float_limits(exponent_bits, mantissa_bits, has_inf=True):
    if exponent_bits not in range(2, 12):
        raise ValueError(f"bad exponent_bits {exponent_bits}")
    if exponent_bits == 11 and not has_inf:
        raise ValueError("too wide: 11")
    if mantissa_bits < 1 or mantissa_bits > 52:
        raise ValueError("mantissa_bits", mantissa_bits)
    bias = (1 << (exponent_bits - 1)) - 1
    top = bias if has_inf else bias + 1
    mantissa = (1 << (mantissa_bits + 1)) - (1 if has_inf else 2)
    return FloatLimits(math.ldexp(mantissa, top - mantissa_bits), math.ldexp(1.0, 1 - bias), math.ldexp(1.0, 1 - bias - mantissa_bits), 1 / 2**mantissa_bits, exponent_bits + mantissa_bits + 1)
FORMATS = {torch.float64: (11, 52), torch.float32: (8, 23), torch.float16: (5, 10), torch.bfloat16: (8, 7), torch.float8_e5m2: (5, 2), torch.float8_e4m3fn: (4, 3, False)}

def underflows_to_zero(value, dtype):
    try:
        f = FORMATS[dtype]
    except KeyError:
        raise ValueError(f"unsupported dtype {dtype}") from None
    if value == 0 or math.isnan(value) or math.isinf(value): return False
    return Fraction(abs(value)) * 2 <= Fraction(float_limits(*f).smallest_subnormal)

def round_to_float(x, exponent_bits, mantissa_bits, has_inf=True):
    if x.dtype not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"not floating: {x.dtype}")
    lim = float_limits(exponent_bits, mantissa_bits, has_inf)

    d = x.double()
    bias = 2 ** (exponent_bits - 1) - 1
    e = torch.where(d == 0, 1.0 - bias, d.abs().log2().floor()).clamp(min=1 - bias)
    e = torch.nan_to_num(e, nan=0.0, posinf=0.0)
    e = torch.where(torch.exp2(e) > d.abs(), e - 1, e).clamp(min=1 - bias)  # log2 rounds up just below a power of two
    h = torch.floor((e - mantissa_bits) / 2)
    spacing_a, spacing_b = torch.exp2(h), torch.exp2(e - mantissa_bits - h)
    out = torch.round(d / spacing_a / spacing_b) * spacing_a * spacing_b
    limit = torch.tensor(lim.max, dtype=torch.float64)
    out = torch.where(out.abs() > limit, torch.copysign(torch.tensor(math.inf if has_inf else lim.max, dtype=torch.float64), d), out)
    return out.to(x.dtype)
