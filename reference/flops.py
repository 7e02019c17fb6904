"""Where the time goes: FLOPs predicted by formulas, counted while they run, and divided by seconds.

One multiplication or one addition of floats is one FLOP. FLOPs (with a small s) are an amount of work; FLOP/s is a
speed.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class StepFlops:
    """FLOPs of the two halves of a training step."""

    forward: int
    backward: int
    total: int


def matmul_flops(m: int, k: int, n: int) -> int:
    """Count the FLOPs of a matrix product (m, k) @ (k, n): 2 · m · k · n.

    Each of the m · k · n triples costs one multiplication and one addition.

    Args:
        m: rows of the left matrix; 0 or more.
        k: columns of the left matrix and rows of the right one; 0 or more.
        n: columns of the right matrix; 0 or more.

    Returns:
        FLOPs, an int, exact however large.

    Raises:
        ValueError: naming the size, if one is negative.

    Example:
        >>> matmul_flops(1024, 256, 64)
        33554432

    Source: Golub and Van Loan, "Matrix Computations", section 1.1.15.
    """
    _require_sizes(m=m, k=k, n=n)
    return 2 * m * k * n


def einsum_flops(pattern: str, *shapes: Sequence[int]) -> int:
    """Count the FLOPs of a product of two tensors written as an einsum over named axes.

    There is one multiplication for each combination of all axes, so their sizes are multiplied, each axis once. If any
    axis is summed over (it is missing on the right of the arrow), each multiplication is followed by an addition, which
    doubles the count.

    Args:
        pattern: as einops writes it, "batch query d, batch key d -> batch query key": axis names are words, as names in
            Python are, separated by spaces; around the comma and the arrow there may be spaces or none. Two operands,
            of which one without axes is a single number; one arrow; no `...`, no parentheses, and no axis twice in one
            operand or in the output.
        *shapes: the shapes of the two operands, sizes 0 or more.

    Returns:
        FLOPs, an int.

    Raises:
        ValueError: naming the axis, if it has two different sizes, stands on the right of the arrow only, or stands
            twice in one place; naming the size, if one is negative; naming the pattern, if it is written otherwise or
            does not fit the number of shapes or of their axes.

    Example:
        >>> einsum_flops("batch query d, batch key d -> batch query key", (4, 10, 64), (4, 20, 64))
        102400
        >>> einsum_flops("i, j -> i j", (3,), (5,))
        15

    Source: Smith and Gray, "opt_einsum" (2018), whose FLOP count this is. PyTorch may execute more or less where an
    axis of size 1 is summed over, or one that is in only one operand.
    """
    left, arrow, right = pattern.partition("->")
    operands = [operand.split() for operand in left.split(",")]
    output = right.split()
    if not arrow or len(operands) != 2:
        raise ValueError(f"the pattern must be '<axes>, <axes> -> <axes>', got {pattern!r}")
    if len(shapes) != 2:
        raise ValueError(f"{pattern!r} takes 2 shapes, got {len(shapes)}")
    for axes in (*operands, output):
        for axis in axes:
            if not axis.isidentifier():
                raise ValueError(f"an axis must be called by a word, got {axis!r} in {pattern!r}")
            if axes.count(axis) > 1:
                raise ValueError(f"axis {axis!r} stands more than once in {' '.join(axes)!r}")
    sizes: dict[str, int] = {}
    for axes, shape in zip(operands, shapes, strict=True):
        if len(axes) != len(shape):
            raise ValueError(f"{pattern!r} gives an operand {len(axes)} axes, but its shape is {tuple(shape)}")
        for axis, size in zip(axes, shape, strict=True):
            _require_sizes(**{axis: size})
            if sizes.setdefault(axis, size) != size:
                raise ValueError(f"axis {axis!r} has sizes {sizes[axis]} and {size}")
    for axis in output:
        if axis not in sizes:
            raise ValueError(f"axis {axis!r} of the output is in no operand")
    multiplications = math.prod(sizes.values())
    summed = set(sizes) - set(output)
    return 2 * multiplications if summed else multiplications


def elementwise_flops(shape: Sequence[int]) -> int:
    """Count the FLOPs of an elementwise operation, such as adding two tensors of this shape: one an element.

    Args:
        shape: the shape of the result, sizes 0 or more; `()` is a single number.

    Returns:
        FLOPs, an int.

    Raises:
        ValueError: naming the size, if one is negative.

    Example:
        >>> elementwise_flops((1024, 256))
        262144

    Source: a convention. exp or a division costs the hardware more than an addition, but next to matrix products none
    of them counts.
    """
    for size in shape:
        _require_sizes(size=size)
    return math.prod(shape)


def deep_linear_flops(batch: int, dim: int, num_layers: int, input_requires_grad: bool = False) -> StepFlops:
    """Count the FLOPs of the matrix products in one training step of the deep linear model.

    The model takes x of shape (batch, dim) through `num_layers` products `x @ w` with weights of shape (dim, dim), and
    through a last one with a weight of shape (dim, 1). All weights require gradients. Nothing else is counted: no
    elementwise operation, no loss, no optimizer.

    In the backward pass each forward product `x @ w` gives rise to one product for the gradient of w, and to one more
    for the gradient of x. Each is as large as the forward product. But autograd computes only the gradients that are
    wanted.

    Args:
        batch: rows of x; 0 or more.
        dim: columns of x; 0 or more.
        num_layers: square layers before the last one; 0 or more.
        input_requires_grad: whether the model's input x is a tensor whose gradient is wanted. Data usually is not.

    Returns:
        FLOPs of the forward pass, of the backward pass, and of both together, ints: what PyTorch's FlopCounterMode
        counts.

    Raises:
        ValueError: naming the value, if a count is negative.

    Example:
        >>> deep_linear_flops(batch=2, dim=3, num_layers=1)
        StepFlops(forward=48, backward=60, total=108)

    Source: the chain rule for Y = XW: dW = Xᵀ dY and dX = dY Wᵀ.
    """
    _require_sizes(batch=batch, dim=dim, num_layers=num_layers)
    products = [matmul_flops(batch, dim, dim)] * num_layers + [matmul_flops(batch, dim, 1)]
    forward = sum(products)
    # Every weight wants a gradient. Every input does too, as a step on the way to earlier weights, but for the first
    # product's: that is the data.
    weight_gradients = sum(products)
    input_gradients = sum(products if input_requires_grad else products[1:])
    backward = weight_gradients + input_gradients
    return StepFlops(forward=forward, backward=backward, total=forward + backward)


def training_step_flops(num_tokens: int, num_parameters: int) -> int:
    """Estimate the FLOPs of one training step from nothing but two counts: 6 · B · N.

    2 · B · N for the forward pass and twice that for the backward pass. This is exact if every parameter is in a matrix
    that multiplies every token once, and if the gradient of the model's input is computed too. It is an approximation
    otherwise: it is too high by the first layer's input gradient, which nobody wants, and by embeddings, which are
    looked up and not multiplied; it is too low by products between activations, such as attention's, and by everything
    elementwise. In a large model with short sequences these are small.

    Args:
        num_tokens: B, the tokens (or examples) in the step's batch; 0 or more.
        num_parameters: N; 0 or more.

    Returns:
        FLOPs, an int.

    Raises:
        ValueError: naming the value, if a count is negative.

    Example:
        >>> training_step_flops(num_tokens=1024, num_parameters=65_536)
        402653184

    Source: Kaplan et al., "Scaling Laws for Neural Language Models" (2020), section 2.1.
    """
    _require_sizes(num_tokens=num_tokens, num_parameters=num_parameters)
    return 6 * num_tokens * num_parameters


def count_flops(fn: Callable[[], object]) -> int:
    """Count the FLOPs of the matrix products that PyTorch executes while `fn()` runs.

    Whatever a program calls (`@`, `nn.Linear`, `einsum`, `backward()`), PyTorch in the end executes a few operators of
    its library `torch.ops.aten`, and a `TorchDispatchMode` sees each of them go by. Four of them are counted, and
    nothing else. Each has several overloads, which begin with the same arguments and all count:
    `torch.mm(x, w, out=y)` calls one, `torch.mm(x, w, out_dtype=torch.float32)` another.

    - `mm(x, w)`: (m, k) @ (k, n), and `addmm(bias, x, w)`, whose product is counted and whose addition is not;
    - `bmm(x, w)`: (b, m, k) @ (b, k, n), b products at once, and `baddbmm(bias, x, w)` likewise.

    That is FlopCounterMode's convention. PyTorch's counter is not to be used: this function is how it works.

    Args:
        fn: takes no argument; called once, its result is dropped. What it raises goes through, and ends the counting.
            (Under `torch.inference_mode()` operators may arrive undivided: `fn` is not called there.)

    Returns:
        FLOPs, an int.

    Example:
        >>> x, w = torch.ones(2, 3), torch.ones(3, 4, requires_grad=True)
        >>> count_flops(lambda: (x @ w).sum().backward())
        96

    Source: `torch.utils._python_dispatch.TorchDispatchMode`, whose docstring shows how a mode is written.
    """
    counter = _MatmulCounter()
    with counter:
        fn()
    return counter.flops


class _MatmulCounter(TorchDispatchMode):
    """Adds up the FLOPs of the matrix products that are dispatched while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count the operator if it is a matrix product, and let it run."""
        operator = func.overloadpacket  # aten.mm, whichever overload of it was called
        if operator in (torch.ops.aten.mm, torch.ops.aten.bmm):
            left, right = args[0], args[1]
        elif operator in (torch.ops.aten.addmm, torch.ops.aten.baddbmm):
            left, right = args[1], args[2]
        else:
            return func(*args, **(kwargs or {}))
        *batch, m, k = left.shape
        n = right.shape[-1]
        self.flops += math.prod(batch) * matmul_flops(m, k, n)
        return func(*args, **(kwargs or {}))


def promised_flop_per_sec(device_name: str, dtype: torch.dtype) -> float:
    """Look up the dense peak speed of a GPU's matrix products, which its data sheet promises.

    NVIDIA prints these figures, in FLOP/s; those with a * are "with sparsity", for matrices half of whose entries are
    zeros in a fixed pattern. Ordinary dense matrices get half of a figure with a *.

    | `device_name` contains | float32 | float16, bfloat16 | float8_e4m3fn, float8_e5m2 |
    |---|---|---|---|
    | "A100" | 19.5e12 | 624e12* | none |
    | "H100" or "H200" | 67e12 | 1979e12* | 3958e12* |

    The figures are those of the SXM modules. A name that contains "PCIe" or "NVL", in upper or lower case, is another,
    slower card (PyTorch says "NVIDIA A100-PCIE-40GB", "NVIDIA H100 NVL"), and not in the table. A longer word, such as
    "GH200" or "A1000", is not asked for.

    Args:
        device_name: as `torch.cuda.get_device_name()` returns it, "NVIDIA H100 80GB HBM3".
        dtype: dtype of the matrices.

    Returns:
        FLOP/s, a float.

    Raises:
        ValueError: naming the device or the dtype, if the table does not have it.

    Example:
        >>> promised_flop_per_sec("NVIDIA H100 80GB HBM3", torch.bfloat16)
        989500000000000.0

    Source: NVIDIA's data sheets of the A100 (80 GB), H100 and H200 Tensor Core GPUs.
    """
    hopper = {
        torch.float32: 67e12,
        torch.float16: 1979e12 / 2,
        torch.bfloat16: 1979e12 / 2,
        torch.float8_e4m3fn: 3958e12 / 2,
        torch.float8_e5m2: 3958e12 / 2,
    }
    ampere = {torch.float32: 19.5e12, torch.float16: 624e12 / 2, torch.bfloat16: 624e12 / 2}
    if "PCIE" in device_name.upper() or "NVL" in device_name.upper():
        raise ValueError(f"only SXM modules are in the table, got {device_name!r}")
    for model, peaks in {"A100": ampere, "H100": hopper, "H200": hopper}.items():
        if model in device_name:
            if dtype not in peaks:
                raise ValueError(f"no peak of {model} is known for {dtype}")
            return peaks[dtype]
    raise ValueError(f"no peaks are known of {device_name!r}")


def mfu(num_flops: float, seconds: float, peak_flop_per_sec: float) -> float:
    """Compute the model FLOPs utilisation: the speed achieved, as a part of the speed promised.

    Args:
        num_flops: the model's FLOPs, 0 or more: those of its formula, not what was recomputed to save memory.
        seconds: how long they took; more than 0.
        peak_flop_per_sec: the dense peak, in FLOP/s, of all devices that took part; more than 0.

    Returns:
        The utilisation, a float. 0.5 is good. More than 1 is returned as well, and says that an argument is wrong.

    Raises:
        ValueError: naming the value, if `num_flops` is negative, or `seconds` or `peak_flop_per_sec` is 0 or negative.

    Example:
        >>> mfu(num_flops=1e15, seconds=2.0, peak_flop_per_sec=1e15)
        0.5

    Source: Chowdhery et al., "PaLM" (2022), section 4.1 and appendix B.
    """
    if num_flops < 0:
        raise ValueError(f"num_flops must not be negative, got {num_flops}")
    if not seconds > 0:
        raise ValueError(f"seconds must be more than 0, got {seconds}")
    if not peak_flop_per_sec > 0:
        raise ValueError(f"peak_flop_per_sec must be more than 0, got {peak_flop_per_sec}")
    return num_flops / seconds / peak_flop_per_sec


def time_matmul(x: Float[Tensor, "m k"], w: Float[Tensor, "k n"], warmup: int, repeats: int) -> float:
    """Measure how long the product `x @ w` takes.

    The product is computed `warmup` + `repeats` times, and not once more. The first `warmup` times are not timed: they
    pay for what happens only once, such as choosing a kernel. Each of the others is timed by itself, in seconds of a
    clock on the wall (`time.perf_counter`); the result is the median, which one slow run in the middle does not spoil.

    An accelerator only *queues* the product and returns at once. A clock read without waiting for it measures how long
    queueing takes, so wait, `torch.accelerator.synchronize()`, before each reading. (Copying the product to the CPU
    waits too, but is timed with it.) Without an accelerator there is nothing to wait for.

    Args:
        x: the left operand.
        w: the right operand, on the same device.
        warmup: untimed runs; 0 or more.
        repeats: timed runs; 1 or more.

    Returns:
        The median of the `repeats` times, in seconds, a float; of an even number of times the mean of the two in the
        middle.

    Raises:
        ValueError: naming the value, if `warmup` is negative or `repeats` is less than 1.

    Example:
        >>> time_matmul(torch.ones(64, 64), torch.ones(64, 64), warmup=1, repeats=5) > 0
        True

    Source: the PyTorch tutorial "PyTorch Benchmark", which gives the reasons for warming up and for synchronising.
    """
    if warmup < 0:
        raise ValueError(f"warmup must not be negative, got {warmup}")
    if repeats < 1:
        raise ValueError(f"repeats must be 1 or more, got {repeats}")
    for _ in range(warmup):
        x @ w
    seconds = []
    for _ in range(repeats):
        _wait_for_accelerator()  # for the warm-up, and for whatever else is still queued
        start = time.perf_counter()
        x @ w
        _wait_for_accelerator()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _wait_for_accelerator() -> None:
    """Return when all that was queued is done."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _require_sizes(**sizes: int) -> None:
    """Raise the ValueError that a size or a count below 0 deserves."""
    for name, size in sizes.items():
        if size < 0:
            raise ValueError(f"{name} must not be negative, got {size}")
