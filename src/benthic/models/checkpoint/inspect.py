"""What a checkpoint or a released model holds, without reading weights: the library behind `benthic inspect`."""

from collections import Counter
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import Any

from benthic.errors import CheckpointError
from benthic.models.checkpoint.files import CheckpointFiles
from benthic.models.checkpoint.load import BUNDLED, nearest_name, resolve
from benthic.models.checkpoint.piece import Piece
from benthic.models.checkpoint.source import FileSource
from benthic.models.checkpoint.table import TensorSpec, pieces, tensor_table
from benthic.models.config import ModelConfig
from benthic.models.released import KNOWN, known_config, released_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Counts of one model. Parameters leave MTP blocks and hash tables out; `active` ones work on each token.

    The embedding is in `parameters` and not in `active_parameters`, since a token reads one row of it.
    """

    name: str
    num_layers: int
    num_tensors: int
    num_bytes: int
    parameters: int
    active_parameters: int
    mtp_parameters: int
    bytes_by_dtype: dict[str, int]
    tensors: tuple[TensorSpec, ...]
    config: ModelConfig

    def to_json(self, *, tensors: bool = False) -> dict[str, Any]:
        """Plain data for `--json`; with every tensor's name, shape, dtype and bytes if asked."""
        out = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("tensors", "config")}
        out["config"] = self.config.to_json()
        if tensors:
            out["tensors"] = [
                {"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype, "bytes": spec.bytes}
                for spec in self.tensors
            ]
        return out


def inspect(name_or_path: str | Path) -> Inspection:
    """Describes a released model by name, the bundled one, or a checkpoint folder by its headers.

    Raises:
        CheckpointError: the folder or its files cannot be read, or do not hold the tensors that config.json describes.
        ConfigError: config.json describes no model that can be built.
    """
    if not str(name_or_path):
        raise CheckpointError(f"the model's name is empty; known: {', '.join((*BUNDLED, *sorted(KNOWN)))}, or a folder")
    key = released_name(str(name_or_path))
    if not Path(name_or_path).exists() and str(name_or_path) not in BUNDLED:
        if key not in KNOWN:
            names = (*BUNDLED, *sorted(KNOWN))
            raise CheckpointError(
                f"there is no folder {str(name_or_path)!r} and no model of that name; "
                f"{nearest_name(key, names)}known: {', '.join(names)}"
            )
        config = known_config(key)
        return _inspection(key, config, tensor_table(config))
    folder = resolve(name_or_path)
    config = ModelConfig.from_json(folder)
    with CheckpointFiles(folder) as files:
        # Matching refuses what loading would refuse, and knows whether the files hold MTP blocks.
        config = FileSource(files, config).config
        specs = tuple(located.spec for located in files.tensors.values())
    return _inspection(str(name_or_path), config, specs)


def _inspection(name: str, config: ModelConfig, specs: tuple[TensorSpec, ...]) -> Inspection:
    by_dtype: Counter[str] = Counter()
    for spec in specs:
        by_dtype[spec.dtype] += spec.bytes
    numbers = [piece for piece in pieces(config) if piece.kind != "ids"]
    main = [piece for piece in numbers if not piece.name.startswith("mtp.")]
    return Inspection(
        name=name,
        num_layers=config.num_hidden_layers,
        num_tensors=len(specs),
        num_bytes=sum(by_dtype.values()),
        parameters=sum(prod(piece.shape) for piece in main),
        active_parameters=sum(prod(piece.shape) * _share(piece, config) // config.n_routed_experts for piece in main),
        mtp_parameters=sum(prod(p.shape) for p in numbers) - sum(prod(p.shape) for p in main),
        bytes_by_dtype=dict(by_dtype.most_common()),
        tensors=specs,
        config=config,
    )


def _share(piece: Piece, config: ModelConfig) -> int:
    """How many n_routed_experts-ths of a piece work on one token."""
    if piece.name == "embed.weight":
        return 0
    return config.num_experts_per_tok if piece.kind == "expert" else config.n_routed_experts
