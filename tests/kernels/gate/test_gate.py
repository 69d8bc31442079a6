"""Every compiled kernel in every production configuration is built for Hopper, without a GPU, within its budget."""

from dataclasses import replace

import pytest

from benthic.kernels.cuda_library import CudaLibrary, has_cuda_compiler
from tests.kernels.gate.budget import launchers, sources, stored_budget, violations
from tests.kernels.gate.compiling import Built, cuda_builds, triton_builds

pytest.importorskip("triton")


@pytest.mark.parametrize(("name", "launch"), [pytest.param(name, launch, id=name) for name, launch in launchers()])
def test_a_triton_kernel_keeps_its_budget(name: str, launch: object) -> None:
    assert callable(launch)
    builds = triton_builds(name, launch)
    assert not [text for built in builds for text in violations(built, stored_budget())]


@pytest.mark.timeout(600)
@pytest.mark.skipif(not has_cuda_compiler(), reason="nvcc is not installed")
@pytest.mark.parametrize("library", [pytest.param(library, id=library.source.name) for library in sources()])
def test_a_cuda_source_keeps_its_budget(library: CudaLibrary) -> None:
    assert not [text for built in cuda_builds(library) for text in violations(built, stored_budget())]


def test_a_kernel_that_spills_grows_or_leaves_the_tensor_cores_is_found() -> None:
    budget = {"k": {"spill_bytes": 0, "shared_bytes": 1000, "num_wgmma": 4}}
    good = Built("k", 128, 0, 1000, 4)
    assert not violations(good, budget)
    for bad in (
        replace(good, spill_bytes=8),
        replace(good, shared_bytes=1004),
        replace(good, num_wgmma=0),
        replace(good, name="another"),
    ):
        assert len(violations(bad, budget)) == 1
