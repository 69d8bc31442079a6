"""The doors of cross_entropy."""

from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, require_reference, uses_triton_kernel
from benthic.kernels.cross_entropy.autograd import LinearCrossEntropy
from benthic.kernels.cross_entropy.reference import RankedLogprobs, ranked_logprobs_ref, token_logprobs_ref
from benthic.kernels.inputs import require_below

__all__ = ["RankedLogprobs", "linear_cross_entropy", "ranked_logprobs", "token_logprobs"]


def token_logprobs(logits: Tensor, ids: Tensor, *, impl: Impl = "auto") -> Tensor:
    """log-softmax of each row at one id or several; the one function that trainer, scorer and engine share.

    Args:
        logits: float32 [R, V].
        ids: int64 [R] or [R, K].

    Returns:
        float32, of the shape of `ids`. The same row has the same bits in any batch.

    Raises:
        KernelInputError: the shapes do not fit.
    """
    if logits.dim() != 2 or ids.dim() not in (1, 2) or ids.shape[:1] != logits.shape[:1]:
        raise KernelInputError(
            f"logits have shape {tuple(logits.shape)}, ids {tuple(ids.shape)}; they must be [R, V], [R] or [R, K]"
        )
    if uses_triton_kernel(impl, logits, is_operator=True):
        from benthic.kernels.cross_entropy.kernel import token_logprobs_triton

        values: Tensor = token_logprobs_triton(logits, ids)
        return values
    require_reference(impl, "token_logprobs")
    require_below("ids", ids, logits.shape[1])
    return token_logprobs_ref(logits, ids)


def ranked_logprobs(logits: Tensor, chosen: Tensor, num_top: int, *, impl: Impl = "auto") -> RankedLogprobs:
    """log-softmax of each row at one chosen id and at its `num_top` most likely ids; equals in the order of their ids.

    Args:
        logits: float32 [R, V], finite.
        chosen: int64 [R].
        num_top: K; at most V are returned.

    Returns:
        A RankedLogprobs with the bits of `token_logprobs`; the same row has the same bits in any batch.

    Raises:
        KernelInputError: the shapes do not fit.
    """
    if logits.dim() != 2 or chosen.shape != logits.shape[:1] or num_top < 0:
        raise KernelInputError(
            f"logits have shape {tuple(logits.shape)}, chosen {tuple(chosen.shape)}, num_top is {num_top}; "
            "they must be [R, V], [R] and at least 0"
        )
    num_top = min(num_top, logits.shape[1])
    if uses_triton_kernel(impl, logits):
        from benthic.kernels.cross_entropy.kernel import ranked_logprobs_triton

        return ranked_logprobs_triton(logits, chosen, num_top)
    require_reference(impl, "ranked_logprobs")
    require_below("chosen", chosen, logits.shape[1])
    return ranked_logprobs_ref(logits, chosen, num_top)


def linear_cross_entropy(
    hidden: Tensor, head: Tensor, targets: Tensor, weights: Tensor, block_rows: int = 1024, *, impl: Impl = "auto"
) -> Tensor:
    """sum_r weights[r] * -log softmax(hidden[r] . head^T)[targets[r]], without keeping the logits.

    Args:
        hidden: [R, D], any float dtype.
        head: [V, D], any float dtype; logits are a float32 island.
        targets: int64 [R], in 0 .. V-1 also where the weight is 0.
        weights: float32 [R], the loss weight of each row; carries no gradient.
        block_rows: rows whose logits exist together.

    Returns:
        float32 scalar. Rows have the bits of `token_logprobs(linear(...))`. Its gradients are deterministic; they are
        made in the forward pass, so double backward is not possible.

    Raises:
        KernelInputError: the shapes do not fit.
    """
    if targets.shape != hidden.shape[:1] or weights.shape != hidden.shape[:1] or block_rows < 1:
        raise KernelInputError(
            f"hidden has shape {tuple(hidden.shape)}, targets {tuple(targets.shape)}, weights {tuple(weights.shape)}, "
            f"block_rows is {block_rows}; they must be [R, D], [R], [R] and at least 1"
        )
    require_reference(impl, "linear_cross_entropy")
    total: Tensor = LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, head, targets, weights, block_rows, token_logprobs
    )
    return total
