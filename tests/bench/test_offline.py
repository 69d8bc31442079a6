"""Throughput from what a generator says of itself: rates, medians, accepted length."""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from benthic.bench import offline
from benthic.bench.offline import HEADER, OfflineConfig, Throughput, measure, report_line
from benthic.engine.sampling import SamplingParams
from benthic.errors import ConfigError


@dataclass
class Clock:
    now_s: float = 0.0

    def perf_counter(self) -> float:
        return self.now_s


class ScriptedGenerator:
    """Takes 1 s for all prompts of a call and 0.1 s for each further token; accepts every second draft."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.prompts: list[tuple[int, ...]] = []

    def generate(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[Any]:
        assert params.max_tokens is not None
        self.prompts += [tuple(prompt) for prompt in prompts]
        self._clock.now_s += 1 + 0.1 * (params.max_tokens - 1)
        report = SimpleNamespace(drafted=params.max_tokens - 1, accepted=(params.max_tokens - 1) // 2)
        return [SimpleNamespace(outputs=[SimpleNamespace(report=report)]) for _ in prompts]


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> ScriptedGenerator:
    clock = Clock()
    monkeypatch.setattr(offline, "time", clock)
    return ScriptedGenerator(clock)


def measured(generator: ScriptedGenerator) -> list[Throughput]:
    return list(measure(generator, OfflineConfig(batches=(1, 4), prompt_len=7, output_len=11, repeats=2), 512))


def test_decoding_is_timed_without_the_prompts(generator: ScriptedGenerator) -> None:
    one, four = measured(generator)
    assert one.total_s == pytest.approx(2.0)
    assert one.prefill_s == pytest.approx(1.0)
    assert one.decode_rate == pytest.approx(10.0)
    assert four.decode_rate == pytest.approx(40.0)
    assert four.output_rate == pytest.approx(22.0)


def test_accepted_length_is_tokens_over_passes(generator: ScriptedGenerator) -> None:
    assert measured(generator)[0].accept_len == pytest.approx(11 / 6)


def test_no_prompt_is_used_twice(generator: ScriptedGenerator) -> None:
    measured(generator)
    assert len(set(generator.prompts)) == len(generator.prompts) == 2 + 2 * 2 * (1 + 4)


def test_a_line_stands_under_its_header(generator: ScriptedGenerator) -> None:
    one, four = measured(generator)
    assert len(report_line(one, one)) == len(HEADER)
    assert report_line(four, one).split()[-2:] == ["4.00", "1.83"]


@pytest.mark.parametrize(("field", "value"), [("repeats", 0), ("output_len", 1), ("prompt_len", 0)])
def test_what_cannot_be_timed_is_refused(field: str, value: int) -> None:
    with pytest.raises(ConfigError, match=f"{field} is {value}"):
        OfflineConfig(**{field: value})  # type: ignore[arg-type]
