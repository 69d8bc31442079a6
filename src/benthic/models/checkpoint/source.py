"""Where the pieces of a model come from: files or a module, behind one small protocol.

Matching files against a configuration reads headers only and collects everything that is wrong into one error.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from benthic.errors import CheckpointError
from benthic.models.checkpoint.codec import Encoded, check_scale_range, decode
from benthic.models.checkpoint.files import CheckpointFiles, Located
from benthic.models.checkpoint.listing import listing
from benthic.models.checkpoint.names import expert_slice, is_ignored, latent_house_name, scale_name
from benthic.models.checkpoint.piece import Piece
from benthic.models.checkpoint.table import BLOCK, Storage, file_names, pieces, scale_shape
from benthic.models.config import ModelConfig

_PLAIN: dict[str, Storage] = {"BF16": "bf16", "F32": "fp32", "F16": "fp32", "F64": "fp32"}


class Stored(NamedTuple):
    """A piece as a source holds it."""

    form: Storage
    data: Encoded

    @property
    def num_bytes(self) -> int:
        """Size of weight and scale."""
        return sum(t.numel() * t.element_size() for t in self.data if t is not None)

    @property
    def has_exponent_scales(self) -> bool:
        """Whether it is quantised with scales of one byte, as the released files are."""
        return self.data.scale is not None and self.data.scale.dtype == torch.float8_e8m0fnu

    def to(self, device: torch.device) -> "Stored":
        """The same bytes on another device."""
        weight, scale = self.data
        return Stored(self.form, Encoded(weight.to(device), None if scale is None else scale.to(device)))

    def values(self) -> Tensor:
        """float32, or int64 for ids."""
        return decode(self.data, self.form)


PieceSource = Callable[[Piece], Stored]


class _Found(NamedTuple):
    form: Storage
    weight: Located
    weight_row: int | None
    scale: Located | None
    scale_row: int


@dataclass(frozen=True, slots=True)
class FileMatch:
    """How files and the model of their config.json fit together, by headers alone.

    `config` says what the files hold (perhaps without MTP blocks), `found` where. `missing` and `unexpected` are names
    of tensors as the files spell them, `misshapen` says what is wrong with those of another shape or dtype.
    """

    config: ModelConfig
    found: Mapping[str, _Found]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misshapen: Mapping[str, str]

    def problems(self) -> list[str]:
        """One sentence a kind; empty if all fits."""
        details = "; ".join(f"{name} {what}" for name, what in self.misshapen.items())
        kinds = (
            (f"missing {len(self.missing)}: {listing(self.missing)}", self.missing),
            (f"unexpected {len(self.unexpected)}: {listing(self.unexpected)}", self.unexpected),
            (f"misshapen {len(self.misshapen)}: {details}", self.misshapen),
        )
        return [sentence for sentence, names in kinds if names]


def match_files(files: CheckpointFiles, config: ModelConfig) -> FileMatch:
    """Finds every piece of a model among the tensors of files."""
    tensors: Mapping[str, Located] = files.tensors
    if config.is_latent:
        count = config.num_hidden_layers
        tensors = {latent_house_name(name, count): located for name, located in tensors.items()}
    has_mtp = any(name.startswith("mtp.") for name in tensors)
    if config.num_nextn_predict_layers and not has_mtp and not files.unusable:
        # transformers never writes the MTP block, though its config.json still counts it.
        config = replace(config, num_nextn_predict_layers=0)
    matcher = _Matcher(tensors, config)
    places = {piece.name: matcher.find(piece) for piece in pieces(config)}
    found = {name: place for name, place in places.items() if place is not None}
    return FileMatch(
        config,
        found,
        missing=tuple(map(file_names("official", config), matcher.missing)),
        unexpected=tuple(t.spec.name for name, t in tensors.items() if not matcher.expects(name)),
        misshapen={tensors[name].spec.name: what for name, what in matcher.wrong.items()},
    )


class FileSource:
    """Reads the pieces of a model from files; `config` says what the files hold (perhaps without MTP blocks).

    Raises CheckpointError that names every missing, unexpected and misshapen tensor.
    """

    def __init__(self, files: CheckpointFiles, config: ModelConfig) -> None:
        match = match_files(files, config)
        if match.problems():
            problems = ". ".join(match.problems())
            raise CheckpointError(f"{files.path} does not hold the model that its config.json describes. {problems}.")
        self.config, self._found = match.config, match.found

    def __call__(self, piece: Piece) -> Stored:
        """Reads a piece. Raises CheckpointError for scales or expert ids that cannot be."""
        found = self._found[piece.name]
        rows = None if found.weight_row is None else piece.shape[0]
        weight = found.weight.read(found.weight_row or 0, rows)
        scale = None
        if found.scale is not None:
            scale_rows = None if rows is None else scale_shape(found.form, piece.shape)[0]
            scale = _scale_numbers(found.scale.read(found.scale_row, scale_rows))
        stored = Stored(found.form, Encoded(weight, scale))
        check_scale_range(piece.name, stored.data)
        if piece.kind == "ids":
            _check_expert_ids(piece.name, weight, self.config.n_routed_experts)
        return stored


class ModelSource:
    """Takes the pieces from parameters and buffers, routed experts out of their stacks."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._state = state

    def __call__(self, piece: Piece) -> Stored:
        # Frozen models keep matrices by columns; files hold rows.
        values = piece_of(self._state, piece).detach().contiguous()
        return Stored("ids" if piece.kind == "ids" else "fp32", Encoded(values, None))


