"""Many callers of one event loop share an engine; whoever leaves takes its requests along."""

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benthic import LLM, AsyncLLM, SamplingParams
from benthic.errors import CheckpointError, RequestError
from benthic.models.checkpoint import save_checkpoint
from benthic.text.tokenizer import Tokenizer
from tests.journeys.small_model import ASSETS, build_model

pytestmark = pytest.mark.anyio
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
ENDLESS = SamplingParams(max_tokens=900, ignore_eos=True, seed=1)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def llm() -> AsyncIterator[AsyncLLM]:
    async with AsyncLLM(build_model(), tokenizer=Tokenizer(ASSETS), max_num_seqs=8) as llm:
        yield llm


async def until_idle(llm: AsyncLLM) -> None:
    async with asyncio.timeout(20):
        while llm.stats.num_running + llm.stats.num_waiting > 0:
            await asyncio.sleep(0.01)


async def test_many_callers_are_batched_and_get_what_they_would_get_alone(llm: AsyncLLM) -> None:
    prompts = [f"Prompt {i} " * (1 + i % 5) for i in range(12)]
    params = SamplingParams(max_tokens=20, seed=5, logprobs=1, ignore_eos=True)
    together = await asyncio.gather(*(llm.generate(prompt, params) for prompt in prompts))
    with LLM(build_model(), tokenizer=Tokenizer(ASSETS), max_num_seqs=1) as alone:
        assert together == [alone.generate([prompt], params)[0] for prompt in prompts]
    assert llm.stats.num_steps < 12 * 20


async def test_a_stream_joins_to_the_answer_and_names_its_tokens(llm: AsyncLLM) -> None:
    params = dataclasses.replace(GREEDY, n=2, temperature=1.0, seed=4, logprobs=2)
    output = await llm.generate("Tell", params)
    deltas = [delta async for delta in llm.stream("Tell", params)]
    for answer in output.outputs:
        own = [delta for delta in deltas if delta.index == answer.index]
        assert "".join(delta.text for delta in own) == answer.text
        assert [token for delta in own for token in delta.token_ids] == answer.token_ids
        assert [delta.logprobs.chosen for delta in own if delta.logprobs] == answer.logprobs
        assert [delta.finish_reason for delta in own] == [None] * 12 + ["length"]


async def test_ids_in_any_form_are_a_prompt(llm: AsyncLLM) -> None:
    import numpy as np

    outputs = [await llm.generate(ids, GREEDY) for ids in ([5, 6], (5, 6), np.array([5, 6]))]  # type: ignore[arg-type]
    assert outputs[0] == outputs[1] == outputs[2]


async def test_a_stop_string_ends_the_stream_and_the_request(llm: AsyncLLM) -> None:
    text = (await llm.generate("go", dataclasses.replace(GREEDY, max_tokens=40))).outputs[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    deltas = [delta async for delta in llm.stream("go", dataclasses.replace(GREEDY, max_tokens=900, stop=(stop,)))]
    assert "".join(delta.text for delta in deltas) == text[: text.index(stop)]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", stop)
    await until_idle(llm)


async def test_a_cancelled_caller_ends_its_requests_and_no_others(llm: AsyncLLM) -> None:
    task = asyncio.create_task(llm.generate("x", dataclasses.replace(ENDLESS, n=3)))
    other = asyncio.create_task(llm.generate("y", dataclasses.replace(GREEDY, max_tokens=60)))
    while llm.stats.num_running < 4:
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len((await other).outputs[0].token_ids) == 60
    await until_idle(llm)
    assert not llm._mailboxes


async def test_a_stream_left_early_ends_its_request(llm: AsyncLLM) -> None:
    stream = llm.stream("x", ENDLESS)
    async for _ in stream:
        break
    await stream.aclose()  # type: ignore[attr-defined]
    await until_idle(llm)
    assert not llm._mailboxes


async def test_a_bad_request_is_refused_where_it_is_made(llm: AsyncLLM) -> None:
    with pytest.raises(RequestError, match=r"prompts\[0\]: the prompt is empty"):
        await llm.generate([], GREEDY)
    with pytest.raises(RequestError, match="a SamplingParams"):
        await llm.generate("x", 5)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="priority is 'high'"):
        await llm.generate("x", GREEDY, priority="high")  # type: ignore[arg-type]
    assert len((await llm.generate("fine", GREEDY)).outputs[0].token_ids) == 12


