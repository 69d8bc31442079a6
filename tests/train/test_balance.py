"""The router's bias leans against the load."""

import torch

from benthic.train.balance import update_biases


def test_a_busy_expert_becomes_less_eligible_and_an_idle_one_more():
    bias = torch.zeros(4)
    update_biases([bias], [torch.tensor([10, 2, 6, 6])], torch.tensor(0.5))
    assert bias.tolist() == [-0.5, 0.5, 0.0, 0.0]
