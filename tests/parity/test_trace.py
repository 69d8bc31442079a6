"""What a pass leaves behind for those who ask: the entries that its rows attended to."""

from dataclasses import replace

import torch
from torch import Tensor

from benthic.models.attention.indexer import Indexer
from benthic.models.packed import PackedContext
from benthic.models.rows import build_rows
from benthic.models.trace import Trace
from benthic.models.transformer import Transformer
from tests.checkpoint.sizes import SMALL
from tests.parity.models import random_ids, random_ours

TOP_K = 9
CONFIG = replace(SMALL, index_topk=TOP_K)
CSA_LAYERS = [number for number, layer in enumerate(CONFIG.layers) if layer.ratio == 4]


@torch.no_grad()
def traced(model: Transformer, sequences: list[list[int]], **wanted: bool) -> tuple[Tensor, Trace]:
    rows, trace = build_rows([(i, 0, ids) for i, ids in enumerate(sequences)], model.min_rows), Trace(**wanted)
    logits = model.logits(model.hidden(model(rows, PackedContext(model.config, rows), trace)))
    return logits[: rows.num_rows], trace


def test_picks_are_the_visible_entries_or_the_top_k_of_them_and_ignore_neighbours() -> None:
    model = random_ours(CONFIG, 1)
    lengths = (150, 3, 70)
    ids = [random_ids(CONFIG.vocab_size, length, length) for length in lengths]
    picks = traced(model, ids, wants_picks=True)[1].picks
    assert CSA_LAYERS and sorted(picks) == CSA_LAYERS
    start = 0
    for length, own in zip(lengths, ids, strict=True):
        alone = traced(model, [own], wants_picks=True)[1].picks
        for layer in CSA_LAYERS:
            here = picks[layer][start : start + length]
            assert here.dtype == torch.int32 and here.shape == (length, TOP_K)
            assert torch.equal(here, alone[layer])
            for position, row in enumerate(here.tolist()):
                visible, real = (position + 1) // 4, [entry for entry in row if entry >= 0]
                assert row == sorted(real) + [-1] * (TOP_K - len(real))
                assert len(set(real)) == min(visible, TOP_K) and all(entry < visible for entry in real)
        start += length


def test_attending_to_the_traced_picks_gives_the_same_logits(monkeypatch) -> None:
    model, ids = random_ours(CONFIG, 2), random_ids(CONFIG.vocab_size, 150, 2)
    expected, trace = traced(model, [ids], wants_picks=True)
    for change, is_same in ((0, True), (1, False)):
        layers = iter(CSA_LAYERS)

        def replayed(self, query, gamma, keys, plan, workspace_bytes, layers=layers, change=change):
            rows = (trace.picks[next(layers)] - change).clamp(min=-1)
            return [rows[tiles.queries].view(*tiles.positions.shape, TOP_K) for tiles in plan.groups]

        monkeypatch.setattr(Indexer, "picks", replayed)
        assert torch.equal(traced(model, [ids])[0], expected) is is_same


def test_nobody_who_did_not_ask_pays_for_picks() -> None:
    model, ids = random_ours(CONFIG, 3), random_ids(CONFIG.vocab_size, 60, 3)
    assert traced(model, [ids])[1].picks == {}
