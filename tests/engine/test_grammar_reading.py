"""A grammar is read beside the engine's loop: only its own request waits, and is not lost sight of meanwhile."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.grammar import Grammar
from benthic.engine.grammar_reading import MAX_KNOWN, GrammarReading
from benthic.engine.request import FinalOutput, Request
from benthic.engine.sequence import Sequence
from benthic.errors import CapacityError
from benthic.models.transformer import Transformer
from tests.engine.automaton_masks import END_ID, AutomatonMask, AutomatonMasks, chain
from tests.exactness.serving import request, serve

VOCAB_SIZE = 512
A, B = 20, 21
WORD = chain([A], [B])


class GatedMasks(AutomatonMasks):
    """Reads nothing until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def start(self, grammar: Grammar) -> AutomatonMask:
        assert self.gate.wait(20)
        return super().start(grammar)


@pytest.fixture
def masks() -> Iterator[GatedMasks]:
    source = GatedMasks()
    yield source
    source.gate.set()


def asking(name: str, grammar: Grammar | None, **given: object) -> Request:
    return request(name, (5, 6, 7), grammar=grammar, ignore_eos=False, max_tokens=5, **given)


def engine_of(model: Transformer, masks: AutomatonMasks, **given: object) -> Engine:
    clock = given.pop("clock", None)
    more = {} if clock is None else {"clock": clock}
    config = EngineConfig(cache_bytes=1 << 26, debug_checks=True, **given)  # type: ignore[arg-type]
    return Engine(model, config, masks=masks, **more)  # type: ignore[arg-type]


def finals_of(engine: Engine, until: Callable[[dict[str, FinalOutput]], bool]) -> dict[str, FinalOutput]:
    found: dict[str, FinalOutput] = {}
    for _ in range(1000):
        found |= {event.request_id: event for event in engine.step() if isinstance(event, FinalOutput)}
        if until(found):
            return found
    raise AssertionError(f"only {sorted(found)} ended")


def test_others_are_answered_while_a_grammar_is_read(small_model: Transformer, masks: GatedMasks) -> None:
    engine = engine_of(small_model, masks)
    for one in (asking("slow", WORD.grammar()), asking("free", None)):
        engine.add(one)
    assert list(finals_of(engine, lambda found: "free" in found)) == ["free"]
    assert engine.has_work() and engine.stats().num_waiting == 1
    masks.gate.set()
    assert finals_of(engine, lambda found: "slow" in found)["slow"].token_ids == (A, B, END_ID)
    assert not engine.has_work()


def test_answers_to_one_prompt_go_on_together(small_model: Transformer, masks: GatedMasks) -> None:
    engine = engine_of(small_model, masks)
    engine.add(asking("leader", WORD.grammar()))
    engine.step()
    masks.gate.set()
    engine.add(replace(asking("fork", WORD.grammar()), fork_of="leader"))
    found = finals_of(engine, lambda found: len(found) == 2)
    assert {final.token_ids for final in found.values()} == {(A, B, END_ID)}
    assert masks.num_read == 1
    assert found["fork"].report is not None and found["fork"].report.cut == "fork"


def test_one_that_waits_can_be_cancelled_or_be_late(small_model: Transformer, masks: GatedMasks) -> None:
    now_s = [0.0]
    engine = engine_of(small_model, masks, clock=lambda: now_s[0], request_timeout_s=5.0)
    for name in ("cancelled", "late"):
        engine.add(asking(name, WORD.grammar()))
    engine.cancel("cancelled")
    assert finals_of(engine, lambda found: bool(found))["cancelled"].finish_reason == "cancelled"
    assert engine.idle_s() == 5.0
    now_s[0] = 5.5
    late = finals_of(engine, lambda found: bool(found))["late"]
    assert (late.error_kind, late.token_ids) == ("timeout", ())
    assert not engine.has_work() and engine.stats().num_timeouts == 1


