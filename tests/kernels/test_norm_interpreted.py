"""The norm and the compressor's pooling by Triton on a CPU, in Triton's interpreter."""

import os

import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("TRITON_INTERPRET=1 is not set", allow_module_level=True)

from benthic.kernels.compress_kv import cases as compress_cases  # noqa: E402
from benthic.kernels.compress_kv.kernel import compress_kv_triton  # noqa: E402
from benthic.kernels.compress_kv.reference import compress_kv_ref  # noqa: E402
from benthic.kernels.rms_norm.kernel import rms_norm_triton  # noqa: E402
from benthic.kernels.rms_norm.reference import rms_norm_ref  # noqa: E402
from benthic.kernels.rope.kernel import apply_rope_halves_triton, apply_rope_triton  # noqa: E402
from benthic.kernels.rope.reference import apply_rope_halves_ref, apply_rope_ref  # noqa: E402


@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (5, 37), (3, 512)])
def test_norms_are_near_the_references(rows: int, size: int) -> None:
    x, gain = torch.randn(rows, 2 * size), torch.randn(size)
    for given in (x[:, :size], x[:, size:], x[:, ::2], x.view(rows, 2, size)):
        for factor in (gain, None):
            torch.testing.assert_close(rms_norm_triton(given, factor, 1e-6), rms_norm_ref(given, factor, 1e-6))


@pytest.mark.parametrize(("ratio", "length", "start"), [(4, 13, 0), (4, 8, 4), (128, 260, 0), (8, 17, 0)])
def test_pooled_blocks_are_near_the_references(ratio: int, length: int, start: int) -> None:
    given = compress_cases.inputs(ratio, length, start=start)
    blocks = given["blocks"]
    arguments = given["raw"], given["ape"], blocks.sources, blocks.first, 12
    torch.testing.assert_close(compress_kv_triton(*arguments), compress_kv_ref(*arguments))


@pytest.mark.parametrize("shape", [(3, 20), (2, 5, 40), (0, 3, 16)], ids=str)
@pytest.mark.parametrize("inverse", [False, True])
def test_rotations_are_near_the_references(shape: tuple[int, ...], inverse: bool) -> None:
    x, angles = torch.randn(shape), torch.randn(shape[0], 6)
    cos, sin = angles.cos(), angles.sin()
    for ours, theirs in ((apply_rope_triton, apply_rope_ref), (apply_rope_halves_triton, apply_rope_halves_ref)):
        torch.testing.assert_close(ours(x, cos, sin, inverse), theirs(x, cos, sin, inverse))
