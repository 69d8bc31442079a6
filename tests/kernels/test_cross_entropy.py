"""cross_entropy: log-probabilities, the loss in row blocks, gradients, independence of rows."""

import pytest
import torch

from benthic.errors import KernelInputError
from benthic.kernels.cross_entropy import linear_cross_entropy, token_logprobs
from benthic.kernels.cross_entropy.autograd import row_blocks
from benthic.kernels.cross_entropy.cases import ROW_INPUTS, inputs, loss_inputs
from benthic.kernels.linear import linear
from tests.kernels import laws


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 13])
def test_logprobs_are_those_of_float64(rows: int, extreme: bool) -> None:
    given = inputs(rows, extreme=extreme)
    expected = given["logits"].double().log_softmax(-1).gather(1, given["ids"][:, None])[:, 0]
    # Two terms of a logit's size are subtracted.
    torch.testing.assert_close(
        token_logprobs(**given).double(), expected, rtol=2e-7, atol=1e-6 if not extreme else 1e-3
    )


def test_a_row_has_the_same_bits_in_any_batch() -> None:
    for vocab_size in (101, 4096):
        laws.assert_rows_ignore_neighbours(token_logprobs, inputs(laws.ALL_ROWS, vocab_size=vocab_size), ROW_INPUTS)


def test_gradients_are_the_numeric_ones() -> None:
    laws.assert_gradients(lambda logits, ids: token_logprobs(logits, ids), inputs(4, torch.float64, vocab_size=7))
    given = loss_inputs(7, torch.float64, vocab_size=9, width=5)
    weights = given.pop("weights")
    for block_rows in (1, 3, 100):
        laws.assert_gradients(
            lambda n=block_rows, **rest: linear_cross_entropy(**rest, weights=weights, block_rows=n), given
        )


@pytest.mark.parametrize("block_rows", [1, 4, 7, 1000])
def test_the_loss_is_the_weighted_sum_of_logprobs_at_any_block_size(block_rows: int) -> None:
    given = loss_inputs(23)
    logprobs = token_logprobs(linear(given["hidden"], given["head"]), given["targets"])
    expected = -(logprobs.double() * given["weights"]).sum()
    torch.testing.assert_close(
        linear_cross_entropy(**given, block_rows=block_rows).double(), expected, rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("rows", [0, 1, 5, 9, 10])
def test_blocks_cover_all_rows_and_none_is_low(rows: int) -> None:
    blocks = row_blocks(rows, 5)
    assert [row for start, end in blocks for row in range(start, end)] == list(range(rows))
    assert all(end - start >= min(5, rows) for start, end in blocks)


def test_a_row_of_weight_zero_gives_no_gradient() -> None:
    given = loss_inputs(6)
    given["weights"] = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    hidden = given["hidden"].requires_grad_()
    linear_cross_entropy(**given).backward()
    assert hidden.grad is not None
    assert not hidden.grad[[1, 3]].any()
    assert hidden.grad[[0, 2]].any()


def test_no_rows_cost_nothing() -> None:
    given = loss_inputs(0)
    head = given["head"].requires_grad_()
    loss = linear_cross_entropy(**given)
    loss.backward()
    assert loss.item() == 0.0
    assert head.grad is not None
    assert not head.grad.any()


def test_weights_of_another_length_are_refused() -> None:
    given = loss_inputs(4)
    with pytest.raises(KernelInputError, match=r"weights \(3,\)"):
        linear_cross_entropy(**(given | {"weights": torch.ones(3)}))
