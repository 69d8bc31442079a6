"""Figures of measurements, drawn with matplotlib where it is installed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benthic.bench.offline import Throughput
from benthic.bench.records import RequestRecord
from benthic.bench.replay import Replay
from benthic.errors import ConfigError

# Okabe and Ito's palette: told apart by colour-blind readers as well.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#999999"
SUFFIXES = (".svg", ".png", ".pdf")


def check_plotting(path: Path) -> None:
    """Whether a figure can be drawn there; asked before a long measurement.

    Raises:
        ConfigError: matplotlib is not installed, or the suffix names no known format.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"the plot's file is {str(path)!r}; its name must end in {', '.join(SUFFIXES)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"{path} cannot be drawn: matplotlib is not installed ({error}); install it by pip install 'benthic[plot]'"
        ) from error


def plot_load(path: Path, records: Sequence[RequestRecord], source: str) -> None:
    """Latencies as cumulative distributions, and tokens a second over the run."""
    figure, (left, right) = _figure(2)
    good = [record for record in records if record.is_ok]
    series = (
        ("first token", BLUE, [record.ttft_s for record in good]),
        ("whole answer", ORANGE, [record.e2e_s for record in good]),
    )
    for name, colour, values in series:
        ordered = sorted(value for value in values if value is not None)
        shares = [(i + 1) / len(ordered) for i in range(len(ordered))]
        left.plot(ordered, shares, color=colour, drawstyle="steps-post", label=name)
    left.set(xlabel="seconds since due", ylabel="share of requests", ylim=(0, 1))
    left.legend(frameon=False)
    ends, rates = output_rates(good)
    right.plot(ends, rates, color=GREEN)
    right.set(xlabel="seconds since start", ylabel="output tokens / s", ylim=(0, None))
    _save(figure, path, source)


def output_rates(records: Sequence[RequestRecord], num_bins: int = 60) -> tuple[list[float], list[float]]:
    """Output tokens a second in equal parts of a run: (ends, rates); a request's are spread evenly over its answer."""
    spans = [
        (record.due_s + record.ttft_s, record.due_s + record.e2e_s, record.output_len)
        for record in records
        if record.ttft_s is not None and record.e2e_s is not None
    ]
    width = max((end for _, end, _ in spans), default=1.0) / num_bins
    tokens = [0.0] * num_bins
    for start, end, count in spans:
        first, last = min(int(start / width), num_bins - 1), min(int(end / width), num_bins - 1)
        for place in range(first, last + 1):
            tokens[place] += count / (last - first + 1)
    return [width * (place + 1) for place in range(num_bins)], [count / width for count in tokens]


def plot_throughput(path: Path, results: Sequence[Throughput], source: str) -> None:
    """Decode rate by batch size."""
    figure, (axes,) = _figure(1)
    places = range(len(results))
    axes.bar(places, [result.decode_rate for result in results], color=BLUE)
    axes.set_xticks(places, [str(result.batch) for result in results])
    axes.set(xlabel="requests at once", ylabel="decoded tokens / s")
    _save(figure, path, source)


def plot_replays(path: Path, replays: Sequence[Replay], source: str) -> None:
    """What each retention policy could use, beside what was there in compressed form."""
    figure, (axes,) = _figure(1)
    places = range(len(replays))
    axes.bar(places, [replay.compressed_share for replay in replays], color=GREY, label="compressed entries there")
    axes.bar(places, [replay.usable_share for replay in replays], width=0.5, color=BLUE, label="usable")
    axes.set_xticks(places, [replay.retention for replay in replays])
    axes.set(ylabel="share of prompt tokens", ylim=(0, 1))
    axes.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    _save(figure, path, source)


def _figure(num_axes: int) -> tuple[Any, Any]:
    # The object interface: pyplot would keep state and choose a window system.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * num_axes, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, num_axes, squeeze=False)[0]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, path: Path, source: str) -> None:
    figure.supxlabel(source, fontsize=7, color=GREY)
    figure.savefig(path)
