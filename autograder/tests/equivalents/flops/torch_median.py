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

from time import perf_counter_ns
def deep_linear_flops(batch, dim, num_layers, input_requires_grad=False):
    _check(batch, dim, num_layers)
    layer, final = 2 * batch * dim**2, 2 * batch * dim
    fwd = num_layers * layer + final
    first = layer if num_layers else final
    bwd = 2 * fwd if input_requires_grad else 2 * fwd - first
    return StepFlops(fwd, bwd, fwd + bwd)
def count_flops(fn):
    total = 0
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs={}):
            nonlocal total
            out = func(*args, **(kwargs or {}))
            name = func._schema.name
            if name in ("aten::mm", "aten::bmm"):
                total += 2 * out.numel() * args[0].shape[-1]
            elif name in ("aten::addmm", "aten::baddbmm"):
                total += 2 * out.numel() * args[1].shape[-1]
            return out
    with Mode():
        fn()
    return total
def promised_flop_per_sec(device_name, dtype):
    lower = device_name.lower()
    if not ("pcie" in lower or "nvl" in lower):
        if "h100" in lower or "h200" in lower:
            if dtype in (torch.bfloat16, torch.float16): return 989.5e12
            if dtype in (torch.float8_e5m2, torch.float8_e4m3fn): return 1979e12
            if dtype == torch.float32: return 67e12
        elif "a100" in lower:
            if dtype in (torch.bfloat16, torch.float16): return 312e12
            if dtype is torch.float32: return 19.5e12
    raise ValueError(f"unknown: {device_name} {dtype}")
def mfu(num_flops, seconds, peak_flop_per_sec):
    if num_flops < 0 or seconds <= 0 or peak_flop_per_sec <= 0: raise ValueError((num_flops, seconds, peak_flop_per_sec))
    return num_flops / (seconds * peak_flop_per_sec)

from time import monotonic
def now(clock=monotonic):
    if torch.accelerator.is_available(): torch.accelerator.synchronize()
    return clock()
def time_matmul(x, w, warmup, repeats):
    if warmup < 0: raise ValueError(f"{warmup=}")
    if repeats <= 0: raise ValueError(f"{repeats=}")
    with torch.no_grad():
        for _ in range(warmup):
            torch.einsum("mk,kn->mn", x, w)
        times = []
        for _ in range(repeats):
            start = now()
            torch.einsum("mk,kn->mn", x, w)
            times.append(now() - start)
    return torch.tensor(times, dtype=torch.float64).quantile(0.5).item()
