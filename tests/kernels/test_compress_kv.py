"""compress_kv: the loop of the specification, the missing predecessor, gradients, blocks on their own."""

import numpy as np
import pytest
import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.compress_kv import compress_kv, plan_completed
from benthic.kernels.compress_kv.cases import inputs
from benthic.kernels.sparse_attention.cases import Run
from tests.kernels import laws


def loop(raw_by_position: Tensor, ape: Tensor, ratio: int, block: int) -> Tensor:
    """One entry, in float64 (model.md 2.5 steps 1-3)."""
    raw, ape = raw_by_position.double(), ape.double()
    width = ape.shape[1]
    values, gates = raw[:, :width], raw[:, width:]
    own = range(block * ratio, (block + 1) * ratio)
    if ratio != 4:
        a = torch.stack([values[t] for t in own])
        b = torch.stack([gates[t] + ape[t % ratio] for t in own])
        return (b.softmax(0) * a).sum(0)
    dim = width // 2
    pool = [(values[t, dim:], gates[t, dim:] + ape[t % 4, dim:]) for t in own]
    if block:
        pool += [(values[t, :dim], gates[t, :dim] + ape[t % 4, :dim]) for t in range(block * 4 - 4, block * 4)]
    return (torch.stack([b for _, b in pool]).softmax(0) * torch.stack([a for a, _ in pool])).sum(0)


@pytest.mark.parametrize(("ratio", "length"), [(4, 4), (4, 27), (128, 128), (128, 300)])
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_entries_are_the_loop_of_the_specification(ratio: int, length: int, impl: str) -> None:
    given = inputs(ratio, length)
    got = compress_kv(**given, impl=impl)
    assert len(got) == length // ratio
    for block in range(length // ratio):
        expected = loop(given["raw"].flip(0), given["ape"], ratio, block)
        torch.testing.assert_close(got[block].double(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("ratio", [4, 128])
def test_a_block_that_a_later_run_completes_has_the_bits_of_the_whole(ratio: int) -> None:
    given = inputs(ratio, 2 * ratio + 3)
    whole = compress_kv(**given)
    total = len(given["raw"])
    for start in (1, ratio, 2 * ratio - 1):
        late = plan_completed(
            [Run(0, 0, start, total - start)],
            ratio,
            lambda _, t: np.ascontiguousarray(total - 1 - t),
            torch.device("cpu"),
        )
        assert late is not None
        part = compress_kv(given["raw"], given["ape"], late)
        assert torch.equal(part, whole[late.index])


def test_extreme_gates_stay_finite() -> None:
    given = inputs(4, 12)
    assert torch.isfinite(compress_kv(given["raw"] * 1e4, given["ape"], given["blocks"])).all()


@pytest.mark.parametrize(("ratio", "length"), [(4, 12), (128, 128)])
def test_gradients_are_the_numeric_ones(ratio: int, length: int) -> None:
    laws.assert_gradients(compress_kv, inputs(ratio, length, torch.float64, dim=1 if ratio == 128 else 2))
    laws.assert_gradients_of_kernel(compress_kv, inputs(ratio, length, torch.float64))


def test_a_run_that_completes_no_block_has_none() -> None:
    assert inputs(4, 3)["blocks"] is None


def test_raw_rows_of_another_width_are_refused() -> None:
    given = inputs(4, 8)
    with pytest.raises(KernelInputError, match="raw rows are 47 wide"):
        compress_kv(given["raw"][:, 1:], given["ape"], given["blocks"])


@pytest.mark.parametrize("ratio", [4, 128])
def test_blocks_that_are_stored_already_are_not_completed_again(ratio: int) -> None:
    def indices(start: int, length: int, stored_len: int) -> list[int]:
        run = Run(0, 0, start, length, stored_len)
        found = plan_completed([run], ratio, lambda _, position: position, torch.device("cpu"))
        return [] if found is None else found.index.tolist()

    assert indices(0, 5 * ratio, 0) == [0, 1, 2, 3, 4]
    assert indices(ratio + 1, 4 * ratio - 1, 3 * ratio) == [3, 4]
    assert indices(ratio, 2 * ratio, 3 * ratio) == []
    assert indices(4 * ratio, ratio, ratio) == [4]
