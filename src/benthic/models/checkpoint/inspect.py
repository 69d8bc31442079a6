"""What a checkpoint or a released model holds, without reading weights: the library behind `benthic inspect`."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from math import prod
from pathlib import Path
from typing import Any

from benthic.errors import CheckpointError
from benthic.models.checkpoint.files import CheckpointFiles
from benthic.models.checkpoint.load import BUNDLED, nearest_name, resolve
from benthic.models.checkpoint.piece import Piece
from benthic.models.checkpoint.source import match_files
from benthic.models.checkpoint.table import TensorSpec, pieces, tensor_table
from benthic.models.config import LayerSpec, ModelConfig
from benthic.models.released import KNOWN, known_config, released_name

_ATTENTION = {
    ("hybrid", 0): "window attention",
    ("hybrid", 4): "CSA",
    ("hybrid", 128): "HCA",
    ("latent", 1): "latent attention",
}

_PARTS = tuple(
    (part, re.compile(pattern))
    for part, pattern in (
        ("MTP", r"^mtp\."),
        ("embedding", r"^embed\."),
        ("head", r"^head\."),
        ("hyper-connections", r"(^|\.)hc_"),
        ("routed experts", r"\.experts\."),
        ("shared experts", r"\.shared_experts\."),
        ("gates", r"\.ffn\.gate\."),
        ("dense MLP", r"\.ffn\.w"),
        ("indexer", r"\.indexer\."),
        ("compressors", r"\.compressor\."),
        ("attention", r"\.attn\."),
        ("norms", r"norm\.weight$"),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Counts of one model. Parameters leave MTP blocks and hash tables out; `active` ones work on each token.

    The embedding is in `parameters` and not in `active_parameters`, since a token reads one row of it.
    `layers` counts main layers by kind; `parts` counts parameters by what they are, MTP blocks apart. `missing`,
    `unknown` and `misshapen` name tensors of the files that do not fit config.json, `unusable` says which files are
    absent or broken; such a folder does not load.
    """

    name: str
    family: str
    num_layers: int
    layers: dict[str, int]
    num_tensors: int
    num_bytes: int
    parameters: int
    active_parameters: int
    mtp_parameters: int
    parts: dict[str, int]
    bytes_by_dtype: dict[str, int]
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    misshapen: dict[str, str] = field(default_factory=dict)
    unusable: tuple[str, ...] = ()
    tensors: tuple[TensorSpec, ...]
    config: ModelConfig

    @property
    def is_whole(self) -> bool:
        """Whether the files hold exactly the tensors of the model."""
        return not (self.missing or self.unknown or self.misshapen or self.unusable)

    def to_json(self, *, tensors: bool = False) -> dict[str, Any]:
        """Plain data for `--json`; with every tensor's name, shape, dtype and bytes if asked."""
        out = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("tensors", "config")}
        out |= {"missing": list(self.missing), "unknown": list(self.unknown), "unusable": list(self.unusable)}
        out["config"] = self.config.to_json()
        if tensors:
            out["tensors"] = [
                {"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype, "bytes": spec.bytes}
                for spec in self.tensors
            ]
        return out


def inspect(name_or_path: str | Path) -> Inspection:
    """Describes a released model by name, the bundled one, or a checkpoint folder by its headers.

    Tensors that do not fit config.json, absent and broken files are named in the result, not raised.

    Raises:
        CheckpointError: there is no such folder and no such model.
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
    with CheckpointFiles(folder, partial=True) as files:
        match = match_files(files, config)
        specs = tuple(located.spec for located in files.tensors.values())
    found = _inspection(str(name_or_path), match.config, specs)
    return replace(
        found,
        missing=match.missing,
        unknown=match.unexpected,
        misshapen=dict(match.misshapen),
        unusable=tuple(files.unusable),
    )


def _inspection(name: str, config: ModelConfig, specs: tuple[TensorSpec, ...]) -> Inspection:
    by_dtype: Counter[str] = Counter()
    for spec in specs:
        by_dtype[spec.dtype] += spec.bytes
    numbers = [piece for piece in pieces(config) if piece.kind != "ids"]
    main = [piece for piece in numbers if not piece.name.startswith("mtp.")]
    return Inspection(
        name=name,
        family=config.model_type,
        num_layers=config.num_hidden_layers,
        layers=dict(Counter(_kind(layer) for layer in config.layers)),
        num_tensors=len(specs),
        num_bytes=sum(by_dtype.values()),
        parameters=sum(prod(piece.shape) for piece in main),
        active_parameters=sum(prod(piece.shape) * _share(piece, config) // config.n_routed_experts for piece in main),
        mtp_parameters=sum(prod(p.shape) for p in numbers) - sum(prod(p.shape) for p in main),
        parts=_parts(numbers),
        bytes_by_dtype=dict(by_dtype.most_common()),
        tensors=specs,
        config=config,
    )


def _kind(layer: LayerSpec) -> str:
    attention = _ATTENTION[layer.attention, layer.ratio] + (" with indexer" if layer.has_index else "")
    return f"{attention}, {'dense' if layer.mlp == 'dense' else f'experts by {layer.routing}'}"


def _parts(numbers: Sequence[Piece]) -> dict[str, int]:
    """Parameters of each part, in the order of `_PARTS`; a piece belongs to the first that its name matches."""
    counts: Counter[str] = Counter()
    for piece in numbers:
        part = next(part for part, pattern in _PARTS if pattern.search(piece.name))
        counts[part] += prod(piece.shape)
    return {part: counts[part] for part, _ in _PARTS if counts[part]}


def _share(piece: Piece, config: ModelConfig) -> int:
    """How many n_routed_experts-ths of a piece work on one token."""
    if piece.name == "embed.weight":
        return 0
    return config.num_experts_per_tok if piece.kind == "expert" else config.n_routed_experts
