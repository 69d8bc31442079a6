"""How much cache a machine's memory buys: pages, windows and request rows, and the account of it.

What is wanted: as many requests as may run at once, each at full length, and as much again for prefixes of requests
that are gone; windows for the running rows, a pass's chunk, and two a live session. Where memory is short, pages and
windows shrink together, down to one full context beside the windows that running rows cannot do without. Where it is
plentiful, no more is taken than is wanted.
"""

from dataclasses import dataclass

from benthic.cache.geometry import CacheCapacity, CacheGeometry
from benthic.cache.layout import SNAPSHOT_ROWS
from benthic.cache.storage import KeyStorage
from benthic.cache.workspace import NO_WORKSPACE, Workspace
from benthic.errors import ConfigError

RAW_BYTES = 4
"""Rings and snapshots are fp32."""

TABLE_BYTES = 16
"""A table cell: a page and a window id."""

KEPT_FREE = 0.1
"""Share of the available memory that is left to everybody else."""

CONTEXTS_A_ROW = 2
"""Full contexts wanted for every row: one that runs and one that is remembered."""

WINDOWS_A_SESSION = 2
"""Windows that a session leaves where its next turn may begin: the end of its prompt and of its output."""


@dataclass(frozen=True, slots=True)
class CacheUse:
    """What the cache must serve.

    `max_num_seqs` requests at once, passes of `max_batched_tokens` rows, contexts of `max_len` tokens, a window kept
    every `retention_interval` tokens of a long span.
    """

    max_num_seqs: int
    max_batched_tokens: int
    max_len: int
    retention_interval: int = 8192


@dataclass(frozen=True, slots=True)
class UnitBytes:
    """Bytes of one page, one window (with its snapshot), one request row's rings, over all layers."""

    page: int
    window: int
    row: int


def unit_bytes(geometry: CacheGeometry, storage: KeyStorage) -> UnitBytes:
    """What the pools take for each id."""
    page = window = row = 0
    size = storage.element.itemsize
    for layer in geometry.layers:
        kv, index = storage.kv_width(layer) * size, storage.index_width(layer) * size
        if geometry.window:
            window += geometry.page_size * kv + SNAPSHOT_ROWS * layer.snapshot * RAW_BYTES
        if layer.ratio:
            page += geometry.entries_per_page(layer.ratio) * (kv + index)
        if layer.compresses:
            row += geometry.ring_len(layer.ratio) * layer.raw * RAW_BYTES
    return UnitBytes(page, window, row)


@dataclass(frozen=True, slots=True)
class Budget:
    """Where an engine's memory goes. Bytes, but for `capacity`.

    `available_bytes`: what there was when the weights were loaded. `workspace`: what the largest pass takes beside the
    cache. `limit_bytes`: the most that the pools might take.
    """

    capacity: CacheCapacity
    unit: UnitBytes
    page_size: int
    available_bytes: int
    weight_bytes: int
    workspace: Workspace
    limit_bytes: int

    @property
    def pool_bytes(self) -> int:
        """All of the cache, null ids and tables included."""
        return _pool_bytes(self.capacity, self.unit, self.page_size)

    def lines(self) -> list[str]:
        """The account, one part a line, ready to print."""
        capacity, unit = self.capacity, self.unit
        left = self.available_bytes - self.workspace.total_bytes - self.pool_bytes
        parts = [
            ("weights", self.weight_bytes, "loaded"),
            ("workspace", self.workspace.total_bytes, _parts(self.workspace)),
            ("pages", capacity.num_pages * unit.page, _many(capacity.num_pages, unit.page, "page")),
            *self._window_parts(),
            ("left", left, f"of {size_text(self.available_bytes)} available"),
        ]
        return [f"{name:<10}{size_text(size):>11}   {note}" for name, size, note in parts]

    def _window_parts(self) -> list[tuple[str, int, str]]:
        """Windows, rings and tables; the first two where the model has them."""
        capacity, unit = self.capacity, self.unit
        table = _table_bytes(capacity, self.page_size) + unit.page
        if not capacity.num_windows:
            return [("tables", table, "and the null page")]
        return [
            ("windows", capacity.num_windows * unit.window, _many(capacity.num_windows, unit.window, "window")),
            ("rings", capacity.num_rows * unit.row, _many(capacity.num_rows, unit.row, "request")),
            ("tables", table + unit.window, "and the null page and window"),
        ]


