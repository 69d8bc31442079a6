"""A pool of parts, of which only benches know, computes what the compressor's reference does.

TRITON_INTERPRET=1 pytest tests/kernels/test_free_forms_interpreted.py
"""

import os
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("TRITON_INTERPRET=1 is not set", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "kernels"))

from free_rows import _pool_in_parts

from benthic.kernels.compress_kv.reference import compress_kv_ref


def test_a_pool_of_parts_is_the_softmax_weighted_sum_of_whole_blocks() -> None:
    torch.manual_seed(0)
    raw, ape = torch.randn(256, 1024), torch.randn(128, 512)
    expected = compress_kv_ref(raw, ape, torch.arange(256).view(2, 128), None, 512)
    assert torch.allclose(_pool_in_parts(raw, ape), expected, rtol=1e-5, atol=1e-5)
