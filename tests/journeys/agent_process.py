"""An agent in a process of its own, to be killed: a model behind HTTP, a sandbox, a journal. Prints the transcript.

python -m tests.journeys.agent_process URL ROOT KIND JOURNAL
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx

from benthic.sandbox.probe import local_host
from benthic.sandbox.records import KINDS, Kind, SandboxSpec
from benthic.sandbox.tools import AnswerCheck, Episode, FileCheck, SandboxEnvironment, Task, run_episode

PROMPT = "Write 3 and 4 into numbers.txt, add them up, say so in total.txt, and hand in the sum."


def task_of(kind: Kind) -> Task:
    """Three steps with files, and a line in `runs` each time the second one runs."""
    return Task(
        id="sum",
        prompt=PROMPT,
        spec=SandboxSpec(kind=kind),
        tools=("bash", "write_file", "edit_file", "submit"),
        checks=(
            FileCheck(name="total", path="/work/total.txt", content=b"the sum is 7"),
            FileCheck(name="ran once", path="/work/runs", content=b"ran\n", is_exact=True),
            AnswerCheck(name="answer", answer="7"),
        ),
    )


async def run(url: str, root: Path, kind: Kind, journal: Path) -> Episode:
    """The whole episode, or what is left of it."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client, local_host(root) as host:

        async def generate(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
            body = {"model": "tiny", "messages": messages, "tools": tools, "max_tokens": 400, "temperature": 0}
            answer = await client.post("/v1/chat/completions", json=body)
            answer.raise_for_status()
            message: dict[str, Any] = answer.json()["choices"][0]["message"]
            return {name: value for name, value in message.items() if value is not None}

        return await run_episode(SandboxEnvironment(host), task_of(kind), generate, journal=journal)


def main() -> None:
    url, root, kind, journal = sys.argv[1:]
    chosen = next(one for one in KINDS if one == kind)
    episode = asyncio.run(run(url, Path(root), chosen, Path(journal)))
    verdicts = {verdict.name: verdict.is_passed for verdict in episode.reward.verdicts}
    facts = {"reward": episode.reward.value, "verdicts": verdicts, "num_replayed": episode.num_replayed}
    print(json.dumps(facts | {"messages": episode.messages}))


if __name__ == "__main__":
    main()
