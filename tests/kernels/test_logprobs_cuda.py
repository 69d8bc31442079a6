"""Log-probabilities on CUDA: near float64, a row's own in any batch, the same by every door."""

import pytest
import torch

from benthic.kernels.cross_entropy import linear_cross_entropy, ranked_logprobs, token_logprobs
from benthic.kernels.linear import linear

pytestmark = pytest.mark.gpu

COUNTS = (1, 7, 64, 133)


@pytest.mark.parametrize("vocab_size", [3, 512, 4097, 129280])
def test_values_are_near_float64_and_ignore_other_rows(vocab_size: int) -> None:
    rows = 150
    logits, chosen = 4 * torch.randn(rows, vocab_size, device="cuda"), torch.randint(vocab_size, (rows,), device="cuda")
    logits[::2] = logits[::2].round()  # ties
    whole = ranked_logprobs(logits, chosen, 5)
    exact = logits.double().log_softmax(-1)
    wanted = ranked_logprobs(logits, chosen, 5, impl="reference")
    assert torch.equal(whole.top_ids, wanted.top_ids)
    assert (whole.top - exact.gather(1, whole.top_ids)).abs().max() <= 4e-6
    assert (whole.chosen - exact.gather(1, chosen[:, None])[:, 0]).abs().max() <= 4e-6
    for count in COUNTS:
        rows_of = slice((17 * count) % (rows - count), (17 * count) % (rows - count) + count)
        part = ranked_logprobs(logits[rows_of], chosen[rows_of], 5)
        assert all(torch.equal(a, b[rows_of]) for a, b in zip(part, whole, strict=True))
        assert torch.equal(token_logprobs(logits[rows_of], chosen[rows_of]), whole.chosen[rows_of])
    assert torch.equal(token_logprobs(logits, whole.top_ids), whole.top)


def test_the_loss_is_made_of_the_same_log_probabilities() -> None:
    hidden, head = torch.randn(70, 64, device="cuda"), torch.randn(5000, 64, device="cuda") / 8
    targets = torch.randint(5000, (70,), device="cuda")
    weights = torch.zeros(70, device="cuda")
    for row in (0, 3, 69):
        weights.zero_()[row] = 1.0
        loss = linear_cross_entropy(hidden, head, targets, weights, block_rows=32)
        assert torch.equal(-loss, token_logprobs(linear(hidden, head), targets)[row])
