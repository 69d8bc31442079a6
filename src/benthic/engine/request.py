"""What travels between threads and processes: the request, its token events, its end and the report on how it went.

Nothing here changes once it is made. The engine's own record of a live request is `Sequence` (sequence.py).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from benthic.engine.sampling import SamplingParams, is_unicode
from benthic.errors import RequestError, shown

FinishReason = Literal["stop", "length", "cancelled", "error"]
ErrorKind = Literal["request", "capacity", "timeout", "numbers", "engine"]
"""Whose fault an error is: the request is wrong; there is no room now; its time was over; its numbers were not finite;
the engine, a step or its process failed under it. The second and the last may go well when sent again."""
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from benthic.cache.work import Cut

    Extras = NDArray[np.integer[Any]]
else:  # a command line reads these records without loading numpy
    Cut, Extras = str, Any
"""Ids of one kind for consecutive tokens, integers [tokens, layers, choices]: compact and unsigned in the cache, in a
final output uint16 (routes) and int32 (picks)."""
MAX_PRIORITY = 100
MAX_TIMEOUT_S = 1e9


class RowExtras(NamedTuple):
    """What consecutive rows chose besides tokens; None: not asked for."""

    routes: Extras | None
    """Expert ids [rows, routed layers, experts a token]."""
    picks: Extras | None
    """Entry numbers of the indexer [rows, indexed layers, index_topk]; in a final output -1 stands for "no pick"."""

    def after(self, num_rows: int) -> "RowExtras":
        """Without the first `num_rows`."""
        return RowExtras(*(None if kind is None else kind[num_rows:] for kind in self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to continue. `params.n` and `params.stop` are the front door's business and are not read here.

    Raises:
        RequestError: a field has the wrong type or is out of range; `param` names it.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    """-100 to 100. Higher goes first; who waits long enough rises, so that nobody waits for ever."""
    cache_salt: str = ""
    """Requests share cached prefixes with those of the same salt alone: a tenant, a session, a secret."""
    use_cache: bool = True
    """False: nothing is taken from the prefix cache and nothing is left there; forks still share its prompt."""
    fork_of: str | None = None
    """The id of a request with the same prompt whose computed prompt this one takes over as soon as it is there.
    Only a hint: where the leader is unknown, gone or in trouble, the request is an ordinary one."""
    timeout_s: float | None = None
    """Seconds from arrival after which the request ends with an error; None: the engine's default."""
    waited_s: float = 0.0
    """For how long it has waited for the engine to be there; part of its queueing and of what `timeout_s` counts."""

    def __post_init__(self) -> None:
        if type(self.priority) is not int or not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise RequestError(
                f"priority is {shown(self.priority)}; it must be an integer from {-MAX_PRIORITY} to {MAX_PRIORITY}",
                param="priority",
            )
        if self.timeout_s is not None and not _is_duration(self.timeout_s):
            raise RequestError(
                f"timeout_s is {shown(self.timeout_s)}; it must be a number of seconds > 0 and <= {MAX_TIMEOUT_S:g}, "
                "or None",
                param="timeout_s",
            )
        if not isinstance(self.cache_salt, str) or not is_unicode(self.cache_salt):
            raise RequestError(
                f"cache_salt is {shown(self.cache_salt)}; it must be a string of whole characters", param="cache_salt"
            )
        if not isinstance(self.params, SamplingParams):
            raise RequestError(f"params is {shown(self.params)}; it must be a SamplingParams", param="params")
        if not isinstance(self.use_cache, bool):
            raise RequestError(f"use_cache is {shown(self.use_cache)}; it must be True or False", param="use_cache")


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MAX_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log-probabilities at one position, of the raw distribution (temperature 1, nothing cut off)."""

    chosen: float
    top: tuple[tuple[int, float], ...]
    """The most likely (token id, log-probability), best first, as many as asked for."""


@dataclass(slots=True)
class TokenEvent:
    """One generated token; `index` counts the request's generated tokens from 0.

    `weight_version` names the weights that the whole prefix was computed with and the token was drawn from. Nobody
    changes an event; it is not declared frozen because one is made for every token, and that would double the price.
    """

    request_id: str
    index: int
    token_id: int
    logprobs: TokenLogprobs | None
    weight_version: int = 0
    cached_len: int | None = None
    """On the first token: prompt tokens that came from the cache, as `FinalOutput` will say. None on later ones."""
    drafted: int = 0
    """Draft tokens that the request had verified up to and with the pass that gave this token."""
    accepted: int = 0
    """Of these, so many were right and are among its tokens up to this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReport:
    """How a request was served, in its own numbers. Lengths are in tokens.

    The matches and `cut` are those of its first admission, `replayed` and the counts are of its whole life.
    """

    prompt_len: int
    compressed_match: int = 0
    """Of the prompt: so many tokens had their compressed entries in the cache."""
    usable_match: int = 0
    """Of the prompt: so many could be continued from, with a live window at their end."""
    cut: Cut = "not admitted"
    """Why no more of the prompt was found."""
    replayed: int = 0
    """Tokens computed again only to restore windows, their compressed entries being cached."""
    queued_s: float = 0.0
    """Seconds from arrival to first admission."""
    num_retractions: int = 0
    """Times that it gave its memory to others and was resumed later."""
    drafted: int = 0
    """Draft tokens verified."""
    accepted: int = 0
    """Of these, so many were what the model itself chose."""
    weight_versions: tuple[int, ...] = ()
    """Versions that its tokens were drawn from, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalOutput:
    """The end of a request: exactly one for each, after its last token event, failures included.

    `token_ids` holds all generated tokens, the stopping token included (then `stop_token_id` names it).
    `error` says what went wrong when `finish_reason` is "error", and `error_kind` whose fault it was.
    """

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    finish_reason: FinishReason
    stop_token_id: int | None = None
    error: str | None = None
    error_kind: ErrorKind | None = None
    prompt_len: int
    cached_len: int = 0
    """Prompt tokens that were not computed because they were found in the cache."""
    report: RequestReport | None = None
    """None where the request never reached an engine."""
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    """Of prompt tokens 1 and later (nothing precedes token 0), where `params.prompt_logprobs` asks for them."""
    extras: RowExtras | None = None
    """Of all tokens, prompt and answer, but the last, where asked for."""

    def __post_init__(self) -> None:
        assert (self.finish_reason == "error") == (self.error_kind is not None), (self.finish_reason, self.error_kind)

    @property
    def mean_accepted_len(self) -> float:
        """Tokens from each pass that gave it any: one of the model's own and the accepted drafts before it."""
        accepted = 0 if self.report is None else self.report.accepted
        return len(self.token_ids) / max(1, len(self.token_ids) - accepted)


Event = TokenEvent | FinalOutput
