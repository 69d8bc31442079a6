"""One replacement in a file's text, as an agent asks for it."""

from typing import NamedTuple


class EditRefused(Exception):
    """The replacement is not clear; the message is for the model."""


class Edit(NamedTuple):
    """What an edit made of a file."""

    data: bytes
    num_replaced: int


def replace_once(data: bytes, old: str, new: str, *, replaces_all: bool = False) -> Edit:
    """Replaces a piece of text that stands in a file exactly once, or every one if asked for.

    Works on bytes, so what is not UTF-8 elsewhere in the file stays as it is.

    Raises:
        EditRefused: the piece is empty, is not there, or stands there more often.
    """
    piece = old.encode()
    if not piece:
        raise EditRefused("the text to replace is empty; use write_file to make a file")
    count = data.count(piece)
    if count == 0:
        raise EditRefused("the text to replace is not in the file; read the file and copy it to the letter")
    if count > 1 and not replaces_all:
        raise EditRefused(f"the text to replace stands {count} times in the file; give more of what is around it")
    return Edit(data.replace(piece, new.encode()), count)
