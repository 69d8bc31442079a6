"""Where transformers' V2, V3 and V3.2 differ from ours on purpose, as docs/family.md says."""

import pytest
import torch

from benthic.kernels.select_topk import select_topk
from benthic.models.checkpoint import empty_model
from benthic.models.config import ModelConfig
from tests.parity.family import FAMILIES, empty_family_model, random_family_sizes


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_keeps_its_own_eps_in_the_norms_of_latents(family):
    sizes = random_family_sizes(family, 0) | {"rms_norm_eps": 1e-4}
    theirs = empty_family_model(sizes).model.layers[0]
    ours = empty_model(ModelConfig.from_json(sizes), device="cpu").layers[0]
    assert theirs.input_layernorm.variance_epsilon == ours.attn_norm.eps == 1e-4
    latents = (theirs.self_attn.q_a_layernorm, theirs.self_attn.kv_a_layernorm)
    assert [norm.variance_epsilon for norm in latents] == [1e-6, 1e-6]
    assert [norm.eps for norm in (ours.attn.q_norm, ours.attn.kv_norm)] == [1e-4, 1e-4]


MSCALES = {
    "both": ({"mscale": 0.707, "mscale_all_dim": 0.4}, True),
    "neither": ({}, True),
    "one, and 0": ({"mscale": 1.0, "mscale_all_dim": 0.0}, True),
    "mscale alone": ({"mscale": 0.707}, False),
    "mscale_all_dim alone": ({"mscale_all_dim": 0.707}, False),
    "both 0": ({"mscale": 0.0, "mscale_all_dim": 0.0}, False),
}


@pytest.mark.parametrize("case", MSCALES)
@pytest.mark.parametrize("family", FAMILIES)
def test_amplitudes_agree_unless_a_single_mscale_or_two_zeros_are_given(family, case):
    given, agree = MSCALES[case]
    yarn = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1}
    sizes = random_family_sizes(family, 0) | {"rope_scaling": yarn | given}
    theirs = empty_family_model(dict(sizes)).model.rotary_emb.attention_scaling
    ours = ModelConfig.from_json(sizes).rope_amplitude
    assert (ours == pytest.approx(theirs)) is agree
    if case == "both 0":
        assert ours == 1.0


@pytest.mark.parametrize(("heads", "least", "most"), [(4, 400, 900), (16, 0, 3)])
def test_few_index_heads_tie_at_zero_and_we_pick_the_lowest_index(heads, least, most):
    generator = torch.Generator().manual_seed(heads)
    query, keys, gamma = (
        torch.randn(shape, generator=generator) for shape in ((50, heads, 32), (200, 32), (50, heads))
    )
    scores = (torch.einsum("thd,sd->tsh", query, keys).relu() * gamma[:, None]).sum(-1)
    assert least <= int((scores == 0).sum()) <= most
    for row, picks in zip(scores, select_topk(scores, 100).tolist(), strict=True):
        last = row[picks].min()
        tied = (row == last).nonzero().flatten().tolist()
        chosen = [index for index in picks if row[index] == last]
        assert chosen == tied[: len(chosen)]
    shares_zero = [int((row > 0).sum()) < 100 < int((row >= 0).sum()) for row in scores]
    assert any(shares_zero) is (heads == 4)
