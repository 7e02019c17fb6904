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
    if dtype not in FORMATS: raise ValueError(str(dtype))
    rounded = round_to_float(torch.tensor([value], dtype=torch.float64), *FORMATS[dtype]).item()
    return value != 0.0 and rounded == 0.0

def _one(v, m, lim, has_inf):
    if v != v or v == 0: return v
    if math.isinf(v): return v if has_inf else math.copysign(lim.max, v)
    a = Fraction(abs(v))
    e = max(math.frexp(v)[1] - 1, math.frexp(lim.smallest_normal)[1] - 1)
    spacing = Fraction(2) ** (e - m)
    r = round(a / spacing) * spacing
    r = (math.inf if has_inf else lim.max) if r > Fraction(lim.max) else float(r)
    return math.copysign(r, v)
def round_to_float(x, exponent_bits, mantissa_bits, has_inf=True):
    if x.dtype not in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"not floating: {x.dtype}")
    lim = float_limits(exponent_bits, mantissa_bits, has_inf)

    flat = [_one(v, mantissa_bits, lim, has_inf) for v in x.detach().flatten().tolist()]
    return torch.tensor(flat, dtype=torch.float64).reshape(x.shape).to(x.dtype)
