"""Cached entries of running requests: block ids, tables, buffers, and the attention context that reads them."""

from benthic.cache.block_manager import BlockTable
from benthic.cache.layout import BLOCK_SIZE, WINDOW, CacheLayout, plan_layout

__all__ = ["BLOCK_SIZE", "BlockTable", "CacheLayout", "WINDOW", "plan_layout"]
