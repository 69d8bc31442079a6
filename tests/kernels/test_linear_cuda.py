"""The Triton products on CUDA: near float64, and each row's bits its own whatever stands beside it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benthic.kernels.grouped_linear import cases as grouped_cases
from benthic.kernels.grouped_linear import grouped_linear
from benthic.kernels.linear import batched_linear, linear
from benthic.kernels.linear.schedule import Tile, order_of

pytestmark = pytest.mark.gpu

DTYPES = (torch.float32, torch.bfloat16)
# V4-Flash's queries, latents, gate and hyper-connection; then odd ones, one output, less than a step of inputs.
SHAPES = ((4096, 1024), (1536, 4096), (256, 4096), (24, 16384), (33, 37), (1, 64), (200, 1000), (130, 5))
# Several lengths of segments, the last one cut, outputs beyond a tile, V4's raw rows and head.
PLAIN_SHAPES = ((1536, 4096), (2624, 4096), (8192, 1024), (256, 4096), (33, 64), (200, 1000), (130, 4160), (1024, 8192))
ROWS = (1, 2, 7, 16, 17, 32, 33, 64, 65, 128, 129, 300, 1000, 4096, 8191)
MOST = 8192
TILES = ((16, 64, 4, 4), (16, 128, 8, 4), (32, 64, 4, 4), (128, 64, 4, 3), (128, 128, 8, 3))


def given(rows: int, shape: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    x, weight = torch.randn(rows, shape[1], device="cuda"), torch.randn(shape, device="cuda") / shape[1] ** 0.5
    return x.to(dtype), weight.to(dtype)


def error(got: Tensor, exact: Tensor) -> float:
    return ((got.double() - exact).norm() / exact.norm().clamp(min=1e-30)).item()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float32_products_are_as_near_float64_as_float32_sums_can_be(shape: tuple[int, int]) -> None:
    x, weight = given(300, shape, torch.float32)
    assert error(linear(x, weight), x.double() @ weight.double().t()) <= 4e-7
    # Large and small together: the halves of TF32 must not lose the small ones.
    x = x * torch.logspace(-6, 6, shape[1], device="cuda")
    assert error(linear(x, weight), x.double() @ weight.double().t()) <= 4e-7


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit_products_round_once(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, weight = given(300, shape, dtype)
    exact = x.double() @ weight.double().t()
    assert error(linear(x, weight), exact) <= 1.05 * error(exact.to(dtype), exact) + 1e-6


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_has_the_same_bits_among_any_number_of_rows(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, weight = given(MOST, shape, dtype)
    whole = linear(x, weight)
    for rows in ROWS:
        start = (7919 * rows) % (MOST - rows + 1)
        assert torch.equal(linear(x[start : start + rows], weight), whole[start : start + rows]), rows
    order = torch.randperm(MOST, device="cuda")
    assert torch.equal(linear(x[order], weight), whole[order])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1536, 4096), (200, 1000)], ids=str)
def test_every_tile_gives_the_same_bits(shape: tuple[int, int], dtype: torch.dtype) -> None:
    from benthic.kernels.linear.kernel import multiply

    x, weight = given(500, shape, dtype)
    whole = linear(x, weight)
    for sizes in TILES:
        for is_split in {False, order_of(*shape, dtype).segments > 1}:
            tile = Tile(*sizes, is_split)
            assert torch.equal(multiply(x[:, None], weight[None], dtype, tile)[:, 0], whole), tile


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", PLAIN_SHAPES, ids=str)
def test_both_languages_give_the_same_bits(shape: tuple[int, int], out_dtype: torch.dtype) -> None:
    x, weight = given(MOST, shape, torch.bfloat16)
    whole = linear(x, weight, out_dtype, impl="triton")
    for rows in (*ROWS, MOST):
        start = (7919 * rows) % (MOST - rows + 1)
        some = x[start : start + rows]
        assert torch.equal(linear(some, weight, out_dtype, impl="cuda"), whole[start : start + rows]), rows
    exact = x[:300].double() @ weight.double().t()
    assert error(whole[:300], exact) <= (1e-6 if out_dtype is torch.float32 else 2e-3)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", PLAIN_SHAPES, ids=str)
def test_every_form_for_many_rows_gives_the_same_bits(shape: tuple[int, int], out_dtype: torch.dtype) -> None:
    from benthic.kernels.linear.cuda import multiply_cuda
    from benthic.kernels.linear.wide import forms

    for groups in (1, 3):
        x = torch.randn(MOST, groups, shape[1], device="cuda").bfloat16()
        weight = torch.randn(groups, *shape, device="cuda").div_(shape[1] ** 0.5).bfloat16()
        whole = torch.stack([linear(x[:, g], weight[g], out_dtype, impl="triton") for g in range(groups)], 1)
        for form in forms(order_of(*shape, torch.bfloat16)):
            for rows in (*ROWS, MOST):
                start = (7919 * rows) % (MOST - rows + 1)
                got = multiply_cuda(x[start : start + rows], weight, out_dtype, form=form)
                assert torch.equal(got, whole[start : start + rows]), (form, rows)


def test_groups_and_strides_leave_the_bits_in_both_languages() -> None:
    wide_x = torch.randn(150, 8, 1024 + 64, device="cuda").bfloat16()
    weight = torch.randn(8, 200, 1024, device="cuda").bfloat16()
    x = wide_x[:, :, :1024]
    for rows in (1, 16, 33, 128, 150):
        one, other = (batched_linear(x[:rows], weight, impl=impl) for impl in ("cuda", "triton"))
        assert torch.equal(one, other), rows


def test_the_library_breaks_the_law() -> None:
    """The negative control: its products of few rows have other bits somewhere among these shapes."""
    breaks = []
    for shape in SHAPES[:4]:
        x, weight = given(MOST, shape, torch.bfloat16)
        whole = x @ weight.t()
        breaks += [not torch.equal(x[:rows] @ weight.t(), whole[:rows]) for rows in ROWS]
    assert any(breaks)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [(0, 1, 0, 2, 17, 0), (5, 5, 5), (0, 300, 0), (0, 0), (900, 1, 64, 65)], ids=str)
def test_grouped_products_are_one_linear_a_group_bit_for_bit(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    for shape in ((24, 40), (512, 2048)):
        inputs = grouped_cases.inputs(sizes, dtype, shape=shape)
        x, weight, ends = (inputs[name].cuda() for name in ("x", "weight", "group_ends"))
        parts = [linear(part, one) for part, one in zip(x.split(list(sizes)), weight, strict=True)]
        assert torch.equal(grouped_linear(x, weight, ends), torch.cat(parts))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 33, 500])
def test_batched_products_are_one_linear_a_group_bit_for_bit(rows: int, dtype: torch.dtype) -> None:
    x = torch.randn(rows, 3, 1024, device="cuda").to(dtype)
    weight = torch.randn(3, 72, 1024, device="cuda").to(dtype)
    got = batched_linear(x, weight)
    for group in range(3):
        assert torch.equal(got[:, group], linear(x[:, group], weight[group]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_strides_leave_the_bits(dtype: torch.dtype) -> None:
    x, weight = given(70, (96, 1100), dtype)
    want = linear(x, weight)
    by_column, wider = x.t().contiguous().t(), torch.nn.functional.pad(x, (3, 5))[:, 3:-5]
    for other in (by_column, wider, x.repeat_interleave(2, 0)[::2], x.repeat_interleave(2, 1)[:, ::2]):
        assert torch.equal(linear(other, weight), want)
        assert torch.equal(linear(other, weight.t().contiguous().t()), want)
    ends = torch.tensor([30, 70], dtype=torch.int32, device="cuda")
    pair = torch.stack((weight, weight))
    turned = pair.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(grouped_linear(by_column, turned, ends), want)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_rows_give_no_rows_and_gradients_of_zero(dtype: torch.dtype) -> None:
    x, weight = given(0, (24, 40), dtype)
    weight.requires_grad_()
    stack = weight.detach()[None].repeat(2, 1, 1).requires_grad_()
    ends = torch.zeros(2, dtype=torch.int32, device="cuda")
    for y, leaf in ((linear(x, weight), weight), (grouped_linear(x, stack, ends), stack)):
        assert y.shape == (0, 24)
        assert not torch.autograd.grad(y.sum(), leaf)[0].any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_captured_product_has_the_bits_of_an_eager_one(dtype: torch.dtype) -> None:
    x, weight = given(20, (96, 2048), dtype)
    ends = torch.tensor([3, 20], dtype=torch.int32, device="cuda")
    pair = torch.stack((weight, weight))

    def products() -> list[Tensor]:
        return [linear(x, weight), grouped_linear(x, pair, ends), batched_linear(torch.stack((x, x), 1), pair)]

    products()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = products()
    x.copy_(torch.randn_like(x.float()))
    ends.copy_(torch.tensor([11, 20]))
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, products(), strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(24, 40), (200, 1030)], ids=str)
def test_gradients_are_near_float64_and_repeat_bit_for_bit(shape: tuple[int, int], dtype: torch.dtype) -> None:
    sizes = (0, 1, 0, 2, 170, 0)
    ends = torch.tensor(sizes).cumsum(0).int().cuda()
    x, weight = given(173, shape, dtype)
    stack = torch.randn(6, *shape, device="cuda").to(dtype)
    both, pair = torch.stack((x, x + 1), 1), stack[:2]

    def check(
        op: Callable[[Tensor, Tensor], Tensor], exact: Callable[[Tensor, Tensor], Tensor], *leaves: Tensor
    ) -> None:
        def gradients(of: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
            a, b = (leaf.detach().to(dtype).requires_grad_() for leaf in leaves)
            return torch.autograd.grad(of(a, b), (a, b), upstream.to(dtype))

        upstream = torch.randn_like(op(*leaves).float()).to(dtype)
        first, second = gradients(op, dtype), gradients(op, dtype)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        for got, want in zip(first, gradients(exact, torch.float64), strict=True):
            assert error(got, want) <= (6e-7 if dtype is torch.float32 else 2e-3)

    check(linear, lambda a, b: a @ b.t(), x, weight)
    check(batched_linear, lambda a, b: torch.einsum("rgi,goi->rgo", a, b), both, pair)
    check(
        lambda a, b: grouped_linear(a, b, ends),
        lambda a, b: torch.cat([part @ one.t() for part, one in zip(a.split(sizes), b, strict=True)]),
        x,
        stack,
    )


def test_a_compiled_product_has_the_bits_and_gradients_of_an_eager_one() -> None:
    x, weight = given(20, (96, 256), torch.bfloat16)
    weight.requires_grad_()
    compiled = torch.compile(lambda x, w: linear(x, w) * 2, fullgraph=True)
    eager, made = linear(x, weight) * 2, compiled(x, weight)
    assert torch.equal(eager, made)
    assert torch.equal(*(torch.autograd.grad(y.float().sum(), weight)[0] for y in (eager, made)))
