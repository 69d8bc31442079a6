"""Inputs of the entry epilogues: one sequence or several, fed in chunks, with the slots that a cache would give."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benthic.kernels.entry_write.rounding import IndexRounding
from benthic.kernels.entry_write.targets import BlockEnds, CompressorSide, RawState, RowTarget
from benthic.kernels.kv_storage import KeyForm, index_bytes, kv_bytes
from benthic.kernels.rope import RopeTable, rope_frequencies, rope_table

PAGE = 64


class Fed(NamedTuple):
    """Chunk of a pass: `length` tokens of sequence `sequence` from position `start` on."""

    sequence: int
    start: int
    length: int


def rotations(positions: Tensor, rope_dim: int) -> RopeTable:
    return rope_table(positions, rope_frequencies(rope_dim, 10000.0, None))


def slots_of(count: int, num_slots: int, *, holes: bool = False) -> Tensor:
    """Distinct slots in no order; with `holes` every third row has none."""
    slots = torch.randperm(num_slots)[:count]
    if holes:
        slots[::3] = -1
    return slots


def kv_buffer(slots: int, dim: int, rope_dim: int, dtype: torch.dtype, form: KeyForm | None) -> Tensor:
    if form is None:
        return torch.zeros(slots, dim, dtype=dtype)
    return torch.zeros(slots, kv_bytes(dim, rope_dim, dtype, form), dtype=torch.uint8)


def index_buffer(slots: int, dim: int, dtype: torch.dtype, form: KeyForm | None) -> Tensor:
    if form is None:
        return torch.zeros(slots, dim, dtype=dtype)
    return torch.zeros(slots, index_bytes(dim, form), dtype=torch.uint8)


def write_kv_inputs(
    rows: int,
    dtype: torch.dtype = torch.float32,
    *,
    rank: int = 128,
    dim: int = 80,
    rope_dim: int = 16,
    form: KeyForm | None = None,
    holes: bool = False,
) -> dict[str, Any]:
    """The product is a slice of a wider one, as when an input's products are one."""
    positions = torch.randint(0, 5000, (rows,))
    return {
        "product": torch.randn(rows, rank + dim + 8).to(dtype)[:, : rank + dim],
        "latent_gain": 1 + 0.1 * torch.randn(rank),
        "kv_gain": 1 + 0.1 * torch.randn(dim),
        "rope": rotations(positions, rope_dim),
        "target": RowTarget(
            kv_buffer(rows + 5, dim, rope_dim, dtype, form), slots_of(rows, rows + 5, holes=holes), form
        ),
        "eps": 1e-6,
    }


def query_heads_inputs(
    rows: int,
    dtype: torch.dtype = torch.float32,
    *,
    heads: int = 3,
    dim: int = 80,
    rope_dim: int = 16,
    index_heads: int = 5,
    index_dim: int = 32,
) -> dict[str, Any]:
    return {
        "product": torch.randn(rows, heads * dim + index_heads * index_dim).to(dtype),
        "heads": heads,
        "dim": dim,
        "rope": rotations(torch.randint(0, 5000, (rows,)), rope_dim),
        "eps": 1e-6,
        "index_heads": index_heads,
    }


