"""One safetensors file: read a tensor or some of its rows, write tensors in any order. Never more than asked for.

The format: eight bytes with the header's length, a JSON header (name -> dtype, shape, byte range), then the data
without gaps. Headers are believed only after every number in them was checked against the file, so that a truncated or
foreign file is an error by name and never wrong weights.
"""

import json
import os
from collections.abc import Iterable
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benthic.errors import CheckpointError
from benthic.models.checkpoint.table import ITEM_BYTES, TensorSpec

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_LARGEST_HEADER = 100_000_000  # as the safetensors library
_LARGEST_READ = 1 << 30  # Linux moves at most 2 GiB - 4 KiB in one call


class Entry(NamedTuple):
    """A tensor in a file: its description and where its data starts, in bytes from the start of the file."""

    spec: TensorSpec
    offset: int


class TensorReader:
    """Reads tensors of one file. Raises CheckpointError when the file is no whole safetensors file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb", buffering=0)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be opened ({error.strerror}); a safetensors file is needed") from None
        try:
            self.entries = _read_header(path, self._file.fileno())
        except BaseException:
            self._file.close()
            raise

    def read(self, name: str, first_row: int = 0, num_rows: int | None = None) -> Tensor:
        """A copy of a tensor on CPU, or of some rows of it (all dims but the last counted as rows) as a matrix."""
        spec, offset = self.entries[name]
        if num_rows is None:
            return self._read(offset, spec.bytes, spec.dtype).view(spec.shape)
        columns = spec.shape[-1]
        row_bytes = columns * ITEM_BYTES[spec.dtype]
        data = self._read(offset + first_row * row_bytes, num_rows * row_bytes, spec.dtype)
        return data.view(num_rows, columns)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _read(self, offset: int, size: int, dtype: str) -> Tensor:
        if size == 0:
            return torch.empty(0, dtype=DTYPES[dtype])
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            count = os.preadv(self._file.fileno(), [view[done : done + _LARGEST_READ]], offset + done)
            if count == 0:
                raise CheckpointError(
                    f"{self.path} ended at byte {offset + done} while it was read; it must not change"
                )
            done += count
        return torch.frombuffer(data, dtype=DTYPES[dtype])


class TensorWriter:
    """Writes a file whose tensors are known beforehand, in any order and in parts; `close` makes it durable.

    Larger items come first in the file, so that every tensor is aligned to its own type.
    """

    def __init__(self, path: Path, specs: Iterable[TensorSpec]) -> None:
        self.path = path
        ordered = sorted(specs, key=lambda spec: -ITEM_BYTES[spec.dtype])
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        position = 0
        for spec in ordered:
            end = position + spec.bytes
            header[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [position, end]}
            position = end
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        self._entries = {s.name: Entry(s, 8 + len(text) + header[s.name]["data_offsets"][0]) for s in ordered}
        self._unwritten = position
        self._file = path.open("xb", buffering=0)
        self._write(0, memoryview(len(text).to_bytes(8, "little") + text))
        self._file.truncate(8 + len(text) + position)

    def write(self, name: str, data: Tensor, first_row: int = 0) -> None:
        """Writes a whole tensor, or from `first_row` on (all dims but the last counted as rows)."""
        spec, offset = self._entries[name]
        assert data.dtype == DTYPES[spec.dtype], f"{name} is {data.dtype}, announced as {spec.dtype}"
        offset += first_row * (spec.shape[-1] if spec.shape else 1) * ITEM_BYTES[spec.dtype]
        content = data.detach().cpu().contiguous()
        if content.numel():
            self._write(offset, content.view(-1).view(torch.uint8).numpy().data)
        self._unwritten -= content.numel() * content.element_size()

    def close(self) -> None:
        """Flushes to the disk. Every byte announced must have been written."""
        assert self._unwritten == 0, f"{self._unwritten} bytes of {self.path} were announced and not written"
        os.fsync(self._file.fileno())
        self._file.close()

    def _write(self, offset: int, view: memoryview) -> None:
        done = 0
        while done < len(view):
            done += os.pwrite(self._file.fileno(), view[done : done + _LARGEST_READ], offset + done)

    def __enter__(self) -> "TensorWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()


def _read_header(path: Path, descriptor: int) -> dict[str, Entry]:
    size = os.fstat(descriptor).st_size
    if size < 8:
        raise CheckpointError(f"{path} has {size} bytes; a safetensors file has at least 8: it was cut short")
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    if length > min(size - 8, _LARGEST_HEADER):
        raise CheckpointError(
            f"{path} announces a header of {length} bytes but has {size} bytes in all; "
            "it is no safetensors file, or it was cut short"
        )
    header = _parse_header(path, os.pread(descriptor, length, 8))
    header.pop("__metadata__", None)
    entries = {name: _entry(path, name, value, 8 + length) for name, value in header.items()}
    _check_ranges(path, entries, 8 + length, size)
    return entries


def _parse_header(path: Path, text: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            names = [name for name, _ in pairs]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise CheckpointError(f"{path} holds {', '.join(twice)} twice; a name may stand once in a file")
        return result

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=once)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} has a header that is not JSON ({error}); it is no safetensors file") from None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path} has a header that is a {type(header).__name__}; it must be a JSON object")
    return header


def _entry(path: Path, name: str, value: Any, data_start: int) -> Entry:
    try:
        dtype, shape, (start, end) = value["dtype"], value["shape"], value["data_offsets"]
        whole = all(isinstance(n, int) and n >= 0 for n in (*shape, start, end))
    except (TypeError, KeyError, ValueError):
        whole = False
    if not whole:
        raise CheckpointError(f"{path}: {name} is described by {value!r}; dtype, shape and data_offsets are needed")
    if dtype not in ITEM_BYTES:
        raise CheckpointError(f"{path}: {name} has dtype {dtype!r}; known are {', '.join(ITEM_BYTES)}")
    spec = TensorSpec(name, tuple(shape), dtype)
    if end - start != spec.bytes:
        raise CheckpointError(
            f"{path}: {name} has {end - start} bytes of data; {dtype} {list(spec.shape)} needs "
            f"{prod(spec.shape) * ITEM_BYTES[dtype]}"
        )
    return Entry(spec, data_start + start)


def _check_ranges(path: Path, entries: dict[str, Entry], data_start: int, size: int) -> None:
    position = data_start
    for spec, offset in sorted(entries.values(), key=lambda entry: (entry.offset, entry.spec.bytes)):
        if offset != position:
            raise CheckpointError(
                f"{path}: {spec.name} starts at byte {offset}; the tensor before it ends at {position}"
            )
        position += spec.bytes
    if position > size:
        raise CheckpointError(f"{path} has {size} bytes; its header describes {position}: the file was cut short")
    if position < size:
        raise CheckpointError(f"{path} has {size} bytes; its header describes {position}: something was appended")
