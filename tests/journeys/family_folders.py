"""Checkpoint folders of small random models of the families before V4, as their publishers lay them out."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import torch
import transformers
from transformers import PreTrainedModel

import benthic
from benthic.models.checkpoint import save_checkpoint
from benthic.models.config import ModelConfig
from tests.exactness.families import CONFIGS, fresh_model

TINY = Path(benthic.__file__).parent / "assets" / "tiny"
_PEERS = {
    "deepseek_v2": (transformers.DeepseekV2Config, transformers.DeepseekV2ForCausalLM),
    "deepseek_v3": (transformers.DeepseekV3Config, transformers.DeepseekV3ForCausalLM),
    "deepseek_v32": (transformers.DeepseekV32Config, transformers.DeepseekV32ForCausalLM),
}
VOCAB = ModelConfig.from_json(TINY).vocab_size

_ROLES = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}"
    "{% elif m['role'] == 'assistant' %}{{ '<｜Assistant｜>' + m['content'] + eos_token }}"
    "{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"
)
_WORDS = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}{{ 'User: ' + m['content'] + '\n\n' }}"
    "{% elif m['role'] == 'assistant' %}{{ 'Assistant: ' + m['content'] + eos_token }}"
    "{% else %}{{ m['content'] + '\n\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
TEMPLATES = {"V2": _WORDS, "V2-Lite": _WORDS, "V3": _ROLES, "V3.2": None}
"""As the published ones; V3.2's folder has none."""


def family_config(name: str) -> ModelConfig:
    """A family's small model with the bundled tokenizer's vocabulary."""
    return replace(CONFIGS[name], vocab_size=VOCAB, bos_token_id=0, eos_token_id=1)


def add_tokenizer(folder: Path, name: str) -> None:
    """The bundled tokenizer and the family's chat template."""
    shutil.copy(TINY / "tokenizer.json", folder)
    template = {} if TEMPLATES[name] is None else {"chat_template": TEMPLATES[name]}
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<｜begin▁of▁sentence｜>", **template}))


def write_folder(folder: Path, name: str) -> Path:
    """A checkpoint that our own writer saved without loss."""
    save_checkpoint(fresh_model(name, config=family_config(name)), folder, weights="fp32")
    add_tokenizer(folder, name)
    return folder


@torch.no_grad()
def peer_of(config: ModelConfig, seed: int) -> PreTrainedModel:
    """transformers' random model of our configuration, in float32 and sharp.

    An indexer gets 16 heads: with fewer, scores tie at zero, and which of equals are picked differs (model.md 2.6).
    """
    config_class, model_class = _PEERS[config.model_type]
    sizes = config.to_json(weights="fp32") | ({"index_n_heads": 16} if config.index_n_heads else {})
    del sizes["torch_dtype"]
    torch.manual_seed(seed)
    model = model_class(config_class(**sizes)).float().eval()
    for weight in model.parameters():
        if weight.ndim >= 2:
            weight.normal_(std=weight.shape[-1] ** -0.5)
    return model
