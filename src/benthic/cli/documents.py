"""The bundled tasks as documents for the trainer. An object here travels to worker processes, so it pickles."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from benthic.errors import DataError
from benthic.tasks import Example, ExampleStream, held_out_examples
from benthic.tasks.sources import text_path
from benthic.tasks.stream import check_mixture

if TYPE_CHECKING:
    from benthic.train import Item, StageConfig


class TaskDocuments:
    """`documents(seed)` yields the examples of a mixture as training items; arguments as `ExampleStream`."""

    def __init__(self, mixture: str, *, tokenizer: Path, data: Path, max_len: int) -> None:
        self._examples = ExampleStream(mixture, tokenizer=tokenizer, data=data, max_len=max_len)

    def __call__(self, seed: int) -> "Iterator[Item]":
        return map(to_item, self._examples(seed))


def check_documents(stages: "Mapping[str, StageConfig]", data: Path) -> None:
    """Refuses a run whose documents cannot be made, before anything slow.

    Raises:
        DataError: a stage names an unknown mixture, or the running text is not in `data`.
    """
    for name, stage in stages.items():
        try:
            check_mixture(stage.mixture)
        except DataError as error:
            raise DataError(f"stages.{name}.mixture: {error}") from None
    text_path(data)


def held_out_documents(tokenizer: Path, per_cell: int) -> "list[Item]":
    """Questions that are never trained on, `per_cell` of each task and mode, tagged with both."""
    return [to_item(example) for example in held_out_examples(tokenizer, per_cell=per_cell)]


def to_item(example: Example) -> "Item":
    import numpy as np

    from benthic.train import Item

    return Item(np.array(example.token_ids, np.int32), np.array(example.weights, np.float32), example.task)
