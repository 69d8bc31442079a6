"""Weights through files and back, in every layout, format and spelling."""

import json
import shutil
from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from benthic.errors import CheckpointError
from benthic.formats import dequantize_fp4, dequantize_fp8
from benthic.models.checkpoint import convert, dummy_model, inspect, load_model, save_checkpoint, tensor_table
from benthic.models.checkpoint.names import transformers_name
from benthic.models.checkpoint.table import pieces
from benthic.models.config import ModelConfig
from tests.checkpoint.sizes import SMALL, WIDE, random_model, read_all, same_state, write_all

LAYOUTS = ("official", "hf")


@pytest.fixture(scope="module")
def model():
    return random_model()


@pytest.fixture(scope="module")
def official(model, tmp_path_factory):
    return save_checkpoint(model, tmp_path_factory.mktemp("official"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fp32_files_give_the_same_model_bit_for_bit(model, layout, tmp_path):
    folder = save_checkpoint(model, tmp_path / "x", layout=layout, weights="fp32")
    assert same_state(model, load_model(folder, device="cpu"))


def test_a_frozen_model_is_saved_as_the_same_bytes(official, tmp_path):
    frozen = save_checkpoint(random_model().freeze(), tmp_path / "x")
    assert (frozen / "model.safetensors").read_bytes() == (official / "model.safetensors").read_bytes()


@pytest.mark.parametrize(("layout", "weights"), list(product(LAYOUTS, ("official", "fp8", "bf16", "fp32"))))
def test_files_hold_exactly_the_announced_tensors(layout, weights, tmp_path):
    folder = save_checkpoint(random_model(WIDE), tmp_path / "x", layout=layout, weights=weights)
    table = tensor_table(
        replace(WIDE, expert_dtype="fp8") if weights == "fp8" else WIDE, layout=layout, weights=weights
    )
    with safe_open(folder / "model.safetensors", "pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        found = {(name, tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
    assert found == set(table)


def test_official_to_hf_to_official_keeps_every_byte(official, tmp_path):
    there = convert(official, tmp_path / "hf", layout="hf")
    back = convert(there, tmp_path / "back")
    assert (back / "model.safetensors").read_bytes() == (official / "model.safetensors").read_bytes()
    assert (back / "config.json").read_bytes() == (official / "config.json").read_bytes()


@pytest.mark.parametrize("weights", ["bf16", "fp32"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_official_weights_survive_wider_formats_bit_for_bit(official, layout, weights, tmp_path):
    there = convert(official, tmp_path / "wide", layout=layout, weights=weights)
    assert same_state(load_model(there, device="cpu"), load_model(official, device="cpu"))
    back = convert(there, tmp_path / "back")
    assert same_state(load_model(back, device="cpu"), load_model(official, device="cpu"))
    # A group whose largest code rounded down to 3 may come back as 6 under half the scale; then bytes stand still.
    again = convert(convert(back, tmp_path / "wide2", layout=layout, weights=weights), tmp_path / "again")
    assert (again / "model.safetensors").read_bytes() == (back / "model.safetensors").read_bytes()


def test_fp4_experts_become_fp8_without_a_change_of_value(tmp_path):
    """B129: the lossless way from FP4 to FP8 is taken."""
    official = save_checkpoint(random_model(WIDE), tmp_path / "fp4")
    eight = convert(official, tmp_path / "fp8", weights="fp8")
    assert ModelConfig.from_json(eight).expert_dtype == "fp8"
    assert same_state(load_model(eight, device="cpu"), load_model(official, device="cpu"))
    stacked = convert(eight, tmp_path / "fp8-hf", layout="hf")
    assert same_state(load_model(stacked, device="cpu"), load_model(official, device="cpu"))
    again = convert(stacked, tmp_path / "fp8-again")
    assert (again / "model.safetensors").read_bytes() == (eight / "model.safetensors").read_bytes()


def test_a_mixed_checkpoint_decodes_as_an_independent_decoder_does(official):
    """B128: one-byte tensors of two formats are told apart by their scales."""
    raw, state = read_all(official), load_model(official, device="cpu").state_dict()
    width = SMALL.moe_intermediate_size
    for expert in range(SMALL.n_routed_experts):
        name = f"layers.1.ffn.experts.{expert}."
        w3 = dequantize_fp4(raw[name + "w3.weight"], raw[name + "w3.scale"])
        assert torch.equal(state["layers.1.ffn.experts.w13"][expert, width:], w3)
    wq_a = dequantize_fp8(raw["mtp.0.attn.wq_a.weight"], raw["mtp.0.attn.wq_a.scale"], (128, 128))
    assert torch.equal(state["mtp.0.attn.wq_a.weight"], wq_a)
    assert torch.equal(state["norm.weight"], raw["norm.weight"].float())


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("scale", ["e8m0", "bytes", "fp32", "weight_scale_inv"])
def test_other_spellings_of_names_and_scales_load_to_the_same_values(official, prefix, scale, tmp_path):
    """B127, B132: with or without a prefix, under any name of its scale, a tensor has the same values."""
    tensors = {}
    for name, tensor in read_all(official).items():
        if name.endswith(".scale"):
            if scale == "bytes":
                tensor = tensor.view(torch.uint8)
            elif scale == "fp32" and "experts." not in name:
                tensor = tensor.float()
            elif scale == "weight_scale_inv":
                name = name.removesuffix("scale") + "weight_scale_inv"
        tensors[prefix + name] = tensor
    (tmp_path / "config.json").write_bytes((official / "config.json").read_bytes())
    write_all(tensors, tmp_path)
    assert same_state(load_model(tmp_path, device="cpu"), load_model(official, device="cpu"))


@pytest.mark.parametrize("weights", ["official", "fp8"])
def test_quantised_experts_may_come_stacked(weights, tmp_path):
    folder = save_checkpoint(random_model(WIDE), tmp_path / "x", weights=weights)
    expected, tensors = load_model(folder, device="cpu"), read_all(folder)
    for layer, part in product(range(WIDE.num_hidden_layers), ("weight", "scale")):
        experts = [f"layers.{layer}.ffn.experts.{e}." for e in range(WIDE.n_routed_experts)]
        taken = [[tensors.pop(f"{name}{w}.{part}").view(torch.uint8) for w in ("w1", "w3", "w2")] for name in experts]
        dtype = {"scale": torch.float8_e8m0fnu, "weight": torch.int8 if weights == "official" else torch.float8_e4m3fn}
        suffix = "_scale_inv" if part == "scale" else ""
        stacks = {"gate_up_proj": [torch.cat(t[:2]) for t in taken], "down_proj": [t[2] for t in taken]}
        for name, parts in stacks.items():
            tensors[f"model.layers.{layer}.mlp.experts.{name}{suffix}"] = torch.stack(parts).view(dtype[part])
    write_all(tensors, folder)
    assert same_state(load_model(folder, device="cpu"), expected)


def test_shards_hold_every_tensor_once_and_load_to_the_same_model(model, official, tmp_path):
    folder = save_checkpoint(model, tmp_path / "x", max_shard_bytes=100_000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shards = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(shards) > 3
    assert shards == sorted(set(index["weight_map"].values()))
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    assert index["metadata"]["total_size"] == sum(spec.bytes for spec in tensor_table(SMALL))
    assert same_state(load_model(folder, device="cpu"), load_model(official, device="cpu"))
    single = convert(folder, tmp_path / "single")
    assert (single / "model.safetensors").read_bytes() == (official / "model.safetensors").read_bytes()


def test_shards_without_an_index_are_found(model, tmp_path):
    folder = save_checkpoint(model, tmp_path / "x", weights="fp32", max_shard_bytes=100_000)
    (folder / "model.safetensors.index.json").unlink()
    assert same_state(load_model(folder, device="cpu"), model)


def test_tied_copies_inside_mtp_are_ignored(official, tmp_path):
    tensors = read_all(official)
    tensors |= {"mtp.0.embed.weight": tensors["embed.weight"] * 0, "mtp.0.head.weight": tensors["head.weight"] * 0}
    (tmp_path / "config.json").write_bytes((official / "config.json").read_bytes())
    write_all(tensors, tmp_path)
    assert same_state(load_model(tmp_path, device="cpu"), load_model(official, device="cpu"))


def test_without_mtp_tensors_the_model_has_no_mtp_block(official, tmp_path):
    tensors = {name: tensor for name, tensor in read_all(official).items() if not name.startswith("mtp.")}
    (tmp_path / "config.json").write_bytes((official / "config.json").read_bytes())
    write_all(tensors, tmp_path)
    model = load_model(tmp_path, device="cpu")
    assert model.config.num_nextn_predict_layers == 0
    assert len(model.mtp) == 0


def test_the_header_is_compact_and_tensors_are_aligned(official):
    data = (official / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    assert len(json.dumps(header, separators=(",", ":"))) > length - 8
    item_bytes = {"I64": 8, "F32": 4, "BF16": 2}
    for name, entry in header.items():
        if name != "__metadata__":
            assert entry["data_offsets"][0] % item_bytes.get(entry["dtype"], 1) == 0


def test_inspecting_files_agrees_with_the_table(official):
    found = inspect(official)
    assert set(found.tensors) == set(tensor_table(SMALL))
    assert found.num_bytes == sum(spec.bytes for spec in found.tensors)
    assert found.mtp_parameters > 0


def test_dummy_weights_follow_from_the_seed_alone():
    assert same_state(dummy_model(SMALL, 7, device="cpu"), dummy_model(SMALL, 7, device="cpu"))
    assert not same_state(dummy_model(SMALL, 7, device="cpu"), dummy_model(SMALL, 8, device="cpu"))
    shallow = replace(SMALL, num_hidden_layers=2, compress_ratios=(0, 4, 0))
    one, other = dummy_model(SMALL, 7, device="cpu").state_dict(), dummy_model(shallow, 7, device="cpu").state_dict()
    assert torch.equal(one["layers.1.ffn.experts.w2"], other["layers.1.ffn.experts.w2"])


def test_dummy_weights_start_as_the_trained_model_did():
    state = dummy_model(SMALL, 3, device="cpu").state_dict()
    assert abs(state["embed.weight"].std() - 0.02) < 0.002
    assert torch.equal(state["norm.weight"], torch.ones(64))
    assert not state["layers.1.attn.attn_sink"].any()
    assert torch.equal(state["layers.1.hc_attn_scale"], torch.full((3,), 0.1))
    base = state["layers.1.hc_ffn_base"]
    assert abs(torch.sigmoid(base[:4]).sum() - 1) < 1e-6
    assert torch.equal(base[8:].view(4, 4), 3 * torch.eye(4))
    experts = state["layers.0.ffn.gate.tid2eid"]
    assert experts.shape == (67, 2)
    assert (experts[:, 0] != experts[:, 1]).all()


def test_every_tensor_of_the_module_is_in_the_table():
    state = dummy_model(SMALL, device="cpu").state_dict()
    assert sum(tensor.numel() for tensor in state.values()) == sum(
        torch.Size(piece.shape).numel() for piece in pieces(SMALL)
    )


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    layers=st.lists(st.sampled_from([0, 4, 128]), min_size=1, max_size=3),
    num_mtp=st.integers(0, 2),
    experts=st.integers(1, 5),
    hidden=st.sampled_from([32, 96, 160]),
    hash_layers=st.integers(0, 1),
    streams=st.sampled_from([2, 4]),
    layout=st.sampled_from(LAYOUTS),
    seed=st.integers(0, 99),
)
def test_any_model_comes_back_from_any_layout(
    layers, num_mtp, experts, hidden, hash_layers, streams, layout, seed, tmp_path_factory
):
    config = replace(
        SMALL,
        hidden_size=hidden,
        num_hidden_layers=len(layers),
        compress_ratios=(*layers, *[0] * num_mtp),
        num_nextn_predict_layers=num_mtp,
        n_routed_experts=experts,
        num_experts_per_tok=min(2, experts),
        num_hash_layers=hash_layers,
        hc_mult=streams,
    )
    model, folder = random_model(config, seed), tmp_path_factory.mktemp("any")
    exact = save_checkpoint(model, folder / "exact", layout=layout, weights="fp32")
    assert same_state(load_model(exact, device="cpu"), model)
    rounded = save_checkpoint(model, folder / "rounded", layout=layout)
    moved = convert(rounded, folder / "moved", layout="hf" if layout == "official" else "official", weights="bf16")
    assert same_state(load_model(rounded, device="cpu"), load_model(moved, device="cpu"))


def test_converting_carries_what_a_served_model_needs(official, tmp_path):
    folder = shutil.copytree(official, tmp_path / "from")
    names = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "benthic.json", "NOTICE")
    for name in names:
        (folder / name).write_text(f"contents of {name}", encoding="utf-8")
    there = convert(folder, tmp_path / "to")
    assert {name: (there / name).read_text(encoding="utf-8") for name in names} == {
        name: f"contents of {name}" for name in names
    }


def test_converting_onto_a_checkpoint_needs_overwrite(official, tmp_path):
    there = convert(official, tmp_path / "to", weights="fp32")
    before = (there / "model.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match="already holds a checkpoint; give a new folder, or overwrite"):
        convert(official, there)
    assert (there / "model.safetensors").read_bytes() == before
    convert(official, there, overwrite=True)
    assert (there / "model.safetensors").read_bytes() == (official / "model.safetensors").read_bytes()


def test_converting_onto_itself_is_refused(official):
    with pytest.raises(CheckpointError, match="source and target are both"):
        convert(official, official)


def test_names_of_mtp_stay_official_in_the_hf_layout():
    assert transformers_name("mtp.0.attn.wq_a.weight") == "mtp.0.attn.wq_a.weight"
