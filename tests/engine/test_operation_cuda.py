"""On a GPU: the cache's memory really goes back to the device, and a trace shows the device's kernels."""

import gc
import gzip
import json
import random
from pathlib import Path

import pytest
import torch

from benthic.cache.geometry import CacheCapacity
from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.profiling import Profiler, ProfileWish
from benthic.models.checkpoint import dummy_model
from benthic.models.transformer import Transformer
from tests.engine.conftest import CONFIG
from tests.exactness.serving import Bits, assert_same, ids, request, serve

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def model() -> Transformer:
    return dummy_model(CONFIG, seed=3, device="cuda", dtype=torch.bfloat16).freeze()


CAPACITY = CacheCapacity(num_pages=8000, num_windows=4000, num_rows=8, max_len=900)
POOL_BYTES = 4000 * 44_000 + 8000 * 6_000
"""Of these windows and pages, and a little less: what a lender must give back."""


def engine_of(model: Transformer) -> Engine:
    return Engine(model, EngineConfig(max_num_seqs=8, cache_bytes=1 << 28, graph_rows=(1, 4)), capacity=CAPACITY)


def fill_holes() -> list[torch.Tensor]:
    """Takes what torch has free beside tensors of earlier tests: pools that lay there would free no whole piece of it,
    and only whole pieces go back to the device."""
    taken = []
    gc.collect()  # engines of earlier tests would leave holes later
    torch.cuda.empty_cache()
    for size in (1 << power for power in range(30, 20, -1)):
        while True:
            reserved = torch.cuda.memory_reserved()
            taken.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            if torch.cuda.memory_reserved() > reserved:
                taken.pop()
                torch.cuda.empty_cache()
                break
    return taken


def test_released_memory_is_the_devices_and_answers_are_the_same_afterwards(model: Transformer) -> None:
    holes = fill_holes()
    rng = random.Random(5)
    requests = [request(f"r{n}", ids(rng, 20 + 30 * n), max_tokens=20) for n in range(4)]
    engine = engine_of(model)
    engine.warm_up(lambda text: None)
    before = {name: Bits.of(final) for name, final in serve(engine, requests).items()}
    held, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    engine.pause("keep")
    engine.release_memory()
    assert held - torch.cuda.memory_allocated() > POOL_BYTES
    assert reserved - torch.cuda.memory_reserved() > POOL_BYTES
    engine.take_memory()
    engine.resume()
    assert_same(before, serve(engine, requests))
    assert engine.stats().num_replayed_steps > 0
    del holes


def test_a_trace_holds_the_devices_kernels(model: Transformer, tmp_path: Path) -> None:
    engine, profiler = engine_of(model), Profiler()
    path = profiler.start(ProfileWish(folder=str(tmp_path)))
    engine.add(request("a", list(range(2, 40)), max_tokens=8))
    while engine.has_work():
        with profiler.step():
            engine.step()
    assert profiler.stop() == path
    with gzip.open(path) as file:
        kinds = {event.get("cat") for event in json.load(file)["traceEvents"]}
    assert {"kernel", "cpu_op", "user_annotation"} <= kinds
