"""Decode and prefill of full-width V4-Flash layers on one GPU, kernel by kernel, and what 43 of them would take.

    python benchmarks/model/bench_layers.py decode --rows 1 32 128 --contexts 4096 32768 --profile
    python benchmarks/model/bench_layers.py prefill --contexts 4096 32768 --chunk 4096

Every layer kind is one block with dummy weights in the released formats, over a paged cache in the official format.
A line a case: microseconds a layer of each kind, its floor (floors.py) and launches; then the whole model's step, 43
layers and head, beside its floor. Weights and pages of a case are beyond the second-level cache from some rows on; one
row of a layer reads 190 MB of weights.
"""

import argparse
import json
import platform
import shlex
import sys
from collections import defaultdict

import torch
from floors import head_floor, layer_floor
from measure import Launch, Measured, commit, gpu_name, measure, positive
from world import IN_FLASH, World, build_world

from benthic.models.block import Block
from benthic.models.context import AttentionContext

MAX_NAME = 68


def main() -> None:
    """Parses the cases, builds one world for all of them and reports."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("what", choices=["decode", "prefill"])
    arguments.add_argument("--rows", type=positive, nargs="+", default=[1, 32, 128])
    arguments.add_argument("--contexts", type=positive, nargs="+", default=[4096, 32768])
    arguments.add_argument("--kinds", nargs="+", choices=list(IN_FLASH), default=list(IN_FLASH))
    arguments.add_argument("--chunk", type=positive, default=4096)
    arguments.add_argument("--profile", action="store_true", help="list the kernels of every case")
    arguments.add_argument("--apart", action="store_true", help="entries are made by operations one by one")
    arguments.add_argument("--one-stream", action="store_true", help="branches run one after the other")
    arguments.add_argument("--json", help="append measurements to this file")
    options = arguments.parse_args()
    print(f"# {gpu_name()}, torch {torch.__version__}, python {platform.python_version()}")
    is_decode = options.what == "decode"
    rows = options.rows if is_decode else [1]
    world = build_world(options.kinds, max(rows), max(options.contexts), 0 if is_decode else options.chunk)
    world.in_place, world.one_stream = not options.apart, options.one_stream
    print(
        f"# weights and cache: {torch.cuda.memory_allocated() / 1e9:.1f} GB, "
        f"peak {torch.cuda.max_memory_allocated() / 1e9:.1f} GB"
    )
    with torch.inference_mode():
        for context in options.contexts:
            for number in rows:
                chunk = min(options.chunk, context)
                where = world.decode(number, context) if is_decode else world.prefill(chunk, context)
                case = {"what": options.what, "rows": number if is_decode else chunk, "context": context}
                _report(world, where, options, case)


def _report(world: World, where: AttentionContext, options: argparse.Namespace, case: dict[str, object]) -> None:
    """Measures every kind and the head; prints and keeps what was seen."""
    config, rows = world.model.config, len(where.rows.token_ids)
    embedded = world.model.embedding(where.rows.token_ids)[:, None, :].expand(-1, config.hc_mult, -1).contiguous()
    step = floor = 0.0
    print(f"\n{case['what']} {case['rows']} rows, context {case['context']}")
    for kind, spec, block in zip(options.kinds, config.layers, world.model.layers, strict=True):
        assert isinstance(block, Block)
        before = block(embedded, where)
        seen = measure(lambda block=block, before=before: block(before, where))
        parts = layer_floor(config, spec, rows, int(str(case["context"])))
        least = sum(parts.values()) if case["what"] == "decode" else 0.0
        step, floor = step + IN_FLASH[kind] * seen.us, floor + IN_FLASH[kind] * least
        _line(kind, seen, least)
        if options.profile:
            _kernels(seen.launches)
        _keep(options.json, case | {"kind": kind, "us": seen.us, "floor_us": least, "launches": len(seen.launches)})
    if case["what"] == "decode":
        last = world.model.layers[-1]
        assert isinstance(last, Block)
        head = measure(lambda: world.model.logits(world.model.hidden(last.merged(before))))
        _line("head", head, head_floor(config))
        step, floor = step + head.us, floor + head_floor(config)
        if len(options.kinds) == len(IN_FLASH):
            print(
                f"  {'43 layers':<9} {step:9.0f} us   floor {floor:8.0f}   {step / floor:5.2f}x   "
                f"{rows / step * 1e6:9.0f} tokens/s"
            )
            _keep(options.json, case | {"kind": "step", "us": step, "floor_us": floor})


def _line(kind: str, seen: Measured, least: float) -> None:
    ratio = f"floor {least:8.1f}   {seen.us / least:5.2f}x" if least else ""
    in_kernels = sum(launch.us for launch in seen.launches)
    form = "" if seen.is_graph else "   (no graph)"
    print(
        f"  {kind:<9} {seen.us:9.1f} us   {ratio}   {len(seen.launches):3d} launches, "
        f"{in_kernels:8.1f} us in them{form}"
    )


def _kernels(launches: list[Launch]) -> None:
    """Kernels by time, those of one name together."""
    times: dict[str, list[float]] = defaultdict(list)
    for launch in launches:
        times[launch.name].append(launch.us)
    for name, each in sorted(times.items(), key=lambda item: -sum(item[1])):
        print(f"      {sum(each):8.1f} us  {len(each):2d} x  {name[:MAX_NAME]}")


def _keep(path: str | None, record: dict[str, object]) -> None:
    if path:
        context = {"commit": commit(), "torch": torch.__version__, "command": shlex.join(["python", *sys.argv])}
        with open(path, "a") as lines:
            lines.write(json.dumps({"device": torch.cuda.get_device_name(), **record, **context}) + "\n")


if __name__ == "__main__":
    main()
