"""The cells of the published table: what is examined, in which mode, and how good it must be."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from benthic.tasks.conversation import Conversation, Exchange
from benthic.tasks.lookup import list_lookup
from benthic.tasks.mixture import make_conversation
from benthic.tasks.sources import Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A task as it is examined, in both modes. A goal is a share of right replies; None: shown, not demanded."""

    name: str
    task: str
    goal: float | None
    well_formed_goal: float | None = None
    accepts: Callable[[Exchange], bool] = lambda exchange: True
    """Which of the task's exchanges belong here."""

    def draw(self, thinking: bool, sources: Sources, seed: int, count: int) -> list[Conversation]:
        """Held-out conversations of one exchange each; a longer draw begins with the shorter one."""
        rng = random.Random(f"{self.name} {thinking} {seed}")
        conversations: list[Conversation] = []
        while len(conversations) < count:
            conversation = self._draw_one(rng, thinking, sources)
            if self.accepts(conversation.exchanges[0]):
                conversations.append(conversation)
        return conversations

    def _draw_one(self, rng: random.Random, thinking: bool, sources: Sources) -> Conversation:
        if self.task == "long lookup":
            exchanges = list_lookup(rng, sources.lexicon, rng.randint(1_500, 7_500), 1)
            return Conversation(exchanges=tuple(exchanges), thinking=thinking)
        return make_conversation(rng, sources, self.task, thinking=thinking, split="test", is_alone=True)


def has_three_digits(exchange: Exchange) -> bool:
    """Whether both operands do."""
    return all(len(operand) == 3 for operand in operand_fields(exchange))


def has_fewer_digits(exchange: Exchange) -> bool:
    return not has_three_digits(exchange)


CELLS = (
    Cell(name="addition, three digits", task="addition", goal=0.97, accepts=has_three_digits),
    Cell(name="addition, fewer digits", task="addition", goal=0.93, accepts=has_fewer_digits),
    Cell(name="subtraction", task="subtraction", goal=0.93),
    Cell(name="sorting", task="sorting", goal=0.93),
    Cell(name="reversing a word", task="reversal", goal=0.93),
    Cell(name="counting letters", task="counting", goal=0.93),
    Cell(name="JSON to a schema", task="extraction", goal=0.93),
    Cell(name="tool call and answer", task="tools", goal=0.93, well_formed_goal=0.98),
    Cell(name="questions about Benthic", task="facts", goal=0.93),
    Cell(name="declining the impossible", task="refusal", goal=None),
    Cell(name="lookup, short list", task="lookup", goal=None),
    Cell(name="lookup, long list", task="long lookup", goal=None),
)


def operand_fields(exchange: Exchange) -> list[str]:
    """The parts of the first operand after the name of its task."""
    return exchange.operands[0].split("|")[1:]


def traits(conversation: Conversation) -> list[str]:
    """What an exchange has in particular: the rows of the sub-tables, each of which has exposed a fault before."""
    exchange = conversation.exchanges[0]
    fields = operand_fields(exchange)
    match exchange.task:
        case "addition":
            return ["lengths " + "+".join(sorted(str(len(field)) for field in fields))]
        case "subtraction":
            sign = "negative" if exchange.answer.startswith("-") else "not negative"
            return [sign, "lengths " + "-".join(str(len(field)) for field in fields)]
        case "sorting":
            repeats = "repeated number" if len(set(fields)) < len(fields) else "all different"
            lengths = "lengths " + "/".join(sorted({str(len(field)) for field in fields}))
            return [f"{len(fields)} numbers", repeats, lengths]
        case "reversal" | "counting":
            length = f"{min(len(fields[0]) // 3 * 3, 9)}+ letters"
            return [length, *([f"count {exchange.answer}"] if exchange.task == "counting" else [])]
        case "extraction":
            return ["schema" if isinstance(conversation.response_format, dict) else "json_object"]
        case "tools":
            return [fields[0], f"{len(exchange.calls)} call(s)", f"{len(conversation.tools)} offered"]
        case _:
            return []
