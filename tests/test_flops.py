"""Part 6: where the time goes."""

import time
from functools import partial
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from student import flops
from tests.checks import check_equal, check_raises


@pytest.mark.problem("flops.matmul_flops")
def test_matmul_flops_are_two_a_triple():
    """(1024, 256) @ (256, 64) takes 33_554_432 FLOPs."""
    check_equal(flops.matmul_flops(1024, 256, 64), 33_554_432, "a multiplication and an addition for each triple")


@pytest.mark.problem("flops.matmul_flops")
def test_matmul_flops_are_exact_ints():
    """Large counts are exact, sizes may be 0, and a negative one is a ValueError that names it."""
    check_equal(flops.matmul_flops(10**7 + 1, 10**7 + 3, 10**7 + 9), 2000002600000780000054, "int, never a float")
    check_equal(flops.matmul_flops(3, 0, 4), 0)
    check_raises(ValueError, lambda: flops.matmul_flops(2, -3, 4), names=-3)


@pytest.mark.problem("flops.einsum_flops")
def test_einsum_flops_multiply_each_axis_once():
    """Attention scores: 4 · 10 · 20 · 64 products, two FLOPs each, since d is summed over."""
    pattern = "batch query d, batch key d -> batch query key"
    check_equal(flops.einsum_flops(pattern, (4, 10, 64), (4, 20, 64)), 102_400, "each axis counts once")
    check_equal(flops.einsum_flops("i, j -> i j", (3,), (5,)), 15, "nothing is summed, so nothing is added")
    check_equal(flops.einsum_flops("i, i ->", (3,), (3,)), 6, "the output may have no axis")


@pytest.mark.problem("flops.einsum_flops")
def test_einsum_flops_refuses_clashing_and_unknown_axes():
    """An axis of two sizes, or one that no operand has, is a ValueError that names it."""
    pattern = "query width, width key -> query key"
    check_raises(ValueError, lambda: flops.einsum_flops(pattern, (2, 3), (5, 4)), names="width")
    check_raises(ValueError, lambda: flops.einsum_flops("i j, j k -> i value", (2, 3), (3, 4)), names="value")
    check_raises(ValueError, lambda: flops.einsum_flops("i j, j k -> i k", (2, 3, 4), (3, 4)))


@pytest.mark.problem("flops.elementwise_flops")
def test_elementwise_flops_are_one_an_element():
    """An operation on (1024, 256) elements takes 262_144 FLOPs, on a single number 1."""
    check_equal(flops.elementwise_flops((1024, 256)), 262_144)
    check_equal(flops.elementwise_flops(()), 1, "() is the shape of a single number")
    check_equal(flops.elementwise_flops((3, 0, 2)), 0)
    check_raises(ValueError, lambda: flops.elementwise_flops((4, -3)), names=-3)


@pytest.mark.problem("flops.deep_linear_flops")
def test_deep_linear_flops_of_a_step():
    """Batch 2, dim 3, one layer: 48 FLOPs forward, 60 backward."""
    step = flops.deep_linear_flops(batch=2, dim=3, num_layers=1)
    check_equal(step.forward, 48, "one product with a (3, 3) weight, one with a (3, 1) weight")
    check_equal(step.backward, 60, "all weights want a gradient; of the two inputs only the second product's does")
    check_equal(step.total, 108)


@pytest.mark.problem("flops.deep_linear_flops")
def test_deep_linear_flops_with_input_gradient():
    """If the input's gradient is wanted, the backward pass costs twice the forward pass."""
    step = flops.deep_linear_flops(batch=2, dim=3, num_layers=1, input_requires_grad=True)
    check_equal((step.forward, step.backward, step.total), (48, 96, 144))
    check_raises(ValueError, lambda: flops.deep_linear_flops(2, 3, -1), names=-1)


@pytest.mark.problem("flops.training_step_flops")
def test_training_step_flops_are_six_a_token_and_parameter():
    """1024 tokens and 65_536 parameters: 402_653_184 FLOPs."""
    hint = "2 FLOPs a parameter and token on the way forward, 4 on the way back"
    check_equal(flops.training_step_flops(1024, 65_536), 402_653_184, hint)
    check_raises(ValueError, lambda: flops.training_step_flops(-4, 5), names=-4)


