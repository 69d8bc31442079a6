"""A model to files."""

from collections.abc import Sequence
from pathlib import Path

from benthic.models.checkpoint.source import ModelSource
from benthic.models.checkpoint.table import Layout, Weights
from benthic.models.checkpoint.write import MAX_SHARD_BYTES, write_checkpoint
from benthic.models.transformer import Transformer


def save_checkpoint(
    model: Transformer,
    directory: str | Path,
    *,
    layout: Layout = "official",
    weights: Weights = "official",
    companions: Sequence[str | Path] = (),
    max_shard_bytes: int = MAX_SHARD_BYTES,
    progress: bool | None = None,
) -> Path:
    """Writes a model as a checkpoint folder, all or nothing; returns the folder.

    Args:
        model: its parameters and buffers are read, one piece at a time.
        directory: new, empty, or a checkpoint to replace (in one step; its other files stay).
        layout: "official" names, one tensor an expert; or "hf", transformers' names, experts stacked unless they are
            quantised. Both load in transformers, which has no MTP block: V4's keep their official names in both, those
            of V2 and V3 (official names are transformers' there) are the layers after the last.
        weights: "official" rounds matrices to FP8 in 128x128 blocks, routed experts to `config.expert_dtype`, and
            norms, embedding and head to BF16; "fp8" likewise with FP8 experts; "bf16"; "fp32" loses nothing.
        companions: files to copy beside the weights, a tokenizer's for instance.
        max_shard_bytes: weights beyond this size go into several files with an index.
        progress: show a bar; None shows it on a terminal.

    Raises:
        CheckpointError: the folder holds something else, or the sizes do not suit the number format.
    """
    target = Path(directory)
    write_checkpoint(
        ModelSource(model.state_dict()),
        model.config,
        target,
        layout=layout,
        weights=weights,
        companions=[Path(path) for path in companions],
        max_shard_bytes=max_shard_bytes,
        progress=progress,
    )
    return target
