"""One tensor, many names: tables from every known spelling to the house's, and from it to those of files.

V4's official name is the house's own (model.md 4.2); the module's parameters carry it too, except that routed
experts are stacked there. Four spellings of V4 are read: official, transformers in memory, what transformers 5.24
`save_pretrained` writes (a mixture of both), and that of miles and sglang; each with or without `model.` in front.
V2 and V3 have one spelling, that of transformers, in their released files too (family.md 6); their MTP block is the
layer behind the last one there.
"""

import re
from typing import NamedTuple

Rules = tuple[tuple[re.Pattern[str], str], ...]


def _rules(*pairs: tuple[str, str]) -> Rules:
    return tuple((re.compile(pattern), replacement) for pattern, replacement in pairs)


# Applied in order, each to the result of those before it.
_TO_OFFICIAL = _rules(
    (r"^model\.", ""),
    (r"^embed_tokens\.", "embed."),
    (r"^lm_head\.", "head."),
    (r"(^|\.)hc_head\.hc_", r"\1hc_head_"),
    (r"\.self_attn\.", ".attn."),
    (r"\.mlp\.", ".ffn."),
    (r"\.input_layernorm\.", ".attn_norm."),
    (r"\.post_attention_layernorm\.", ".ffn_norm."),
    (r"\.(attn|ffn)_hc\.(fn|base|scale)$", r".hc_\1_\2"),
    (r"\.attn\.sinks$", ".attn.attn_sink"),
    (r"\.compressor\.indexer\.scorer\.weights_proj\.", ".indexer.weights_proj."),
    (r"\.compressor\.indexer\.q_b_proj\.", ".indexer.wq_b."),
    (r"\.compressor\.indexer\.", ".indexer.compressor."),
    (r"\.compressor\.kv_norm\.", ".compressor.norm."),
    (r"\.compressor\.kv_proj\.", ".compressor.wkv."),
    (r"\.compressor\.gate_proj\.", ".compressor.wgate."),
    (r"\.compressor\.position_bias$", ".compressor.ape"),
    (r"\.attn\.norm\.", ".attn.kv_norm."),
    (r"\.attn\.q_a_proj\.", ".attn.wq_a."),
    (r"\.attn\.q_a_norm\.", ".attn.q_norm."),
    (r"\.attn\.q_b_proj\.", ".attn.wq_b."),
    (r"\.attn\.kv_proj\.", ".attn.wkv."),
    (r"\.attn\.o_a_proj\.", ".attn.wo_a."),
    (r"\.attn\.o_b_proj\.", ".attn.wo_b."),
    (r"\.attn\.q_proj\.", ".attn.wq."),
    (r"\.attn\.q_a_layernorm\.", ".attn.q_norm."),
    (r"\.attn\.kv_a_proj_with_mqa\.", ".attn.wkv_a."),
    (r"\.attn\.kv_a_layernorm\.", ".attn.kv_norm."),
    (r"\.attn\.kv_b_proj\.", ".attn.wkv_b."),
    (r"\.attn\.o_proj\.", ".attn.wo."),
    (r"\.ffn\.gate_proj\.", ".ffn.w1."),
    (r"\.ffn\.up_proj\.", ".ffn.w3."),
    (r"\.ffn\.down_proj\.", ".ffn.w2."),
    (r"\.ffn\.gate\.e_score_correction_bias$", ".ffn.gate.bias"),
    (r"\.ffn\.topk\.tid2eid$", ".ffn.gate.tid2eid"),
    (r"\.experts\.gate_up_proj", ".experts.w13"),
    (r"\.experts\.down_proj", ".experts.w2"),
    (r"experts(\.\d+)?\.gate_proj\.", r"experts\1.w1."),
    (r"experts(\.\d+)?\.up_proj\.", r"experts\1.w3."),
    (r"experts(\.\d+)?\.down_proj\.", r"experts\1.w2."),
    (r"\.weight_scale_inv$", ".scale"),
    (r"\.experts\.(w13|w2)_scale_inv$", r".experts.\1.scale"),
)

