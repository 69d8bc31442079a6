"""The cache's device tensors, one set a layer, addressed by block."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from benthic.cache.layout import BLOCK_SIZE, CSA, WINDOW, CacheLayout

ALIGNMENT = 64


class CacheBuffers:
    """Buffers of all layers; each list is indexed by layer (main layers, then MTP blocks).

    `kv[layer]` [slots, d] in the activations' dtype: window blocks, then entry blocks from `entry_base` on.
    `raw[layer]` float32 [window slots, w] or None. `index[layer]` [entry slots, di] or None.
    All slots hold finite numbers at any time: they start as zeros and are cleared before they change owner.
    """

    def __init__(self, layout: CacheLayout, *, dtype: torch.dtype, device: torch.device) -> None:
        window = (layout.num_blocks[WINDOW] + 1) * BLOCK_SIZE
        self.entry_base = layout.num_blocks[WINDOW] + 1
        self._ratios = tuple(layer.ratio for layer in layout.layers)

        def zeros(slots: int, width: int, dtype: torch.dtype = dtype) -> Tensor:
            return _zeros(slots, width, dtype, device)

        entries = {ratio: (count + 1) * BLOCK_SIZE for ratio, count in layout.num_blocks.items() if ratio != WINDOW}
        self.kv = [zeros(window + entries.get(layer.ratio, 0), layer.kv) for layer in layout.layers]
        self.raw = [zeros(window, layer.raw, torch.float32) if layer.raw else None for layer in layout.layers]
        self.index = [zeros(entries[layer.ratio], layer.index) if layer.index else None for layer in layout.layers]

    def clear(self, blocks: Mapping[int, Sequence[int]]) -> None:
        """Zeroes blocks, given by kind."""
        for ratio, ids in blocks.items():
            if not ids:
                continue
            picked = torch.tensor(ids, device=self.kv[0].device)
            for layer, layer_ratio in enumerate(self._ratios):
                if ratio == WINDOW:
                    _zero(self.kv[layer], picked)
                    _zero(self.raw[layer], picked)
                elif ratio == layer_ratio:
                    _zero(self.kv[layer], picked + self.entry_base)
                    _zero(self.index[layer] if ratio == CSA else None, picked)


def _zeros(slots: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that on CPU take memory only once they are written: pages of the system, aligned as torch's own."""
    if device.type != "cpu":
        return torch.zeros(slots, width, dtype=dtype, device=device)
    num_bytes = slots * width * dtype.itemsize
    pages = np.zeros(num_bytes + ALIGNMENT, dtype=np.uint8)
    start = -pages.ctypes.data % ALIGNMENT
    return torch.from_numpy(pages[start : start + num_bytes]).view(dtype).view(slots, width)


def _zero(buffer: Tensor | None, blocks: Tensor) -> None:
    if buffer is not None:
        buffer.view(-1, BLOCK_SIZE, buffer.shape[-1]).index_fill_(0, blocks, 0)
