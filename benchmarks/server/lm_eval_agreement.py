"""What lm-eval reads from /v1/completions beside what `LLM` computes in this process.

    BENTHIC_LM_EVAL=/path/to/lm-eval python -m benchmarks.server.lm_eval_agreement [--url http://127.0.0.1:8000]

Two tasks on local JSON lines, without a network: a choice by log-likelihood and an answer to generate. Both must come
back as `LLM` has them, log-likelihoods to the last bit. lm-eval asks the server for its tokenizer, so no folder is
needed.
"""

import argparse
import json
import subprocess
import tempfile
from os import environ
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.server.outside import MODEL, OFFLINE, find_program, serving
from benthic.engine.sampling import SamplingParams
from benthic.llm import LLM

VARIABLE = "BENTHIC_LM_EVAL"
MAX_TOKENS = 12
CHOICES = (
    {"question": "What is 2 + 3?", "choices": ["5", "seven", "at nine in the morning"], "answer": 0},
    {"question": "The sea is", "choices": ["deep", "blue.", "made of 12 stones"], "answer": 1},
    {"question": "Ann has 4 apples and gives away 1. She has", "choices": ["3", "3 apples", "no hat"], "answer": 1},
    {"question": "The capital of the country is", "choices": ["the country", "a hat"], "answer": 0},
    {"question": "Wie spät ist es?", "choices": ["Es ist zwölf.", "它是蓝色的", "🌊"], "answer": 0},
)
QUESTIONS = ("What is 347 + 285?", "Hello", "The capital of the country is", "Count: 1 2 3 4")
_TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{question}}}}"
"""
_CHOICE = "doc_to_choice: choices\ndoc_to_target: answer\nmetric_list: [{metric: acc}]\n"
_GENERATION = (
    'doc_to_target: ""\nmetric_list: [{metric: exact_match}]\n'
    f'generation_kwargs: {{until: ["."], max_gen_toks: {MAX_TOKENS}, temperature: 0}}\n'
)


class Row(NamedTuple):
    """One thing that lm-eval read, as either side has it."""

    asked: str
    lm_eval: Any
    llm: Any

    @property
    def is_equal(self) -> bool:
        """Whether they agree, numbers to the last bit."""
        return bool(self.lm_eval == self.llm)


def measure(program: str, url: str) -> list[Row]:
    """Run both tasks through lm-eval, and compute the same here.

    Raises:
        RuntimeError: lm-eval fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        samples = _run(program, url, Path(folder))
    with LLM(str(MODEL)) as llm:
        rows = [row for sample in samples["benthic_choice"] for row in _choice_rows(llm, sample)]
        return rows + [_generation_row(llm, sample) for sample in samples["benthic_generation"]]


def table(rows: list[Row]) -> str:
    """The rows as text."""
    lines = [f"{row.asked:60}{row.lm_eval!r:>28}{row.llm!r:>28}  {'' if row.is_equal else 'DIFFERS'}" for row in rows]
    worst = max((abs(row.lm_eval - row.llm) for row in rows if isinstance(row.lm_eval, float)), default=0.0)
    head = f"{'':60}{'lm-eval':>28}{'LLM':>28}"
    return "\n".join([head, *lines, f"{len(rows)} values, log-likelihoods differ by {worst:.1e} at most"])


def _choice_rows(llm: LLM, sample: dict[str, Any]) -> list[Row]:
    question, rows = sample["doc"]["question"], []
    for choice, [[loglikelihood, is_greedy]] in zip(sample["doc"]["choices"], sample["resps"], strict=True):
        context, whole = llm.tokenizer.encode(question), llm.tokenizer.encode(f"{question} {choice}")
        scores = [float(score) for score in llm.score(whole)][len(context) - 1 :]
        greedy = llm.generate([context], SamplingParams(max_tokens=len(whole) - len(context), temperature=0))
        is_first = list(greedy[0].outputs[0].token_ids) == whole[len(context) :]
        rows.append(Row(f"{question} | {choice}", float(loglikelihood), sum(scores)))
        rows.append(Row(f"{question} | {choice} (greedy)", is_greedy in (True, "True"), is_first))
    return rows


def _generation_row(llm: LLM, sample: dict[str, Any]) -> Row:
    question = sample["doc"]["question"]
    params = SamplingParams(max_tokens=MAX_TOKENS, temperature=0, stop=(".",))
    text = llm.generate([question], params)[0].outputs[0].text
    return Row(question, sample["resps"][0][0], text)


def _run(program: str, url: str, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The samples that lm-eval logged, by task."""
    documents = {"benthic_choice": CHOICES, "benthic_generation": [{"question": text} for text in QUESTIONS]}
    kinds = {"benthic_choice": ("multiple_choice", _CHOICE), "benthic_generation": ("generate_until", _GENERATION)}
    for name, (kind, rest) in kinds.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(document) + "\n" for document in documents[name]))
        (folder / f"{name}.yaml").write_text(_TASK.format(name=name, data=data, kind=kind) + rest)
    command = [
        *(program, "run", "--model", "local-completions", "--tasks", ",".join(kinds)),
        *("--model_args", f"model=tiny,base_url={url}/v1/completions,num_concurrent=2,max_length=8192"),
        *("--include_path", str(folder), "--output_path", str(folder / "out"), "--log_samples", "--batch_size", "4"),
    ]
    environment = {**environ, **OFFLINE, "HF_HOME": str(folder / "home")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"lm-eval ended with {done.returncode}: {done.stderr[-2000:]}")
    return {name: _samples(folder, name) for name in kinds}


def _samples(folder: Path, name: str) -> list[dict[str, Any]]:
    [path] = folder.rglob(f"samples_{name}_*.jsonl")
    return sorted(map(json.loads, path.read_text().splitlines()), key=lambda sample: sample["doc_id"])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--url")
    url = arguments.parse_args().url
    program = find_program(VARIABLE, "lm-eval")
    if program is None:
        raise SystemExit(
            f"lm-eval is not on PATH; install lm-eval[api] in an environment of its own and set {VARIABLE}"
        )
    if url:
        print(table(measure(program, url)))
        return
    with serving() as started:
        print(table(measure(program, started.url)))


if __name__ == "__main__":
    main()
