"""The CPU's sampler draws what the reference draws, token for token."""

import pytest
import torch
from torch import Tensor

from benthic.kernels.sample import sample

ROWS = 48


def wishes(vocab_size: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Every cut on in some rows and off in others."""

    def chance(share: float) -> Tensor:
        return torch.rand(ROWS, generator=generator) < share

    def uniform() -> Tensor:
        return torch.rand(ROWS, generator=generator)

    return {
        "temperature": 2 * uniform() * chance(0.9),
        "top_k": torch.randint(0, vocab_size + 3, (ROWS,), generator=generator) * chance(0.5),
        "top_p": torch.where(chance(0.6), uniform().clamp(min=1e-6), 1.0),
        "min_p": uniform() * chance(0.4),
        "seeds": torch.randint(-(2**62), 2**62, (ROWS,), generator=generator),
        "positions": torch.randint(0, 10_000, (ROWS,), generator=generator),
    }


@pytest.mark.parametrize("vocab_size", [1, 2, 5, 300, 4096])
@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0, 30.0])
@pytest.mark.parametrize("form", ["smooth", "tied", "half forbidden"])
def test_the_numba_kernel_draws_the_tokens_of_the_reference(vocab_size: int, scale: float, form: str) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(ROWS, vocab_size, generator=generator) * scale
    if form == "tied":
        logits = (2 * logits).round() / 2
    if form == "half forbidden":
        logits[:, : vocab_size // 2] = float("-inf")
    asked = wishes(vocab_size, generator)
    assert torch.equal(sample(logits, **asked, impl="cpu"), sample(logits, **asked, impl="reference"))


def test_zero_rows_give_zero_tokens() -> None:
    asked = {name: value[:0] for name, value in wishes(7, torch.Generator().manual_seed(0)).items()}
    assert sample(torch.zeros(0, 7), **asked).shape == (0,)
