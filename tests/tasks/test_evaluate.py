"""Grading, and the table that comes of it."""

import json
from importlib.resources import files
from pathlib import Path

import pytest

from benthic.tasks.cells import CELLS, Cell
from benthic.tasks.conversation import Conversation
from benthic.tasks.evaluate import CellResult, detail_lines, evaluate, judge, report_line
from benthic.tasks.grade import Reply, ReplyCall, is_right, is_well_formed
from benthic.tasks.requests import Body, request_bodies
from benthic.tasks.sources import Sources
from benthic.text.prompt import PromptEncoder
from benthic.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def sources() -> Sources:
    return Sources.bundled()


class Oracle:
    """Answers every body that it has been told the conversation of; `spoil` may then spoil the answer."""

    def __init__(self, conversations: list[Conversation]) -> None:
        self.answers: dict[str, Reply] = {}
        self.asked: list[Body] = []
        for conversation in conversations:
            (exchange,) = conversation.exchanges
            last = Reply(content=exchange.expected(conversation.thinking), reasoning=exchange.reasoning)
            replies = [last]
            if exchange.calls:
                calls = tuple(ReplyCall(call.name, json.dumps(call.arguments)) for call in exchange.calls)
                first = Reply(content="", reasoning=exchange.reasoning, calls=calls, finish_reason="tool_calls")
                replies = [first, Reply(content=exchange.answer)]
            for body, reply in zip(request_bodies(conversation), replies, strict=True):
                self.answers[json.dumps(body)] = reply

    def __call__(self, bodies: list[Body]) -> list[Reply]:
        self.asked += bodies
        return [self.answers[json.dumps(body)] for body in bodies]


def cell_named(task: str) -> Cell:
    return next(cell for cell in CELLS if cell.task == task)


@pytest.mark.parametrize("thinking", [False, True], ids=["direct", "thinking"])
@pytest.mark.parametrize("cell", CELLS, ids=[cell.name for cell in CELLS])
def test_an_oracle_is_right_everywhere(cell: Cell, thinking: bool, sources: Sources) -> None:
    conversations = cell.draw(thinking, sources, 0, 12)
    result = CellResult(cell, thinking, tuple(judge(conversations, Oracle(conversations))))
    assert result.right == 12
    assert result.well_formed == (12 if cell.task == "tools" else None)
    assert result.is_met
    assert "100.0 %    12/12" in report_line(result)
    assert detail_lines(result) is not None


@pytest.mark.parametrize("cell", CELLS, ids=[cell.name for cell in CELLS])
def test_silence_is_wrong_everywhere_and_misses_every_goal(cell: Cell, sources: Sources) -> None:
    conversations = cell.draw(False, sources, 0, 5)
    result = CellResult(cell, False, tuple(judge(conversations, lambda bodies: [Reply(content="") for _ in bodies])))
    assert result.right == 0
    assert result.is_met == (cell.goal is None)
    assert ("MISSED" in report_line(result)) == (cell.goal is not None)


def test_results_of_tools_are_only_sent_after_right_calls(sources: Sources) -> None:
    conversations = cell_named("tools").draw(False, sources, 0, 4)
    oracle = Oracle(conversations)
    broken = json.dumps(request_bodies(conversations[0])[0])
    oracle.answers[broken] = Reply(content="", calls=(ReplyCall("nothing", "{}"),), finish_reason="tool_calls")
    verdicts = judge(conversations, oracle)
    assert [verdict.is_right for verdict in verdicts] == [False, True, True, True]
    assert [verdict.is_well_formed for verdict in verdicts] == [False, True, True, True]
    assert len(oracle.asked) == 4 + 3


def test_counting_reads_the_last_number_and_nothing_else(sources: Sources) -> None:
    (conversation,) = cell_named("counting").draw(False, sources, 0, 1)
    (exchange,) = conversation.exchanges
    assert is_right(exchange, False, Reply(content=f"there are 99 and {exchange.answer}"))
    assert not is_right(exchange, False, Reply(content=f"{exchange.answer} of 99"))
    assert not is_right(exchange, False, Reply(content="none"))


def test_json_may_be_written_in_any_order_but_not_with_other_types(sources: Sources) -> None:
    conversations = cell_named("extraction").draw(False, sources, 0, 40)
    exchange = next(
        c.exchanges[0] for c in conversations if any(type(v) is int for v in json.loads(c.exchanges[0].answer).values())
    )
    values = json.loads(exchange.answer)
    assert is_right(exchange, False, Reply(content=json.dumps(dict(reversed(values.items())), indent=1)))
    as_text = {key: str(value) if type(value) is int else value for key, value in values.items()}
    assert not is_right(exchange, False, Reply(content=json.dumps(as_text)))
    assert not is_right(exchange, False, Reply(content=exchange.answer[:-1]))


def test_a_cut_reply_is_wrong_even_if_its_text_is_right(sources: Sources) -> None:
    (conversation,) = cell_named("sorting").draw(False, sources, 0, 1)
    (exchange,) = conversation.exchanges
    assert not is_right(exchange, False, Reply(content=exchange.answer, finish_reason="length"))


@pytest.mark.parametrize(
    "arguments",
    ["", "[]", "{", '{"city": "Oslo"', "{}", '{"city": 3}', '{"city": "Oslo", "more": 1}', '{"town": "Oslo"}'],
)
def test_calls_with_arguments_outside_the_schema_are_not_well_formed(arguments: str) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"name": "weather", "description": "", "parameters": schema}
    conversation = Conversation(exchanges=(), thinking=False, tools=(tool,))
    call = ReplyCall("weather", arguments)
    assert not is_well_formed(conversation, Reply(content="", calls=(call,), finish_reason="tool_calls"))
    good = ReplyCall("weather", '{"city": "Oslo"}')
    assert is_well_formed(conversation, Reply(content="", calls=(good,), finish_reason="tool_calls"))


def test_a_reply_is_read_from_a_chat_completion() -> None:
    function = {"name": "weather", "arguments": '{"city": "Oslo"}'}
    message = {"content": None, "reasoning_content": "hm", "tool_calls": [{"id": "x", "function": function}]}
    reply = Reply.from_chat_completion({"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    assert reply == Reply(
        content="", reasoning="hm", calls=(ReplyCall("weather", '{"city": "Oslo"}'),), finish_reason="tool_calls"
    )


def test_evaluation_covers_every_cell_in_both_modes() -> None:
    results = list(evaluate(lambda bodies: [Reply(content="no") for _ in bodies], per_cell=2))
    assert [(result.cell.name, result.thinking) for result in results] == [
        (cell.name, thinking) for cell in CELLS for thinking in (False, True)
    ]


def test_every_prompt_leaves_room_for_its_reply(sources: Sources) -> None:
    tokenizer = Tokenizer(Path(str(files("benthic") / "assets" / "tiny")))
    encoder = PromptEncoder(tokenizer, context_len=8192)
    for cell in CELLS:
        for conversation in cell.draw(True, sources, 0, 40):
            for body in request_bodies(conversation):
                encoder.encode("chat", body)  # raises where prompt and max_tokens exceed the context
