"""Workloads through the cache's bookkeeping: every match is right, and the default retention keeps what agents need."""

from dataclasses import replace

import pytest

from benchmarks.engine.agent_trace import GOAL, agent_trace
from benthic.bench.datasets import DatasetConfig, make_sessions
from benthic.bench.replay import Replay, ReplayConfig, live_pages, replay
from benthic.bench.workload import Session, Turn, final_histories, num_turns
from benthic.cache.geometry import CacheGeometry, geometry
from benthic.cache.layout import LayerCache
from benthic.errors import ConfigError
from benthic.models.released import FLASH, V3

SMALL = CacheGeometry(
    page_size=16,
    window=8,
    layers=(LayerCache(0, False, 4, 0), LayerCache(4, True, 4, 2), LayerCache(16, False, 4, 0)),
    num_main_layers=3,
)
AGENTS = DatasetConfig(
    dataset="agents", num_sessions=6, num_turns=8, num_groups=2, prefix_len=100, input_len=30, output_len=20, spread=0.5
)


@pytest.fixture(scope="module")
def replays() -> dict[str, Replay]:
    """The published trace: 40 sessions of 30 turns in 1.5 times their live set."""
    sessions = make_sessions(agent_trace(40, 30))
    assert num_turns([session for session in sessions if session.branch is None]) == 1200
    return {name: replay(sessions, geometry(FLASH), name) for name in ("boundaries", "every_page", "none")}


def test_the_default_retention_makes_nearly_all_of_what_is_cached_usable(replays: dict[str, Replay]) -> None:
    found = replays["boundaries"]
    assert found.compressed_share > 0.9
    assert found.usable_of_compressed >= GOAL
    assert found.num_retractions == 0


def test_keeping_every_window_or_none_is_worse_in_the_same_pool(replays: dict[str, Replay]) -> None:
    best, every, none = (replays[name] for name in ("boundaries", "every_page", "none"))
    assert (
        (best.num_windows, best.num_pages) == (every.num_windows, every.num_pages) == (none.num_windows, none.num_pages)
    )
    assert best.usable_share > every.usable_share > none.usable_share == 0
    assert best.computed_share < every.computed_share < none.computed_share


@pytest.mark.parametrize("name", ["boundaries", "none"])
def test_without_windows_all_that_is_cached_is_usable_whatever_the_retention(name: str) -> None:
    found = replay(make_sessions(AGENTS), geometry(V3, page_size=16), name, ReplayConfig(retention_interval=64))
    assert found.num_windows == 0
    assert found.usable_share == found.compressed_share > 0.5


@pytest.mark.parametrize("name", ["boundaries", "every_page", "interval", "none"])
def test_one_request_at_a_time_in_an_endless_pool_matches_all_that_came_before(name: str) -> None:
    """By brute force: the longest run of full pages that any earlier request computed."""
    sessions = make_sessions(AGENTS)
    config = ReplayConfig(max_running=1, pool=50.0, retention_interval=64, check=True)
    found = replay(sessions, SMALL, name, config)
    assert len(found.hits) == num_turns(sessions)
    prompts = prompts_of(sessions)
    seen: set[tuple[int, ...]] = set()
    for hit in found.hits:
        prompt, reply = prompts[hit.session_id, hit.turn]
        pages = range(16, len(prompt), 16)
        assert hit.compressed_len == max((end for end in pages if prompt[:end] in seen), default=0)
        assert hit.usable_len <= hit.compressed_len < hit.prompt_len == len(prompt)
        computed = (*prompt, *reply[:-1])
        seen.update(computed[:end] for end in range(16, len(computed) + 1, 16))


def prompts_of(sessions: list[Session]) -> dict[tuple[str, int], tuple[tuple[int, ...], tuple[int, ...]]]:
    """Prompt and reply of every turn, read off the final histories and not off a running conversation."""
    found = {}
    histories = {session.session_id: () for session in sessions}
    for session in sessions:
        ids: tuple[int, ...] = histories[session.session_id]
        if session.branch is not None:
            parent = next(one for one in sessions if one.session_id == session.branch.session_id)
            ids = history(parent, session.branch.num_turns)
        for number, turn in enumerate(session.turns):
            found[session.session_id, number] = ((*ids, *turn.new_ids), turn.reply_ids)
            ids = (*ids, *turn.new_ids, *turn.reply_ids[turn.forgotten_len :])
    return found


def history(session: Session, turns: int) -> tuple[int, ...]:
    assert session.branch is None
    parts = [(*turn.new_ids, *turn.reply_ids[turn.forgotten_len :]) for turn in session.turns[:turns]]
    return tuple(token for part in parts for token in part)


def test_every_request_ends_in_a_pool_that_holds_hardly_one() -> None:
    sessions = make_sessions(replace(AGENTS, num_turns=5))
    config = ReplayConfig(max_running=6, pool=0.01, retention_interval=64, check=True)
    found = replay(sessions, SMALL, "boundaries", config)
    assert len(found.hits) == num_turns(sessions)
    assert found.num_retractions > 0


def test_live_pages_count_shared_pages_once() -> None:
    turn = Turn(new_ids=tuple(range(16)), reply_ids=(1,) * 20)
    other = Turn(new_ids=tuple(range(16)), reply_ids=(2,) * 20)
    sessions = [Session(session_id=str(i), turns=(turn if i < 2 else other,)) for i in range(3)]
    # One page in common; then a page of ones for two of them, a page of twos for the third; the rest fills no page.
    assert live_pages(sessions, 16) == 3
    assert len(final_histories(sessions)) == 3


def test_a_policy_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="retention .'hope'"):
        replay(make_sessions(AGENTS), SMALL, "hope", ReplayConfig(retention_interval=64))
