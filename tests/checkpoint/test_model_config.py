"""config.json of both dialects, and everything in it that must not pass."""

import json
import logging
from dataclasses import replace

import pytest
from transformers import DeepseekV4Config

from benthic.errors import ConfigError
from benthic.models.config import LayerSpec, ModelConfig
from benthic.models.released import FLASH, KNOWN, PRO, known_config
from tests.checkpoint.sizes import SMALL

RELEASED_FLASH = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
    "compress_rope_theta": 160000,
    "eos_token_id": 1,
    "expert_dtype": "fp4",
    "hc_eps": 1e-6,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "head_dim": 512,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 512,
    "initializer_range": 0.02,
    "max_position_embeddings": 1048576,
    "model_type": "deepseek_v4",
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 6,
    "num_hash_layers": 3,
    "num_hidden_layers": 43,
    "num_key_value_heads": 1,
    "num_nextn_predict_layers": 1,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "q_lora_rank": 1024,
    "qk_rope_head_dim": 64,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "scale_fmt": "ue8m0",
        "weight_block_size": [128, 128],
    },
    "rms_norm_eps": 1e-6,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 16,
        "original_max_position_embeddings": 65536,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.5,
    "scoring_func": "sqrtsoftplus",
    "sliding_window": 128,
    "swiglu_limit": 10.0,
    "tie_word_embeddings": False,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "transformers_version": "4.57.1",
    "use_cache": True,
    "vocab_size": 129280,
}


def test_the_released_file_gives_the_known_configuration_without_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        assert ModelConfig.from_json(RELEASED_FLASH) == FLASH
    assert not caplog.records


def test_what_is_written_has_every_key_of_the_released_file():
    written = FLASH.to_json()
    written["transformers_version"] = "4.57.1"
    assert written == RELEASED_FLASH


@pytest.mark.parametrize("config", [*KNOWN.values(), SMALL, replace(SMALL, rope_scaling=None, expert_dtype="fp8")])
def test_a_written_config_reads_back_equal(config, tmp_path):
    for weights in ("official", "bf16", "fp32"):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config.to_json(weights=weights)))
        expected = config
        if config.is_latent and weights != "official":  # these files say how they hold weights, and nothing else does
            expected = replace(config, weight_dtype="bf16", expert_dtype="bf16", scale_dtype="ue8m0")
        assert ModelConfig.from_json(tmp_path) == ModelConfig.from_json(path) == expected


def test_layer_schedules_of_the_released_models():
    assert [sum(layer.ratio == r for layer in FLASH.layers) for r in (0, 4, 128)] == [2, 21, 20]
    assert [sum(layer.ratio == r for layer in PRO.layers) for r in (0, 4, 128)] == [0, 30, 31]
    assert FLASH.layers[2] == LayerSpec(4, "hash", has_index=True)
    assert FLASH.layers[3] == LayerSpec(128, "bias")
    assert FLASH.mtp_layers == PRO.mtp_layers == (LayerSpec(0, "bias"),)


@pytest.mark.parametrize("name", ["deepseek-v4-flash", "DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Flash"])
def test_released_models_are_known_by_name(name):
    assert known_config(name) is FLASH


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigError, match="'deepseek-v5'.*deepseek-v3.2, deepseek-v4-flash, deepseek-v4-pro"):
        known_config("deepseek-v5")


@pytest.mark.parametrize("yarn", [True, False])
def test_the_spelling_of_transformers_gives_the_same_configuration(yarn, tmp_path):
    config = SMALL if yarn else replace(SMALL, rope_scaling=None)
    DeepseekV4Config(**config.to_json(weights="fp32")).save_pretrained(tmp_path)
    rewritten = json.loads((tmp_path / "config.json").read_text())
    assert "compress_ratios" not in rewritten, "transformers is expected to change the spelling"
    assert "layer_types" in rewritten
    assert ModelConfig.from_json(tmp_path) == config


def test_rope_parameters_flat_nested_and_rope_scaling_agree():
    """B131: three spellings of one configuration."""
    flat = SMALL.to_json()
    yarn = flat.pop("rope_scaling")
    flat["rope_parameters"] = {"rope_type": "yarn", **{k: v for k, v in yarn.items() if k != "type"}}
    nested = {k: v for k, v in SMALL.to_json().items() if not k.startswith(("rope", "qk_rope", "compress_rope"))}
    nested["rope_parameters"] = {
        "main": {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.25},
        "compress": {"rope_theta": 160000, "attention_factor": 1.0, **yarn},
    }
    assert ModelConfig.from_json(flat) == ModelConfig.from_json(nested) == SMALL


