"""The entry epilogues' Triton kernels on a CPU, in Triton's interpreter: tiny odd shapes against the reference.

    TRITON_INTERPRET=1 pytest tests/kernels/test_entry_write_interpreted.py

The variable must stand before Triton is imported, so these tests are skipped without it.
"""

import os
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("TRITON_INTERPRET=1 is not set", allow_module_level=True)

from benthic.kernels.entry_write import compress_entries, query_heads, write_kv  # noqa: E402
from benthic.kernels.entry_write.cases import (  # noqa: E402
    Compression,
    chunked,
    compression,
    query_heads_inputs,
    write_kv_inputs,
)
from benthic.kernels.entry_write.compress_kernel import compress_entries_triton  # noqa: E402
from benthic.kernels.entry_write.kernel import query_heads_triton, write_kv_triton  # noqa: E402
from benthic.kernels.kv_storage import unpack_index, unpack_kv  # noqa: E402

DIM, INDEX_DIM, ROPE = 80, 32, 16


def kv_values(buffer: Tensor, form: Any) -> Tensor:
    return buffer if form is None else unpack_kv(buffer, DIM, ROPE, torch.float32, impl="reference")


def index_values(buffer: Tensor, form: Any) -> Tensor:
    return buffer if form is None else unpack_index(buffer, INDEX_DIM, torch.float32, impl="reference")


def assert_near(got: Tensor, expected: Tensor) -> None:
    """Equal up to rounding: values that a rounded format holds are nearly always the same ones."""
    torch.testing.assert_close(got, expected, rtol=0, atol=4e-6)


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("form", [None, "v4"])
def test_kv_rows_and_latent_are_near_the_reference(form: Any, rounds: bool) -> None:
    given = write_kv_inputs(7, form=form, holes=True)
    target = given["target"]._replace(buffer=given["target"].buffer.clone())
    scale = "ue8m0" if rounds else None
    expected = write_kv(**given, kv_group=64, linear_scale=scale, impl="reference")
    names = ("product", "latent_gain", "kv_gain", "rope")
    got = write_kv_triton(*(given[name] for name in names), target, 1e-6, 64, rounds)
    assert_near(kv_values(target.buffer, form), kv_values(given["target"].buffer, form))
    if isinstance(got, Tensor):
        assert isinstance(expected, Tensor)
        assert_near(got, expected)
    else:
        assert_near(got.dequantized(), expected.dequantized())


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("heads", [3, 4])
def test_queries_are_near_the_reference(heads: int, rounds: bool) -> None:
    given = query_heads_inputs(3, heads=heads)
    expected = query_heads(**given, index_rounding="fp4" if rounds else "none", impl="reference")
    got = query_heads_triton(given["product"], heads, DIM, given["rope"], 1e-6, 5, rounds)
    assert got[1] is not None
    assert expected.index_query is not None
    assert_near(got[0], expected.query)
    assert_near(got[1], expected.index_query)


def fed_by_kernel(case: Compression, size: int, by_rows: bool) -> Compression:
    run = case.fresh()
    for fed in chunked(2, run.raw.shape[1], size):
        a = run.feed(fed, by_rows=by_rows, dummies=2 if by_rows else 0)
        compress_entries_triton(a["raw"], a["state"], a["ends"], a["sides"], 1e-6, 64, True, torch.float32)
    return run


@pytest.mark.parametrize("form", [None, "v4"])
@pytest.mark.parametrize(("ratio", "length", "ways"), [(4, 43, ((43, 0), (13, 0), (2, 1))), (128, 260, ((130, 0),))])
def test_entries_are_near_the_reference_and_ignore_how_tokens_were_fed(
    ratio: int, length: int, ways: tuple[tuple[int, int], ...], form: Any
) -> None:
    case = compression(ratio, length=length, form=form)
    expected = case.fresh()
    for fed in chunked(2, length, length):
        compress_entries(**expected.feed(fed, by_rows=False), impl="reference")
    runs = [fed_by_kernel(case, size, bool(by_rows)) for size, by_rows in ways]
    for run in runs:
        assert_near(kv_values(run.sides[0].buffer, form), kv_values(expected.sides[0].buffer, form))
        assert torch.equal(run.sides[0].buffer, runs[0].sides[0].buffer)
        if ratio == 4:
            assert_near(index_values(run.sides[1].buffer, form), index_values(expected.sides[1].buffer, form))
            assert run.state.snapshots is not None
            assert expected.state.snapshots is not None
            assert torch.equal(run.state.snapshots, expected.state.snapshots)