async def test_a_pause_holds_tokens_back_and_resume_lets_them_come(llm: AsyncLLM) -> None:
    expected = await llm.generate("x", dataclasses.replace(GREEDY, max_tokens=40))
    task = asyncio.create_task(llm.generate("x", dataclasses.replace(GREEDY, max_tokens=40)))
    await llm.pause("retract")
    done, _ = await asyncio.wait([task], timeout=0.3)
    assert not done
    await llm.resume()
    assert await task == expected
    await llm.flush()


async def test_new_weights_speak_in_the_next_answer(llm: AsyncLLM, tmp_path: Path) -> None:
    other = build_model(seed=2)
    save_checkpoint(other, tmp_path / "other", weights="fp32")
    with pytest.raises(CheckpointError):
        await llm.update_weights(tmp_path / "nowhere", 1)
    await llm.update_weights(tmp_path / "other", 7)
    output = await llm.generate("x", GREEDY)
    with LLM(other.freeze(), tokenizer=Tokenizer(ASSETS), max_num_seqs=2) as expected:
        assert output == expected.generate(["x"], GREEDY)[0]
    assert output.report is not None
    assert output.report.weight_versions == (7,)


async def test_a_closed_llm_answers_what_was_open_and_refuses_the_rest() -> None:
    llm = AsyncLLM(build_model(), tokenizer=Tokenizer(ASSETS), max_num_seqs=2)
    task = asyncio.create_task(llm.generate("x", ENDLESS))
    while llm.stats.num_running < 1:
        await asyncio.sleep(0.005)
    await llm.close()
    await llm.close()
    assert (await task).outputs[0].finish_reason == "error"
    with pytest.raises(RequestError, match="this AsyncLLM is closed"):
        await llm.generate("x")


@pytest.mark.parametrize("is_used", [True, False])
def test_a_closed_llm_leaves_no_thread_behind(is_used: bool) -> None:
    before = set(threading.enumerate())

    async def use() -> AsyncLLM:
        llm = AsyncLLM(build_model(), tokenizer=Tokenizer(ASSETS), max_num_seqs=2, overlap_steps=1)
        if is_used:
            await llm.generate("x", GREEDY)
        await llm.close()
        return llm

    held = asyncio.run(use())  # nor does it take a collection of garbage to end them
    assert set(threading.enumerate()) <= before
    del held


def test_another_event_loop_is_refused() -> None:
    llm = AsyncLLM(build_model(), tokenizer=Tokenizer(ASSETS), max_num_seqs=2)

    async def first() -> None:
        await llm.generate("x", GREEDY)

    async def second() -> None:
        with pytest.raises(RequestError, match="another event loop"):
            await llm.generate("x", GREEDY)
        llm._loop = asyncio.get_running_loop()
        await llm.close()

    asyncio.run(first())
    asyncio.run(second())


async def test_a_folder_without_a_tokenizer_is_asked_by_ids(tmp_path: Path) -> None:
    save_checkpoint(build_model(), tmp_path, weights="fp32")
    async with AsyncLLM(tmp_path) as llm:
        output = await llm.generate([5, 6, 7], GREEDY)
        assert len(output.outputs[0].token_ids) == 12
        with pytest.raises(RequestError, match="this LLM has no tokenizer"):
            await llm.generate("hello", GREEDY)
        with pytest.raises(RequestError, match="stop strings need a tokenizer"):
            await llm.generate([5], SamplingParams(stop="x"))
