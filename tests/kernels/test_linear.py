"""linear, batched_linear and grouped_linear: right, and exact at every number of rows and layout."""

import pytest
import torch

from benthic.errors import KernelInputError
from benthic.kernels.grouped_linear import grouped_linear
from benthic.kernels.grouped_linear.cases import SIZES
from benthic.kernels.grouped_linear.cases import inputs as grouped_inputs
from benthic.kernels.linear import batched_linear, by_columns, is_by_columns, linear
from benthic.kernels.linear.cases import ROW_INPUTS, SHAPES, batched_inputs, inputs
from benthic.kernels.linear.cpu import few_rows_linear
from benthic.kernels.linear.schedule import Order, order_of
from benthic.kernels.linear.wide import form_of, forms
from tests.kernels import laws


def tolerance(inputs_size: int) -> float:
    """A sum of n float32 products rounds by at most n halves of a unit, in practice by its root; relative to a row."""
    return 6e-8 * (4 + 2 * inputs_size**0.5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 5, 41])
def test_products_are_near_float64(rows: int, shape: tuple[int, int]) -> None:
    given = inputs(rows, torch.float64, shape=shape)
    if shape[0] > 1:
        laws.assert_near_float64(linear, given, tolerance(shape[1]))
    assert linear(**laws.float32(given)).shape == (rows, shape[0])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("laid_out", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_in_any_batch(shape: tuple[int, int], laid_out: bool, dtype: torch.dtype) -> None:
    given = inputs(laws.ALL_ROWS, shape=shape)
    weight = by_columns(given["weight"]) if laid_out else given["weight"]
    laws.assert_rows_ignore_neighbours(lambda x: linear(x.to(dtype), weight), {"x": given["x"]}, ROW_INPUTS)


def test_bare_products_of_few_rows_would_break_the_rows_law_where_the_library_changes_its_order() -> None:
    """The negative control: somewhere among common shapes a library product of 1 to 15 rows has other bits."""
    breaks = [
        laws.rows_that_differ(lambda x, w=given["weight"]: x @ w.t(), {"x": given["x"]}, ROW_INPUTS)
        for given in (inputs(laws.ALL_ROWS, shape=shape) for shape in ((592, 256), (24, 1024), (256, 1024)))
    ]
    if not any(breaks):
        pytest.skip("this library adds in one order at every number of rows")
    assert any(breaks)


def test_one_row_by_the_kernel_has_the_bits_of_many_by_the_library() -> None:
    given = inputs(100, shape=(48, 256))
    weight = by_columns(given["weight"])
    if not is_by_columns(weight):
        pytest.skip("products of this library do not agree, so nothing is laid out")
    whole = torch.nn.functional.linear(given["x"], weight)
    for rows in (1, 2, 7):
        assert torch.equal(few_rows_linear(given["x"][3 : 3 + rows], weight), whole[3 : 3 + rows])


def test_laying_out_keeps_values_and_what_cannot_be_exact_stays() -> None:
    weight = torch.randn(3, 20, 30)
    assert torch.equal(by_columns(weight), weight)
    assert not is_by_columns(weight)
    assert not is_by_columns(by_columns(weight.double()))


@pytest.mark.parametrize("rows", [0, 1, 2, 41])
@pytest.mark.parametrize("laid_out", [False, True])
def test_batched_products_are_one_linear_a_group(rows: int, laid_out: bool) -> None:
    given = batched_inputs(rows)
    weight = by_columns(given["weight"]) if laid_out else given["weight"]
    got = batched_linear(given["x"], weight)
    for group in range(3):
        assert torch.equal(got[:, group], linear(given["x"][:, group], given["weight"][group]))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("laid_out", [False, True])
def test_grouped_products_are_one_linear_a_group_bit_for_bit(sizes: tuple[int, ...], laid_out: bool) -> None:
    given = grouped_inputs(sizes)
    weight = by_columns(given["weight"]) if laid_out else given["weight"]
    got = grouped_linear(given["x"], weight, given["group_ends"])
    parts = given["x"].split(list(sizes))
    assert torch.equal(got, torch.cat([linear(part, w) for part, w in zip(parts, given["weight"], strict=True)]))


def test_gradients_are_the_numeric_ones() -> None:
    laws.assert_gradients(linear, inputs(3, torch.float64, shape=(4, 5)))
    laws.assert_gradients(
        batched_linear, batched_inputs(2, torch.float64, groups=2) | {"x": torch.randn(2, 2, 40).double()}
    )
    laws.assert_gradients(grouped_linear, grouped_inputs((0, 2, 1, 0), torch.float64, shape=(3, 4)))
    laws.assert_gradients_of_kernel(linear, inputs(5, torch.float64))
    laws.assert_gradients_of_kernel(grouped_linear, grouped_inputs((0, 20, 3), torch.float64))


def test_a_weight_by_columns_still_trains() -> None:
    given = inputs(1, shape=(8, 16))
    x = given["x"].requires_grad_()
    linear(x, by_columns(given["weight"])).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad[0], given["weight"].sum(0))


def test_a_float32_island_keeps_what_bfloat16_would_round() -> None:
    given = inputs(4)
    x = given["x"].bfloat16()
    assert torch.equal(linear(x, given["weight"], torch.float32), linear(x.float(), given["weight"]))
    assert torch.equal(linear(x, given["weight"]), linear(x.float(), given["weight"]).bfloat16())


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(KernelInputError, match=r"\(2, 3\).*\(4, 5\)"):
        linear(torch.zeros(2, 3), torch.zeros(4, 5))
    with pytest.raises(KernelInputError, match=r"\[N, I\], \[E, O, I\], \[E\]"):
        grouped_linear(torch.zeros(2, 3), torch.zeros(2, 4, 3), torch.zeros(3, dtype=torch.int32))


def test_triton_is_refused_on_the_cpu() -> None:
    with pytest.raises(KernelInputError, match="on cpu; it takes .* on cuda"):
        linear(torch.zeros(2, 3), torch.zeros(4, 3), impl="triton")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [*SHAPES, (24, 16384), (1536, 4096), (32768, 1024)], ids=str)
def test_segments_on_cuda_cover_the_inputs_and_none_is_empty(shape: tuple[int, int], dtype: torch.dtype) -> None:
    order = order_of(*shape, dtype)
    assert order.segment_len % order.block_k == 0
    assert (order.segments - 1) * order.segment_len < shape[1] <= order.segments * order.segment_len


@pytest.mark.parametrize("segments", [1, 4, 8, 16])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
def test_many_rows_take_a_form_that_their_order_has_and_few_rows_none(segments: int, out_dtype: torch.dtype) -> None:
    order = Order(64, segments, 512)
    for groups, outputs in ((1, 256), (1, 2624), (8, 1024), (1, 32768)):
        chosen = [form_of(rows, groups, outputs, order, out_dtype, 132) for rows in (1, 64, 4096, 8192)]
        assert chosen[:2] == [None, None]
        assert all(form is None or form in forms(order) for form in chosen)
        assert chosen[3] is not None or (outputs, segments) == (256, 1)