_TO_TRANSFORMERS = _rules(
    (r"\.experts\.w13\.scale$", ".experts.gate_up_proj_scale_inv"),
    (r"\.experts\.w2\.scale$", ".experts.down_proj_scale_inv"),
    (r"\.scale$", ".weight_scale_inv"),
    (r"^embed\.", "embed_tokens."),
    (r"^hc_head_", "hc_head.hc_"),
    (r"\.attn_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"\.hc_(attn|ffn)_(fn|base|scale)$", r".\1_hc.\2"),
    (r"\.attn\.", ".self_attn."),
    (r"\.ffn\.", ".mlp."),
    (r"\.attn_sink$", ".sinks"),
    (r"\.indexer\.weights_proj\.", ".compressor.indexer.scorer.weights_proj."),
    (r"\.indexer\.wq_b\.", ".compressor.indexer.q_b_proj."),
    (r"\.indexer\.compressor\.", ".compressor.indexer."),
    (r"(\.compressor\.|\.indexer\.)norm\.", r"\1kv_norm."),
    (r"\.wkv\.", ".kv_proj."),
    (r"\.wgate\.", ".gate_proj."),
    (r"\.ape$", ".position_bias"),
    (r"\.wq_a\.", ".q_a_proj."),
    (r"\.q_norm\.", ".q_a_norm."),
    (r"\.wq_b\.", ".q_b_proj."),
    (r"\.wo_a\.", ".o_a_proj."),
    (r"\.wo_b\.", ".o_b_proj."),
    (r"\.gate\.bias$", ".gate.e_score_correction_bias"),
    (r"\.shared_experts\.w1\.", ".shared_experts.gate_proj."),
    (r"\.shared_experts\.w3\.", ".shared_experts.up_proj."),
    (r"\.shared_experts\.w2\.", ".shared_experts.down_proj."),
    (r"\.experts\.w13$", ".experts.gate_up_proj"),
    (r"\.experts\.w2$", ".experts.down_proj"),
)

_LATENT_TO_FILE = _rules(
    (r"\.scale$", ".weight_scale_inv"),
    (r"^embed\.", "embed_tokens."),
    (r"\.attn_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"\.attn\.", ".self_attn."),
    (r"\.ffn\.", ".mlp."),
    (r"\.wq\.", ".q_proj."),
    (r"\.wq_a\.", ".q_a_proj."),
    (r"\.q_norm\.", ".q_a_layernorm."),
    (r"\.self_attn\.wq_b\.", ".self_attn.q_b_proj."),
    (r"\.wkv_a\.", ".kv_a_proj_with_mqa."),
    (r"\.kv_norm\.", ".kv_a_layernorm."),
    (r"\.wkv_b\.", ".kv_b_proj."),
    (r"\.wo\.", ".o_proj."),
    (r"\.gate\.bias$", ".gate.e_score_correction_bias"),
    (r"\.experts\.w13$", ".experts.gate_up_proj"),
    (r"\.experts\.w2$", ".experts.down_proj"),
    (r"\.w1\.", ".gate_proj."),
    (r"\.w3\.", ".up_proj."),
    (r"\.w2\.", ".down_proj."),
)

# Tied copies of the embedding and head inside MTP, and rotary tables: no parameters of the model.
_IGNORED = re.compile(r"^mtp\.\d+\.(emb.*|head\.weight|shared_head\.head\.weight)$|\.rotary_emb\.|\.inv_freq$")
_MTP = re.compile(r"^mtp\.(?P<depth>\d+)\.(?P<rest>.*)$")
_LAYER = re.compile(r"^layers\.(?P<layer>\d+)\.(?P<rest>.*)$")
_ROUTED_EXPERT = re.compile(r"^(?P<ffn>.*\.ffn)\.experts\.(?P<expert>\d+)\.(?P<matrix>w[123])\.weight$")


class ExpertSlice(NamedTuple):
    """The place of one expert's matrix in a stack: `stack` [E, rows, in], rows `half * F` on where w1 and w3 share."""

    stack: str
    expert: int
    half: int


def official_name(name: str) -> str:
    """The official spelling of a tensor's name in any known spelling; an unknown name comes back as it is."""
    return _apply(_TO_OFFICIAL, name)


def transformers_name(name: str) -> str:
    """The name that transformers' DeepseekV4ForCausalLM uses in memory for an official name or an expert stack.

    MTP tensors keep their official names: transformers has no MTP block and ignores `mtp.*`.
    """
    if name.startswith("mtp."):
        return name
    if name.startswith("head."):
        return "lm_" + name
    return "model." + _apply(_TO_TRANSFORMERS, name)


def latent_file_name(name: str, num_layers: int) -> str:
    """The name in files of V2 and V3, and in transformers, of the house's name of a tensor or an expert stack.

    MTP block d is layer `num_layers` + d of the files.
    """
    if name.startswith("head."):
        return "lm_" + name
    block = _MTP.match(name)
    if block is not None:
        rest = re.sub(r"^norm\.", "shared_head.norm.", block["rest"])
        name = f"layers.{num_layers + int(block['depth'])}.{rest}"
    return "model." + _apply(_LATENT_TO_FILE, name)


def latent_house_name(official: str, num_layers: int) -> str:
    """`official_name` of a tensor of V2's and V3's files, with the layers behind the last one as MTP blocks."""
    layer = _LAYER.match(official)
    if layer is None or int(layer["layer"]) < num_layers:
        return official
    rest = re.sub(r"^shared_head\.norm\.", "norm.", layer["rest"])
    return f"mtp.{int(layer['layer']) - num_layers}.{rest}"


def is_ignored(official: str) -> bool:
    """Whether a tensor of that official name may stand in a file without being part of the model."""
    return _IGNORED.search(official) is not None


def scale_name(official: str) -> str:
    """The name of the scales that belong to an official weight or to an expert stack."""
    return official.removesuffix(".weight") + ".scale"


def expert_slice(official: str) -> ExpertSlice | None:
    """Where a routed expert's matrix lies in the stacked parameters; None for every other tensor."""
    match = _ROUTED_EXPERT.match(official)
    if match is None:
        return None
    matrix = match["matrix"]
    stack = f"{match['ffn']}.experts.{'w2' if matrix == 'w2' else 'w13'}"
    return ExpertSlice(stack, int(match["expert"]), 1 if matrix == "w3" else 0)


def _apply(rules: Rules, name: str) -> str:
    for pattern, replacement in rules:
        name = pattern.sub(replacement, name)
    return name
