"""Where one pass writes, as the operations take it that write in place (`kernels.entry_write`)."""

from collections.abc import Mapping

from torch import Tensor

from benthic.cache.pools import CachePools
from benthic.kernels.entry_write import BlockEnds, RawState, RowTarget
from benthic.kernels.kv_storage import KeyForm


class CachePlaces:
    """`models.context.EntryPlaces` over the pools.

    Args:
        window_slots: int64 [R], of the pass's kv rows; -1 writes nothing.
        ends: what the pass does to the compressors, by ratio.
    """

    def __init__(self, pools: CachePools, window_slots: Tensor, ends: Mapping[int, BlockEnds]) -> None:
        self._pools, self._window_slots, self._ends = pools, window_slots, ends

    def window(self, layer: int) -> RowTarget:
        """Where the layer's kv rows of this pass go."""
        return RowTarget(self._pools.kv[layer], self._window_slots, self._pools.storage.form)

    def block_ends(self, ratio: int) -> BlockEnds:
        """What the pass does to compressors of that ratio."""
        return self._ends[ratio]

    def raw_state(self, layer: int) -> RawState:
        """The layer's raw rows of earlier passes."""
        rings = self._pools.rings[layer]
        assert rings is not None, f"layer {layer} has no compressor"
        return RawState(rings, self._pools.snapshots[layer])

    def entries(self, layer: int) -> tuple[Tensor, KeyForm | None]:
        """The layer's buffer of entries, and their form."""
        return self._pools.kv[layer][self._pools.entry_base :], self._pools.storage.form

    def index(self, layer: int) -> tuple[Tensor, KeyForm | None]:
        """The layer's buffer of indexer keys likewise."""
        buffer = self._pools.index[layer]
        assert buffer is not None, f"layer {layer} has no indexer"
        return buffer, self._pools.storage.form
