"""Part 1, back of the envelope: formulas held against counted FLOPs and real storages."""

import random
from collections.abc import Callable
from functools import partial
from itertools import combinations
from typing import Any

import pytest
import torch
from gradescope_utils.autograder_utils.decorators import number, weight
from torch.utils.flop_counter import FlopCounterMode

from autograder.probing import refusal

# A quotient of six floats, in any order, is good to about 1e-15; the nearest mistake (dropping an mfu of 0.97) is 3e-2.
FLOAT_RTOL = 1e-12

FLOAT_DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip


def training_flops(num_parameters: float, num_tokens: float) -> float:
    """Return 6ND, or refuse a negative count: for training_days, which may call the student's function."""
    for value in (num_parameters, num_tokens):
        if value < 0:
            raise ValueError(f"{value} is negative")
    return float(6 * num_parameters * num_tokens)


RELIES_ON = {"napkin.training_days": {"training_flops": training_flops}}


def refused(names: float, function: Callable[..., Any], *inputs: tuple[Any, ...]) -> list[Any]:
    """Say of each input how it was refused; where two values of it are wrong they are equal, and one name is right for both."""
    return [refusal(partial(function, *given), names=names) for given in inputs]


def tried(call: Callable[[], Any]) -> tuple[tuple[str, ...], Any]:
    """Return what a call with a right input answers, and before it whether it was refused: then the others are still asked."""
    try:
        return ("accepted",), call()
    except ValueError:
        return ("refused", "ValueError"), None


def counted_training_flops(num_tokens: int, widths: list[int]) -> int:
    """Count a training step of a chain of matrix products whose input wants a gradient too, where 6ND is exact."""
    x = torch.ones(num_tokens, widths[0], requires_grad=True)
    weights = [torch.ones(m, n, requires_grad=True) for m, n in zip(widths, widths[1:], strict=False)]
    with FlopCounterMode(display=False) as counter:
        for w in weights:
            x = x @ w
        x.sum().backward()
    return counter.get_total_flops()


@number("1.1")
@weight(1)
@pytest.mark.parametrize("case", ["small runs", "large runs", "rules"])
def test_training_flops_are_those_that_pytorch_counts(compare, observe, seed, case):
    """training_flops: forward and backward pass over every token, as PyTorch counts them."""
    rng = random.Random(seed)
    chains = [(rng.randint(1, 40), [rng.randint(1, 12) for _ in range(rng.randint(2, 5))]) for _ in range(6)]
    sizes = [(sum(m * n for m, n in zip(w, w[1:], strict=False)), tokens) for tokens, w in chains]
    large = [(10 ** rng.uniform(6, 12), 10 ** rng.uniform(9, 14)) for _ in range(20)]

    def probe(lib):
        runs = sizes if case == "small runs" else large
        return [lib.napkin.training_flops(parameters, tokens) for parameters, tokens in runs]

    def probe_rules(lib):
        training_flops = lib.napkin.training_flops
        return (
            training_flops(0, 10),
            training_flops(10, 0),
            training_flops(7, 3),
            refusal(lambda: training_flops(-7, 3), names=-7),
            refusal(lambda: training_flops(7e9, -3.5), names=-3.5),
            refused(-1, training_flops, (-1, -1), (0, -1), (-1, 0)),
        )

    if case == "small runs":
        measured = [float(counted_training_flops(tokens, widths)) for tokens, widths in chains]
        assert observe("napkin.training_flops", probe, like=[0.0]) == measured, (
            "the FLOPs of a training run differ from those that PyTorch counts in one"
        )
    else:
        compare("napkin.training_flops", probe if case == "large runs" else probe_rules, rtol=FLOAT_RTOL)


