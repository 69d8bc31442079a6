"""Agents through the cache's bookkeeping: how much of what is known can be used, by retention policy.

    python benchmarks/engine/agent_trace.py [--model deepseek-v4-flash] [--sessions 40] [--turns 30] [--pool 1.5]

Sessions with tools share long system prompts, keep their reasoning, read tool results from a line to a file, and branch
into further attempts, at once or after their parent has moved on; one in ten is plain chat, which forgets its
reasoning. They run eight at a time in random order, in a pool of 1.5 times the live set. For every prompt the cache
says how far compressed entries reach and how far they are usable. `boundaries` must reach 95 % of the former.
"""

import argparse
import time

from benthic.bench.datasets import DatasetConfig, make_sessions
from benthic.bench.hardware import hardware_line
from benthic.bench.replay import ReplayConfig, replay, replay_header, replay_line
from benthic.bench.workload import num_turns
from benthic.cache.geometry import geometry
from benthic.models.checkpoint import inspect

GOAL = 0.95
POLICIES = ("boundaries", "every_page", "interval", "none")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="deepseek-v4-flash")
    arguments.add_argument("--sessions", type=int, default=40)
    arguments.add_argument("--turns", type=int, default=30)
    arguments.add_argument("--pool", type=float, default=1.5)
    arguments.add_argument("--running", type=int, default=8)
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args()
    sessions = make_sessions(agent_trace(options.sessions, options.turns, options.seed))
    shape = geometry(inspect(options.model).config)
    config = ReplayConfig(max_running=options.running, pool=options.pool, seed=options.seed)
    print(hardware_line(libraries=()))
    print(
        f"# {options.model}: {len(sessions)} sessions with branches, {num_turns(sessions)} turns, pool {options.pool}"
    )
    for place, name in enumerate(POLICIES):
        start = time.perf_counter()
        result = replay(sessions, shape, name, config)
        if place == 0:
            print(replay_header(result))
        print(f"{replay_line(result)}  ({time.perf_counter() - start:.1f} s)")
        if name == "boundaries" and result.usable_of_compressed < GOAL:
            print(f"the goal is {GOAL:.0%}: missed")


def agent_trace(sessions: int, turns: int, seed: int = 0) -> DatasetConfig:
    """The published trace."""
    return DatasetConfig(
        dataset="agents",
        num_sessions=sessions,
        num_turns=turns,
        num_groups=2,
        prefix_len=6000,
        input_len=400,
        output_len=150,
        spread=0.5,
        seed=seed,
    )


if __name__ == "__main__":
    main()
