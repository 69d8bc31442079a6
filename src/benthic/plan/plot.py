"""Draws a plan's figure with matplotlib: log axes, units at the ticks, every line named at its end."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benthic.plan.figure import LONGEST, SHORTEST, Line, Panel, panels, spread
from benthic.plan.plan import Plan
from benthic.plan.units import bytes_text, flops_text, tokens_text

# Okabe and Ito's palette: told apart by colour-blind readers as well.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
GREY = "#777777"
LABEL_GAP = 0.055
"""Least distance between labels, as a share of the height of the axes."""


def plot(plan: Plan, path: Path) -> None:
    """Writes the figure; the suffix of `path` (.svg, .png, .pdf) is its format. Needs matplotlib."""
    # The object interface: pyplot would keep state and choose a window system.
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with rc_context({"svg.hashsalt": "benthic", "font.size": 10}):
        figure = Figure(figsize=(13.5, 5.2), layout="constrained")
        FigureCanvasAgg(figure)
        state, flops = panels(plan)
        left, right = figure.subplots(1, 2)
        _draw(left, state, bytes_text)
        _draw(right, flops, flops_text)
        figure.suptitle(_title(plan), x=0.01, ha="left", fontsize=13, fontweight="bold")
        figure.supxlabel(_source(plan), x=0.01, ha="left", fontsize=8, color=GREY)
        # Without the date, the same plan gives the same file.
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _title(plan: Plan) -> str:
    formats = plan.sizing.formats
    names = [plan.sizing.costs.name, *(comparison.other.name for comparison in plan.comparisons)]
    others = f" beside {', '.join(names[1:])}" if names[1:] else ""
    return f"{names[0]}{others}   (weights {formats.weights}, cache {formats.cache})"


def _source(plan: Plan) -> str:
    """What the lines are, and where they end."""
    models = [plan.sizing.costs, *(comparison.other for comparison in plan.comparisons)]
    text = "Reckoned from config.json by `benthic plan`; nothing is measured. Labels give values at 1M tokens."
    limits = [f"{model.name} {tokens_text(model.max_context)}" for model in models if model.max_context < LONGEST]
    return f"{text} Dotted: beyond what the model was made for ({', '.join(limits)})." if limits else text


def _draw(axes: Any, panel: Panel, unit: Any) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for index, line in enumerate(panel.lines):
        _curve(axes, line, COLOURS[index % len(COLOURS)])
    values = [value for line in panel.lines for value in line.values if value > 0]
    low, high = min(values), max(values)
    shown = [(label, level) for label, level in panel.levels if low <= level <= 4 * high]
    high = max([high, *(level for _, level in shown)])
    axes.set_ylim(low / 1.6, high * 1.6)
    for _, level in shown:
        axes.axhline(level, color=GREY, linewidth=1, linestyle=(0, (6, 3)))
    axes.set_xlim(SHORTEST, LONGEST)
    ticks = [1 << power for power in range(12, 21, 2)]
    axes.set_xticks(ticks, [tokens_text(tick) for tick in ticks])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: unit(value).replace(".0 ", " ").replace(".00 ", " "))
    axes.set_xlabel("context, tokens")
    axes.set_title(panel.title, loc="left")
    axes.grid(which="major", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    _labels(axes, panel, shown, unit)


def _curve(axes: Any, line: Line, colour: str) -> None:
    """Solid as far as the model was made for, dotted beyond."""
    width = 1.4 if line.is_part else 2.4
    inside = [place for place, context in enumerate(line.contexts) if context <= line.limit]
    if inside:
        end = inside[-1] + 1
        axes.plot(line.contexts[:end], line.values[:end], color=colour, linewidth=width)
    start = inside[-1] if inside else 0
    if start < len(line.contexts) - 1:
        axes.plot(line.contexts[start:], line.values[start:], color=colour, linewidth=width, linestyle=":")


@dataclass(frozen=True, slots=True)
class _Label:
    text: str
    value: float
    colour: str
    weight: str = "normal"


def _labels(axes: Any, panel: Panel, levels: list[tuple[str, float]], unit: Any) -> None:
    """At the right ends, moved apart where they would touch; each says its value at the longest context."""
    labels = [
        _Label(line.label, line.values[-1], COLOURS[index % len(COLOURS)], "normal" if line.is_part else "bold")
        for index, line in enumerate(panel.lines)
    ]
    labels += [_Label(name, level, GREY) for name, level in levels]
    low, high = (math.log(edge) for edge in axes.get_ylim())
    ends = [(math.log(max(label.value, 1e-30)) - low) / (high - low) for label in labels]
    for label, end, place in zip(labels, ends, spread(ends, LABEL_GAP, 0.0, 1.0), strict=True):
        axes.annotate(
            f"{label.text}: {unit(label.value)}",
            (1.0, end),
            (1.03, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            color=label.colour,
            fontweight=label.weight,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": label.colour,
                "linewidth": 0.6,
                "shrinkA": 1,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
        )
