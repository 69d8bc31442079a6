"""When keys are widened beforehand on Hopper: what a plan tells of its runs, and what the choice makes of it."""

from dataclasses import replace

import pytest
import torch

from benthic.kernels.kv_storage import PackedKv, kv_bytes
from benthic.kernels.sparse_attention import KeyTiles
from benthic.kernels.sparse_attention.cases import make_pass
from benthic.kernels.sparse_attention.cuda import WIDENED, _Call
from benthic.kernels.sparse_attention.plan import TileCapacity, plan_arrays

BYTES = 256 << 20


def tiles_of(*spans: tuple[int, int, int], longest: int = 40_000) -> KeyTiles:
    return make_pass(4, spans, longest=longest).of_runs(spans, tiles_per_group=64).plan.groups[-1]


def schedule(tiles: KeyTiles, num_picks: int | None = 512, workspace_bytes: int = BYTES) -> tuple[int, int, int]:
    rows = tiles.queries.shape[0]
    query = torch.empty(rows, 64, 512, dtype=torch.bfloat16, device="meta")
    keys = PackedKv(torch.empty(1, kv_bytes(512, 64, torch.bfloat16), dtype=torch.uint8), 512, 64, torch.bfloat16)
    picks = None if num_picks is None else torch.empty(*tiles.positions.shape, num_picks, dtype=torch.int32)
    call = _Call(query, keys, torch.empty(64), tiles, 1.0, picks, None, None)
    return call.schedule(workspace_bytes)


def test_a_plan_counts_the_runs_of_a_sequence_among_its_tiles() -> None:
    spans = [(0, 0, 128), (1, 256, 64), (1, 640, 64), (0, 1024, 64)]
    assert tiles_of(*spans[:1]).num_runs == 1
    assert tiles_of(*spans[:3]).num_runs == 2
    assert tiles_of(*spans).num_runs == 3
    runs = make_pass(4, spans, longest=2000).runs
    assert [group.num_runs for group in plan_arrays(runs, 2)] == [1, 1, 1]
    (padded,) = plan_arrays(runs, 64, TileCapacity(8, 2000))
    assert padded.num_runs == 0, "it stands for any group of its shape"


def test_keys_that_many_rows_share_are_widened_once() -> None:
    chunk = tiles_of((0, 8192, 2048))
    assert schedule(chunk) == WIDENED
    assert schedule(chunk, num_picks=None) == WIDENED
    assert schedule(replace(tiles_of((0, 0, 256)), ratio=0, entry_table=None)) == WIDENED


@pytest.mark.parametrize(
    ("tiles", "workspace_bytes"),
    [
        (tiles_of((0, 8192, 2048)), 8 << 20),  # 12,000 rows of 1 KiB
        (tiles_of((0, 39_936, 64)), BYTES),  # 10,000 entries for 64 rows of 640 keys
        (tiles_of(*((row % 2, 9000 + 100 * row, 1) for row in range(100))), BYTES),
        (replace(tiles_of((0, 8192, 2048)), num_runs=0), BYTES),
    ],
    ids=["no room", "long context, few rows", "single rows", "runs unknown"],
)
def test_keys_are_widened_by_each_row_where_that_is_less_or_all_there_is_room_for(
    tiles: KeyTiles, workspace_bytes: int
) -> None:
    assert schedule(tiles, workspace_bytes=workspace_bytes) == (0, 0, 0)
