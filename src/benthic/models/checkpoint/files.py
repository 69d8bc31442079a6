"""The files of a checkpoint as one dictionary of tensors under official names.

Sharded or single; whatever an index says is held against the shards themselves. Only headers are read here.
"""

import json
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from torch import Tensor

from benthic.errors import CheckpointError
from benthic.models.checkpoint.names import official_name
from benthic.models.checkpoint.safetensors_file import TensorReader
from benthic.models.checkpoint.table import TensorSpec

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.ckpt")


class Located(NamedTuple):
    """A tensor and the open file that holds it; `spec.name` is its name there."""

    reader: TensorReader
    spec: TensorSpec

    def read(self, first_row: int = 0, num_rows: int | None = None) -> Tensor:
        """A copy on CPU; see `TensorReader.read`."""
        return self.reader.read(self.spec.name, first_row, num_rows)


class CheckpointFiles:
    """Open files of one checkpoint; `tensors` maps official names (and expert stacks) to where they lie.

    `partial`: files that are absent, cut short or contradictory are left out and named in `unusable`, not raised.
    """

    def __init__(self, path: Path, *, partial: bool = False) -> None:
        self.path = path
        self.tensors: dict[str, Located] = {}
        self.unusable: list[str] = []
        self._partial = partial
        self._readers: list[TensorReader] = []
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes every file."""
        for reader in self._readers:
            reader.close()

    def __enter__(self) -> "CheckpointFiles":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> None:
        shards: list[Path] = []
        promised: dict[str, str] = {}
        try:
            shards, promised = _find_shards(self.path)
        except CheckpointError as error:
            self._leave_out(error)
        absent = [shard.name for shard in shards if not shard.is_file()]
        if absent:
            self._leave_out(
                CheckpointError(
                    f"{self.path / INDEX_NAME} names {len(absent)} absent files: {', '.join(absent)}; each must lie in "
                    f"{self.path}"
                )
            )
        for shard in shards:
            if shard.name not in absent:
                try:
                    self._readers.append(TensorReader(shard))
                except CheckpointError as error:
                    self._leave_out(error)
        self._gather(promised)

    def _leave_out(self, error: CheckpointError) -> None:
        if not self._partial:
            raise error
        self.unusable.append(str(error))

    def _gather(self, promised: dict[str, str]) -> None:
        problems = []
        found: dict[str, str] = {}
        for reader in self._readers:
            for name, entry in reader.entries.items():
                official = official_name(name)
                if official in self.tensors:
                    other = self.tensors[official]
                    problems.append(
                        f"{official} is there twice: {other.spec.name} in {other.reader.path.name} "
                        f"and {name} in {reader.path.name}"
                    )
                self.tensors[official] = Located(reader, entry.spec)
                found[name] = reader.path.name
        opened = {reader.path.name for reader in self._readers}
        for name, shard in promised.items():
            if shard in opened and found.get(name) != shard:
                problems.append(f"{INDEX_NAME} promises {name} in {shard}, which does not hold it")
        if problems:
            self._leave_out(CheckpointError(f"{self.path} contradicts itself: " + "; ".join(problems)))


def _find_shards(path: Path) -> tuple[list[Path], dict[str, str]]:
    """The shards in order, and what the index promises: tensor name -> file name."""
    if path.is_file():
        return [path], {}
    index = path / INDEX_NAME
    if index.exists():
        return _indexed(path, index)
    shards = sorted(path.glob("*.safetensors"))
    if shards:
        return shards, {}
    pickles = sorted(name.name for pattern in _PICKLES for name in path.glob(pattern))
    if pickles:
        raise CheckpointError(
            f"{path} holds {', '.join(pickles)}, which may run code when read; Benthic reads safetensors files only"
        )
    if not path.exists():
        raise CheckpointError(f"there is no {path}; give the folder of a checkpoint (nothing is downloaded)")
    raise CheckpointError(f"{path} holds no weights; a checkpoint has *.safetensors files")


def _indexed(path: Path, index: Path) -> tuple[list[Path], dict[str, str]]:
    try:
        content: Any = json.loads(index.read_text(encoding="utf-8"))
        promised: dict[str, str] = dict(content["weight_map"])
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{index} cannot be used ({error!r}); it must be a JSON object with weight_map") from None
    names = sorted(set(promised.values()), key=str)
    foreign = [name for name in names if not isinstance(name, str) or Path(name).name != name]
    if foreign:
        raise CheckpointError(f"{index} names {foreign}; shards lie in the same folder, named without a path")
    return [path / name for name in names], promised
