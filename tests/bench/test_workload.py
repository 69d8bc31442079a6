"""Workloads are repeatable, shaped as asked, and grow as conversations do."""

from dataclasses import replace

import pytest

from benthic.bench.datasets import DATASETS, DatasetConfig, make_sessions
from benthic.bench.workload import Branch, Branches, Conversation, Session, Turn, final_histories, num_turns
from benthic.errors import ConfigError

SMALL = DatasetConfig(num_sessions=12, num_turns=5, num_groups=3, prefix_len=50, input_len=20, output_len=10)


def turn(*new_ids: int, reply: tuple[int, ...] = (7, 8), forgotten_len: int = 0) -> Turn:
    return Turn(new_ids=new_ids, reply_ids=reply, forgotten_len=forgotten_len)


@pytest.mark.parametrize("name", DATASETS)
def test_a_seed_gives_one_workload_and_another_seed_another_one(name: str) -> None:
    config = replace(SMALL, dataset=name)
    assert make_sessions(config) == make_sessions(config)
    assert make_sessions(config) != make_sessions(replace(config, seed=1))


@pytest.mark.parametrize("name", DATASETS)
def test_ids_keep_off_the_ends_of_the_vocabulary(name: str) -> None:
    config = replace(SMALL, dataset=name, vocab_size=300)
    used = {token for history in final_histories(make_sessions(config)) for token in history}
    assert min(used) >= 100
    assert max(used) < 200


def test_lengths_are_those_asked_for_within_the_spread() -> None:
    exact = make_sessions(replace(SMALL, spread=0.0))
    assert {len(session.turns[0].new_ids) for session in exact} == {20}
    assert {len(session.turns[0].reply_ids) for session in exact} == {10}
    wide = make_sessions(replace(SMALL, num_sessions=200, spread=0.5))
    lengths = {len(session.turns[0].new_ids) for session in wide}
    assert (min(lengths), max(lengths)) == (10, 30)


def test_groups_share_their_prefix_and_nothing_else() -> None:
    prompts = [session.turns[0].new_ids for session in make_sessions(replace(SMALL, dataset="shared-prefix"))]
    assert len({prompt[:50] for prompt in prompts}) == 3
    assert len({prompt[50:] for prompt in prompts}) == 12
    assert {len(prompt) for prompt in prompts} == {70}


def test_every_prompt_of_a_conversation_continues_the_one_before_it() -> None:
    [session, *_] = make_sessions(replace(SMALL, dataset="multi-turn"))
    conversation = Conversation(session)
    before: tuple[int, ...] = ()
    while conversation.has_turns:
        prompt, reply = conversation.prompt(), conversation.turn.reply_ids
        assert prompt[: len(before)] == before
        before = prompt + reply
        conversation.complete()
    assert len(before) == 50 + 5 * 30


def test_forgotten_reasoning_is_missing_from_the_next_prompt_only_from_its_start_on() -> None:
    session = Session(session_id="a", turns=(turn(1, 2, reply=(5, 6, 7), forgotten_len=2), turn(3)))
    conversation = Conversation(session)
    assert conversation.prompt() == (1, 2)
    conversation.complete()
    assert conversation.prompt() == (1, 2, 7, 3)


def test_a_known_reply_takes_the_place_of_the_scripted_one() -> None:
    conversation = Conversation(Session(session_id="a", turns=(turn(1), turn(2))))
    conversation.complete([9])
    assert conversation.prompt() == (1, 9, 2)


def test_a_late_branch_begins_where_its_parent_was_and_not_where_it_is() -> None:
    parent = Session(session_id="p", turns=(turn(1), turn(2), turn(3)))
    branch = Session(session_id="b", turns=(turn(4),), branch=Branch(session_id="p", num_turns=1, delay=1))
    branches = Branches([parent, branch])
    [conversation] = branches.roots()
    conversation.complete()
    assert branches.started_by(conversation) == []
    conversation.complete()
    [started] = branches.started_by(conversation)
    assert started.prompt() == (1, 7, 8, 4)


def test_agents_branch_and_mostly_keep_their_reasoning() -> None:
    sessions = make_sessions(replace(SMALL, dataset="agents", num_sessions=40, num_turns=30))
    roots = [session for session in sessions if session.branch is None]
    assert len(roots) == 40
    assert len(sessions) > 60
    assert num_turns(roots) == 1200
    chats = [session for session in roots if session.turns[0].forgotten_len]
    assert 1 <= len(chats) <= 10
    assert all(one.forgotten_len for session in chats for one in session.turns)


@pytest.mark.parametrize(
    ("field", "value"),
    [("dataset", "sonnets"), ("num_turns", 0), ("spread", 1.5), ("vocab_size", 200), ("branch_share", -0.1)],
)
def test_a_workload_that_cannot_be_is_refused_by_its_field(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{field} is"):
        DatasetConfig(**{field: value})  # type: ignore[arg-type]
