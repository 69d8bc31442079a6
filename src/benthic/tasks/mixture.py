"""What the model is trained on: how often each task, in which mode, in what company.

Shares are of documents, not of tokens: conversations with tools are ten times as long as sums, and would otherwise be
half of all that is read.
"""

import random
from collections.abc import Callable
from dataclasses import replace

from benthic.tasks.arithmetic import addition, subtraction
from benthic.tasks.conversation import Conversation, Exchange
from benthic.tasks.extraction import extraction
from benthic.tasks.facts import facts, refusal
from benthic.tasks.lexicon import Lexicon
from benthic.tasks.lookup import list_lookup, text_lookup
from benthic.tasks.phrasing import system_prompt
from benthic.tasks.sorting import sorting
from benthic.tasks.sources import Sources
from benthic.tasks.spelling import counting, reversal, spelling
from benthic.tasks.split import Split, belongs_to
from benthic.tasks.tools import declined_exchange, definitions, errand_exchange, offer_tools

EXCHANGES: dict[str, Callable[[random.Random, Lexicon], Exchange]] = {
    "addition": addition,
    "subtraction": subtraction,
    "sorting": sorting,
    "reversal": reversal,
    "counting": counting,
    "spelling": spelling,
    "facts": facts,
    "refusal": refusal,
}
"""Tasks of one question and one answer that need nothing else in the conversation."""

MIXTURES: dict[str, dict[str, float]] = {
    "short": {
        "addition": 19,
        "subtraction": 20,
        "sorting": 12,
        "reversal": 11,
        "counting": 12,
        "spelling": 5,
        "extraction": 11,
        "tools": 4,
        "facts": 4,
        "refusal": 2,
        "lookup": 0.6,
        "text": 6,
    },
    "long": {
        "addition": 10,
        "subtraction": 10,
        "sorting": 6,
        "reversal": 6,
        "counting": 6,
        "spelling": 2,
        "extraction": 5,
        "tools": 3,
        "facts": 2,
        "refusal": 1,
        "text": 3,
        "long lookup": 3,
        "long text lookup": 1,
        "long chat": 1,
        "long tools": 0.7,
        "long text": 0.7,
    },
}
"""Name of a stage's mixture to shares of documents; the long stage keeps short ones, lest they be forgotten."""

THINKING_SHARE = {"addition": 0.3, "subtraction": 0.3}
"""Share of thinking where it is not 0.4: sums are learned early with thinking and late without."""

MAXIMUM_EFFORT_SHARE = 0.02
COMPANY = ("addition", "subtraction", "sorting", "reversal", "counting", "facts", "refusal")
"""Tasks that may share a conversation with another."""
LONG_CHARACTERS = (1_500, 18_000)
"""Range of the long documents' lengths, drawn uniformly in the logarithm; about three characters a token."""


def sample_conversation(rng: random.Random, sources: Sources, task: str) -> Conversation:
    """A training conversation of one task, in either mode, perhaps with other questions before or after it."""
    thinking = rng.random() < THINKING_SHARE.get(task, 0.4)
    if task.startswith("long "):
        conversation = LONG[task](rng, sources, thinking)
    else:
        conversation = make_conversation(rng, sources, task, thinking=thinking, split="train", is_alone=False)
    return replace(conversation, maximum_effort=thinking and rng.random() < MAXIMUM_EFFORT_SHARE)


def make_conversation(
    rng: random.Random, sources: Sources, task: str, *, thinking: bool, split: Split, is_alone: bool
) -> Conversation:
    """A conversation about `task` with operands of `split`; `is_alone`: about nothing else."""
    lexicon = sources.lexicon
    if task == "tools":
        return tools_conversation(rng, sources, thinking=thinking, split=split, is_alone=is_alone)
    if task == "extraction":
        while True:
            exchange, response_format = extraction(rng, lexicon)
            if belongs_to(exchange.operands, split):
                break
        return Conversation(
            exchanges=(exchange,), thinking=thinking, system=system_prompt(rng), response_format=response_format
        )
    if task == "lookup":
        exchanges = list_lookup(rng, lexicon, rng.randint(80, 1000), 1 if is_alone else rng.randint(1, 3))
        return Conversation(exchanges=tuple(exchanges), thinking=thinking, system=system_prompt(rng))
    exchanges = [draw_exchange(rng, lexicon, task, split)]
    company = 0 if is_alone else rng.choices((0, 1, 2), (80, 15, 5))[0]
    exchanges += [draw_exchange(rng, lexicon, rng.choice(COMPANY), split) for _ in range(company)]
    rng.shuffle(exchanges)
    return Conversation(exchanges=tuple(exchanges), thinking=thinking, system=system_prompt(rng))


