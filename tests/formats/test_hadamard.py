import pytest
import torch

from benthic.errors import KernelInputError
from benthic.formats import hadamard

SIZES = [1, 2, 16, 32, 128]


def sylvester(size: int) -> torch.Tensor:
    """Orthonormal H by its definition, float64."""
    signs = [[(-1) ** (i & j).bit_count() for j in range(size)] for i in range(size)]
    return torch.tensor(signs, dtype=torch.float64) / size**0.5


@pytest.mark.parametrize("size", SIZES)
def test_the_rotation_is_the_product_with_sylvesters_matrix(size: int) -> None:
    x = torch.randn(5, size, dtype=torch.float64)
    torch.testing.assert_close(hadamard(x), x @ sylvester(size), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("size", SIZES)
def test_the_rotation_is_its_own_inverse_and_keeps_lengths(size: int) -> None:
    x = torch.randn(3, 4, size, dtype=torch.float64)
    torch.testing.assert_close(hadamard(hadamard(x)), x, rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(hadamard(x).norm(dim=-1), x.norm(dim=-1), rtol=1e-14, atol=0)


def test_bf16_is_computed_in_float32_and_rounded_once() -> None:
    x = torch.randn(7, 128).bfloat16()
    assert torch.equal(hadamard(x), hadamard(x.float()).bfloat16())


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 33])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(rows: int) -> None:
    x = torch.randn(rows, 32)
    assert torch.equal(hadamard(x), torch.cat([hadamard(row[None]) for row in x]))


def test_the_gradient_is_the_rotation_of_the_gradient() -> None:
    x = torch.randn(3, 16, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(hadamard, (x,))


@pytest.mark.parametrize("size", [0, 3, 24, 130])
def test_a_size_that_is_no_power_of_two_is_refused(size: int) -> None:
    with pytest.raises(KernelInputError, match=f"dimension of {size}"):
        hadamard(torch.zeros(2, size))
