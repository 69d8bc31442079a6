"""The grammars' say on the rows of one pass: found on the host, one after the other, and laid over the logits there."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benthic.engine.constraint import RowMask
from benthic.engine.host_copy import to_device
from benthic.engine.sampled_row import SampledRow

RowMasks = Mapping[int, RowMask]
"""By the number of the row; rows of requests without a grammar are not in it."""


def row_masks(rows: Seq[SampledRow]) -> RowMasks:
    """What the grammars of the rows' requests say."""
    masks = {}
    for place, row in enumerate(rows):
        sequence = row.sequence
        if sequence.constraint is not None:
            may_stop = row.num_generated >= sequence.request.params.min_tokens
            masks[place] = sequence.constraint.at(sequence.tokens, row.drafted, may_stop=may_stop)
    return masks


def forbid(logits: Tensor, masks: RowMasks) -> None:
    """Sets the logits of what a grammar does not admit to -inf, in place.

    Args:
        logits: float32 [N, V].
        masks: of some of the N rows.
    """
    words = {place: mask.words for place, mask in masks.items() if mask.words is not None}
    if not words:
        return
    is_out = _unpacked(~np.stack(list(words.values())), logits.device)[:, : logits.shape[1]]
    if len(words) == len(logits):
        logits.masked_fill_(is_out, float("-inf"))
        return
    at = to_device(torch.tensor(list(words)), logits.device)
    logits[at] = logits[at].masked_fill(is_out, float("-inf"))


def _unpacked(words: NDArray[np.int32], device: torch.device) -> Tensor:
    """Bits of int32 [M, W] as bool [M, 32 W] on the device, to which they go packed."""
    if device.type == "cpu":
        return torch.from_numpy(np.unpackbits(words.view(np.uint8), axis=1, bitorder="little").view(np.bool_))
    packed = to_device(torch.from_numpy(words), device)
    bits = packed[:, :, None] >> torch.arange(32, dtype=torch.int32, device=device) & 1
    return bits.flatten(1) != 0
