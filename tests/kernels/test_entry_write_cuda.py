"""The entry epilogues on CUDA: near the reference, rows ignore their neighbours, captured graphs read slots anew."""

from typing import Any

import pytest
import torch
from torch import Tensor

from benthic.kernels.entry_write import compress_entries, queries_and_entries, query_heads, write_kv
from benthic.kernels.entry_write.cases import (
    Compression,
    chunked,
    compression,
    query_heads_inputs,
    write_kv_inputs,
)
from benthic.kernels.kv_storage import unpack_index, unpack_kv
from benthic.kernels.quantize import QuantizedRows
from benthic.kernels.rope import RopeTable

pytestmark = pytest.mark.gpu
ROWS, DIM, ROPE, INDEX_DIM = 133, 512, 64, 128
# bfloat16 steps that round the other way, and the FP8 and FP4 steps behind them.
TOLERANCE = {torch.bfloat16: 3e-3, torch.float32: 2e-4}


def on_cuda(value: Any) -> Any:
    """Tensors moved, in tuples and dictionaries too."""
    if isinstance(value, Tensor):
        return value.cuda()
    if isinstance(value, tuple):
        moved = [on_cuda(part) for part in value]
        return type(value)(*moved) if hasattr(value, "_fields") else tuple(moved)
    return {name: on_cuda(part) for name, part in value.items()} if isinstance(value, dict) else value


def kv_values(buffer: Tensor, form: Any, dtype: torch.dtype) -> Tensor:
    return buffer.float() if form is None else unpack_kv(buffer, DIM, ROPE, dtype).float()


def index_values(buffer: Tensor, form: Any, dtype: torch.dtype) -> Tensor:
    return buffer.float() if form is None else unpack_index(buffer, INDEX_DIM, dtype).float()


