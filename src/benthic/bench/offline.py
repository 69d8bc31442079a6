"""Throughput of an engine in this process: so many prompts at once, of so many tokens, with so many tokens of answer.

Every run has prompts of its own, so that no measurement finds the cache filled by the one before it.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, Protocol

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
    accept_len: float | None = None
    """Tokens that a pass of a request yields on average; None without drafts."""


def measure(llm: Generator, config: OfflineConfig, vocab_size: int) -> Iterator[Throughput]:
    """One result a batch size, after a warm-up that is not counted."""
    rng = Random(config.seed)
    _run(llm, _prompts(rng, 2, config.prompt_len, vocab_size), 4)
    for batch in config.batches:
        wholes, prefills = [], []
        for _ in range(config.repeats):
            prefills.append(_run(llm, _prompts(rng, batch, config.prompt_len, vocab_size), 1))
            wholes.append(_run(llm, _prompts(rng, batch, config.prompt_len, vocab_size), config.output_len))
        yield _throughput(config, batch, wholes, prefills)


class _Run(NamedTuple):
    seconds: float
    num_drafted: int
    num_accepted: int


def _throughput(config: OfflineConfig, batch: int, wholes: list[_Run], prefills: list[_Run]) -> Throughput:
    totals = [run.seconds for run in wholes]
    total_s, prefill_s = statistics.median(totals), statistics.median(run.seconds for run in prefills)
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
        accept_len=_accept_len(wholes, batch * config.output_len),
    )


def _accept_len(runs: list[_Run], output_len: int) -> float | None:
    """Every pass of a request yields one token of its own beside the accepted ones."""
    if not any(run.num_drafted for run in runs):
        return None
    tokens = output_len * len(runs)
    return tokens / (tokens - sum(run.num_accepted for run in runs))


def _run(llm: Generator, prompts: list[list[int]], output_len: int) -> _Run:
    params = SamplingParams(max_tokens=output_len, temperature=0, ignore_eos=True)
    start = time.perf_counter()
    outputs = llm.generate(prompts, params)
    seconds = time.perf_counter() - start
    reports = [output.outputs[0].report for output in outputs]
    return _Run(seconds, sum(one.drafted for one in reports), sum(one.accepted for one in reports))


def _prompts(rng: Random, count: int, length: int, vocab_size: int) -> list[list[int]]:
    low, high = vocab_size // 8, vocab_size - vocab_size // 8
    return [rng.choices(range(low, high), k=length) for _ in range(count)]


HEADER = "batch  prompt  output  prefill s   total s  output/s  decode/s      x  accepted"


def report_line(result: Throughput, first: Throughput) -> str:
    """A result as a line under `HEADER`; `x` is the decode rate beside that of the first line."""
    accept = "-" if result.accept_len is None else f"{result.accept_len:.2f}"
    return (
        f"{result.batch:5d} {result.prompt_len:7d} {result.output_len:7d} {result.prefill_s:10.3f} "
        f"{result.total_s:9.3f} {result.output_rate:9.1f} {result.decode_rate:9.1f} "
        f"{result.decode_rate / first.decode_rate:6.2f}{accept:>10}"
    )
