"""`make figures`: draw what your own functions say, and hold it against what PyTorch does.

Four drawings go to `student/figures/`. One that needs a problem you have not solved is skipped, with the reason; one whose
functions raise is reported in a line, and the others are drawn all the same.
"""

import argparse
import importlib
import importlib.util
import io
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

try:
    import torch
    from torch import nn
    from torch.utils.benchmark import Timer
except ModuleNotFoundError:  # not the Python of .venv
    from tests.rerun import in_venv

    in_venv("tests.figures", ["figures"])

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent

Answer = TypeVar("Answer")

INK, MUTED, GRID = "#1f2430", "#6b7280", "#e5e7eb"
BLUE, ORANGE, GREEN, RED = "#2f6db5", "#e08a1e", "#2e9e6b", "#c8453b"
STYLE: dict[Any, Any] = {
    "figure.figsize": (8, 4.8),
    "figure.dpi": 150,
    "figure.constrained_layout.use": True,
    "font.size": 11,
    "text.color": INK,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
    "savefig.facecolor": "white",
}


class NotThereError(Exception):
    """A drawing needs something that the student has not written yet."""


@dataclass(frozen=True)
class Solution:
    """The student's package, whose modules are imported when a drawing first asks for one."""

    package: str = "student"

    def function(self, problem_id: str) -> Callable[..., Any]:
        """Return the student's function or class.

        Raises:
            NotThereError: if its file or its name is missing.
        """
        module_name, name = problem_id.split(".")
        try:
            module = importlib.import_module(f"{self.package}.{module_name}")
        except ModuleNotFoundError as error:
            if error.name != f"{self.package}.{module_name}":
                raise  # it is there, and imports something that is not
            raise NotThereError(f"there is no {self.package}/{module_name}.py") from None
        if not hasattr(module, name):
            raise NotThereError(f"{self.package}/{module_name}.py defines no {name}")
        function: Callable[..., Any] = getattr(module, name)
        return function


# --- memory ---


def draw_memory(solution: Solution, figure: "Figure") -> str:
    """Predicted bytes of training a deep linear model as the batch grows, with the measured ones on top."""
    dim, num_layers = 256, 8
    batches = [2**i for i in range(6, 13)]
    predict = solution.function("memory.deep_linear_training_bytes")
    predicted = [predict(batch=batch, dim=dim, num_layers=num_layers) for batch in batches]
    measured, remark = _optional(lambda: [_measured_training_bytes(solution, b, dim, num_layers) for b in batches])

    axes = figure.subplots()
    bottom = [0.0] * len(batches)
    for field, color in [("parameters", BLUE), ("gradients", ORANGE), ("optimizer_state", GREEN), ("activations", RED)]:
        heights = [getattr(breakdown, field) / 2**20 for breakdown in predicted]
        axes.bar(range(len(batches)), heights, 0.62, bottom=bottom, color=color, label=field.replace("_", " "))
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    if measured:
        tops = [total / 2**20 for total in measured]
        axes.plot(range(len(batches)), tops, "D", color=INK, markersize=6, label="total, measured", zorder=3)
    for i, breakdown in enumerate(predicted):
        axes.annotate(
            f"{breakdown.total / 2**20:.1f}", (i, bottom[i]), (0, 8), textcoords="offset points", ha="center", color=INK
        )
    axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
    axes.margins(y=0.12)
    axes.grid(axis="x", visible=False)
    axes.set_xlabel(f"rows in the batch ({num_layers} layers of {dim} × {dim}, float32, AdamW)")
    axes.set_ylabel("MiB")
    axes.set_title("Memory to train a deep linear model")
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="upper left")
    return remark and f"predictions only: {remark}"


def _measured_training_bytes(solution: Solution, batch: int, dim: int, num_layers: int) -> int:
    """Let the student's own functions measure a model, and return the total."""
    model, x = _deep_linear(dim, num_layers), torch.randn(batch, dim)
    saved = solution.function("memory.saved_activation_bytes")(model, x, parameters=list(model.parameters()))
    optimizer = torch.optim.AdamW(model.parameters())
    model(x).sum().backward()
    optimizer.step()
    return solution.function("memory.training_memory")(model, optimizer).total + saved


def _deep_linear(dim: int, num_layers: int) -> nn.Module:
    """Make a deep linear model out of PyTorch's own layers, so that no drawing needs part 7."""
    layers = [nn.Linear(dim, dim, bias=False) for _ in range(num_layers)]
    return nn.Sequential(*layers, nn.Linear(dim, 1, bias=False))


# --- FLOPs ---


