"""Putting three to six numbers in order."""

import random

from benthic.tasks.conversation import Exchange
from benthic.tasks.lexicon import Lexicon
from benthic.tasks.phrasing import word_request

ASCENDING = (
    "",
    "",
    " in ascending order",
    " from smallest to largest",
    " in increasing order",
    " from low to high",
    ", smallest first",
)
DESCENDING = (
    " in descending order",
    " from largest to smallest",
    " in decreasing order",
    " from high to low",
    ", largest first",
    " in reverse order",
)
FORMS = (
    "Sort these numbers{order}: {numbers}",
    "Sort the numbers {numbers}{order}.",
    "Sort {numbers}{order}.",
    "Sort{order}: {numbers}",
    "Sort this list{order}: {numbers}",
    "Put these numbers in order{order}: {numbers}",
    "Order the numbers {numbers}{order}.",
    "Order these{order}: {numbers}",
    "Arrange {numbers}{order}.",
    "Arrange these numbers{order}: {numbers}",
    "Can you sort {numbers}{order}?",
    "Could you sort these numbers{order}: {numbers}",
    "Rank these numbers{order}: {numbers}",
    "I need these numbers sorted{order}: {numbers}",
    "Here are some numbers: {numbers}. Sort them{order}.",
    "{numbers}. Sort these{order}.",
    "What is the sorted order of {numbers}{order}?",
)
LISTINGS = (", ".join, ", ".join, ", ".join, " ".join, ",".join, lambda parts: "[" + ", ".join(parts) + "]")
DESCENDING_SHARE = 0.3


def sorting(rng: random.Random, lexicon: Lexicon) -> Exchange:
    """Numbers of mixed lengths, repetitions included, in either direction."""
    numbers = draw_numbers(rng)
    is_descending = rng.random() < DESCENDING_SHARE
    order = rng.choice(DESCENDING if is_descending else ASCENDING)
    listing = rng.choice(LISTINGS)(list(map(str, numbers)))
    result = [str(number) for number in sorted(numbers, reverse=is_descending)]
    return Exchange(
        task="sorting",
        operands=("|".join(map(str, ("sorting", *sorted(numbers)))),),
        question=word_request(rng, FORMS, order=order, numbers=listing),
        reasoning="first " + "; then ".join(result) + ".",
        answer=", ".join(result),
    )


def draw_numbers(rng: random.Random) -> list[int]:
    """Either all of one length or each of its own; one list in eight repeats a number."""
    count = rng.choices((3, 4, 5, 6), (1, 2, 4, 2))[0]
    lengths = rng.choice(((1,), (2,), (2,), (3,), (3,), (1, 2), (2, 3), (1, 2, 3), (1, 2, 3), (1, 2, 3)))
    numbers = [draw_of_length(rng, rng.choice(lengths)) for _ in range(count)]
    if rng.random() < 1 / 8:
        numbers[rng.randrange(count)] = numbers[rng.randrange(count)]
    return numbers


def draw_of_length(rng: random.Random, length: int) -> int:
    return rng.randint(0 if length == 1 else 10 ** (length - 1), 10**length - 1)
