"""rope: the layout of pairs, frequencies, amplitude, and independence of rows."""

import cmath
import math
from types import SimpleNamespace

import pytest
import torch

from benthic.errors import KernelInputError
from benthic.kernels.rope import RopeTable, apply_rope, rope_frequencies, rope_table
from benthic.kernels.rope.cases import ROW_INPUTS, inputs
from tests.kernels import laws

YARN = SimpleNamespace(factor=16.0, original_max_position_embeddings=65536, beta_fast=32.0, beta_slow=1.0)
# Two products and a sum: three roundings.
TOLERANCE = 2e-7


def test_pairs_are_interleaved_and_trailing() -> None:
    x = torch.tensor([[9.0, 9.0, 1.0, 2.0, 3.0, 4.0]])
    turned = apply_rope(x, rope_table(torch.tensor([5]), torch.tensor([0.3, 0.01])))
    for pair, frequency in enumerate((0.3, 0.01)):
        value = complex(x[0, 2 + 2 * pair], x[0, 3 + 2 * pair]) * cmath.exp(1j * 5 * frequency)
        got = complex(turned[0, 2 + 2 * pair], turned[0, 3 + 2 * pair])
        assert abs(got - value) < 1e-5
    assert torch.equal(turned[:, :2], x[:, :2])


def test_pairs_of_halves_are_leading_and_turn_as_complex_numbers() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0, 9.0, 9.0]])
    turned = apply_rope(x, rope_table(torch.tensor([5]), torch.tensor([0.3, 0.01])), pairing="halves")
    for pair, frequency in enumerate((0.3, 0.01)):
        value = complex(x[0, pair], x[0, 2 + pair]) * cmath.exp(1j * 5 * frequency)
        assert abs(complex(turned[0, pair], turned[0, 2 + pair]) - value) < 1e-5
    assert torch.equal(turned[:, 4:], x[:, 4:])


def test_frequencies_without_yarn_are_the_closed_form() -> None:
    expected = [10000.0 ** (-2 * i / 64) for i in range(32)]
    torch.testing.assert_close(rope_frequencies(64, 10000.0, None), torch.tensor(expected), rtol=1e-6, atol=0)


def test_yarn_keeps_fast_pairs_divides_slow_ones_and_ramps_between() -> None:
    plain, scaled = rope_frequencies(64, 160000.0, None), rope_frequencies(64, 160000.0, YARN)
    assert torch.equal(scaled[:16], plain[:16])
    torch.testing.assert_close(scaled[25:], plain[25:] / 16, rtol=1e-6, atol=0)
    ramp = (torch.arange(16, 25) - 15) / 10
    torch.testing.assert_close(scaled[16:25], plain[16:25] * (1 - ramp) + plain[16:25] / 16 * ramp, rtol=1e-6, atol=0)


@pytest.mark.parametrize("yarn", [None, YARN])
def test_the_amplitude_is_one_on_every_path(yarn: SimpleNamespace | None) -> None:
    table = rope_table(torch.tensor([0, 1, 1000, 1_000_000]), rope_frequencies(64, 160000.0, yarn))
    torch.testing.assert_close(table.cos**2 + table.sin**2, torch.ones(4, 32), rtol=0, atol=2e-7)


@pytest.mark.parametrize("pairing", ["interleaved", "halves"])
@pytest.mark.parametrize("rows", [0, 1, 13])
def test_rotation_is_near_float64_in_both_directions(rows: int, pairing: str) -> None:
    given = inputs(rows) | {"pairing": pairing}
    for inverse in (False, True):
        expected = apply_rope(
            given["x"].double(),
            RopeTable(*(t.double() for t in given["table"])),
            inverse,
            pairing,
            impl="reference",
        )
        for impl in ("auto", "reference"):
            got = apply_rope(**given, inverse=inverse, impl=impl)
            torch.testing.assert_close(got.double(), expected, rtol=TOLERANCE, atol=TOLERANCE * 4)


def test_the_amplitude_multiplies_what_turns_and_nothing_else() -> None:
    amplitude = 0.919
    positions, frequencies = torch.tensor([0, 7, 900]), rope_frequencies(8, 10000.0, None)
    x = torch.randn(3, 20)
    plain = apply_rope(x, rope_table(positions, frequencies))
    scaled = apply_rope(x, rope_table(positions, frequencies, amplitude))
    torch.testing.assert_close(scaled[:, 12:], plain[:, 12:] * amplitude)
    assert torch.equal(scaled[:, :12], x[:, :12])


@pytest.mark.parametrize("pairing", ["interleaved", "halves"])
def test_the_inverse_takes_the_rotation_back(pairing: str) -> None:
    given = inputs(6) | {"pairing": pairing}
    back = apply_rope(apply_rope(**given), given["table"], True, pairing)
    torch.testing.assert_close(back, given["x"], rtol=0, atol=2e-6)


def test_the_angle_grows_with_the_position() -> None:
    x = torch.tensor([[1.0, 0.0]]).expand(3, 2)
    turned = apply_rope(x, rope_table(torch.tensor([0, 1, 2]), torch.tensor([0.5])))
    torch.testing.assert_close(turned[:, 1], torch.tensor([0.0, math.sin(0.5), math.sin(1.0)]))


@pytest.mark.parametrize("pairing", ["interleaved", "halves"])
def test_gradients_are_the_numeric_ones(pairing: str) -> None:
    given = inputs(3, torch.float64, heads=2, dim=11)
    laws.assert_gradients(apply_rope, given | {"pairing": pairing})
    laws.assert_gradients_of_kernel(
        lambda x, impl: apply_rope(x, inputs_table(x), pairing=pairing, impl=impl), {"x": given["x"]}
    )


def inputs_table(x: torch.Tensor) -> RopeTable:
    table = rope_table(torch.arange(len(x)), rope_frequencies(8, 10000.0, None))
    return RopeTable(table.cos.to(x.dtype), table.sin.to(x.dtype))


@pytest.mark.parametrize("pairing", ["interleaved", "halves"])
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_a_row_has_the_same_bits_in_any_batch(impl: str, pairing: str) -> None:
    laws.assert_rows_ignore_neighbours(
        lambda **given: apply_rope(**given, pairing=pairing, impl=impl), inputs(laws.ALL_ROWS), ROW_INPUTS
    )


@pytest.mark.parametrize("pairing", ["interleaved", "halves"])
def test_a_column_slice_is_read_in_place(pairing: str) -> None:
    wide, table = torch.randn(5, 100), inputs(5)["table"]
    heads = wide[:, 4:70].view(5, 3, 22)
    assert torch.equal(apply_rope(heads, table, pairing=pairing), apply_rope(heads.contiguous(), table, False, pairing))
    one = apply_rope(heads[:, 0].contiguous(), table, False, pairing)
    assert torch.equal(apply_rope(wide[:, 4:26], table, pairing=pairing), one)


def test_a_table_of_other_rows_is_refused() -> None:
    with pytest.raises(KernelInputError, match=r"\[R, r/2\]"):
        apply_rope(torch.zeros(3, 8), rope_table(torch.arange(4), rope_frequencies(8, 1e4, None)))
