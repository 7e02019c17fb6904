import re, math, operator
from functools import reduce
from typing import NamedTuple
import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
class StepFlops(NamedTuple):
    forward: int
    backward: int
    total: int
def _check(*v):
    if any(i < 0 for i in v): raise ValueError(f"negative size in {v}")
def matmul_flops(m, k, n):
    _check(m, k, n)
    return m * n * (k + k)
def einsum_flops(pattern, *shapes):
    match = re.fullmatch(r"\s*([\w\s]*),([\w\s]*)->([\w\s]*)", pattern)
    if not match or len(shapes) != 2: raise ValueError(f"bad pattern {pattern} for {shapes}")
    a, b, out = (g.split() for g in match.groups())
    sizes = {}
    for names, shape in ((a, shapes[0]), (b, shapes[1])):
        if len(names) != len(shape) or len(set(names)) < len(names): raise ValueError(f"{pattern}: {names} does not fit {shape}")
        _check(*shape)
        for n, s in zip(names, shape):
            if n in sizes and sizes[n] != s: raise ValueError(f"{n}: {s} against {sizes[n]}")
            sizes[n] = s
    unknown = set(out) - set(sizes)
    if unknown: raise ValueError(f"unknown {unknown}")
    if len(set(out)) < len(out): raise ValueError(f"repeated in {out}")
    flops = reduce(operator.mul, sizes.values(), 1)
    return flops if set(out) == set(sizes) else flops * 2
def elementwise_flops(shape):
    _check(*shape)
    n = 1
    for s in shape: n *= s
    return n
def training_step_flops(num_tokens, num_parameters):
    _check(num_tokens, num_parameters)
    return 2 * num_tokens * num_parameters + 4 * num_tokens * num_parameters

import time
def deep_linear_flops(batch, dim, num_layers, input_requires_grad=False):
    _check(batch, dim, num_layers)
    forward = backward = 0
    wanted = input_requires_grad
    for width in [dim] * num_layers + [1]:
        one = matmul_flops(batch, dim, width)
        forward += one
        backward += one
        if wanted: backward += one
        wanted = True
    return StepFlops(forward=forward, backward=backward, total=backward + forward)
_ops = torch.ops.aten
def _matmul(a, b): return 2 * a.size(-2) * a.size(-1) * b.size(-1) * (a.size(0) if a.ndim == 3 else 1)
_RULES = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}
class Counter(TorchDispatchMode):
    flops = 0
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if name in _RULES:
            self.flops += _matmul(*args[_RULES[name]:][:2])
        return func(*args, **kwargs) if kwargs else func(*args)
def count_flops(fn):
    counter = Counter()
    counter.__enter__()
    try:
        fn()
    finally:
        counter.__exit__(None, None, None)
    return counter.flops
PEAKS = {("A100", torch.float32): 19.5e12, ("A100", torch.float16): 312e12, ("A100", torch.bfloat16): 312e12}
for _d, _p in ((torch.float32, 67.0e12), (torch.float16, 1979e12 / 2), (torch.bfloat16, 1979e12 / 2), (torch.float8_e5m2, 3958e12 / 2), (torch.float8_e4m3fn, 3958e12 / 2)):
    PEAKS["H100", _d] = PEAKS["H200", _d] = _p
def promised_flop_per_sec(device_name, dtype):
    if re.search("pcie|nvl", device_name, re.I) is None:
        for (name, d), peak in PEAKS.items():
            if name in device_name and d == dtype: return peak
    raise ValueError(f"no peak for {device_name} in {dtype}")
def mfu(num_flops, seconds, peak_flop_per_sec):
    if num_flops < 0: raise ValueError(f"num_flops {num_flops}")
    if seconds <= 0: raise ValueError(f"seconds {seconds}")
    if peak_flop_per_sec <= 0: raise ValueError(f"peak {peak_flop_per_sec}")
    achieved = num_flops / seconds
    return achieved / peak_flop_per_sec
def time_matmul(x, w, warmup, repeats):
    if warmup < 0: raise ValueError(warmup)
    if repeats < 1: raise ValueError(repeats)
    for _ in range(warmup): x.mm(w)
    durations = np.empty(repeats)
    for i in range(repeats):
        if torch.accelerator.is_available(): torch.accelerator.synchronize()
        start = time.time()
        x.mm(w)
        if torch.accelerator.is_available(): torch.accelerator.synchronize()
        durations[i] = time.time() - start
    return float(np.median(durations))
