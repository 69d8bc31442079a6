"""Content parts: the model reads text only, so every other kind of part is refused where it stands.

The recipe drops images and files without a word, and the model would answer as if nothing had been attached.
"""

from typing import Any

from benthic.errors import RequestError
from benthic.text.fields import refuse

_NOT_TEXT = frozenset(
    {"image", "image_url", "input_image", "file", "input_file", "document"}
    | {"audio", "input_audio", "audio_url", "video", "input_video", "video_url"}
)
_NESTED = ("content", "output")
"""Where an item of the other protocols holds parts of its own (tool results)."""


def check_chat_parts(parts: list[Any], path: str) -> None:
    """Chat parts are text.

    Raises:
        RequestError: a part is no text; `param` is its place, e.g. messages[0].content[1].
    """
    for position, part in enumerate(parts):
        place = f"{path}[{position}]"
        check_text_only(part, place)
        if not isinstance(part, dict):
            refuse(place, part, 'an object such as {"type": "text", "text": "..."}')
        if part.get("type") != "text":
            refuse(f"{place}.type", part.get("type"), '"text"')
        if not isinstance(part.get("text"), str):
            refuse(f"{place}.text", part.get("text"), "a string")


def check_text_only(item: Any, path: str) -> None:
    """Refuse an image, file or sound in an item of any protocol, however deep.

    Raises:
        RequestError: `param` is its place.
    """
    if not isinstance(item, dict):
        return
    kind = item.get("type")
    if isinstance(kind, str) and kind in _NOT_TEXT:
        raise RequestError(f"{path} is a part of type {kind!r}; the model reads text only", param=path)
    for name in _NESTED:
        inner = item.get(name)
        for position, part in enumerate(inner if isinstance(inner, list) else ()):
            check_text_only(part, f"{path}.{name}[{position}]")
