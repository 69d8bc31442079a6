"""Our model equals transformers' DeepseekV4ForCausalLM, and checkpoints pass between the two in both directions."""

import json

import pytest
import torch
from transformers import DeepseekV4ForCausalLM

from benthic.models.checkpoint import convert, load_model, save_checkpoint
from benthic.models.config import ModelConfig
from tests.checkpoint.sizes import random_model
from tests.parity.models import (
    ours_with_weights_of,
    packed_logits,
    random_ids,
    random_ours,
    random_sizes,
    random_transformers_model,
    transformers_logits,
)

LENGTH = 310
# float32 sums in another order; logits have scale 5.
TOLERANCE = 5e-5
# Two implementations round differently, so a choice (index top-k, experts) between candidates less than 1e-4 apart may
# fall either way. These models keep every choice clear of that.
SEEDS = (1, 2, 3, 4, 7, 8, 9, 18, 19, 22, 23, 28, 31, 32, 35, 37)


@pytest.mark.parametrize("seed", SEEDS)
def test_logits_equal_those_of_transformers(seed):
    sizes = random_sizes(seed)
    theirs = random_transformers_model(sizes, seed)
    ids = random_ids(sizes["vocab_size"], LENGTH, seed)
    expected = transformers_logits(theirs, ids)
    found = packed_logits(ours_with_weights_of(theirs, sizes), ids)
    assert 3 < expected.abs().max() < 8
    assert (found - expected).abs().max() <= TOLERANCE


def test_the_models_compared_cover_what_may_vary():
    drawn = [random_sizes(seed) for seed in SEEDS]
    ratios = [sizes["compress_ratios"][:-1] for sizes in drawn]
    assert {ratio for schedule in ratios for ratio in schedule} == {0, 4, 128}
    assert len({tuple(schedule) for schedule in ratios}) >= 12
    for name, least in {
        "sliding_window": 4, "num_attention_heads": 4, "o_groups": 3, "q_lora_rank": 3, "o_lora_rank": 3,
        "n_routed_experts": 3, "num_experts_per_tok": 3, "num_hash_layers": 3, "swiglu_limit": 3, "index_topk": 3,
        "head_dim": 3, "qk_rope_head_dim": 2, "hidden_size": 3, "hc_mult": 2, "hc_sinkhorn_iters": 2,
    }.items():  # fmt: skip
        assert len({sizes[name] for sizes in drawn}) >= least, name
    assert {"rope_scaling" in sizes for sizes in drawn} == {True, False}


def test_logits_stay_equal_over_many_compressed_entries():
    seed = 4
    sizes = random_sizes(seed)
    assert {0, 4, 128} <= set(sizes["compress_ratios"])
    theirs = random_transformers_model(sizes, seed)
    ids = random_ids(sizes["vocab_size"], 900, seed)
    found = packed_logits(ours_with_weights_of(theirs, sizes), ids)
    close = (found - transformers_logits(theirs, ids)).abs().amax(1) <= TOLERANCE
    assert close.all()


@pytest.mark.parametrize("layout", ["official", "hf"])
def test_our_checkpoint_loads_in_transformers_whole_and_gives_equal_logits(layout, tmp_path):
    ours = random_ours(ModelConfig.from_json(random_sizes(9)), seed=9)
    folder = save_checkpoint(ours, tmp_path / "x", layout=layout, weights="fp32")
    assert any("mtp.0." in name for name in ours.state_dict()), "the MTP block must not disturb transformers"
    theirs = _load_in_transformers(folder)
    ids = random_ids(ours.config.vocab_size, LENGTH, 9)
    assert (packed_logits(ours, ids) - transformers_logits(theirs, ids)).abs().max() <= TOLERANCE


def test_our_bf16_checkpoint_loads_in_transformers_with_the_same_values(tmp_path):
    official = save_checkpoint(random_model(), tmp_path / "official")
    wide = convert(official, tmp_path / "bf16", weights="bf16")
    theirs = _load_in_transformers(wide).float()
    state = load_model(official, device="cpu").state_dict()
    assert torch.equal(theirs.model.layers[1].mlp.experts.gate_up_proj, state["layers.1.ffn.experts.w13"])
    assert torch.equal(theirs.model.layers[1].self_attn.q_b_proj.weight, state["layers.1.attn.wq_b.weight"])


@pytest.mark.parametrize("seed", [3, 8])
def test_what_transformers_saves_loads_here_whole_and_gives_equal_logits(seed, tmp_path):
    sizes = random_sizes(seed)
    theirs = random_transformers_model(sizes, seed)
    theirs.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert "rope_parameters" in saved
    assert "compress_ratios" not in saved
    ours = load_model(tmp_path, device="cpu")
    ids = random_ids(sizes["vocab_size"], LENGTH, seed)
    assert (packed_logits(ours, ids) - transformers_logits(theirs, ids)).abs().max() <= TOLERANCE
    again = convert(tmp_path, tmp_path / "official", weights="fp32")
    assert torch.equal(packed_logits(load_model(again, device="cpu"), ids), packed_logits(ours, ids))


def _load_in_transformers(folder):
    theirs, report = DeepseekV4ForCausalLM.from_pretrained(
        folder, attn_implementation="eager", experts_implementation="eager", output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not report[kind], f"{kind}: {report[kind]}"
    return theirs.eval()
