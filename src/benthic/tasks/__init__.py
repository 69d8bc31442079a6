"""What the bundled model is taught and examined in: generators, their rendering, grading and evaluation. No torch."""

from benthic.tasks.cells import CELLS, Cell
from benthic.tasks.evaluate import CellResult, detail_lines, evaluate, report_line
from benthic.tasks.examination import held_out_examples
from benthic.tasks.example import Example, ExampleEncoder
from benthic.tasks.grade import Reply
from benthic.tasks.stream import ExampleStream

__all__ = [
    "CELLS",
    "Cell",
    "CellResult",
    "Example",
    "ExampleEncoder",
    "ExampleStream",
    "Reply",
    "detail_lines",
    "evaluate",
    "held_out_examples",
    "report_line",
]
