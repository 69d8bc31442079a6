"""Box 3: what a conversation keeps, by pool, from the geometry and unit sizes that the engine's cache is built with."""

from dataclasses import dataclass, replace
from typing import Literal

from benthic.cache.budget import Budget, UnitBytes, unit_bytes
from benthic.cache.geometry import CacheCapacity, CacheGeometry, geometry
from benthic.cache.workspace import NO_WORKSPACE
from benthic.models.config import ModelConfig
from benthic.plan.rows import CacheFormat, RowBytes, row_bytes, storage_of

Draft = Literal["none", "mtp"]

PASS_ROWS = 2048
"""Rows of a pass, as the engine's `max_batched_tokens` has them by default: prompts are computed in such chunks."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Bytes that a conversation takes in one pool: for each of its tokens, and whatever its length."""

    name: str
    token_bytes: float
    fixed_bytes: int


@dataclass(frozen=True, slots=True)
class State:
    """A model's cache: shape, unit sizes, and what follows for one conversation and for many."""

    geometry: CacheGeometry
    unit: UnitBytes
    row: RowBytes

    @property
    def windows(self) -> int:
        """Window pages that a running conversation holds: those behind its page, that page, and the next."""
        return self.geometry.window_pages + 2 if self.geometry.window_pages else 0

    @property
    def token_bytes(self) -> float:
        """Bytes that each further token adds."""
        return self.unit.page / self.geometry.page_size

    @property
    def fixed_bytes(self) -> int:
        """Bytes of a conversation that do not grow with it."""
        return self.windows * self.unit.window + self.unit.row

    def conversation_bytes(self, context: int) -> int:
        """One conversation of `context` tokens: whole pages, windows, rings."""
        return self.geometry.num_pages(context) * self.unit.page + self.fixed_bytes

    def pool_bytes(self, conversations: int, context: int) -> int:
        """The engine's pools for so many running conversations, null ids, tables and a pass's windows included."""
        windows = conversations * self.windows
        if windows:
            windows += self.geometry.num_pages(PASS_ROWS)
        pages = conversations * (self.geometry.num_pages(context) + 1)
        capacity = CacheCapacity(pages, windows, conversations, context)
        return Budget(capacity, self.unit, self.geometry.page_size, 0, 0, NO_WORKSPACE, 0).pool_bytes

    def conversations_in(self, room_bytes: int, context: int) -> int:
        """How many conversations of `context` tokens fit."""
        first, second = self.pool_bytes(1, context), self.pool_bytes(2, context)
        return max(0, 1 + (room_bytes - first) // (second - first)) if room_bytes >= first else 0

    def pools(self) -> tuple[Pool, ...]:
        """By pool, the growing ones first."""
        sizes: dict[str, float] = {}
        for layer in self.geometry.layers:
            if layer.ratio:
                name = "entries, every token" if layer.ratio == 1 else f"entries, one for {layer.ratio} tokens"
                sizes[name] = sizes.get(name, 0) + self.row.kv / layer.ratio
                if layer.index:
                    sizes["indexer keys"] = sizes.get("indexer keys", 0) + self.row.index / layer.ratio
        found = [Pool(name, size, 0) for name, size in sizes.items()]
        assert abs(sum(pool.token_bytes for pool in found) - self.token_bytes) < 1e-6, (found, self.unit)
        if self.windows:
            found.append(Pool(f"windows, {self.windows} pages", 0, self.windows * self.unit.window))
        if self.unit.row:
            found.append(Pool("compressor rings", 0, self.unit.row))
        return tuple(found)


def planned_config(config: ModelConfig, draft: Draft) -> ModelConfig:
    """The model as it is run: without its MTP blocks unless they draft."""
    return config if draft == "mtp" else replace(config, num_nextn_predict_layers=0)


def state_of(config: ModelConfig, form: CacheFormat, draft: Draft = "none") -> State:
    """The cache of a model.

    Raises:
        ConfigError: the family has no such format.
    """
    shape = geometry(planned_config(config, draft), max_draft_len=1 if draft == "mtp" else 0)
    storage = storage_of(config, shape, form)
    return State(shape, unit_bytes(shape, storage), row_bytes(storage, shape))
