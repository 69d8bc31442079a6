"""No drafts: every pass gives a running sequence one token."""

from collections.abc import Sequence as Seq

from benthic.engine.drafting.protocol import ComputedPass


class NoDrafter:
    """A `Drafter` that never proposes."""

    sees_passes = False

    def observe(self, computed: ComputedPass, depths: Seq[int]) -> list[list[int]]:
        """Not called."""
        return []

    def propose(self, request_id: str, tokens: Seq[int], depth: int, observed: Seq[int]) -> tuple[int, ...]:
        """Nothing."""
        return ()

    def forget(self, request_id: str) -> None:
        """Holds nothing."""
