"""Training: items in, packed batches through the same model, weights moved by Muon and AdamW."""

from benthic.train.config import StageConfig, TrainConfig
from benthic.train.held_out import HeldOutAccuracy
from benthic.train.item import Item
from benthic.train.packing import Layout, TrainBatch, pack, pack_all
from benthic.train.sources import GeneratedSource, ListSource, Source
from benthic.train.split import format_split, split_parameters
from benthic.train.trainer import Trainer

__all__ = [
    "GeneratedSource",
    "HeldOutAccuracy",
    "Item",
    "Layout",
    "ListSource",
    "Source",
    "StageConfig",
    "TrainBatch",
    "TrainConfig",
    "Trainer",
    "format_split",
    "pack",
    "pack_all",
    "split_parameters",
]
