"""Held-out examples for curves during training.

As every question has one right answer, greedy decoding is right exactly if each learned token is the likeliest one
given the true tokens before it: one packed forward pass examines thousands of questions. It is stricter than
`evaluate`, which lets reasoning and shown work differ as long as the answer is right.
"""

from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from benthic.tasks.cells import CELLS
from benthic.tasks.example import Example, ExampleEncoder
from benthic.tasks.render import render
from benthic.tasks.sources import Sources


def held_out_examples(tokenizer: Path, *, per_cell: int, seed: int = 0) -> list[Example]:
    """`per_cell` examples of every cell and mode, asked as `evaluate` does; their `task` is `<cell>/<mode>`.

    The cell of long lists is left out: it would be most of the tokens.
    """
    sources, encoder = Sources.bundled(), ExampleEncoder(Tokenizer.from_file(str(tokenizer)))
    examples = []
    for cell in CELLS:
        if cell.task == "long lookup":
            continue
        for thinking, mode in ((False, "direct"), (True, "thinking")):
            for conversation in cell.draw(thinking, sources, seed, per_cell):
                example = encoder.encode(f"{cell.name}/{mode}", render(conversation))
                examples.append(replace(example, weights=[float(weight > 0) for weight in example.weights]))
    return examples
