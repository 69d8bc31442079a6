"""CUDA sources become libraries: built once, anew when anything that went in has changed, refused in words."""

import ctypes
from pathlib import Path

import pytest

from benthic.errors import KernelInputError, KernelUnavailable
from benthic.kernels import cuda_library
from benthic.kernels.choice import uses_cuda_kernel
from benthic.kernels.cuda_library import CudaLibrary, build_all, has_cuda_compiler, missing_libraries

needs_nvcc = pytest.mark.skipif(not has_cuda_compiler(), reason="nvcc is not installed")
SOURCE = """
__global__ void scale(float* x, float factor) { x[threadIdx.x] *= factor; }
extern "C" int run(void* x, float factor, void* stream) {
    scale<<<1, 32, 0, (cudaStream_t)stream>>>((float*)x, factor);
    return cudaGetLastError();
}
extern "C" int answer(int value) { return value; }
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BENTHIC_KERNEL_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "scale.cu"
    path.write_text(SOURCE)
    return path


@needs_nvcc
def test_a_source_is_compiled_once_and_again_when_it_or_its_macros_change(source: Path) -> None:
    first = CudaLibrary(source).build()
    made_ns = first.stat().st_mtime_ns
    assert CudaLibrary(source).build() == first
    assert first.stat().st_mtime_ns == made_ns
    assert CudaLibrary(source, ["WIDE=1"]).build() != first
    source.with_name("part.cuh").write_text("// of this source")
    with_header = CudaLibrary(source).path()
    source.write_text(SOURCE + "// another")
    assert len({first, with_header, CudaLibrary(source).path()}) == 3


@needs_nvcc
def test_sources_are_compiled_side_by_side_where_they_are_missing(source: Path) -> None:
    other = source.with_name("other.cu")
    other.write_text(SOURCE)
    CudaLibrary(source).build()
    missing = missing_libraries(source.parent)
    assert [library.source for library in missing] == [other]
    build_all(missing)
    assert missing_libraries(source.parent) == []
    assert {path.name.split("-")[0] for path in (source.parent / "cache").glob("*.so")} == {"scale", "other"}


@needs_nvcc
def test_a_function_that_returns_an_error_raises_with_its_number(source: Path) -> None:
    answer = CudaLibrary(source).function("answer", [ctypes.c_int])
    answer(0)
    with pytest.raises(KernelUnavailable, match="answer of scale.cu returned CUDA error 700"):
        answer(700)


@needs_nvcc
def test_a_source_that_does_not_compile_tells_what_the_compiler_said(source: Path) -> None:
    source.write_text("int x = nonsense;")
    with pytest.raises(KernelUnavailable, match="nonsense"):
        CudaLibrary(source).build()
    assert not list((source.parent / "cache").glob("*.so"))


def test_without_a_compiler_the_message_says_how_to_get_one(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_library, "find_nvcc", lambda: None)
    cuda_library._nvcc_version.cache_clear()
    with pytest.raises(KernelUnavailable, match="pip install nvidia-cuda-nvcc"):
        CudaLibrary(source).build()
    assert not has_cuda_compiler()


def test_a_cuda_kernel_is_refused_for_a_tensor_on_the_cpu() -> None:
    import torch

    assert not uses_cuda_kernel("auto", torch.zeros(1))
    with pytest.raises(KernelInputError, match="Hopper"):
        uses_cuda_kernel("cuda", torch.zeros(1))
