"""The figures that the papers give follow from configurations and formulas; no answer is stored."""

from functools import cache

import pytest

from benthic.plan.compare import Comparison, compare, other_costs
from benthic.plan.costs import Costs, equivalent, total

MILLION = 1 << 20
FILL = 24
"""Bytes by which the pools' kv row is longer than the released one, filled up to whole sectors of memory."""
ENTRIES_A_TOKEN = {"deepseek-v4-pro": 30 / 4 + 31 / 128, "deepseek-v4-flash": 21 / 4 + 20 / 128}


@cache
def costs(name: str) -> Costs:
    return other_costs(name)


def beside(name: str, other: str, context: int) -> Comparison:
    return compare(costs(name), other, (context,))


@pytest.mark.parametrize(
    ("name", "total_billions", "active_billions"),
    [
        ("deepseek-v2-lite", 15.7, 2.4),
        ("deepseek-v2", 236, 21),
        ("deepseek-v3", 671, 37),
        ("deepseek-v4-flash", 284, 13),
        ("deepseek-v4-pro", 1573, 49),
        ("deepseek-67b", 67, 67),
    ],
)
def test_parameters_are_those_of_the_papers(name: str, total_billions: float, active_billions: float) -> None:
    digits = 1 if total_billions < 20 else 0
    assert round(costs(name).parameters / 1e9, digits) == pytest.approx(total_billions, abs=10.0**-digits / 2)
    # V2-Lite counts one of its two vocabulary matrices as active, 67B's 67 both.
    assert costs(name).active_parameters / 1e9 == pytest.approx(active_billions, rel=0.025)


def test_v4_parameters_are_exact_to_a_tenth_of_a_billion() -> None:
    assert round(costs("deepseek-v4-flash").parameters / 1e9, 1) == 284.3
    assert round(costs("deepseek-v4-flash").active_parameters / 1e9, 2) == 13.27
    assert round(costs("deepseek-v4-pro").active_parameters / 1e9, 2) == 48.85


def test_v2_keeps_93_3_percent_less_than_67b_in_the_bits_that_were_served() -> None:
    found = beside("deepseek-v2", "deepseek-67b", 4096)
    assert found.served_ratio is not None
    assert round(100 * (1 - found.served_ratio), 1) == 93.3
    assert found.served_ratio == (576 * 60 * 6 / 8) / (2 * 8 * 128 * 95 * 2)
    assert found.state_ratio == (576 * 60 * 2) / (2 * 8 * 128 * 95 * 2)


@pytest.mark.parametrize(
    ("name", "least", "most", "cache_percent", "flops_percent"),
    [("deepseek-v4-pro", 5024, 5032, 10, 27), ("deepseek-v4-flash", 3509, 3515, 7, 10)],
)
def test_v4_against_v3_2_at_a_million_tokens(
    name: str, least: int, most: int, cache_percent: int, flops_percent: int
) -> None:
    found = beside(name, "deepseek-v3.2", MILLION)
    released = found.one.token_bytes - FILL * ENTRIES_A_TOKEN[name]
    assert least <= released <= most
    assert found.other.token_bytes == 61 * (656 + 132)
    assert round(100 * released / found.other.token_bytes) == cache_percent
    mine, others = found.contexts[0].equivalent_flops
    assert round(100 * mine / others) == flops_percent


def test_an_entry_without_its_padding_gives_the_smaller_published_bytes() -> None:
    # 448 FP8 numbers, 7 one-byte scales, 64 bf16; the released row pads the scales to 8 bytes, the pools fill the row.
    pro = 30 * (583 + 68) / 4 + 31 * 583 / 128
    flash = 21 * (583 + 68) / 4 + 20 * 583 / 128
    assert (int(pro), int(flash)) == (5023, 3508) or (round(pro), round(flash)) == (5024, 3509)
    padding = (1 + FILL) * ENTRIES_A_TOKEN["deepseek-v4-pro"]
    assert costs("deepseek-v4-pro").token_bytes == pytest.approx(pro + padding)


@pytest.mark.parametrize(
    ("name", "gflop"), [("deepseek-v4-flash", 140.3), ("deepseek-v4-pro", 303.2), ("deepseek-v3.2", 1157.7)]
)
def test_decode_operations_at_a_million_tokens_are_those_of_the_formula(name: str, gflop: float) -> None:
    assert total(costs(name).decode(MILLION)) / 1e9 == pytest.approx(gflop, abs=0.1)


def test_index_scores_and_attention_are_counted_by_hand_for_flash() -> None:
    parts = {work.part: work.flops for work in costs("deepseek-v4-flash").decode(MILLION)}
    csa = 21 * 4 * 64 * 512 * (512 + 128)
    hca = 20 * 4 * 64 * 512 * (MILLION // 128 + 128)
    window = 2 * 4 * 64 * 512 * 128
    assert parts["attention core"] == csa + hca + window
    assert parts["index scores"] == 21 * 2 * 64 * 128 * (MILLION // 4)


def test_fp8_equivalents_weigh_bf16_twice_and_fp4_half() -> None:
    works = costs("deepseek-v4-flash").decode(MILLION)
    forms = {work.part: work.form for work in works}
    assert (forms["attention core"], forms["index scores"], forms["routed experts"]) == ("bf16", "fp4", "fp8")
    by_hand = sum({"fp4": 0.5, "fp8": 1, "bf16": 2, "fp32": 4}[work.form] * work.flops for work in works)
    assert equivalent(works) == by_hand
