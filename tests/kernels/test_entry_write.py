"""entry_write on the CPU: the parts to the bit, holes that write nothing, entries that ignore how tokens were fed."""

from typing import Any

import pytest
import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.compress_kv import CompletedBlocks, compress_kv
from benthic.kernels.entry_write import (
    compress_entries,
    queries_and_entries,
    query_heads,
    round_index_vector,
    round_kv_entry,
    write_kv,
)
from benthic.kernels.entry_write.cases import (
    Compression,
    chunked,
    compression,
    query_heads_inputs,
    rotations,
    write_kv_inputs,
)
from benthic.kernels.kv_storage import pack_index, pack_kv
from benthic.kernels.quantize import hadamard, quantize_rows, round_trip_fp4, round_trip_fp8
from benthic.kernels.rms_norm import rms_norm
from benthic.kernels.rope import apply_rope

ROPE = 16


def test_rounding_of_entries_and_index_vectors_is_the_official_one() -> None:
    x = torch.randn(3, 80)
    assert torch.equal(round_kv_entry(x, ROPE, 64)[:, :64], round_trip_fp8(x[:, :64], 64))
    assert torch.equal(round_kv_entry(x, ROPE, 64)[:, 64:], x[:, 64:])
    assert torch.equal(round_index_vector(x[:, :64], "fp4"), round_trip_fp4(hadamard(x[:, :64]), 32))
    assert torch.equal(round_index_vector(x[:, :64], "none"), x[:, :64])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", [None, "v4"])
def test_kv_rows_and_latent_are_their_parts_to_the_bit(form: Any, dtype: torch.dtype) -> None:
    given = write_kv_inputs(7, dtype, form=form, holes=True)
    target = given["target"]
    latent = write_kv(**given, kv_group=64, linear_scale="ue8m0")
    product, gain = given["product"], given["kv_gain"]
    kv = round_kv_entry(apply_rope(rms_norm(product[:, 128:], gain, 1e-6), given["rope"]), ROPE, 64)
    wanted = torch.zeros_like(target.buffer)
    for row, slot in zip(kv if form is None else pack_kv(kv, ROPE, form), target.slots.tolist(), strict=True):
        if slot >= 0:
            wanted[slot] = row
    assert torch.equal(target.buffer, wanted)
    assert bool((target.slots < 0).any())
    rounded = quantize_rows(rms_norm(product[:, :128], given["latent_gain"], 1e-6), "ue8m0")
    assert not isinstance(latent, Tensor)
    assert torch.equal(latent.data.view(torch.uint8), rounded.data.view(torch.uint8))
    assert torch.equal(latent.scale, rounded.scale)


def test_rows_beyond_the_slots_are_dummies() -> None:
    given = write_kv_inputs(5)
    target = given["target"]
    latent = write_kv(**(given | {"target": target._replace(slots=target.slots[:2])}))
    assert isinstance(latent, Tensor)
    assert len(latent) == 5
    assert int(target.buffer.abs().sum(1).bool().sum()) == 2


def test_queries_are_their_parts_to_the_bit() -> None:
    given = query_heads_inputs(6)
    product, rope = given["product"], given["rope"]
    got = query_heads(**given, index_rounding="fp4")
    query = rms_norm(product[:, :240].view(6, 3, 80), None, 1e-6)
    assert torch.equal(got.query, apply_rope(query, rope))
    index = apply_rope(product[:, 240:].view(6, 5, 32), rope)
    assert got.index_query is not None
    assert torch.equal(got.index_query, round_trip_fp4(hadamard(index), 32))
    assert query_heads(**(given | {"index_heads": 0})).index_query is None


def entries_by_hand(case: Compression) -> list[Tensor]:
    """The buffers after all tokens of all sequences, each sequence pooled at once."""
    buffers = [torch.zeros_like(side.buffer) for side in case.sides]
    ratio, length = case.ratio, case.raw.shape[1]
    index = torch.arange(length // ratio)
    reach = torch.arange(-ratio if ratio == 4 else 0, ratio)
    sources = (index[:, None] * ratio + reach).clamp(min=0)
    first = (index == 0)[:, None, None] if ratio == 4 else None
    blocks = CompletedBlocks(ratio, index * ratio, sources, first, index.numpy(), index.numpy())
    rope, dtype, form = rotations(index * ratio, case.rope_dim), case.options["dtype"], case.sides[0].form
    for raw, slots in zip(case.raw, case.entries, strict=True):
        column = 0
        for number, side in enumerate(case.sides):
            width = 2 * side.ape.shape[1]
            pooled = compress_kv(raw[:, column : column + width].contiguous(), side.ape, blocks).to(dtype)
            entry = apply_rope(rms_norm(pooled, side.gain, 1e-6), rope)
            if number == 0:
                entry = round_kv_entry(entry, case.rope_dim, case.options["kv_group"])
                entry = entry if form is None else pack_kv(entry, case.rope_dim, form)
            else:
                entry = round_index_vector(entry, case.options["index_rounding"])
                entry = entry if form is None else pack_index(entry, form)
            buffers[number][slots] = entry
            column += width
    return buffers


@pytest.mark.parametrize(("ratio", "length"), [(4, 75), (128, 300)])
@pytest.mark.parametrize("form", [None, "v4"])
def test_entries_ignore_how_their_tokens_were_fed(ratio: int, length: int, form: Any) -> None:
    case = compression(ratio, length=length, form=form)
    wanted = entries_by_hand(case)
    for size, by_rows in ((length, False), (33, False), (1, True), (2, True)):
        run = case.fresh()
        for fed in chunked(2, length, size):
            compress_entries(**run.feed(fed, by_rows=by_rows, dummies=2 if by_rows else 0))
        for side, buffer in zip(run.sides, wanted, strict=True):
            assert torch.equal(side.buffer, buffer), size


def test_snapshots_hold_the_series_that_the_next_block_reads() -> None:
    case = compression(4, length=70, sequences=1)
    compress_entries(**case.feed([*chunked(1, 70, 70)][0], by_rows=False))
    rows = case.raw[0, 60:64]
    wanted = torch.cat([rows[:, :80], rows[:, 160:240], rows[:, 320:352], rows[:, 384:416]], dim=1)
    assert case.state.snapshots is not None
    assert torch.equal(case.state.snapshots[:4], wanted)
    assert not bool(case.state.snapshots[4:].any())


def test_products_of_another_width_are_refused() -> None:
    given = write_kv_inputs(2)
    with pytest.raises(KernelInputError, match=r"\[2, 208\]"):
        write_kv(**(given | {"product": given["product"][:, 1:]}))
    with pytest.raises(KernelInputError, match="7 heads"):
        query_heads(**(query_heads_inputs(2) | {"index_heads": 7}))


def test_queries_beside_entries_are_both_apart() -> None:
    case = compression(128, length=140, index_rounding="none")
    apart, beside = case.fresh(), case.fresh()
    for fed in chunked(2, 140, 1):
        heads = query_heads_inputs(2, index_heads=0)
        compress_entries(**apart.feed(fed, by_rows=True))
        options = beside.feed(fed, by_rows=True)
        del options["index_rounding"]
        given = {name: heads[name] for name in ("product", "heads", "dim", "rope")}
        assert torch.equal(queries_and_entries(**given, **options), query_heads(**heads).query)
    assert torch.equal(beside.sides[0].buffer, apart.sides[0].buffer)
    assert torch.equal(beside.state.rings, apart.state.rings)
