"""Pooling of raw compressor rows into one entry a block."""

from benthic.kernels.compress_kv.blocks import CompletedBlocks, plan_completed
from benthic.kernels.compress_kv.op import compress_kv

__all__ = ["CompletedBlocks", "compress_kv", "plan_completed"]
