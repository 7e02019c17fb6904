"""Part 1: back of the envelope."""

from functools import partial

import pytest
import torch

from student import napkin
from tests.checks import check_equal, check_raises

BF16 = torch.bfloat16


@pytest.mark.problem("napkin.training_flops")
def test_training_flops_are_six_a_parameter_and_token():
    """70e9 parameters on 15e12 tokens take 6.3e24 FLOPs."""
    hint = "2 FLOPs a parameter and token on the way forward, 4 on the way back"
    check_equal(napkin.training_flops(70e9, 15e12), 6.3e24, hint)
    check_equal(napkin.training_flops(0, 10), 0.0, "a float, even if the counts are ints")


@pytest.mark.problem("napkin.training_flops")
def test_training_flops_refuses_negative_counts():
    """A negative count is a ValueError that names it."""
    check_raises(ValueError, lambda: napkin.training_flops(-7, 3), names=-7)
    check_raises(ValueError, lambda: napkin.training_flops(7, -3), names=-3)


@pytest.mark.problem("napkin.training_days")
def test_training_days_of_70b_parameters_on_1024_h100():
    """70e9 parameters, 15e12 tokens, 1024 H100s at half of their dense peak: 143.9 days."""
    days = napkin.training_days(70e9, 15e12, num_devices=1024, flop_per_sec=1979e12 / 2, mfu=0.5)
    check_equal(
        days, 143.926593818, "FLOPs of the run, divided by the FLOPs that all devices really do in a day", rtol=1e-8
    )


@pytest.mark.problem("napkin.training_days")
def test_training_days_refuses_an_mfu_outside_zero_to_one():
    """An mfu that is not in (0, 1] is a ValueError, and so is having no device."""
    for mfu in (0.0, -0.5, 1.5):
        check_raises(ValueError, partial(napkin.training_days, 7e9, 1e12, 8, 312e12, mfu), names=mfu)
    check_raises(ValueError, lambda: napkin.training_days(7e9, 1e12, 0, 312e12, 0.5), names=0)


@pytest.mark.problem("napkin.bytes_per_parameter")
def test_bytes_per_parameter_are_16_in_two_ways():
    """float32 AdamW holds 16 bytes a parameter, and so does bfloat16 with float32 states and master copy."""
    hint = "parameter, gradient, two states and (if there is one) the master copy, each with its own dtype's bytes"
    check_equal(napkin.bytes_per_parameter(torch.float32, torch.float32, torch.float32), 16, hint)
    check_equal(napkin.bytes_per_parameter(BF16, BF16, torch.float32, master_dtype=torch.float32), 16, hint)


@pytest.mark.problem("napkin.bytes_per_parameter")
def test_bytes_per_parameter_without_states():
    """Plain SGD in bfloat16 holds 4 bytes a parameter; fewer than no states is a ValueError."""
    check_equal(napkin.bytes_per_parameter(BF16, BF16, torch.float32, num_states=0), 4, "there is no state to hold")
    check_raises(ValueError, lambda: napkin.bytes_per_parameter(BF16, BF16, BF16, num_states=-1), names=-1)


@pytest.mark.problem("napkin.max_parameters")
def test_max_parameters_on_8_devices_of_80_gb():
    """16 bytes a parameter on 8 devices of 80e9 bytes: 40_000_000_000 parameters."""
    check_equal(
        napkin.max_parameters(8, 80e9, 16), 40_000_000_000, "bytes of all devices, divided by bytes a parameter"
    )


@pytest.mark.problem("napkin.max_parameters")
def test_max_parameters_counts_whole_parameters():
    """47 bytes hold two parameters of 16 bytes, and a parameter of no bytes is a ValueError."""
    check_equal(napkin.max_parameters(1, 47, 16), 2, "what is left over is too small for one more")
    check_raises(ValueError, lambda: napkin.max_parameters(8, 80e9, 0), names=0)
