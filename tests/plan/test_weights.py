"""Box 1: every byte of the checkpoint's table is in one part, and every part is divided in one way."""

from dataclasses import replace
from math import prod

import pytest

from benthic.models.checkpoint import tensor_table
from benthic.models.checkpoint.table import Weights, pieces
from benthic.models.released import KNOWN
from benthic.plan.fit import device_bytes
from benthic.plan.weights import PARTS, holdings, total_parameters

SMALL = {
    name: replace(
        config,
        num_hidden_layers=4,
        n_routed_experts=config.n_group * 8,
        compress_ratios=(0, 4, 128, 4, 0) if config.compress_ratios else (),
    )
    for name, config in KNOWN.items()
}


@pytest.mark.parametrize("weights", ["official", "fp8", "bf16", "fp32"])
@pytest.mark.parametrize("name", SMALL)
def test_bytes_are_those_of_the_checkpoint_s_table(name: str, weights: Weights) -> None:
    config = SMALL[name]
    held = holdings(config, weights)
    assert sum(item.num_bytes for item in held) == sum(spec.bytes for spec in tensor_table(config, weights=weights))


def test_released_files_are_reproduced_to_the_byte() -> None:
    assert sum(item.num_bytes for item in holdings(KNOWN["deepseek-v4-flash"])) == sum(
        spec.bytes for spec in tensor_table(KNOWN["deepseek-v4-flash"])
    )


@pytest.mark.parametrize("name", SMALL)
def test_every_number_is_in_one_part(name: str) -> None:
    config = SMALL[name]
    held = holdings(config)
    numbers = sum(prod(piece.shape) for piece in pieces(config) if piece.kind != "ids")
    assert sum(item.parameters for item in held) == numbers
    assert {item.part for item in held} <= set(PARTS)
    keys = [(item.part, item.form, item.split) for item in held]
    assert len(keys) == len(set(keys))


def test_parameters_leave_the_draft_block_out() -> None:
    with_mtp = holdings(SMALL["deepseek-v3"])
    without = holdings(replace(SMALL["deepseek-v3"], num_nextn_predict_layers=0))
    assert sum(item.parameters for item in with_mtp) > sum(item.parameters for item in without)
    assert total_parameters(with_mtp) == total_parameters(without)


def test_a_token_works_with_its_experts_and_not_with_the_embedding() -> None:
    config = SMALL["deepseek-v2"]
    active = {item.part: item.active_parameters for item in holdings(config)}
    expert = 3 * config.hidden_size * config.moe_intermediate_size
    moe_layers = config.num_hidden_layers - config.first_k_dense_replace
    assert active["embedding"] == 0
    assert active["routed experts"] == pytest.approx(moe_layers * config.num_experts_per_tok * expert)
    assert active["head"] == config.vocab_size * config.hidden_size


def test_devices_of_a_group_hold_the_whole_between_them() -> None:
    for item in holdings(SMALL["deepseek-v4-flash"]):
        tp, ep = 4 * device_bytes(item, "TP", 4), 4 * device_bytes(item, "EP", 4)
        assert tp >= item.num_bytes
        assert ep >= tp
        assert item.split != "whole" or tp == 4 * item.num_bytes
        assert item.split != "expert" or item.num_bytes <= ep < item.num_bytes + 4
