"""Notices a prefix cache that is on and of no use: prompts begin like earlier ones, and nothing of them is ever found.

A hit rate of 0 looks the same for traffic that repeats nothing and for a setting that makes hits impossible. So prompts
whose first page an ended request had as well are counted, and after some in a row without a hit the log says why.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable

from benthic.engine.config import EngineConfig
from benthic.engine.request import FinalOutput, Request

PATIENCE = 10
"""Repeated prompts in a row without a hit before it is said."""
_REMEMBERED = 4096

_log = logging.getLogger(__name__)


class CacheWatch:
    """Sees every request that has ended; says at most once a row of misses what is wrong.

    Args:
        config: the engine's.
        warn: takes the sentence.
    """

    def __init__(self, config: EngineConfig, warn: Callable[[str], object] = _log.warning) -> None:
        self._config = config
        self._warn = warn
        self._ended_at: OrderedDict[int, float] = OrderedDict()
        self._cuts: Counter[str] = Counter()
        self._has_warned = False

    def ended(self, request: Request, final: FinalOutput, *, opened_at: float, now: float) -> None:
        """A request that was opened at `opened_at` has ended at `now`, both on one clock."""
        page = self._config.page_size
        if final.report is None or len(request.prompt_ids) <= page or not _looks_up(request, final):
            return
        key = hash((request.cache_salt, request.prompt_ids[:page]))
        is_repeat = self._ended_at.get(key, now) < opened_at
        self._remember(key, now)
        if final.cached_len:
            self._cuts.clear()
            self._has_warned = False
        elif is_repeat:
            self._cuts[final.report.cut] += 1
            self._judge()

    def _remember(self, key: int, now: float) -> None:
        self._ended_at.setdefault(key, now)
        self._ended_at.move_to_end(key)
        if len(self._ended_at) > _REMEMBERED:
            self._ended_at.popitem(last=False)

    def _judge(self) -> None:
        if self._has_warned or self._cuts.total() < PATIENCE:
            return
        self._has_warned = True
        [(cut, _)] = self._cuts.most_common(1)
        self._warn(
            f"the prefix cache finds nothing: {self._cuts.total()} prompts in a row began like earlier ones and were "
            f"computed whole; {self._reason(cut)}"
        )

    def _reason(self, cut: str) -> str:
        if not self._config.prefix_cache:
            return "engine.prefix_cache is false; set it to true"
        match cut:
            case "no such prefix" | "namespace empty":
                return (
                    "their pages were given up before they were asked for again, by other prompts, new weights or a "
                    "flush; more engine.cache_bytes hold more"
                )
            case "no window":
                return (
                    f"their windows are gone, and engine.retention is {self._config.retention}; boundaries keeps those "
                    "that prompts go on from"
                )
            case "no extras":
                return "they ask for routes or picks, and the cached pages came from requests that did not"
            case _:
                return f"the engine says: {cut}"


def _looks_up(request: Request, final: FinalOutput) -> bool:
    """Whether anything could have been found for it: scored prompts are computed whole, forks take a sibling's."""
    assert final.report is not None
    is_own = request.fork_of is None and final.report.cut not in ("fork", "not admitted")
    return is_own and request.params.prompt_logprobs is None
