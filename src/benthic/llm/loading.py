"""From what a constructor was given to a model with its tokenizer and engine."""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from benthic.engine.compiling import CompilationNotice
from benthic.engine.config import engine_config
from benthic.engine.cpu import prepare_products
from benthic.engine.engine import Engine
from benthic.errors import ConfigError
from benthic.models.checkpoint.load import load_model, resolve
from benthic.models.numerics import Policy
from benthic.models.transformer import Transformer
from benthic.text.tokenizer import Tokenizer


class Opened(NamedTuple):
    """A model that is ready to run. `notice` is to be entered wherever a kernel may be compiled."""

    model: Transformer
    tokenizer: Tokenizer | None
    engine: Engine
    notice: CompilationNotice


def open_model(
    model: str | Path | Transformer,
    *,
    device: torch.device | str | None,
    dtype: torch.dtype | str | None,
    numerics: Policy | None,
    tokenizer: Tokenizer | None,
    engine: dict[str, Any],
) -> Opened:
    """Loads what is not loaded and makes an engine over it; the arguments are those of `LLM`.

    Raises:
        CheckpointError: the checkpoint cannot be loaded.
        ConfigError: an unknown or contradictory setting.
    """
    config = engine_config(**engine)
    prepare_products(config.num_threads)
    notice = CompilationNotice()
    with notice:
        if isinstance(model, Transformer):
            if (device, dtype, numerics) != (None, None, None):
                raise ConfigError("device, dtype and numerics are those of the loaded model; leave them out beside it")
        else:
            tokenizer = tokenizer or Tokenizer(resolve(model))
            model = load_model(model, device=device, dtype=dtype, numerics=numerics)
        if tokenizer is not None:
            tokenizer.check_model(model.config.vocab_size, model.config.eos_token_id)
        return Opened(model, tokenizer, Engine(model.freeze(), config), notice)
