"""From records to the figures that are published: throughput, latencies, goodput."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benthic.bench.records import RequestRecord
from benthic.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Latency:
    """A distribution in seconds."""

    mean: float
    median: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Latency | None":
        """None without values."""
        ordered = sorted(values)
        if not ordered:
            return None
        return cls(statistics.fmean(ordered), quantile(ordered, 0.5), quantile(ordered, 0.9), quantile(ordered, 0.99))


def quantile(ordered: Sequence[float], q: float) -> float:
    """The q-quantile of sorted values, linear between neighbours."""
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLevel:
    """What a request must keep to count as good, in milliseconds; None: anything.

    Raises:
        ConfigError: a bound is not positive.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not value > 0:
                raise ConfigError(f"the service level's {name} is {value}; it must be a number of milliseconds > 0")

    def is_kept_by(self, record: RequestRecord) -> bool:
        """Whether the request was answered in time; a failed one never was."""
        taken = ((self.ttft_ms, record.ttft_s), (self.tpot_ms, record.tpot_s), (self.e2e_ms, record.e2e_s))
        return record.is_ok and all(limit is None or (s or 0.0) * 1e3 <= limit for limit, s in taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of one run; rates a second of the whole run, first request to last answer."""

    duration_s: float
    num_requests: int
    num_failed: int
    request_rate: float
    input_rate: float
    """Prompt tokens, cached ones included."""
    output_rate: float
    goodput: float
    """Requests a second that kept the service level."""
    cached_share: float
    """Share of the prompt tokens that the server found in its cache."""
    accept_len: float | None
    """Tokens a verification pass yields on average; None where the server does not say."""
    ttft_s: Latency | None
    tpot_s: Latency | None
    itl_s: Latency | None
    e2e_s: Latency | None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def summarize(records: Sequence[RequestRecord], duration_s: float, level: ServiceLevel | None = None) -> Summary:
    """The figures of a run that took `duration_s`."""
    good = [record for record in records if record.is_ok]
    prompt_len = sum(record.prompt_len for record in good)
    output_len = sum(record.output_len for record in good)
    duration_s = max(duration_s, 1e-9)
    kept = sum((level or ServiceLevel()).is_kept_by(record) for record in good)
    return Summary(
        duration_s=duration_s,
        num_requests=len(records),
        num_failed=len(records) - len(good),
        request_rate=len(good) / duration_s,
        input_rate=prompt_len / duration_s,
        output_rate=output_len / duration_s,
        goodput=kept / duration_s,
        cached_share=sum(record.cached_len for record in good) / max(prompt_len, 1),
        accept_len=_accept_len(good),
        ttft_s=Latency.of(record.ttft_s for record in good if record.ttft_s is not None),
        tpot_s=Latency.of(tpot for record in good if (tpot := record.tpot_s) is not None),
        itl_s=Latency.of(gap for record in good for gap in record.itl_s),
        e2e_s=Latency.of(record.e2e_s for record in good if record.e2e_s is not None),
    )


def _accept_len(records: Sequence[RequestRecord]) -> float | None:
    """Every pass yields one token of its own beside the accepted ones, so passes = tokens - accepted."""
    told = [(record.output_len, record.accepted_len) for record in records if record.accepted_len is not None]
    if not told:
        return None
    tokens = sum(output for output, _ in told)
    return tokens / max(tokens - sum(accepted for _, accepted in told), 1)


def summary_table(summary: Summary, level: ServiceLevel | None = None) -> str:
    """The figures as text, one a line."""
    accept = "not reported" if summary.accept_len is None else f"{summary.accept_len:.2f}"
    lines = [
        f"requests           {summary.num_requests} in {summary.duration_s:.2f} s, {summary.num_failed} failed",
        f"request throughput {summary.request_rate:10.2f} /s",
        f"input throughput   {summary.input_rate:10.1f} tokens/s ({summary.cached_share:.1%} cached)",
        f"output throughput  {summary.output_rate:10.1f} tokens/s",
        f"accepted length    {accept:>10}",
    ]
    if level is not None and any(value is not None for value in asdict(level).values()):
        bounds = ", ".join(f"{k.removesuffix('_ms')} {v:g} ms" for k, v in asdict(level).items() if v is not None)
        lines.append(f"goodput            {summary.goodput:10.2f} /s within {bounds}")
    lines += ["", f"{'ms':<6}{'mean':>10}{'median':>10}{'p90':>10}{'p99':>10}"]
    for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"):
        latency: Latency | None = getattr(summary, name)
        if latency is not None:
            values = "".join(f"{value * 1e3:10.1f}" for value in asdict(latency).values())
            lines.append(f"{name.removesuffix('_s'):<6}{values}")
    return "\n".join(lines)
