"""Grammars over captured passes: the tokens of planned ones, and masks that mean on the device what they mean here."""

import random

import pytest
import torch

from benthic.engine.config import EngineConfig
from benthic.engine.constraint import RowMask, Stage
from benthic.engine.engine import Engine
from benthic.engine.request import Request
from benthic.engine.row_masks import forbid
from benthic.models.transformer import Transformer
from tests.engine.automaton_masks import AutomatonMasks
from tests.engine.conftest import build_model
from tests.engine.test_grammars import Asked
from tests.exactness.serving import Bits, answers, assert_same, serve

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def model() -> Transformer:
    return build_model("cuda", torch.bfloat16)


def engine_of(model: Transformer, **settings: object) -> Engine:
    given: dict[str, object] = {"max_num_seqs": 12, "cache_bytes": 1 << 28, "debug_checks": True}
    return Engine(model, EngineConfig(**{**given, **settings}), masks=AutomatonMasks())  # type: ignore[arg-type]


def planned(model: Transformer, requests: list[Request]) -> dict[str, Bits]:
    engine = engine_of(model, cuda_graphs=False, prefix_cache=False, overlap_steps=0, max_num_seqs=1)
    found: dict[str, Bits] = {}
    for one in requests:
        found |= answers(serve(engine, [one]))
    return found


@pytest.mark.parametrize("settings", [{}, {"drafter": "ngram"}, {"drafter": "mtp"}], ids=["plain", "lookup", "chain"])
@pytest.mark.parametrize("seed", range(3))
def test_replayed_passes_give_the_tokens_of_planned_ones(
    model: Transformer, seed: int, settings: dict[str, object]
) -> None:
    asked = Asked(seed, 12)
    expected = planned(model, asked.requests)
    asked.check(expected)
    drafts: dict[str, object] = {"draft_len": 3, "draft_adaptive": False} if settings else {}
    engine = engine_of(model, graph_rows=(4, 12, 48), **settings, **drafts)
    assert_same(expected, serve(engine, asked.requests, random.Random(seed), 0.5))
    assert engine.stats().num_replayed_steps > 5


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 129_280])
def test_masks_forbid_on_the_device_what_they_forbid_on_the_host(vocab_size: int) -> None:
    words = torch.randint(-(2**31), 2**31, (3, -(-vocab_size // 32)), generator=torch.Generator().manual_seed(1))
    masks = {row: RowMask(Stage.WITHIN, words[i].to(torch.int32).numpy()) for i, row in enumerate((0, 2, 3))}
    host, device = torch.zeros(5, vocab_size), torch.zeros(5, vocab_size, device="cuda")
    forbid(host, masks)
    forbid(device, masks)
    assert torch.equal(host, device.cpu())
    expected = [[0.0 if int(words[0, v // 32]) >> v % 32 & 1 else float("-inf") for v in range(vocab_size)]]
    assert host[:1].tolist() == expected and not host[[1, 4]].any()
