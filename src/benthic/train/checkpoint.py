"""Resumable checkpoints: everything that decides the next step, written so that a kill at any moment loses nothing.

    <run>/checkpoints/step-00000500/training.json           step, random state's place, the run's configuration
                                    training.safetensors    fp32 masters, buffers, optimiser state: all by name
                                    weights/                the same weights in official format, for use elsewhere

A checkpoint is written under another name, flushed to disk and renamed: a directory called step-... is complete.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from benthic.errors import CheckpointError

_NAME = re.compile(r"step-(\d{8})")
_RANDOM = "random.cpu"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A checkpoint read back: the step to do next, tensors by name, and what the run was started with."""

    step: int
    tensors: dict[str, Tensor]
    config: dict[str, Any]


def save_snapshot(
    run: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, Any],
    keep: int,
    write_weights: Callable[[Path], None] | None = None,
) -> Path:
    """Writes the checkpoint of `step` (the step to do next) and removes all but the `keep` newest.

    Args:
        tensors: state by name; copied to the host. The random state of torch is added.
        config: JSON-able description of the run, compared on resume.
        write_weights: writes usable weights into an empty directory, if wanted.
    """
    root = run / "checkpoints"
    root.mkdir(parents=True, exist_ok=True)
    final, draft = root / f"step-{step:08d}", root / f"writing-{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    held = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    held[_RANDOM] = torch.get_rng_state()
    save_file(held, draft / "training.safetensors")
    (draft / "training.json").write_text(json.dumps({"step": step, "config": config}, indent=1), encoding="utf-8")
    if write_weights is not None:
        (draft / "weights").mkdir()
        write_weights(draft / "weights")
    _flush_tree(draft)
    # A checkpoint of this step can only come from the same run, so it holds the same.
    shutil.rmtree(final, ignore_errors=True)
    os.rename(draft, final)
    _flush(root)
    for old in _complete(root)[:-keep]:
        shutil.rmtree(old)
    return final


def latest_snapshot(run: Path) -> Path | None:
    """The newest complete checkpoint of a run, or None. Leftovers of interrupted writes are not looked at."""
    complete = _complete(run / "checkpoints")
    return complete[-1] if complete else None


def load_snapshot(path: Path) -> Snapshot:
    """Reads a checkpoint and sets torch's random state. Raises CheckpointError for files that cannot be read."""
    try:
        head = json.loads((path / "training.json").read_text(encoding="utf-8"))
        tensors = load_file(path / "training.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        older = next((one for one in reversed(_complete(path.parent)) if one.name < path.name and _is_sound(one)), None)
        remedy = f"go back to {older.name}" if older else "start anew: there is no older one"
        raise CheckpointError(f"checkpoint {path} cannot be read ({error}); remove it to {remedy}") from error
    torch.set_rng_state(tensors.pop(_RANDOM))
    return Snapshot(head["step"], tensors, head["config"])


@torch.no_grad()
def restore(targets: Mapping[str, Tensor], snapshot: Snapshot) -> None:
    """Copies a snapshot into the live tensors of the same names.

    Raises CheckpointError listing every missing, unexpected and misshapen name, before anything is touched.
    """
    saved = snapshot.tensors
    faults = [f"missing {name}" for name in targets if name not in saved]
    faults += [f"unexpected {name}" for name in saved if name not in targets]
    faults += [
        f"{name} has shape {tuple(saved[name].shape)}, not {tuple(target.shape)}"
        for name, target in targets.items()
        if name in saved and saved[name].shape != target.shape
    ]
    if faults:
        raise CheckpointError("the checkpoint does not fit this run: " + "; ".join(faults))
    for name, target in targets.items():
        target.copy_(saved[name])


def _is_sound(path: Path) -> bool:
    """Whether a checkpoint's files are whole, by their headers and lengths."""
    try:
        json.loads((path / "training.json").read_text(encoding="utf-8"))
        with safe_open(path / "training.safetensors", "pt"):
            return True
    except (OSError, ValueError, SafetensorError):
        return False


def _complete(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if _NAME.fullmatch(path.name))


def _flush_tree(directory: Path) -> None:
    for path in directory.rglob("*"):
        _flush(path)
    _flush(directory)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
