"""Workloads by name: random prompts, groups with a shared prefix, conversations of several turns, agents with tools."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from benthic.bench.workload import Branch, Session, Turn
from benthic.errors import ConfigError

DATASETS = ("random", "shared-prefix", "multi-turn", "agents")
_CONTROL_IDS = 100
"""Ids at either end of a vocabulary that are left out: markers of the prompt format live there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetConfig:
    """The size and shape of a workload, lengths in tokens.

    Raises:
        ConfigError: a number is out of range.
    """

    dataset: str = "random"
    """One of `DATASETS`."""
    num_sessions: int = 32
    """Independent sessions; single requests where a session has one turn."""
    num_turns: int = 4
    """Turns of a session (multi-turn, agents)."""
    num_groups: int = 4
    """Different system prompts that sessions share (shared-prefix, multi-turn, agents)."""
    prefix_len: int = 1024
    """Length of a shared system prompt."""
    input_len: int = 256
    """What a turn adds: a prompt, a user message, a tool's result."""
    output_len: int = 64
    """Length of a reply."""
    spread: float = 0.0
    """Lengths are drawn evenly from length * (1 - spread) to length * (1 + spread)."""
    branch_share: float = 0.05
    """Share of an agent's turns from which another attempt branches."""
    chat_share: float = 0.1
    """Share of agent sessions without tools: their reasoning is forgotten when the user speaks again."""
    vocab_size: int = 128_000
    """Ids are drawn from the middle of a vocabulary of this size."""
    seed: int = 0
    """The same seed, the same workload."""

    def __post_init__(self) -> None:
        if self.dataset not in DATASETS:
            raise ConfigError(f"dataset is {self.dataset!r}; it must be one of {', '.join(DATASETS)}")
        for name in ("num_sessions", "num_turns", "num_groups", "prefix_len", "input_len", "output_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("spread", "branch_share", "chat_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be from 0 to 1")
        if self.vocab_size <= 2 * _CONTROL_IDS:
            raise ConfigError(f"vocab_size is {self.vocab_size}; it must be more than {2 * _CONTROL_IDS}")


def make_sessions(config: DatasetConfig) -> list[Session]:
    """The workload of a configuration."""
    makers: dict[str, Callable[[DatasetConfig, _Ids], list[Session]]] = {
        "random": _single_turns,
        "shared-prefix": _single_turns,
        "multi-turn": _conversations,
        "agents": _agents,
    }
    return makers[config.dataset](config, _Ids(config))


class _Ids:
    """Random ids and lengths of one workload."""

    def __init__(self, config: DatasetConfig) -> None:
        self.rng = Random(config.seed)
        self._ids = range(_CONTROL_IDS, config.vocab_size - _CONTROL_IDS)
        self._spread = config.spread

    def draw(self, length: int) -> tuple[int, ...]:
        """So many ids."""
        return tuple(self.rng.choices(self._ids, k=length))

    def about(self, length: int) -> tuple[int, ...]:
        """About so many ids, at least one."""
        low, high = round(length * (1 - self._spread)), round(length * (1 + self._spread))
        return self.draw(max(1, self.rng.randint(low, high)))

    def between(self, low: int, high: int) -> tuple[int, ...]:
        """From `low` to `high` ids, short runs as likely as long ones in the logarithm: tool results are so."""
        return self.draw(round(low * (high / low) ** self.rng.random()))


def _single_turns(config: DatasetConfig, ids: _Ids) -> list[Session]:
    is_shared = config.dataset == "shared-prefix"
    prefixes = [ids.draw(config.prefix_len) if is_shared else () for _ in range(config.num_groups)]
    sessions = []
    for i in range(config.num_sessions):
        prompt = prefixes[i % config.num_groups] + ids.about(config.input_len)
        sessions.append(Session(session_id=f"s{i}", turns=(_turn(prompt, ids.about(config.output_len)),)))
    return sessions


def _conversations(config: DatasetConfig, ids: _Ids) -> list[Session]:
    prefixes = [ids.draw(config.prefix_len) for _ in range(config.num_groups)]
    return [
        Session(session_id=f"s{i}", turns=_turns(config, ids, prefixes[i % config.num_groups]))
        for i in range(config.num_sessions)
    ]


def _turns(config: DatasetConfig, ids: _Ids, prefix: tuple[int, ...]) -> tuple[Turn, ...]:
    return tuple(
        _turn((prefix if turn == 0 else ()) + ids.about(config.input_len), ids.about(config.output_len))
        for turn in range(config.num_turns)
    )


def _turn(new_ids: tuple[int, ...], reply_ids: tuple[int, ...], forgotten_len: int = 0) -> Turn:
    return Turn(new_ids=new_ids, reply_ids=reply_ids, forgotten_len=forgotten_len)


def _agents(config: DatasetConfig, ids: _Ids) -> list[Session]:
    """Agents: a long system prompt with tools, a task, then calls and results; some turns are tried again.

    In a conversation with tools all reasoning stays in the prompt. Without tools it is dropped as soon as the user
    speaks again (docs/model.md, section 4).
    """
    prefixes = [ids.draw(config.prefix_len) for _ in range(config.num_groups)]
    sessions: list[Session] = []
    for i in range(config.num_sessions):
        has_tools = ids.rng.random() >= config.chat_share
        root = Session(
            session_id=f"a{i}",
            turns=_agent_turns(config, ids, prefixes[i % config.num_groups], config.num_turns, has_tools=has_tools),
        )
        sessions += [root, *_attempts(config, ids, root, has_tools=has_tools)]
    return sessions


def _agent_turns(
    config: DatasetConfig, ids: _Ids, prefix: tuple[int, ...], count: int, *, has_tools: bool
) -> tuple[Turn, ...]:
    turns = []
    for number in range(count):
        new_ids = prefix + ids.about(config.input_len) if number == 0 else _observation(config, ids)
        reasoning, answer = ids.between(max(1, config.output_len // 4), config.output_len), ids.about(config.output_len)
        turns.append(_turn(new_ids, reasoning + answer, 0 if has_tools else len(reasoning)))
    return tuple(turns)


def _observation(config: DatasetConfig, ids: _Ids) -> tuple[int, ...]:
    """A tool's result: mostly short, now and then a whole file."""
    return ids.between(max(1, config.input_len // 8), 2 * config.input_len)


def _attempts(config: DatasetConfig, ids: _Ids, root: Session, *, has_tools: bool) -> Sequence[Session]:
    """Further attempts from some of the root's turns: at once as parallel agents do, or later as a user who edits."""
    attempts = []
    for at in range(1, len(root.turns)):
        if ids.rng.random() >= config.branch_share:
            continue
        delay = ids.rng.choice((0, 0, 1, 3))
        branch = Branch(session_id=root.session_id, num_turns=at, delay=min(delay, len(root.turns) - at))
        turns = _agent_turns(config, ids, (), ids.rng.randint(1, 4), has_tools=has_tools)
        attempts.append(Session(session_id=f"{root.session_id}.{at}", turns=turns, branch=branch))
    return attempts