def draw_flops(solution: Solution, figure: "Figure") -> str:
    """FLOPs of a forward and backward pass: the formula against the count."""
    predict, count = solution.function("flops.deep_linear_flops"), solution.function("flops.count_flops")
    depths = {1: BLUE, 2: GREEN, 4: ORANGE, 8: RED}
    sizes = [(batch, dim) for batch in (8, 64, 512) for dim in (16, 64, 256)]

    counts, ratios = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    pairs: list[tuple[int, int]] = []
    for num_layers, color in depths.items():
        own = []
        for batch, dim in sizes:
            predicted = predict(batch=batch, dim=dim, num_layers=num_layers).total
            own.append((predicted, count(_step_of_deep_linear(batch, dim, num_layers))))
        pairs += own
        x, y = [predicted for predicted, _ in own], [counted for _, counted in own]
        label = f"{num_layers} layer{'s' * (num_layers > 1)}"
        counts.loglog(x, y, "o", color=color, markersize=8, markeredgecolor="white", label=label)
        quotients = [counted / predicted if predicted else math.nan for predicted, counted in own]
        ratios.semilogx(x, quotients, "o", color=color, markersize=6, markeredgecolor="white")
    ends = [max(1, min(map(min, pairs))) / 2, max(map(max, pairs)) * 2]
    counts.loglog(ends, ends, "-", color=MUTED, linewidth=1, zorder=1)
    middle = math.sqrt(ends[0] * ends[1])
    counts.annotate("counted = predicted", (middle, middle), (14, -16), textcoords="offset points", color=MUTED)
    ratios.axhline(1, color=MUTED, linewidth=1, zorder=1)
    low, high = ratios.get_ylim()
    ratios.set_ylim(min(low, 0.5), max(high, 1.5))
    ratios.set_ylabel("counted /\npredicted")
    ratios.set_xlabel("FLOPs of one forward and backward pass, predicted by deep_linear_flops")
    counts.set_ylabel("counted by count_flops")
    exact = sum(predicted == counted for predicted, counted in pairs)
    counts.set_title(f"FLOPs of a deep linear model: {exact} of {len(pairs)} predictions are exact")
    counts.legend(loc="upper left")
    return ""


def _step_of_deep_linear(batch: int, dim: int, num_layers: int) -> Callable[[], None]:
    """Return a function that runs a deep linear model forward and backward."""
    weights = [torch.randn(dim, dim, requires_grad=True) for _ in range(num_layers)]
    weights.append(torch.randn(dim, 1, requires_grad=True))
    inputs = torch.randn(batch, dim)

    def step() -> None:
        x = inputs
        for weight in weights:
            x = x @ weight
        x.sum().backward()

    return step


# --- optimizers ---

NUM_STEPS = 200


def draw_losses(solution: Solution, figure: "Figure") -> str:
    """Loss curves of the three optimizers, with PyTorch's own as dots."""
    rows = [
        ("SGD", BLUE, {"lr": 0.1}, torch.optim.SGD),
        ("AdaGrad", ORANGE, {"lr": 0.05}, torch.optim.Adagrad),
        ("AdamW", GREEN, {"lr": 0.01}, torch.optim.AdamW),
    ]
    axes = figure.subplots()
    reasons = []
    for name, color, options, of_pytorch in rows:
        losses, reason = _optional(partial(_losses_of_problem, solution, f"optimizers.{name}", options))
        if losses is None:
            reasons.append(reason)
            continue
        axes.semilogy(losses, color=color, linewidth=2)
        axes.annotate(
            f"{name}, lr {options['lr']}",
            (NUM_STEPS, losses[-1]),
            (8, 0),
            textcoords="offset points",
            color=color,
            va="center",
        )
        theirs = _losses(of_pytorch, options)
        axes.semilogy(
            range(0, NUM_STEPS + 1, 10), theirs[::10], "o", color=color, markersize=4, markerfacecolor="white"
        )
    if len(reasons) == len(rows):
        raise NotThereError("; ".join(reasons))
    axes.plot([], [], "-", color=MUTED, linewidth=2, label="yours")
    axes.plot([], [], "o", color=MUTED, markersize=4, markerfacecolor="white", label="torch.optim's")
    axes.legend(loc="upper right")
    axes.set_xlim(0, NUM_STEPS * 1.22)
    axes.set_xticks(range(0, NUM_STEPS + 1, 50))
    axes.set_xlabel("step")
    axes.set_ylabel("mean squared error")
    axes.set_title("Three optimizers on the same small regression")
    return f"without some: {'; '.join(reasons)}" if reasons else ""


def _losses_of_problem(solution: Solution, problem_id: str, options: dict[str, float]) -> list[float]:
    """Train with the student's optimizer."""
    return _losses(solution.function(problem_id), options)


