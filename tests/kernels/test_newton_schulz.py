"""newton_schulz: singular values near 1 within the tolerances of training.md 2.1."""

import pytest
import torch

from benthic.errors import KernelInputError
from benthic.kernels.newton_schulz import newton_schulz
from benthic.kernels.newton_schulz.cases import SHAPES, conditioned

TOLERANCES = {torch.float32: 2e-3, torch.bfloat16: 1e-2}


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_singular_values_of_random_matrices_come_near_one(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    g = torch.randn(shape)
    if shape[-2] == shape[-1]:
        g = g + torch.eye(shape[-1]) * shape[-1] ** 0.5  # a random square matrix is as good as singular
    values = torch.linalg.svdvals(newton_schulz(g, dtype).float())
    assert (values - 1).abs().max() <= TOLERANCES[dtype]


def test_a_condition_number_of_ten_thousand_is_overcome() -> None:
    values = torch.linalg.svdvals(newton_schulz(conditioned(64, 128, 1e4)))
    assert (values - 1).abs().max() <= 2e-3


def test_five_classic_steps_would_not_overcome_it() -> None:
    x = conditioned(64, 128, 1e4)
    x = x / x.norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    assert torch.linalg.svdvals(x).min() < 0.1


def test_singular_vectors_stay() -> None:
    g = conditioned(20, 30, 100.0)
    left, _, right = torch.linalg.svd(g, full_matrices=False)
    torch.testing.assert_close(newton_schulz(g), left @ right, rtol=0, atol=4e-3)


@pytest.mark.parametrize("size", [1e-30, 1e-6, 1e20])
def test_the_size_of_the_gradient_does_not_matter(size: float) -> None:
    g = torch.randn(24, 40)
    torch.testing.assert_close(newton_schulz(g * size), newton_schulz(g), rtol=0, atol=1e-4)


def test_stacked_matrices_are_independent() -> None:
    g = torch.randn(3, 20, 30)
    torch.testing.assert_close(newton_schulz(g)[1], newton_schulz(g[1]), rtol=0, atol=1e-5)


def test_the_update_has_the_intended_size() -> None:
    update = newton_schulz(torch.randn(48, 200)) * 200**0.5 * 0.18
    assert abs(update.square().mean().sqrt().item() - 0.18) < 1e-3


@pytest.mark.parametrize("shape", [(4, 6), (0, 4, 6), (0, 3)])
def test_zeros_and_nothing_stay(shape: tuple[int, ...]) -> None:
    assert torch.equal(newton_schulz(torch.zeros(shape)), torch.zeros(shape))


def test_a_vector_is_refused() -> None:
    with pytest.raises(KernelInputError, match=r"\(5,\)"):
        newton_schulz(torch.zeros(5))
