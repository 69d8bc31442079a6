"""Which windows stay in the cache after their row has moved on.

A window costs several times the compressed entries of its page, so most are dropped when the last token that reads
them is computed. A kept one is a checkpoint: the place where a later prompt with the same prefix can go on without
replay. Keeping is a preference in the order of eviction, never a reference: a full pool takes checkpoints too.

Where a model has no windows nothing is asked: pages go by age alone, and a prompt goes on from any of them.
"""

from collections.abc import Mapping
from typing import Protocol

from benthic.errors import ConfigError


class Retention(Protocol):
    """A policy."""

    @property
    def keeps_last(self) -> bool:
        """Whether a row that ends leaves its last window behind."""
        ...

    def is_checkpoint(self, boundary: int, prompt_len: int, branch_len: int) -> bool:
        """Whether the window that ends at token `boundary` is kept.

        Args:
            boundary: a multiple of the page size.
            prompt_len: tokens that the request came with.
            branch_len: boundary up to which another sequence had the same tokens but left no window; 0 if none.
        """
        ...


class Boundaries:
    """Ends of prompts and outputs, places where sequences branched, and every `interval` tokens of a long span."""

    keeps_last = True

    def __init__(self, page_size: int, interval: int) -> None:
        self._page_size = page_size
        self._interval = interval

    def is_checkpoint(self, boundary: int, prompt_len: int, branch_len: int) -> bool:
        """The same prompt again must compute its last token: it reuses one page less if it ends with a page."""
        page = self._page_size
        return (
            boundary == prompt_len // page * page
            or boundary == (prompt_len - 1) // page * page
            or boundary == branch_len
            or boundary % self._interval == 0
        )


class Interval:
    """Every `interval` tokens, and where sequences end."""

    keeps_last = True

    def __init__(self, page_size: int, interval: int) -> None:
        self._interval = interval

    def is_checkpoint(self, boundary: int, prompt_len: int, branch_len: int) -> bool:
        """By position alone."""
        return boundary % self._interval == 0


class EveryPage:
    """All windows, until the pool is full."""

    keeps_last = True

    def __init__(self, page_size: int, interval: int) -> None:
        pass

    def is_checkpoint(self, boundary: int, prompt_len: int, branch_len: int) -> bool:
        """Always."""
        return True


class NoRetention:
    """No window outlives its row: prefixes are reused by replay alone."""

    keeps_last = False

    def __init__(self, page_size: int, interval: int) -> None:
        pass

    def is_checkpoint(self, boundary: int, prompt_len: int, branch_len: int) -> bool:
        """Never."""
        return False


POLICIES: Mapping[str, type[Boundaries | Interval | EveryPage | NoRetention]] = {
    "boundaries": Boundaries,
    "every_page": EveryPage,
    "interval": Interval,
    "none": NoRetention,
}


def retention(name: str, *, page_size: int = 128, interval: int = 8192) -> Retention:
    """The policy of that name.

    Args:
        interval: tokens, a positive multiple of `page_size`; read by `boundaries` and `interval`.

    Raises:
        ConfigError: an unknown name or a wrong interval.
    """
    if name not in POLICIES:
        raise ConfigError(f"retention ({name!r}) must be one of {', '.join(sorted(POLICIES))}")
    if interval < page_size or interval % page_size:
        raise ConfigError(f"retention_interval ({interval}) must be a positive multiple of the page size ({page_size})")
    return POLICIES[name](page_size, interval)
