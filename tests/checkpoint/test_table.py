"""The tensor tables of the released models, to the byte, and the names in every spelling."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benthic.errors import CheckpointError
from benthic.models.checkpoint import inspect, tensor_table
from benthic.models.checkpoint.listing import listing
from benthic.models.checkpoint.names import expert_slice, official_name, scale_name, transformers_name
from benthic.models.checkpoint.table import pieces
from benthic.models.released import FLASH, PRO
from tests.checkpoint.sizes import SMALL


@pytest.mark.parametrize(
    ("config", "tensors", "size"), [(FLASH, 69_187, 159_609_485_896), (PRO, 145_116, 864_704_792_696)]
)
def test_released_tables_have_the_published_counts_and_bytes(config, tensors, size):
    table = tensor_table(config)
    assert len(table) == len({spec.name for spec in table}) == tensors
    assert sum(spec.bytes for spec in table) == size


def test_inspect_knows_released_sizes_by_name():
    found = inspect("deepseek-ai/DeepSeek-V4-Flash")
    assert (found.num_tensors, found.num_bytes) == (69_187, 159_609_485_896)
    assert round(found.parameters / 1e9, 1) == 284.3
    assert round(found.active_parameters / 1e9, 2) == 13.27
    as_json = found.to_json(tensors=True)
    assert len(as_json["tensors"]) == 69_187
    assert as_json["config"]["hidden_size"] == 4096


def test_inspecting_nothing_lists_what_is_known():
    with pytest.raises(
        CheckpointError, match="no folder 'gpt' .*known: tiny, deepseek-r1, .*deepseek-v4-flash, deepseek-v4-pro"
    ):
        inspect("gpt")


def test_some_tensors_of_flash_are_those_of_the_published_table():
    table = {spec.name: (list(spec.shape), spec.dtype) for spec in tensor_table(FLASH)}
    assert table["layers.2.attn.indexer.compressor.ape"] == ([4, 256], "F32")
    assert table["layers.42.ffn.experts.255.w2.scale"] == ([4096, 64], "F8_E8M0")
    assert table["layers.42.ffn.experts.255.w2.weight"] == ([4096, 1024], "I8")
    assert table["layers.0.attn.wo_a.scale"] == ([64, 32], "F8_E8M0")
    assert table["layers.0.ffn.gate.tid2eid"] == ([129280, 6], "I64")
    assert table["mtp.0.hc_attn_fn"] == ([24, 16384], "F32")
    assert "layers.0.ffn.gate.bias" not in table
    assert "layers.1.attn.compressor.ape" not in table
    assert "mtp.0.head.weight" not in table


def _miles(name: str) -> str:
    """An official name as miles and sglang spell it, written down anew."""
    name = name.replace(".attn.", ".self_attn.")
    name = name.replace(".ffn.gate.tid2eid", ".mlp.topk.tid2eid").replace(".ffn.", ".mlp.")
    for short, long in (("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj")):
        name = re.sub(rf"experts(\.\d+)?\.{short}\.", rf"experts\1.{long}.", name)
    return "model." + name


SPELLINGS = {
    "official": lambda name: name,
    "with model. in front": lambda name: "model." + name,
    "transformers": transformers_name,
    "miles": _miles,
    "save_pretrained": lambda name: re.sub(
        r"^(embed\.)", "embed_tokens.", name.replace(".attn.kv_norm.", ".attn.norm.")
    ).replace("hc_head_", "hc_head.hc_"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_every_tensor_leads_to_its_official_name(spelling):
    spell = SPELLINGS[spelling]
    names = [spec.name for spec in tensor_table(SMALL)]
    spelled = [spell(name) for name in names]
    assert len(set(spelled)) == len(names)
    assert [official_name(name) for name in spelled] == names


def test_experts_are_stacked_in_the_hf_layout_unless_they_are_quantised():
    wide = [spec.name for spec in tensor_table(SMALL, layout="hf", weights="bf16") if ".mlp.experts." in spec.name]
    assert {official_name(name).split("ffn.")[1] for name in wide} == {"experts.w13", "experts.w2"}
    packed = [spec.name for spec in tensor_table(SMALL, layout="hf") if ".mlp.experts." in spec.name]
    assert len(packed) == 3 * SMALL.n_routed_experts * 3 * 2
    assert "model.layers.2.mlp.experts.3.w1.weight_scale_inv" in packed


def test_scales_of_stacked_experts_have_a_name_too():
    assert official_name("model.layers.0.mlp.experts.gate_up_proj_scale_inv") == "layers.0.ffn.experts.w13.scale"
    assert scale_name("layers.0.ffn.experts.w13") == "layers.0.ffn.experts.w13.scale"


def test_expert_slices_cover_each_stack_once():
    slices = Counter(part for piece in pieces(SMALL) if (part := expert_slice(piece.name)))
    assert set(slices.values()) == {1}
    assert len(slices) == 4 * SMALL.n_routed_experts * 3


def test_sizes_that_a_format_cannot_hold_are_named_with_a_way_out():
    from dataclasses import replace

    with pytest.raises(CheckpointError, match=r"w2\.weight has 40 input values; fp4 needs a multiple of 32.*bf16"):
        tensor_table(replace(SMALL, moe_intermediate_size=40))


def test_few_names_are_listed_and_many_become_ranges():
    assert listing(["layers.3.attn.ape", "norm.weight"]) == "layers.3.attn.ape, norm.weight"
    many = [f"layers.{layer}.ffn.experts.{e}.w1.weight" for layer in (0, 1, 3) for e in range(8)]
    assert listing(many) == "layers.[0-1,3].ffn.experts.[0-7].w1.weight"
    assert listing(many[:-1]).count("w1.weight") == 23, "an incomplete grid is listed name by name"


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1))
def test_a_listing_never_hides_or_invents_a_name(pairs):
    names = [f"layers.{a}.x.{b}.weight" for a, b in sorted(pairs)]
    found = set()
    for text in re.findall(r"[^,\s\[]+(?:\[[^\]]*\][^,\s\[]*)*", listing(names)):
        first, second = re.match(r"layers\.(.*?)\.x\.(.*)\.weight", text).groups()
        found |= {(a, b) for a in _numbers(first) for b in _numbers(second)}
    assert found == pairs


def _numbers(text: str) -> list[int]:
    runs = [part.split("-") for part in text.strip("[]").split(",")]
    return [n for run in runs for n in range(int(run[0]), int(run[-1]) + 1)]
