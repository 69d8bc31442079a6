"""Which weights each version stood for, so that one number never means two sets of weights."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from benthic.engine.request import Event
from benthic.errors import RequestError


class WeightUpdate(NamedTuple):
    """What came of an update that went well."""

    version: int
    """In force now."""
    checksum: str
    """Of the new weights as they arrived."""
    events: list[Event]
    """Of the pass that was in flight: drawn from the old weights."""


class WeightVersions:
    """Versions and checksums of all weights that an engine has had.

    Args:
        current: version in force.
        known: versions with their checksums; the weights that an engine starts with are not among them, for their
            checksum would cost a pass over the whole model at every start.
    """

    def __init__(self, current: int, known: Iterable[tuple[int, str]] = ()) -> None:
        self._current = current
        self._checksums = dict(known)

    @property
    def current(self) -> int:
        """The version in force."""
        return self._current

    def choose(self, version: int | None, checksum: str, checksum_now: Callable[[], str]) -> int:
        """The version for weights of this checksum.

        Args:
            version: asked for; None: one more than any so far.
            checksum: of the new weights.
            checksum_now: computes that of the weights in force.

        Raises:
            RequestError: the version stood or may have stood for other weights.
        """
        newest = max([self._current, *self._checksums])
        if version is None:
            return newest + 1
        before = self._checksums.get(version)
        if before is None and version == self._current:
            before = checksum_now()
        if before is None and version < newest:
            raise RequestError(
                f"the weights' version is {version} and {newest} is in use already; it must be {newest + 1} or more: "
                "versions go forward, and back only to the same weights",
                param="weight_version",
            )
        if before is not None and before != checksum:
            raise RequestError(
                f"the weights' version is {version}, which stands for weights of checksum {before}, and these have "
                f"{checksum}; give other weights a version of their own, {newest + 1} or more",
                param="weight_version",
            )
        return version

    def installed(self, version: int, checksum: str) -> None:
        """These weights are in force now."""
        assert self._checksums.get(version, checksum) == checksum, version
        self._current = version
        self._checksums[version] = checksum
