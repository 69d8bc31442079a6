"""What control calls may be given; checked before anything is sent or touched."""

from collections.abc import Mapping
from os import PathLike
from typing import Any, get_args

from benthic.engine.messages import PauseMode
from benthic.errors import RequestError, shown

MAX_WEIGHT_VERSION = 2**63 - 1


def check_pause_mode(mode: object) -> None:
    """Refuses what is no PauseMode.

    Raises:
        RequestError: naming `mode`.
    """
    if not isinstance(mode, str) or mode not in get_args(PauseMode):
        raise RequestError(f"mode is {shown(mode)}; it must be one of {', '.join(get_args(PauseMode))}", param="mode")


def check_weight_version(version: object) -> None:
    """Refuses what is neither None nor a version.

    Raises:
        RequestError: naming `weight_version`.
    """
    if version is None:
        return
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version <= MAX_WEIGHT_VERSION:
        raise RequestError(
            f"the weights' version is {shown(version)}; it must be an integer in [0, {MAX_WEIGHT_VERSION}], or None "
            "for the next one",
            param="weight_version",
        )


def check_checksum(checksum: object) -> None:
    """Refuses what is neither None nor a text that could be a checksum.

    Raises:
        RequestError: naming `checksum`.
    """
    if checksum is not None and not (isinstance(checksum, str) and checksum):
        raise RequestError(
            f"checksum is {shown(checksum)}; it must be the text that weights_checksum gives, or None",
            param="checksum",
        )


def read_weight_source(source: object) -> str | Mapping[str, Any]:
    """A path as text, or a state dict as it is.

    Raises:
        RequestError: it is neither, or empty; naming `model_path`.
    """
    if isinstance(source, Mapping) and source:
        return source
    if isinstance(source, str | PathLike) and str(source):
        return str(source)
    raise RequestError(
        f"the weights are {shown(source)}; they must be the folder of a checkpoint, a file of write_weights, or a "
        "state dict",
        param="model_path",
    )