def test_ratios_beyond_the_main_layers_belong_to_mtp_whatever_their_number():
    raw = SMALL.to_json()
    for extra in ([], [0], [0, 0, 0]):
        raw["compress_ratios"] = [0, 4, 128, *extra]
        assert ModelConfig.from_json(raw) == SMALL


def test_a_quantised_file_that_does_not_say_its_expert_format_has_fp8_experts():
    raw = SMALL.to_json()
    del raw["expert_dtype"]
    assert ModelConfig.from_json(raw).expert_dtype == "fp8"
    raw["quantization_config"]["expert_dtype"] = "fp4"
    assert ModelConfig.from_json(raw).expert_dtype == "fp4"


WRONG = {
    "no ratios": ({"compress_ratios": None}, "neither compress_ratios nor layer_types"),
    "too few ratios": ({"compress_ratios": [0, 4]}, "2 entries; num_hidden_layers is 3"),
    "strange ratio": ({"compress_ratios": [0, 4, 8]}, "0, 4 or 128"),
    "compressed mtp": ({"compress_ratios": [0, 4, 128, 4]}, "MTP blocks, which have ratio 0"),
    "types disagree": ({"layer_types": ["sliding_attention"] * 3}, "must agree"),
    "unknown type": ({"compress_ratios": None, "layer_types": ["full_attention"] * 3}, "full_attention"),
    "refreshed release": ({"dspark_block_size": 8}, "dspark_block_size.*not supported yet"),
    "other family": ({"model_type": "qwen3_moe"}, "'qwen3_moe'; deepseek_v2, "),
    "llama rope": ({"rope_scaling": {"type": "linear", "factor": 2}}, "'linear'.*'yarn' or none"),
    "yarn without factor": ({"rope_scaling": {"type": "yarn"}}, "needs factor"),
    "mscale": (
        {"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "mscale": 0.7}},
        "mscale 0.7",
    ),
    "two kv heads": ({"num_key_value_heads": 2}, "num_key_value_heads is 2"),
    "sigmoid router": ({"scoring_func": "sigmoid"}, "'sigmoid'"),
    "tied": ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
    "text for a number": ({"hidden_size": "64"}, "hidden_size is '64'; a whole number"),
    "negative": ({"sliding_window": -1}, "sliding_window is -1; it must be above 0"),
    "groups": ({"o_groups": 3}, "o_groups is 3; it must be a divisor"),
    "too many experts": ({"num_experts_per_tok": 5}, "num_experts_per_tok is 5"),
    "expert format": ({"expert_dtype": "int4"}, "'int4'"),
    "hash layers scattered": (
        {"mlp_layer_types": ["moe", "hash_moe", "moe"], "num_hash_layers": None},
        "hash_moe layers first",
    ),
    "two missing": ({"vocab_size": None, "q_lora_rank": None}, "lacks q_lora_rank, vocab_size"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_config_that_describes_no_model_is_refused_with_a_reason(case):
    change, reason = WRONG[case]
    raw = {key: value for key, value in {**SMALL.to_json(), **change}.items() if value is not None}
    with pytest.raises(ConfigError, match=reason):
        ModelConfig.from_json(raw)


def test_an_unknown_key_is_reported_with_its_neighbour_and_not_fatal(caplog):
    with caplog.at_level(logging.WARNING):
        assert ModelConfig.from_json({**SMALL.to_json(), "sliding_windows": 4}) == SMALL
    assert "did you mean 'sliding_window'" in caplog.text


@pytest.mark.parametrize("content", ["{", "[1]", "\ufffe"])
def test_a_broken_config_file_is_a_config_error(content, tmp_path):
    (tmp_path / "config.json").write_text(content, encoding="utf-16" if content == "\ufffe" else "utf-8")
    with pytest.raises(ConfigError, match=r"config\.json"):
        ModelConfig.from_json(tmp_path)
    with pytest.raises(ConfigError, match=r"there is no .*config\.json"):
        ModelConfig.from_json(tmp_path / "nowhere")
