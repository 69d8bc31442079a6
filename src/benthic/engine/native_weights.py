"""New weights for a model that holds them in the released formats: a second such model, to take the first's place."""

from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from benthic.models.checkpoint import empty_model
from benthic.models.checkpoint.source import ModelSource
from benthic.models.checkpoint.store import PieceStore
from benthic.models.checkpoint.table import pieces
from benthic.models.config import ModelConfig
from benthic.models.transformer import Transformer


@torch.no_grad()
def packed(model: Transformer, state: Mapping[str, Tensor]) -> Transformer:
    """A model like `model` of the weights of a wide one's state dict, rounded to their formats."""
    config = model.config
    fresh = empty_model(
        config, device=model.device, numerics=model.numerics.policy, weights="native", min_rows=model.min_rows
    )
    store, source = PieceStore(fresh), ModelSource(state)
    for piece in pieces(config):
        store.put(piece, source(piece))
    return fresh.freeze()


@cache
def wide_state(config: ModelConfig) -> dict[str, Tensor]:
    """The state dict of a wide model without its numbers: what a sender's has to look like."""
    with torch.device("meta"):
        return Transformer(config).state_dict()
