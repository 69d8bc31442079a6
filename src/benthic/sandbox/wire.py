"""The JSON form of the room's records, errors and answers: on a connection to a host, and in the trajectory log.

Bytes of results, requests and answers travel beside the JSON; the few that stand in other records are base64 text.
What is decoded comes from outside, so a wrong field is an error that names it, never an exception of Python's own.
"""

import base64
import binascii
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from benthic.errors import BenthicError, CapacityError, RequestError, SandboxError, shown
from benthic.sandbox.errors import (
    CallRefused,
    CommandTimeout,
    GuestLost,
    HostUnreachable,
    ImageError,
    NotSupported,
    OutcomeUnknown,
    OutputLimit,
    PathError,
    QuotaExceeded,
    SandboxDied,
    StartFailed,
    TokenRefused,
    TrajectoryCorrupt,
    TrajectoryDiverged,
    TrajectoryHeld,
    TrajectoryUnwritable,
    UnknownSandbox,
)
from benthic.sandbox.host import Answer
from benthic.sandbox.records import Reason, Result

T = TypeVar("T")

_SPOKEN: Mapping[str, type[BenthicError]] = {
    error.__name__: error
    for error in (
        *(CallRefused, GuestLost, ImageError, NotSupported, OutcomeUnknown),
        *(TrajectoryCorrupt, TrajectoryDiverged, TrajectoryHeld, TrajectoryUnwritable),
        *(HostUnreachable, QuotaExceeded, TokenRefused, UnknownSandbox, CapacityError, SandboxError),
    )
}
"""Errors that are made from their message alone."""


def encode(value: Any) -> Any:
    """A record, or a tuple, list or mapping of records, as JSON values; fields that have their default are left out."""
    match value:
        case Enum():
            return value.value
        case bytes():
            return base64.b64encode(value).decode()
        case tuple() | list():
            return [encode(item) for item in value]
        case dict():
            return {name: encode(item) for name, item in value.items()}
    if is_dataclass(value):
        pairs = ((field, getattr(value, field.name)) for field in fields(value))
        return {field.name: encode(item) for field, item in pairs if item != _default(field)}
    return value


def decode(kind: type[T], value: Any, name: str = "") -> T:
    """The record of that class which `encode` wrote.

    Args:
        kind: a record's class, or the type of one of its fields.
        value: JSON values from outside.
        name: of the field, for messages.

    Raises:
        RequestError: a field is unknown, missing or of the wrong type, or its record refuses it.
    """
    decoded: T = _decoded(kind, value, name)
    return decoded


def pack_result(result: Result) -> tuple[dict[str, Any], bytes]:
    """A command's result as JSON and the bytes beside it: stdout, then stderr."""
    value = encode(replace(result, stdout=b"", stderr=b""))
    return {**value, "num_stdout_bytes": len(result.stdout)}, result.stdout + result.stderr


def unpack_result(value: Mapping[str, Any], data: bytes) -> Result:
    """The result that `pack_result` was given.

    Raises:
        RequestError: it is none.
    """
    cut = value.get("num_stdout_bytes")
    if not isinstance(cut, int) or not 0 <= cut <= len(data):
        raise RequestError(f"num_stdout_bytes ({shown(cut)}) must be in 0..{len(data)}", param="num_stdout_bytes")
    plain = {name: item for name, item in value.items() if name != "num_stdout_bytes"}
    return replace(decode(Result, {**plain, "stdout": "", "stderr": ""}), stdout=data[:cut], stderr=data[cut:])


def pack_error(error: BenthicError) -> Answer:
    """An error as the answer that carries it."""
    name, value, data = type(error).__name__, {"message": str(error)}, b""
    match error:
        case SandboxDied():
            value = {"sandbox_id": error.sandbox_id, "reason": error.reason.value, "detail": error.detail}
        case CommandTimeout() | OutputLimit():
            packed, data = pack_result(error.result)
            return Answer(error=name, value={**value, "result": packed}, data=data)
        case StartFailed():
            value["stage"] = error.stage
        case PathError():
            value = {"path": error.path, "what": str(error).removeprefix(f"{error.path!r}: ")}
        case RequestError():
            name = "RequestError"
            value |= {"param": error.param} if error.param else {}
    return Answer(error=name, value=value, data=data)


