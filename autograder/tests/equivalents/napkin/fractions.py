from fractions import Fraction
from math import prod
import torch
def training_flops(num_parameters, num_tokens):
    if min(num_parameters, num_tokens) < 0: raise ValueError(f"counts must be >= 0: {num_parameters}, {num_tokens}")
    return float(prod((6, num_parameters, num_tokens)))
def training_days(num_parameters, num_tokens, num_devices, flop_per_sec, mfu):
    if not (0 < mfu <= 1 and num_devices > 0 and flop_per_sec > 0): raise ValueError((num_devices, flop_per_sec, mfu))
    if min(num_parameters, num_tokens) < 0: raise ValueError(f"counts must be >= 0: {num_parameters}, {num_tokens}")
    return float(6 * Fraction(num_parameters) * Fraction(num_tokens) / (Fraction(num_devices) * Fraction(flop_per_sec) * Fraction(mfu)) / 86400)
def bytes_per_parameter(parameter_dtype, gradient_dtype, state_dtype, num_states=2, master_dtype=None):
    if num_states < 0: raise ValueError(num_states)
    total = parameter_dtype.itemsize
    total += gradient_dtype.itemsize
    for _ in range(num_states): total += state_dtype.itemsize
    if master_dtype is not None: total += master_dtype.itemsize
    return total
def max_parameters(num_devices, bytes_per_device, bytes_per_parameter):
    if num_devices < 0 or bytes_per_device < 0 or bytes_per_parameter <= 0: raise ValueError(f"{num_devices} {bytes_per_device} {bytes_per_parameter}")
    return int(Fraction(num_devices) * Fraction(bytes_per_device) / Fraction(bytes_per_parameter))
