"""`python -m handout.facts`: compute every number that the handout quotes, with `reference/`, into `facts.json`.

The file is committed, so that building the handout needs no PyTorch; a test says when it is stale. What no code can compute is
quoted in `QUOTED`, with its source.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from reference import data, dtypes, flops, memory, model, napkin, optimizers, training
from tests import libraries
from tests.allowed import OTHER_PARTS, RULES
from tests.checks import check_equal

PATH = Path(__file__).with_name("facts.json")

QUOTED: dict[str, Any] = {
    "h100_sparse": 1979e12,  # bfloat16, "with sparsity": NVIDIA, data sheet of the H100 SXM
    "h100_bytes": 80e9,  # the same
    "h100_bytes_per_sec": 3.35e12,  # the same
    "gpt3_flops": 3.14e23,  # Brown et al., "Language Models are Few-Shot Learners" (2020), table D.1
    "gpt4_flops": 2e25,  # not published: Epoch AI's estimate
    "gpt3_width": 12288,  # Brown et al., table 2.1
}
MATMUL_ON_CPU, MATMUL_ON_GPU = (1024, 256, 64), (16384, 32768, 8192)  # batch, features, outputs
TRAINED: dict[str, Any] = {"dim": 256, "num_layers": 8}  # the model of the memory figure
BATCHES = (16, 64, 256, 1024, 4096)
DRAWN: dict[str, Any] = {"batch": 64, "dim": 128, "num_layers": 2}  # the model of the figure of FLOPs
STEPS = 400


def facts() -> dict[str, Any]:
    """Return all numbers, as plain data."""
    torch.manual_seed(0)
    return {
        "quoted": QUOTED,
        "napkin": _napkin(),
        "formats": _formats(),
        "ties": _ties(),
        "tiny": _tiny_memory(),
        "memory": _memory(),
        "flops": _flops(),
        "roofline": _roofline(),
        "growth": {"width": 1024, "a_layer": math.isqrt(1024), "layers": 10, "after": float(math.isqrt(1024) ** 10)},
        "losses": _losses(),
        "failure": _failure(),
        "rules": _rules(),
        "libraries": {
            "modules": libraries.listed(),
            "only": {module: sorted(names) for module, names in sorted(libraries.ONLY.items())},
            "not": sorted(libraries.NOT),
            "private": [name for name in libraries.UNDERSCORED if name.startswith("torch.")],
        },
    }


def _rules() -> list[dict[str, Any]]:
    """Return the checker's rules, those first that hold everywhere."""
    rules = [(rule.where, rule.says) for rule in RULES] + [(frozenset({"*"}), OTHER_PARTS)]
    return [
        {"where": sorted(where), "says": says} for where, says in sorted(rules, key=lambda rule: "*" not in rule[0])
    ]


def _failure() -> str:
    """Return what a public test says to someone who counts bits."""
    x = torch.zeros(4, 8)
    try:
        check_equal(8 * memory.get_memory_usage(x), memory.get_memory_usage(x), hint="bytes, not bits and not elements")
    except AssertionError as error:
        return str(error)
    raise AssertionError("bits passed for bytes")


def _napkin() -> dict[str, Any]:
    parameters, tokens, devices, share = 70e9, 15e12, 1024, 0.5
    dense = flops.promised_flop_per_sec("NVIDIA H100 80GB HBM3", torch.bfloat16)
    a100 = flops.promised_flop_per_sec("NVIDIA A100-SXM4-80GB", torch.bfloat16)
    per_parameter = napkin.bytes_per_parameter(torch.float32, torch.float32, torch.float32)
    mixed = napkin.bytes_per_parameter(torch.bfloat16, torch.bfloat16, torch.float32, master_dtype=torch.float32)
    gpt3_days = QUOTED["gpt3_flops"] / (devices * a100 * share * 60 * 60 * 24)
    return {
        "parameters": parameters,
        "tokens": tokens,
        "devices": devices,
        "mfu": share,
        "h100_dense": dense,
        "a100_dense": a100,
        "flops": napkin.training_flops(parameters, tokens),
        "days": round(napkin.training_days(parameters, tokens, devices, dense, share), 1),
        "days_sparse": round(napkin.training_days(parameters, tokens, devices, QUOTED["h100_sparse"], share), 1),
        "gpt3_days": round(gpt3_days, 1),
        "bytes": per_parameter,
        "bytes_mixed": mixed,
        "gpus": 8,
        "largest": napkin.max_parameters(8, QUOTED["h100_bytes"], per_parameter),
    }


def _formats() -> list[dict[str, Any]]:
    found = []
    for dtype, (exponent, mantissa, has_inf) in dtypes.FLOAT_FORMATS.items():
        limits = dtypes.float_limits(exponent, mantissa, has_inf)
        found.append(
            {
                "name": str(dtype).removeprefix("torch."),
                "exponent": exponent,
                "mantissa": mantissa,
                "bytes": limits.bits // 8,
                "max": limits.max,
                "smallest_normal": limits.smallest_normal,
                "smallest_subnormal": limits.smallest_subnormal,
                "eps": limits.eps,
            }
        )
    return found


def _ties() -> list[list[int]]:
    """Return integers that lie between two of float16's numbers, and where each goes."""
    rounded = dtypes.round_to_float(torch.tensor([2049.0, 2051.0]), exponent_bits=5, mantissa_bits=10)
    return [[2049, int(rounded[0])], [2051, int(rounded[1])]]


