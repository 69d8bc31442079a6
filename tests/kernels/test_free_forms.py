"""The free forms beside which `bench_exactness_cost` sets the canonical ones can be made of today's kernels."""

import sys
from pathlib import Path

import pytest

from benthic.kernels.cuda_library import has_cuda_compiler

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "kernels"))

from free_attention import free_library


def test_attentions_sources_still_cut_lists_where_the_free_form_expects_it() -> None:
    folder = free_library().source.parent
    text = "\n".join(path.read_text() for path in sorted(folder.iterdir()))
    assert "(row.blocks + call.chunk - 1) / call.chunk" in text
    assert "min(row.blocks - number % most_chunks * call.chunk, call.chunk)" in text
    assert "TABLE = CHUNK * BLOCK * 4" in text, "room for the longest list stays a constant"


@pytest.mark.timeout(600)
@pytest.mark.skipif(not has_cuda_compiler(), reason="nvcc is not installed")
def test_attentions_free_form_compiles(tmp_path: Path) -> None:
    free_library().cubin(tmp_path / "free.cubin")
    assert (tmp_path / "free.cubin").stat().st_size > 0
