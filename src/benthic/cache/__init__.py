"""Cached entries of running requests: block ids, tables, buffers, and the attention context that reads them."""

from benthic.cache.layout import BLOCK_SIZE, WINDOW, CacheLayout, plan_layout
from benthic.cache.manager import BlockTable, CacheManager

__all__ = ["BLOCK_SIZE", "BlockTable", "CacheLayout", "CacheManager", "WINDOW", "plan_layout"]
