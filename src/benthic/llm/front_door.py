"""What both front doors share: from a constructor's arguments to a model with its tokenizer and engine."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch

from benthic.engine.compiling import CompilationNotice
from benthic.engine.config import engine_config
from benthic.engine.cpu import prepare_products
from benthic.engine.engine import Engine
from benthic.errors import ConfigError
from benthic.llm.grammars import Formats
from benthic.llm.prompts import PromptReader
from benthic.models.checkpoint.load import load_model, resolve
from benthic.models.numerics import Policy
from benthic.models.transformer import Transformer
from benthic.text.tokenizer import Tokenizer


class FrontDoor(ABC):
    """A model, its tokenizer and an engine; a subclass says how the engine is run. Arguments: see `benthic.LLM`.

    Raises:
        CheckpointError: the checkpoint cannot be loaded.
        ConfigError: an unknown or contradictory setting.
    """

    def __init__(
        self,
        model: str | Path | Transformer,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
        numerics: Policy | None = None,
        tokenizer: Tokenizer | None = None,
        **engine: Any,
    ) -> None:
        config = engine_config(**engine)
        prepare_products(config.num_threads)
        self._notice = CompilationNotice()
        """To be entered wherever a kernel may be compiled."""
        with self._notice:
            if isinstance(model, Transformer):
                if (device, dtype, numerics) != (None, None, None):
                    raise ConfigError(
                        "device, dtype and numerics are those of the loaded model; leave them out beside it"
                    )
            else:
                tokenizer = tokenizer or _tokenizer_of(resolve(model))
                model = load_model(model, device=device, dtype=dtype, numerics=numerics, weights=config.weights)
            if tokenizer is not None:
                tokenizer.check_model(model.config.vocab_size, model.config.eos_token_id)
            self._model = model
            self._reader = PromptReader(tokenizer, model.config.eos_token_id)
            self._formats = Formats(tokenizer)
            masks = self._formats.masks(model.config.vocab_size)
            self._take_engine(Engine(model.freeze(), config, masks=masks))

    @abstractmethod
    def _take_engine(self, engine: Engine) -> None:
        """The rest of the constructor: keeps the engine and what runs it."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            RequestError: there is none.
        """
        return self._reader.tokenizer


def _tokenizer_of(folder: Path) -> Tokenizer | None:
    """The checkpoint's; None where it has none: such a model is asked by token ids."""
    return Tokenizer(folder) if (folder / "tokenizer.json").exists() else None
