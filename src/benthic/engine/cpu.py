"""The process's products on CPU: who sets their thread count, and when.

The bits of small products depend on the number of threads, so it is settled before the model is built (which then
finds how many rows make a product exact) and held for the engine's life.
"""

import logging

import torch

logger = logging.getLogger(__name__)


def prepare_products(num_threads: int) -> None:
    """Sets torch's intra-op threads. Call before the model is loaded."""
    hold_threads(num_threads)


def hold_threads(num_threads: int) -> None:
    """Sets torch's intra-op threads where something else changed them, and says so."""
    found = torch.get_num_threads()
    if found != num_threads:
        torch.set_num_threads(num_threads)
        logger.info("torch now runs with %d intra-op thread(s) instead of %d", num_threads, found)
