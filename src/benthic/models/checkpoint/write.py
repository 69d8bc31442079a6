"""From pieces to files: any layout, any number format, one piece in memory at a time, all or nothing.

A checkpoint is written into a new folder beside the target, flushed to the disk, and put in place by one rename. A
reader, or the next start after a crash, sees the old folder or the new one and never a mixture.
"""

import ctypes
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from benthic.errors import CheckpointError
from benthic.formats import recast_fp4_to_fp8, ue8m0_decode
from benthic.models.checkpoint.codec import Encoded, encode
from benthic.models.checkpoint.files import INDEX_NAME, SINGLE_NAME
from benthic.models.checkpoint.progress import progress_bar
from benthic.models.checkpoint.safetensors_file import TensorWriter
from benthic.models.checkpoint.source import PieceSource, Stored
from benthic.models.checkpoint.table import (
    Layout,
    Storage,
    TensorSpec,
    Weights,
    pieces,
    place,
    scale_dtype,
    storage,
    tensor_table,
)
from benthic.models.config import ModelConfig

MAX_SHARD_BYTES = 5_000_000_000
COMPANION_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "benthic.json", "NOTICE")
"""What a served model needs or must carry beside its weights and config.json."""
_RENAME_EXCHANGE = 2  # linux/fs.h: both names change places in one step
_AT_FDCWD = -100


def write_checkpoint(
    source: PieceSource,
    config: ModelConfig,
    directory: Path,
    *,
    layout: Layout,
    weights: Weights,
    companions: Sequence[Path] = (),
    max_shard_bytes: int = MAX_SHARD_BYTES,
    progress: bool | None = None,
) -> None:
    """Writes weights, config.json and copies of `companions` into `directory`, replacing what was there.

    Files of an existing checkpoint folder that are no weights (its tokenizer, say) stay. Raises CheckpointError when
    sizes do not suit the format, the folder holds something else, or the system refuses to write.
    """
    check_target(directory)
    if max_shard_bytes < 1:
        raise CheckpointError(f"max_shard_bytes is {max_shard_bytes}; it must be at least 1")
    if weights == "fp8":
        config = replace(config, expert_dtype="fp8", weight_dtype="fp8")
    specs = tensor_table(config, layout=layout, weights=weights)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{directory.name}.writing-", dir=directory.parent))
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be made ({error.strerror}); give a folder that can be") from None
    try:
        fresh.chmod(0o755)
        _keep_others(directory, fresh)
        for path in companions:
            shutil.copyfile(path, fresh / path.name)
        _write_json(fresh / "config.json", config.to_json(weights=weights))
        _write_weights(source, config, fresh, specs, layout, weights, max_shard_bytes, progress)
        _sync_all(fresh)
        _put_in_place(fresh, directory)
    except OSError as error:
        raise CheckpointError(
            f"{directory} could not be written ({error.strerror}: {error.filename}); what was there is unchanged"
        ) from error
    finally:
        # What is left under that name is an unfinished checkpoint, or the replaced one.
        shutil.rmtree(fresh, ignore_errors=True)


def companion_files(folder: Path) -> list[Path]:
    """The files of a checkpoint folder that go wherever its weights go."""
    return [folder / name for name in COMPANION_FILES if (folder / name).is_file()]


def check_target(directory: Path) -> None:
    """Raises CheckpointError unless the folder is absent, empty, or a checkpoint that may be replaced."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise CheckpointError(f"{directory} is a file; a checkpoint is a folder: give another name")
    if any(directory.iterdir()) and not (directory / "config.json").exists():
        raise CheckpointError(
            f"{directory} holds other files and no config.json; give a new folder, an empty one, or a checkpoint "
            "to replace"
        )


def _write_weights(
    source: PieceSource,
    config: ModelConfig,
    folder: Path,
    specs: Sequence[TensorSpec],
    layout: Layout,
    weights: Weights,
    max_shard_bytes: int,
    progress: bool | None,
) -> None:
    shards = _shards(specs, max_shard_bytes)
    total = sum(spec.bytes for spec in specs)
    if len(shards) > 1:
        weight_map = {spec.name: name for name, members in shards.items() for spec in members}
        _write_json(folder / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": weight_map})
    with ExitStack() as stack, progress_bar("writing", total, shown=progress) as advance:
        writer_of: dict[str, TensorWriter] = {}
        for name, members in shards.items():
            writer = stack.enter_context(TensorWriter(folder / name, members))
            writer_of.update((spec.name, writer) for spec in members)
        for piece in pieces(config):
            form = storage(piece, config, weights)
            where = place(piece, form, layout, config)
            data = _converted(source(piece), form, config)
            writer_of[where.weight].write(where.weight, data.weight, where.row)
            if data.scale is not None:
                writer_of[where.scale].write(where.scale, data.scale)
            advance(sum(t.numel() * t.element_size() for t in data if t is not None))


def _converted(stored: Stored, form: Storage, config: ModelConfig) -> Encoded:
    """A piece in another format: unchanged bytes where it has that format, FP4 to FP8 without loss, else rounded."""
    takes_any_scale = scale_dtype(config) == "F32"
    if stored.form == form and (stored.has_exponent_scales or (takes_any_scale and stored.data.scale is not None)):
        return _with_scales_of(stored.data, takes_any_scale)
    if stored.form == "fp4" and form == "fp8" and stored.has_exponent_scales:
        assert stored.data.scale is not None
        return _with_scales_of(Encoded(*recast_fp4_to_fp8(stored.data.weight, stored.data.scale)), takes_any_scale)
    return _with_scales_of(encode(stored.values(), form, config.scale_dtype), takes_any_scale)


def _with_scales_of(data: Encoded, as_numbers: bool) -> Encoded:
    """Exponent bytes as float32 numbers, the same values, where the family's files hold those."""
    if not as_numbers or data.scale is None or data.scale.dtype == torch.float32:
        return data
    return Encoded(data.weight, ue8m0_decode(data.scale))


def _shards(specs: Sequence[TensorSpec], max_bytes: int) -> dict[str, list[TensorSpec]]:
    """Fills files in order up to `max_bytes` each; a tensor is never split."""
    groups: list[list[TensorSpec]] = [[]]
    size = 0
    for spec in specs:
        if groups[-1] and size + spec.bytes > max_bytes:
            groups.append([])
            size = 0
        groups[-1].append(spec)
        size += spec.bytes
    if len(groups) == 1:
        return {SINGLE_NAME: groups[0]}
    return {f"model-{i:05d}-of-{len(groups):05d}.safetensors": group for i, group in enumerate(groups, 1)}


def _keep_others(old: Path, fresh: Path) -> None:
    """Links the files of an existing checkpoint folder that are not rewritten."""
    if not old.is_dir():
        return
    weights = shutil.ignore_patterns("*.safetensors", INDEX_NAME, "config.json")
    shutil.copytree(old, fresh, ignore=weights, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _sync_all(folder: Path) -> None:
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _put_in_place(fresh: Path, directory: Path) -> None:
    """Gives `fresh` the name of `directory`; the replaced folder, if any, takes the name of `fresh`."""
    if not directory.exists():
        fresh.rename(directory)
    elif not _exchange(fresh, directory):
        # File systems without exchange: for a moment the old folder has another name.
        aside = directory.with_name(f".{directory.name}.replaced-{os.getpid()}")
        directory.rename(aside)
        try:
            fresh.rename(directory)
        except OSError:
            aside.rename(directory)
            raise
        aside.rename(fresh)
    descriptor = os.open(directory.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(one: Path, other: Path) -> bool:
    """Swaps two folders in one step; False where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)