def _losses(optimizer_class: Callable[..., torch.optim.Optimizer], options: dict[str, float]) -> list[float]:
    """Train a small network from the same start on the same data; return the loss before each step and after the last."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(128, 8, generator=generator)
    y = torch.sin(x @ torch.randn(8, 1, generator=generator))
    hidden = nn.Parameter(torch.randn(8, 32, generator=generator) / 8**0.5)
    out = nn.Parameter(torch.randn(32, 1, generator=generator) / 32**0.5)
    optimizer = optimizer_class([hidden, out], **options)
    losses = []
    for _ in range(NUM_STEPS + 1):
        loss = nn.functional.mse_loss(torch.tanh(x @ hidden) @ out, y)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


# --- roofline ---


@dataclass(frozen=True)
class Product:
    """A matrix product of (m, k) and (k, n) that was timed."""

    m: int
    k: int
    n: int
    intensity: float  # FLOPs for each byte, if each byte is read or written once
    flop_per_sec: float


def draw_roofline(solution: Solution, figure: "Figure") -> str:
    """What time_matmul measures, under the two limits of the machine."""
    time_matmul, matmul_flops = solution.function("flops.time_matmul"), solution.function("flops.matmul_flops")
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = device or torch.device("cpu")
    on_cpu = device.type == "cpu"
    dtype = torch.float32 if on_cpu else torch.bfloat16
    wide = 4096 if on_cpu else 8192  # a matrix of this side fits into no cache
    shapes = [(n, n, n) for n in (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192) if not on_cpu or n <= 1024]
    shapes += [(m, wide, wide) for m in (1, 4, 16, 64, 256) if not on_cpu or m <= 16]

    products = []
    for m, k, n in shapes:
        x, w = torch.randn(m, k, device=device, dtype=dtype), torch.randn(k, n, device=device, dtype=dtype)
        seconds = time_matmul(x, w, warmup=2, repeats=10)
        flops, num_bytes = matmul_flops(m, k, n), (m * k + k * n + m * n) * x.element_size()
        products.append(Product(m, k, n, flops / num_bytes, flops / seconds))

    axes: Axes = figure.subplots()
    peak, peak_label = _peak(solution, device, dtype, products)
    axes.set_title(f"Roofline of this machine: {_name_of(device)}, {str(dtype).removeprefix('torch.')}")
    axes.set_xlabel("arithmetic intensity (FLOPs for each byte)")
    axes.set_ylabel("FLOP/s")
    _draw_products(axes, products)
    bandwidth = _bytes_per_sec(device)
    ridge = _draw_roof(axes, products, peak, bandwidth)
    axes.annotate(peak_label, (axes.get_xlim()[1], peak), (-4, 7), textcoords="offset points", ha="right", color=INK)
    figure.draw_without_rendering()  # the angle of the slope on paper is known once the axes have their place
    (x0, y0), (x1, y1) = axes.transData.transform([(ridge / 10, peak / 10), (ridge, peak)])
    axes.annotate(
        f"{bandwidth / 1e9:,.0f} GB/s, measured by copying",
        (ridge, peak),
        (-8, 0),
        textcoords="offset points",
        ha="right",
        va="bottom",
        color=INK,
        rotation=math.degrees(math.atan2(y1 - y0, x1 - x0)),
        rotation_mode="anchor",
    )
    return ""


def _draw_roof(axes: "Axes", products: Sequence[Product], peak: float, bandwidth: float) -> float:
    """Draw the two limits, the memory's on the left and the arithmetic's on the right; return where they meet."""
    ridge = peak / bandwidth
    left = min(ridge / 4, *(product.intensity / 2 for product in products))
    right = max(ridge * 4, *(product.intensity * 2 for product in products))
    axes.loglog([left, ridge, right], [left * bandwidth, peak, peak], color=INK, linewidth=2, zorder=1)
    axes.set_xlim(left, right)
    rates = [product.flop_per_sec for product in products]
    axes.set_ylim(min(left * bandwidth, *rates) / 1.5, max(peak, *rates) * 2.2)
    return ridge


def _draw_products(axes: "Axes", products: Sequence[Product]) -> None:
    """Draw the timed products: blue where all three sides are equal, red where few rows meet a large matrix."""
    square = [product for product in products if product.m == product.k == product.n]
    thin = [product for product in products if product not in square]
    side = thin[0].k
    for group, color, marker, label in [
        (square, BLUE, "o", "n × n times n × n"),
        (thin, RED, "s", f"m × {side} times {side} × {side}"),
    ]:
        x, y = [product.intensity for product in group], [product.flop_per_sec for product in group]
        axes.plot(x, y, marker, color=color, markersize=8, markeredgecolor="white", label=label)
        for product in group:
            text = f"{'n' if group is square else 'm'}={product.m}"
            place = (product.intensity, product.flop_per_sec)
            # Beside the points, away from the roof: below the flat part, left of the slope.
            offset, side_of_text = ((0, -15), "center") if group is square else ((-9, -1), "right")
            axes.annotate(text, place, offset, textcoords="offset points", ha=side_of_text, fontsize=9, color=color)
    axes.legend(loc="lower right")


def _peak(
    solution: Solution, device: torch.device, dtype: torch.dtype, products: Sequence[Product]
) -> tuple[float, str]:
    """Return the promised peak of the device, or the best that was measured where nothing is promised."""
    try:
        peak = solution.function("flops.promised_flop_per_sec")(_name_of(device), dtype)
    except (ValueError, NotImplementedError, NotThereError):
        best = max(product.flop_per_sec for product in products)
        return best, f"{best / 1e9:,.0f} GFLOP/s, the best measured here"
    return peak, f"{peak / 1e12:,.0f} TFLOP/s promised"


def _bytes_per_sec(device: torch.device) -> float:
    """Measure how fast a large tensor is copied: each byte is read once and written once."""
    source = torch.ones(2**26 if device.type == "cpu" else 2**30, dtype=torch.uint8, device=device)
    names = {"source": source, "target": torch.empty_like(source)}
    measurement = Timer("target.copy_(source)", globals=names, num_threads=torch.get_num_threads()).blocked_autorange()
    return 2 * source.numel() / measurement.median


def _name_of(device: torch.device) -> str:
    """Return what the device calls itself."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()


