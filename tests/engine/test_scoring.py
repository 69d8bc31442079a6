"""Rows of a pass are scored in blocks of any size, with the bits of the whole and of training."""

import pytest
import torch

import benthic.engine.scoring as scoring
from benthic.engine.scoring import packed_logits, packed_logprobs, prompt_logprobs, score_rows
from benthic.models.packed import PackedContext
from benthic.models.rows import build_rows
from benthic.models.transformer import Transformer

IDS = [(37 * i) % 500 + 5 for i in range(70)]


def hidden_of(model: Transformer) -> torch.Tensor:
    rows = build_rows([(0, 0, IDS)], model.min_rows)
    return model.hidden(model(rows, PackedContext(model.config, rows)))[: len(IDS) - 1]


@pytest.mark.parametrize("rows_per_block", [1, 17, 69, 1000])
@torch.inference_mode()
def test_blocks_of_any_size_give_the_same_bits(
    small_model: Transformer, rows_per_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = prompt_logprobs(small_model, IDS, 3)
    monkeypatch.setattr(scoring, "BLOCK_BYTES", 4 * small_model.config.vocab_size * rows_per_block)
    found = score_rows(small_model, hidden_of(small_model), IDS[1:], 3).result()
    assert [None, *found] == expected


@pytest.mark.parametrize("count", [1, 2, 5])
@torch.inference_mode()
def test_a_few_rows_alone_have_the_bits_they_have_among_many(small_model: Transformer, count: int) -> None:
    hidden = hidden_of(small_model)
    expected = score_rows(small_model, hidden, IDS[1:], 2).result()
    for start in range(0, len(hidden), count):
        part = score_rows(small_model, hidden[start : start + count], IDS[start + 1 : start + 1 + count], 2).result()
        assert part == expected[start : start + count]


def test_logits_exist_for_a_bounded_number_of_rows(small_model: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    heights: list[int] = []
    logits = small_model.logits

    def watched(hidden: torch.Tensor) -> torch.Tensor:
        heights.append(len(hidden))
        return logits(hidden)

    monkeypatch.setattr(small_model, "logits", watched)
    monkeypatch.setattr(scoring, "BLOCK_BYTES", 4 * small_model.config.vocab_size * 20)
    prompt_logprobs(small_model, IDS, 1)
    assert len(heights) > 1
    assert max(heights) <= max(20, small_model.min_rows)


def test_a_prompts_scores_are_those_of_training_and_name_the_likeliest(small_model: Transformer) -> None:
    first, *found = prompt_logprobs(small_model, IDS, 2)
    logits = packed_logits(small_model, IDS)
    assert first is None
    assert [entry.chosen for entry in found if entry] == packed_logprobs(small_model, IDS).tolist()
    assert [entry.top[0][0] for entry in found if entry] == logits[:-1].argmax(-1).tolist()


def test_a_prompt_of_one_token_has_nothing_to_score(small_model: Transformer) -> None:
    assert prompt_logprobs(small_model, [7], 2) == [None]
    assert packed_logprobs(small_model, [7]).shape == (0,)
