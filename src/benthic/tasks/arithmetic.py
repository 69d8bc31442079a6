"""Addition and subtraction of numbers below a thousand, digit by digit when thinking."""

import random

from benthic.tasks.conversation import Exchange
from benthic.tasks.lexicon import Lexicon
from benthic.tasks.names import ITEMS, first_name
from benthic.tasks.phrasing import word_request

ADDITION_FORMS = (
    "What is {a} + {b}?",
    "What is {a} + {b}?",
    "What is {a}+{b}?",
    "What's {a} + {b}?",
    "What is {a} plus {b}?",
    "What's {a} plus {b}?",
    "{a} + {b} = ?",
    "{a} + {b} =",
    "{a}+{b}=",
    "{a} + {b}",
    "{a}+{b}",
    "{a} plus {b}?",
    "{a} plus {b} is what?",
    "{a} and {b} together?",
    "Add {a} and {b}.",
    "Add {a} to {b}.",
    "Add the numbers {a} and {b}.",
    "Calculate {a} + {b}.",
    "Calculate the sum of {a} and {b}.",
    "Compute {a} + {b}.",
    "Compute the sum of {a} and {b}.",
    "What is the sum of {a} and {b}?",
    "What is the total of {a} and {b}?",
    "Give me the sum of {a} and {b}.",
    "I need the sum of {a} and {b}.",
    "I want to know {a} + {b}.",
    "How much is {a} plus {b}?",
    "How much is {a} + {b}?",
    "How much do {a} and {b} make?",
    "What do you get when you add {a} to {b}?",
    "What do you get if you add {a} and {b}?",
    "If I add {a} and {b}, what do I get?",
    "Sum: {a} + {b}",
    "Sum up {a} and {b}.",
    "Tell me {a} plus {b}.",
    "Tell me what {a} + {b} is.",
    "Could you add {a} and {b} for me?",
    "Can you add {a} and {b}?",
    "Can you tell me what {a} + {b} is?",
    "Would you add {a} and {b}?",
    "Solve {a} + {b}.",
    "Work out {a} plus {b}.",
    "Find {a} + {b}.",
    "Evaluate {a} + {b}.",
    "What does {a} + {b} equal?",
    "What does {a} plus {b} make?",
    "What number is {a} + {b}?",
    "{name} has {a} {items} and gets {b} more. How many {items} is that?",
    "{name} has {a} {items} and {other} has {b}. How many {items} do they have together?",
    "There are {a} {items} in one box and {b} in another. How many are there in all?",
)
SUBTRACTION_FORMS = (
    "What is {a} - {b}?",
    "What is {a} - {b}?",
    "What is {a}-{b}?",
    "What's {a} - {b}?",
    "What is {a} minus {b}?",
    "What's {a} minus {b}?",
    "{a} - {b} = ?",
    "{a} - {b} =",
    "{a}-{b}=",
    "{a} - {b}",
    "{a}-{b}",
    "{a} minus {b}?",
    "{a} minus {b} is what?",
    "Subtract {b} from {a}.",
    "Take {b} away from {a}.",
    "Take {b} from {a}.",
    "Calculate {a} - {b}.",
    "Calculate {a} minus {b}.",
    "Compute {a} - {b}.",
    "What is the difference {a} - {b}?",
    "Give me {a} minus {b}.",
    "I need {a} minus {b}.",
    "I want to know {a} - {b}.",
    "How much is {a} minus {b}?",
    "How much is {a} - {b}?",
    "How much is left of {a} if you take away {b}?",
    "What do you get when you subtract {b} from {a}?",
    "What do you get if you take {b} from {a}?",
    "If I subtract {b} from {a}, what do I get?",
    "Tell me {a} minus {b}.",
    "Tell me what {a} - {b} is.",
    "Could you subtract {b} from {a} for me?",
    "Can you subtract {b} from {a}?",
    "Can you tell me what {a} - {b} is?",
    "Solve {a} - {b}.",
    "Work out {a} minus {b}.",
    "Find {a} - {b}.",
    "Evaluate {a} - {b}.",
    "What does {a} - {b} equal?",
    "What number is {a} - {b}?",
)
SUBTRACTION_STORIES = (
    "{name} has {a} {items} and gives away {b}. How many {items} are left?",
    "{name} had {a} {items} and lost {b}. How many {items} are left?",
    "There were {a} {items} in the box and {b} were sold. How many {items} are left?",
)
STORY_SHARE = 0.06
NEGATIVE_SHARE = 0.2


