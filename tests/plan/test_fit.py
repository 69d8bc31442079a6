"""How a machine's devices share a model, and what is left: against hand-computed values."""

import pytest

from benthic.cache.workspace import context_bytes
from benthic.plan.fit import WORKSPACE_BYTES, Fit, fits, least_devices
from benthic.plan.floors import Floors
from benthic.plan.hardware import DEVICES, GB, Machine
from benthic.plan.sizing import Sizing, formats_for, size
from benthic.plan.state import PASS_ROWS
from benthic.plan.subject import subject

CONTEXT = 32768
EIGHT = Machine(DEVICES["h200"], 8)


def sizing(name: str, draft: str = "none") -> Sizing:
    model = subject(name)
    return size(model, formats_for(model, "official", None, draft))


def ways(one: Sizing, machine: Machine = EIGHT) -> dict[str, Fit]:
    return {fit.name: fit for fit in fits(one.config, one.held, one.state, machine, CONTEXT)}


def test_groups_are_all_divisors_of_the_machine() -> None:
    assert list(ways(sizing("deepseek-v4-flash"))) == [
        "1 device x8", "TP2 x4", "EP2 x4", "TP4 x2", "EP4 x2", "TP8", "EP8",
    ]  # fmt: skip


def test_a_model_is_cut_only_where_it_divides_evenly() -> None:
    # 3 divides neither 64 heads nor 256 experts: of three devices two share Flash, and one is idle.
    assert list(ways(sizing("deepseek-v4-flash"), Machine(DEVICES["h200"], 3))) == [
        "1 device x3", "TP2 x1, 1 idle", "EP2 x1, 1 idle",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3.2", "deepseek-v4-flash", "deepseek-v4-pro"])
def test_more_devices_never_hold_less(name: str) -> None:
    one = sizing(name)
    most = [max(fit.conversations for fit in ways(one, Machine(DEVICES["h200"], n)).values()) for n in range(1, 34)]
    assert most == sorted(most)
    assert most[0] == 0 < most[-1]


def test_an_idle_device_changes_nothing_for_the_others() -> None:
    one = sizing("deepseek-v4-flash")
    two = floors(one, "EP2", Machine(DEVICES["h200"], 2)).decode(64, CONTEXT)
    three = floors(one, "EP2 x1, 1 idle", Machine(DEVICES["h200"], 3)).decode(64, CONTEXT)
    assert three == two


def test_room_is_nine_tenths_of_what_weights_leave_less_the_temporaries() -> None:
    one = sizing("deepseek-v4-flash")
    found = ways(one)["EP8"]
    experts = sum(item.num_bytes for item in one.held if item.split == "expert")
    rest = one.weight_bytes - experts
    assert found.weight_bytes == pytest.approx(experts / 8 + rest, abs=16)
    workspace = context_bytes(
        one.config, one.state.geometry, CONTEXT, num_rows=PASS_ROWS, workspace_bytes=WORKSPACE_BYTES
    )
    assert found.room_bytes == pytest.approx((141 * GB - found.weight_bytes) * 0.9 - workspace, abs=16)


def test_tensor_parallel_devices_keep_every_conversation_and_expert_parallel_ones_their_own() -> None:
    one = sizing("deepseek-v4-flash")
    found = ways(one)
    for name, copies in (("TP8", 1), ("EP8", 8), ("TP2 x4", 4), ("EP2 x4", 8)):
        share = one.state.conversations_in(found[name].room_bytes, CONTEXT)
        assert found[name].conversations == copies * share > 0


def test_weights_that_leave_no_room_hold_no_conversation() -> None:
    alone = ways(sizing("deepseek-v4-flash"))["1 device x8"]
    assert not alone.fits
    assert alone.conversations == 0


def test_the_least_group_grows_with_the_model() -> None:
    found = []
    for name in ("deepseek-v2-lite", "deepseek-v4-flash", "deepseek-v4-pro"):
        one = sizing(name)
        least = least_devices(one.config, one.held, one.state, DEVICES["h200"], CONTEXT)
        assert least is not None
        found.append(least.num_devices)
    assert found == [1, 2, 8]


def floors(one: Sizing, name: str, machine: Machine = EIGHT) -> Floors:
    return Floors(one.config, one.costs, one.held, ways(one, machine)[name], machine, "datasheet")


def test_exchange_moves_rows_to_experts_and_results_back() -> None:
    one = sizing("deepseek-v3")
    step = floors(one, "EP8").decode(64, CONTEXT)
    # 8 rows a device, 8 experts each, 7 of 8 elsewhere, an FP8 row there and a bf16 row back, in 58 layers.
    assert step.exchange_s * 450 * GB == pytest.approx(8 * 8 * 7 / 8 * 3 * 7168 * 58)


def test_tensor_parallel_devices_sum_twice_a_layer() -> None:
    one = sizing("deepseek-v3")
    step = floors(one, "TP8").decode(64, CONTEXT)
    assert step.exchange_s * 450 * GB == pytest.approx(61 * 2 * 2 * 7 / 8 * 64 * 7168 * 2)


def test_what_all_heads_share_is_computed_on_every_device() -> None:
    one = sizing("deepseek-v3.2")
    works = one.costs.decode(CONTEXT)
    rates = {"fp8": 1979e12, "bf16": 989e12}
    by_hand = sum(work.flops / (1 if work.split == "whole" else 8) / rates[work.form] for work in works)
    assert floors(one, "TP8").decode(64, CONTEXT).products_s == pytest.approx(64 * by_hand)
    assert {work.part for work in works if work.split == "whole"} >= {"index scores", "router", "indexer"}


def test_a_prompt_s_chunks_run_on_every_expert_parallel_device() -> None:
    one = sizing("deepseek-v3")
    tp, ep = (floors(one, name).prefill(CONTEXT) for name in ("TP8", "EP8"))
    assert (tp.rows, ep.rows) == (PASS_ROWS, 8 * PASS_ROWS)
    assert tp.products_s < ep.products_s < 8.2 * tp.products_s


def test_a_draft_doubles_the_rows_and_adds_the_block() -> None:
    plain, drafted = sizing("deepseek-v3"), sizing("deepseek-v3", "mtp")
    before = floors(plain, "EP8").decode(64, CONTEXT)
    after = floors(drafted, "EP8").decode(64, CONTEXT, num_drafts=1)
    assert after.rows == 2 * before.rows
    assert after.conversations == before.conversations == 64
    # Both rows of a conversation read the same entries, once; the block has a layer of its own.
    assert after.state_s == pytest.approx(before.state_s * 62 / 61)
    assert after.products_s > 2 * before.products_s
    assert after.weights_s > before.weights_s
