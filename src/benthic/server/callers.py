"""Who sends a request and what it is called, from the door to the logs and to the cache.

A request is called by the client's own `x-request-id` where that is a plain word, else by one of ours. A caller is
known by the API key alone; with `server.salt_by_key` callers share no cached prefix, because the time to the first
token would tell one what another has asked.
"""

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from starlette.requests import Request

from benthic.text.sampling_fields import Wishes

_PLAIN = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What the door knows of one request."""

    request_id: str = ""
    owner: str = ""
    """Whose cached prefixes it may share: a digest of the key, or "" where all callers share."""


def caller_of(request: Request) -> Caller:
    """What the door has written down; nothing where a request did not come through it."""
    caller = getattr(request.state, "caller", None)
    return caller if isinstance(caller, Caller) else Caller()


def sent_request_id(request: Request) -> str | None:
    """The client's own name for its request, if it is fit for headers and logs."""
    sent = request.headers.get("x-request-id", "")
    return sent if _PLAIN.fullmatch(sent) else None


def sent_key(request: Request) -> str:
    """The key as `Authorization: Bearer KEY` or `x-api-key: KEY`; empty when there is none."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")


def is_key(offered: str, keys: Sequence[str]) -> bool:
    """Whether one of the keys is offered, in a time that depends on neither."""
    digest = _digest(offered)
    matches = [hmac.compare_digest(digest, _digest(key)) for key in keys]
    return any(matches)


def owner_of(key: str) -> str:
    """A name for a key's holder that does not tell the key."""
    return _digest(key).hex()[:32]


def owned(wishes: Wishes, owner: str) -> Wishes:
    """The wishes with a salt that only this owner has; "" changes nothing."""
    return replace(wishes, cache_salt=f"{owner}:{wishes.cache_salt}") if owner else wishes


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", errors="surrogateescape")).digest()
