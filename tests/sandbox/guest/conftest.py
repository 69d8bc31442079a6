"""Each test has an init of its own."""

from collections.abc import Iterator

import pytest

from benthic.sandbox.errors import StartFailed
from benthic.sandbox.guest import build_init
from tests.sandbox.guest.plain_init import PlainInit


@pytest.fixture
def init() -> Iterator[PlainInit]:
    try:
        build_init()
    except StartFailed as error:
        pytest.skip(str(error))
    started = PlainInit()
    yield started
    started.close()
