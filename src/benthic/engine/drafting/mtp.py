"""Drafts from the model's multi-token prediction block (model.md 2.10), run as a chain.

The block sees every row that the model computes (prompt, replay and verified rows alike) together with the token after
it, so its window is as warm as the model's. At a sequence's last accepted row it guesses the token after the newest;
further guesses come from the block's own streams and its own drafts. What it stores for drafts lies ahead of the
sequence, where the next pass overwrites it. At a prefix hit the row before the boundary saw another next token: one
stale row, which can only cost acceptance.
"""

from collections.abc import Sequence as Seq
from typing import Protocol

import torch
from torch import Tensor

from benthic.engine.drafting.protocol import ComputedPass, SequenceEnds
from benthic.errors import ConfigError
from benthic.models.config import ModelConfig
from benthic.models.context import AttentionContext


class DraftingModel(Protocol):
    """What the chain needs of a model."""

    @property
    def config(self) -> ModelConfig: ...
    @property
    def min_rows(self) -> int: ...
    def logits(self, hidden: Tensor) -> Tensor: ...
    def mtp_forward(self, depth: int, streams: Tensor, next_ids: Tensor, context: AttentionContext) -> Tensor: ...
    def mtp_hidden(self, depth: int, streams: Tensor) -> Tensor: ...


class MtpDrafter:
    """A `Drafter` over the first MTP block.

    Raises:
        ConfigError: the model has none, or one whose entries wait for more tokens than one.
    """

    sees_passes = True

    def __init__(self, model: DraftingModel) -> None:
        layers = model.config.mtp_layers
        if not layers:
            raise ConfigError(
                'drafter is "mtp" and the model has 0 MTP blocks; take "ngram" or "none", or a checkpoint with one'
            )
        if layers[0].ratio > 1:
            raise ConfigError(
                f"the MTP block has compression ratio {layers[0].ratio}; drafting needs 0 (a window layer) or 1 (a "
                "latent one)"
            )
        self.model = model
        """Whose block guesses."""

    def observe(self, computed: ComputedPass, depths: Seq[int]) -> list[list[int]]:
        """Runs the block over the pass's rows, then the chain for those who want drafts."""
        streams = self.model.mtp_forward(0, computed.streams, computed.next_ids, computed.context)
        drafts: list[list[int]] = [[] for _ in depths]
        ends = computed.ends
        if ends is None:
            return drafts
        which = [place for place, depth in enumerate(depths) if depth > 0]
        streams = streams.index_select(0, ends.last_rows)[which]
        while which:
            # The streams stand at the row before the newest guess and know the newest token: they guess the next one.
            for place, token in zip(which, self._guess(ends, streams, which, drafts), strict=True):
                drafts[place].append(token)
            left = [i for i, place in enumerate(which) if len(drafts[place]) < depths[place]]
            which = [which[i] for i in left]
            if which:
                streams = self._step(ends, streams[left], which, drafts)
        return drafts

    def propose(self, request_id: str, tokens: Seq[int], depth: int, observed: Seq[int]) -> tuple[int, ...]:
        """What the chain guessed."""
        return tuple(observed[:depth])

    def forget(self, request_id: str) -> None:
        """Holds nothing: what the block knows of a request lies in the cache."""

    def _guess(self, ends: SequenceEnds, streams: Tensor, which: Seq[int], drafts: Seq[Seq[int]]) -> list[int]:
        hidden = self.model.mtp_hidden(0, _padded(streams, self.model.min_rows))
        return ends.draw(self.model.logits(hidden)[: len(which)], which, [drafts[place] for place in which])

    def _step(self, ends: SequenceEnds, streams: Tensor, which: Seq[int], drafts: Seq[Seq[int]]) -> Tensor:
        """The block's streams one position further on, [S', n, D]: the row of the last token but one, the newest
        draft being its next token."""
        positions = [ends.last_positions[place] + len(drafts[place]) for place in which]
        own = [drafts[place][-2] if len(drafts[place]) > 1 else ends.newest_ids[place] for place in which]
        rows, context = ends.single_rows(which, positions, own)
        next_ids = torch.zeros(len(rows.token_ids), dtype=torch.int64)
        next_ids[: len(which)] = torch.tensor([drafts[place][-1] for place in which])
        streams = _padded(streams, len(rows.token_ids))
        return self.model.mtp_forward(0, streams, next_ids.to(streams.device), context)[: len(which)]


def _padded(streams: Tensor, num_rows: int) -> Tensor:
    """Repeats the first row up to `num_rows`, so that products are exact on CPU."""
    missing = num_rows - len(streams)
    return streams if missing <= 0 else torch.cat([streams, streams[:1].expand(missing, *streams.shape[1:])])
