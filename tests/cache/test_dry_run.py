"""The largest pass is run as it will be run, and what it takes is seen."""

import numpy as np
import pytest
import torch

from benthic.cache.dry_run import measure_workspace
from benthic.models.context import AttentionContext, Rows
from tests.cache.fingerprint import FingerprintModel, config, geometry_of

MIB = 1 << 20
FREQUENCIES = {ratio: torch.ones(1) for ratio in (0, 4, 16)}


@pytest.mark.parametrize(("num_rows", "chunks"), [(100, [100]), (4096, [4096]), (5000, [4096, 904])])
def test_the_pass_has_the_asked_rows_in_as_few_contexts_as_hold_them(num_rows: int, chunks: list[int]) -> None:
    seen: list[Rows] = []

    def forward(rows: Rows, context: AttentionContext) -> None:
        seen.append(rows)
        assert context.rows is rows

    measure(num_rows, forward)
    assert [chunk.length for chunk in seen[0].chunks] == chunks
    assert seen[0].token_ids.unique().numel() == 61, "every token of the vocabulary, so every expert, takes part"


def test_memory_that_the_pass_takes_is_counted_and_the_cache_is_not() -> None:
    model = FingerprintModel(config())

    def forward(rows: Rows, context: AttentionContext) -> None:
        model(rows, context)
        np.ones(64 * MIB, dtype=np.uint8)

    assert 60 * MIB <= measure(200, forward) <= 100 * MIB


def measure(num_rows: int, forward: object) -> int:
    sizes = config()
    return measure_workspace(
        sizes,
        geometry_of(sizes),
        num_rows,
        FREQUENCIES,
        forward,  # type: ignore[arg-type]
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
