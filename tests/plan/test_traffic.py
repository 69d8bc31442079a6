"""Bytes of one token by part: weights shared among the rows of a pass, state by conversation."""

import pytest

from benthic.plan.fit import fits
from benthic.plan.floors import Floors
from benthic.plan.hardware import parse_machine
from benthic.plan.sizing import Sizing, formats_for, size
from benthic.plan.state import PASS_ROWS
from benthic.plan.subject import subject
from benthic.plan.traffic import decode_traffic, prefill_traffic


def sizing(name: str) -> Sizing:
    model = subject(name)
    return size(model, formats_for(model, "official", None, "none"))


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "deepseek-v4-flash"])
def test_a_token_alone_moves_what_a_step_of_one_reads(name: str) -> None:
    one = sizing(name)
    machine = parse_machine("b200")
    [fit] = fits(one.config, one.held, one.state, machine, 4096)
    step = Floors(one.config, one.costs, one.held, fit, machine, "datasheet").decode(1, 4096)
    parts = decode_traffic(one, 4096, 1)
    embedding_row = parts.pop("embedding")
    assert embedding_row == one.config.hidden_size * 2
    assert sum(parts.values()) == pytest.approx(step.memory_s * 8.0e12)


def test_dense_weights_are_shared_by_all_and_experts_by_those_that_reach_them() -> None:
    alone, together = (decode_traffic(sizing("deepseek-v3"), 4096, count) for count in (1, 64))
    assert together["attention"] == pytest.approx(alone["attention"] / 64)
    assert together["routed experts"] == pytest.approx(
        alone["routed experts"] * (1 - (1 - 8 / 256) ** 64) / (8 / 256) / 64
    )
    assert together["attention core"] == alone["attention core"] == 61 * 576 * 2 * 4096


def test_a_prompt_s_token_writes_its_entries_and_shares_what_its_chunk_reads() -> None:
    one = sizing("deepseek-v3")
    context = 32 * PASS_ROWS
    by_hand = one.costs.token_bytes * (1 + context / 2 / PASS_ROWS)
    assert prefill_traffic(one, context)["attention core"] == pytest.approx(by_hand)