def draw_exchange(rng: random.Random, lexicon: Lexicon, task: str, split: Split) -> Exchange:
    while True:
        exchange = EXCHANGES[task](rng, lexicon)
        if belongs_to(exchange.operands, split):
            return exchange


def tools_conversation(
    rng: random.Random, sources: Sources, *, thinking: bool, split: Split, is_alone: bool, rounds: int = 0
) -> Conversation:
    """Errands with the offered tools; among them, now and then, a question that needs none or one that is missing."""
    lexicon = sources.lexicon
    tools = offer_tools(rng, lexicon)
    has_calculator = any(tool.kind == "calculator" for tool in tools)
    rounds = rounds or (1 if is_alone else rng.choices((1, 2, 3), (45, 40, 15))[0])
    exchanges = []
    for _ in range(rounds):
        kind = "errand" if is_alone else rng.choices(("errand", "company", "declined"), (84, 12, 4))[0]
        company = rng.choice(COMPANY[2:] if has_calculator else COMPANY)
        if kind == "errand" or (kind == "company" and company == "refusal"):
            exchanges.append(errand_exchange(rng, tools, split))
        elif kind == "company":
            exchanges.append(draw_exchange(rng, lexicon, company, split))
        else:
            exchanges.append(declined_exchange(rng, lexicon, tools, split))
    return Conversation(
        exchanges=tuple(exchanges), thinking=thinking, system=system_prompt(rng), tools=definitions(tools)
    )


def draw_length(rng: random.Random) -> int:
    low, high = LONG_CHARACTERS
    return int(low * (high / low) ** rng.random())


def long_lookup(rng: random.Random, sources: Sources, thinking: bool) -> Conversation:
    # Lists of names are spelled in many short tokens: half the characters of running text fill the context.
    exchanges = list_lookup(rng, sources.lexicon, draw_length(rng) // 2, rng.randint(3, 10))
    return Conversation(exchanges=tuple(exchanges), thinking=thinking, system=system_prompt(rng))


def long_text_lookup(rng: random.Random, sources: Sources, thinking: bool) -> Conversation:
    passages = sources.text[rng.choice(list(sources.text))]
    exchanges = text_lookup(rng, passages, draw_length(rng), rng.randint(2, 6))
    return Conversation(exchanges=tuple(exchanges), thinking=thinking, system=system_prompt(rng))


def long_chat(rng: random.Random, sources: Sources, thinking: bool) -> Conversation:
    """Many turns about anything; the last ones ask for a value given in the first."""
    length = draw_length(rng)
    first, *later = list_lookup(rng, sources.lexicon, 200, 4)
    exchanges = [first]
    while sum(len(exchange.question) + len(exchange.answer) for exchange in exchanges) < length:
        exchanges.append(draw_exchange(rng, sources.lexicon, rng.choice(COMPANY), "train"))
    return Conversation(exchanges=(*exchanges, *later), thinking=thinking, system=system_prompt(rng))


def long_tools(rng: random.Random, sources: Sources, thinking: bool) -> Conversation:
    rounds = max(2, draw_length(rng) // 400)
    return tools_conversation(rng, sources, thinking=thinking, split="train", is_alone=False, rounds=rounds)


LONG: dict[str, Callable[[random.Random, Sources, bool], Conversation]] = {
    "long lookup": long_lookup,
    "long text lookup": long_text_lookup,
    "long chat": long_chat,
    "long tools": long_tools,
}