def assert_near(got: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert (got.double() - expected.double()).norm() <= TOLERANCE[dtype] * expected.double().norm()


@pytest.mark.parametrize(("dtype", "form"), [(torch.bfloat16, None), (torch.bfloat16, "v4"), (torch.float32, None)])
def test_kv_rows_and_latent(dtype: torch.dtype, form: Any) -> None:
    given = on_cuda(write_kv_inputs(ROWS, dtype, rank=1024, dim=DIM, rope_dim=ROPE, form=form, holes=True))
    target, options = given["target"], {"kv_group": 64, "linear_scale": "ue8m0"}
    again = target._replace(buffer=target.buffer.clone())
    expected = write_kv(**(given | {"target": again}), **options, impl="reference")
    got = write_kv(**given, **options)
    assert isinstance(got, QuantizedRows)
    assert isinstance(expected, QuantizedRows)
    assert_near(got.dequantized(), expected.dequantized(), dtype)
    assert_near(kv_values(target.buffer, form, dtype), kv_values(again.buffer, form, dtype), dtype)
    for count in (1, 7, 64):
        some = target._replace(buffer=torch.zeros_like(target.buffer), slots=target.slots[5 : 5 + count])
        rope = RopeTable(*(part[5 : 5 + count] for part in given["rope"]))
        part = write_kv(
            **(given | {"product": given["product"][5 : 5 + count], "rope": rope, "target": some}), **options
        )
        assert isinstance(part, QuantizedRows)
        assert torch.equal(part.data.view(torch.uint8), got.data[5 : 5 + count].view(torch.uint8))
        assert torch.equal(part.scale, got.scale[5 : 5 + count])
        kept = some.slots[some.slots >= 0]
        assert torch.equal(some.buffer[kept], target.buffer[kept])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_queries(dtype: torch.dtype) -> None:
    given = on_cuda(
        query_heads_inputs(ROWS, dtype, heads=64, dim=DIM, rope_dim=ROPE, index_heads=64, index_dim=INDEX_DIM)
    )
    got = query_heads(**given, index_rounding="fp4")
    expected = query_heads(**given, index_rounding="fp4", impl="reference")
    assert got.index_query is not None
    assert expected.index_query is not None
    assert_near(got.query, expected.query, dtype)
    assert_near(got.index_query, expected.index_query, dtype)
    for count in (1, 7, 64):
        rope = RopeTable(*(part[9 : 9 + count] for part in given["rope"]))
        part = query_heads(**(given | {"product": given["product"][9 : 9 + count], "rope": rope}), index_rounding="fp4")
        assert all(torch.equal(a, b[9 : 9 + count]) for a, b in zip(part, got, strict=True))


def fed_on_cuda(case: Compression, size: int, *, by_rows: bool, impl: Any = "auto") -> Compression:
    run = case.fresh()
    for fed in chunked(2, run.raw.shape[1], size):
        arguments = run.feed(fed, by_rows=by_rows, dummies=2 if by_rows else 0)
        compress_entries(**on_cuda(arguments), impl=impl)
    return run


@pytest.mark.parametrize(("ratio", "length"), [(4, 203), (128, 700)])
@pytest.mark.parametrize(("dtype", "form"), [(torch.bfloat16, None), (torch.bfloat16, "v4"), (torch.float32, None)])
def test_entries_ignore_how_their_tokens_were_fed(ratio: int, length: int, dtype: torch.dtype, form: Any) -> None:
    case = compression(ratio, length=length, form=form, dtype=dtype, dim=DIM, rope_dim=ROPE, index_dim=INDEX_DIM)
    case = case._replace(raw=case.raw.cuda(), state=on_cuda(case.state), sides=on_cuda(case.sides))
    expected = fed_on_cuda(case, length, by_rows=False, impl="reference")
    runs = [fed_on_cuda(case, size, by_rows=size <= 2) for size in (length, 64, 130, 2, 1)]
    for run in runs:
        for one, first in zip(run.sides, runs[0].sides, strict=True):
            assert torch.equal(one.buffer, first.buffer)
        if ratio == 4:
            assert run.state.snapshots is not None
            assert expected.state.snapshots is not None
            assert torch.equal(run.state.snapshots, expected.state.snapshots)
    made, wanted = runs[0].sides, expected.sides
    assert_near(kv_values(made[0].buffer, form, dtype), kv_values(wanted[0].buffer, form, dtype), dtype)
    if ratio == 4:
        assert_near(index_values(made[1].buffer, form, dtype), index_values(wanted[1].buffer, form, dtype), dtype)


@pytest.mark.parametrize(("form", "kv_group"), [("v4", 64), (None, 64), (None, 0)])
@pytest.mark.parametrize(("size", "by_rows"), [(700, False), (130, False), (2, True), (1, True)])
def test_both_forms_pool_128_rows_to_the_same_bits(form: Any, kv_group: int, size: int, by_rows: bool) -> None:
    case = compression(
        128, length=700, form=form, dtype=torch.bfloat16, dim=DIM, rope_dim=ROPE, kv_group=kv_group, draft_len=4
    )
    case = case._replace(raw=5 * case.raw.cuda(), state=on_cuda(case.state), sides=on_cuda(case.sides))
    cuda, triton = (fed_on_cuda(case, size, by_rows=by_rows, impl=impl) for impl in ("cuda", "triton"))
    assert torch.equal(cuda.sides[0].buffer, triton.sides[0].buffer)
    assert torch.equal(cuda.state.rings, triton.state.rings)


@pytest.mark.parametrize("size", [1, 2])
def test_heads_beside_entries_have_the_bits_of_each_alone(size: int) -> None:
    case = compression(128, length=260, form="v4", dtype=torch.bfloat16, dim=DIM, rope_dim=ROPE, draft_len=4)
    case = case._replace(raw=case.raw.cuda(), state=on_cuda(case.state), sides=on_cuda(case.sides))
    apart, beside = case.fresh(), case.fresh()
    for fed in chunked(2, 260, size):
        rows = 2 * size + 1
        heads = on_cuda(query_heads_inputs(rows, torch.bfloat16, heads=64, dim=DIM, rope_dim=ROPE, index_heads=0))
        compress_entries(**on_cuda(apart.feed(fed, by_rows=True, dummies=1)), impl="triton")
        options = on_cuda(beside.feed(fed, by_rows=True, dummies=1))
        rounding = options.pop("index_rounding")
        assert rounding == "fp4"
        given = {name: heads[name] for name in ("product", "heads", "dim", "rope")}
        query = queries_and_entries(**given, **options, impl="cuda")
        assert torch.equal(query, query_heads(**heads, impl="triton").query)
    assert torch.equal(beside.sides[0].buffer, apart.sides[0].buffer)
    assert torch.equal(beside.state.rings, apart.state.rings)


def test_a_captured_graph_reads_slots_anew() -> None:
    given = on_cuda(write_kv_inputs(4, torch.bfloat16, rank=1024, dim=DIM, rope_dim=ROPE, form="v4"))
    target = given["target"]
    write_kv(**given, kv_group=64)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        write_kv(**given, kv_group=64)
    target.buffer.zero_()
    target.slots.copy_(torch.tensor([2, -1, 0, 1]))
    graph.replay()
    assert target.buffer.any(1).tolist() == [True, True, True] + [False] * (len(target.buffer) - 3)