@number("1.2")
@weight(1)
def test_training_days_divides_by_what_the_devices_do(compare, seed):
    """training_days: FLOPs of the run, divided by what all devices really do in a day; refuses what cannot be."""
    rng = random.Random(seed)
    runs = [
        (10 ** rng.uniform(8, 12), 10 ** rng.uniform(10, 13), rng.randint(2, 4000), 10 ** rng.uniform(13, 15), rng.uniform(0.1, 0.97))
        for _ in range(20)
    ]  # fmt: skip

    def probe(lib):
        def days(*run):
            return tried(lambda: lib.napkin.training_days(*run))

        return {
            "some runs": [days(*run) for run in runs],
            "the largest utilisation": days(7_000_000_000, 10**12, 64, 312e12, 1),
            "no tokens": [days(7e9, 0, 64, 312e12, 0.5), days(7e9, 0, 64, 312e12, 1.0)],
            "no parameters": days(0, 1e12, 64, 312e12, 0.5),
            "one device": days(7e9, 1e9, 1, 312e12, 0.5),
            "a device slower than 1 FLOP/s": days(7e9, 1e9, 64, 0.25, 0.5),  # more than 0
        }

    names = ("parameters", "tokens", "devices", "flop_per_sec", "mfu")
    # Two wrong values, whose product is none, or one beside a count of 0: nothing to compute is no reason not to look.
    wrong = [dict.fromkeys(pair, -1) for pair in combinations(names, 2)]
    wrong += [{"tokens": 0, name: -1} for name in names if name != "tokens"] + [{"parameters": 0, "tokens": -1}]

    def probe_refusals(lib):
        def days(parameters=7e9, tokens=1e12, devices=64, flop_per_sec=312e12, mfu=0.5):
            return lib.napkin.training_days(parameters, tokens, devices, flop_per_sec, mfu)

        return (
            refusal(lambda: days(mfu=0), names=0),
            refusal(lambda: days(mfu=-0.25), names=-0.25),
            refusal(lambda: days(mfu=1.01), names=1.01),
            refusal(lambda: days(mfu=45), names=45),
            refusal(lambda: days(devices=0), names=0),
            refusal(lambda: days(devices=-8), names=-8),
            refusal(lambda: days(flop_per_sec=0.0), names=0.0),
            refusal(lambda: days(flop_per_sec=-3e14), names=-3e14),
            refusal(lambda: days(parameters=-7e9), names=-7e9),
            refusal(lambda: days(tokens=-15), names=-15),
            *(refusal(partial(days, **given), names=-1) for given in wrong),
        )

    compare("napkin.training_days", probe, rtol=FLOAT_RTOL)
    compare("napkin.training_days", probe_refusals)


@number("1.3")
@weight(1)
@pytest.mark.parametrize("case", ["AdamW", "mixed precision"])
def test_bytes_per_parameter_are_those_of_real_storages(observe, seed, case):
    """bytes_per_parameter: the bytes of real parameters, gradients, states and master copies."""
    rng = random.Random(seed)
    recipes = [tuple(rng.choice(FLOAT_DTYPES) for _ in range(4)) for _ in range(40)]
    adamw_dtypes = (torch.float32, torch.float64, torch.bfloat16)

    def probe(lib):
        if case == "AdamW":
            return [lib.napkin.bytes_per_parameter(dtype, dtype, dtype) for dtype in adamw_dtypes]
        return [lib.napkin.bytes_per_parameter(p, g, s, master_dtype=master) for p, g, s, master in recipes]

    got = observe("napkin.bytes_per_parameter", probe, like=[0])
    if case == "AdamW":
        measured = [measured_adamw_bytes(dtype) for dtype in adamw_dtypes]
    else:
        measured = [measured_bytes((p, g, s, s, master)) for p, g, s, master in recipes]
    assert got == measured, "the bytes of a parameter differ from those that PyTorch allocates for it"


def measured_bytes(dtypes: tuple[torch.dtype, ...], length: int = 6) -> int:
    """Allocate a vector of each dtype, and return the bytes of all an element."""
    return sum(torch.empty(length, dtype=dtype).untyped_storage().nbytes() for dtype in dtypes) // length


