"""`python -m handout.figures`: draw the handout's figures from `facts.json`, and walk strides with `reference/`.

Each figure is an SVG a language in `figures/`, its letters turned into outlines, so that it looks the same in the PDF and in
any browser. The files are committed: building the handout needs no matplotlib. Each bears a digest of what it was drawn
from, by which a test sees that it is stale, and the release of matplotlib, for others may give other bytes.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import font_manager
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from handout.facts import PATH as FACTS
from reference import strides

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "figures"
SMOOTHED = 8  # steps over which a loss is averaged: batches differ
WIDTH = 5.6  # inches, on paper and before scaling

# Dark to light, so that they differ in greyscale as well.
NAVY, BLUE, SAND, PALE = "#1f3a5f", "#4f81b5", "#d9a441", "#e8edf3"
INK, MUTED = "#1d232a", "#6b7280"
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "handout",
    "svg.fonttype": "path",
    "font.family": ["Libertinus Serif", "Noto Serif CJK SC"],
    "font.size": 10.5,
    "mathtext.fontset": "stix",
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}

Say = Callable[[str, str], str]  # picks the words of the language that is drawn
Facts = dict[str, Any]
LANGUAGES: dict[str, Say] = {"en": lambda en, zh: en, "zh": lambda en, zh: zh}


def formats(facts: Facts, say: Say) -> Figure:
    """Draw the fields of each float format to scale: a bit is as wide everywhere."""
    shown = [f for f in facts["formats"] if f["name"] != "float64"]
    figure, axes = _blank(2.5)
    for row, f in enumerate(shown):
        y = -1.5 * row
        axes.text(-0.6, y + 0.5, f["name"], ha="right", va="center")
        left = 0.0
        for bits, colour, ink in ((1, NAVY, "white"), (f["exponent"], SAND, INK), (f["mantissa"], PALE, INK)):
            axes.add_patch(Rectangle((left, y), bits, 1, facecolor=colour, edgecolor=INK, linewidth=0.9))
            for bit in range(1, bits):
                axes.plot([left + bit] * 2, [y, y + 0.16], color=INK, linewidth=0.5)
            if bits > 1:
                axes.text(left + bits / 2, y + 0.52, str(bits), ha="center", va="center", color=ink)
            left += bits
    for x, colour, words in (
        (0, NAVY, say("sign", "符号")),
        (6, SAND, say("exponent: range", "指数：范围")),
        (18, PALE, say("fraction: resolution", "尾数：精度")),
    ):
        axes.add_patch(Rectangle((x, 1.75), 0.9, 0.7, facecolor=colour, edgecolor=INK, linewidth=0.9))
        axes.text(x + 1.4, 2.1, words, va="center")
    axes.set_xlim(-8.2, 32.6)
    axes.set_ylim(-1.5 * len(shown) + 1.2, 2.8)
    return figure


def walks(facts: Facts, say: Say) -> Figure:
    """Draw one storage, and how a row, a column and a transposed row walk through it."""
    rows, columns = 3, 4
    own = strides.contiguous_strides((rows, columns))
    figure, axes = _blank(2.5)
    walked = [
        (say("x[1], stride 1", "x[1]，步幅 1"), [strides.flat_index((1, j), own) for j in range(columns)], BLUE),
        (say("x[:, 2], stride 4", "x[:, 2]，步幅 4"), [strides.flat_index((i, 2), own) for i in range(rows)], SAND),
        (
            say("x.view(2, 6)[1], stride 1", "x.view(2, 6)[1]，步幅 1"),
            [strides.flat_index((1, j), strides.contiguous_strides((2, 6))) for j in range(6)],
            NAVY,
        ),
    ]
    for line, (words, places, colour) in enumerate(walked):
        y = -1.75 * line
        axes.text(-0.3, y + 0.5, words, ha="right", va="center")
        for place in range(rows * columns):
            on = place in places
            axes.add_patch(
                Rectangle((place, y), 1, 1, facecolor=colour if on else "white", edgecolor=MUTED, linewidth=0.8)
            )
            ink = ("white" if colour != SAND else INK) if on else MUTED
            axes.text(place + 0.5, y + 0.48, str(place), ha="center", va="center", color=ink)
        for a, b in zip(places, places[1:], strict=False):
            axes.annotate(
                "",
                xy=(b + 0.5, y + 1.02),
                xytext=(a + 0.5, y + 1.02),
                arrowprops={
                    "arrowstyle": "->",
                    "color": INK,
                    "linewidth": 0.9,
                    "shrinkA": 1,
                    "shrinkB": 1,
                    "connectionstyle": f"arc3,rad={-0.45 if b - a == 1 else -0.22}",
                },
            )
    axes.text(6, 2.0, say("one storage, 12 elements", "同一块存储，12 个元素"), ha="center", va="center")
    axes.set_xlim(-6.6, 12.2)
    axes.set_ylim(-1.75 * (len(walked) - 1) - 0.3, 2.4)
    return figure


def memory(facts: Facts, say: Say) -> Figure:
    """Stack the memory of a training step: through the step, and against the batch."""
    of, mb = facts["memory"], 1e6
    kinds = [
        ("parameters", NAVY, say("parameters", "参数"), ""),
        ("gradients", BLUE, say("gradients", "梯度"), "//"),
        ("optimizer_state", PALE, say("optimizer state", "优化器状态"), ""),
        ("activations", SAND, say("activations", "激活值"), ".."),
    ]
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 2.75), width_ratios=(1, 1))
    held = of["predicted"]
    moments = [
        (say("model\nmade", "建好\n模型"), {"parameters"}),
        (say("first\nforward", "首次\n前向"), {"parameters", "activations"}),
        (say("first\nbackward", "首次\n反向"), {"parameters", "gradients"}),
        (say("first\nstep", "首次\n更新"), {"parameters", "gradients", "optimizer_state"}),
        (say("second\nforward", "再次\n前向"), {"parameters", "gradients", "optimizer_state", "activations"}),
    ]
    stacks = [{name: held[name] / mb if name in there else 0 for name, *_ in kinds} for _, there in moments]
    _stack(left, [words for words, _ in moments], stacks, kinds)
    left.set_ylabel(say("megabytes held", "占用（MB）"))
    left.set_title(say(f"a batch of {of['batch']}", f"批大小 {of['batch']}"), fontsize=10.5)
    left.tick_params(axis="x", labelsize=8, length=0)
    stacks = [{name: found[name] / mb for name, *_ in kinds} for found in of["by_batch"]]
    _stack(right, [str(b) for b in of["batches"]], stacks, kinds)
    right.set_title(say("at the peak, by batch size", "峰值，随批大小变化"), fontsize=10.5)
    right.tick_params(axis="x", length=0)
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, columnspacing=1.2, handlelength=1.4)
    return figure


def _stack(
    axes: Axes, words: list[str], stacks: list[dict[str, float]], kinds: list[tuple[str, str, str, str]]
) -> None:
    bottom = [0.0] * len(stacks)
    for name, colour, label, hatch in kinds:
        heights = [stack[name] for stack in stacks]
        axes.bar(
            range(len(stacks)),
            heights,
            bottom=bottom,
            color=colour,
            edgecolor="white" if colour in (NAVY, BLUE) else INK,
            linewidth=0.5,
            hatch=hatch,
            label=label,
            width=0.72,
        )
        bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    axes.set_xticks(range(len(stacks)), words)


def graph(facts: Facts, say: Say) -> Figure:
    """Draw the products of a training step on the graph of the model: forward above, backward below."""
    of = facts["flops"]
    figure, axes = _blank(2.4)
    tensors = [(0, "$x$"), (4, "$h_1$"), (8, "$h_2$"), (12, "$y$")]
    for x, name in tensors:
        axes.text(
            x,
            0,
            name,
            ha="center",
            va="center",
            fontsize=11,
            bbox={"boxstyle": "circle,pad=0.35", "facecolor": "white", "edgecolor": INK},
        )
    sizes = (of["square"], of["square"], of["last"])
    for layer, (size, weight) in enumerate(zip(sizes, ("$W_1$", "$W_2$", "$w$"), strict=True)):
        middle = 4 * layer + 2
        axes.text(
            middle,
            0,
            weight,
            ha="center",
            va="center",
            color="white",
            fontsize=11,
            bbox={"boxstyle": "round,pad=0.5,rounding_size=0.2", "facecolor": NAVY, "edgecolor": NAVY},
        )
        arrow = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.2}
        axes.annotate("", xy=(middle - 0.8, 0), xytext=(middle - 1.35, 0), arrowprops=arrow)
        axes.annotate("", xy=(middle + 1.4, 0), xytext=(middle + 0.8, 0), arrowprops=arrow)
        axes.text(middle, 1.05, _million(size), ha="center", va="center")
        axes.annotate(
            "",
            xy=(middle, -0.62),
            xytext=(middle + 1.75, -1.15),
            arrowprops={**arrow, "color": BLUE, "connectionstyle": "arc3,rad=-0.25"},
        )
        axes.text(middle + 0.15, -1.45, f"$dW$: {_million(size)}", ha="center", va="center", color=INK)
        wanted = layer > 0
        axes.annotate(
            "",
            xy=(4 * layer + 0.3, -2.15),
            xytext=(4 * layer + 3.7, -2.15),
            arrowprops={**arrow, "color": SAND if wanted else MUTED, "linestyle": "-" if wanted else ":"},
        )
        words = f"$dX$: {_million(size)}" if wanted else say("$dX$: nobody asks", "无人需要")
        axes.text(middle, -2.55, words, ha="center", va="center", color=INK if wanted else MUTED)
    axes.text(-1.0, 1.05, say("forward", "前向"), ha="right", va="center")
    axes.text(-1.0, -1.45, say("backward:\nweights", "反向：\n权重"), ha="right", va="center")
    axes.text(-1.0, -2.55, say("inputs", "输入"), ha="right", va="center")
    total = say("sum", "合计")
    for y, value in ((1.05, of["forward"]), (-1.45, of["forward"]), (-2.55, of["backward"] - of["forward"])):
        axes.text(13.2, y, f"{total} {_million(value)}", ha="left", va="center")
    axes.set_xlim(-3.3, 15.9)
    axes.set_ylim(-2.95, 1.6)
    return figure


def _million(flops: int) -> str:
    return f"{flops / 1e6:.2g}" if flops < 1e6 else f"{flops / 1e6:.1f}"


def roofline(facts: Facts, say: Say) -> Figure:
    """Draw what an H100 can reach, against the FLOPs that an operation does a byte it moves."""
    of = facts["roofline"]
    figure, axes = plt.subplots(figsize=(WIDTH, 2.9))
    intensities = [0.05, of["peak"] / of["bandwidth"], 4000]
    reach = [min(of["peak"], i * of["bandwidth"]) / 1e12 for i in intensities]
    axes.plot(intensities, reach, color=NAVY, linewidth=2)
    axes.fill_between(intensities, reach, 0.05, color=PALE)
    axes.axvline(of["peak"] / of["bandwidth"], color=MUTED, linewidth=0.8, linestyle=":", ymax=0.93)
    for point in of["matmuls"]:
        top = min(of["peak"], point["intensity"] * of["bandwidth"]) / 1e12
        axes.plot(point["intensity"], top, "o", color=SAND, markeredgecolor=INK, markersize=6)
        bound = point["intensity"] < of["ridge"]
        axes.annotate(
            str(point["size"]),
            (point["intensity"], top),
            textcoords="offset points",
            xytext=(-6, 5) if bound else (0, 7),
            ha="right" if bound else "center",
        )
    top = of["addition"] * of["bandwidth"] / 1e12
    axes.plot(of["addition"], top, "s", color=SAND, markeredgecolor=INK, markersize=6)
    axes.annotate("x + y", (of["addition"], top), textcoords="offset points", xytext=(7, -8))
    axes.text(1.2, 1.1, say("waiting for memory", "等待显存"), rotation=0, ha="left", va="center")
    axes.text(450, 60, say("computing", "受算力限制"), ha="left", va="center")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(0.05, 4000)
    axes.set_ylim(0.15, 3000)
    axes.set_xlabel(say("FLOPs a byte moved", "每搬运一字节所做的 FLOPs"))
    axes.set_ylabel(say("teraFLOP/s within reach", "可达速度（teraFLOP/s）"))
    return figure


def losses(facts: Facts, say: Say) -> Figure:
    """Draw the loss of the worked example under each optimizer."""
    figure, axes = plt.subplots(figsize=(WIDTH, 2.5))
    marks = {"SGD": (BLUE, "-."), "AdaGrad": (SAND, "--"), "AdamW": (NAVY, "-")}
    for name, curve in facts["losses"]["curves"].items():
        colour, dashes = marks[name]
        means = [sum(curve[i : i + SMOOTHED]) / SMOOTHED for i in range(len(curve) - SMOOTHED + 1)]
        axes.plot(range(1, len(means) + 1), means, dashes, color=colour, linewidth=1.6, label=name)
    axes.set_yscale("log")
    axes.set_xlabel(say("step", "步"))
    axes.set_ylabel(say("mean squared error", "均方误差"))
    axes.legend()
    return figure


DRAWINGS = (formats, walks, memory, graph, roofline, losses)


def _blank(height: float) -> tuple[Figure, Axes]:
    figure, axes = plt.subplots(figsize=(WIDTH, height))
    axes.set_axis_off()
    return figure, axes


def digest(facts: Facts) -> str:
    """Return what changes when the figures would: the numbers, and this file."""
    content = json.dumps(facts, sort_keys=True) + Path(__file__).read_text(encoding="utf-8")
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def draw(folder: Path = FOLDER) -> list[Path]:
    """Draw every figure in every language; return the files."""
    matplotlib.use("svg")
    for file in sorted([*HERE.glob("fonts/*.otf"), *HERE.glob("fonts/figures/*.ttf")]):
        font_manager.fontManager.addfont(file)
    facts = json.loads(FACTS.read_text(encoding="utf-8"))
    folder.mkdir(exist_ok=True)
    files = []
    for language, say in LANGUAGES.items():
        for drawing in DRAWINGS:
            with plt.rc_context(STYLE):
                figure = drawing(facts, say)
                file = folder / f"{drawing.__name__}-{language}.svg"
                metadata = {
                    "Date": None,
                    "Creator": None,
                    "Description": f"drawn from {digest(facts)} by matplotlib {matplotlib.__version__}",
                }
                figure.savefig(file, metadata=metadata, transparent=True)
                plt.close(figure)
            files.append(file)
    return files


if __name__ == "__main__":
    draw()
