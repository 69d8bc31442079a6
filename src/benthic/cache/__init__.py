"""The cache: pages that prefixes share, windows, rings, who owns which, and the attention context that reads them.

Here are the parts that know no tensors; pools and context are imported by their modules.
"""

from benthic.cache.geometry import CacheCapacity, CacheGeometry
from benthic.cache.layout import LayerCache
from benthic.cache.manager import CacheManager
from benthic.cache.retention import Retention
from benthic.cache.row import Row
from benthic.cache.tables import PageTables
from benthic.cache.work import CacheStats, CacheWork, Match, PoolStats

__all__ = [
    "CacheCapacity",
    "CacheGeometry",
    "CacheManager",
    "CacheStats",
    "CacheWork",
    "LayerCache",
    "Match",
    "PageTables",
    "PoolStats",
    "Retention",
    "Row",
]
