"""What users would see of the scheduler alone: simulated traffic on a simulated clock, one JSON line a case.

    python benchmarks/engine/bench_scheduling.py --num_requests 300

A pass costs 5 ms, 20 us a row and 1 us a page of context. Times are simulated seconds; `us_per_row` is what the real
bookkeeping took for each row of a pass, in this thread. Short requests are those of at most 300 prompt tokens.
"""

import argparse
import json
import time
from dataclasses import replace

from benthic.cache.geometry import CacheCapacity, CacheGeometry
from benthic.cache.layout import LayerCache
from benthic.cache.manager import CacheManager
from benthic.cache.retention import retention
from benthic.engine.scheduler import Scheduler
from benthic.engine.simulate import Simulation, SimulationReport
from benthic.engine.synthetic_trace import Arrival, TraceConfig, synthetic_trace

PAGE, MAX_LEN, SHORT = 128, 1 << 15, 300
LAYERS = (LayerCache(0, False, 512, 0), LayerCache(4, True, 512, 128), LayerCache(128, False, 512, 0))
STEADY = TraceConfig(rate_per_s=10.0, prompt_len=(50, 2000), output_len=(20, 400))
CASES = {
    "steady": (STEADY, 4000),
    "bursts of 20": (replace(STEADY, burst=20), 4000),
    "shared prefix of 4096": (replace(STEADY, num_prefixes=4, prefix_len=4096, prompt_len=(50, 300)), 4000),
    "long prompts among short ones": (replace(STEADY, rate_per_s=4.0, prompt_len=(20, 30_000)), 4000),
    "three priorities": (replace(STEADY, rate_per_s=20.0, priorities=(-1, 0, 1)), 4000),
    "too little memory": (replace(STEADY, rate_per_s=40.0, output_len=(200, 2000)), 260),
    "aborts": (replace(STEADY, rate_per_s=20.0, abort_share=0.5), 1000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num_requests", type=int, default=300)
    parser.add_argument("--overlap_steps", type=int, default=1)
    parser.add_argument("--draft_len", type=int, default=0)
    arguments = parser.parse_args()
    for name, (config, pages) in CASES.items():
        trace = synthetic_trace(replace(config, num_requests=arguments.num_requests))
        start = time.thread_time()
        report = play(trace, pages, arguments.overlap_steps, arguments.draft_len)
        print(json.dumps({"case": name, **figures(report, time.thread_time() - start)}), flush=True)


def play(trace: list[Arrival], pages: int, overlap_steps: int, draft_len: int) -> SimulationReport:
    geometry = CacheGeometry(PAGE, 128, LAYERS, len(LAYERS), draft_len)
    capacity = CacheCapacity(pages, 600, 64, MAX_LEN)
    cache = CacheManager(geometry, capacity, retention("boundaries", page_size=PAGE))
    scheduler = Scheduler(cache, max_num_seqs=64, max_batched_tokens=2048, prefill_chunk=256)
    return Simulation(scheduler, cache, max_len=MAX_LEN, overlap_steps=overlap_steps, draft_len=draft_len).run(trace)


def figures(report: SimulationReport, host_s: float) -> dict[str, object]:
    short = [
        line.first_token_s - line.arrived_s
        for line in report.timelines.values()
        if line.first_token_s is not None and line.final is not None and line.final.prompt_len <= SHORT
    ]
    return {
        "requests": len(report.timelines),
        "simulated_s": round(report.duration_s, 2),
        "steps": report.num_steps,
        "ttft_p50_p95_max": [round(value, 3) for value in report.first_token_s],
        "short_ttft_max": round(max(short, default=0.0), 3),
        "tpot_p50_p95_max": [round(value, 4) for value in report.per_token_s],
        "queued_p50_p95_max": [round(value, 3) for value in report.queued_s],
        "longest_gap": round(report.longest_gap_s, 3),
        "retractions": report.num_retractions,
        "hit_rate": round(report.hit_rate, 3),
        "us_per_row": round(1e6 * host_s / report.num_rows, 2),
    }


if __name__ == "__main__":
    main()
