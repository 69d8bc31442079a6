"""kv_storage: every value that the formats hold comes back bit for bit, and both implementations agree on all bytes."""

import pytest
import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.kv_storage import KeyForm, index_bytes, kv_bytes, pack_index, pack_kv, unpack_index, unpack_kv
from benthic.kernels.kv_storage.cases import e2m1_values, e4m3_values, every_code_alone, every_code_together
from benthic.kernels.quantize import round_trip_fp4, round_trip_fp8

ROPE = 8
IMPLS = ["auto", "reference"]
FP8_GROUP = {"v4": 64, "v3.2": 128}
# Under byte 246 the largest e4m3 value is still finite, under byte 251 the largest of e2m1.
KV_SCALES, INDEX_SCALES = range(90, 246), range(1, 252)


def same_bits(left: Tensor, right: Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def with_rotary(still: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.cat([still, torch.randn(len(still), ROPE)], dim=1).to(dtype)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [every_code_alone, every_code_together])
@pytest.mark.parametrize("form", FP8_GROUP)
def test_every_kv_value_under_every_scale_comes_back(impl: str, dtype: torch.dtype, make, form: KeyForm) -> None:
    group = FP8_GROUP[form]
    still = round_trip_fp8(make(e4m3_values(), group, KV_SCALES), group)
    rows = with_rotary(still, dtype)
    assert torch.equal(rows[:, : still.shape[1]].float(), still), "codes times scales are exact in every dtype"
    data = pack_kv(rows, ROPE, form, impl=impl)
    assert data.shape[1] == kv_bytes(rows.shape[1], ROPE, dtype, form)
    assert same_bits(unpack_kv(data, rows.shape[1], ROPE, dtype, form, impl=impl), rows)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [every_code_alone, every_code_together])
