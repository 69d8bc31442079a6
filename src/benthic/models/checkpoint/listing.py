"""Long lists of tensor names, short enough to read and still complete."""

import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import product

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_FEW = 4


def listing(names: Sequence[str]) -> str:
    """All names, sorted in order of appearance; more than four that differ in their numbers only become ranges.

    `layers.[0-2].ffn.experts.[0-255].w1.weight` stands for the full product of the ranges, never for less.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for name in names:
        groups[_NUMBER.sub("*", name)].append(name)
    return ", ".join(text for pattern, members in groups.items() for text in _group(pattern, members))


def _group(pattern: str, members: list[str]) -> list[str]:
    numbers = [tuple(int(n) for n in _NUMBER.findall(name)) for name in members]
    columns = [sorted(set(column)) for column in zip(*numbers, strict=True)]
    if len(members) <= _FEW or set(product(*columns)) != set(numbers):
        return members
    for column in columns:
        pattern = pattern.replace("*", _ranges(column), 1)
    return [pattern]


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    if len(numbers) == 1:
        return str(numbers[0])
    return "[" + ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs) + "]"
