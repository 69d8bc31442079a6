"""The door of compression."""

from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.compress_kv.blocks import CompletedBlocks
from benthic.kernels.compress_kv.reference import compress_kv_ref


def compress_kv(raw: Tensor, ape: Tensor, blocks: CompletedBlocks) -> Tensor:
    """Pools the raw rows of completed blocks into one entry each, before norm and rotation (model.md 2.5).

    Args:
        raw: [num_slots, 2*c*d] float32 (or wider), A | B without positional bias; c = 2 for ratio 4, 1 for ratio 128.
        ape: [ratio, c*d] positional bias of the gates.
        blocks: m completed blocks.

    Returns:
        [m, d], float32 (or wider). Each entry depends on its own block (and, for ratio 4, its predecessor) only.
    """
    ratio, width = ape.shape
    if ratio != blocks.ratio or raw.shape[-1] != 2 * width:
        raise KernelInputError(
            f"ape has shape {tuple(ape.shape)} and raw rows are {raw.shape[-1]} wide; "
            f"for ratio {blocks.ratio} they must be ({blocks.ratio}, w) and 2*w"
        )
    return compress_kv_ref(raw, ape, blocks.sources, blocks.first, width // 2 if ratio == 4 else width)
