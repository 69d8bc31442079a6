"""Doors refuse what a compiled kernel would take for something else, or follow out of its buffers, in three parts."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.cross_entropy import ranked_logprobs, token_logprobs
from benthic.kernels.grouped_linear import grouped_linear
from benthic.kernels.linear import Fp8Weight, batched_linear, linear, widened_linear
from benthic.kernels.moe_experts import Fp4Experts, pack_fp4_experts, routed_experts
from benthic.kernels.moe_permute import moe_combine, moe_permute
from benthic.kernels.moe_route import moe_route, route_rows
from benthic.kernels.quantize import hadamard, quantize_rows, round_trip_fp4, round_trip_fp8, round_trip_rows
from benthic.kernels.rms_norm import rms_norm
from benthic.kernels.rope import RopeTable, apply_rope
from benthic.kernels.sample import sample
from benthic.kernels.scatter_rows import scatter_rows
from benthic.kernels.select_topk import select_topk
from benthic.kernels.swiglu import swiglu, swiglu_rows

X, W, ONE = torch.ones(2, 4), torch.ones(3, 4), torch.tensor(1.0)
ROPE = torch.ones(2, 2)
IDS, E4M3 = torch.ones(2, 4, dtype=torch.int64), torch.float8_e4m3fn


def ids(*values: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def grouped(*ends: int) -> Tensor:
    return grouped_linear(X, W.expand(2, 3, 4), ids(*ends, dtype=torch.int32))


def packed(experts: int, outputs: int, inputs: int, kind: str = "w2") -> Fp4Experts:
    codes = torch.zeros(experts, outputs, inputs // 2, dtype=torch.uint8)
    return pack_fp4_experts(codes, codes.new_zeros(experts, outputs, inputs // 32), kind)  # type: ignore[arg-type]


def drawn(**other: Tensor) -> Tensor:
    given = {"temperature": torch.ones(2), "seeds": ids(1, 2), "positions": ids(1, 2)} | other
    return sample(X, top_k=None, top_p=None, min_p=None, **given)


def scattered(slots: Tensor) -> None:
    scatter_rows(torch.zeros(4, 2), slots, torch.ones(1, 2))


def routed(*, w13: str = "w13", rounded: bool = True, impl: str = "auto", picks: int = 2) -> Tensor:
    x, routing = torch.ones(2, 128), route_rows(X, top_k=2, scale=1.0)
    return routed_experts(
        quantize_rows(x) if rounded else x,  # type: ignore[arg-type]
        routing._replace(weights=routing.weights[:, :picks]),
        packed(4, 256, 128, w13),
        packed(4, 128, 128),
        10.0,
        impl=impl,  # type: ignore[arg-type]
    )


CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "rows of integers": (lambda: linear(IDS, W), "x is torch.int64; it must be float32"),
    "a weight of integers": (lambda: linear(X, IDS), "weight is torch.int64"),
    "FP8 codes without scales": (lambda: linear(X, W.to(E4M3)), "weight is torch.float8_e4m3fn"),
    "batched integers": (lambda: batched_linear(IDS[:, None], W[None]), "x is torch.int64"),
    "an FP8 vector": (lambda: Fp8Weight(X[0].to(E4M3), torch.ones(1)), r"shape \(4,\); it must be"),
    "a wide weight to widen": (
        lambda: widened_linear(torch.ones(2, 1, 128), torch.ones(1, 128, 128)),  # type: ignore[arg-type]
        "weight is a Tensor; it must be an Fp8Weight",
    ),
    "ends before the last row": (lambda: grouped(0, 1), r"group_ends are \[0, 1\]; they must ascend"),
    "ends beyond the last row": (lambda: grouped(1, 9), r"group_ends are \[1, 9\]"),
    "ends that descend": (lambda: grouped(2, 1), r"group_ends are \[2, 1\]"),
    "ends that are no numbers of rows": (
        lambda: grouped_linear(X, W[None], torch.tensor([2.0])),
        "group_ends are torch.float32; they must be int32",
    ),
    "integers to round": (lambda: quantize_rows(torch.ones(2, 128, dtype=torch.int64)), "x is torch.int64"),
    "an unknown scale": (
        lambda: quantize_rows(torch.ones(2, 128), "e8"),  # type: ignore[arg-type]
        "scale is 'e8'; it must be one of 'ue8m0', 'fp32'",
    ),
    "a number to round": (lambda: round_trip_rows(ONE), "x is a single number"),
    "groups of none": (lambda: round_trip_fp8(X, 0), "the group is 0; it must be at least 1"),
    "groups of less than none": (lambda: round_trip_fp4(X, -4), "the group is -4"),
    "a number to transform": (lambda: hadamard(ONE), "power of two"),
    "a vector to activate": (lambda: swiglu_rows(torch.ones(256), None), r"gate_up has shape \(256,\)"),
    "integers to activate": (lambda: swiglu(IDS, None), "gate_up is torch.int64"),
    "a number to norm": (lambda: rms_norm(ONE, None, 1e-6), "x is a single number"),
    "integers to norm": (lambda: rms_norm(IDS, None, 1e-6), "x is torch.int64"),
    "sines for fewer pairs": (lambda: apply_rope(X, RopeTable(ROPE, ROPE[:, :1])), r"\(2, 2\) and \(2, 1\)"),
    "an unknown pairing": (
        lambda: apply_rope(X, RopeTable(ROPE, ROPE), pairing="pairs"),  # type: ignore[arg-type]
        "pairing is 'pairs'; it must be one of",
    ),
    "an unknown score": (
        lambda: moe_route(X, top_k=1, scale=1.0, score="relu"),  # type: ignore[arg-type]
        "score is 'relu'; it must be one of",
    ),
    "an expert that is not there": (
        lambda: moe_route(X, top_k=1, scale=1.0, experts=ids(1, 4)[:, None]),
        r"experts run from 1 to 4; they must be in 0 .. 3",
    ),
    "a hash table of another model": (
        lambda: route_rows(X, top_k=1, scale=1.0, table=ids(0, 256)[:, None], token_ids=ids(1, 1)),
        "experts run from 256 to 256",
    ),
    "a token beyond the hash table": (
        lambda: route_rows(X, top_k=1, scale=1.0, table=ids(0, 1)[:, None], token_ids=ids(1, 2)),
        "token_ids run from 1 to 2; they must be in 0 .. 1",
    ),
    "a slot beyond the target": (lambda: scattered(ids(4)), "slots run from 4 to 4"),
    "a slot before no slot": (lambda: scattered(ids(-2)), "slots run from -2 to -2"),
    "slots of 32 bits": (lambda: scattered(ids(1, dtype=torch.int32)), "slots is torch.int32"),
    "gates packed as outputs": (lambda: routed(w13="w2"), "w13 was packed as 'w2'; it must be packed as 'w13'"),
    "rows that are not rounded": (lambda: routed(rounded=False), "x is a Tensor; it must be QuantizedRows"),
    "experts by no implementation": (lambda: routed(impl="fast"), "impl='fast' is unknown"),
    "too few routing weights": (lambda: routed(picks=1), r"routing has weights \(2, 1\)"),
    "a pick that is not there": (lambda: moe_permute(ids(-1, 0)[:, None], 4, 1), "experts run from -1 to 0"),
    "no experts": (lambda: moe_permute(ids()[:, None], 0, 1), "num_experts is 0; it must be at least 1"),
    "a slot beyond all": (lambda: moe_combine(X, ids(0, 2)[:, None]), r"slot run from 0 to 2; they must be in 0 .. 1"),
    "slots in 32 bits": (lambda: moe_combine(X, ids(0, 1, dtype=torch.int32)[:, None]), "slot is torch.int32"),
    "integers to rank": (lambda: select_topk(IDS, 1), "scores is torch.int64"),
    "a number to rank": (lambda: select_topk(ONE, 1), "scores are a single number"),
    "half a pick": (lambda: select_topk(X, 1.5), r"k \(1.5\) must be a whole number"),  # type: ignore[arg-type]
    "seeds in 32 bits": (lambda: drawn(seeds=ids(1, 2, dtype=torch.int32)), "seeds is torch.int32; it must be"),
    "whole temperatures": (lambda: drawn(temperature=ids(1, 2)), "temperature is torch.int64"),
    "a token beyond the vocabulary": (lambda: ranked_logprobs(X, ids(0, 4), 1), "chosen run from 0 to 4"),
    "a token before it": (lambda: token_logprobs(X, ids(0, -1)), "ids run from -1 to 0"),
    "an unknown kind": (lambda: packed(1, 32, 32, "w3"), "kind is 'w3'; it must be one of 'w13', 'w2'"),
    "a gate without its up": (lambda: packed(1, 33, 32, "w13"), "gate and up rows"),
    "matrices of nothing": (lambda: packed(2, 256, 0), "must not be empty"),
}


@pytest.mark.parametrize(("call", "words"), CALLS.values(), ids=CALLS)
def test_a_door_refuses(call: Callable[[], object], words: str) -> None:
    with pytest.raises(KernelInputError, match=words):
        call()


def test_no_rows_give_no_rows() -> None:
    none = torch.empty(0, 4)
    assert linear(none, W).shape == (0, 3)
    assert grouped_linear(none, W.expand(2, 3, 4), ids(0, 0, dtype=torch.int32)).shape == (0, 3)
    assert select_topk(none, 2).shape == (0, 2)
    assert moe_route(none, top_k=2, scale=1.0).experts.shape == (0, 2)
    assert quantize_rows(torch.empty(0, 128)).shape == (0, 128)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_view_with_gaps_has_the_bits_of_its_copy(dtype: torch.dtype) -> None:
    x = torch.randn(512, 6).to(dtype).T[::2]
    gaps: dict[str, Callable[[Tensor], object]] = {
        "linear": lambda x: linear(x, torch.linspace(-1, 1, 3 * 512).view(3, 512)),
        "swiglu": lambda x: swiglu(x, 1.0),
        "swiglu_rows": lambda x: swiglu_rows(x, 1.0).dequantized(),
        "rms_norm": lambda x: rms_norm(x, None, 1e-6),
        "rope": lambda x: apply_rope(x, RopeTable(torch.full((3, 4), 0.6), torch.full((3, 4), 0.8))),
        "quantize": lambda x: quantize_rows(x).dequantized(),
        "topk": lambda x: select_topk(x, 7),
        "route": lambda x: moe_route(x.float(), top_k=6, scale=1.0).weights,
        "combine": lambda x: moe_combine(x, ids(2, 0, 1)[:, None]),
    }
    for name, call in gaps.items():
        assert torch.equal(call(x), call(x.contiguous())), name  # type: ignore[arg-type]


def test_a_span_counts_what_is_there_and_exponents_beyond_the_short_form_stay_exact() -> None:
    codes = torch.full((1, 256, 128), 0x22, dtype=torch.uint8)  # every value 1
    scale = torch.full((1, 256, 8), 120, dtype=torch.uint8)
    for span, form in ((0, "row"), (11, "row"), (12, "plain"), (130, "plain")):
        scale[0, 7, 3] = 120 + min(span, 129)
        if span == 130:
            scale[0, 7, 3] = 250  # finite, and its base of a row would not be
        held = pack_fp4_experts(codes, scale, "w2")
        assert held.form == form
        assert torch.equal(held.official()[1], scale)
        assert held.matrix(0)[7, 3 * 32].item() == math.ldexp(1.0, int(scale[0, 7, 3]) - 127)
