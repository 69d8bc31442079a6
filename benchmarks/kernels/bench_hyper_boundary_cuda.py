"""The boundary of mHC sub-layers on a GPU: CUDA C++, Triton, and the operations one by one (`cuda_timing`).

Widths of Flash (4096) and Pro (7168) in bfloat16. Bytes are those of one fused pass: output and streams read, streams,
normed input and its FP8 codes written, weights read once. At 4096 rows the aim is 70 % of a copy's speed.
"""

from collections.abc import Iterator
from functools import partial

import torch
from cuda_timing import Calls, Case, main, num_sets

from benthic.kernels.choice import Impl
from benthic.kernels.hyper_boundary import hyper_boundary
from benthic.kernels.hyper_boundary.cases import boundary_inputs

ROWS = (1, 8, 32, 128, 512, 4096)
IMPLS: tuple[Impl, ...] = ("cuda", "triton", "reference")


def cases() -> Iterator[Case]:
    for size in (4096, 7168):
        for rows in ROWS:
            moved = rows * size * (2 + 8 + 8 + 2 + 1) + 24 * 4 * size * 4
            sets = [_inputs(rows, size) for _ in range(num_sets(moved))]
            calls: dict[str, Calls] = {
                impl: [partial(hyper_boundary, **given, linear_scale="ue8m0", impl=impl) for given in sets]
                for impl in IMPLS
                if impl != "reference" or rows in (1, 4096)
            }
            yield Case(f"D {size} rows {rows}", calls, moved, 2 * rows * 24 * 4 * size)


def _inputs(rows: int, size: int) -> dict[str, object]:
    given = boundary_inputs(min(rows, 64), torch.bfloat16, size=size)
    repeated = {
        name: value.repeat(-(-rows // 64), *[1] * (value.dim() - 1))[:rows]
        for name, value in given.items()
        if name in ("output", "streams", "post", "comb")
    }
    return given | repeated | {"gain": given["gain"].bfloat16()}


if __name__ == "__main__":
    with torch.device("cuda"):  # inputs are made where they are used: on the host it takes minutes
        main("hyper_boundary", cases)
