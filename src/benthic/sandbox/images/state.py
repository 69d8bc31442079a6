"""One digest of all that a sandbox has changed of its files, by which two runs can be compared."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from benthic.sandbox.images.entry import encode
from benthic.sandbox.images.stack import stack
from benthic.sandbox.images.store import Store


def state_digest(store: Store, digests: Sequence[str]) -> str:
    """Of a snapshot's layers, lowest first, however often they were split or merged: 64 hex digits.

    Contents, modes, owners, links and removals count; times do not, since no two runs share them. The content of files
    was hashed when the layers were taken in, so this costs as much as there are names.
    """
    placed = stack([store.entries(digest) for digest in digests], is_bottom=False)
    return hashlib.sha256(encode(tuple(replace(place.entry, modified_ns=0) for place in placed))).hexdigest()
