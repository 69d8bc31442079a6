"""Box 2: the products of one token by part, at any length of its conversation, and their FP8-equivalent sum.

FP8-equivalent: an operation weighs as much time as it takes beside an FP8 one: FP4 a half, bf16 two, fp32 (as tf32)
four. Products with weights weigh by the format in which the files hold the matrix, FP4 experts as FP8, since their
activations are FP8; attention multiplies in bf16; index scores weigh by the format of the indexer's keys.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from benthic.models.config import ModelConfig
from benthic.plan.hardware import Format
from benthic.plan.lookups import Lookup, Work, lookups
from benthic.plan.state import State
from benthic.plan.weights import Holding, active_parameters, total_parameters

EQUIVALENT: dict[Format, float] = {"fp4": 0.5, "fp8": 1.0, "bf16": 2.0, "fp32": 4.0}


@dataclass(frozen=True, slots=True)
class Costs:
    """What one token costs, for any model that can be compared.

    `products` do not depend on the context, `lookups` do. `token_bytes` and `fixed_bytes` are of a conversation;
    `page_size` tokens are taken at once. `draft_products` and `draft_lookups` come on top where MTP blocks draft.
    """

    name: str
    max_context: int
    parameters: int
    active_parameters: float
    products: tuple[Work, ...]
    lookups: tuple[Lookup, ...]
    token_bytes: float
    fixed_bytes: int = 0
    page_size: int = 1
    draft_products: tuple[Work, ...] = ()
    draft_lookups: tuple[Lookup, ...] = ()

    def decode(self, context: int) -> tuple[Work, ...]:
        """Products of token number `context`."""
        reads = (work for one in self.lookups for work in one.works(one.decode_rows(context), one.decode_keys(context)))
        return merged((*self.products, *reads))

    def prefill(self, context: int) -> tuple[Work, ...]:
        """Products of a token of a prompt of `context` tokens, averaged over its positions."""
        reads = (work for one in self.lookups for work in one.works(one.mean_rows(context), one.mean_keys(context)))
        return merged((*self.products, *reads))

    def draft(self, context: int) -> tuple[Work, ...]:
        """Products of an MTP block and of the head after it, for one drafted token."""
        reads = (
            work for one in self.draft_lookups for work in one.works(one.decode_rows(context), one.decode_keys(context))
        )
        return merged((*self.draft_products, *reads))

    def read_bytes(self, context: int) -> float:
        """Bytes of state that token number `context` reads."""
        return sum(one.read_bytes(context) for one in self.lookups)

    def conversation_bytes(self, context: int) -> float:
        """Bytes that a conversation of `context` tokens keeps."""
        return -(-context // self.page_size) * self.page_size * self.token_bytes + self.fixed_bytes


def costs_of(name: str, config: ModelConfig, held: tuple[Holding, ...], state: State) -> Costs:
    """Of a model with those weights and that cache; MTP blocks draft if the cache has room for them."""
    layers, main = state.geometry.layers, state.geometry.num_main_layers
    drafts = len(layers) > main
    return Costs(
        name=name,
        max_context=config.max_position_embeddings,
        parameters=total_parameters(held),
        active_parameters=active_parameters(held),
        products=_products(item for item in held if item.part != "MTP"),
        lookups=lookups(config, layers[:main], state.row),
        token_bytes=state.token_bytes,
        fixed_bytes=state.fixed_bytes,
        page_size=state.geometry.page_size,
        draft_products=_products(item for item in held if item.part in ("MTP", "head")) if drafts else (),
        draft_lookups=lookups(config, layers[main:], state.row),
    )


def total(works: Iterable[Work]) -> float:
    """Operations, whatever their format."""
    return sum(work.flops for work in works)


def equivalent(works: Iterable[Work]) -> float:
    """Operations as FP8 ones, see above."""
    return sum(work.flops * EQUIVALENT[work.form] for work in works)


def merged(works: Iterable[Work]) -> tuple[Work, ...]:
    """Equal parts, formats and splits added up; the order of first appearance stays."""
    sums: dict[tuple[str, Format, str], Work] = {}
    for work in works:
        key = (work.part, work.form, work.split)
        before = sums[key].flops if key in sums else 0
        sums[key] = Work(work.part, before + work.flops, work.form, work.split)
    return tuple(sums.values())


def _products(held: Iterable[Holding]) -> tuple[Work, ...]:
    return tuple(
        Work(item.part, 2 * item.product_parameters, product_format(item), item.split)
        for item in held
        if item.product_parameters
    )


def product_format(item: Holding) -> Format:
    """In which format a product with those weights runs."""
    assert item.form != "ids", item
    return "fp8" if item.form == "fp4" else item.form