def piece_of(state: Mapping[str, Tensor], piece: Piece) -> Tensor:
    """A view of a piece inside a module's parameters and buffers."""
    part = expert_slice(piece.name)
    if part is None:
        return state[piece.name]
    return state[part.stack][part.expert].narrow(0, part.half * piece.shape[0], piece.shape[0])


class _Matcher:
    """Finds pieces among the tensors of files, and remembers what did not fit."""

    def __init__(self, tensors: Mapping[str, Located], config: ModelConfig) -> None:
        self.tensors, self.config = tensors, config
        self.used: set[str] = set()
        self.missing: list[str] = []
        self.wrong: dict[str, str] = {}

    def expects(self, name: str) -> bool:
        """Whether a tensor of that name may be there, once every piece was looked for."""
        return name in self.used or is_ignored(name)

    def find(self, piece: Piece) -> _Found | None:
        part = expert_slice(piece.name)
        name, rows = piece.name, piece.shape[0]
        turn: int | None = None
        lead: tuple[int, ...] = ()
        if name not in self.tensors and part is not None and part.stack in self.tensors:
            halves = 2 if part.stack.endswith("w13") else 1
            name, rows, lead = part.stack, halves * piece.shape[0], (self.config.n_routed_experts,)
            turn = part.expert * halves + part.half
        elif name not in self.tensors:
            self.missing.append(piece.name)
            self.used.add(scale_name(piece.name))  # scales in another shard are no surprise
            return None
        self.used.add(name)
        shape = (*lead, rows, *piece.shape[1:])
        return self._describe(piece, name, shape, turn)

    def _describe(self, piece: Piece, name: str, shape: tuple[int, ...], turn: int | None) -> _Found | None:
        weight, scale_key = self.tensors[name], scale_name(name)
        dtype = weight.spec.dtype
        row = None if turn is None else turn * piece.shape[0]
        if piece.kind == "ids":
            fits = dtype in ("I64", "I32")
            return _Found("ids", weight, row, None, 0) if self._check(name, fits, shape, "I64 or I32") else None
        if dtype in _PLAIN:
            return _Found(_PLAIN[dtype], weight, row, None, 0) if self._check(name, True, shape, "") else None
        form = {"F8_E4M3": "fp8", "I8": "fp4", "U8": "fp4"}.get(dtype)
        if form is None or len(piece.shape) != 2 or piece.kind not in ("block", "expert"):
            self._check(name, False, shape, "F32 or BF16" if piece.kind in ("wide", "single") else "a weight format")
            return None
        packed: Storage = "fp4" if form == "fp4" else "fp8"
        if turn is not None and packed == "fp8" and shape[1] != piece.shape[0] and piece.shape[0] % BLOCK:
            self.wrong[name] = (
                f"stacks gate and up of {piece.shape[0]} rows in fp8, which must be a multiple of {BLOCK}"
            )
            return None
        scales = (*shape[:-2], *scale_shape(packed, shape))
        if packed == "fp4":
            shape = (*shape[:-1], shape[-1] // 2)
        if not self._check(name, True, shape, "") or not self._check_scale(scale_key, scales):
            return None
        scale_row = 0 if turn is None else turn * scale_shape(packed, piece.shape)[0]
        return _Found(packed, weight, row, self.tensors[scale_key], scale_row)

    def _check(self, name: str, dtype_fits: bool, shape: tuple[int, ...], wanted: str) -> bool:
        spec = self.tensors[name].spec
        if not dtype_fits:
            self.wrong[name] = f"has dtype {spec.dtype}; it must be {wanted}"
        elif spec.shape != shape:
            self.wrong[name] = f"has shape {list(spec.shape)}; it must be {list(shape)}"
        return dtype_fits and spec.shape == shape

    def _check_scale(self, name: str, shape: tuple[int, ...]) -> bool:
        if name not in self.tensors:
            if name not in self.missing:
                self.missing.append(name)
            return False
        self.used.add(name)
        fits = self.tensors[name].spec.dtype in ("F8_E8M0", "U8", "F32", "BF16")
        return self._check(name, fits, shape, "F8_E8M0 or F32")


def _scale_numbers(scale: Tensor) -> Tensor:
    """Bytes are exponents, never numbers; other floats are scales as they are."""
    if scale.dtype == torch.uint8:
        return scale.view(torch.float8_e8m0fnu)
    return scale if scale.dtype == torch.float8_e8m0fnu else scale.to(torch.float32)


def _check_expert_ids(name: str, ids: Tensor, num_experts: int) -> None:
    low, high = (int(ids.min()), int(ids.max())) if ids.numel() else (0, 0)
    if low < 0 or high >= num_experts:
        raise CheckpointError(f"{name} names experts {low} .. {high}; the layer has 0 .. {num_experts - 1}")


def source_pieces(source: FileSource) -> Iterator[Piece]:
    """The pieces that files hold."""
    return pieces(source.config)
