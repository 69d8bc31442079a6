"""The small random model of the engine's tests, at each place; every test runs on the CPU, and on a GPU if asked to."""

from collections.abc import Iterator
from functools import cache

import pytest

from benthic.models.transformer import Transformer
from tests.engine.conftest import build_model
from tests.exactness.places import CPU, GPU, Place, at, options

PLACES = [pytest.param(CPU, id="cpu"), *(pytest.param(gpu, id=str(gpu), marks=pytest.mark.gpu) for gpu in GPU)]


@pytest.fixture(autouse=True, params=PLACES)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Where the test's models live."""
    found: Place = request.param
    with at(found):
        yield found


@pytest.fixture
def cpu_only(place: Place) -> None:
    """Asked for by tests of what only the CPU has."""
    if place != CPU:
        pytest.skip("about the CPU's kernels")


@pytest.fixture
def small_model(place: Place) -> Transformer:
    """Do not change its weights."""
    return _kept_model(place)


@pytest.fixture
def own_model(place: Place) -> Transformer:
    """A copy whose weights a test may change."""
    return build_model(**options())


@cache
def _kept_model(place: Place) -> Transformer:
    return build_model(**options())