def block_ends(
    ratio: int, ring_len: int, fed: Sequence[Fed], entries: Tensor, rope_dim: int, *, by_rows: bool, dummies: int = 0
) -> BlockEnds:
    """The plan of one pass; `entries` int64 [sequences, blocks] says where entries lie. `dummies`: rows of nobody."""
    rows = [(f.sequence, f.start + i, i) for f in fed for i in range(f.length)] + [(-1, 0, 0)] * dummies
    sequence, position, before = torch.tensor(rows, dtype=torch.int64).reshape(-1, 3).t().contiguous().unbind(0)
    is_end = (sequence >= 0) & ((position + 1) % ratio == 0)
    ends = torch.where(is_end, torch.arange(len(rows)), -1)
    slots = torch.where(is_end, entries[sequence, (position // ratio).clamp(max=entries.shape[1] - 1)], -1)
    if not by_rows:
        ends, slots = ends[is_end], slots[is_end]
    first_token = (position.index_select(0, ends.clamp(min=0)) - (ratio - 1)).clamp(min=0)
    is_kept = (sequence >= 0) & (position % PAGE >= PAGE - 4)
    kept = sequence * 1000 + position // PAGE * 4 + position % PAGE - (PAGE - 4)
    return BlockEnds(
        ratio=ratio,
        ring_len=ring_len,
        positions=position,
        before=before,
        rings=torch.where(sequence >= 0, sequence * ring_len, -1),
        snapshots=torch.where(is_kept, kept, -1) if ratio == 4 else None,
        ends=ends,
        slots=slots,
        rope=rotations(first_token, rope_dim),
        by_rows=by_rows,
    )


class Compression(NamedTuple):
    """A layer's compressors over some sequences, and the raw rows of all their tokens: [sequences, length, w]."""

    ratio: int
    ring_len: int
    raw: Tensor
    state: RawState
    sides: tuple[CompressorSide, ...]
    entries: Tensor
    rope_dim: int
    options: dict[str, Any]

    def feed(self, fed: Sequence[Fed], *, by_rows: bool, dummies: int = 0) -> dict[str, Any]:
        """Arguments of `compress_entries` for one pass."""
        rows = torch.cat([self.raw[f.sequence, f.start : f.start + f.length] for f in fed])
        rows = torch.cat([rows, rows.new_full((dummies, rows.shape[1]), torch.nan)])
        ends = block_ends(self.ratio, self.ring_len, fed, self.entries, self.rope_dim, by_rows=by_rows, dummies=dummies)
        return {"raw": rows, "state": self.state, "ends": ends, "sides": self.sides} | self.options

    def fresh(self) -> "Compression":
        """The same with empty state and buffers."""
        snapshots = self.state.snapshots
        state = RawState(torch.zeros_like(self.state.rings), None if snapshots is None else torch.zeros_like(snapshots))
        sides = tuple(side._replace(buffer=torch.zeros_like(side.buffer)) for side in self.sides)
        return self._replace(state=state, sides=sides)


def compression(
    ratio: int,
    *,
    sequences: int = 2,
    length: int = 150,
    dim: int = 80,
    rope_dim: int = 16,
    index_dim: int = 32,
    draft_len: int = 1,
    dtype: torch.dtype = torch.float32,
    form: KeyForm | None = None,
    kv_group: int = 64,
    index_rounding: IndexRounding = "fp4",
) -> Compression:
    """`index_dim` 0: no indexer; ratio 128 has none."""
    series, index_dim = (2, index_dim) if ratio == 4 else (1, 0)
    dims = [dim] + ([index_dim] if index_dim else [])
    width = sum(2 * series * d for d in dims)
    ring_len = -(-((2 * ratio if ratio == 4 else ratio) + draft_len - 1) // ratio) * ratio
    blocks = max(1, length // ratio)
    num_slots = sequences * blocks + 3
    buffers = [kv_buffer(num_slots, dim, rope_dim, dtype, form)]
    buffers += [index_buffer(num_slots, index_dim, dtype, form)] if index_dim else []
    sides = tuple(
        CompressorSide(torch.randn(ratio, series * d), 1 + 0.1 * torch.randn(d), buffer, form)
        for d, buffer in zip(dims, buffers, strict=True)
    )
    return Compression(
        ratio=ratio,
        ring_len=ring_len,
        raw=torch.randn(sequences, length, width),
        state=RawState(
            torch.zeros(sequences * ring_len, width), torch.zeros(1000 * sequences, width // 2) if ratio == 4 else None
        ),
        sides=sides,
        entries=torch.randperm(num_slots)[: sequences * blocks].view(sequences, blocks),
        rope_dim=rope_dim,
        options={"eps": 1e-6, "kv_group": kv_group, "index_rounding": index_rounding, "dtype": dtype},
    )


def chunked(sequences: int, length: int, size: int) -> Iterator[list[Fed]]:
    """Passes that feed all sequences in chunks of `size`."""
    for start in range(0, length, size):
        yield [Fed(sequence, start, min(size, length - start)) for sequence in range(sequences)]
