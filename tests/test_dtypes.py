"""Part 2: what a float can hold."""

import math
from functools import partial

import pytest
import torch

from student import dtypes
from tests.checks import check_close, check_equal, check_raises


@pytest.mark.problem("dtypes.float_limits")
def test_float_limits_of_float16():
    """5 exponent bits and 10 mantissa bits: the limits of float16."""
    limits = dtypes.float_limits(5, 10)
    check_equal(limits.max, 65504.0, "the largest exponent field is infinity's and NaN's")
    check_equal(limits.smallest_normal, 6.103515625e-05, "exponent field 1")
    check_equal(limits.smallest_subnormal, 5.960464477539063e-08, "exponent field 0 and only the last fraction bit")
    check_equal(limits.eps, 0.0009765625, "from 1 to the next number")
    check_equal(limits.bits, 16, "the sign has a bit too")


@pytest.mark.problem("dtypes.float_limits")
def test_float_limits_of_bfloat16_and_e5m2():
    """bfloat16 reaches 3.39e38, float8_e5m2 57344."""
    check_equal(dtypes.float_limits(8, 7).max, 3.3895313892515355e38, "as float32's exponent, fewer fraction bits")
    check_equal(dtypes.float_limits(5, 2).max, 57344.0, "as float16's exponent, fewer fraction bits")


@pytest.mark.problem("dtypes.float_limits")
def test_float_limits_of_e4m3fn_without_infinity():
    """float8_e4m3fn has no infinity, and reaches 448."""
    limits = dtypes.float_limits(4, 3, has_inf=False)
    check_equal(limits.max, 448.0, "the largest exponent holds numbers too; only the pattern of all ones is NaN")
    check_equal(limits.eps, 0.125, "eps has nothing to do with infinity")


@pytest.mark.problem("dtypes.float_limits")
def test_float_limits_refuses_other_widths():
    """1 or 12 exponent bits, 0 or 53 mantissa bits are a ValueError that names the width."""
    for exponent_bits, mantissa_bits, wrong in [(1, 3, 1), (12, 3, 12), (5, 0, 0), (5, 53, 53)]:
        check_raises(ValueError, partial(dtypes.float_limits, exponent_bits, mantissa_bits), names=wrong)


@pytest.mark.problem("dtypes.underflows_to_zero")
def test_underflows_to_zero_in_float16_not_in_bfloat16():
    """1e-8 is lost in float16 and kept in bfloat16."""
    check_equal(dtypes.underflows_to_zero(1e-8, torch.float16), True, "float16's smallest number is 5.96e-8")
    check_equal(dtypes.underflows_to_zero(1e-8, torch.bfloat16), False, "bfloat16's smallest number is 9.2e-41")
    check_equal(dtypes.underflows_to_zero(-1e-8, torch.float16), True, "a negative number can be lost too")


@pytest.mark.problem("dtypes.underflows_to_zero")
def test_underflows_to_zero_at_the_tie_and_at_zero():
    """Half the smallest float16 is lost, a float64 slightly above that is not; 0 is not lost."""
    check_equal(dtypes.underflows_to_zero(2.0**-25, torch.float16), True, "ties go to the even neighbour, which is 0")
    hint = "round once: PyTorch's way from float64 to float16 goes through float32, and loses this one"
    check_equal(dtypes.underflows_to_zero(2.0**-25 * (1 + 2.0**-40), torch.float16), False, hint)
    check_equal(dtypes.underflows_to_zero(0.0, torch.float16), False, "0 is 0 already")


@pytest.mark.problem("dtypes.underflows_to_zero")
def test_underflows_to_zero_refuses_integers():
    """An integer dtype is a ValueError that names it."""
    check_raises(ValueError, lambda: dtypes.underflows_to_zero(1e-8, torch.int32), names=torch.int32)


@pytest.mark.problem("dtypes.round_to_float")
def test_round_to_float_to_nearest_ties_to_even():
    """In float16 whole numbers beyond 2048 are even: 2049 is a tie and becomes 2048, 2051 becomes 2052."""
    x = torch.tensor([2047.0, 2049.0, 2051.0, -2049.5, 0.1])
    expected = torch.tensor([2047.0, 2048.0, 2052.0, -2050.0, 0.0999755859375])
    check_close(
        dtypes.round_to_float(x, 5, 10), expected, "nearest; of two equally near, the one of even last bit", rtol=0
    )


@pytest.mark.problem("dtypes.round_to_float")
def test_round_to_float_keeps_subnormals():
    """Below float16's smallest normal number the spacing stays 2^-24."""
    unit = 2.0**-24
    x = torch.tensor([unit, 2.5 * unit, 2.75 * unit, 0.5 * unit, 0.75 * unit])
    expected = torch.tensor([unit, 2 * unit, 3 * unit, 0.0, unit])
    check_close(dtypes.round_to_float(x, 5, 10), expected, "subnormal numbers are multiples of 2^-24", rtol=0)


@pytest.mark.problem("dtypes.round_to_float")
def test_round_to_float_overflows():
    """70000 is infinite in float16; without infinity, 1000 and infinity saturate at 448."""
    x = torch.tensor([65519.0, 65520.0, 70000.0, -math.inf, math.nan])
    expected = torch.tensor([65504.0, math.inf, math.inf, -math.inf, math.nan])
    check_close(
        dtypes.round_to_float(x, 5, 10), expected, "what rounds to more than max is infinite; NaN stays", rtol=0
    )
    x = torch.tensor([449.0, 1000.0, -math.inf, math.nan])
    expected = torch.tensor([448.0, 448.0, -448.0, math.nan])
    check_close(dtypes.round_to_float(x, 4, 3, has_inf=False), expected, "without infinity all stops at max", rtol=0)


@pytest.mark.problem("dtypes.round_to_float")
def test_round_to_float_rounds_a_float64_once():
    """A float64 slightly above a tie of float16 is rounded up, and stays a float64."""
    x = torch.tensor([1 + 2.0**-11 + 2.0**-40], dtype=torch.float64)
    expected = torch.tensor([1 + 2.0**-10], dtype=torch.float64)
    check_close(dtypes.round_to_float(x, 5, 10), expected, "a detour through float32 lands on the tie", rtol=0)


@pytest.mark.problem("dtypes.round_to_float")
def test_round_to_float_refuses_integers():
    """A tensor of integers is a ValueError that names its dtype; so is a width that no format has."""
    check_raises(ValueError, lambda: dtypes.round_to_float(torch.tensor([1, 2]), 5, 10), names=torch.int64)
    check_raises(ValueError, lambda: dtypes.round_to_float(torch.tensor([1.0]), 5, 53), names=53)
