"""Held out by construction: the operands of an exchange, not chance, decide where it belongs."""

import hashlib
from collections.abc import Iterable
from typing import Literal

Split = Literal["train", "test"]


def is_held_out(operand: str) -> bool:
    """True for the tenth of all operands that only evaluation may use: md5 of the operand modulo 10 is 0.

    Operands are canonical (those of an addition are in order, that of a spelling task is the lower-case word alone), so
    that a question cannot reach the other side in another wording, order or task.
    """
    digest = hashlib.md5(operand.encode(), usedforsecurity=False).hexdigest()
    return int(digest[:8], 16) % 10 == 0


def belongs_to(operands: Iterable[str], split: Split) -> bool:
    """Whether all operands lie on the side of `split`; a mixture belongs to neither."""
    return all(is_held_out(operand) == (split == "test") for operand in operands)
