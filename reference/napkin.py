"""Back of the envelope: how long a training run takes, and how large a model fits.

Nothing here touches a tensor. Each answer is a product or a quotient of numbers that stand in a paper's abstract or on
a data sheet; the later parts measure what these formulas predict.
"""

import torch


def training_flops(num_parameters: float, num_tokens: float) -> float:
    """Estimate the FLOPs of training a model once over its data: 6 · N · D.

    Each token meets each parameter in one multiplication and one addition on the way forward (2 FLOPs), and in twice as
    many on the way back, where a gradient is computed for the parameter and for the activation beside it (4 FLOPs).

    Args:
        num_parameters: N, the parameters that take part in matrix products; 0 or more.
        num_tokens: D, the tokens seen in training, repetitions included; 0 or more.

    Returns:
        FLOPs, a float.

    Raises:
        ValueError: naming the value, if a count is negative.

    Example:
        >>> training_flops(70e9, 15e12)
        6.3e+24

    Source: Kaplan et al., "Scaling Laws for Neural Language Models" (2020), section 2.1, C ≈ 6ND.
    """
    _require_not_negative("num_parameters", num_parameters)
    _require_not_negative("num_tokens", num_tokens)
    return float(6 * num_parameters * num_tokens)


def training_days(num_parameters: float, num_tokens: float, num_devices: int, flop_per_sec: float, mfu: float) -> float:
    """Estimate how many days a training run takes: its FLOPs, divided by what all devices really do in a day.

    Args:
        num_parameters: N, as in `training_flops`.
        num_tokens: D, as in `training_flops`.
        num_devices: how many devices share the work; more than 0.
        flop_per_sec: what the data sheet promises for one device, in FLOP/s; more than 0. The dense figure: data sheets
            like to print the one "with sparsity", which is twice as high.
        mfu: model FLOPs utilisation, the part of the promise that the run achieves, in (0, 1].

    Returns:
        Days of 24 hours, a float.

    Raises:
        ValueError: naming the value, if a count is negative, if `num_devices` or `flop_per_sec` is 0 or negative, or if
            `mfu` is 0, negative or more than 1.

    Example:
        >>> round(training_days(70e9, 15e12, num_devices=1024, flop_per_sec=1979e12 / 2, mfu=0.5), 1)
        143.9

    Source: MFU is defined in Chowdhery et al., "PaLM" (2022), section 4.1; 1979e12 is NVIDIA's H100 (SXM) data sheet.
    """
    if not num_devices > 0:
        raise ValueError(f"num_devices must be more than 0, got {num_devices}")
    if not flop_per_sec > 0:
        raise ValueError(f"flop_per_sec must be more than 0, got {flop_per_sec}")
    if not 0 < mfu <= 1:
        raise ValueError(f"mfu must be in (0, 1], got {mfu}")
    flop_per_day = num_devices * flop_per_sec * mfu * 60 * 60 * 24
    return training_flops(num_parameters, num_tokens) / flop_per_day


def bytes_per_parameter(
    parameter_dtype: torch.dtype,
    gradient_dtype: torch.dtype,
    state_dtype: torch.dtype,
    num_states: int = 2,
    master_dtype: torch.dtype | None = None,
) -> int:
    """Count the bytes that training keeps for one parameter, activations left out.

    That is the parameter, its gradient, `num_states` numbers of optimizer state and, in mixed precision, the precise
    "master" copy that the optimizer updates.

    Args:
        parameter_dtype: dtype of the parameters that the model computes with.
        gradient_dtype: dtype of the gradients.
        state_dtype: dtype of each number of optimizer state.
        num_states: numbers of optimizer state a parameter: 2 for AdamW, 1 for SGD with momentum, 0 for plain SGD.
        master_dtype: dtype of the master copy, or None if there is none.

    Returns:
        Bytes, an int.

    Raises:
        ValueError: naming the value, if `num_states` is negative.

    Example:
        >>> bytes_per_parameter(torch.float32, torch.float32, torch.float32)
        16
        >>> bytes_per_parameter(torch.bfloat16, torch.bfloat16, torch.float32, master_dtype=torch.float32)
        16

    Source: Rajbhandari et al., "ZeRO" (2020), section 3.1: 2 + 2 + (4 + 4 + 4) bytes under mixed-precision Adam.
    """
    _require_not_negative("num_states", num_states)
    master_bytes = 0 if master_dtype is None else master_dtype.itemsize
    return parameter_dtype.itemsize + gradient_dtype.itemsize + num_states * state_dtype.itemsize + master_bytes


def max_parameters(num_devices: int, bytes_per_device: float, bytes_per_parameter: float) -> int:
    """Find the largest number of parameters whose training state fits in the memory of all devices together.

    The state may be split between devices at any byte, and activations are left out: an upper bound.

    Args:
        num_devices: how many devices share the state; 0 or more.
        bytes_per_device: memory of one device, a whole number of bytes; 0 or more. "80 GB" are 80e9 bytes.
        bytes_per_parameter: as `bytes_per_parameter` counts them; more than 0.

    Returns:
        Whole parameters, an int: what is left over is too small for one more. Floats, which round, may miss by one where
        all bytes together come near 2**53, or where `bytes_per_parameter` is a fraction like 0.1 that they round too.

    Raises:
        ValueError: naming the value, if `num_devices` or `bytes_per_device` is negative, or if `bytes_per_parameter` is
            0 or negative.

    Example:
        >>> max_parameters(num_devices=8, bytes_per_device=80e9, bytes_per_parameter=16)
        40000000000

    Source: the sum of ZeRO (as above), turned around.
    """
    _require_not_negative("num_devices", num_devices)
    _require_not_negative("bytes_per_device", bytes_per_device)
    if not bytes_per_parameter > 0:
        raise ValueError(f"bytes_per_parameter must be more than 0, got {bytes_per_parameter}")
    return int(num_devices * bytes_per_device // bytes_per_parameter)


def _require_not_negative(name: str, value: float) -> None:
    """Raise the ValueError that a count below 0 deserves."""
    if value < 0:
        raise ValueError(f"{name} must not be negative, got {value}")
