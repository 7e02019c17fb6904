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

    if mantissa_bits > 50 or exponent_bits == 11:
        return _slow(x, mantissa_bits, lim, has_inf)
    d = x.double()
    exponent = torch.frexp(d).exponent.clamp(min=math.frexp(lim.smallest_normal)[1]) - 1
    magic = torch.from_numpy(np.asarray(np.ldexp(1.5, (exponent - mantissa_bits + 52).numpy())))
    out = torch.copysign(((d.abs() + magic) - magic), d)
    out = torch.where(d.isfinite(), out, d)
    if has_inf:
        out[out.abs() > lim.max] *= math.inf
    else:
        out.clamp_(-lim.max, lim.max)
    return out.to(x.dtype)
def _slow(x, m, lim, has_inf):
    e = torch.frexp(x.double()).exponent.clamp(min=math.frexp(lim.smallest_normal)[1]) - 1
    v = [math.copysign(math.ldexp(round(math.ldexp(a, m - int(k))), int(k) - m), a) if math.isfinite(a) else a for a, k in zip(x.double().flatten().tolist(), e.flatten().tolist())]
    return torch.tensor(v, dtype=torch.float64).reshape(x.shape).to(x.dtype)