def _tiny_memory() -> dict[str, Any]:
    width = QUOTED["gpt3_width"]
    matrix = memory.get_memory_usage(torch.empty(4 * width, width, device="meta"))
    return {
        "bytes_4_8": memory.get_memory_usage(torch.zeros(4, 8)),
        "gpt3_rows": 4 * width,
        "gpt3_mib": matrix // 1024**2,
        "gpt3_gb": round(matrix / 1e9, 2),
        "two_squares": 2 * memory.get_memory_usage(torch.zeros(32, 32)),
    }


def _memory() -> dict[str, Any]:
    """Predict a training step's memory, and measure it."""
    batch = 1024
    predicted = memory.deep_linear_training_bytes(batch, **TRAINED)
    net = model.DeepLinear(**TRAINED)
    optimizer = optimizers.AdamW(net.parameters())
    x = torch.randn(batch, TRAINED["dim"])
    activations = memory.saved_activation_bytes(net, x, parameters=net.parameters())
    net(x).mean().backward()
    optimizer.step()
    measured = memory.training_memory(net, optimizer)
    return {
        **TRAINED,
        "batch": batch,
        "num_parameters": model.num_parameters(net),
        "predicted": _parts(predicted),
        "measured": {**_parts(measured), "activations": activations, "total": measured.total + activations},
        "batches": list(BATCHES),
        "by_batch": [_parts(memory.deep_linear_training_bytes(b, **TRAINED)) for b in BATCHES],
    }


def _parts(found: memory.MemoryBreakdown) -> dict[str, int]:
    return {
        name: getattr(found, name) for name in ("parameters", "gradients", "optimizer_state", "activations", "total")
    }


def _flops() -> dict[str, Any]:
    step = flops.deep_linear_flops(**DRAWN)
    num_parameters = DRAWN["num_layers"] * DRAWN["dim"] ** 2 + DRAWN["dim"]
    approximation = flops.training_step_flops(DRAWN["batch"], num_parameters)
    return {
        "on_cpu": [*MATMUL_ON_CPU, flops.matmul_flops(*MATMUL_ON_CPU)],
        "on_gpu": [*MATMUL_ON_GPU, flops.matmul_flops(*MATMUL_ON_GPU)],
        "on_gpu_ms": round(flops.matmul_flops(*MATMUL_ON_GPU) / _napkin()["h100_dense"] * 1e3, 1),
        "drawn": DRAWN,
        "square": flops.matmul_flops(DRAWN["batch"], DRAWN["dim"], DRAWN["dim"]),
        "last": flops.matmul_flops(DRAWN["batch"], DRAWN["dim"], 1),
        "forward": step.forward,
        "backward": step.backward,
        "total": step.total,
        "six": approximation,
        "too_high_percent": round(100 * (approximation / step.total - 1), 1),
    }


def _roofline() -> dict[str, Any]:
    """Return the arithmetic intensity of some operations in bfloat16: FLOPs a byte moved, each operand moved once."""
    peak, bandwidth = _napkin()["h100_dense"], QUOTED["h100_bytes_per_sec"]
    points = []
    for size in (16, 64, 256, 1024, 4096):
        moved = 3 * memory.get_memory_usage(torch.empty(size, size, dtype=torch.bfloat16, device="meta"))
        points.append({"size": size, "intensity": flops.matmul_flops(size, size, size) / moved})
    moved = 3 * memory.get_memory_usage(torch.empty(1024, 1024, dtype=torch.bfloat16, device="meta"))
    return {
        "peak": peak,
        "bandwidth": bandwidth,
        "ridge": round(peak / bandwidth),
        "ridge_side": 100 * round(3 * peak / bandwidth / 100),  # of square matrices: their intensity is a third of it
        "addition": flops.elementwise_flops((1024, 1024)) / moved,
        "addition_mfu_percent": round(100 * flops.elementwise_flops((1024, 1024)) / moved * bandwidth / peak, 2),
        "matmuls": points,
    }


def _losses() -> dict[str, Any]:
    """Train the worked example of part 10 with each optimizer: the next value of a noisy wave, from the last eight."""
    vocab_size, length, rows = 256, 8, 64
    time = torch.arange(20_000)
    noise = torch.randn(len(time), generator=torch.Generator().manual_seed(0))
    wave = 128 + 90 * torch.sin(2 * math.pi * time / 25) + noise
    tokens: Any = wave.round().clamp(0, vocab_size - 1).numpy().astype("uint16")
    choices: dict[str, Any] = {
        "SGD": lambda parameters: optimizers.SGD(parameters, lr=3e-2),
        "AdaGrad": lambda parameters: optimizers.AdaGrad(parameters, lr=1e-2),
        "AdamW": lambda parameters: optimizers.AdamW(parameters, lr=3e-3),
    }
    curves = {}
    for name, choose in choices.items():
        generators = training.seed_everything(7)
        net = model.DeepLinear(dim=length, num_layers=2)

        def batches(generator: torch.Generator = generators["data"]) -> Any:
            while True:
                inputs, targets = data.get_batch(tokens, rows, length, "cpu", generator)
                yield inputs / vocab_size, targets[:, -1] / vocab_size

        step = flops.deep_linear_flops(rows, length, 2).total
        run = training.train(net, choose(net.parameters()), nn.functional.mse_loss, batches(), STEPS, step, 1e12)
        curves[name] = [float(f"{loss:.3g}") for loss in run.losses]
    return {"vocab_size": vocab_size, "length": length, "rows": rows, "steps": STEPS, "curves": curves}


def text() -> str:
    """Return the file's content."""
    return json.dumps(facts(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