def test_every_index_value_under_every_scale_comes_back(impl: str, dtype: torch.dtype, make) -> None:
    rows = round_trip_fp4(make(e2m1_values(), 32, INDEX_SCALES), 32).to(dtype)
    data = pack_index(rows, impl=impl)
    assert data.shape[1] == index_bytes(rows.shape[1])
    assert same_bits(unpack_index(data, rows.shape[1], dtype, impl=impl), rows)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_fp8_index_value_under_every_scale_comes_back(impl: str, dtype: torch.dtype) -> None:
    rows = round_trip_fp8(every_code_together(e4m3_values(), 128, KV_SCALES), 128).to(dtype)
    data = pack_index(rows, "v3.2", impl=impl)
    assert data.shape[1] == index_bytes(rows.shape[1], "v3.2")
    assert same_bits(unpack_index(data, rows.shape[1], dtype, "v3.2", impl=impl), rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("magnitude", [1e-9, 1e-4, 1.0, 1e7])
@pytest.mark.parametrize("still", [64, 160, 24, 42])
@pytest.mark.parametrize("form", FP8_GROUP)
def test_other_values_are_rounded_as_by_the_policy_and_both_implementations_agree(
    dtype: torch.dtype, magnitude: float, still: int, form: KeyForm
) -> None:
    rows, group = (torch.randn(300, still + ROPE) * magnitude).to(dtype), FP8_GROUP[form]
    packed = [pack_kv(rows, ROPE, form, impl=impl) for impl in IMPLS]
    assert torch.equal(*packed)
    back = [unpack_kv(packed[0], still + ROPE, ROPE, dtype, form, impl=impl) for impl in IMPLS]
    assert same_bits(*back) and same_bits(back[0][:, still:].contiguous(), rows[:, still:].contiguous())
    padded = torch.nn.functional.pad(rows[:, :still], (0, -still % group))
    assert same_bits(back[0][:, :still].contiguous(), round_trip_fp8(padded, group)[:, :still].contiguous())
    keys = rows[:, :still].contiguous()
    if form == "v3.2":
        codes = [pack_index(keys, form, impl=impl) for impl in IMPLS]
        assert torch.equal(*codes)
        assert same_bits(unpack_index(codes[0], still, dtype, form), back[0][:, :still].contiguous())
        return
    codes = [pack_index(keys, impl=impl) for impl in IMPLS]
    assert torch.equal(*codes)
    padded = torch.nn.functional.pad(keys, (0, -still % 32))
    assert same_bits(unpack_index(codes[0], still, dtype), round_trip_fp4(padded, 32)[:, :still].contiguous())


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("form", FP8_GROUP)
def test_a_group_with_a_value_that_is_not_finite_is_nan_and_no_other(impl: str, wrong: float, form: KeyForm) -> None:
    group = FP8_GROUP[form]
    rows = torch.randn(2, 2 * group + ROPE)
    rows[0, group + 6] = wrong
    data = pack_kv(rows, ROPE, form, impl=impl)
    back = unpack_kv(data, 2 * group + ROPE, ROPE, torch.float32, form, impl=impl)
    assert back[0, group : 2 * group].isnan().all()
    assert back[0, :group].isfinite().all() and back[1].isfinite().all()


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("form", FP8_GROUP)
def test_bytes_of_zeros_are_rows_of_zeros(form: KeyForm, impl: str) -> None:
    data = torch.zeros(3, kv_bytes(72, ROPE, torch.float32, form), dtype=torch.uint8)
    assert unpack_kv(data, 72, ROPE, torch.float32, form, impl=impl).eq(0).all()
    data = torch.zeros(3, index_bytes(64, form), dtype=torch.uint8)
    assert unpack_index(data, 64, torch.float32, form, impl=impl).eq(0).all()


def test_the_released_models_rows_take_608_and_68_bytes_and_those_of_v32_656_and_132() -> None:
    assert (kv_bytes(512, 64, torch.bfloat16), index_bytes(128)) == (608, 68)
    assert (kv_bytes(576, 64, torch.bfloat16, "v3.2"), index_bytes(128, "v3.2")) == (656, 132)


@pytest.mark.parametrize("impl", IMPLS)
def test_a_row_of_v32_is_codes_then_scales_as_float32_then_the_rotary_dims(impl: str) -> None:
    rows = torch.zeros(1, 320, dtype=torch.bfloat16)
    rows[0, :128], rows[0, 128:256], rows[0, 256:] = 448.0, 7.0, torch.randn(64)
    data = pack_kv(rows, 64, "v3.2", impl=impl)
    codes = data[0, :256].view(torch.float8_e4m3fn).float()
    assert codes[:128].eq(448).all() and codes[128:].eq(448).all()
    assert data[0, 256:264].view(torch.float32).tolist() == [1.0, 2.0**-6]
    assert torch.equal(data[0, 264:].view(torch.bfloat16), rows[0, 256:])


def test_no_rows_are_no_bytes() -> None:
    assert pack_kv(torch.zeros(0, 72), ROPE).shape == (0, kv_bytes(72, ROPE, torch.float32))
    assert unpack_index(pack_index(torch.zeros(0, 64)), 64, torch.float32).shape == (0, 64)


def test_rows_that_the_formats_cannot_hold_are_refused() -> None:
    with pytest.raises(KernelInputError, match="float16"):
        pack_kv(torch.zeros(1, 72, dtype=torch.float16), ROPE)
    with pytest.raises(KernelInputError, match=r"rope_dim \(72\)"):
        pack_kv(torch.zeros(1, 72), 72)
    with pytest.raises(KernelInputError, match="form 'v3' is unknown; it is one of 'v4', 'v3.2'"):
        pack_kv(torch.zeros(1, 72), ROPE, "v3")  # type: ignore[arg-type]
    with pytest.raises(KernelInputError, match="33 wide"):
        pack_index(torch.zeros(1, 33))
    with pytest.raises(KernelInputError, match="width 99; they must be uint8 of width 128"):
        unpack_kv(torch.zeros(1, 99, dtype=torch.uint8), 72, ROPE, torch.float32)
