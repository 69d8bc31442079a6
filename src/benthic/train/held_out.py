"""Accuracy on held-out documents during training, from packed passes alone.

Where every prompt has one right reply, greedy decoding gives it exactly if each of its tokens is the likeliest one
after the true tokens before it. So a single pass judges thousands of replies, with no engine and no sampling.
"""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from benthic.models.packed import PackedContext
from benthic.models.transformer import Transformer
from benthic.train.feed import to_device
from benthic.train.item import Item
from benthic.train.packing import Layout, TrainBatch, pack_all

_BLOCK_ROWS = 8192


class HeldOutAccuracy:
    """Share of documents, by tag, in which every token with a weight is the likeliest; a Trainer's `evaluate`."""

    def __init__(self, items: Iterable[Item], layout: Layout) -> None:
        self._layout = layout
        self._batches = pack_all(items, layout)

    @torch.no_grad()
    def __call__(self, model: Transformer, step: int) -> dict[str, float]:
        """Shares in [0, 1], tags in the order of the alphabet."""
        right: dict[str, list[bool]] = {}
        for batch in self._batches:
            wrong_rows = ~self._is_likeliest(model, batch) & (batch.weights[0] > 0)
            is_wrong = np.zeros(len(batch.lengths), np.bool_)
            is_wrong[batch.document_of_row[wrong_rows]] = True
            for tag, wrong in zip(batch.tags, is_wrong.tolist(), strict=False):
                right.setdefault(tag, []).append(not wrong)
        return {tag: sum(flags) / len(flags) for tag, flags in sorted(right.items())}

    def _is_likeliest(self, model: Transformer, batch: TrainBatch) -> NDArray[np.bool_]:
        """For each row, whether its target is the model's first choice, bool [R]."""
        placed = to_device(batch, model.config, self._layout, model.device)
        hidden = model.hidden(model(placed.rows, PackedContext(model.config, placed.rows, placed.plan)))
        chosen = torch.cat([model.logits(block).argmax(-1) for block in hidden.split(_BLOCK_ROWS)])
        return np.asarray((chosen == placed.targets[0]).cpu().numpy())
