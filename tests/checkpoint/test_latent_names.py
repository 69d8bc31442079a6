"""Tensors of V2's, V3's and V3.2's files: names, formats and sizes, without weights."""

import re
from dataclasses import replace

import pytest

from benthic.models.checkpoint import inspect, tensor_table
from benthic.models.checkpoint.names import latent_file_name, latent_house_name, official_name
from benthic.models.checkpoint.table import pieces
from benthic.models.released import V2, V2_LITE, V3, V32

SIZES = {
    "deepseek-v2-lite": (15.7e9, 2.4e9),
    "deepseek-v2": (236e9, 21e9),
    "deepseek-v3": (671e9, 37e9),
    "deepseek-v3.2": (671e9, 37e9),
    "deepseek-v4-flash": (284e9, 13e9),
    "deepseek-v4-pro": (1.6e12, 49e9),
}


@pytest.mark.parametrize("name", SIZES)
def test_parameters_of_the_released_models_are_those_published(name):
    total, active = SIZES[name]
    found = inspect(name)
    # Published active counts take the embedding in or leave it out, and round to the last digit.
    assert found.parameters == pytest.approx(total, rel=0.02)
    assert found.active_parameters == pytest.approx(active, rel=0.03)


def test_the_released_v3_files_have_the_published_bytes_without_their_copies_of_embedding_and_head():
    copies = 2 * 2 * V3.vocab_size * V3.hidden_size
    assert inspect("deepseek-v3").num_bytes + copies == pytest.approx(688.57e9, rel=1e-4)


@pytest.mark.parametrize("config", [V2, V2_LITE, V3, V32])
def test_every_name_goes_into_files_and_back(config):
    small = replace(config, n_routed_experts=8, n_group=1, topk_group=1, num_experts_per_tok=2)
    names = [piece.name for piece in pieces(small)]
    assert len(set(names)) == len(names)
    in_files = [latent_file_name(name, small.num_hidden_layers) for name in names]
    assert all(re.match(r"(model\.|lm_head\.)", name) for name in in_files)
    assert [latent_house_name(official_name(name), small.num_hidden_layers) for name in in_files] == names


def test_the_files_of_v32_have_the_names_shapes_and_formats_of_the_release():
    table = {spec.name: (spec.shape, spec.dtype) for spec in tensor_table(V32)}
    layer = "model.layers.5."
    expected = {
        "model.embed_tokens.weight": ((129280, 7168), "BF16"),
        "lm_head.weight": ((129280, 7168), "BF16"),
        "model.norm.weight": ((7168,), "BF16"),
        layer + "input_layernorm.weight": ((7168,), "BF16"),
        layer + "self_attn.q_a_proj.weight": ((1536, 7168), "F8_E4M3"),
        layer + "self_attn.q_a_proj.weight_scale_inv": ((12, 56), "F32"),
        layer + "self_attn.q_a_layernorm.weight": ((1536,), "BF16"),
        layer + "self_attn.q_b_proj.weight": ((24576, 1536), "F8_E4M3"),
        layer + "self_attn.kv_a_proj_with_mqa.weight": ((576, 7168), "F8_E4M3"),
        layer + "self_attn.kv_a_proj_with_mqa.weight_scale_inv": ((5, 56), "F32"),
        layer + "self_attn.kv_a_layernorm.weight": ((512,), "BF16"),
        layer + "self_attn.kv_b_proj.weight": ((32768, 512), "F8_E4M3"),
        layer + "self_attn.o_proj.weight": ((7168, 16384), "F8_E4M3"),
        layer + "self_attn.indexer.wq_b.weight": ((8192, 1536), "F8_E4M3"),
        layer + "self_attn.indexer.wk.weight": ((128, 7168), "F8_E4M3"),
        layer + "self_attn.indexer.k_norm.bias": ((128,), "F32"),
        layer + "self_attn.indexer.weights_proj.weight": ((64, 7168), "BF16"),
        layer + "post_attention_layernorm.weight": ((7168,), "BF16"),
        layer + "mlp.gate.weight": ((256, 7168), "BF16"),
        layer + "mlp.gate.e_score_correction_bias": ((256,), "F32"),
        layer + "mlp.experts.255.down_proj.weight": ((7168, 2048), "F8_E4M3"),
        layer + "mlp.shared_experts.gate_proj.weight": ((2048, 7168), "F8_E4M3"),
        "model.layers.0.mlp.up_proj.weight": ((18432, 7168), "F8_E4M3"),
        "model.layers.61.eh_proj.weight": ((7168, 14336), "BF16"),
        "model.layers.61.enorm.weight": ((7168,), "BF16"),
        "model.layers.61.shared_head.norm.weight": ((7168,), "BF16"),
        "model.layers.61.mlp.experts.0.gate_proj.weight_scale_inv": ((16, 56), "F32"),
    }
    assert {name: table[name] for name in expected} == expected
    assert "model.layers.0.mlp.gate.weight" not in table


@pytest.mark.parametrize("name", SIZES)
def test_the_parts_of_a_model_add_up_to_it(name):
    found = inspect(name)
    assert sum(found.parts.values()) == found.parameters + found.mtp_parameters
    assert sum(found.layers.values()) == found.num_layers and found.is_whole
