"""The learning rate rises, stays, and falls to its end."""

import pytest

from benthic.errors import ConfigError
from benthic.train.schedule import ScheduleConfig, learning_rate


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_the_rate_rises_to_the_peak_stays_there_and_falls_to_the_end(decay):
    config = ScheduleConfig(peak=1.0, final=0.1, warmup_steps=10, flat_share=0.4, decay=decay)
    rates = [learning_rate(config, step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert rates[10:40] == [1.0] * 30
    assert all(a > b for a, b in zip(rates[40:], rates[41:], strict=False))
    assert rates[-1] == pytest.approx(0.1, abs=0.02)
    assert rates[70] == pytest.approx(0.55)


def test_without_warm_up_the_first_step_is_at_the_peak():
    assert learning_rate(ScheduleConfig(peak=2.0, warmup_steps=0), 0, 10) == 2.0


@pytest.mark.parametrize(
    "fields",
    [{"peak": -1.0}, {"final": 1.0}, {"warmup_steps": -1}, {"flat_share": 1.5}, {"decay": "steps"}],
    ids=str,
)
def test_a_schedule_that_makes_no_sense_names_its_field(fields):
    with pytest.raises(ConfigError, match=r"schedule\."):
        ScheduleConfig(**fields)
