"""Machines by name."""

import pytest

from benthic.errors import ConfigError
from benthic.plan.hardware import DEVICES, GB, parse_machine


def test_a_name_and_a_number_are_a_machine() -> None:
    machine = parse_machine("H200x8")
    assert (machine.name, machine.num_devices) == ("h200x8", 8)
    assert parse_machine("b200").num_devices == 1


@pytest.mark.parametrize("text", ["", "h300x8", "h200x0", "h200x", "x8", "h200x99999", "h200 x8"])
def test_what_is_no_machine_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"the hardware is {text!r}; it must"):
        parse_machine(text)


def test_measured_ceilings_are_below_the_datasheet_s() -> None:
    for device in DEVICES.values():
        if device.measured is not None:
            assert device.measured.bandwidth < device.datasheet.bandwidth
            assert device.measured.link < device.datasheet.link
            for form, rate in device.measured.rates.items():
                assert rate < device.datasheet.rates[form]


def test_a_format_that_a_device_lacks_runs_in_the_next_wider_one() -> None:
    assert DEVICES["a100"].datasheet.rate("fp8") == DEVICES["a100"].datasheet.rates["bf16"]
    assert DEVICES["h200"].datasheet.rate("fp4") == DEVICES["h200"].datasheet.rates["fp8"]
    assert DEVICES["b200"].datasheet.rate("fp4") == DEVICES["b200"].datasheet.rates["fp4"]


def test_beyond_a_node_devices_talk_over_the_network() -> None:
    machine = parse_machine("h200x16")
    assert machine.link(8, "datasheet") == 450 * GB
    assert machine.link(16, "datasheet") == 50 * GB


def test_a_device_without_measurements_has_its_datasheet() -> None:
    machine = parse_machine("b200x8")
    assert machine.source("measured") == "datasheet"
    assert machine.ceilings("measured") is machine.device.datasheet
