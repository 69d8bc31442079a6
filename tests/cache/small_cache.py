"""A small cache and requests that run through it without a device, for scripted tests."""

from collections.abc import Hashable, Sequence

from benthic.cache.geometry import CacheCapacity
from benthic.cache.manager import CacheManager
from benthic.cache.retention import retention
from benthic.cache.row import Row
from tests.cache.cache_model import small_geometry

NAMESPACE = ("weights", 0, "")


def small_cache(
    *,
    num_pages: int = 40,
    num_windows: int = 40,
    num_rows: int = 8,
    max_len: int = 640,
    page_size: int = 16,
    window: int = 8,
    policy: str = "boundaries",
    interval: int = 1024,
) -> CacheManager:
    """P = 16, W = 8, three layers, so a replay takes 22 tokens; with window 0 no windows whatever `num_windows`."""
    return CacheManager(
        small_geometry(page_size, window),
        CacheCapacity(num_pages, num_windows if window else 0, num_rows, max_len),
        retention(policy, page_size=page_size, interval=interval),
        keeps_extras=True,
    )


def begin(
    cache: CacheManager,
    tokens: Sequence[int],
    prompt_len: int | None = None,
    namespace: tuple[Hashable, ...] = NAMESPACE,
    *,
    use_cache: bool = True,
    need_extras: bool = False,
) -> Row:
    """Opens a row; there must be room."""
    prompt_len = len(tokens) if prompt_len is None else prompt_len
    row = cache.open(tokens, prompt_len, namespace, use_cache=use_cache, need_extras=need_extras)
    assert row is not None
    return row


def advance(cache: CacheManager, row: Row, tokens: Sequence[int], new_len: int, *, chunk: int = 32) -> None:
    """Computes up to `new_len` in chunks."""
    while row.committed_len < new_len:
        end = min(new_len, row.committed_len + chunk)
        assert cache.room(row, end) == end
        cache.grow(row, end)
        cache.take_work()
        cache.commit(row, end, tokens)
    cache.check()


def serve(
    cache: CacheManager,
    prompt: Sequence[int],
    output: Sequence[int] = (),
    namespace: tuple[Hashable, ...] = NAMESPACE,
    *,
    chunk: int = 32,
) -> Row:
    """A request from start to finish; the row is returned for its report."""
    tokens = [*prompt, *output]
    row = begin(cache, prompt, len(prompt), namespace)
    advance(cache, row, tokens, len(prompt), chunk=chunk)
    advance(cache, row, tokens, len(tokens), chunk=1)
    cache.close(row, finished=True)
    cache.check()
    return row
