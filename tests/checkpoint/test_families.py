"""config.json of DeepSeek-V2, V3 and V3.2, as released and as transformers writes it."""

from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DeepseekV2Config, DeepseekV3Config
from transformers.models.deepseek_v32 import DeepseekV32Config

from benthic.errors import ConfigError
from benthic.models.config import LayerSpec, ModelConfig
from benthic.models.released import FLASH, V2, V2_LITE, V3, V31, V32

RELEASED_V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV2Config"},
    "aux_loss_alpha": 0.001,
    "bos_token_id": 100000,
    "eos_token_id": 100001,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 10944,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v2",
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "pretraining_tp": 1,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "greedy",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "v_head_dim": 128,
    "vocab_size": 102400,
}

HUGGING_FACE = {
    "v2": (V2, DeepseekV2Config),
    "v2 lite": (V2_LITE, DeepseekV2Config),
    "v3": (V3, DeepseekV3Config),
    "v3.1": (V31, DeepseekV3Config),
    "v3.2": (V32, DeepseekV32Config),
}


def test_the_released_v2_lite_file_gives_the_known_configuration_without_a_warning(caplog):
    assert ModelConfig.from_json(RELEASED_V2_LITE) == V2_LITE
    assert not caplog.records


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_what_transformers_makes_of_our_file_gives_the_same_configuration(name, caplog):
    config, kind = HUGGING_FACE[name]
    theirs = kind(**config.to_json()).to_dict()
    # V3.2 of transformers has no MTP and no key for it.
    theirs.setdefault("num_nextn_predict_layers", config.num_nextn_predict_layers)
    theirs.setdefault("scoring_func", config.scoring_func)
    assert ModelConfig.from_json(theirs) == config
    assert not [r for r in caplog.records if r.name.startswith("benthic")]


def test_layers_of_the_latent_families_are_data():
    assert V2.layers[0] == LayerSpec(1, "score", "latent", "dense", False, "plain")
    assert {*V2.layers[1:]} == {LayerSpec(1, "score", "latent", "experts", False, "plain")}
    assert [layer.mlp for layer in V3.layers].count("dense") == 3 and V3.mtp_layers[0].mlp == "experts"
    assert {*V32.layers[3:], *V32.mtp_layers} == {LayerSpec(1, "bias", "latent", "experts", True, "plain")}
    assert not V2.mtp_layers and len(V3.mtp_layers) == 1


def test_derived_sizes_are_those_of_the_papers():
    assert (V3.entry_dim, V3.value_dim, FLASH.entry_dim, FLASH.value_dim) == (576, 512, 512, 512)
    assert V3.softmax_scale == pytest.approx(192**-0.5 * 1.8739, rel=1e-4)
    assert V2.softmax_scale == pytest.approx(192**-0.5 * 1.5896, rel=1e-4)
    assert V2.rope_amplitude == V3.rope_amplitude == FLASH.rope_amplitude == 1
    assert V3.rope_scaling is not None
    unequal = replace(V3, rope_scaling=replace(V3.rope_scaling, mscale=1.0, mscale_all_dim=0.5))
    assert unequal.rope_amplitude == pytest.approx(1.3688879 / 1.1844440)
    neither = replace(V3, rope_scaling=replace(V3.rope_scaling, mscale=None, mscale_all_dim=None))
    assert neither.rope_amplitude == pytest.approx(1.3688879) and neither.softmax_scale == 192**-0.5
    one = replace(V3, rope_scaling=replace(V3.rope_scaling, mscale=0.5, mscale_all_dim=None))
    assert one.rope_amplitude == pytest.approx(1.1844440) and one.softmax_scale == 192**-0.5
    other = replace(V3, rope_scaling=replace(V3.rope_scaling, mscale=None, mscale_all_dim=1.0))
    assert other.rope_amplitude == 1 and other.softmax_scale == V3.softmax_scale


