"""Every parameter has its optimiser, knowingly."""

import pytest
import torch
from torch import nn

from benthic.errors import ConfigError
from benthic.models.checkpoint.table import pieces
from benthic.models.released import KNOWN
from benthic.train.split import format_split, split_parameters

# One of each kind: optimiser, matrices, decay.
EXPECTED = {
    "embed.weight": ("adamw", None, True),
    "head.weight": ("adamw", None, True),
    "norm.weight": ("adamw", None, False),
    "hc_head_fn": ("muon", (1, 2, 64), True),
    "hc_head_base": ("adamw", None, False),
    "layers.0.hc_attn_fn": ("muon", (1, 8, 64), True),
    "layers.0.hc_ffn_scale": ("adamw", None, False),
    "layers.0.attn_norm.weight": ("adamw", None, False),
    "layers.1.attn.attn_sink": ("adamw", None, False),
    "layers.1.attn.wq_b.weight": ("muon", (1, 64, 32), True),
    "layers.1.attn.wo_a.weight": ("muon", (2, 16, 32), True),
    "layers.1.attn.compressor.ape": ("adamw", None, False),
    "layers.1.attn.compressor.wkv.weight": ("muon", (1, 64, 32), True),
    "layers.1.attn.compressor.norm.weight": ("adamw", None, False),
    "layers.1.attn.indexer.weights_proj.weight": ("muon", (1, 4, 32), True),
    "layers.1.attn.indexer.compressor.ape": ("adamw", None, False),
    "layers.2.ffn.gate.weight": ("muon", (1, 4, 32), True),
    "layers.2.ffn.experts.w13": ("muon", (8, 32, 32), True),
    "layers.2.ffn.experts.w2": ("muon", (4, 32, 32), True),
    "layers.2.ffn.shared_experts.w3.weight": ("muon", (1, 32, 32), True),
    "mtp.0.e_proj.weight": ("muon", (1, 32, 32), True),
    "mtp.0.enorm.weight": ("adamw", None, False),
    "mtp.0.hc_head_base": ("adamw", None, False),
}


def test_the_table_places_every_parameter_once_and_no_buffer(model):
    placements = split_parameters(model.named_parameters(), model.config)
    names = [p.name for p in placements]
    assert names == [name for name, _ in model.named_parameters()]
    assert not {name for name, _ in model.named_buffers()} & set(names)
    got = {p.name: (p.optimiser, p.matrices, p.decay) for p in placements}
    assert {name: got[name] for name in EXPECTED} == EXPECTED
    for placement in placements:
        assert (placement.optimiser == "muon") == (placement.matrices is not None)
        if placement.matrices:
            count, n, m = placement.matrices
            assert count * n * m == torch.Size(placement.shape).numel()


def test_parameters_that_no_row_matches_are_all_named(model):
    extra = [("layers.0.attn.new.weight", nn.Parameter(torch.ones(2))), ("adapter", nn.Parameter(torch.ones(2)))]
    with pytest.raises(ConfigError, match=r"layers\.0\.attn\.new\.weight, adapter"):
        split_parameters([*model.named_parameters(), *extra], model.config)


def test_the_printed_table_counts_every_element(model):
    text = format_split(split_parameters(model.named_parameters(), model.config))
    total = sum(int(line.split()[-1].replace(",", "")) for line in text.splitlines()[1:])
    assert total == sum(p.numel() for p in model.parameters())
    assert "layers.*.ffn.experts.w13" in text


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "deepseek-v2", "deepseek-v3.2"])
def test_every_matrix_of_the_older_models_is_muons_and_every_gain_and_bias_adamws(name):
    config = KNOWN[name]
    parameters = {
        piece.name: nn.Parameter(torch.empty(piece.shape, device="meta"))
        for piece in pieces(config)
        if ".ffn.experts." not in piece.name and not piece.name.endswith("gate.bias")
    }
    placements = {p.name: p for p in split_parameters(parameters.items(), config)}
    for piece_name, parameter in parameters.items():
        is_matrix = parameter.dim() == 2 and piece_name not in ("embed.weight", "head.weight")
        assert (placements[piece_name].optimiser == "muon") == is_matrix, piece_name
        assert placements[piece_name].decay == (parameter.dim() == 2), piece_name
