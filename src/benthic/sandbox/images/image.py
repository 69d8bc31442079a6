"""An image: layers from the lowest to the highest, and how programs are started on them."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from benthic.errors import shown
from benthic.sandbox.errors import ImageError

_NAME = re.compile(r"(?:[a-z0-9.-]+(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageConfig:
    """What an image says of the programs that run on it."""

    env: tuple[tuple[str, str], ...] = ()
    cwd: str = "/"
    user: str = ""
    """`uid`, `name`, or either with `:group`; empty is root. A sandbox runs commands as its own ordinary user."""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "ImageConfig":
        """Reads the JSON form of a stored image."""
        plain = {name: tuple(fields.get(name, ())) for name in ("entrypoint", "command")}
        env = tuple((str(name), str(value)) for name, value in fields.get("env", ()))
        return cls(env=env, cwd=fields.get("cwd", "/"), user=fields.get("user", ""), **plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """Layers and a configuration. Two images of the same content are one."""

    layers: tuple[str, ...]
    """Digests, lowest first."""
    config: ImageConfig = field(default_factory=ImageConfig)

    def __post_init__(self) -> None:
        for digest in self.layers:
            check_digest(digest)

    @property
    def id(self) -> str:
        """`sha256:` and 64 digits, of the JSON form."""
        return f"sha256:{hashlib.sha256(self.encode()).hexdigest()}"

    def encode(self) -> bytes:
        """The JSON form."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Image":
        """Reads the JSON form.

        Raises:
            ImageError: it is no image.
        """
        try:
            fields = json.loads(data)
            return cls(layers=tuple(fields["layers"]), config=ImageConfig.of(fields["config"]))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ImageError(f"an image's record cannot be read: {error}; take the image in again") from None


def check_digest(digest: str) -> None:
    """Whether a text is a digest.

    Raises:
        ImageError: it is not.
    """
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ImageError(f"{shown(digest)} is no digest; it is `sha256:` and 64 hex digits")


def full_name(reference: str) -> str:
    """`name` -> `name:latest`; a name that has its tag stays.

    Raises:
        ImageError: it is no name of an image.
    """
    path, colon, tag = reference.rpartition(":")
    if not colon or "/" in tag:
        path, tag = reference, "latest"
    if len(path) > 200 or not _NAME.fullmatch(path) or not _TAG.fullmatch(tag):
        raise ImageError(f"{shown(reference)} is no name of an image; write it as `name:tag`, such as `tiny:latest`")
    return f"{path}:{tag}"
