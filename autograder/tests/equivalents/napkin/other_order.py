import math
from fractions import Fraction
import torch
def _nonneg(*values):
    for v in values:
        if v < 0: raise ValueError(f"negative: {v}")
def training_flops(num_parameters, num_tokens):
    _nonneg(num_parameters, num_tokens)
    forward = 2.0 * num_tokens * num_parameters
    return forward + 2 * forward
def training_days(num_parameters, num_tokens, num_devices, flop_per_sec, mfu):
    if mfu <= 0 or mfu > 1: raise ValueError(f"{mfu=}")
    for v in (num_devices, flop_per_sec):
        if v <= 0: raise ValueError(f"not positive: {v!r}")
    _nonneg(num_parameters, num_tokens)
    seconds = num_parameters / num_devices * num_tokens * 6 / (flop_per_sec * mfu)
    return seconds / 86400
def _size(dtype):
    try:
        return torch.finfo(dtype).bits // 8
    except TypeError:
        return torch.iinfo(dtype).bits // 8
def bytes_per_parameter(parameter_dtype, gradient_dtype, state_dtype, num_states=2, master_dtype=None):
    if num_states < 0: raise ValueError("num_states", num_states)
    dtypes = [parameter_dtype, gradient_dtype] + [state_dtype] * num_states
    if master_dtype: dtypes.append(master_dtype)
    return sum(map(_size, dtypes))
def max_parameters(num_devices, bytes_per_device, bytes_per_parameter):
    _nonneg(num_devices, bytes_per_device)
    if bytes_per_parameter <= 0: raise ValueError(f"{bytes_per_parameter=}")
    return math.floor(num_devices * bytes_per_device / bytes_per_parameter)
