"""One model beside another: parameters, bytes a token of conversation, conversations, operations a token."""

from dataclasses import dataclass

from benthic.models.released import released_name
from benthic.plan.costs import Costs, equivalent, total
from benthic.plan.published import SERVED_CACHE_BITS, deepseek_67b
from benthic.plan.rows import CacheFormat
from benthic.plan.sizing import formats_for, size
from benthic.plan.subject import is_dense, subject


@dataclass(frozen=True, slots=True)
class At:
    """At one context, this model's and the other's: bytes of a conversation, operations, as FP8 ones."""

    context: int
    conversation_bytes: tuple[float, float]
    flops: tuple[float, float]
    equivalent_flops: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`one` beside `other`, each with the cache that its family has.

    `served_token_bytes` are of the numbers of bits that the papers served (None where that is the engine's format).
    """

    one: Costs
    other: Costs
    served_token_bytes: tuple[float | None, float | None]
    contexts: tuple[At, ...]

    @property
    def state_ratio(self) -> float:
        """Bytes that a further token adds, of those of the other model."""
        return self.one.token_bytes / self.other.token_bytes

    @property
    def served_ratio(self) -> float | None:
        """The same with the bits that were served; None where no paper says other ones."""
        if self.served_token_bytes == (None, None):
            return None
        mine, others = self.served_token_bytes
        return (mine or self.one.token_bytes) / (others or self.other.token_bytes)


def compare(one: Costs, other_name: str, contexts: tuple[int, ...]) -> Comparison:
    """The model of those costs beside a released model, a checkpoint, or a model known by published facts.

    Raises:
        ConfigError: there is no such model.
    """
    other = other_costs(other_name)
    at = tuple(
        At(
            context,
            (one.conversation_bytes(context), other.conversation_bytes(context)),
            (total(one.decode(context)), total(other.decode(context))),
            (equivalent(one.decode(context)), equivalent(other.decode(context))),
        )
        for context in contexts
    )
    return Comparison(one, other, (served_token_bytes(one), served_token_bytes(other)), at)


def other_costs(name: str, cache: CacheFormat | None = None) -> Costs:
    """Costs of any model that can be compared, with the family's own formats."""
    if is_dense(name):
        return deepseek_67b()
    model = subject(name)
    return size(model, formats_for(model, "official", cache, "none")).costs


def served_token_bytes(costs: Costs) -> float | None:
    """Bytes a token in the bits that a paper says were served; None where it says none."""
    bits = SERVED_CACHE_BITS.get(released_name(costs.name))
    if bits is None:
        return None
    return sum(one.layers * one.key_dim / one.ratio for one in costs.lookups if one.ratio) * bits / 8
