"""What is examined was never trained on."""

import random
from importlib.resources import files

import pytest
from tokenizers import Tokenizer

from benthic.tasks.cells import CELLS, Cell
from benthic.tasks.conversation import Conversation
from benthic.tasks.lexicon import Lexicon, bundled_words, words_by_entry
from benthic.tasks.mixture import EXCHANGES, make_conversation
from benthic.tasks.sources import Sources
from benthic.tasks.split import belongs_to, is_held_out


@pytest.fixture(scope="module")
def sources() -> Sources:
    return Sources.bundled()


def operands(conversation: Conversation) -> set[str]:
    return {operand for exchange in conversation.exchanges for operand in exchange.operands}


def test_a_tenth_of_all_operands_is_held_out() -> None:
    held_out = sum(is_held_out(f"addition|{a}|{b}") for a in range(100, 200) for b in range(200, 300))
    assert 0.085 < held_out / 10_000 < 0.115


def test_a_mixture_of_both_sides_belongs_to_neither() -> None:
    trained = next(f"word|{i}" for i in range(99) if not is_held_out(f"word|{i}"))
    examined = next(f"word|{i}" for i in range(99) if is_held_out(f"word|{i}"))
    assert not belongs_to((trained, examined), "train")
    assert not belongs_to((trained, examined), "test")


@pytest.mark.parametrize("task", [*EXCHANGES, "extraction", "tools"])
def test_training_and_evaluation_share_no_operand(task: str, sources: Sources) -> None:
    rng = random.Random(task)
    sides: dict[str, set[str]] = {"train": set(), "test": set()}
    for split, seen in sides.items():
        for _ in range(150):
            conversation = make_conversation(
                rng,
                sources,
                task,
                thinking=False,
                split=split,
                is_alone=split == "test",  # type: ignore[arg-type]
            )
            seen |= operands(conversation)
    assert not sides["train"] & sides["test"]
    assert all(map(is_held_out, sides["test"]))
    assert not any(map(is_held_out, sides["train"]))


def test_a_word_held_out_of_reversal_is_held_out_of_counting_too(sources: Sources) -> None:
    rng = random.Random(0)
    reversed_words = {
        operand
        for _ in range(300)
        for operand in operands(
            make_conversation(rng, sources, "reversal", thinking=False, split="test", is_alone=True)
        )
    }
    counted_words = {
        operand
        for _ in range(1500)
        for operand in operands(
            make_conversation(rng, sources, "counting", thinking=False, split="train", is_alone=True)
        )
    }
    assert not reversed_words & counted_words


@pytest.mark.parametrize("cell", CELLS, ids=[cell.name for cell in CELLS])
def test_cells_draw_the_same_held_out_questions_every_time(cell: Cell, sources: Sources) -> None:
    few, more = cell.draw(True, sources, 0, 3), cell.draw(True, sources, 0, 5)
    assert more[:3] == few
    assert cell.draw(True, sources, 1, 3) != few
    if cell.task != "lookup" and cell.task != "long lookup":  # drawn anew each time, from endless values
        assert all(map(is_held_out, (operand for conversation in few for operand in operands(conversation))))


def test_words_cover_every_entry_of_the_vocabulary_that_is_part_of_a_word() -> None:
    tokenizer = Tokenizer.from_file(str(files("benthic") / "assets" / "tiny" / "tokenizer.json"))
    words = bundled_words()
    covered = words_by_entry(tokenizer, words)
    lexicon = Lexicon(words, covered)
    rng = random.Random(0)
    seen = set()
    for _ in range(20_000):
        word = lexicon.draw(rng)
        assert 2 <= len(word) <= 14
        seen |= set(tokenizer.encode(f" {word}").ids) | set(tokenizer.encode(word).ids)
    entries = {i for i in range(4096) if tokenizer.decode([i]).strip().isalpha() and tokenizer.decode([i]).islower()}
    assert len(entries - seen) < 0.1 * len(entries)
