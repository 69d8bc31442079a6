"""What a token reads: closed forms against sums over positions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benthic.plan.lookups import Lookup
from benthic.plan.rows import RowBytes

ROW = RowBytes(584, 68, "fp4")


def lookup(ratio: int, window: int, top_k: int) -> Lookup:
    return Lookup(1, ratio, window, top_k, 4, 8, 6, 2, 4, ROW)


@given(
    context=st.integers(1, 600),
    ratio=st.sampled_from([0, 1, 4, 128]),
    window=st.sampled_from([0, 1, 16, 128]),
    top_k=st.sampled_from([0, 1, 7, 64]),
)
def test_a_prompt_s_mean_is_the_mean_of_its_tokens(context: int, ratio: int, window: int, top_k: int) -> None:
    one = lookup(ratio, window, top_k if ratio else 0)
    tokens = range(1, context + 1)
    assert one.mean_rows(context) == pytest.approx(sum(map(one.decode_rows, tokens)) / context)
    assert one.mean_keys(context) == pytest.approx(sum(map(one.decode_keys, tokens)) / context)


def test_an_indexer_scores_every_entry_and_leaves_the_best() -> None:
    one = lookup(4, 128, 64)
    assert one.decode_keys(4096) == 1024
    assert one.decode_rows(4096) == 128 + 64
    assert one.decode_rows(100) == 100 + 25
    assert one.read_bytes(4096) == (128 + 64) * 584 + 1024 * 68


def test_heads_multiply_with_the_key_s_width_and_then_the_value_s() -> None:
    core, scores = lookup(4, 128, 64).works(rows=10, keys=100)
    assert core.flops == 2 * 4 * (8 + 6) * 10
    assert scores.flops == 2 * 2 * 4 * 100
