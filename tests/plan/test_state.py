"""Box 3 and the engine's cache cannot disagree: the planned bytes are those of real pools."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import benthic
from benthic.cache.budget import TABLE_BYTES
from benthic.cache.geometry import CacheCapacity
from benthic.cache.pools import CachePools
from benthic.engine.config import EngineConfig
from benthic.errors import ConfigError
from benthic.models.config import ModelConfig
from benthic.models.released import KNOWN
from benthic.plan.fit import WORKSPACE_BYTES
from benthic.plan.rows import CacheFormat, has_official_cache
from benthic.plan.state import PASS_ROWS, Draft, State, state_of

TINY = Path(benthic.__file__).parent / "assets" / "tiny"
FORMS: tuple[CacheFormat, ...] = ("official", "bf16", "fp32")


def models() -> dict[str, ModelConfig]:
    found = {
        name: replace(KNOWN[name], num_hidden_layers=3) for name in ("deepseek-v2", "deepseek-v3", "deepseek-v3.2")
    }
    flash = replace(KNOWN["deepseek-v4-flash"], num_hidden_layers=3, compress_ratios=(0, 4, 128, 0))
    return {"tiny": ModelConfig.from_json(TINY), "flash": flash, **found}


CASES = [
    (name, form, draft)
    for name, config in models().items()
    for form in FORMS
    for draft in ("none", "mtp")
    if (form != "official" or has_official_cache(config)) and (draft == "none" or config.num_nextn_predict_layers)
]


def real_pools(state: State, form: CacheFormat, conversations: int, context: int) -> CachePools:
    windows = conversations * state.windows + (state.geometry.num_pages(PASS_ROWS) if state.windows else 0)
    pages = conversations * (state.geometry.num_pages(context) + 1)
    return CachePools(
        state.geometry,
        CacheCapacity(pages, windows, conversations, context),
        dtype=torch.float32 if form == "fp32" else torch.bfloat16,
        device=torch.device("cpu"),
        storage="official" if form == "official" else "wide",
        numerics="quantized" if form == "official" else "plain",
    )


@pytest.mark.parametrize(("name", "form", "draft"), CASES)
@pytest.mark.parametrize(("conversations", "context"), [(1, 1), (3, 128), (5, 1000)])
def test_planned_bytes_are_those_of_real_pools(
    name: str, form: CacheFormat, draft: Draft, conversations: int, context: int
) -> None:
    state = state_of(models()[name], form, draft)
    tables = conversations * state.geometry.num_pages(context) * TABLE_BYTES
    pools = real_pools(state, form, conversations, context)
    assert state.pool_bytes(conversations, context) == pools.num_bytes + tables


@pytest.mark.parametrize(("name", "form", "draft"), CASES)
def test_pools_by_name_add_up_to_a_conversation(name: str, form: CacheFormat, draft: Draft) -> None:
    state = state_of(models()[name], form, draft)
    context = 4096
    parts = sum(pool.token_bytes * context + pool.fixed_bytes for pool in state.pools())
    assert parts == pytest.approx(state.conversation_bytes(context))


def test_as_many_conversations_fit_as_the_pools_have_room_for() -> None:
    state = state_of(KNOWN["deepseek-v4-flash"], "official")
    for room in (0, 10_000_000, 3_000_000_000, 77_777_777_777):
        fit = state.conversations_in(room, 32768)
        assert fit == 0 or state.pool_bytes(fit, 32768) <= room
        assert state.pool_bytes(fit + 1, 32768) > room


def test_latent_attention_keeps_576_numbers_a_token_and_layer_and_nothing_fixed() -> None:
    state = state_of(KNOWN["deepseek-v3"], "bf16")
    assert state.token_bytes == 61 * 576 * 2
    assert state.fixed_bytes == 0


def test_a_family_without_an_official_cache_format_says_so() -> None:
    with pytest.raises(ConfigError, match=r"the cache format is 'official' and the model a deepseek_v2, .*bf16 or"):
        state_of(KNOWN["deepseek-v2"], "official")


def test_passes_are_planned_as_the_engine_runs_them_by_default() -> None:
    assert EngineConfig().max_batched_tokens == PASS_ROWS
    assert EngineConfig().workspace_bytes == WORKSPACE_BYTES
