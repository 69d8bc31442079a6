"""Failures that others had with drafts, each as a test: what the drafter sees, and what it proposes when.

The reference of a proposal is the packed path: the prediction block over the whole text at once, no cache, no batch.
"""

import random
from collections.abc import Sequence as Seq
from dataclasses import replace

import pytest
import torch

from benthic.cache.geometry import CacheCapacity
from benthic.engine.config import EngineConfig
from benthic.engine.drafting import ComputedPass, MtpDrafter
from benthic.engine.engine import Engine
from benthic.engine.request import FinalOutput, Request
from benthic.engine.sampling import SamplingParams
from benthic.models.checkpoint import dummy_model
from benthic.models.packed import PackedContext
from benthic.models.rows import build_rows
from benthic.models.transformer import Transformer
from tests.engine.conftest import CONFIG
from tests.exactness.serving import serve


class RecordingDrafter(MtpDrafter):
    """Remembers what it proposed after how many tokens of which request, and how many rows it saw at once."""

    def __init__(self, model: Transformer) -> None:
        super().__init__(model)
        self.proposed: dict[str, dict[int, tuple[int, ...]]] = {}
        self.num_rows: list[int] = []
        self.shapes: set[tuple[int, ...]] = set()

    def observe(self, computed: ComputedPass, depths: Seq[int]) -> list[list[int]]:
        self.num_rows.append(computed.rows.num_rows)
        self.shapes.add(tuple(computed.streams.shape[1:]))
        return super().observe(computed, depths)

    def propose(self, request_id: str, tokens: Seq[int], depth: int, observed: Seq[int]) -> tuple[int, ...]:
        drafts = super().propose(request_id, tokens, depth, observed)
        self.proposed.setdefault(request_id, {})[len(tokens)] = drafts
        return drafts


def recorded(
    model: Transformer, requests: list[Request], depth: int, **settings: object
) -> tuple[RecordingDrafter, dict[str, FinalOutput]]:
    drafter = RecordingDrafter(model)
    defaults: dict[str, object] = {"max_num_seqs": 4, "cache_bytes": 1 << 26, "draft_adaptive": False}
    config = EngineConfig(drafter="mtp", draft_len=depth, **(defaults | settings))  # type: ignore[arg-type]
    return drafter, serve(Engine(model, config, drafter=drafter), requests)


def request_of(name: str, prompt_len: int, max_tokens: int = 12) -> Request:
    rng = random.Random(prompt_len)
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return Request(request_id=name, prompt_ids=tuple(rng.randrange(2, 512) for _ in range(prompt_len)), params=params)


@torch.inference_mode()
def first_drafts(model: Transformer, ids: Seq[int]) -> list[int]:
    """What the packed path would propose first after 2, 3, ... len(ids) tokens."""
    rows = build_rows([(0, 0, ids[:-1])], model.min_rows)
    context = PackedContext(model.config, rows)
    next_ids = torch.zeros_like(rows.token_ids)
    next_ids[: len(ids) - 1] = torch.tensor(ids[1:])
    streams = model.mtp_forward(0, model(rows, context), next_ids, context)
    return model.logits(model.mtp_hidden(0, streams))[: len(ids) - 1].argmax(-1).tolist()


def check_first_drafts(
    model: Transformer, drafter: RecordingDrafter, requests: list[Request], finals: dict[str, FinalOutput]
) -> None:
    for request in requests:
        ids = [*request.prompt_ids, *finals[request.request_id].token_ids]
        expected = first_drafts(model, ids)
        proposed = drafter.proposed[request.request_id]
        assert proposed
        for known, drafts in proposed.items():
            assert drafts[:1] == (expected[known - 2],)[: len(drafts)], (request.request_id, known)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("chunk", [2048, 32], ids=["whole prompts", "chunks"])
def test_the_draft_block_sees_prompt_accepted_tokens_and_hits(small_model: Transformer, depth: int, chunk: int) -> None:
    """B57, B58: on prompts of 1, 20 and 300 tokens, and when they come again from the cache."""
    requests = [request_of(f"{turn} {length}", length) for turn in ("cold", "warm") for length in (1, 20, 300)]
    drafter, finals = recorded(small_model, requests, depth, max_batched_tokens=max(chunk, 40), prefill_chunk=chunk)
    assert finals["warm 300"].cached_len > 0
    check_first_drafts(small_model, drafter, requests, finals)


