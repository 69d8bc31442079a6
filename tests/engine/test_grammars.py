"""Answers spell what their grammars say, with the tokens that they have alone, however they are computed."""

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from benthic.cache.geometry import CacheCapacity
from benthic.engine.config import EngineConfig
from benthic.engine.drafting import Drafter
from benthic.engine.engine import Engine
from benthic.engine.grammar import Grammar
from benthic.engine.graphs import EagerGraphs
from benthic.engine.request import FinalOutput, Request
from benthic.errors import RequestError
from benthic.models.transformer import Transformer
from tests.engine.automaton_masks import END_ID, Automaton, AutomatonMasks, chain, random_automaton
from tests.engine.scripted_drafter import OracleDrafter
from tests.exactness.serving import Bits, answers, assert_same, ids, request, serve

VOCAB_SIZE = 512
THINK_END = 4
A, B, C = 20, 21, 22


def engine_of(model: Transformer, guesser: Drafter | None = None, **settings: object) -> Engine:
    given: dict[str, object] = {"max_num_seqs": 8, "cache_bytes": 1 << 26, "debug_checks": True}
    own: dict[str, object] = {name: settings.pop(name) for name in ("graphs", "capacity") if name in settings}
    config = EngineConfig(**{**given, **settings})  # type: ignore[arg-type]
    return Engine(model, config, drafter=guesser, masks=AutomatonMasks(), **own)  # type: ignore[arg-type]


def each_alone(model: Transformer, requests: list[Request]) -> dict[str, Bits]:
    """One after the other, without cache, neighbours or drafts."""
    engine = engine_of(model, prefix_cache=False, overlap_steps=0)
    found: dict[str, Bits] = {}
    for one in requests:
        found |= answers(serve(engine, [one]))
    return found


class Asked:
    """Random requests, most with a grammar, some after reasoning; and the automata."""

    def __init__(self, seed: int, count: int = 8, longest: int = 140) -> None:
        rng = random.Random(seed)
        self.automata: dict[str, Automaton] = {}
        self.requests: list[Request] = []
        for n in range(count):
            name, automaton = f"r{n}", random_automaton(rng, VOCAB_SIZE)
            params: dict[str, object] = {
                "max_tokens": rng.randint(1, 30),
                "seed": n,
                "temperature": rng.choice([0.0, 0.7, 1.0]),
                "top_p": rng.choice([1.0, 0.9]),
                "min_p": rng.choice([0.0, 0.1]),
                "min_tokens": rng.choice([0, 0, 1]),
                "ignore_eos": rng.random() < 0.2,
                "frequency_penalty": rng.choice([0.0, 0.0, 0.5]),
                "logit_bias": {END_ID: rng.choice([0.0, 60.0])},
            }
            if n % 4 != 3:
                starts_after = rng.choice([None, THINK_END])
                if starts_after is not None:
                    params |= {"reasoning_end_id": THINK_END, "thinking_budget": rng.randrange(6)}
                params["grammar"] = automaton.grammar(starts_after)
                self.automata[name] = automaton
            self.requests.append(request(name, ids(rng, rng.randint(1, longest)), **params))

    def check(self, finals: Mapping[str, Bits]) -> None:
        for one in self.requests:
            if one.request_id not in self.automata:
                continue
            bits, grammar = finals[one.request_id], one.params.grammar
            assert bits.error is None and grammar is not None
            tokens = list(bits.token_ids)
            if grammar.starts_after is not None:
                begin = tokens.index(THINK_END) + 1 if THINK_END in tokens else len(tokens)
                assert one.params.ignore_eos or END_ID not in tokens[:begin]
                tokens = tokens[begin:]
            verdict = self.automata[one.request_id].verdict(tokens)
            assert verdict == "whole" if bits.finish_reason == "stop" else verdict != "wrong", (one, bits)


@pytest.fixture(
    scope="module",
    params=[0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 12))],
)
def asked(request: pytest.FixtureRequest, small_model: Transformer) -> tuple[Asked, dict[str, Bits]]:
    own = Asked(request.param)
    return own, each_alone(small_model, own.requests)


