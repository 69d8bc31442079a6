"""Weights of V2, V3 and V3.2 through files and back: ours, transformers', and files as DeepSeek released them."""

import json
from dataclasses import replace
from itertools import product

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.quantizers import quantizer_finegrained_fp8

from benthic.errors import CheckpointError
from benthic.models.checkpoint import convert, dummy_model, inspect, load_model, save_checkpoint, tensor_table
from benthic.models.checkpoint.names import latent_file_name
from benthic.models.checkpoint.table import pieces
from benthic.models.config import ModelConfig
from tests.checkpoint.sizes import random_model, read_all, same_state, write_all
from tests.parity.family import FAMILIES, our_name, random_family_model, random_family_sizes

# Whole blocks of 128 everywhere: transformers guesses the block of a ragged matrix from its scales, wrongly.
EVEN = {
    "hidden_size": 128,
    "q_lora_rank": 128,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 256,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 256, "mscale_all_dim": 0.7},
}


def config_of(family: str, *, mtp: int = 0, weights: str = "bf16", scales: str = "ue8m0") -> ModelConfig:
    """A small model of a family; queries without a latent in V2."""
    sizes = random_family_sizes(family, 0) | EVEN
    if family == "deepseek_v2":
        sizes |= {"q_lora_rank": None, "topk_method": "group_limited_greedy"}
    if family == "deepseek_v32":
        sizes |= {"index_head_dim": 64, "index_n_heads": 16}
    config = ModelConfig.from_json(sizes)
    return replace(config, num_nextn_predict_layers=mtp, weight_dtype=weights, expert_dtype=weights, scale_dtype=scales)


def mtp_of(family: str) -> int:
    """How many MTP blocks a release of the family has."""
    return 0 if family == "deepseek_v2" else 1


def in_transformers(folder):
    """transformers' model of a folder. Every tensor found its place."""
    theirs, report = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", experts_implementation="eager", output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not report[kind], f"{kind}: {report[kind]}"
    return {our_name(name): tensor for name, tensor in theirs.state_dict().items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_of_the_module_is_a_piece_and_the_reverse(family):
    config = config_of(family, mtp=mtp_of(family))
    numels = sum(tensor.numel() for tensor in dummy_model(config, device="cpu").state_dict().values())
    assert numels == sum(torch.Size(piece.shape).numel() for piece in pieces(config))


@pytest.mark.parametrize(("family", "layout"), list(product(FAMILIES, ("official", "hf"))))
def test_fp32_files_give_the_same_model_bit_for_bit(family, layout, tmp_path):
    model = random_model(config_of(family, mtp=mtp_of(family)))
    folder = save_checkpoint(model, tmp_path / "x", layout=layout, weights="fp32")
    assert set(read_all(folder)) == {spec.name for spec in tensor_table(model.config, layout=layout, weights="fp32")}
    assert same_state(load_model(folder, device="cpu"), model)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_frozen_model_is_saved_as_the_same_bytes(family, tmp_path):
    config = config_of(family, mtp=mtp_of(family), weights="fp8")
    live, frozen = (
        save_checkpoint(m, tmp_path / str(i))
        for i, m in enumerate((random_model(config), random_model(config).freeze()))
    )
    assert (frozen / "model.safetensors").read_bytes() == (live / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("family", "scales"), list(product(FAMILIES, ("ue8m0", "fp32"))))
def test_quantised_files_keep_their_bytes_and_their_config_through_every_layout(family, scales, tmp_path):
    config = config_of(family, mtp=mtp_of(family), weights="fp8", scales=scales)
    official = save_checkpoint(random_model(config), tmp_path / "official")
    assert ModelConfig.from_json(official) == config
    there = convert(official, tmp_path / "hf", layout="hf")
    back = convert(there, tmp_path / "back")
    assert (back / "model.safetensors").read_bytes() == (official / "model.safetensors").read_bytes()
    assert (back / "config.json").read_bytes() == (official / "config.json").read_bytes()
    wide = convert(official, tmp_path / "wide", weights="fp32")
    assert same_state(load_model(wide, device="cpu"), load_model(official, device="cpu"))


@pytest.mark.parametrize(("family", "layout", "weights"), list(product(FAMILIES, ("official", "hf"), ("fp32", "bf16"))))
def test_our_files_load_in_transformers_whole_with_the_same_values(family, layout, weights, tmp_path):
    folder = save_checkpoint(random_model(config_of(family)), tmp_path / "x", layout=layout, weights=weights)
    theirs, state = in_transformers(folder), load_model(folder, device="cpu").state_dict()
    assert theirs.keys() == state.keys()
    for name, tensor in state.items():
        # Files hold V3.2's key norm in fp32; transformers rounds it to the dtype of the model.
        expected = tensor.bfloat16().float() if weights == "bf16" and "k_norm" in name else tensor
        assert torch.equal(theirs[name].float(), expected), name


@pytest.mark.parametrize(("family", "scales"), list(product(FAMILIES, ("ue8m0", "fp32"))))
def test_our_quantised_files_load_in_transformers_whole_with_the_same_values(family, scales, monkeypatch, tmp_path):
    # It asks for a package that it does not use on a CPU.
    monkeypatch.setattr(quantizer_finegrained_fp8, "is_accelerate_available", lambda: True)
    config = config_of(family, weights="fp8", scales=scales)
    folder = save_checkpoint(random_model(config), tmp_path / "x")
    theirs, state = in_transformers(folder), load_model(folder, device="cpu").state_dict()
    assert theirs.keys() == state.keys()
    for name, tensor in state.items():
        assert torch.equal(theirs[name].float(), tensor.to(theirs[name].dtype).float()), name


@pytest.mark.parametrize(("family", "seed"), list(product(FAMILIES, (1, 3, 5, 6))))
def test_what_transformers_saves_loads_here_whole_with_the_same_values(family, seed, tmp_path):
    theirs = random_family_model(random_family_sizes(family, seed), seed)
    theirs.save_pretrained(tmp_path)
    state = load_model(tmp_path, device="cpu").state_dict()
    expected = {our_name(name): tensor for name, tensor in theirs.state_dict().items()}
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())


