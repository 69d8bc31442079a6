"""kv_storage: every value that the formats hold comes back bit for bit, and both implementations agree on all bytes."""

import pytest
import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.kv_storage import index_bytes, kv_bytes, pack_index, pack_kv, unpack_index, unpack_kv
from benthic.kernels.kv_storage.cases import e2m1_values, e4m3_values, every_code_alone, every_code_together
from benthic.kernels.quantize import round_trip_fp4, round_trip_fp8

ROPE = 8
IMPLS = ["auto", "reference"]
# Under byte 246 the largest e4m3 value is still finite, under byte 251 the largest of e2m1.
KV_SCALES, INDEX_SCALES = range(90, 246), range(1, 252)


def same_bits(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def with_rotary(still: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.cat([still, torch.randn(len(still), ROPE)], dim=1).to(dtype)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [every_code_alone, every_code_together])
def test_every_kv_value_under_every_scale_comes_back(impl: str, dtype: torch.dtype, make) -> None:
    still = round_trip_fp8(make(e4m3_values(), 64, KV_SCALES), 64)
    rows = with_rotary(still, dtype)
    assert torch.equal(rows[:, : still.shape[1]].float(), still), "codes times scales are exact in every dtype"
    data = pack_kv(rows, ROPE, impl=impl)
    assert data.shape[1] == kv_bytes(rows.shape[1], ROPE, dtype)
    assert same_bits(unpack_kv(data, rows.shape[1], ROPE, dtype, impl=impl), rows)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [every_code_alone, every_code_together])
def test_every_index_value_under_every_scale_comes_back(impl: str, dtype: torch.dtype, make) -> None:
    rows = round_trip_fp4(make(e2m1_values(), 32, INDEX_SCALES), 32).to(dtype)
    data = pack_index(rows, impl=impl)
    assert data.shape[1] == index_bytes(rows.shape[1])
    assert same_bits(unpack_index(data, rows.shape[1], dtype, impl=impl), rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("magnitude", [1e-9, 1e-4, 1.0, 1e7])
@pytest.mark.parametrize("still", [64, 160, 24])
def test_other_values_are_rounded_as_by_the_policy_and_both_implementations_agree(
    dtype: torch.dtype, magnitude: float, still: int
) -> None:
    rows = (torch.randn(300, still + ROPE) * magnitude).to(dtype)
    packed = [pack_kv(rows, ROPE, impl=impl) for impl in IMPLS]
    assert torch.equal(*packed)
    back = unpack_kv(packed[0], still + ROPE, ROPE, dtype)
    padded = torch.nn.functional.pad(rows[:, :still], (0, -still % 64))
    assert same_bits(back[:, :still].contiguous(), round_trip_fp8(padded, 64)[:, :still].contiguous())
    keys = rows[:, :still].contiguous()
    codes = [pack_index(keys, impl=impl) for impl in IMPLS]
    assert torch.equal(*codes)
    padded = torch.nn.functional.pad(keys, (0, -still % 32))
    assert same_bits(unpack_index(codes[0], still, dtype), round_trip_fp4(padded, 32)[:, :still].contiguous())


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_a_group_with_a_value_that_is_not_finite_is_nan_and_no_other(impl: str, wrong: float) -> None:
    rows = torch.randn(2, 128 + ROPE)
    rows[0, 70] = wrong
    back = unpack_kv(pack_kv(rows, ROPE, impl=impl), 128 + ROPE, ROPE, torch.float32, impl=impl)
    assert back[0, 64:128].isnan().all()
    assert back[0, :64].isfinite().all() and back[1].isfinite().all()


def test_bytes_of_zeros_are_rows_of_zeros() -> None:
    width = kv_bytes(72, ROPE, torch.float32)
    assert unpack_kv(torch.zeros(3, width, dtype=torch.uint8), 72, ROPE, torch.float32).eq(0).all()
    assert unpack_index(torch.zeros(3, index_bytes(64), dtype=torch.uint8), 64, torch.float32).eq(0).all()


def test_the_released_models_rows_take_584_and_68_bytes() -> None:
    assert (kv_bytes(512, 64, torch.bfloat16), index_bytes(128)) == (584, 68)


def test_no_rows_are_no_bytes() -> None:
    assert pack_kv(torch.zeros(0, 72), ROPE).shape == (0, kv_bytes(72, ROPE, torch.float32))
    assert unpack_index(pack_index(torch.zeros(0, 64)), 64, torch.float32).shape == (0, 64)


def test_rows_that_the_formats_cannot_hold_are_refused() -> None:
    with pytest.raises(KernelInputError, match="float16"):
        pack_kv(torch.zeros(1, 72, dtype=torch.float16), ROPE)
    with pytest.raises(KernelInputError, match=r"rope_dim \(72\)"):
        pack_kv(torch.zeros(1, 72), 72)
    with pytest.raises(KernelInputError, match="33 wide"):
        pack_index(torch.zeros(1, 33))
    with pytest.raises(KernelInputError, match="width 99; they must be uint8 of width 100"):
        unpack_kv(torch.zeros(1, 99, dtype=torch.uint8), 72, ROPE, torch.float32)
