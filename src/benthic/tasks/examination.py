"""Held-out examples for curves during training.

As every question has one right answer, greedy decoding is right exactly if each learned token is the likeliest one
given the true tokens before it: one packed forward pass examines thousands of questions. It is stricter than
`evaluate`, which lets reasoning and shown work differ as long as the answer is right.
"""

from dataclasses import replace

from benthic.tasks.cells import CELLS
from benthic.tasks.example import Example, ExampleEncoder
from benthic.tasks.render import render
from benthic.tasks.sources import Sources


def held_out_examples(encoder: ExampleEncoder, *, per_cell: int, seed: int = 0) -> list[Example]:
    """`per_cell` examples of every cell and mode, asked as `evaluate` does; their `task` is `<cell>/<mode>`."""
    sources = Sources.bundled()
    examples = []
    for cell in CELLS:
        for thinking, mode in ((False, "direct"), (True, "thinking")):
            for conversation in cell.draw(thinking, sources, seed, per_cell):
                example = encoder.encode(f"{cell.name}/{mode}", render(conversation))
                examples.append(replace(example, weights=[float(weight > 0) for weight in example.weights]))
    return examples
