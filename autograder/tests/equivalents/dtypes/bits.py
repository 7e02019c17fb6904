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

    d = x.double().contiguous()
    bits = d.view(torch.int64)
    sign = bits & (-1 << 63)
    mag = bits & ((1 << 63) - 1)
    e = mag >> 52
    bias = 2 ** (exponent_bits - 1) - 1
    emin = 1 - bias + 1023
    # significand as integer and its exponent
    hidden = torch.where(e > 0, 1 << 52, 0)
    sig = (mag & ((1 << 52) - 1)) + hidden
    ee = e.clamp(min=1)
    drop = 52 - mantissa_bits + (emin - ee).clamp(min=0)
    drop = drop.clamp(max=54)
    one = torch.ones_like(sig)
    half = torch.where(drop > 0, one << (drop - 1).clamp(min=0), 0)
    q = sig >> drop
    r = sig - (q << drop)
    up = (drop > 0) & ((r > half) | ((r == half) & (q & 1 == 1)))
    q = q + up
    # q * 2^(ee - 1023 - 52 + drop), exactly
    k = ee - 1075 + drop
    out = q.double()
    pw = lambda n: ((n + 1023) << 52).view(torch.float64)
    a = k // 2
    out = out * pw(a) * pw(k - a)
    out = torch.where(d.isfinite(), out, d.abs())
    over = out > lim.max
    out = torch.where(over, math.inf if has_inf else lim.max, out)
    out = (out.view(torch.int64) | sign).view(torch.float64)
    return out.to(x.dtype)