@pytest.mark.parametrize("way", ["fail", "abort"])
def test_whatever_ends_all_ends_those_that_wait(small_model: Transformer, masks: GatedMasks, way: str) -> None:
    engine = engine_of(small_model, masks)
    engine.add(asking("r", WORD.grammar()))
    events = engine.fail_all("all over") if way == "fail" else engine.pause("abort")
    assert [event.request_id for event in events] == ["r"]
    engine.resume()
    masks.gate.set()
    assert not engine.has_work()
    assert serve(engine, [asking("r", WORD.grammar())])["r"].token_ids == (A, B, END_ID)


def test_those_that_wait_count_as_waiting(small_model: Transformer, masks: GatedMasks) -> None:
    engine = engine_of(small_model, masks, max_num_waiting=2)
    for n in range(2):
        engine.add(asking(f"r{n}", chain([A + n]).grammar()))
    with pytest.raises(CapacityError, match="2 requests wait"):
        engine.add(asking("r2", None))


def test_a_pause_and_new_weights_leave_one_waiting(own_model: Transformer, masks: GatedMasks) -> None:
    engine = engine_of(own_model, masks)
    engine.add(asking("r", WORD.grammar()))
    engine.pause("retract")
    engine.update_weights(own_model.state_dict())
    masks.gate.set()
    engine.resume()
    assert finals_of(engine, lambda found: bool(found))["r"].token_ids == (A, B, END_ID)


class BrokenMasks(AutomatonMasks):
    def start(self, grammar: Grammar) -> AutomatonMask:
        raise ZeroDivisionError("a bug")


@pytest.mark.parametrize(("masks", "kind"), [(AutomatonMasks(), "request"), (BrokenMasks(), "engine")])
def test_what_cannot_be_read_ends_its_request_alone(small_model: Transformer, masks: AutomatonMasks, kind: str) -> None:
    engine = engine_of(small_model, masks)
    finals = serve(engine, [asking("bad", Grammar("k", b"[", None)), asking("free", None)])
    assert (finals["bad"].finish_reason, finals["bad"].error_kind) == ("error", kind)
    assert finals["free"].error is None


def reading_of(source: AutomatonMasks) -> GrammarReading:
    return GrammarReading(source, end_id=END_ID, vocab_size=VOCAB_SIZE)


def read(reading: GrammarReading, grammar: Grammar) -> Sequence:
    own = asking("r", grammar)
    sequence = Sequence(own, 0, 100, frozenset({END_ID}))
    if not reading.is_ready(sequence):
        while not (found := list(reading.take())):
            reading.wait(1.0)
        assert found[0].sequence is sequence and found[0].error is None
    assert sequence.constraint is not None
    return sequence


def test_a_known_grammar_is_not_read_again_and_each_sequence_has_its_own_place() -> None:
    source = AutomatonMasks()
    reading = reading_of(source)
    first, second = (read(reading, WORD.grammar()).constraint for _ in range(2))
    assert source.num_read == 1 and first is not None and second is not None
    assert first.num_fitting((5, 6, 7), (A, B)) == 2
    assert second.num_fitting((5, 6, 7), (B,)) == 0
    assert second.num_fitting((5, 6, 7), (A,)) == 1


def test_the_same_grammar_after_another_prefix_begins_elsewhere() -> None:
    reading = reading_of(AutomatonMasks())
    for prefix, fits in (("", A), (str(A), B)):
        constraint = read(reading, WORD.grammar(prefix=prefix)).constraint
        assert constraint is not None and constraint.num_fitting((5, 6, 7), (fits,)) == 1


def test_only_so_many_beginnings_are_kept() -> None:
    source = AutomatonMasks()
    reading = reading_of(source)
    grammars = [chain([A + n]).grammar() for n in range(MAX_KNOWN + 1)]
    for grammar in [*grammars, grammars[0], grammars[-1]]:
        read(reading, grammar)
    assert source.num_read == MAX_KNOWN + 2, "the first was forgotten, the last was not"
