"""What the host does for a step besides the model: plan, launch, commit and the cache's books, in ms a step.

    python benchmarks/engine/bench_bookkeeping.py --num_seqs 64 --steps 1280

Decoding requests at contexts of 4K, 64K and 1M tokens, over the real scheduler and cache manager; the model is a hash
that is not counted, and time is of this thread alone. Prompts are the same but for their last tokens, so that the
cache holds them once. Requests stand at even offsets within a page, and are measured for whole pages: pages complete
as often as they do in service.
"""

import argparse
import gc
import json
import time
from statistics import mean, median

from benthic.cache.geometry import CacheCapacity, CacheGeometry
from benthic.cache.layout import LayerCache
from benthic.cache.manager import CacheManager
from benthic.cache.retention import retention
from benthic.engine.plan import StepPlan
from benthic.engine.request import Request
from benthic.engine.sampling import SamplingParams
from benthic.engine.scheduler import Scheduler
from benthic.engine.sequence import Sequence
from benthic.engine.simulate import simulated_result

PAGE = 128
CONTEXTS = {"4K": 1 << 12, "64K": 1 << 16, "1M": 1 << 20}
LAYERS = (LayerCache(0, False, 512, 0), LayerCache(4, True, 512, 128), LayerCache(128, False, 512, 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num_seqs", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10 * PAGE)
    parser.add_argument("--draft_len", type=int, default=0)
    arguments = parser.parse_args()
    for name, context in CONTEXTS.items():
        times = measure(context, arguments.num_seqs, arguments.steps, arguments.draft_len)
        ranked = sorted(times)
        line = {
            "case": f"bookkeeping, {arguments.num_seqs} decoding at {name}, {arguments.draft_len} drafts",
            "ms_mean": round(mean(times), 4),
            "ms_median": round(median(times), 4),
            "ms_p99": round(ranked[int(0.99 * len(ranked))], 4),
        }
        print(json.dumps(line), flush=True)


def measure(context: int, num_seqs: int, steps: int, draft_len: int) -> list[float]:
    """Milliseconds of each step."""
    scheduler, cache, sequences = decoding(context, num_seqs, steps * (1 + draft_len), draft_len)
    times = []
    gc.collect()
    gc.freeze()
    for _ in range(steps):
        for sequence in sequences if draft_len else ():
            sequence.drafts = (-1,) * draft_len  # never right
        start = time.thread_time()
        plan = scheduler.plan()
        cache.take_work()
        scheduler.launched(plan)
        planned = time.thread_time()
        result = simulated_result(plan)
        resumed = time.thread_time()
        scheduler.committed(plan, result)
        times.append(1e3 * (time.thread_time() - resumed + planned - start))
        assert len(plan.chunks) == num_seqs, len(plan.chunks)
    gc.unfreeze()
    return times


def decoding(
    context: int, num_seqs: int, num_tokens: int, draft_len: int
) -> tuple[Scheduler, CacheManager, list[Sequence]]:
    """Requests that have just begun to decode."""
    max_len = context + num_tokens + 3 * PAGE
    private_pages = num_seqs * (num_tokens // PAGE + 4)
    geometry = CacheGeometry(PAGE, 128, LAYERS, len(LAYERS), draft_len)
    capacity = CacheCapacity(max_len // PAGE + private_pages, 64 + 8 * num_seqs, num_seqs, max_len)
    cache = CacheManager(geometry, capacity, retention("boundaries", page_size=PAGE))
    scheduler = Scheduler(cache, max_num_seqs=num_seqs, max_batched_tokens=8192, prefill_chunk=8192)
    shared = tuple(token % 50_000 for token in range(context - 2 * PAGE))
    sequences = []
    for number in range(num_seqs):
        prompt = (*shared, *range(number, number + PAGE + number * PAGE // num_seqs))
        params = SamplingParams(seed=number, ignore_eos=True)
        request = Request(request_id=f"r{number}", prompt_ids=prompt, params=params)
        sequence = Sequence(request, number, max_len, frozenset(), is_serial=draft_len > 0, arrived_s=number)
        sequences.append(sequence)
        scheduler.add(sequence)
        while sequence.num_generated == 0:
            run(scheduler, cache, scheduler.plan())
    return scheduler, cache, sequences


def run(scheduler: Scheduler, cache: CacheManager, plan: StepPlan) -> None:
    cache.take_work()
    scheduler.launched(plan)
    scheduler.committed(plan, simulated_result(plan))


if __name__ == "__main__":
    main()
