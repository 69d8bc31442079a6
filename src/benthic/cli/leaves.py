"""Configuration leaves on the command line: words such as `--engine.max_num_seqs 64`, taken out before parsing.

The parser of a verb cannot know them (there are as many as the configurations have fields), and must not mistake
their values for its own arguments.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Separated(NamedTuple):
    """`own` words belong to the verb, `leaves` to configurations, both in order."""

    own: list[str]
    leaves: list[str]


def separate_leaves(arguments: Sequence[str]) -> Separated:
    """A leaf is an option with a dot in its name; its value is the next word unless `=` or another option follows."""
    own: list[str] = []
    leaves: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == "--":
            return Separated([*own, word, *words], leaves)
        name, has_value, _ = word.partition("=")
        if not name.startswith("--") or "." not in name:
            own.append(word)
            continue
        leaves.append(word)
        if not has_value and words and not words[0].startswith("--"):
            leaves.append(words.pop(0))
    return Separated(own, leaves)