def unpack_error(answer: Answer) -> BenthicError:
    """The error that an answer carries; one of an unknown class becomes a `SandboxError`."""
    assert answer.error is not None
    value = answer.value
    message = str(value.get("message", answer.error))
    match answer.error:
        case "SandboxDied":
            reason = decode(Reason, value.get("reason"), "reason")
            return SandboxDied(str(value.get("sandbox_id")), reason, str(value.get("detail", "")))
        case "CommandTimeout":
            return CommandTimeout(message, unpack_result(value.get("result", {}), answer.data))
        case "OutputLimit":
            return OutputLimit(message, unpack_result(value.get("result", {}), answer.data))
        case "StartFailed":
            return StartFailed(message, stage=str(value.get("stage", "")))
        case "PathError":
            return PathError(str(value.get("path")), str(value.get("what")))
        case "RequestError":
            return RequestError(message, param=value.get("param"))
    return _SPOKEN.get(answer.error, SandboxError)(message)


@cache
def _types_of(record: type) -> dict[str, Any]:
    return get_type_hints(record)


def _default(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _decoded(kind: Any, value: Any, name: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        return None if value is None else _decoded(next(a for a in arguments if a is not type(None)), value, name)
    if origin is Literal:
        return value if value in arguments else _refuse(name, value, f"one of {', '.join(map(str, arguments))}")
    if origin in (tuple, list):
        return _decoded_sequence(origin, arguments, value, name)
    if origin is dict:
        return value if isinstance(value, dict) else _refuse(name, value, "an object")
    if is_dataclass(kind):
        return _decoded_record(kind, value, name)
    if issubclass(kind, Enum):
        values = [member.value for member in kind]
        return kind(value) if value in values else _refuse(name, value, f"one of {', '.join(values)}")
    if kind is bytes:
        return _decoded_bytes(value, name)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    is_right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    return value if is_right else _refuse(name, value, f"of type {kind.__name__}")


def _decoded_sequence(origin: type, arguments: tuple[Any, ...], value: Any, name: str) -> Any:
    if not isinstance(value, list | tuple):
        return _refuse(name, value, "a list")
    if origin is tuple and arguments[-1] is not Ellipsis:
        if len(value) != len(arguments):
            return _refuse(name, value, f"a list of {len(arguments)}")
        return tuple(_decoded(kind, item, name) for kind, item in zip(arguments, value, strict=True))
    return origin(_decoded(arguments[0], item, f"{name}[{index}]") for index, item in enumerate(value))


def _decoded_record(kind: Any, value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        return _refuse(name or kind.__name__, value, "an object")
    hints = _types_of(kind)
    unknown = sorted(map(str, value.keys() - hints.keys()))
    if unknown:
        raise RequestError(f"unknown field {shown(unknown[0])} of {kind.__name__}; it has {', '.join(hints)}")
    prefix = f"{name}." if name else ""
    given = {field: _decoded(hints[field], item, prefix + field) for field, item in value.items()}
    missing = [field.name for field in fields(kind) if field.name not in given and _default(field) is MISSING]
    if missing:
        raise RequestError(f"{prefix}{missing[0]} is missing; {kind.__name__} needs it", param=prefix + missing[0])
    try:
        return kind(**given)
    except ValueError as error:
        raise RequestError(str(error), param=name or None) from None


def _decoded_bytes(value: Any, name: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        return _refuse(name, value, "base64 text")


def _refuse(name: str, value: Any, wanted: str) -> Any:
    raise RequestError(f"{name or 'value'} must be {wanted}, and is {shown(value)}", param=name or None)
