"""Checkpoints: tensor tables, names, loading, saving, conversion and random weights."""

from benthic.models.checkpoint.build import empty_model
from benthic.models.checkpoint.convert import convert
from benthic.models.checkpoint.dummy import dummy_model, initialize
from benthic.models.checkpoint.inspect import Inspection, inspect
from benthic.models.checkpoint.load import load_model
from benthic.models.checkpoint.save import save_checkpoint
from benthic.models.checkpoint.table import TensorSpec, tensor_table

__all__ = [
    "Inspection",
    "TensorSpec",
    "convert",
    "dummy_model",
    "empty_model",
    "initialize",
    "inspect",
    "load_model",
    "save_checkpoint",
    "tensor_table",
]
