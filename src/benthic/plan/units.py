"""Numbers for people: decimal units, three or four digits."""

BYTES = ("B", "kB", "MB", "GB", "TB", "PB")
OPERATIONS = ("", "k", "M", "G", "T", "P", "E")


def bytes_text(count: float) -> str:
    """`159.6 GB`: decimal units."""
    return _scaled(count, BYTES)


def flops_text(count: float) -> str:
    """`26.5 GFLOP`."""
    return _scaled(count, OPERATIONS, " ") + "FLOP"


def seconds_text(seconds: float) -> str:
    """`7.12 ms`."""
    for size, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {name}"
    return f"{seconds * 1e6:.3g} us"


def count_text(count: float) -> str:
    """`284.3 B` parameters."""
    for size, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= size:
            return f"{count / size:.1f} {name}" if name != "T" else f"{count / size:.2f} {name}"
    return f"{count:.0f}"


def tokens_text(count: int) -> str:
    """`4K`, `1M`; `163840` where no power of 1024 is near."""
    for size, name in ((1 << 20, "M"), (1 << 10, "K")):
        if count >= size and count % size == 0:
            return f"{count // size}{name}"
    return f"{count:,}"


def percent_text(share: float) -> str:
    """`10.5 %`."""
    return f"{100 * share:.1f} %"


def _scaled(count: float, names: tuple[str, ...], gap: str = " ") -> str:
    size, place = abs(count), 0
    while size >= 1000 and place < len(names) - 1:
        size, place = size / 1000, place + 1
    sign = "-" if count < 0 else ""
    digits = 0 if place == 0 else 1 if size >= 10 else 2
    return f"{sign}{size:.{digits}f}{gap}{names[place]}"
