"""Accuracy on held-out documents agrees with decoding them one by one."""

import numpy as np

from benthic.models.checkpoint import dummy_model
from benthic.models.config import ModelConfig
from benthic.models.packed import PackedContext
from benthic.models.rows import build_rows
from benthic.models.transformer import Transformer
from benthic.train.held_out import HeldOutAccuracy
from benthic.train.item import Item
from benthic.train.packing import Layout

LAYOUT = Layout(budget=256, max_blocks=64, max_len=64)


def first_choice(model: Transformer, ids: list[int]) -> int:
    rows = build_rows([(0, 0, ids)], model.min_rows, model.device)
    hidden = model.hidden(model(rows, PackedContext(model.config, rows)))
    return int(model.logits(hidden)[len(ids) - 1].argmax())


def greedy(model: Transformer, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(first_choice(model, ids))
    return ids


def test_replies_that_greedy_decoding_gives_are_right_and_others_wrong(model: Transformer, seed: int) -> None:
    rng = np.random.default_rng(seed)
    items = []
    for _ in range(6):
        prompt = rng.integers(0, 48, rng.integers(3, 30)).tolist()
        ids = greedy(model, prompt, 3)
        weights = [0.0] * len(prompt) + [1.0] * 3
        items.append(Item(ids, weights, "right"))
        items.append(Item([*ids[:-2], (ids[-2] + 1) % 48, ids[-1]], weights, "wrong"))
    spoiled_prompt = [(items[0].token_ids[0] + 1) % 48, *items[0].token_ids[1:].tolist()]
    items.append(Item(spoiled_prompt, [1.0] * len(spoiled_prompt), "all weighed"))
    shares = HeldOutAccuracy(items, LAYOUT)(model.eval(), 0)
    assert shares == {"all weighed": 0.0, "right": 1.0, "wrong": 0.0}


def test_another_model_is_judged_anew(model: Transformer, config: ModelConfig) -> None:
    ids = greedy(model, [1, 2, 3], 4)
    accuracy = HeldOutAccuracy([Item(ids, [0.0] * 3 + [1.0] * 4, "x")], LAYOUT)
    assert accuracy(model, 0) == {"x": 1.0}
    assert accuracy(dummy_model(config, seed=2, device="cpu", min_rows=2), 0) == {"x": 0.0}
