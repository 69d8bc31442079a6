"""The grammars' say on the rows of one pass: found on the host, one after the other, and laid over the logits there."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq

import numpy as np
import torch
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
    at = to_device(torch.tensor(list(words)), logits.device)
    packed = to_device(torch.from_numpy(np.stack(list(words.values()))), logits.device)  # [M, V / 32]
    bits = packed[:, :, None] >> torch.arange(32, dtype=torch.int32, device=logits.device) & 1
    is_out = bits.flatten(1)[:, : logits.shape[1]] == 0
    logits[at] = logits[at].masked_fill(is_out, float("-inf"))
