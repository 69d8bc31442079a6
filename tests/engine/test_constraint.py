"""What a grammar says of a row depends on the tokens before it alone, whatever was drafted and undone on the way."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benthic.engine.constraint import Constraint, RowMask, Stage
from benthic.engine.grammar import Words
from tests.engine.automaton_masks import END_ID, Automaton, AutomatonMask, chain, random_automaton

VOCAB_SIZE = 75
PROMPT = [9, 9, 9]
THINK_END = 4


def constraint_of(
    automaton: Automaton, starts_after: int | None = None, stop_ids: frozenset[int] = frozenset({END_ID})
) -> Constraint:
    return Constraint(
        automaton.grammar(starts_after),
        AutomatonMask(automaton),
        prompt_len=len(PROMPT),
        stop_ids=stop_ids,
        end_id=END_ID,
        vocab_size=VOCAB_SIZE,
    )


def allowed(mask: RowMask) -> set[int] | None:
    """The tokens that may come; None: all."""
    if mask.words is None:
        return None
    bits = np.unpackbits(mask.words.view(np.uint8), bitorder="little")
    assert not bits[VOCAB_SIZE:].any()
    return set(np.flatnonzero(bits).tolist())


def same(left: RowMask, right: RowMask) -> bool:
    return (left.stage, left.error, allowed(left)) == (right.stage, right.error, allowed(right))


def likely_token(rng: random.Random, mask: RowMask) -> int:
    """Mostly one that may come."""
    found = allowed(mask)
    if found and rng.random() < 0.85:
        return rng.choice(sorted(found))
    return rng.choice([END_ID, THINK_END, *rng.sample(range(VOCAB_SIZE), 3)])


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_any_walk_of_drafts_and_tokens_says_what_a_fresh_constraint_says(seed: int) -> None:
    rng = random.Random(seed)
    automaton = random_automaton(rng, VOCAB_SIZE)
    starts_after = rng.choice([None, THINK_END])
    stop_ids = frozenset(rng.choice([{END_ID}, {END_ID, 7}, {7}, set()]))
    walker = constraint_of(automaton, starts_after, stop_ids)
    tokens = list(PROMPT)
    for _ in range(12):
        drafts: list[int] = []
        for _ in range(rng.randrange(5)):
            may_stop = rng.random() < 0.8
            mine = walker.at(tokens, drafts, may_stop=may_stop)
            assert same(mine, constraint_of(automaton, starts_after, stop_ids).at(tokens, drafts, may_stop=may_stop))
            drafts.append(likely_token(rng, mine))
        fresh = constraint_of(automaton, starts_after, stop_ids)
        assert walker.num_fitting(tokens, drafts) == fresh.num_fitting(tokens, drafts)
        # As after a verification: some of the drafts, then one token more.
        for token in [*drafts[: rng.randrange(len(drafts) + 1)], likely_token(rng, walker.at(tokens, ()))]:
            tokens.append(token)
            is_last = rng.random() < 0.2
            fresh = constraint_of(automaton, starts_after, stop_ids)
            assert walker.has_ended(tokens, is_last=is_last) == fresh.has_ended(tokens, is_last=is_last)


def test_drafts_are_cut_at_the_first_that_the_grammar_refuses_and_behind_the_end() -> None:
    letters = constraint_of(chain([10], [11], loops=True))
    assert letters.num_fitting(PROMPT, [10, 11, 10, 12, 10]) == 3
    assert letters.num_fitting(PROMPT, [10, 11, END_ID, 10]) == 3
    assert letters.num_fitting(PROMPT, [10, END_ID, 10]) == 1, "the word has two letters"
    assert letters.num_fitting([*PROMPT, 10], [11]) == 1


def test_nothing_is_forbidden_before_the_grammar_begins_or_after_it() -> None:
    constraint = constraint_of(chain([10], [11]), THINK_END)
    assert constraint.at([*PROMPT, 10, 12], ()) == RowMask(Stage.BEFORE)
    begun = [*PROMPT, 10, 12, THINK_END]
    assert allowed(constraint.at(begun, ())) == {10}
    assert allowed(constraint.at(begun, [10])) == {11}
    assert allowed(constraint.at(begun, [10, 11])) == {END_ID}
    assert constraint.at(begun, [10, 11, END_ID]) == RowMask(Stage.AFTER)


def test_reasoning_that_is_drafted_and_undone_undoes_the_beginning() -> None:
    constraint = constraint_of(chain([10], [11]), THINK_END)
    assert allowed(constraint.at(PROMPT, [20, THINK_END, 10])) == {11}
    assert constraint.at(PROMPT, [20, 21]) == RowMask(Stage.BEFORE)
    assert allowed(constraint.at([*PROMPT, 20], [THINK_END])) == {10}


def test_own_stopping_tokens_may_come_where_the_grammar_is_complete() -> None:
    constraint = constraint_of(chain([10], [11]), stop_ids=frozenset({END_ID, 40}))
    assert allowed(constraint.at([*PROMPT, 10], ())) == {11}
    assert allowed(constraint.at([*PROMPT, 10, 11], ())) == {END_ID, 40}


def test_an_end_token_that_ends_nothing_comes_only_where_nothing_else_can() -> None:
    endless = constraint_of(chain([10], [11], loops=True), stop_ids=frozenset())
    assert allowed(endless.at([*PROMPT, 10, 11], ())) == {10}
    word = constraint_of(chain([10], [11]), stop_ids=frozenset())
    assert allowed(word.at([*PROMPT, 10, 11], ())) == {END_ID}
    assert word.has_ended([*PROMPT, 10, 11], is_last=False)


@pytest.mark.parametrize(("loops", "expected"), [(True, {10}), (False, {END_ID})])
def test_a_forbidden_ending_gives_way_where_nothing_else_is_left(loops: bool, expected: set[int]) -> None:
    constraint = constraint_of(chain([10], [11], loops=loops))
    assert allowed(constraint.at([*PROMPT, 10, 11], (), may_stop=False)) == expected


def test_an_answer_that_is_complete_at_its_last_token_has_ended() -> None:
    constraint = constraint_of(chain([10], [11]))
    assert not constraint.has_ended([*PROMPT, 10], is_last=True)
    assert not constraint.has_ended([*PROMPT, 10, 11], is_last=False), "the end token is still to come"
    assert constraint.has_ended([*PROMPT, 10, 11], is_last=True)


def test_a_grammar_that_admits_no_token_is_an_error_of_the_request() -> None:
    dead_end = Automaton(({10: 1}, {}), frozenset())
    mask = constraint_of(dead_end).at([*PROMPT, 10], ())
    assert (mask.words, mask.error_kind) == (None, "request")
    assert mask.error is not None and "admits no token after 1 generated ones" in mask.error


class Liar(AutomatonMask):
    """Admits everything and accepts nothing."""

    def fill(self, words: Words) -> bool:
        words[:] = -1
        return True

    def accept(self, token_id: int) -> bool:
        return False


def test_a_reader_that_refuses_what_it_admitted_is_an_error_of_the_engine() -> None:
    word = chain([10])
    constraint = Constraint(
        word.grammar(), Liar(word), prompt_len=3, stop_ids=frozenset({END_ID}), end_id=END_ID, vocab_size=VOCAB_SIZE
    )
    assert allowed(constraint.at(PROMPT, ())) == set(range(VOCAB_SIZE))
    mask = constraint.at([*PROMPT, 33], ())
    assert mask.error_kind == "engine" and mask.error is not None and "token 33" in mask.error
