"""Tool use: offer some tools, ask for what one of them does, call it, answer from its result."""

import random
from dataclasses import replace

from benthic.tasks.conversation import Exchange, Json, ToolCall
from benthic.tasks.facts import NO_TOOL
from benthic.tasks.lexicon import Lexicon
from benthic.tasks.split import Split, belongs_to
from benthic.tasks.toolbox import TOOLS, Errand, Tool

NEEDS_A_TOOL = ("weather", "clock", "timer", "message", "light")
TWICE_SHARE = 0.1
"""How often a question asks the same of two places: two calls in one reply."""


def offer_tools(rng: random.Random, lexicon: Lexicon) -> list[Tool]:
    """One to four tools of different kinds, under different names."""
    count = rng.choices((1, 2, 3, 4), (4, 5, 3, 1))[0]
    kinds = list(TOOLS)
    tools: list[Tool] = []
    while len(tools) < count:
        kind = rng.choices(kinds, [TOOLS[kind][1] for kind in kinds])[0]
        tools.append(TOOLS[kind][0](rng, lexicon))
        kinds.remove(kind)
    return tools


def definitions(tools: list[Tool]) -> tuple[Json, ...]:
    return tuple(tool.definition for tool in tools)


def errand_exchange(rng: random.Random, tools: list[Tool], split: Split) -> Exchange:
    """A question for one of the offered tools, drawn until it lies on the side of `split`."""
    tool = rng.choice(tools)
    errand = draw_errand(rng, tool, split)
    errands = [errand]
    if errand.subject.startswith(("weather|", "clock|")) and rng.random() < TWICE_SHARE:
        second = draw_errand(rng, tool, split)
        names_only_places = len(errand.arguments) == len(second.arguments) == 1
        if second.subject != errand.subject and names_only_places:
            errands.append(second)
    return make_exchange(tool, errands)


def draw_errand(rng: random.Random, tool: Tool, split: Split) -> Errand:
    while True:
        errand = tool.draw(rng)
        if belongs_to((f"tools|{errand.subject}",), split):
            return errand


def declined_exchange(rng: random.Random, lexicon: Lexicon, tools: list[Tool], split: Split) -> Exchange:
    """An errand for a kind of tool that is not among those offered."""
    offered = {tool.kind for tool in tools}
    kind = rng.choice([kind for kind in NEEDS_A_TOOL if kind not in offered])
    errand = draw_errand(rng, TOOLS[kind][0](rng, lexicon), split)
    return Exchange(
        task="refusal",
        operands=(f"tools|{errand.subject}",),
        question=errand.question,
        reasoning="No tool offered here does that.",
        answer=NO_TOOL,
    )


def make_exchange(tool: Tool, errands: list[Errand]) -> Exchange:
    first = errands[0]
    exchange = Exchange(
        task="tools",
        operands=tuple(f"tools|{errand.subject}" for errand in errands),
        question=first.question,
        reasoning=f"I need {first.purpose}. Call {tool.name}.",
        answer=" ".join(errand.answer for errand in errands),
        calls=tuple(ToolCall(tool.name, errand.arguments) for errand in errands),
        results=tuple(errand.result for errand in errands),
        final_reasoning=" ".join(errand.finding for errand in errands),
    )
    if len(errands) == 1:
        return exchange
    places = [errand.subject.partition("|")[2] for errand in errands]
    what = "weather" if first.subject.startswith("weather|") else "time"
    return replace(
        exchange,
        question=f"What is the {what} in {places[0]} and {places[1]}?",
        reasoning=f"I need the {what} in {places[0]} and in {places[1]}. Call {tool.name} twice.",
    )
