"""Made-up traffic: who asks when for how much. The same seed, the same trace."""

from dataclasses import dataclass
from random import Random

from benthic.engine.request import Request
from benthic.engine.sampling import SamplingParams
from benthic.errors import ConfigError

VOCAB_SIZE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """Shape of a trace. Times are in seconds, lengths in tokens.

    Raises:
        ConfigError: a length range is empty or a share is not one.
    """

    num_requests: int = 100
    rate_per_s: float = 10.0
    """Mean arrivals, exponential gaps between bursts (Poisson)."""
    burst: int = 1
    """Requests that arrive together."""
    prompt_len: tuple[int, int] = (10, 1000)
    """Range of what a prompt adds to its shared prefix, even in its logarithm: many short ones, few long ones."""
    output_len: tuple[int, int] = (1, 200)
    num_prefixes: int = 0
    """Different shared prefixes; 0: none."""
    prefix_len: int = 0
    priorities: tuple[int, ...] = (0,)
    """Each request has one of these, evenly."""
    abort_share: float = 0.0
    """Requests that are cancelled, at some moment of the `abort_within_s` after their arrival."""
    abort_within_s: float = 1.0
    timeout_share: float = 0.0
    """Requests with a time-out of `timeout_s`."""
    timeout_s: float = 1.0
    fork_share: float = 0.0
    """Requests that take over the prompt of the one before."""
    serial_share: float = 0.0
    """Requests whose sampling needs their tokens on the host."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("prompt_len", "output_len"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise ConfigError(f"{name} is {(low, high)}; it must be a range low, high with 1 <= low <= high")
        for name in ("abort_share", "timeout_share", "fork_share", "serial_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be from 0 to 1")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request, when it comes, and when it is cancelled (None: never)."""

    at_s: float
    request: Request
    cancel_s: float | None = None
    is_serial: bool = False


def synthetic_trace(config: TraceConfig) -> list[Arrival]:
    """The trace of a configuration, by time of arrival."""
    rng = Random(config.seed)
    prefixes = [_ids(rng, config.prefix_len) for _ in range(config.num_prefixes)]
    arrivals: list[Arrival] = []
    now_s = 0.0
    for number in range(config.num_requests):
        if number % config.burst == 0:
            now_s += rng.expovariate(config.rate_per_s / config.burst)
        leader = arrivals[-1].request if arrivals and rng.random() < config.fork_share else None
        arrivals.append(_arrival(config, rng, f"r{number}", now_s, prefixes, leader))
    return arrivals


def _arrival(
    config: TraceConfig, rng: Random, name: str, now_s: float, prefixes: list[tuple[int, ...]], leader: Request | None
) -> Arrival:
    prefix = rng.choice(prefixes) if prefixes else ()
    prompt = (*prefix, *_ids(rng, _length(rng, config.prompt_len)))
    request = Request(
        request_id=name,
        prompt_ids=prompt if leader is None else leader.prompt_ids,
        params=SamplingParams(max_tokens=_length(rng, config.output_len), seed=rng.getrandbits(40), ignore_eos=True),
        priority=rng.choice(config.priorities) if leader is None else leader.priority,
        fork_of=None if leader is None else leader.request_id,
        timeout_s=config.timeout_s if rng.random() < config.timeout_share else None,
    )
    cancel_s = now_s + rng.random() * config.abort_within_s if rng.random() < config.abort_share else None
    return Arrival(now_s, request, cancel_s, rng.random() < config.serial_share)


def _length(rng: Random, bounds: tuple[int, int]) -> int:
    low, high = bounds
    return min(high, int(low * ((high + 1) / low) ** rng.random()))


def _ids(rng: Random, length: int) -> tuple[int, ...]:
    return tuple(rng.choices(range(VOCAB_SIZE), k=length))
