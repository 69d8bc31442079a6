"""A checkpoint to another layout or number format, streamed: the library behind `benthic convert`."""

from pathlib import Path

from benthic.errors import CheckpointError
from benthic.models.checkpoint.files import CheckpointFiles
from benthic.models.checkpoint.load import resolve
from benthic.models.checkpoint.source import FileSource
from benthic.models.checkpoint.table import Layout, Weights
from benthic.models.checkpoint.write import MAX_SHARD_BYTES, check_target, companion_files, write_checkpoint
from benthic.models.config import ModelConfig


def convert(
    source: str | Path,
    target: str | Path,
    *,
    layout: Layout = "official",
    weights: Weights = "official",
    max_shard_bytes: int = MAX_SHARD_BYTES,
    overwrite: bool = False,
    progress: bool | None = None,
) -> Path:
    """Rewrites a checkpoint; returns the new folder. One matrix is in memory at a time.

    Matrices that already have the wanted format keep their bytes; FP4 becomes FP8 without loss (an error where that is
    impossible); other changes round once. Tokenizer, prompt settings and notices are copied.

    Args:
        source: a checkpoint folder or the name of a bundled model.
        target: a new or empty folder, or with `overwrite` another checkpoint to replace.
        layout: "official" or "hf"; see `save_checkpoint`.
        weights: "official", "fp8" (experts too), "bf16" or "fp32".
        max_shard_bytes: size from which on the weights are split.
        overwrite: replace a checkpoint that lies in `target`, in one step.
        progress: show a bar; None shows it on a terminal.

    Raises:
        CheckpointError: as `load_model` and `save_checkpoint`, before anything is written where possible.
    """
    folder, destination = resolve(source), Path(target)
    if destination.exists() and destination.resolve() == folder.resolve():
        raise CheckpointError(f"source and target are both {folder}; give another folder as target")
    check_target(destination)
    if not overwrite and destination.is_dir() and any(destination.iterdir()):
        raise CheckpointError(
            f"{destination} already holds a checkpoint; give a new folder, or overwrite (--overwrite) to replace it"
        )
    with CheckpointFiles(folder) as files:
        pieces = FileSource(files, ModelConfig.from_json(folder))
        write_checkpoint(
            pieces,
            pieces.config,
            destination,
            layout=layout,
            weights=weights,
            companions=companion_files(folder),
            max_shard_bytes=max_shard_bytes,
            progress=progress,
        )
    return destination
