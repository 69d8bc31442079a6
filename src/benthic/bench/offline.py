"""Throughput of an engine in this process: so many prompts at once, of so many tokens, with so many tokens of answer.

Every run has prompts of its own, so that no measurement finds the cache filled by the one before it.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from benthic.engine.sampling import SamplingParams
from benthic.errors import ConfigError


class Generator(Protocol):
    """What answers prompts of ids, all at once (`benthic.LLM` does)."""

    def generate(self, prompts: Any, params: SamplingParams) -> Sequence[Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineConfig:
    """What is measured.

    Raises:
        ConfigError: a number is out of range.
    """

    batches: tuple[int, ...] = (1, 8, 32)
    """Requests at once, one line of the report each."""
    prompt_len: int = 128
    output_len: int = 64
    repeats: int = 3
    """Runs of each line; the median is reported."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("prompt_len", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.output_len < 2:
            raise ConfigError(f"output_len is {self.output_len}; it must be at least 2, for decoding to be seen")
        if not self.batches or min(self.batches) < 1:
            raise ConfigError(f"the batches are {self.batches}; each must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """One line of the report: medians of the repeats."""

    batch: int
    prompt_len: int
    output_len: int
    total_s: float
    """All answers complete."""
    prefill_s: float
    """All answers one token long."""
    decode_rate: float
    """Tokens a second of all requests together after their first."""
    output_rate: float
    """Tokens a second of all requests together, prompts included in the time."""
    spread: float
    """(slowest - fastest) / median of `total_s`."""


def measure(llm: Generator, config: OfflineConfig, vocab_size: int) -> Iterator[Throughput]:
    """One result a batch size, after a warm-up that is not counted."""
    rng = Random(config.seed)
    _seconds(llm, _prompts(rng, 2, config.prompt_len, vocab_size), 4)
    for batch in config.batches:
        totals, prefills = [], []
        for _ in range(config.repeats):
            prefills.append(_seconds(llm, _prompts(rng, batch, config.prompt_len, vocab_size), 1))
            prompts = _prompts(rng, batch, config.prompt_len, vocab_size)
            totals.append(_seconds(llm, prompts, config.output_len))
        yield _throughput(config, batch, totals, prefills)


def _throughput(config: OfflineConfig, batch: int, totals: list[float], prefills: list[float]) -> Throughput:
    total_s, prefill_s = statistics.median(totals), statistics.median(prefills)
    decode_s = max(total_s - prefill_s, 1e-9)
    return Throughput(
        batch=batch,
        prompt_len=config.prompt_len,
        output_len=config.output_len,
        total_s=total_s,
        prefill_s=prefill_s,
        decode_rate=batch * (config.output_len - 1) / decode_s,
        output_rate=batch * config.output_len / total_s,
        spread=(max(totals) - min(totals)) / total_s,
    )


def _seconds(llm: Generator, prompts: list[list[int]], output_len: int) -> float:
    params = SamplingParams(max_tokens=output_len, temperature=0, ignore_eos=True)
    start = time.perf_counter()
    llm.generate(prompts, params)
    return time.perf_counter() - start


def _prompts(rng: Random, count: int, length: int, vocab_size: int) -> list[list[int]]:
    low, high = vocab_size // 8, vocab_size - vocab_size // 8
    return [rng.choices(range(low, high), k=length) for _ in range(count)]


HEADER = "batch  prompt  output  prefill s   total s  output/s  decode/s      x"


def report_line(result: Throughput, first: Throughput) -> str:
    """A result as a line under `HEADER`; its last figure is the decode rate beside that of the first line."""
    return (
        f"{result.batch:5d} {result.prompt_len:7d} {result.output_len:7d} {result.prefill_s:10.3f} "
        f"{result.total_s:9.3f} {result.output_rate:9.1f} {result.decode_rate:9.1f} "
        f"{result.decode_rate / first.decode_rate:6.2f}"
    )
