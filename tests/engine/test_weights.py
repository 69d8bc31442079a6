"""Weights for an engine in another process travel by a file, whole and checked."""

from pathlib import Path

import pytest
import torch

from benthic.engine.weights import stage_weights, weights_checksum, write_weights
from benthic.errors import CheckpointError
from benthic.models.transformer import Transformer


def test_a_written_state_dict_is_read_back_bit_for_bit(own_model: Transformer, tmp_path: Path) -> None:
    state = {name: tensor.clone() for name, tensor in own_model.state_dict().items()}
    state["norm.weight"] += 0.5
    path = tmp_path / "weights.safetensors"
    checksum = write_weights(state, path)
    assert checksum == weights_checksum(state)
    staged = stage_weights(own_model, path, checksum)
    assert staged.checksum == checksum
    assert all(torch.equal(staged.tensors[name], tensor) for name, tensor in state.items())


def test_a_file_of_other_bytes_or_another_state_dict_is_refused(own_model: Transformer, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    checksum = write_weights({"norm.weight": torch.ones(64)}, path)
    with pytest.raises(CheckpointError, match="missing"):
        stage_weights(own_model, path, checksum)
    path.write_bytes(b"no such format")
    with pytest.raises(CheckpointError, match="no file of weights"):
        stage_weights(own_model, path)
    with pytest.raises(CheckpointError):
        stage_weights(own_model, tmp_path / "absent.safetensors")