@pytest.mark.problem("flops.count_flops")
def test_count_flops_counts_forward_and_backward():
    """A product of (2, 3) and (3, 4) takes 48 FLOPs forward, and 48 more for the gradient of its weight."""
    x, w = torch.ones(2, 3), torch.ones(3, 4, requires_grad=True)
    check_equal(flops.count_flops(lambda: x @ w), 48, "the operator is aten.mm")
    check_equal(flops.count_flops(lambda: (x @ w).sum().backward()), 96, "the gradient of x is not wanted")


@pytest.mark.problem("flops.count_flops")
def test_count_flops_knows_the_other_products():
    """A linear layer with a bias is an addmm, a batched product a bmm; elementwise operations do not count."""
    x = torch.ones(5, 2, 3)
    check_equal(flops.count_flops(lambda: torch.nn.Linear(3, 4)(x[0])), 48, "aten.addmm(bias, x, w)")
    check_equal(flops.count_flops(lambda: torch.bmm(x, x.mT)), 120, "aten.bmm")
    check_equal(flops.count_flops(lambda: torch.baddbmm(torch.ones(2, 2), x, x.mT)), 120, "aten.baddbmm(bias, x, w)")
    check_equal(flops.count_flops(lambda: (x * x + x.exp()).sum()), 0, "none of the four operators")


@pytest.mark.problem("flops.promised_flop_per_sec")
def test_promised_flop_per_sec_is_dense():
    """An H100 promises 989.5e12 FLOP/s in bfloat16, an A100 312e12."""
    hint = "a figure with a * is for sparse matrices"
    check_equal(flops.promised_flop_per_sec("NVIDIA H100 80GB HBM3", torch.bfloat16), 989.5e12, hint)
    check_equal(flops.promised_flop_per_sec("NVIDIA A100-SXM4-80GB", torch.float16), 312e12, hint)
    check_equal(flops.promised_flop_per_sec("NVIDIA A100-SXM4-80GB", torch.float32), 19.5e12, hint)


@pytest.mark.problem("flops.promised_flop_per_sec")
def test_promised_flop_per_sec_refuses_unknown_devices():
    """A PCIe card, a CPU and a dtype without a figure are a ValueError that names it."""
    for device in ("NVIDIA H100 PCIe", "NVIDIA A100-PCIE-40GB", "NVIDIA H100 NVL", "cpu"):
        check_raises(ValueError, partial(flops.promised_flop_per_sec, device, torch.bfloat16), names=device)
    check_raises(
        ValueError, lambda: flops.promised_flop_per_sec("NVIDIA H100 80GB HBM3", torch.float64), names=torch.float64
    )


@pytest.mark.problem("flops.mfu")
def test_mfu_is_achieved_over_promised():
    """1e15 FLOPs in 2 seconds are half of a peak of 1e15 FLOP/s."""
    check_equal(flops.mfu(1e15, 2.0, 1e15), 0.5)
    check_raises(ValueError, lambda: flops.mfu(1e15, 0.0, 1e15), names=0.0)


@pytest.mark.problem("flops.time_matmul")
def test_time_matmul_returns_seconds():
    """A positive number of seconds, no more than the call took; no repeats are a ValueError."""
    x, w = torch.ones(128, 128), torch.ones(128, 128)
    start = time.perf_counter()
    seconds = flops.time_matmul(x, w, warmup=1, repeats=5)
    whole = time.perf_counter() - start
    check_equal(type(seconds), float, "a Python float")
    check_equal(0 < seconds <= whole, True, "seconds, not milliseconds; one product, not all of them")
    check_raises(ValueError, lambda: flops.time_matmul(x, w, warmup=1, repeats=0), names=0)


class ProductCounter(TorchFunctionMode):
    """Counts the matrix products that Python code asks PyTorch for while the mode is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count a product, however it is written, and let it be computed."""
        self.products += func.__name__ in {"matmul", "__matmul__", "__rmatmul__", "mm", "einsum", "linear"}
        return func(*args, **(kwargs or {}))


@pytest.mark.problem("flops.time_matmul")
def test_time_matmul_computes_warmup_and_repeats():
    """Three products to warm up and five to be timed are eight."""
    with ProductCounter() as counter:
        flops.time_matmul(torch.ones(8, 8), torch.ones(8, 4), warmup=3, repeats=5)
    check_equal(counter.products, 8, "warmup + repeats, and not once more")