def plan_budget(
    geometry: CacheGeometry,
    use: CacheUse,
    unit: UnitBytes,
    *,
    available_bytes: int,
    weight_bytes: int = 0,
    workspace: Workspace = NO_WORKSPACE,
    cache_bytes: int | None = None,
    may_shorten: bool = False,
) -> Budget:
    """Sizes a cache.

    Args:
        available_bytes: memory that may be taken, weights loaded (see `cache.memory`).
        workspace: what the largest pass takes.
        cache_bytes: the most that the pools may take; None: what workspace and a reserve leave.
        may_shorten: halve `use.max_len` until one context fits.

    Raises:
        ConfigError: the memory does not hold one full context beside the windows of the running requests.
    """
    limit = cache_bytes
    if limit is None:
        limit = max(0, int(available_bytes * (1 - KEPT_FREE)) - workspace.total_bytes)
    least = least_capacity(geometry, use)
    while may_shorten and use.max_len > geometry.page_size and _size(geometry, least, unit) > limit:
        shorter = CacheUse(use.max_num_seqs, use.max_batched_tokens, use.max_len // 2, use.retention_interval)
        use, least = shorter, least_capacity(geometry, shorter)
    if _size(geometry, least, unit) > limit:
        raise ConfigError(_too_small(geometry, use, unit, least, limit, is_given=cache_bytes is not None))
    wanted = wanted_capacity(geometry, use)
    capacity = _largest(geometry, least, wanted, unit, limit)
    return Budget(capacity, unit, geometry.page_size, available_bytes, weight_bytes, workspace, limit)


def least_capacity(geometry: CacheGeometry, use: CacheUse) -> CacheCapacity:
    """One full context, a page in progress for every row, and the windows that rows and a pass's chunk need."""
    pages = geometry.num_pages(use.max_len) + use.max_num_seqs
    return CacheCapacity(pages, _running_windows(geometry, use), use.max_num_seqs, use.max_len)


def wanted_capacity(geometry: CacheGeometry, use: CacheUse) -> CacheCapacity:
    """Everything that the use could profit from."""
    sessions = CONTEXTS_A_ROW * use.max_num_seqs
    pages = sessions * geometry.num_pages(use.max_len) + use.max_num_seqs
    checkpoints = pages * geometry.page_size // use.retention_interval
    windows = WINDOWS_A_SESSION * sessions * geometry.window_pages + (checkpoints if geometry.window_pages else 0)
    return CacheCapacity(pages, _running_windows(geometry, use) + windows, use.max_num_seqs, use.max_len)


def size_text(num_bytes: int) -> str:
    """A number of bytes for people: "3.2 MiB"."""
    size, sign = float(abs(num_bytes)), "-" if num_bytes < 0 else ""
    for name in ("B", "KiB", "MiB", "GiB"):
        if size < 1000:
            return f"{sign}{size:.0f} B" if name == "B" else f"{sign}{size:.1f} {name}"
        size /= 1024
    return f"{sign}{size:.1f} TiB"


def _running_windows(geometry: CacheGeometry, use: CacheUse) -> int:
    """Each row reads `window_pages` behind the page that it fills, and may begin the next within a pass."""
    if not geometry.window_pages:
        return 0
    return use.max_num_seqs * (geometry.window_pages + 2) + geometry.num_pages(use.max_batched_tokens)


def _largest(
    geometry: CacheGeometry, least: CacheCapacity, wanted: CacheCapacity, unit: UnitBytes, limit: int
) -> CacheCapacity:
    """As far from `least` to `wanted` as the limit goes; pages and windows grow in step."""
    steps = 1024
    low, high = 0, steps
    while low < high:
        middle = (low + high + 1) // 2
        if _size(geometry, _between(least, wanted, middle, steps), unit) <= limit:
            low = middle
        else:
            high = middle - 1
    return _between(least, wanted, low, steps)


def _between(least: CacheCapacity, wanted: CacheCapacity, step: int, steps: int) -> CacheCapacity:
    pages = least.num_pages + max(0, wanted.num_pages - least.num_pages) * step // steps
    windows = least.num_windows + max(0, wanted.num_windows - least.num_windows) * step // steps
    return CacheCapacity(pages, windows, least.num_rows, least.max_len)


def _size(geometry: CacheGeometry, capacity: CacheCapacity, unit: UnitBytes) -> int:
    return _pool_bytes(capacity, unit, geometry.page_size)


def _pool_bytes(capacity: CacheCapacity, unit: UnitBytes, page_size: int) -> int:
    pages = capacity.num_page_ids * unit.page
    windows = capacity.num_window_ids * unit.window
    return pages + windows + capacity.num_rows * unit.row + _table_bytes(capacity, page_size)


def _table_bytes(capacity: CacheCapacity, page_size: int) -> int:
    return capacity.num_rows * -(-capacity.max_len // page_size) * TABLE_BYTES


def _many(count: int, size: int, name: str) -> str:
    return f"{count} x {size_text(size)} a {name}"


def _parts(workspace: Workspace) -> str:
    far = f"{size_text(workspace.context_bytes)} for long contexts"
    if workspace.captured_bytes:
        far += f", {size_text(workspace.captured_bytes)} for captured passes"
    if workspace.pass_bytes is None:
        return f"not measured: {far} alone"
    return f"largest pass: {size_text(workspace.pass_bytes)} measured, {far}"


def _too_small(
    geometry: CacheGeometry, use: CacheUse, unit: UnitBytes, least: CacheCapacity, limit: int, *, is_given: bool
) -> str:
    needed = _size(geometry, least, unit)
    what = f"cache_bytes ({limit})" if is_given else f"the memory left for the cache ({limit} bytes)"
    remedy = "raise it, or lower" if is_given else "free memory, or lower"
    beside, names = f"a page of {use.max_num_seqs} requests each", ["max_model_len", "max_num_seqs"]
    if geometry.window:
        beside = f"the windows of {use.max_num_seqs} requests and a pass of {use.max_batched_tokens} rows"
        names.append("max_batched_tokens")
    return (
        f"{what} must be >= {needed} to hold one context of {use.max_len} tokens beside {beside}; {remedy} "
        f"{', '.join(names[:-1])} or {names[-1]}"
    )