def addition(rng: random.Random, lexicon: Lexicon) -> Exchange:
    """Two numbers from 0 to 999, most often both of three digits."""
    a, b = draw_operands(rng)
    slots = {"a": a, "b": b, "items": rng.choice(ITEMS), "name": first_name(rng), "other": first_name(rng)}
    return Exchange(
        task="addition",
        operands=(f"addition|{min(a, b)}|{max(a, b)}",),
        question=word_request(rng, ADDITION_FORMS, **slots),
        reasoning=addition_steps(a, b),
        answer=str(a + b),
    )


def subtraction(rng: random.Random, lexicon: Lexicon) -> Exchange:
    """Two numbers from 0 to 999; a fifth of the differences is negative."""
    a, b = draw_operands(rng)
    if (a < b) != (rng.random() < NEGATIVE_SHARE):
        a, b = b, a
    forms = SUBTRACTION_STORIES if a >= b and rng.random() < STORY_SHARE else SUBTRACTION_FORMS
    return Exchange(
        task="subtraction",
        operands=(f"subtraction|{a}|{b}",),
        question=word_request(rng, forms, a=a, b=b, items=rng.choice(ITEMS), name=first_name(rng)),
        reasoning=subtraction_steps(a, b),
        answer=str(a - b),
    )


def draw_operands(rng: random.Random) -> tuple[int, int]:
    """Lengths are drawn first: of uniform numbers only a hundredth would have one digit."""
    if rng.random() < 0.55:
        return rng.randint(100, 999), rng.randint(100, 999)
    return draw_number(rng), draw_number(rng)


def draw_number(rng: random.Random) -> int:
    """A number of one, two or three digits; the shorter ones are fewer, and so drawn less often."""
    low, high = rng.choices(((0, 9), (10, 99), (100, 999)), (2, 4, 4))[0]
    return rng.randint(low, high)


def addition_steps(a: int, b: int) -> str:
    """Column by column from the right: `7+5=12, write 2, carry 1; 4+8+1=13, write 3, carry 1; 3+2+1=6. So 632.`"""
    steps, carry = [], 0
    for i in range(max(len(str(a)), len(str(b)))):
        p, q = digit(a, i), digit(b, i)
        total = p + q + carry
        step = f"{p}+{q}{'+1' if carry else ''}={total}"
        carry = total // 10
        steps.append(f"{step}, write {total % 10}, carry 1" if carry else step)
    return "; ".join(steps) + f". So {a + b}."


def subtraction_steps(a: int, b: int) -> str:
    """As `addition_steps`, with borrowing; a negative difference is computed the other way round."""
    if a < b:
        return f"{a} is less than {b}, so the result is negative. {b}-{a}: {borrowing_steps(b, a)}. So {a - b}."
    return f"{borrowing_steps(a, b)}. So {a - b}."


def borrowing_steps(a: int, b: int) -> str:
    assert a >= b
    steps, borrowed = [], 0
    for i in range(len(str(a))):
        p, q = digit(a, i), digit(b, i)
        less = f"{'-1' if borrowed else ''}-{q}"
        value = p - borrowed - q
        borrowed = int(value < 0)
        steps.append(f"{p}{less}, borrow, 1{p}{less}={value + 10}" if borrowed else f"{p}{less}={value}")
    return "; ".join(steps)


def digit(number: int, place: int) -> int:
    return int(str(number)[-1 - place]) if place < len(str(number)) else 0
