"""Nothing is left behind: at the end of a session this worker's tests have left no trace on the machine."""

from collections.abc import Iterator

import pytest

from tests.sandbox.leftovers import left_after


@pytest.fixture(scope="session", autouse=True)
def _nothing_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every state root of this worker lies below its own folder; other workers have theirs."""
    folder = tmp_path_factory.getbasetemp()
    yield
    found = left_after(folder, limit_s=5.0)
    assert found == [], "\n".join(found)
