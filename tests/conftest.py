"""Settings that every test shares: one thread, no network, a seed that follows from the test's name.

The environment is set before anything imports torch: the number of threads is read once.
"""

import os
import random
import sys
import zlib
from collections.abc import Iterator

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

settings.register_profile("benthic", deadline=None, derandomize=True, database=None)
settings.register_profile("nightly", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "benthic"))

NIGHTLY_S = 1800


def seed_of(node_id: str) -> int:
    """The seed of a test: the same on every machine and in any order of tests."""
    return zlib.crc32(node_id.encode())


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """Seeds random, numpy and torch from the test's name; ask for it to make own generators."""
    value = seed_of(request.node.nodeid)
    random.seed(value)
    np.random.seed(value)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(value)
    return value


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is too slow for every change also takes longer than the time that every test has."""
    for item in items:
        if item.get_closest_marker("nightly") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(NIGHTLY_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed:
        report.sections.append(("seed", str(seed_of(item.nodeid))))
    return report
