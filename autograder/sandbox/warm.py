"""What is done once, before any child is forked: importing PyTorch, and running what every child would else run first.

The workload is public: kinds of operations that the assignment is about. It knows no test and no solution. One thread only:
a child of a process that ever ran an operation on two threads hangs in its first one that does. And forward only: the first
backward pass counts the devices, which starts CUDA where there is one, and makes a thread for each. A child of a process that has
done so cannot use them. (In a child the first backward pass takes 0.2 ms more for it.)
"""

import ctypes
import gc
import importlib
import io
import sys
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


def warm() -> None:
    """Make this process a good parent for children that run PyTorch code."""
    torch.set_num_threads(1)
    spare_dynamo()
    for name in ("cloudpickle", "einops", "jaxtyping", "numpy", "dataclasses", "random", "math", "tempfile"):
        importlib.import_module(name)
    _workload()
    gc.collect()
    _fill_holes()
    gc.freeze()  # a collection in a child would touch, and so copy, every page of the parent's objects


class _Arena(ctypes.Structure):
    """What glibc says of its heap, in bytes: struct mallinfo2."""

    _fields_ = [(f"field{number}", ctypes.c_size_t) for number in range(9)] + [("keepcost", ctypes.c_size_t)]


def _fill_holes() -> None:
    """Take, for good, what is free below the heap's end, so that a child's new objects lie side by side at the end.

    In holes between old objects each would bring a copy of the page around it: a tenth of a child's page faults.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):  # glibc before 2.33, or another library
        return
    libc.mallinfo2.restype, libc.sbrk.restype, libc.malloc.restype = _Arena, ctypes.c_void_p, ctypes.c_void_p
    libc.sbrk.argtypes, libc.malloc.argtypes, libc.free.argtypes = (
        [ctypes.c_ssize_t],
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    last = libc.sbrk(0) - libc.mallinfo2().keepcost
    for size in (*(1 << power for power in range(16, 10, -1)), *range(1008, 23, -16)):
        while (place := libc.malloc(size)) and place < last:
            pass
        libc.free(place)


class _Understudy(types.ModuleType):
    """Stands in for `torch._dynamo` until something of it is needed that serves more than `torch.compile`.

    `torch.optim` imports the compiler at its first use, 1.5 s and 80 MB, only to mark functions that it must not compile.
    Without a compiler the marks mean nothing. Whatever else is asked of the module brings the real one on stage.
    """

    def __init__(self) -> None:
        super().__init__("torch._dynamo")

    @staticmethod
    def disable(fn: Any = None, *args: object, **kwargs: object) -> Any:
        return fn if fn is not None else lambda decorated: decorated

    @staticmethod
    def graph_break(*args: object, **kwargs: object) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # inspect asks every module for its __file__
            raise AttributeError(name)
        if sys.modules.get("torch._dynamo") is self:
            del sys.modules["torch._dynamo"]
        real = importlib.import_module("torch._dynamo")
        return getattr(real, name)


def spare_dynamo() -> None:
    """Keep PyTorch from importing its compiler where it only marks what must not be compiled."""
    if "torch._dynamo" not in sys.modules:
        sys.modules["torch._dynamo"] = understudy = _Understudy()
        torch._dynamo = understudy


class _Optimizer(torch.optim.Optimizer):
    def __init__(self, params: Iterable[Tensor]) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                state["v"].mul_(0.9).addcmul_(p.grad, p.grad, value=0.1)
                p.mul_(0.9).addcdiv_(state["m"], state["v"].sqrt().add_(1e-8), value=-0.1)
                p -= 0.1 * state["m"] / (state["v"].sqrt() + 1e-8)


class _Mode(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _workload() -> None:
    import beartype
    import einops
    import numpy as np
    from jaxtyping import Bool, Float, Int, jaxtyped

    for kind, axes in ((Float, "batch dim"), (Float, "... query d"), (Int, "batch sequence"), (Bool, "query key")):
        kind[Tensor, axes]

    @jaxtyped(typechecker=beartype.beartype)
    def checked(t: Float[Tensor, "a b"]) -> Float[Tensor, "b a"]:
        return t.T

    checked(torch.zeros(2, 3))
    np.random.seed(0)  # NumPy imports its generators at their first use
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(4, 8, generator=generator, dtype=dtype, requires_grad=True)
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).to(dtype)
        optimizer = _Optimizer(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            (model(x).squeeze(-1) - 1).pow(2).mean() + nn.functional.mse_loss(x @ x.T, (x @ x.T).detach())
            for p in model.parameters():
                p.grad = torch.ones_like(p)
            optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        scores = einops.einsum(x, x, "q d, k d -> q k").masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)
        einops.rearrange(scores.softmax(-1), "q (a b) -> a q b", a=2).sum()
        einops.reduce(x, "a b -> a", "mean")
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        torch.cat([x.flatten(), x.T.contiguous().view(-1)]).double().abs().max().item()
    nn.init.trunc_normal_(torch.empty(8, 8), std=0.1, a=-0.3, b=0.3)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        (x @ x.transpose(-1, -2)).relu().sum()
    with _Mode():
        weight = torch.randn(4, 4, requires_grad=True)
        (torch.bmm(weight[None], weight[None]) + torch.addmm(weight, weight, weight)).sum()
    with torch.autocast("cpu", torch.bfloat16):
        nn.functional.linear(torch.ones(2, 4), weight).float().sum()
    torch.as_strided(torch.zeros(9), (3, 3), (1, 3)).unfold(-1, 2, 1).untyped_storage().nbytes()
    torch.ones(2, 3, device="meta").tril().t().reshape(6)  # the first such operation imports 500 modules: 0.3 s
    torch.tensor([1.0, 2.0]).to(torch.float16).to(torch.bfloat16).equal(torch.zeros(2))
    torch.randint(0, 9, (4,), generator=generator)
    torch.from_numpy(np.arange(9, dtype=np.uint16).astype(np.int64))
    repr(x)
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "rng": generator.get_state()}, buffer)
    buffer.seek(0)
    torch.load(buffer, weights_only=True)
    import cloudpickle

    from autograder.probing import inspecting  # probes refer to it by name, and children can open no file of ours
    from autograder.sandbox import codec

    cloudpickle.loads(cloudpickle.dumps(lambda lib: x))
    inspecting(["model"], {"model.py": b"import torch\n"})(None)
    codec.loads(b"".join(codec.encode((x.detach(), 1, 2.0, "a", [3]), 0)))
    try:
        raise ValueError("as a student's code does")
    except ValueError as error:
        codec.encode_error(error, 0)
