"""The norm and the compressor's pooling on CUDA: near float64, and each vector's bits its own."""

import pytest
import torch

from benthic.kernels.compress_kv.kernel import compress_kv_triton
from benthic.kernels.compress_kv.reference import compress_kv_ref
from benthic.kernels.rms_norm import rms_norm

pytestmark = pytest.mark.gpu

COUNTS = (1, 2, 7, 64, 133, 1000)
MOST = 3000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [16, 37, 512, 1024, 4096, 7168])
def test_a_norm_is_near_float64_and_ignores_other_vectors(size: int, dtype: torch.dtype) -> None:
    wider = torch.randn(MOST, size + 64, device="cuda").to(dtype)
    x, gain = wider[:, 64:], torch.rand(size, device="cuda") + 0.5
    whole = rms_norm(x, gain, 1e-6)
    exact = rms_norm(x.double(), gain.double(), 1e-6)
    assert ((whole.double() - exact).norm() / exact.norm()) <= (3e-7 if dtype is torch.float32 else 2.5e-3)
    assert torch.equal(rms_norm(x.contiguous(), gain, 1e-6), whole)
    for count in COUNTS:
        start = (37 * count) % (MOST - count)
        assert torch.equal(rms_norm(x[start : start + count], gain, 1e-6), whole[start : start + count]), count
    heads = whole[:, : size // 8 * 8].reshape(MOST, 8, -1)
    assert torch.equal(rms_norm(heads, None, 1e-6)[5], rms_norm(heads[5], None, 1e-6))


@pytest.mark.parametrize(("ratio", "dim"), [(4, 12), (4, 128), (4, 512), (128, 32), (128, 512)])
def test_a_pooled_block_is_near_float64_and_ignores_other_blocks(ratio: int, dim: int) -> None:
    blocks, reach = 70, 8 if ratio == 4 else ratio
    series = 2 * dim if ratio == 4 else dim
    raw, ape = torch.randn(4000, 2 * series, device="cuda"), torch.randn(ratio, series, device="cuda")
    sources = torch.randint(0, 4000, (blocks, reach), device="cuda")
    first = (torch.arange(blocks, device="cuda") % 9 == 0)[:, None, None] if ratio == 4 else None
    whole = compress_kv_triton(raw, ape, sources, first, dim)
    exact = compress_kv_ref(raw.double(), ape.double(), sources, first, dim)
    assert (whole.double() - exact).abs().max() <= 2e-6 * exact.abs().max()
    for count in (1, 2, 7, 33, 64):
        some = slice(3, 3 + count)
        part = compress_kv_triton(raw, ape, sources[some], None if first is None else first[some], dim)
        assert torch.equal(part, whole[some]), count
