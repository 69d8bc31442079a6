"""Draws one figure a kernel from measurements: share of the roof by case, one mark an implementation.

    python benchmarks/kernels/plot_cuda.py benchmarks/results/h200.jsonl docs/figures/kernels

What an order costs beside others (`bench_exactness_cost`) is a table of docs/hopper.md: dozens of forms, few a case.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

plt.rcParams["svg.hashsalt"] = "benthic"  # equal measurements draw equal files
MARKS = "osD^vP"
WITHOUT_FIGURE = {"exactness_cost"}


def newest(path: Path) -> dict[str, dict[tuple[str, str], dict[str, Any]]]:
    """Operation -> (case, implementation) -> its last measurement in the file."""
    found: dict[str, dict[tuple[str, str], dict[str, Any]]] = defaultdict(dict)
    for text in path.read_text().splitlines():
        one = json.loads(text)
        if one["op"] not in WITHOUT_FIGURE:
            found[one["op"]][one["case"], one["implementation"]] = one
    return found


def draw(op: str, measured: dict[tuple[str, str], dict[str, Any]], folder: Path) -> Path:
    """One dot chart; returns its file."""
    cases = list(dict.fromkeys(case for case, _ in measured))
    names = list(dict.fromkeys(name for _, name in measured))
    assert len(names) <= len(MARKS), f"{op} has {len(names)} implementations and there are {len(MARKS)} marks"
    figure, axes = plt.subplots(figsize=(7.5, 1.2 + 0.28 * len(cases)), layout="constrained")
    for name, mark in zip(names, MARKS, strict=False):
        points = [(100 * measured[case, name]["roof"], y) for y, case in enumerate(cases) if (case, name) in measured]
        axes.plot(*zip(*points, strict=True), mark, label=name, markersize=6, alpha=0.85)
    axes.set_yticks(range(len(cases)), cases)
    axes.invert_yaxis()
    axes.set_xlim(0, max(105, 103 * max(one["roof"] for one in measured.values())))
    axes.set_xlabel("share of the roof, % (bytes at 4.26 TB/s or operations at the measured peak)")
    axes.grid(axis="x", color="0.9")
    axes.spines[["top", "right", "left"]].set_visible(False)
    device = next(iter(measured.values()))["context"]["device"]
    axes.set_title(f"{op}, {device}", loc="left", fontsize=10)
    axes.legend(loc="lower right", frameon=False, fontsize=8)
    path = folder / f"{op}.svg"
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path


def main() -> None:
    """See the module."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("results", type=Path, help="measurements, one JSON object a line")
    arguments.add_argument("folder", type=Path, help="where the figures go")
    options = arguments.parse_args()
    if not options.results.is_file():
        arguments.error(f"{options.results} is no file; it takes what a bench wrote with --out")
    options.folder.mkdir(parents=True, exist_ok=True)
    for op, measured in newest(options.results).items():
        print(draw(op, measured, options.folder))


if __name__ == "__main__":
    main()
