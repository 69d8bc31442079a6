"""Tables of words: columns as wide as their widest cell, numbers to the right."""

from collections.abc import Sequence

WIDTH = 118


def table(rows: Sequence[Sequence[str]], *, left: int = 1, last_left: bool = False, indent: str = "  ") -> list[str]:
    """Lines of a table whose first row is its head; the first `left` columns (and the last) lean left."""
    num_columns = len(rows[0])
    widths = [max(len(row[place]) for row in rows) for place in range(num_columns)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if place < left or (last_left and place == num_columns - 1) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines


def wrapped(text: str, *, first: str = "", rest: str = "") -> list[str]:
    """Lines of at most `WIDTH` letters; `first` and `rest` stand before them."""
    lines, line = [], first
    for word in text.split():
        if len(line) + 1 + len(word) > WIDTH and line.strip():
            lines.append(line)
            line = rest
        line += word if line in (first, rest) else f" {word}"
    return [*lines, line]
