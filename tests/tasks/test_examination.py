"""Held-out examples for curves."""

from collections import Counter
from importlib.resources import files
from pathlib import Path

from tokenizers import Tokenizer

from benthic.tasks.cells import CELLS
from benthic.tasks.examination import held_out_examples


def test_every_cell_and_mode_is_examined_and_exactly_the_replies_count() -> None:
    path = Path(str(files("benthic") / "assets" / "tiny" / "tokenizer.json"))
    tokenizer = Tokenizer.from_file(str(path))
    examples = held_out_examples(path, per_cell=3)
    counts = Counter(example.task for example in examples)
    assert set(counts) == {f"{cell.name}/{mode}" for cell in CELLS[:-1] for mode in ("direct", "thinking")}
    assert set(counts.values()) == {3}
    for example in examples:
        assert set(example.weights) == {0.0, 1.0}
        learned = [token for token, weight in zip(example.token_ids, example.weights, strict=True) if weight]
        if example.task.startswith("addition") and example.task.endswith("direct"):
            assert tokenizer.decode(learned, skip_special_tokens=True).isdigit()
