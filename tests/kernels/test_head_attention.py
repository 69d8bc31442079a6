"""head_attention: a softmax over each head's own keys, its gradient, its bound of memory."""

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


def loop(where: Pass, query: Tensor, keys: Tensor, values: Tensor, scale: float, picks: Tensor | None = None) -> Tensor:
    """Row by row and head by head, in float64; `picks` [R, k] of the rows."""
    out = torch.zeros(*query.shape[:2], values.shape[2], dtype=torch.float64)
    for run in where.runs:
        for row, position in enumerate(range(run.start, run.start + run.length), run.start_row):
            seen = range(position + 1) if picks is None else [w for w in picks[row].tolist() if 0 <= w <= position]
            for head in range(query.shape[1]):
                slots = [where.entry_slot(run.sequence, w) for w in seen]
                if slots:
                    weights = (keys[slots, head].double() @ query[row, head].double() * scale).softmax(-1)
                    out[row, head] = weights @ values[slots, head].double()
    return out


@pytest.mark.parametrize("value_dim", [4, 6, 9])
@pytest.mark.parametrize("picked", [False, True])
def test_it_is_a_softmax_over_each_heads_keys_up_to_the_row(picked: bool, value_dim: int) -> None:
    where = make_latent_pass(SPANS)
    given, picks, of_rows = inputs(where, value_dim=value_dim), None, None
    if picked:
        picks = random_picks(where, 9)
        of_rows = torch.cat([one.flatten(0, 1) for one in picks if one is not None]).index_select(0, where.plan.order)
        assert (of_rows.amax(-1) < 0).any(), "some row picks nothing"
    got = head_attention(**given, picks=picks)
    expected = loop(where, given["query"], given["keys"], given["values"], given["scale"], of_rows)
    torch.testing.assert_close(got.double(), expected, rtol=0, atol=TOLERANCE)


def test_gradients_are_the_numeric_ones() -> None:
    where = make_latent_pass(((0, 0, 5), (1, 3, 1)), longest=6)
    laws.assert_gradients(head_attention, inputs(where, torch.float64, heads=2, key_dim=3, value_dim=2))


def test_a_bound_of_memory_changes_rounding_at_most() -> None:
    where = make_latent_pass(((0, 0, 300), (1, 0, 290)))
    given = inputs(where)
    torch.testing.assert_close(head_attention(**given, workspace_bytes=1), head_attention(**given), rtol=0, atol=1e-6)


def test_no_rows_give_no_rows() -> None:
    where = make_latent_pass(((0, 0, 3),))
    given = inputs(where)
    assert head_attention(**given | {"query": torch.zeros(0, 3, 6)}).shape == (0, 3, 5)


def test_keys_and_values_of_other_heads_are_refused_with_all_shapes() -> None:
    given = inputs(make_latent_pass(((0, 0, 3),)))
    for wrong in ({"keys": given["keys"][:, :2]}, {"values": given["values"][:, :2]}, {"keys": given["keys"][..., :5]}):
        with pytest.raises(KernelInputError, match=r"\[slots, 3, 6\] and \[slots, 3, dv\]"):
            head_attention(**given | wrong)
