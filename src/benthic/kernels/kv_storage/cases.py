"""Rows for key storage: every code under every scale, alone and beside others."""

import torch
from torch import Tensor

from benthic.formats import decode_e2m1, ue8m0_decode

E4M3_CODES = [code for code in range(256) if code & 127 != 127]
E2M1_CODES = list(range(16))


def e4m3_values() -> Tensor:
    """The 254 finite values of e4m3, float32."""
    return torch.tensor(E4M3_CODES, dtype=torch.uint8).view(torch.float8_e4m3fn).float()


def every_code_alone(values: Tensor, group: int, scales: range) -> Tensor:
    """Rows of one group: one value of a format under one scale (a UE8M0 byte), the other places zero."""
    rows = torch.zeros(len(scales), len(values), group)
    rows[..., 5] = values * ue8m0_decode(torch.tensor(list(scales), dtype=torch.uint8))[:, None]
    return rows.view(-1, group)


def every_code_together(values: Tensor, group: int, scales: range) -> Tensor:
    """Rows of whole groups that hold every value of a format, each group led by the largest."""
    rest = values[: len(values) // (group - 1) * (group - 1)].view(-1, group - 1)
    tail = values[-(group - 1) :].view(1, -1) if len(values) >= group - 1 else values.repeat(group)[: group - 1][None]
    groups = torch.cat([rest, tail])
    groups = torch.cat([values.max().expand(len(groups), 1), groups], dim=1).view(1, -1)
    return groups * ue8m0_decode(torch.tensor(list(scales), dtype=torch.uint8))[:, None]


def e2m1_values() -> Tensor:
    """The 16 values of e2m1, both zeros, float32."""
    return decode_e2m1(torch.tensor(E2M1_CODES, dtype=torch.uint8))