def test_drafts_stay_with_their_request_when_others_leave_the_batch(small_model: Transformer) -> None:
    """B67."""
    requests = [request_of(f"r{n}", 50 + n, max_tokens=n) for n in (3, 7, 20, 5, 30, 9, 14)]
    drafter, finals = recorded(small_model, requests, 2)
    check_first_drafts(small_model, drafter, requests, finals)


@pytest.mark.parametrize("ratios", [(0, 4, 128, 4, 0), (128, 128, 4, 4, 0)], ids=["window first", "compressed first"])
def test_the_draft_block_attends_by_its_own_entry_of_the_ratio_list(ratios: tuple[int, ...]) -> None:
    """B55."""
    model = dummy_model(replace(CONFIG, compress_ratios=ratios), seed=3, device="cpu").freeze()
    requests = [request_of("a", 200)]
    drafter, finals = recorded(model, requests, 2)
    check_first_drafts(model, drafter, requests, finals)


def test_the_first_draft_does_not_depend_on_the_depth(small_model: Transformer) -> None:
    """B59: whatever was guessed before, and however much of it was wrong."""
    found: list[dict[int, int]] = []
    for depth in (1, 2, 4, 8):
        drafter, _ = recorded(small_model, [request_of("a", 90, max_tokens=30)], depth)
        found.append({known: drafts[0] for known, drafts in drafter.proposed["a"].items() if drafts})
    for deeper in found[1:]:
        common = found[0].keys() & deeper.keys()
        assert len(common) > 3
        assert all(found[0][known] == deeper[known] for known in common)


def test_the_draft_block_is_handed_every_residual_stream(small_model: Transformer) -> None:
    """B56."""
    drafter, _ = recorded(small_model, [request_of("a", 20)], 3)
    assert drafter.shapes == {(CONFIG.hc_mult, CONFIG.hidden_size)}


def test_chunks_stay_as_small_as_asked_for_with_drafts(small_model: Transformer) -> None:
    """B60."""
    drafter, finals = recorded(
        small_model, [request_of("a", 200)], 3, max_num_seqs=2, max_batched_tokens=16, prefill_chunk=16
    )
    assert max(drafter.num_rows) <= 16
    assert sum(drafter.num_rows[:13]) >= 200
    plain = serve(Engine(small_model, EngineConfig(cache_bytes=1 << 26)), [request_of("a", 200)])
    assert finals["a"].token_ids == plain["a"].token_ids


@pytest.mark.parametrize("num_windows", [8, 3], ids=["room", "no room"])
def test_a_chain_that_reaches_into_the_next_page_takes_it_or_stays_short(
    small_model: Transformer, num_windows: int
) -> None:
    """Drafts store entries ahead of the sequence: never in a page of nobody."""
    request = request_of("a", 100, max_tokens=40)
    drafter = RecordingDrafter(small_model)
    capacity = CacheCapacity(num_pages=4, num_windows=num_windows, num_rows=1, max_len=300)
    config = EngineConfig(max_num_seqs=1, drafter="mtp", draft_len=8, draft_adaptive=False, debug_checks=True)
    finals = serve(Engine(small_model, config, drafter=drafter, capacity=capacity), [request])
    check_first_drafts(small_model, drafter, [request], finals)
    assert max(len(drafts) for drafts in drafter.proposed["a"].values()) == 8


def test_a_second_request_takes_the_last_window_and_the_chain_stays_short(small_model: Transformer) -> None:
    requests = [request_of("a", 120, max_tokens=30), request_of("b", 122, max_tokens=30)]
    drafter = RecordingDrafter(small_model)
    capacity = CacheCapacity(num_pages=8, num_windows=4, num_rows=2, max_len=200)
    config = EngineConfig(
        max_num_seqs=2, drafter="mtp", draft_len=8, draft_adaptive=False, admission_headroom=0, debug_checks=True
    )
    finals = serve(Engine(small_model, config, drafter=drafter, capacity=capacity), requests)
    check_first_drafts(small_model, drafter, requests, finals)
