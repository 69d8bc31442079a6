"""Muon: orthogonal updates of a fixed size, the same for a stack as for its matrices."""

import pytest
import torch
from torch import nn

from benthic.errors import ConfigError
from benthic.train.muon import Muon, MuonConfig


def parameter(*shape: int) -> nn.Parameter:
    made = nn.Parameter(torch.randn(*shape))
    made.grad = torch.randn(*shape)
    return made


@pytest.mark.parametrize("shape", [(24, 96), (96, 24), (64, 64)], ids=str)
def test_an_update_has_equal_singular_values_and_the_rms_that_is_asked_for(shape):
    weight = parameter(*shape)
    before = weight.detach().clone()
    muon = Muon(["w"], [weight], [(1, *shape)], MuonConfig(weight_decay=0.0))
    muon.step(torch.tensor(0.1))
    update = (before - weight.detach()) / 0.1
    # A semi-orthogonal matrix has rms 1/sqrt(max(n, m)); the scale makes it 0.18.
    values = torch.linalg.svdvals(update / (0.18 * max(shape) ** 0.5))
    torch.testing.assert_close(values, torch.ones(min(shape)), rtol=0, atol=2e-3)
    assert update.square().mean().sqrt().item() == pytest.approx(0.18, rel=2e-3)


def test_bfloat16_products_stay_within_a_hundredth():
    weight = parameter(32, 64)
    before = weight.detach().clone()
    muon = Muon(["w"], [weight], [(1, 32, 64)], MuonConfig(weight_decay=0.0), torch.bfloat16)
    muon.step(torch.tensor(1.0))
    values = torch.linalg.svdvals((before - weight.detach()) / (0.18 * 8))
    torch.testing.assert_close(values, torch.ones(32), rtol=0, atol=1e-2)


def test_a_stack_moves_as_its_matrices_move_alone():
    stack = parameter(3, 8, 12)
    alone = [nn.Parameter(stack.detach()[i].clone()) for i in range(3)]
    for i, weight in enumerate(alone):
        weight.grad = stack.grad[i].clone()
    config = MuonConfig()
    together = Muon(["s"], [stack], [(3, 8, 12)], config)
    apart = [Muon(["w"], [weight], [(1, 8, 12)], config) for weight in alone]
    for _ in range(3):
        together.step(torch.tensor(0.05))
        for muon in apart:
            muon.step(torch.tensor(0.05))
    for i, weight in enumerate(alone):
        torch.testing.assert_close(stack.detach()[i], weight.detach(), rtol=1e-5, atol=1e-6)


def test_gate_and_up_of_a_stacked_expert_are_orthogonalised_apart():
    """w13 [E, 2F, D] seen as 2E matrices [F, D]: a huge gate gradient does not shrink the update of up."""
    stack = parameter(2, 8, 16)
    stack.grad[:, :4] *= 1e4
    before = stack.detach().clone()
    Muon(["w13"], [stack], [(4, 4, 16)], MuonConfig(weight_decay=0.0)).step(torch.tensor(1.0))
    rms = (before - stack.detach()).view(4, 4, 16).square().mean((1, 2)).sqrt()
    torch.testing.assert_close(rms, torch.full((4,), 0.18), rtol=2e-3, atol=0)


def test_momentum_looks_ahead_and_decay_is_decoupled():
    weight = parameter(4, 8)
    first, second = torch.randn(4, 8), torch.randn(4, 8)
    before = weight.detach().clone()
    muon = Muon(["w"], [weight], [(1, 4, 8)], MuonConfig(momentum=0.5, weight_decay=0.1))
    weight.grad = first
    muon.step(torch.tensor(0.0))
    torch.testing.assert_close(weight.detach(), before)
    weight.grad = second
    muon.step(torch.tensor(1.0))
    momentum = 0.5 * first + second
    torch.testing.assert_close(muon.state()["muon.w"][0], momentum)
    u, _, v = torch.linalg.svd(0.5 * momentum + second, full_matrices=False)
    torch.testing.assert_close(weight.detach(), before * 0.9 - u @ v * 0.18 * 8**0.5, rtol=0, atol=2e-3)


def test_a_matrix_without_gradient_only_decays():
    weight = parameter(4, 8)
    before = weight.detach().clone()
    weight.grad = torch.zeros(4, 8)
    Muon(["w"], [weight], [(1, 4, 8)], MuonConfig()).step(torch.tensor(0.1))
    torch.testing.assert_close(weight.detach(), before * 0.99)


@pytest.mark.parametrize("fields", [{"momentum": 1.0}, {"update_rms": 0.0}, {"weight_decay": -0.1}], ids=str)
def test_constants_out_of_range_name_their_field(fields):
    with pytest.raises(ConfigError, match=rf"muon\.{next(iter(fields))}"):
        MuonConfig(**fields)
