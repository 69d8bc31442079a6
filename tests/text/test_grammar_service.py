"""Grammars are tried in a child: remembered, given up when they take too long, and whatever becomes of the child."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benthic.errors import BadSchema, CapacityError
from benthic.text.grammar import GrammarSpec, choice_grammar, json_schema_grammar, regex_grammar
from benthic.text.grammar_service import GrammarService

SLOW = GrammarSpec(kind="ebnf", source="root ::= " + " | ".join(f'"{n}x"' for n in range(20_000)), param="ebnf")
"""Takes seconds."""


@pytest.fixture(scope="module")
def seen() -> list[float]:
    return []


@pytest.fixture(scope="module")
def service(tiny_folder: Path, seen: list[float]) -> Iterator[GrammarService]:
    service = GrammarService(tiny_folder / "tokenizer.json", timeout_s=20, cache_size=4, observe=seen.append)
    yield service
    service.close()


def test_an_outcome_is_remembered_good_or_bad(service: GrammarService, seen: list[float]) -> None:
    good = json_schema_grammar({"type": "integer"}, "p")
    first = service.compile(good)
    count = len(seen)
    assert service.compile(good) == first and len(seen) == count
    assert service.compile(json_schema_grammar({"type": "number"}, "p")).key != first.key
    for _ in range(2):
        with pytest.raises(BadSchema, match="parenthesis") as error:
            service.compile(regex_grammar("(a", "guided_regex"))
        assert error.value.param == "guided_regex"
    assert len(seen) == count + 2


def test_only_the_latest_outcomes_are_kept(service: GrammarService, seen: list[float]) -> None:
    specs = [choice_grammar([text], "p") for text in "abcdef"]
    for spec in specs:
        service.compile(spec)
    count = len(seen)
    service.compile(specs[-1])
    assert len(seen) == count
    service.compile(specs[0])
    assert len(seen) == count + 1


def test_a_child_that_was_killed_is_replaced(service: GrammarService) -> None:
    service.compile(choice_grammar(["x"], "p"))
    pid = service.child_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    service.compile(choice_grammar(["y"], "p"))
    assert service.child_pid not in (None, pid)


def test_a_grammar_that_takes_too_long_is_refused_at_once_the_second_time(tiny_folder: Path) -> None:
    service = GrammarService(tiny_folder / "tokenizer.json", timeout_s=0.05)
    try:
        for _ in range(2):
            with pytest.raises(BadSchema, match="more than 0.05 seconds"):
                service.compile(SLOW)
        assert service.child_pid is None
    finally:
        service.close()


def test_what_nobody_waits_for_any_more_is_not_tried(service: GrammarService, seen: list[float]) -> None:
    first = service.submit(json_schema_grammar({"enum": list(range(1500))}, "p"))
    second = service.submit(choice_grammar(["left"], "p"))
    is_cancelled = second.cancel()
    first.result()
    count = len(seen)
    service.compile(choice_grammar(["right"], "p"))
    assert len(seen) == count + 1
    assert is_cancelled


def test_a_closed_service_takes_nothing_new(tiny_folder: Path) -> None:
    service = GrammarService(tiny_folder / "tokenizer.json")
    service.close()
    service.close()
    with pytest.raises(CapacityError):
        service.compile(choice_grammar(["a"], "p"))


def test_the_library_is_loaded_without_torch_and_transformers() -> None:
    program = (
        "import sys; from benthic.text.grammar_library import load_library; load_library();"
        "assert not {'torch', 'transformers'} & set(sys.modules), 'loaded'"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
