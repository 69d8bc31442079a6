"""New weights for a model that serves: all of them, checked, or none.

The new tensors are staged beside the old ones, checked against the model and against the sender's checksum, and only
then take their places; whatever fails before leaves the model as it was. Staging needs room for a second set of
weights on the device for as long as the update lasts.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from benthic.engine.held_file import is_file, is_special
from benthic.engine.native_weights import packed, wide_state
from benthic.errors import CheckpointError, ConfigError, WeightsLostError
from benthic.models.checkpoint.load import load_model
from benthic.models.transformer import Transformer

WeightSource = Mapping[str, Tensor] | str | Path
"""A state dict with the names of `Transformer.state_dict()`, a file of `write_weights`, or a checkpoint folder."""


class StagedWeights(NamedTuple):
    """Weights ready to be installed: on the model's device, in its dtypes; or `native`, a model that holds them."""

    tensors: dict[str, Tensor]
    checksum: str
    """Of the tensors as they were handed over."""
    native: Transformer | None = None


def weights_checksum(state: Mapping[str, Tensor]) -> str:
    """Hex digest of names, dtypes, shapes and bytes; the same on both sides of a transfer, whatever the layout."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(state):
        tensor = state[name].detach()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_weights(state: Mapping[str, Tensor], path: str | Path) -> str:
    """Writes a state dict for an engine in another process; in /dev/shm it costs memory and no disk.

    Returns:
        Its checksum, for `update_weights` to compare.
    """
    # Another file takes the name at once: an engine that holds the old one open keeps reading the old one.
    unfinished = Path(f"{path}.{os.getpid()}.unfinished")
    try:
        save_file({name: tensor.detach().contiguous() for name, tensor in state.items()}, unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return weights_checksum(state)


@torch.no_grad()
def stage_weights(model: Transformer, source: WeightSource, checksum: str | None = None) -> StagedWeights:
    """Reads and checks new weights; touches nothing of the model.

    Args:
        checksum: `weights_checksum` of the state dict as the sender had it (for a folder: of the loaded model's).

    Raises:
        CheckpointError: names, shapes or dtypes are not the model's, a number is not finite, the folder holds another
            model, or the checksum differs.
    """
    if model.numerics.is_native and not isinstance(source, Mapping) and not is_file(str(source)):
        loaded = _loaded_model(model, source)
        found = _checked(weights_checksum(loaded.state_dict()), checksum)
        return StagedWeights({}, found, loaded.freeze())
    state = source if isinstance(source, Mapping) else _loaded(model, source)
    own = wide_state(model.config) if model.numerics.is_native else model.state_dict()
    _check_names(own, state)
    found = _checked(weights_checksum(state), checksum)
    if model.numerics.is_native:
        _check_finite(state)
        return StagedWeights({}, found, packed(model, state))
    staged = {name: state[name].detach().to(device=t.device, dtype=t.dtype, copy=True) for name, t in own.items()}
    _check_finite(staged)
    return StagedWeights(staged, found)


@torch.no_grad()
def install_weights(model: Transformer, staged: StagedWeights) -> None:
    """Puts staged weights in place and lays them out for serving. If that fails, the old ones are back.

    Raises:
        WeightsLostError: they are not: to lay them out failed as well.
    """
    if staged.native is not None:
        model.adopt(staged.native)
        return
    places = model.state_dict(keep_vars=True)
    before = {name: tensor.data for name, tensor in places.items()}
    try:
        _swap(places, staged.tensors)
        model.freeze()
        for name, tensor in model.state_dict().items():
            if not torch.equal(tensor, staged.tensors[name]):
                raise CheckpointError(f"{name} does not hold what was written into it; the old weights are kept")
    except BaseException as error:
        _swap(places, before)
        _lay_out_again(model, error)
        raise


def _checked(found: str, wanted: str | None) -> str:
    if wanted is not None and found != wanted:
        raise CheckpointError(f"the weights that arrived have checksum {found}; the sender's is {wanted}: send again")
    return found


def _check_finite(state: Mapping[str, Tensor]) -> None:
    wrong = [name for name, t in state.items() if t.is_floating_point() and not bool(torch.isfinite(t).all())]
    if wrong:
        raise CheckpointError(f"{', '.join(wrong[:5])} hold numbers that are not finite; every weight must be finite")


def _lay_out_again(model: Transformer, cause: BaseException) -> None:
    try:
        model.freeze()
    except Exception as error:  # noqa: BLE001 - whatever it is, the model is in neither state
        raise WeightsLostError(
            f"the new weights could not be laid out ({type(cause).__name__}: {cause}) and the old ones not again "
            f"({type(error).__name__}: {error}); make room and update the weights"
        ) from cause


def _swap(places: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, place in places.items():
        place.data = values[name]


def _loaded(model: Transformer, folder: str | Path) -> dict[str, Tensor]:
    if is_file(str(folder)):
        try:
            return load_file(folder)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{folder} is no file of weights ({error}); write_weights makes one") from None
    if is_special(str(folder)):
        raise CheckpointError(
            f"{folder} is neither a folder nor a regular file; give a checkpoint folder or such a file"
        )
    return _loaded_model(model, folder).state_dict()


def _loaded_model(model: Transformer, folder: str | Path) -> Transformer:
    """A model like `model`, of a checkpoint folder."""
    matrix = model.head.weight
    try:
        loaded = load_model(
            folder,
            device=model.device,
            dtype=model.dtype,
            numerics=model.numerics.policy,
            weights=model.numerics.weights,
            weight_dtype=matrix.dtype,
            progress=False,
        )
    except (ConfigError, OSError, ValueError) as error:
        name = str(folder)[:200]
        raise CheckpointError(
            f"no checkpoint could be read from {name!r} ({_short(error)}); give its folder"
        ) from error
    if loaded.config != model.config:
        raise CheckpointError(f"{folder} holds a model of other sizes than the one that serves; give one of the same")
    return loaded


def _short(error: Exception) -> str:
    text = f"{error}"
    return text if len(text) <= 500 else f"{text[:500]}..."


def _check_names(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    missing, unexpected = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
    misshapen = [
        f"{name} is {tuple(state[name].shape)} and must be {tuple(tensor.shape)}"
        for name, tensor in own.items()
        if name in state and state[name].shape != tensor.shape
    ]
    kinds = [name for name, t in own.items() if name in state and _is_float(state[name]) != t.is_floating_point()]
    problems = [
        f"{what} {len(names)}: {', '.join(names[:5])}"
        for what, names in (
            ("missing", missing), ("unexpected", unexpected), ("misshapen", misshapen), ("of the wrong kind", kinds)
        )
        if names
    ]  # fmt: skip
    if problems:
        raise CheckpointError("the weights are not those of the model that serves. " + "; ".join(problems))


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point()