def test_files_as_released_load_with_layer_61_as_the_mtp_block(tmp_path):
    """FP8 by hand, w = q * weight_scale_inv, with tied copies of embedding and head in the layer after the last."""
    config = config_of("deepseek_v3", mtp=1, weights="fp8", scales="fp32")
    last, generator = config.num_hidden_layers, torch.Generator().manual_seed(4)
    tensors, expected = {}, {}
    for piece in pieces(config):
        name = latent_file_name(piece.name, last)
        if piece.kind not in ("block", "expert"):
            dtype = torch.float32 if piece.kind == "single" else torch.bfloat16
            tensors[name] = torch.randn(piece.shape, generator=generator).to(dtype)
            expected[piece.name] = tensors[name].float()
            continue
        codes = torch.randn(piece.shape, generator=generator).to(torch.float8_e4m3fn)
        scales = 0.01 + 0.01 * torch.rand([-(-size // 128) for size in piece.shape], generator=generator)
        tensors |= {name: codes, name + "_scale_inv": scales}
        spread = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
        expected[piece.name] = codes.float() * spread[: piece.shape[0], : piece.shape[1]]
    assert f"model.layers.{last}.eh_proj.weight" in tensors
    for copied in ("embed_tokens", "shared_head.head"):
        tensors[f"model.layers.{last}.{copied}.weight"] = torch.zeros(config.vocab_size, 128, dtype=torch.bfloat16)
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    write_all(tensors, tmp_path)
    state = load_model(tmp_path, device="cpu").state_dict()
    width = config.moe_intermediate_size
    for name, values in expected.items():
        found = state.get(name)
        if found is None:  # one expert of a stack
            layer, _, expert, matrix, _ = name.rsplit(".", 4)
            stack = state[f"{layer}.experts.{'w2' if matrix == 'w2' else 'w13'}"][int(expert)]
            found = stack if matrix == "w2" else stack[:width] if matrix == "w1" else stack[width:]
        assert torch.equal(found, values), name


def test_a_block_that_transformers_did_not_save_is_left_out(tmp_path):
    model = random_model(config_of("deepseek_v3", mtp=1))
    folder = save_checkpoint(model, tmp_path / "x", weights="fp32")
    behind = f"model.layers.{model.config.num_hidden_layers}."
    write_all({name: t for name, t in read_all(folder).items() if not name.startswith(behind)}, folder)
    loaded = load_model(folder, device="cpu")
    assert loaded.config == replace(model.config, num_nextn_predict_layers=0)


def test_what_does_not_fit_is_named_as_the_files_spell_it(tmp_path):
    model = random_model(config_of("deepseek_v32", mtp=1, weights="fp8"))
    folder, last = save_checkpoint(model, tmp_path / "x"), model.config.num_hidden_layers
    tensors = read_all(folder)
    names = {
        "missing": [f"model.layers.{last}.shared_head.norm.weight", "model.layers.1.self_attn.o_proj.weight_scale_inv"],
        "unknown": [f"model.layers.{last + 1}.eh_proj.weight", "model.layers.0.mlp.gate_proj.bias"],
        "misshapen": ["model.layers.0.self_attn.indexer.k_norm.bias", f"model.layers.{last}.mlp.gate.weight"],
    }
    for name in names["missing"]:
        del tensors[name]
    for name in names["unknown"]:
        tensors[name] = torch.zeros(3)
    for name in names["misshapen"]:
        tensors[name] = tensors[name][:3].clone()
    write_all(tensors, folder)
    found = inspect(folder)
    assert {kind: sorted(getattr(found, kind)) for kind in names} == {kind: sorted(names[kind]) for kind in names}
    with pytest.raises(CheckpointError) as error:
        load_model(folder, device="cpu")
    assert all(name in str(error.value) for kind in names for name in names[kind])