# --- one drawing after the other ---

DRAWINGS: dict[str, Callable[[Solution, "Figure"], str]] = {
    "memory": draw_memory,
    "flops": draw_flops,
    "losses": draw_losses,
    "roofline": draw_roofline,
}


def draw_all(solution: Solution, folder: Path) -> int:
    """Draw what can be drawn, print a line for each drawing, and return how many failed."""
    import matplotlib

    matplotlib.use("Agg")  # draws into files, also where there is no screen
    from matplotlib.figure import Figure

    failed = 0
    for name, draw in DRAWINGS.items():
        path = folder / f"{name}.png"
        try:
            with matplotlib.rc_context(STYLE):
                figure = Figure()
                remark = draw(solution, figure)
                folder.mkdir(parents=True, exist_ok=True)
                figure.savefig(path)
        except (Exception, SystemExit) as error:
            path.unlink(missing_ok=True)  # an older drawing would be taken for the answer of today's code
            reason = _reason_to_skip(error)
            failed += not reason
            print(f"  {'skipped' if reason else 'FAILED ':<9}{name:<10}{reason or _described(error, solution)}")
        else:
            print(f"  {'drawn':<9}{name:<10}{_shown(path)}{f'  ({remark})' if remark else ''}")
    return failed


def _optional(compute: Callable[[], Answer]) -> tuple[Answer | None, str]:
    """Return what `compute` gives and "", or None and the reason why what it needs is not there."""
    try:
        return compute(), ""
    except (NotThereError, NotImplementedError) as error:
        if reason := _reason_to_skip(error):
            return None, reason
        raise


def _reason_to_skip(error: BaseException) -> str:
    """Return why a drawing has to wait; "" if the error is a mistake."""
    if isinstance(error, NotThereError):
        return str(error)
    text = str(error)
    is_stub = isinstance(error, NotImplementedError) and text.replace(".", "").isidentifier() and text.count(".") == 1
    return f"{text} is not done yet" if is_stub else ""


def _described(error: BaseException, solution: Solution) -> str:
    """Return the error on one line, with the last line of the student's that led to it."""
    text = " ".join(str(error).split())
    text = f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
    if isinstance(error, SyntaxError):
        return text
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).parent.name == solution.package]
    if not own:
        return f"{text}  (in what a function of yours returned)"
    return f"{text}  ({solution.package}/{Path(own[-1].filename).name}, line {own[-1].lineno})"


def _shown(path: Path) -> str:
    """Return the path as seen from the assignment's folder."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


def main(arguments: list[str] | None = None) -> int:
    """Draw into `student/figures/`; return 1 if a drawing failed, 2 if none could be tried."""
    parser = argparse.ArgumentParser(prog="python -m tests.figures", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "student" / "figures", help="where the drawings go")
    options = parser.parse_args(arguments)
    if not (ROOT / "student").is_dir():
        print(f"there is no folder {ROOT / 'student'}: the solutions go there", file=sys.stderr)
        return 2
    if importlib.util.find_spec("matplotlib") is None:
        print("drawing needs matplotlib: python -m pip install matplotlib", file=sys.stderr)
        return 2
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # an error's text may have what a Windows console has not
    try:
        return 1 if draw_all(Solution(), options.folder) else 0
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