def test_every_answer_is_a_word_of_its_grammar_or_the_beginning_of_one(asked: tuple[Asked, dict[str, Bits]]) -> None:
    own, expected = asked
    own.check(expected)
    reasons = [expected[name].finish_reason for name in own.automata]
    assert "stop" in reasons


WAYS: dict[str, dict[str, object]] = {
    "in a batch": {},
    "a pass in flight": {"overlap_steps": 1},
    "replayed": {"graphs": EagerGraphs(), "graph_rows": (16, 40)},
    "lookup": {"drafter": "ngram", "draft_len": 4, "draft_adaptive": False},
    "chain": {"drafter": "mtp", "draft_len": 3, "draft_adaptive": False},
    "chain, replayed": {
        "drafter": "mtp", "draft_len": 3, "draft_adaptive": False, "graphs": EagerGraphs(), "graph_rows": (16, 40),
    },
    "chunks and retractions": {
        "prefill_chunk": 20, "admission_headroom": 0, "max_model_len": 192,
        "capacity": CacheCapacity(num_pages=5, num_windows=12, num_rows=12, max_len=192),
    },
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_the_tokens_are_those_of_a_request_alone(
    small_model: Transformer, asked: tuple[Asked, dict[str, Bits]], way: dict[str, object]
) -> None:
    own, expected = asked
    engine = engine_of(small_model, **way)
    assert_same(expected, serve(engine, own.requests, random.Random(1), 0.5))
    engine.close()


@pytest.mark.parametrize("error_rate", [0.0, 0.3])
def test_drafts_change_no_token_and_those_that_break_the_grammar_are_not_verified(
    small_model: Transformer, asked: tuple[Asked, dict[str, Bits]], error_rate: float
) -> None:
    own, expected = asked
    whole = {one.request_id: (*one.prompt_ids, *expected[one.request_id].token_ids) for one in own.requests}
    guesser = OracleDrafter(whole, error_rate=error_rate, vocab_size=VOCAB_SIZE)
    engine = engine_of(small_model, guesser, drafter="ngram", draft_len=5, draft_adaptive=False)
    finals = serve(engine, own.requests)
    assert_same(expected, finals)
    assert engine.stats().num_accepted > 10
    if not error_rate:
        assert all(
            final.report is not None and final.report.drafted == final.report.accepted for final in finals.values()
        )


def test_a_pause_that_takes_the_memory_back_keeps_the_place_in_the_grammar(
    small_model: Transformer, asked: tuple[Asked, dict[str, Bits]]
) -> None:
    own, expected = asked
    engine = engine_of(small_model)
    finals: dict[str, FinalOutput] = {}
    for one in own.requests:
        engine.add(one)
    steps = 0
    while engine.has_work():
        events = engine.step()
        if steps % 3 == 0:
            events += engine.pause("retract")
            engine.resume()
        steps += 1
        finals |= {event.request_id: event for event in events if isinstance(event, FinalOutput)}
    assert_same(expected, finals)


def test_siblings_each_have_their_own_place(small_model: Transformer) -> None:
    automaton = random_automaton(random.Random(5), VOCAB_SIZE)
    prompt = ids(random.Random(5), 140)
    alone = [
        request(f"r{n}", prompt, seed=n, max_tokens=20, grammar=automaton.grammar(), ignore_eos=False) for n in range(4)
    ]
    forks = [alone[0], *(replace(one, fork_of="r0") for one in alone[1:])]
    expected = each_alone(small_model, alone)
    assert len({bits.token_ids for bits in expected.values()}) > 1
    assert_same(expected, serve(engine_of(small_model), forks))


def answer(model: Transformer, grammar: Grammar, **params: object) -> FinalOutput:
    given: dict[str, object] = {"max_tokens": 12, "ignore_eos": False, "grammar": grammar, **params}
    return serve(engine_of(model), [request("r", (5, 6, 7), **given)])["r"]


def test_an_answer_ends_with_the_end_token_where_the_grammar_has_nothing_more(small_model: Transformer) -> None:
    final = answer(small_model, chain([A], [B], [C]).grammar())
    assert (final.token_ids, final.finish_reason, final.stop_token_id) == ((A, B, C, END_ID), "stop", END_ID)


def test_an_answer_that_ignores_its_end_token_ends_with_its_grammar(small_model: Transformer) -> None:
    final = answer(small_model, chain([A], [B]).grammar(), ignore_eos=True)
    assert (final.token_ids, final.finish_reason, final.stop_token_id) == ((A, B), "stop", None)


@pytest.mark.parametrize(("max_tokens", "reason"), [(1, "length"), (2, "stop")])
def test_an_answer_that_is_cut_says_so_and_one_that_fits_exactly_does_not(
    small_model: Transformer, max_tokens: int, reason: str
) -> None:
    final = answer(small_model, chain([A], [B]).grammar(), max_tokens=max_tokens)
    assert (final.token_ids, final.finish_reason) == ((A, B)[:max_tokens], reason)


def test_biases_and_penalties_choose_among_what_the_grammar_admits(small_model: Transformer) -> None:
    letters = chain([A, B, C], loops=True).grammar()
    bias = {END_ID: -100.0, C: 50.0, 300: 100.0}
    final = answer(small_model, letters, logit_bias=bias, max_tokens=5)
    assert final.token_ids == (C,) * 5


def test_min_tokens_hold_the_end_off_as_long_as_the_grammar_lets_them(small_model: Transformer) -> None:
    bias = {END_ID: 100.0}
    assert len(answer(small_model, chain([A], loops=True).grammar(), logit_bias=bias).token_ids) == 2
    held = answer(small_model, chain([A], loops=True).grammar(), logit_bias=bias, min_tokens=6)
    assert held.token_ids == (A,) * 6 + (END_ID,)
    word = answer(small_model, chain([A], [B]).grammar(), min_tokens=6)
    assert word.token_ids == (A, B, END_ID)


def test_reasoning_does_not_end_the_answer_before_the_grammar_begins(small_model: Transformer) -> None:
    thinking: dict[str, object] = {"reasoning_end_id": THINK_END, "thinking_budget": 3, "logit_bias": {END_ID: 100.0}}
    final = answer(small_model, chain([A], [B]).grammar(THINK_END), **thinking)
    assert END_ID not in final.token_ids[:3]
    assert final.token_ids[3:] == (THINK_END, A, B, END_ID)


def test_a_thinking_budget_within_a_grammar_forces_nothing(small_model: Transformer) -> None:
    final = answer(small_model, chain([A], [B], [C]).grammar(), reasoning_end_id=THINK_END, thinking_budget=1)
    assert final.token_ids == (A, B, C, END_ID)


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_a_grammar_without_a_way_on_ends_its_request_alone(small_model: Transformer, drafter: str) -> None:
    dead_end = Automaton(({A: 1}, {B: 2}, {}), frozenset())
    stuck = request("stuck", (5, 6), grammar=dead_end.grammar(), ignore_eos=False)
    free = request("free", ids(random.Random(1), 20))
    finals = serve(engine_of(small_model, drafter=drafter), [stuck, free])
    final = finals["stuck"]
    assert (final.finish_reason, final.error_kind, final.token_ids) == ("error", "request", (A, B))
    assert final.error is not None and "no token after 2 generated" in final.error
    assert_same(each_alone(small_model, [free]), finals)


def test_numbers_that_are_not_finite_are_told_apart_from_a_grammar_without_a_way_on(own_model: Transformer) -> None:
    own_model.head.weight.fill_(float("nan"))
    final = answer(own_model, chain([A]).grammar())
    assert final.error_kind == "numbers"


def test_an_engine_without_a_reader_refuses_grammars(small_model: Transformer) -> None:
    engine = Engine(small_model, EngineConfig(cache_bytes=1 << 26))
    with pytest.raises(RequestError, match="nobody who reads one") as caught:
        engine.add(request("r", (5, 6), grammar=chain([A]).grammar()))
    assert caught.value.param == "grammar"
