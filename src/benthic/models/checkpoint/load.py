"""From files to a model: streamed piece by piece, checked before the first byte of weights is read."""

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import resources
from pathlib import Path

import torch

from benthic.errors import CheckpointError, ConfigError
from benthic.models.checkpoint.build import empty_model
from benthic.models.checkpoint.files import CheckpointFiles
from benthic.models.checkpoint.placement import chosen_device, chosen_dtype
from benthic.models.checkpoint.progress import progress_bar
from benthic.models.checkpoint.source import FileSource, source_pieces
from benthic.models.checkpoint.store import PieceStore
from benthic.models.config import ModelConfig
from benthic.models.numerics import Policy, Weights
from benthic.models.released import KNOWN, released_name
from benthic.models.transformer import Transformer

BUNDLED = ("tiny",)
_BUNDLED = ", ".join(BUNDLED)


def load_model(
    path: str | Path,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str | None = None,
    numerics: Policy | None = None,
    weights: Weights = "wide",
    weight_dtype: torch.dtype | None = None,
    progress: bool | None = None,
) -> Transformer:
    """Loads a checkpoint folder (official or Hugging Face layout, sharded or not) or the bundled model "tiny".

    Quantised weights are decoded, and memory beside the model holds one matrix at a time; or kept as they are, with a
    layer's expert codes at a time. A model is returned whole or not at all. A checkpoint without MTP tensors gives a
    model without MTP blocks.

    Args:
        path: folder with config.json and *.safetensors, or the name of a bundled model.
        device: None takes CUDA where there is one, else CPU.
        dtype: of activations, float32 or bfloat16 (or its name); None takes float32 on CPU, bfloat16 on CUDA.
        numerics: "plain" (None) or "quantized".
        weights: "wide"; or "native", under numerics "quantized" on the device that serves: FP8 and FP4 stay as they
            are stored. Native models are not trained, and their products add in another order than wide ones.
        weight_dtype: of matrices; see `empty_model`.
        progress: show a bar; None shows it on a terminal.

    Raises:
        CheckpointError: files absent, cut short, contradictory, or not the tensors that config.json describes; every
            missing, unexpected and misshapen tensor is named at once.
        ConfigError: config.json is absent or describes no model that can be built, or an argument is wrong.
    """
    folder, place, dtype = resolve(path), chosen_device(device), chosen_dtype(dtype)
    config = ModelConfig.from_json(folder)
    with CheckpointFiles(folder) as files:
        source = FileSource(files, config)
        model = empty_model(
            source.config, device=place, dtype=dtype, numerics=numerics, weights=weights, weight_dtype=weight_dtype
        )
        store = PieceStore(model)
        total = sum(located.spec.bytes for located in files.tensors.values())
        with progress_bar(f"loading {folder.name}", total, shown=progress) as advance:
            for piece in source_pieces(source):
                stored = source(piece)
                store.put(piece, stored)
                advance(stored.num_bytes)
    return model


def resolve(path: str | Path) -> Path:
    """The folder of a bundled model's name or of a path.

    Generation settings of the folder (`generation_config.json`, `tokenizer_config.json`) are never read: they are
    only carried along for other software. What a checkpoint wants of its prompts stands in `benthic.json`.

    Raises:
        ConfigError: no name and no path was given.
        CheckpointError: there is no such folder.
    """
    if not isinstance(path, str | Path) or not str(path):
        raise ConfigError(f"model is {path!r}; it must be the folder of a checkpoint or a bundled model ({_BUNDLED})")
    if str(path) in BUNDLED and not Path(path).exists():
        folder = Path(str(resources.files("benthic"))) / "assets" / str(path)
        if not list(folder.glob("*.safetensors")):
            raise CheckpointError(f"the bundled model {path!r} has no weights in {folder}; reinstall benthic")
        return folder
    folder = Path(path)
    if not folder.is_dir():
        if released_name(str(path)) in KNOWN:
            raise CheckpointError(
                f"{str(path)!r} is known by its sizes only; give the folder that holds its files: nothing is downloaded"
            )
        raise CheckpointError(
            f"there is no folder {str(path)!r}; {nearest_name(str(path), BUNDLED)}give the folder of a checkpoint or a "
            f"bundled model ({_BUNDLED}): nothing is downloaded"
        )
    return folder


def nearest_name(name: str, known: Iterable[str]) -> str:
    """`did you mean 'tiny'? `, or nothing where no known name is near."""
    near = get_close_matches(released_name(name), list(known), n=1)
    return f"did you mean {near[0]!r}? " if near else ""
