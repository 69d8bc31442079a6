"""Production shapes of routed experts by Triton: the bundled model's in the plain form, Flash's streamed and V3's."""

from collections.abc import Callable, Iterator

import torch

from benthic.kernels.moe_experts import Experts, Fp4Experts, Fp8Experts, Kind, Spans
from benthic.kernels.moe_experts.kernel import routed_experts_triton
from benthic.kernels.moe_experts.layout import PIECE_BYTES, TILE
from benthic.kernels.moe_experts.spans import Form
from benthic.kernels.moe_route import ExpertRows
from benthic.kernels.quantize import QuantizedRows

META = torch.device("meta")


def production() -> Iterator[tuple[str, Callable[[], object]]]:
    """(case, launch)."""
    yield "plain", lambda: _run(256, 32, _fp4(16, 64, 256, "w13", "plain"), _fp4(16, 256, 32, "w2", "plain"))
    for form in ("row", "block"):
        yield (
            form,
            lambda form=form: _run(4096, 2048, _fp4(256, 4096, 4096, "w13", form), _fp4(256, 4096, 2048, "w2", form)),
        )
    yield "fp8", lambda: _run(7168, 2048, _fp8(256, 4096, 7168), _fp8(256, 7168, 2048))


def _fp4(experts: int, outputs: int, inputs: int, kind: Kind, form: Form) -> Fp4Experts:
    spans = Spans(0, 0, 0, 0)
    if form == "plain":
        codes = torch.empty(experts, outputs, inputs // 2, dtype=torch.uint8, device=META)
        return Fp4Experts(
            codes, torch.empty(experts, outputs, inputs // 32, dtype=torch.uint8, device=META), kind, form, spans
        )
    codes = torch.empty(experts, outputs // TILE, inputs // TILE, PIECE_BYTES, dtype=torch.uint8, device=META)
    return Fp4Experts(codes, torch.empty(experts, outputs, device=META), kind, form, spans)


def _fp8(experts: int, outputs: int, inputs: int) -> Fp8Experts:
    data = torch.empty(experts, outputs, inputs, dtype=torch.float8_e4m3fn, device=META)
    return Fp8Experts(data, torch.empty(experts, outputs // 128, inputs // 128, device=META))


def _run(size: int, width: int, w13: Experts, w2: Experts) -> torch.Tensor:
    rows, top_k, experts = 4, 6, w13.shape[0]
    int32 = {"dtype": torch.int32, "device": META}
    routing = ExpertRows(
        torch.empty(rows, top_k, **int32),
        torch.empty(rows, top_k, device=META),
        torch.empty(experts, **int32),
        torch.empty(experts + 1, **int32),
        torch.empty(rows * top_k, **int32),
        torch.empty(rows, top_k, **int32),
    )
    x = QuantizedRows(
        torch.empty(rows, size, dtype=torch.float8_e4m3fn, device=META), torch.empty(rows, size // 128, device=META)
    )
    return routed_experts_triton(x, routing, w13, w2, 10.0, None, torch.float32)
