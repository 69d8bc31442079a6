"""The sandboxes that the attacks run in: one a kind, kept for all of them, since none may harm the next."""

from collections.abc import Iterator

import pytest

from benthic.sandbox.images import Store
from tests.sandbox.security.kinds import DRIVERS, Inside, compile_hostile, require

NIGHTLY = ("runc", "gvisor", "docker", "microvm", "vm")
"""Slow to start, or the same walls as another kind's."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "inside" in metafunc.fixturenames:
        kinds = getattr(metafunc.module, "KINDS", tuple(DRIVERS))
        marks = {kind: [pytest.mark.nightly] if kind in NIGHTLY else [] for kind in kinds}
        parameters = [pytest.param(kind, marks=marks[kind], id=kind) for kind in kinds]
        metafunc.parametrize("inside", parameters, indirect=True, scope="session")


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compile_hostile(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="session")
def inside(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, hostile: bytes
) -> Iterator[Inside]:
    require(request.param)
    root = tmp_path_factory.mktemp("security")
    store = Store(root / "store")
    inside = Inside(request.param, root, store, hostile)
    neighbour = Inside(request.param, root, store, hostile)
    inside.neighbour = neighbour
    yield inside
    for sandbox in (inside, neighbour):
        sandbox.close()
    inside.sweep()


@pytest.fixture(autouse=True)
def _next_command_and_neighbour(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever an attack did: the sandbox takes the next command, and its neighbour has noticed nothing."""
    yield
    if "inside" in request.fixturenames:
        inside: Inside = request.getfixturevalue("inside")
        for user in (None, "root"):  # who may not touch what belongs to the other
            inside.run("cd /work && rm -rf * .[!.]*; cd /tmp && rm -rf * .[!.]*; true", user=user)
        inside.restore()
        assert inside.is_alive()
        assert inside.neighbour.is_alive()