WRONG = {
    "three groups": ({"n_group": 3}, "n_group is 3; it must be a divisor"),
    "more groups kept than there are": ({"topk_group": 9}, r"topk_group is 9; it must be <= n_group \(8\)"),
    "a group an expert": ({"n_group": 256}, "n_group is 256; it must be at most half of n_routed_experts"),
    "softmax in V3": ({"scoring_func": "softmax"}, "scoring_func is 'softmax'; it must be 'sigmoid'"),
    "grouped heads": ({"num_key_value_heads": 8}, "num_key_value_heads is 8"),
    "halves": ({"rope_interleave": False}, "rope_interleave is False"),
    "integer format": ({"quantization_config": {"quant_method": "gptq"}}, "'gptq'.*'fp8'"),
    "an indexer in V3": ({"index_topk": 2048}, None),
    "no latent": ({"kv_lora_rank": None}, "lacks kv_lora_rank"),
    "no such width": ({"v_head_dim": 0}, "v_head_dim is 0; it must be above 0"),
    "text for a truth": ({"norm_topk_prob": "false"}, "norm_topk_prob is 'false'; true or false"),
    "no groups stated": ({"n_group": None, "topk_group": None}, "lacks n_group, topk_group"),
    "no dense layers stated": ({"first_k_dense_replace": None}, "lacks first_k_dense_replace"),
    "layers without end": ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; it must be at most 4,096"),
    "a list for a type": ({"model_type": []}, r"model_type is \[\]; deepseek_v2"),
    "text for yarn": ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn'; it must be an object"),
    "a list for yarn": ({"rope_scaling": [1]}, r"rope_scaling is \[1\]; it must be an object"),
    "text for a factor": (
        {"rope_scaling": {"type": "yarn", "factor": "x", "original_max_position_embeddings": 64}},
        "factor 'x'; a finite number",
    ),
    "no extension": (
        {"rope_scaling": {"type": "yarn", "factor": 0, "original_max_position_embeddings": 64}},
        "factor 0; it must be at least 1",
    ),
    "negative mscale": (
        {"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "mscale": -50}},
        "mscale -50; it must be at least 0",
    ),
    "no betas": (
        {
            "rope_scaling": {
                "type": "yarn",
                "factor": 4,
                "original_max_position_embeddings": 64,
                "beta_fast": 0,
                "beta_slow": 0,
            }
        },
        "beta_fast 0 and beta_slow 0",
    ),
    "a base that is no number": ({"rope_theta": float("nan")}, "rope_theta is nan; it must be finite"),
    "text for a count": (
        {"first_k_dense_replace": "1", "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 58},
        "first_k_dense_replace is '1'",
    ),
    "too few kinds": ({"mlp_layer_types": ["sparse"]}, "each of num_hidden_layers"),
    "a list for a format": ({"quantization_config": [1]}, "quantization_config is .*object"),
    "one number for a block": (
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": 128}},
        "weight_block_size 128",
    ),
    "attention factor": (
        {"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "attention_factor": 2}},
        "attention_factor 2",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_latent_config_that_describes_no_model_is_refused_with_a_reason(case, caplog):
    change, reason = WRONG[case]
    raw = {name: value for name, value in {**V3.to_json(), **change}.items() if value is not None}
    if reason is None:  # a key of another family is not read, and said so
        assert ModelConfig.from_json(raw) == V3
        assert "'index_topk' is not read" in caplog.text
        return
    with pytest.raises(ConfigError, match=reason):
        ModelConfig.from_json(raw)


def test_a_gate_of_v2_never_normalises_and_a_file_that_does_not_say_means_so():
    raw = V2.to_json()
    assert ModelConfig.from_json({name: value for name, value in raw.items() if name != "norm_topk_prob"}) == V2
    with pytest.raises(ConfigError, match="norm_topk_prob is True; it must be false"):
        ModelConfig.from_json(raw | {"norm_topk_prob": True})


@pytest.mark.parametrize("config", [V3, FLASH])
@pytest.mark.parametrize("count", [65, 10**13, -1, 2.0])
def test_a_number_of_blocks_that_fits_into_no_memory_is_refused(config, count):
    with pytest.raises(ConfigError, match=f"num_nextn_predict_layers is {count}"):
        ModelConfig.from_json({**config.to_json(), "num_nextn_predict_layers": count})


def test_null_groups_are_one_group_and_a_v2_file_may_leave_them_out():
    raw = {**V2_LITE.to_json(), "n_group": None, "topk_group": None}
    assert ModelConfig.from_json(raw) == V2_LITE
    del raw["n_group"], raw["topk_group"]
    assert ModelConfig.from_json(raw) == V2_LITE


NUMBERS = st.one_of(st.none(), st.booleans(), st.integers(-3, 10**20), st.floats(), st.text(max_size=3))
ANYTHING = st.one_of(
    NUMBERS, st.lists(NUMBERS, max_size=2), st.dictionaries(st.sampled_from(["type", "factor", "x"]), NUMBERS)
)


@settings(max_examples=300, deadline=None)
@given(config=st.sampled_from([V2, V2_LITE, V3, V32, FLASH]), key=st.integers(0, 10**6), value=ANYTHING)
def test_any_value_under_any_key_gives_a_configuration_or_a_config_error(config, key, value):
    raw = config.to_json()
    name = sorted(raw)[key % len(raw)]
    with suppress(ConfigError):
        read = ModelConfig.from_json({**raw, name: value})
        assert len(read.layers) == read.num_hidden_layers
