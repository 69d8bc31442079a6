"""The MTP block equals one of transformers' layers fed as model.md 2.10 and family.md 6 say.

transformers itself has no MTP.
"""

import pytest
import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from benthic.models.checkpoint.names import official_name
from benthic.models.config import ModelConfig
from benthic.models.packed import PackedContext
from benthic.models.rows import build_rows
from benthic.models.transformer import Transformer
from tests.checkpoint.sizes import SMALL
from tests.parity.family import empty_family_model, our_name, random_family_sizes
from tests.parity.models import random_ids, random_ours

LENGTH = 200


def _rms(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gain


def _as_transformers(state: dict[str, torch.Tensor]) -> DeepseekV4ForCausalLM:
    """A one-layer model with the weights of mtp.0 and the shared embedding and head."""
    sizes = SMALL.to_json(weights="fp32") | {
        "num_hidden_layers": 1, "compress_ratios": [0], "num_hash_layers": 0, "num_nextn_predict_layers": 0,
    }  # fmt: skip
    model = DeepseekV4ForCausalLM._from_config(
        DeepseekV4Config(**sizes), attn_implementation="eager", experts_implementation="eager"
    )
    for name, tensor in model.float().eval().state_dict().items():
        official = official_name(name)
        mine = official.replace("layers.0.", "mtp.0.")
        if official.startswith(("norm.", "hc_head_")):
            mine = "mtp.0." + official
        tensor.copy_(state[mine])
    return model


def _drafted(model: Transformer, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The main model's streams over ids[:-1], and the logits of its prediction block beside them."""
    rows = build_rows([(0, 0, ids[:-1])], model.min_rows)
    context = PackedContext(model.config, rows)
    streams = model(rows, context)
    next_ids = torch.zeros(len(rows.token_ids), dtype=torch.int64)
    next_ids[:LENGTH] = torch.tensor(ids[1:])
    drafted = model.mtp_forward(0, streams, next_ids, context)
    return streams, model.logits(model.mtp_hidden(0, drafted))[:LENGTH]


@torch.no_grad()
@pytest.mark.parametrize("seed", [1, 2])
def test_mtp_logits_equal_a_layer_of_transformers_on_the_same_streams(seed):
    model = random_ours(SMALL, seed)
    ids = random_ids(SMALL.vocab_size, LENGTH + 1, seed)
    streams, found = _drafted(model, ids)
    state = model.state_dict()
    embedded = _rms(state["embed.weight"][ids[1:]], state["mtp.0.enorm.weight"])
    mixed = _rms(streams[:LENGTH], state["mtp.0.hnorm.weight"]) @ state["mtp.0.h_proj.weight"].T
    inputs = (embedded @ state["mtp.0.e_proj.weight"].T)[:, None, :] + mixed
    theirs = _as_transformers(state)
    theirs.model.layers[0].register_forward_pre_hook(lambda module, arguments: (inputs[None], *arguments[1:]))
    expected = theirs(torch.tensor([ids[1:]]), use_cache=False).logits[0]
    assert 3 < expected.abs().max() < 8
    assert (found - expected).abs().max() <= 5e-5


@torch.no_grad()
@pytest.mark.parametrize("family", ["deepseek_v3", "deepseek_v32"])
def test_mtp_logits_of_v3_equal_a_layer_of_transformers_on_token_and_stream_side_by_side(family):
    sizes = random_family_sizes(family, 1) | {"num_nextn_predict_layers": 1}
    model = random_ours(ModelConfig.from_json(sizes), 1)
    ids = random_ids(sizes["vocab_size"], LENGTH + 1, 1)
    streams, found = _drafted(model, ids)
    state = model.state_dict()
    embedded = _rms(state["embed.weight"][ids[1:]], state["mtp.0.enorm.weight"])
    both = torch.cat([embedded, _rms(streams[:LENGTH, 0], state["mtp.0.hnorm.weight"])], -1)
    inputs = both @ state["mtp.0.eh_proj.weight"].T
    theirs = empty_family_model(sizes | {"num_hidden_layers": 1, "first_k_dense_replace": 0})
    for name, tensor in theirs.state_dict().items():
        mine = our_name(name).replace("layers.0.", "mtp.0.")
        tensor.copy_(state["mtp.0.norm.weight" if mine == "norm.weight" else mine])
    theirs.model.layers[0].register_forward_pre_hook(lambda module, arguments: (inputs[None], *arguments[1:]))
    expected = theirs(torch.tensor([ids[1:]]), use_cache=False).logits[0]
    assert 2 < expected.abs().max() < 8
    assert (found - expected).abs().max() <= 5e-5
