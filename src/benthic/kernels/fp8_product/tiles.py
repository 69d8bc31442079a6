"""Which tile the FP8 product takes. Every tile gives the same bits, so this may follow the number of rows."""

from functools import cache
from typing import NamedTuple

MULTIPROCESSORS = 132


class Shape(NamedTuple):
    """A compiled tile: its number in fp8_product.cu, and of a cluster of blocks the rows and the outputs.

    `cost` is what an output costs in time, relatively; `ending` what it costs at a tile's end, in steps of 128 inputs.
    """

    number: int
    rows: int
    outputs: int
    cost: float
    cluster: int = 1
    ending: float = 0.0

    def num_tiles(self, rows: int, outputs: int) -> int:
        """Tiles of one group."""
        return -(-rows // self.rows) * -(-outputs // self.outputs)


FEW = (Shape(0, 64, 16, 1.0), Shape(1, 64, 32, 1.0), Shape(2, 64, 64, 1.0))
SOME = (Shape(3, 128, 16, 1.0), Shape(4, 128, 32, 1.0), Shape(5, 128, 64, 1.0), Shape(7, 128, 160, 1.0))
MANY = (
    Shape(4, 128, 32, 2.4),
    Shape(5, 128, 64, 1.6),
    Shape(6, 128, 128, 1.17),
    Shape(8, 128, 192, 1.1),
    Shape(9, 128, 256, 1.0, ending=1.3),
)
# In clusters: of four blocks that share x, of two that share the weight.
SHARED = (
    Shape(10, 128, 64, 1.0, 4),
    Shape(11, 128, 128, 1.0, 4),
    Shape(12, 256, 192, 1.0, 2),
    Shape(13, 256, 256, 1.0, 2),
)
SHAPES = tuple(sorted({*FEW, *SOME, *MANY[2:], *SHARED}))


@cache
def shape_of(rows: int, outputs: int, inputs: int, groups: int = 1) -> Shape:
    """The shape for `rows` rows of all groups together: the least time if a wave of tiles takes its outputs' time."""
    if groups > 1:
        mean = rows // groups
        return FEW[2] if mean <= 48 else MANY[2] if mean <= 96 else MANY[4]
    shapes = FEW if rows <= 64 else SOME if rows <= 128 else MANY

    def time(shape: Shape) -> tuple[float, int]:
        waves = -(-shape.num_tiles(rows, outputs) // (MULTIPROCESSORS // shape.cluster))
        return waves * shape.outputs * (shape.cost + shape.ending * 128 / inputs), -shape.outputs

    return min(shapes, key=time)


FEW_ROWS, FEW_OUTPUTS = 64, 2 * 32 * MULTIPROCESSORS
"""Up to which few_rows.cu is taken: two tiles of 32 outputs a block. With more the other kernel is faster."""
FEW_SCALES = 8192
"""Scales of rows that few_rows.cu has room for."""


def is_few(rows: int, outputs: int, inputs: int, groups: int = 1) -> bool:
    """Whether few_rows.cu multiplies; for gated products `outputs` do not matter."""
    scales = -(-rows // 8) * 8 * (inputs // 128 + 8)
    return groups == 1 and rows <= FEW_ROWS and outputs <= FEW_OUTPUTS and scales <= FEW_SCALES
