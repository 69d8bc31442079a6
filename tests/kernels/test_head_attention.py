"""head_attention: a softmax over each head's own keys, its gradient, its bound of memory, independence of rows."""

import pytest
import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.head_attention import head_attention
from benthic.kernels.head_attention.cases import inputs
from benthic.kernels.sparse_attention.cases import Pass, make_latent_pass, random_picks
from tests.kernels import laws

SPANS = ((0, 0, 70), (1, 250, 1), (0, 190, 1), (1, 0, 3))
TOLERANCE = 3e-6


def loop(where: Pass, query: Tensor, keys_values: Tensor, scale: float, picks: Tensor | None = None) -> Tensor:
    """Row by row and head by head, in float64; `picks` [R, k] of the rows."""
    key_dim = query.shape[2]
    out = torch.zeros(*query.shape[:2], keys_values.shape[2] - key_dim, dtype=torch.float64)
    for run in where.runs:
        for row, position in enumerate(range(run.start, run.start + run.length), run.start_row):
            seen = range(position + 1) if picks is None else [w for w in picks[row].tolist() if 0 <= w <= position]
            for head in range(query.shape[1]):
                k = keys_values[[where.entry_slot(run.sequence, w) for w in seen], head].double()
                if len(k):
                    weights = (k[:, :key_dim] @ query[row, head].double() * scale).softmax(-1)
                    out[row, head] = weights @ k[:, key_dim:]
    return out


@pytest.mark.parametrize("picked", [False, True])
def test_it_is_a_softmax_over_each_heads_keys_up_to_the_row(picked: bool) -> None:
    where = make_latent_pass(SPANS)
    given, picks, of_rows = inputs(where), None, None
    if picked:
        picks = random_picks(where, 9)
        of_rows = torch.cat([one.flatten(0, 1) for one in picks if one is not None]).index_select(0, where.plan.order)
        assert (of_rows.amax(-1) < 0).any(), "some row picks nothing"
    got = head_attention(**given, picks=picks)
    expected = loop(where, given["query"], given["keys_values"], given["scale"], of_rows)
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=TOLERANCE)


def test_gradients_are_the_numeric_ones() -> None:
    where = make_latent_pass(((0, 0, 5), (1, 3, 1)), longest=6)
    laws.assert_gradients(head_attention, inputs(where, torch.float64, heads=2, key_dim=3, value_dim=2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_whatever_is_attended_beside_it(dtype: torch.dtype) -> None:
    where = make_latent_pass(((0, 0, 200), (1, 0, 100)))
    given = inputs(where, dtype)
    whole = head_attention(**given)
    for first, length in ((0, 1), (0, 64), (64, 64), (128, 65), (192, 1)):
        part = where.of_runs([(0, first, length)])
        rows = given["query"][first : first + length]
        alone = head_attention(rows, given["keys_values"], part.plan, given["scale"])
        assert torch.equal(alone, whole[first : first + length]), (first, length)


def test_a_bound_of_memory_changes_no_bit() -> None:
    where = make_latent_pass(((0, 0, 300), (1, 0, 290)))
    given = inputs(where)
    assert torch.equal(head_attention(**given, workspace_bytes=1), head_attention(**given))


def test_no_rows_give_no_rows() -> None:
    where = make_latent_pass(((0, 0, 3),))
    given = inputs(where)
    assert head_attention(**given | {"query": torch.zeros(0, 3, 6)}).shape == (0, 3, 5)


def test_keys_of_other_heads_or_without_values_are_refused_with_both_shapes() -> None:
    given = inputs(make_latent_pass(((0, 0, 3),)))
    for keys_values in (given["keys_values"][:, :2], given["keys_values"][..., :6]):
        with pytest.raises(KernelInputError, match=r"3, dk \+ dv"):
            head_attention(**given | {"keys_values": keys_values})
