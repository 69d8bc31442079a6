"""Time floors and the balance of experts' exchange, against hand-computed values."""

import re

import pytest

from benthic.plan.fit import Fit, fits
from benthic.plan.floors import Floors, Step
from benthic.plan.hardware import DEVICES, Machine, Source, parse_machine
from benthic.plan.outcome import outcome
from benthic.plan.sizing import Sizing, formats_for, size
from benthic.plan.subject import subject
from benthic.plan.weights import touched_share


def sizing(name: str, weights: str = "official") -> Sizing:
    model = subject(name)
    return size(model, formats_for(model, weights, None, "none"))


def floors(name: str, machine: str, layout: str, source: Source = "datasheet", weights: str = "official") -> Floors:
    one, where = sizing(name, weights), parse_machine(machine)
    ways = fits(one.config, one.held, one.state, where, 4096)
    way = next(fit for fit in ways if fit.num_devices == where.num_devices and fit.layout == layout)
    return Floors(one.config, one.costs, one.held, way, where, source)


@pytest.mark.parametrize(
    ("name", "machine", "per_byte", "limit"),
    [
        ("deepseek-v4-pro", "h200x8", 4398, 6144),
        ("deepseek-v4-flash", "h200x8", 4398, 4096),
        ("deepseek-v3", "b200x8", 5000, 4096),
        ("deepseek-v4-pro", "h20x8", 658, 6144),
        ("deepseek-v4-pro", "h800x8", 9895, 6144),
        ("deepseek-v4-pro", "h100x16", 39580, 6144),
    ],
)
def test_exchange_hides_while_compute_over_bandwidth_is_at_most_twice_the_experts_width(
    name: str, machine: str, per_byte: int, limit: int
) -> None:
    found = floors(name, machine, "EP").balance()
    assert round(found.compute_per_byte) == per_byte
    assert found.limit == limit
    assert found.hidden_share == pytest.approx(min(1, limit / found.compute_per_byte))


def test_flash_on_h200_hides_its_exchange_up_to_93_percent_of_the_rate() -> None:
    assert round(100 * floors("deepseek-v4-flash", "h200x8", "EP").balance().hidden_share) == 93


def test_experts_in_bf16_send_twice_the_bytes() -> None:
    assert floors("deepseek-v2", "h200x8", "EP").balance().limit == 1.5 * 1536


def test_one_token_reads_its_experts_and_all_the_rest_once() -> None:
    found = floors("deepseek-v4-flash", "b200x1", "TP")
    step = found.decode(1, 4096)
    held = found.held
    experts = sum(item.num_bytes for item in held if item.split == "expert")
    rest = sum(item.num_bytes for item in held if item.split != "expert" and item.part != "embedding")
    assert step.weights_s == pytest.approx((experts * 6 / 256 + rest) / 8.0e12)
    assert step.exchange_s == 0
    assert step.state_s == pytest.approx(found.costs.read_bytes(4096) / 8.0e12)


def test_a_batch_reaches_nearly_all_experts() -> None:
    config = sizing("deepseek-v4-flash").config
    assert touched_share(config, 1) == pytest.approx(6 / 256)
    assert touched_share(config, 64) == pytest.approx(0.78, abs=0.01)
    assert touched_share(config, 10_000) == pytest.approx(1.0)


def test_expert_parallel_devices_divide_conversations_and_tensor_parallel_ones_do_not() -> None:
    tp, ep = (floors("deepseek-v3", "h200x8", layout).decode(64, 32768) for layout in ("TP", "EP"))
    assert tp.state_s == pytest.approx(8 * ep.state_s)
    assert tp.weights_s < ep.weights_s


def test_two_groups_share_the_conversations() -> None:
    one = sizing("deepseek-v4-flash")
    machine = Machine(DEVICES["b200"], 2)
    ways = [fit for fit in fits(one.config, one.held, one.state, machine, 4096) if fit.num_devices == 1]
    assert [fit.name for fit in ways] == ["1 device x2"]
    alone = Floors(one.config, one.costs, one.held, ways[0], machine, "datasheet")
    half: Step = floors("deepseek-v4-flash", "b200", "TP").decode(32, 4096)
    both = alone.decode(64, 4096)
    assert both.products_s == pytest.approx(half.products_s)
    assert both.state_s == pytest.approx(half.state_s)


@pytest.mark.parametrize(
    ("name", "machine", "context", "binds", "words"),
    [
        ("deepseek-v4-pro", "h200x4", 4096, "weights", r"850\.7 GB leave no room; the least is 8 devices"),
        ("deepseek-v2", "h200x8", 131072, "state", r"40 of 64 conversations of 131,072 tokens fit"),
        ("deepseek-v4-flash", "h200x8", 4096, "computation", r"in bytes of weights \(a step of 64 takes >= "),
        ("deepseek-v2", "h200x4", 1 << 20, "state", r"not one conversation of 1,048,576 tokens fits; the least is 16 "),
    ],
)
def test_the_box_that_binds_is_named_with_its_numbers(
    name: str, machine: str, context: int, binds: str, words: str
) -> None:
    found = outcome(sizing(name), parse_machine(machine), "measured", context, 64)
    assert found.binds == binds
    assert re.search(words, found.words), found.words


def test_a_group_is_the_least_one_that_fits() -> None:
    one = sizing("deepseek-v4-pro")
    found = outcome(one, parse_machine("h200x8"), "measured", 4096, 1).least
    assert isinstance(found, Fit)
    assert found.num_devices == 8
    smaller = outcome(one, parse_machine("h200x4"), "measured", 4096, 1)
    assert smaller.best is None
