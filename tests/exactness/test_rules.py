"""Rules of sampling hold at every token, whatever the engine does to make tokens come faster."""

import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from benthic.cache.geometry import CacheCapacity
from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.request import Request
from benthic.engine.sampling import SamplingParams
from benthic.engine.scoring import packed_logits
from benthic.models.transformer import Transformer
from tests.engine.scripted_drafter import OracleDrafter
from tests.engine.slow_sampling import ruled_logits
from tests.exactness.serving import answers, each_alone, serve
from tests.exactness.shapes import cases

END = 7
RULES: dict[str, dict[str, Any]] = {
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": -0.7},
    "repetition": {"repetition_penalty": 1.4},
    "bias": {"logit_bias": {5: 6.0, 9: -100.0}},
    "min_tokens": {"min_tokens": 11, "stop_token_ids": tuple(range(0, 512, 3))},
    "budget": {"thinking_budget": 9, "reasoning_end_id": END},
    "all": {
        "presence_penalty": 0.4, "frequency_penalty": 0.2, "repetition_penalty": 1.2, "logit_bias": {5: 2.0},
        "min_tokens": 13, "stop_token_ids": tuple(range(0, 512, 5)), "thinking_budget": 6, "reasoning_end_id": END,
    },
}  # fmt: skip


def requests_of(
    rules: dict[str, Any], temperature: float = 1.0, prompt_lens: tuple[int, ...] = (3, 140)
) -> list[Request]:
    rng = random.Random(str(rules))
    return [
        Request(
            request_id=f"r{i}",
            prompt_ids=tuple(rng.randrange(10, 60) for _ in range(length)),
            params=SamplingParams(
                **({"max_tokens": 22, "temperature": temperature, "seed": i, "logprobs": 2, "ignore_eos": True} | rules)
            ),
        )
        for i, length in enumerate(prompt_lens)
    ]


@pytest.mark.parametrize("name", RULES)
def test_greedy_tokens_are_the_best_of_the_ruled_logits(small_model: Transformer, name: str) -> None:
    for request in requests_of(RULES[name], temperature=0.0):
        [(ids, *_)] = each_alone(small_model, [request]).values()
        logits = packed_logits(small_model, [*request.prompt_ids, *ids])  # type: ignore[misc]
        stops = frozenset(request.params.stop_token_ids)
        for place, token in enumerate(ids):  # type: ignore[arg-type, var-annotated]
            row = logits[len(request.prompt_ids) + place - 1].tolist()
            ruled = ruled_logits(row, request.params, request.prompt_ids, ids[:place], stops)  # type: ignore[index]
            assert token == max(range(512), key=lambda v: (ruled[v], -v))


SETTINGS: dict[str, dict[str, Any]] = {
    "mtp": {"drafter": "mtp"}, "ngram": {"drafter": "ngram"}, "a pass ahead": {"overlap_steps": 1}
}  # fmt: skip
BY_DEFAULT = [*((name, "mtp") for name in RULES), ("all", "ngram"), ("all", "a pass ahead"), ("budget", "a pass ahead")]


@pytest.mark.parametrize(("name", "setting"), cases(product(RULES, SETTINGS), BY_DEFAULT))
def test_drafts_and_passes_ahead_change_no_token(small_model: Transformer, name: str, setting: str) -> None:
    requests = requests_of(RULES[name])
    engine = Engine(small_model, EngineConfig(max_num_seqs=4, draft_len=3, debug_checks=True, **SETTINGS[setting]))
    assert answers(serve(engine, requests)) == each_alone(small_model, requests)


@pytest.mark.parametrize(
    ("name", "error_rate"), cases(product(("min_tokens", "all"), (0.0, 0.3)), [("all", 0.0), ("min_tokens", 0.3)])
)
def test_rules_that_begin_or_end_inside_a_verified_window_are_kept(
    small_model: Transformer, name: str, error_rate: float
) -> None:
    requests = requests_of(RULES[name])
    expected = each_alone(small_model, requests)
    # The drafter knows what comes without the rules: it is wrong wherever they change something, and goes on beyond
    # stop tokens and forced ends.
    free = [replace(r, params=replace(r.params, stop_token_ids=(), min_tokens=0)) for r in requests]
    known = {
        r.request_id: [*r.prompt_ids, *found[0]]
        for r, found in zip(free, each_alone(small_model, free).values(), strict=True)
    }  # type: ignore[misc]
    for depth in (1, 4, 8):
        config = EngineConfig(max_num_seqs=4, drafter="ngram", draft_len=depth, draft_adaptive=False)
        engine = Engine(small_model, config, drafter=OracleDrafter(known, error_rate=error_rate, seed=depth))
        assert answers(serve(engine, requests)) == expected


@pytest.mark.parametrize("offset", cases(range(6), [0, 3, 5]))
def test_a_forced_end_falls_on_any_place_of_a_window(small_model: Transformer, offset: int) -> None:
    rules = {"thinking_budget": 8 + offset, "reasoning_end_id": END, "logit_bias": {END: -100.0}}
    requests = requests_of(rules)
    expected = each_alone(small_model, requests)
    for ids, *_ in expected.values():
        assert ids.index(END) == 8 + offset  # type: ignore[attr-defined]
        assert END not in ids[8 + offset + 1 :]  # type: ignore[index]
    known = {r.request_id: [*r.prompt_ids, *expected[r.request_id][0]] for r in requests}  # type: ignore[misc]
    config = EngineConfig(max_num_seqs=4, drafter="ngram", draft_len=5, draft_adaptive=False)
    assert answers(serve(Engine(small_model, config, drafter=OracleDrafter(known)), requests)) == expected


def test_rules_survive_retraction(small_model: Transformer) -> None:
    rules = [RULES[name] for name in ("presence", "repetition", "budget", "all")]
    requests = [replace(requests_of(own, prompt_lens=(115,))[0], request_id=str(i)) for i, own in enumerate(rules)]
    capacity = CacheCapacity(num_pages=5, num_windows=10, num_rows=4, max_len=256)
    engine = Engine(small_model, EngineConfig(max_num_seqs=4, admission_headroom=0), capacity=capacity)
    finals = serve(engine, requests, random.Random(0), 0.4)  # one after the other, so that each begins
    assert answers(finals) == each_alone(small_model, requests)
    assert sum(final.report.num_retractions for final in finals.values() if final.report) > 0
