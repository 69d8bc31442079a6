"""Sampling and log-probabilities by Triton on a CPU, in Triton's interpreter: ties, cuts, gradients, tails."""

import os

import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("TRITON_INTERPRET=1 is not set", allow_module_level=True)

from benthic.kernels.cross_entropy.kernel import ranked_logprobs_triton, token_logprobs_triton  # noqa: E402
from benthic.kernels.cross_entropy.reference import ranked_logprobs_ref, token_logprobs_ref  # noqa: E402
from benthic.kernels.sample import cases  # noqa: E402
from benthic.kernels.sample.kernel import sample_triton  # noqa: E402
from benthic.kernels.sample.reference import Cuts, sample_ref  # noqa: E402


@pytest.mark.parametrize("vocab_size", [3, 50, 65])
def test_log_probabilities_and_the_most_likely_tokens_are_the_references(vocab_size: int) -> None:
    logits = 3 * torch.randn(5, vocab_size)
    logits[1::2] = logits[1::2].round()
    logits[3, :2] = torch.tensor([0.0, -0.0])
    chosen = torch.randint(0, vocab_size, (5,))
    found, wanted = ranked_logprobs_triton(logits, chosen, 3, block=16), ranked_logprobs_ref(logits, chosen, 3)
    assert torch.equal(found.top_ids, wanted.top_ids)
    torch.testing.assert_close(found.top, wanted.top)
    torch.testing.assert_close(found.chosen, wanted.chosen)


def test_gradients_are_the_references() -> None:
    logits, ids = torch.randn(4, 37).requires_grad_(), torch.randint(0, 37, (4, 3))
    upstream = torch.randn(4, 3)
    found, wanted = token_logprobs_triton(logits, ids, 16), token_logprobs_ref(logits, ids)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(values, logits, upstream)[0] for values in (found, wanted)))


@pytest.mark.parametrize("room", [16, 1])
def test_draws_are_the_references(room: int) -> None:
    """Cut rows by sorting, and where there is no room for that by bisection."""
    given = cases.inputs(6 if room > 1 else 3, vocab_size=40)
    given["logits"][::2] = given["logits"][::2].round()
    given["logits"][1, 5] = float("-inf")
    settings = given["logits"], given["temperature"]
    randomness = given["seeds"], given["positions"]
    for cuts in (None, Cuts(given["top_k"], given["top_p"], given["min_p"])):
        wanted = sample_ref(*settings, cuts, *randomness)
        assert torch.equal(sample_triton(*settings, cuts, *randomness, block=16, room=room), wanted)
