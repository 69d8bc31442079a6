"""The bundled tasks as documents for the trainer. An object here travels to worker processes, so it pickles."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benthic.tasks import Example, ExampleStream, held_out_examples

if TYPE_CHECKING:
    from benthic.train import Item


class TaskDocuments:
    """`documents(seed)` yields the examples of a mixture as training items; arguments as `ExampleStream`."""

    def __init__(self, mixture: str, *, tokenizer: Path, data: Path, max_len: int) -> None:
        self._examples = ExampleStream(mixture, tokenizer=tokenizer, data=data, max_len=max_len)

    def __call__(self, seed: int) -> "Iterator[Item]":
        return map(to_item, self._examples(seed))


def held_out_documents(tokenizer: Path, per_cell: int) -> "list[Item]":
    """Questions that are never trained on, `per_cell` of each task and mode, tagged with both."""
    return [to_item(example) for example in held_out_examples(tokenizer, per_cell=per_cell)]


def to_item(example: Example) -> "Item":
    import numpy as np

    from benthic.train import Item

    return Item(np.array(example.token_ids, np.int32), np.array(example.weights, np.float32), example.task)
