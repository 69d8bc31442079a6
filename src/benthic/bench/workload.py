"""What an engine is asked under measurement: sessions of turns in token ids, the same for the same seed.

A session's prompt grows: each turn adds a user message or a tool's result, then the reply. A session may branch from
another one, as agents do that try twice or hand out work. Replies are scripted, so that a workload needs no model; a
client that learns the real reply puts that into the history instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One request of a session."""

    new_ids: tuple[int, ...]
    """What this turn adds to the history before the reply."""
    reply_ids: tuple[int, ...]
    """The scripted reply; as many tokens are generated."""
    forgotten_len: int = 0
    """Leading tokens of the reply that later prompts leave out: reasoning, outside of tool use."""

    def __post_init__(self) -> None:
        assert self.new_ids and self.reply_ids
        assert 0 <= self.forgotten_len < len(self.reply_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Where a session begins inside another one."""

    session_id: str
    num_turns: int
    """Turns of the parent that the branch has in common with it."""
    delay: int = 0
    """Further turns that the parent completes before the branch begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Turns that follow each other; the next one starts when the reply before it is complete."""

    session_id: str
    turns: tuple[Turn, ...]
    branch: Branch | None = None


class Conversation:
    """The history of a session while it runs."""

    def __init__(self, session: Session, history: Sequence[int] = ()) -> None:
        self.session = session
        self.num_done = 0
        self._lengths = [len(history)]
        self._ids = list(history)

    @property
    def has_turns(self) -> bool:
        """Whether a turn is left."""
        return self.num_done < len(self.session.turns)

    @property
    def turn(self) -> Turn:
        """The turn that is next or under way."""
        return self.session.turns[self.num_done]

    def prompt(self) -> tuple[int, ...]:
        """The prompt of the next turn."""
        return (*self._ids, *self.turn.new_ids)

    def complete(self, reply_ids: Sequence[int] | None = None) -> None:
        """Puts the turn and its reply into the history; without `reply_ids` the scripted one."""
        turn = self.turn
        reply = turn.reply_ids if reply_ids is None else reply_ids
        self._ids += [*turn.new_ids, *reply[turn.forgotten_len :]]
        self._lengths.append(len(self._ids))
        self.num_done += 1

    def fork(self, session: Session) -> Self:
        """The conversation of a session that branches from this one."""
        assert session.branch is not None and session.branch.num_turns <= self.num_done
        return type(self)(session, self._ids[: self._lengths[session.branch.num_turns]])


class Branches:
    """Which sessions begin when: roots at once, a branch when its parent has come far enough."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._roots = [session for session in sessions if session.branch is None]
        self._waiting: dict[tuple[str, int], list[Session]] = {}
        lengths = {session.session_id: len(session.turns) for session in sessions}
        assert len(lengths) == len(sessions), "two sessions of one name"
        for session in sessions:
            if session.branch is not None:
                at = session.branch.num_turns + session.branch.delay
                assert 1 <= at <= lengths[session.branch.session_id], session.session_id
                self._waiting.setdefault((session.branch.session_id, at), []).append(session)

    def roots(self) -> list[Conversation]:
        """The conversations that need nobody."""
        return [Conversation(session) for session in self._roots]

    def started_by(self, conversation: Conversation) -> list[Conversation]:
        """The branches that the turn just completed sets off."""
        key = (conversation.session.session_id, conversation.num_done)
        return [conversation.fork(session) for session in self._waiting.get(key, ())]


def num_turns(sessions: Sequence[Session]) -> int:
    """Requests that a workload consists of."""
    return sum(len(session.turns) for session in sessions)


def final_histories(sessions: Sequence[Session]) -> list[tuple[int, ...]]:
    """What every session holds at its end when replies are as scripted."""
    branches = Branches(sessions)
    todo, done = branches.roots(), []
    while todo:
        conversation = todo.pop()
        while conversation.has_turns:
            conversation.complete()
            todo += branches.started_by(conversation)
        done.append(tuple(conversation._ids))
    return done
