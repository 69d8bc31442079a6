"""The Triton kernels of attention and of the indexer in Triton's interpreter: a script, see test_triton_interpreter.

The interpreter must be chosen before Triton is imported, and computes in float32 only.
"""

import torch
from torch import Tensor

from benthic.kernels.index_scores.kernel import index_scores_triton
from benthic.kernels.index_scores.reference import index_scores_ref
from benthic.kernels.kv_storage.layout import FP8_LAYOUTS, PackedIndex, PackedKv
from benthic.kernels.kv_storage.reference import pack_index_ref, pack_kv_ref, unpack_index_ref, unpack_kv_ref
from benthic.kernels.sparse_attention import Keys, KeyTiles
from benthic.kernels.sparse_attention.cases import (
    Pass,
    index_inputs,
    inputs,
    latent_inputs,
    make_latent_pass,
    make_pass,
    random_picks,
)
from benthic.kernels.sparse_attention.kernel import attend_tiles_triton
from benthic.kernels.sparse_attention.reference import attend_tiles_ref, sink_logits

SPANS = ((0, 64, 17), (1, 250, 1), (0, 190, 1), (1, 0, 3))
TOLERANCE = 3e-6


def real(tiles: KeyTiles) -> Tensor:
    """Which places hold a row of their own, bool [n, Q]."""
    return torch.arange(tiles.rows_per_tile) < tiles.used[:, None]


def check_attention(where: Pass, given: dict, picks: list | None = None, packed: PackedKv | None = None) -> None:
    """Near float64, and of the same bits in pieces of one block and row by row."""
    query, keys, sink = given["query"], given["keys"], sink_logits(given["query"], given["sink"])
    stored: Keys = keys if packed is None else packed
    value_dim = given.get("value_dim", keys.shape[-1])
    rows: dict[int, Tensor] = {}
    for tiles, kept in zip(where.plan.groups, picks or [None] * len(where.plan.groups), strict=True):
        rest = (tiles, given["scale"], kept, value_dim)
        got, small = (attend_tiles_triton(query, stored, sink, *rest, size, interpreted=True) for size in (1 << 28, 1))
        expected = attend_tiles_ref(query.double(), keys.double(), tiles, sink.double(), *rest[1:]).output
        mine = real(tiles).view(-1)
        assert torch.equal(got[mine], small[mine])
        torch.testing.assert_close(got[mine].double(), expected[mine], rtol=0, atol=TOLERANCE)
        rows |= dict(zip(tiles.queries[mine].tolist(), got[mine], strict=True))
    if picks is None:
        for run in where.runs:
            for row in range(run.start_row, run.start_row + run.length, 13):
                alone = where.of_runs([(run.sequence, run.start + row - run.start_row, 1)]).plan.groups[0]
                rest = (alone, given["scale"], None, value_dim, 1 << 28)
                got = attend_tiles_triton(query[row : row + 1], stored, sink, *rest, interpreted=True)
                assert torch.equal(got[0], rows[row])


def check_scores(where: Pass, given: dict, form: str | None) -> None:
    """Near float64, and of the same bits block by block."""
    keys, dim = given["keys"], given["keys"].shape[-1]
    stored = keys
    if form is not None:
        data = pack_index_ref(keys, form)
        keys, stored = unpack_index_ref(data, dim, torch.float32, form), PackedIndex(data, dim, torch.float32, form)
    for tiles in where.plan.groups:
        whole, mine = (0, tiles.num_entry_blocks), real(tiles)
        got = index_scores_triton(given["query"], given["gamma"], stored, tiles, whole, interpreted=True)
        expected = index_scores_ref(given["query"].double(), given["gamma"].double(), keys.double(), tiles, whole)
        torch.testing.assert_close(got[mine].double(), expected[mine], rtol=1e-6, atol=2e-5)
        last = (tiles.num_entry_blocks - 1, tiles.num_entry_blocks)
        piece = index_scores_triton(given["query"], given["gamma"], stored, tiles, last, interpreted=True)
        assert torch.equal(piece[mine], got[mine][:, -64:])


def main() -> None:
    """Runs every check."""
    torch.manual_seed(0)
    for ratio in (0, 4, 128):
        where = make_pass(ratio, SPANS)
        check_attention(where, inputs(where, heads=3, dim=24))
    where = make_pass(4, SPANS, page=32)
    for k in (40, 70):
        check_attention(where, inputs(where), random_picks(where, k))
    latent = make_latent_pass(SPANS)
    check_attention(latent, latent_inputs(latent))
    check_attention(latent, latent_inputs(latent), random_picks(latent, 40))
    given = inputs(where, dim=72)
    for form in FP8_LAYOUTS:
        packed = PackedKv(pack_kv_ref(given["keys"], 8, form), 72, 8, torch.float32, form)
        rows = unpack_kv_ref(packed.data, 72, 8, torch.float32, form)
        check_attention(where, given | {"keys": rows}, random_picks(where, 40), packed)
    for dim in (8, 32):
        for stored_form in (None, *FP8_LAYOUTS):
            check_scores(where, index_inputs(where, dim=dim), stored_form)
    check_scores(where, index_inputs(where, dim=72), None)  # in pieces of columns


if __name__ == "__main__":
    main()
