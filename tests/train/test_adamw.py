"""AdamW agrees with torch's, down to gradients that only the paper's epsilon can see."""

import pytest
import torch
from torch import nn

from benthic.errors import ConfigError
from benthic.train.adamw import AdamW, AdamWConfig


def test_five_steps_agree_with_the_library():
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4)) for _ in range(2))
    config = AdamWConfig(eps=1e-8)
    adamw = AdamW(["w"], [ours], [True], config)
    reference = torch.optim.AdamW([theirs], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for _ in range(5):
        gradient = torch.randn(3, 4)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        adamw.step(torch.tensor(0.01))
        reference.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_only_parameters_that_decay_are_pulled_to_zero():
    embedding, gain = (nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    embedding.grad, gain.grad = torch.zeros(2, 2), torch.zeros(2, 2)
    AdamW(["e", "g"], [embedding, gain], [True, False], AdamWConfig()).step(torch.tensor(0.5))
    assert embedding.detach().unique().item() == pytest.approx(0.95)
    assert gain.detach().unique().item() == 1.0


def test_a_tiny_gradient_moves_a_weight_as_far_as_a_large_one():
    weight = nn.Parameter(torch.zeros(4))
    weight.grad = torch.tensor([1.0, 1e-8, 1e-16, 0.0])
    AdamW(["w"], [weight], [False], AdamWConfig()).step(torch.tensor(0.1))
    torch.testing.assert_close(weight.detach(), torch.tensor([-0.1, -0.1, -0.1, 0.0]), rtol=1e-3, atol=0)


@pytest.mark.parametrize("fields", [{"beta1": 1.0}, {"beta2": -0.1}, {"eps": 0.0}, {"weight_decay": -1.0}], ids=str)
def test_constants_out_of_range_name_their_field(fields):
    with pytest.raises(ConfigError, match=rf"adamw\.{next(iter(fields))}"):
        AdamWConfig(**fields)
