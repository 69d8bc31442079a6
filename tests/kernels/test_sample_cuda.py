"""Sampling on CUDA: the reference's draws up to the last bit of an exponential, and a row's own in any batch."""

from typing import Any

import pytest
import torch
from torch import Tensor

from benthic.kernels.sample import sample
from benthic.kernels.sample.cases import inputs

pytestmark = pytest.mark.gpu

COUNTS = (1, 7, 64, 133)
VOCABULARIES = (101, 129280)


def on_cuda(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value.cuda() if isinstance(value, Tensor) else value for name, value in given.items()}


@pytest.mark.parametrize("vocab_size", VOCABULARIES)
@pytest.mark.parametrize("cuts", [False, True])
def test_draws_are_the_references(vocab_size: int, cuts: bool) -> None:
    given = on_cuda(inputs(300 if vocab_size < 1000 else 40, vocab_size=vocab_size))
    given["logits"][::3] = given["logits"][::3].round()  # ties
    given["logits"][5, 3:] = float("-inf")
    given |= {} if cuts else {"top_k": None, "top_p": None, "min_p": None}
    same = sample(**given) == sample(**given, impl="reference")
    assert same.float().mean() > 0.97  # exp may differ in its last bit


@pytest.mark.parametrize("cuts", [False, True])
def test_a_draw_ignores_the_rows_beside_it(cuts: bool) -> None:
    given = on_cuda(inputs(200, vocab_size=30011))
    given |= {} if cuts else {"top_k": None, "top_p": None, "min_p": None}
    whole = sample(**given)
    for count in COUNTS:
        start = (17 * count) % (200 - count)
        part = {name: None if value is None else value[start : start + count] for name, value in given.items()}
        assert torch.equal(sample(**part), whole[start : start + count])
    order = torch.randperm(200, device="cuda")
    moved = sample(**{name: None if value is None else value[order] for name, value in given.items()})
    assert torch.equal(moved, whole[order])


def test_settings_may_be_columns_of_a_table() -> None:
    given = on_cuda(inputs(40, vocab_size=500))
    table = {
        name: torch.stack((value, value), 1)[:, 0] if value.dim() == 1 else value.repeat(1, 2)[:, :500]
        for name, value in given.items()
    }
    assert torch.equal(sample(**table), sample(**given))


def test_greedy_rows_take_the_first_of_the_largest() -> None:
    given = on_cuda(inputs(50, vocab_size=5000, temperature=0.0))
    given["logits"] = given["logits"].round()
    assert torch.equal(sample(**given), given["logits"].argmax(-1))
    top = given["logits"].amax(-1, keepdim=True)
    assert torch.equal(sample(**given), (given["logits"] == top).int().argmax(-1))


def test_top_k_of_one_and_a_tiny_top_p_take_the_best() -> None:
    for fixed in ({"top_k": 1, "top_p": 1.0, "min_p": 0.0}, {"top_k": 0, "top_p": 1e-6, "min_p": 0.0}):
        given = on_cuda(inputs(50, vocab_size=5000, temperature=1.0, **fixed))
        given["logits"] = given["logits"].round()
        best = given["logits"] == given["logits"].amax(-1, keepdim=True)
        assert torch.equal(sample(**given), best.int().argmax(-1))


def test_rows_of_nan_draw_a_token_that_exists() -> None:
    given = on_cuda(inputs(9, vocab_size=500))
    given["logits"][4] = float("nan")
    given["logits"][5] = float("-inf")
    drawn = sample(**given)
    assert ((drawn >= 0) & (drawn < 500)).all()
