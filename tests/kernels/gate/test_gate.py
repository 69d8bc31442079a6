"""Every compiled kernel in every production configuration is built for Hopper, without a GPU, within its budget."""

import re
from dataclasses import replace

import pytest

from benthic.kernels.cuda_library import CudaLibrary, has_cuda_compiler
from tests.kernels.gate.budget import (
    KERNELS,
    abandoned,
    kernels_of_the_package,
    launchers,
    sources,
    stored_budget,
    unbuilt,
    violations,
)
from tests.kernels.gate.compiling import Built, cuda_builds, triton_builds

pytest.importorskip("triton")


@pytest.mark.parametrize(("name", "launch"), [pytest.param(name, launch, id=name) for name, launch in launchers()])
def test_a_triton_kernel_keeps_its_budget(name: str, launch: object) -> None:
    assert callable(launch)
    builds, stored = triton_builds(name, launch), stored_budget()
    assert not [text for built in builds for text in violations(built, stored)]
    assert not unbuilt(name, builds, stored)


@pytest.mark.timeout(600)
@pytest.mark.skipif(not has_cuda_compiler(), reason="nvcc is not installed")
@pytest.mark.parametrize("library", [pytest.param(library, id=library.source.name) for library in sources()])
def test_a_cuda_source_keeps_its_budget(library: CudaLibrary) -> None:
    builds, stored = cuda_builds(library), stored_budget()
    assert not [text for built in builds for text in violations(built, stored)]
    assert not unbuilt(library.source.name, builds, stored)


def test_every_kernel_of_the_package_has_a_budget_and_every_budget_a_kernel() -> None:
    stored = stored_budget()
    built = {re.sub(r" \d+$", "", name.rpartition(": ")[2]) for name in stored}
    assert kernels_of_the_package() <= built, "kernels that no configuration of this folder launches"
    assert not abandoned(stored)


def test_a_kernel_that_spills_grows_or_leaves_the_tensor_cores_is_found() -> None:
    budget = {"k": {"spill_bytes": 0, "shared_bytes": 1000, "num_wgmma": 4}}
    good = Built("k", 128, 0, 1000, 4)
    assert not violations(good, budget)
    for bad in (
        replace(good, spill_bytes=8),
        replace(good, shared_bytes=1004),
        replace(good, num_wgmma=0),
        replace(good, num_wgmma=3),
        replace(good, name="another"),
    ):
        assert len(violations(bad, budget)) == 1
    assert unbuilt("case", [Built("case: a", 9, 0, 0, 0)], {"case: a": {}, "case: b": {}, "case 2: c": {}}) == [
        "case: b"
    ]
    assert abandoned({"no such case: k": {}, "attend.cu: k": {}}) == ["no such case: k"]


def test_launchers_compile_on_meta_tensors_what_they_launch_on_a_gpu() -> None:
    asking = [
        path for path in KERNELS.rglob("*.py") if "@triton.jit" in (text := path.read_text()) and "is_cuda" in text
    ]
    assert not asking, "`is_cuda` is False of the gate's tensors, which then compile another kernel; ask `is_cpu`"
