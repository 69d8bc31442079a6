"""What serving fuses on CUDA, training takes operation by operation: the bits are the same."""

from typing import Any

import pytest
import torch

from benthic.kernels.entry_write import compress_entries, query_heads, write_kv
from benthic.kernels.entry_write.cases import chunked, compression, query_heads_inputs, write_kv_inputs
from benthic.kernels.entry_write.reference import compress_entries_ref, query_heads_ref, write_kv_ref
from tests.kernels.test_entry_write_cuda import on_cuda

pytestmark = pytest.mark.gpu

DTYPES = (torch.bfloat16, torch.float32)
SIZES = ({"dim": 512, "rope_dim": 64}, {"dim": 80, "rope_dim": 16})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kv_group", [0, 64])
def test_kv_rows_and_latents(sizes: dict[str, int], dtype: torch.dtype, kv_group: int) -> None:
    given = on_cuda(write_kv_inputs(133, dtype, rank=1024 if sizes["dim"] == 512 else 128, **sizes))
    apart = given | {"target": given["target"]._replace(buffer=given["target"].buffer.clone())}
    fused = write_kv(**given, kv_group=kv_group)
    parts = write_kv_ref(**apart, kv_group=kv_group, linear_scale=None, impl="auto")
    assert isinstance(fused, torch.Tensor)
    assert isinstance(parts, torch.Tensor)
    assert torch.equal(fused, parts)
    assert torch.equal(given["target"].buffer, apart["target"].buffer)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rounding", ["none", "fp4"])
def test_queries(dtype: torch.dtype, rounding: Any) -> None:
    for sizes in ({"heads": 64, "dim": 512, "rope_dim": 64, "index_heads": 64, "index_dim": 128}, {}):
        given = on_cuda(query_heads_inputs(133, dtype, **sizes))
        fused = query_heads(**given, index_rounding=rounding)
        parts = query_heads_ref(**given, index_rounding=rounding, impl="auto")
        assert all(torch.equal(a, b) for a, b in zip(fused, parts, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("ratio", "length"), [(4, 203), (128, 700)])
@pytest.mark.parametrize("sizes", [{"dim": 512, "rope_dim": 64, "index_dim": 128}, {}], ids=str)
def test_entries(ratio: int, length: int, dtype: torch.dtype, sizes: dict[str, int]) -> None:
    case = compression(ratio, length=length, dtype=dtype, **sizes)
    case = case._replace(raw=case.raw.cuda(), state=on_cuda(case.state), sides=on_cuda(case.sides))
    fused, parts = case.fresh(), case.fresh()
    for fed in chunked(2, length, 64):
        compress_entries(**on_cuda(fused.feed(fed, by_rows=False)))
        compress_entries_ref(**on_cuda(parts.feed(fed, by_rows=False)), impl="auto")
    for one, other in zip(fused.sides, parts.sides, strict=True):
        assert torch.equal(one.buffer, other.buffer)
