"""The lessons are right: every answer is checked by other means than it was made with."""

import json
import random
import re
from collections import Counter

import pytest

from benthic.tasks.arithmetic import addition, subtraction
from benthic.tasks.conversation import Conversation, Exchange
from benthic.tasks.extraction import extraction
from benthic.tasks.facts import ANSWERS, BEYOND, facts, refusal
from benthic.tasks.grade import ReplyCall, obeys
from benthic.tasks.lexicon import Lexicon, bundled_words
from benthic.tasks.lookup import list_lookup, text_lookup
from benthic.tasks.mixture import EXCHANGES, make_conversation
from benthic.tasks.phrasing import word_request
from benthic.tasks.sorting import DESCENDING, sorting
from benthic.tasks.sources import Sources
from benthic.tasks.spelling import counting, reversal, spelling


@pytest.fixture(scope="module")
def lexicon() -> Lexicon:
    return Lexicon(bundled_words())


@pytest.fixture(scope="module")
def sources() -> Sources:
    return Sources.bundled()


def numbers_in(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def test_sums_are_sums_of_the_numbers_in_the_question(seed: int, lexicon: Lexicon) -> None:
    rng = random.Random(seed)
    for _ in range(2000):
        exchange = addition(rng, lexicon)
        assert int(exchange.answer) == sum(numbers_in(exchange.question)), exchange


def test_differences_are_differences_of_the_numbers_in_the_question(seed: int, lexicon: Lexicon) -> None:
    rng = random.Random(seed)
    signs = Counter()
    for _ in range(2000):
        exchange = subtraction(rng, lexicon)
        a, b = numbers_in(exchange.question)
        is_turned = re.search(r"(subtract|take|take away) \d+ (away )?from", exchange.question, re.IGNORECASE)
        assert int(exchange.answer) == (b - a if is_turned else a - b), exchange
        signs[exchange.answer.startswith("-")] += 1
    assert 0.1 < signs[True] / 2000 < 0.3


@pytest.mark.parametrize("task", [addition, subtraction])
def test_every_step_of_the_arithmetic_is_true_and_the_digits_written_make_the_answer(
    task: object, seed: int, lexicon: Lexicon
) -> None:
    rng = random.Random(seed)
    for _ in range(2000):
        exchange = task(rng, lexicon)  # type: ignore[operator]
        steps = re.sub(r"^.*negative\. \d+-\d+: ", "", exchange.reasoning).removesuffix(f". So {exchange.answer}.")
        digits = []
        for step in steps.split("; "):
            equation = re.search(r"([\d+-]+)=(\d+)", step)
            assert equation and eval(equation[1]) == int(equation[2]), exchange  # noqa: S307  digits and signs only
            digits.append(int(equation[2]) % 10)
            assert ("carry" in step) == (task is addition and int(equation[2]) > 9)
        value = int("".join(map(str, reversed(digits))))
        if task is addition and int(equation[2]) > 9:
            value += 10 ** len(digits)
        assert value == abs(int(exchange.answer)), exchange


def test_sorted_lists_hold_the_same_numbers_in_the_order_asked_for(seed: int, lexicon: Lexicon) -> None:
    rng = random.Random(seed)
    repeated = 0
    for _ in range(1000):
        exchange = sorting(rng, lexicon)
        given, result = numbers_in(exchange.question), numbers_in(exchange.answer)
        is_descending = any(order.lower() in exchange.question.lower() for order in DESCENDING)
        assert result == sorted(given, reverse=is_descending), exchange
        assert numbers_in(exchange.reasoning) == result
        repeated += len(set(given)) < len(given)
    assert repeated > 50


def test_reversed_words_read_backwards_and_stand_in_the_question(seed: int, lexicon: Lexicon) -> None:
    rng = random.Random(seed)
    for _ in range(1000):
        exchange = reversal(rng, lexicon)
        word = "".join(reversed(exchange.answer))
        assert re.search(rf"(?<![A-Za-z]){word}(?![A-Za-z])", exchange.question), exchange
        letters = exchange.reasoning.partition(";")[0].split()
        assert "".join(letters) == word


def test_counts_are_the_letters_of_the_word_whatever_their_case(seed: int, lexicon: Lexicon) -> None:
    rng = random.Random(seed)
    for _ in range(1000):
        exchange = counting(rng, lexicon)
        word = exchange.operands[0].removeprefix("word|")
        shown = exchange.expected(thinking=False)
        tally, _, total = shown.rpartition(": ")
        assert re.sub(r"[ \d]", "", tally) == word
        counted = {letter for letter, _ in re.findall(r"([a-z]) (\d)", tally)}
        if len(counted) <= 1:
            asked = counted.pop() if counted else None
            assert int(total) == (word.count(asked) if asked else 0)
        else:
            assert int(total) == len(word)
        assert exchange.answer == total
        assert word in exchange.question.lower()


def test_spelling_lists_give_each_word_of_the_question(seed: int, lexicon: Lexicon) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        exchange = spelling(rng, lexicon)
        words = [operand.removeprefix("word|") for operand in exchange.operands]
        answers = [answer.replace(" ", "") for answer in exchange.answer.split(", ")]
        assert [answer[::-1] if exchange.spelled else answer for answer in map(str.lower, answers)] == words


def test_extracted_objects_obey_their_schema_and_their_values_stand_in_the_text(seed: int, lexicon: Lexicon) -> None:
    rng = random.Random(seed)
    formats = Counter()
    for _ in range(1000):
        exchange, response_format = extraction(rng, lexicon)
        values = json.loads(exchange.answer)
        formats[type(response_format)] += 1
        if isinstance(response_format, dict):
            assert list(values) == list(response_format["properties"])
            assert set(response_format.get("required", ())) <= set(values)
        for value in values.values():
            stated = value if isinstance(value, list) else [value]
            assert isinstance(value, bool) or all(str(item).lower() in exchange.question.lower() for item in stated)
    assert len(formats) == 2


def test_tool_calls_obey_the_definitions_offered_with_them(seed: int, sources: Sources) -> None:
    rng = random.Random(seed)
    called = Counter()
    for _ in range(600):
        conversation = make_conversation(rng, sources, "tools", thinking=False, split="train", is_alone=False)
        offered = {tool["name"]: tool["parameters"] for tool in conversation.tools}
        for exchange in conversation.exchanges:
            for call in exchange.calls:
                call = ReplyCall(call.name, json.dumps(call.arguments))
                assert obeys(call.arguments, offered[call.name]), exchange
                called[exchange.operands[0].split("|")[1]] += 1
    assert len(called) == 8, "a kind of tool is never called"


def test_arguments_and_answers_of_tool_calls_follow_from_question_and_result(seed: int, sources: Sources) -> None:
    rng = random.Random(seed)
    for _ in range(400):
        conversation = make_conversation(rng, sources, "tools", thinking=False, split="test", is_alone=True)
        (exchange,) = conversation.exchanges
        shown = (exchange.question + " ".join(exchange.results)).lower()
        for call in exchange.calls:
            for value in call.arguments.values():
                words = str(value).lower().split() if not isinstance(value, bool) else ["on" if value else "off"]
                assert all(word in shown or word in "*/+-" for word in words), exchange
        for number in re.findall(r"\d+", exchange.answer):
            assert number in shown, exchange


def test_lookups_answer_with_the_value_beside_the_key(seed: int, lexicon: Lexicon) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        first, *later = list_lookup(rng, lexicon, rng.randint(80, 4000), 3)
        for exchange in (first, *later):
            _, key, value = exchange.operands[0].split("|")
            assert len(re.findall(rf"(?m)^(- )?{key}(: | = |, | has ){value}$", first.question)) == 1
            assert exchange.answer == value


def test_codes_hidden_in_text_are_found_there(seed: int) -> None:
    passages = [f"Passage number {number} says little." for number in range(50)]
    for first, *later in (text_lookup(random.Random(seed + i), passages, 600, 3) for i in range(50)):
        for exchange in (first, *later):
            _, city, code = exchange.operands[0].split("|")
            assert f"the code of {city} is {code}." in first.question.lower().replace(city.lower(), city)


def test_every_wording_of_a_question_about_benthic_has_one_answer(seed: int, lexicon: Lexicon) -> None:
    rng = random.Random(seed)
    answers: dict[str, set[str]] = {}
    for exchange in (facts(rng, lexicon) for _ in range(8000)):
        answers.setdefault(exchange.operands[0], set()).add(exchange.answer)
    assert {len(given) for given in answers.values()} == {1}
    assert {answer for given in answers.values() for answer in given} == {answer for answer, _ in ANSWERS}


def test_refusals_say_what_can_be_done_instead(seed: int, lexicon: Lexicon) -> None:
    rng = random.Random(seed)
    given = Counter(refusal(rng, lexicon).answer for _ in range(500))
    assert set(given) == {answer for answer, _ in BEYOND}


@pytest.mark.parametrize("task", list(EXCHANGES))
def test_no_pattern_or_slot_is_left_unfilled(task: str, seed: int, lexicon: Lexicon) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        exchange: Exchange = EXCHANGES[task](rng, lexicon)
        assert not re.search(r"[{}|]", exchange.question + exchange.answer + exchange.reasoning), exchange
        assert exchange.question == exchange.question.strip()
        assert exchange.answer


def test_careless_wording_changes_case_and_marks_but_no_slot() -> None:
    rng = random.Random(1)
    wordings = {word_request(rng, ("What is {a} in {b}?",), a="Oslo", b="May") for _ in range(400)}
    assert "what is Oslo in May" in wordings
    assert all("Oslo in May" in wording for wording in wordings)


def test_conversations_are_drawn_from_their_generator_alone(sources: Sources) -> None:
    def draw(seed: int) -> list[Conversation]:
        rng = random.Random(seed)
        return [
            make_conversation(rng, sources, task, thinking=True, split="train", is_alone=False)
            for task in (*EXCHANGES, "extraction", "tools", "lookup")
        ]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