def measured_adamw_bytes(dtype: torch.dtype, length: int = 6) -> int:
    """Take a step with PyTorch's AdamW, and return the bytes an element of all that is as long as the parameter."""
    parameter = torch.ones(length, dtype=dtype, requires_grad=True)
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW([parameter])
    optimizer.step()
    state = [value for value in optimizer.state[parameter].values() if value.numel() == length]
    return sum(x.untyped_storage().nbytes() for x in (parameter, parameter.grad, *state)) // length


@number("1.3")
@weight(1)
def test_bytes_per_parameter_counts_the_states_that_there_are(compare, seed):
    """bytes_per_parameter: any number of states, two by default, and no master copy unless asked for."""
    rng = random.Random(seed)
    recipes = [(*(rng.choice(FLOAT_DTYPES) for _ in range(3)), num_states) for num_states in (0, 1, 2, 3, 8)]

    def probe(lib):
        bytes_per_parameter = lib.napkin.bytes_per_parameter
        bf16 = torch.bfloat16
        return (
            [bytes_per_parameter(*recipe) for recipe in recipes],
            bytes_per_parameter(bf16, bf16, torch.float32),
            bytes_per_parameter(bf16, bf16, bf16, num_states=0, master_dtype=torch.float32),
            bytes_per_parameter(bf16, bf16, torch.uint8, 2, torch.float32),  # 8-bit states
            refusal(lambda: bytes_per_parameter(bf16, bf16, bf16, num_states=-3), names=-3),
            refusal(lambda: bytes_per_parameter(bf16, bf16, bf16, -1, torch.float32), names=-1),  # 6 bytes in all
        )

    compare("napkin.bytes_per_parameter", probe)


@number("1.4")
@weight(1)
def test_max_parameters_leaves_no_room_for_one_more(compare, observe, seed):
    """max_parameters: all of its parameters fit, and not one more would; refuses what cannot be."""
    rng = random.Random(seed)
    # Products stay below 2^50, so that float division cannot round a quotient up to the next whole number.
    budgets = [
        (rng.randint(1, 64), rng.choice([rng.randint(1, 10**12), float(rng.randint(1, 10**12))]), rng.randint(1, 33))
        for _ in range(200)
    ]
    budgets += [(8, 80e9, 16), (3, 10, 16), (3, 15, 16), (2, 24, 16), (1, 16, 16)]
    budgets += [(8, 80e9, 1.5), (3, 10, 0.5), (5, 7, 2.25)]  # formats below a byte, and state that is sharded
    budgets += [(1, 10**10 - 1, 10**10)]  # too little by less than what is added against rounding

    def probe(lib):
        return [lib.napkin.max_parameters(*budget) for budget in budgets]

    def probe_rules(lib):
        max_parameters = lib.napkin.max_parameters
        return (
            max_parameters(0, 80e9, 16),
            max_parameters(8, 0, 16),
            refusal(lambda: max_parameters(8, 80e9, 0), names=0),
            refusal(lambda: max_parameters(8, 80e9, -16), names=-16),
            refusal(lambda: max_parameters(-8, 80e9, 16), names=-8),
            refusal(lambda: max_parameters(8, -75, 16), names=-75),
            refused(-1, max_parameters, (-1, -1, 16), (-1, 80e9, -1), (8, -1, -1), (0, -1, 16), (-1, 0, 16)),
            refusal(lambda: max_parameters(0, 0, 0), names=0),
        )

    for largest, (devices, device_bytes, parameter_bytes) in zip(
        observe("napkin.max_parameters", probe, like=[0]), budgets, strict=True
    ):
        room = devices * int(device_bytes)
        assert largest * parameter_bytes <= room, "more parameters than fit into all devices together"
        assert room < (largest + 1) * parameter_bytes, "one more parameter would have fitted into all devices together"
    compare("napkin.max_parameters", probe_rules)
