"""Two promises of the engine in one run: many requests at once are fast, and a known prefix is fast.

    OMP_NUM_THREADS=1 python benchmarks/engine/bench_throughput.py [--model tiny] [--repeats 5] [--drafter mtp]

1. Decoded tokens a second with 1, 8 and 32 requests at once, and the ratio to one request.
2. Time to the first token of a prompt whose first 4096 tokens are shared, cold and found in the cache.

Medians of the repeats; both cases are measured in turn within each repeat, so that a machine whose speed drifts
disturbs their ratio less. Prompts are new in every repeat.
"""

import argparse
import statistics
import time
from dataclasses import replace
from random import Random
from typing import Any

import benthic
from benthic.bench.hardware import hardware_line
from benthic.bench.offline import HEADER, OfflineConfig, Throughput, measure, report_line

BATCHES = (1, 8, 32)
PREFIX = 4096
TAIL = 32
GOAL_RATIO, GOAL_HIT = 9.0, 8.0


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="tiny")
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--prompt-len", type=int, default=128)
    arguments.add_argument("--output-len", type=int, default=64)
    arguments.add_argument("--drafter", default="none")
    options = arguments.parse_args()
    with benthic.LLM(options.model, drafter=options.drafter) as llm:
        print(hardware_line(llm.model.device))
        print(f"# model {options.model}, drafter {options.drafter}, medians of {options.repeats}")
        throughput(llm, options)
    first_token(options)


def throughput(llm: benthic.LLM, options: argparse.Namespace) -> None:
    """Prints a line a batch size."""
    config = OfflineConfig(batches=BATCHES, prompt_len=options.prompt_len, output_len=options.output_len, repeats=1)
    runs = [list(measure(llm, replace(config, seed=i), llm.model.config.vocab_size)) for i in range(options.repeats)]
    results = [median_of([run[place] for run in runs]) for place in range(len(BATCHES))]
    print(HEADER)
    for result in results:
        print(report_line(result, results[0]))
    ratio = results[-1].decode_rate / results[0].decode_rate
    ratios = sorted(run[-1].decode_rate / run[0].decode_rate for run in runs)
    print(
        f"batch {BATCHES[-1]} / batch 1: {ratio:.1f} (from {ratios[0]:.1f} to {ratios[-1]:.1f}; goal {GOAL_RATIO:g})\n"
    )


def median_of(results: list[Throughput]) -> Throughput:
    """Field by field."""
    names = ("total_s", "prefill_s", "decode_rate", "output_rate")
    values: dict[str, Any] = {name: statistics.median(getattr(result, name) for result in results) for name in names}
    return replace(results[0], **values)


def first_token(options: argparse.Namespace) -> None:
    """Prints cold, hit, and their ratio."""
    rng = Random(7)
    params = benthic.SamplingParams(max_tokens=1, temperature=0)
    cold_s, hit_s = [], []
    with benthic.LLM(options.model, drafter=options.drafter) as llm:
        ids = range(100, llm.model.config.vocab_size - 100)
        length = min(PREFIX, llm.max_model_len - TAIL - 2) // 128 * 128
        llm.generate([rng.choices(ids, k=200)], params)
        for _ in range(options.repeats):
            prefix = rng.choices(ids, k=length)
            cold_s.append(seconds(llm, prefix + rng.choices(ids, k=TAIL), params))
            llm.generate([prefix + rng.choices(ids, k=TAIL)], params)  # here the branch is seen and its window kept
            hit_s.append(seconds(llm, prefix + rng.choices(ids, k=TAIL), params))
    cold, hit = statistics.median(cold_s), statistics.median(hit_s)
    print(f"first token after {length} shared tokens and {TAIL} of its own:")
    print(f"  cold {cold * 1e3:8.1f} ms (from {min(cold_s) * 1e3:.1f} to {max(cold_s) * 1e3:.1f})")
    print(f"  hit  {hit * 1e3:8.1f} ms (from {min(hit_s) * 1e3:.1f} to {max(hit_s) * 1e3:.1f})")
    print(f"  cold / hit: {cold / hit:.1f} (goal {GOAL_HIT:g})")


def seconds(llm: benthic.LLM, prompt: list[int], params: benthic.SamplingParams) -> float:
    start = time.perf_counter()
    llm.generate([prompt], params)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
