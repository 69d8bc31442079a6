"""From prompts to answers through the public class, on a small random model with the bundled tokenizer."""

import dataclasses
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import benthic
from benthic import LLM, SamplingParams
from benthic.errors import CheckpointError, ConfigError, PromptTooLong, RequestError
from benthic.models.checkpoint import save_checkpoint
from benthic.text.tokenizer import Tokenizer
from tests.journeys.small_model import ASSETS, build_model

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(build_model(), tokenizer=Tokenizer(ASSETS), max_num_seqs=8) as llm:
        yield llm


def test_text_and_its_ids_give_the_same_answer(llm: LLM) -> None:
    text = "What is 347 + 285?"
    ids = llm.tokenizer.encode(text)
    by_text, by_ids = llm.generate([text, ids], GREEDY)
    assert by_text.prompt_token_ids == ids == by_ids.prompt_token_ids
    assert (by_text.prompt, by_ids.prompt) == (text, None)
    assert by_text.outputs == by_ids.outputs
    assert by_text.outputs[0].text == llm.tokenizer.decode(by_text.outputs[0].token_ids)
    assert by_text.cached_len == 0


def test_hundreds_of_prompts_come_back_in_order(llm: LLM) -> None:
    prompts = [[3 + i, 4, 5] for i in range(300)]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=2, temperature=0))
    assert [output.prompt_token_ids for output in outputs] == prompts
    assert all(1 <= len(output.outputs[0].token_ids) <= 2 for output in outputs)


def test_a_single_prompt_needs_no_list(llm: LLM) -> None:
    assert len(llm.generate("hello", GREEDY)) == 1
    assert len(llm.generate([5, 6, 7], GREEDY)) == 1
    assert llm.generate([], GREEDY) == []


def test_ids_may_come_as_tuples_tensors_and_arrays(llm: LLM) -> None:
    given = [[5, 6, 7], (5, 6, 7), torch.tensor([5, 6, 7]), np.array([5, 6, 7]), list(np.array([5, 6, 7]))]
    outputs = llm.generate(given, GREEDY)  # type: ignore[arg-type]
    assert [output.prompt_token_ids for output in outputs] == [[5, 6, 7]] * 5
    assert all(output.outputs == outputs[0].outputs for output in outputs)
    assert all(llm.generate(ids, GREEDY) == [outputs[0]] for ids in given)  # type: ignore[arg-type]
    assert llm.generate([given[2]], GREEDY) == [outputs[0]]  # type: ignore[list-item]
    assert all(torch.equal(llm.score(ids), llm.score([5, 6, 7])) for ids in given)  # type: ignore[arg-type]


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    short, long = llm.generate(
        ["a", "a"], [SamplingParams(max_tokens=1), SamplingParams(max_tokens=5, ignore_eos=True)]
    )
    assert len(short.outputs[0].token_ids) == 1
    assert len(long.outputs[0].token_ids) == 5


def test_scores_equal_the_logprobs_of_generation_bit_for_bit(llm: LLM) -> None:
    prompts: list[str | list[int]] = ["One, two, three", list(range(10, 300)), [7]]
    params = SamplingParams(max_tokens=20, seed=5, logprobs=0, ignore_eos=True)
    for output in llm.generate(prompts, params):
        [answer] = output.outputs
        assert answer.logprobs is not None
        scores = llm.score(output.prompt_token_ids + answer.token_ids)
        assert scores.dtype == torch.float32
        assert torch.equal(scores[len(output.prompt_token_ids) - 1 :], torch.tensor(answer.logprobs))


def test_logits_are_what_greedy_generation_takes_the_best_of(llm: LLM) -> None:
    [output] = llm.generate(["The sea"], GREEDY)
    ids = output.prompt_token_ids + output.outputs[0].token_ids
    logits = llm.logits(ids)
    assert logits.shape == (len(ids), llm.model.config.vocab_size)
    assert logits.dtype == torch.float32
    assert logits[len(output.prompt_token_ids) - 1 : -1].argmax(-1).tolist() == output.outputs[0].token_ids


def test_the_score_of_a_token_is_the_log_softmax_of_its_logits(llm: LLM) -> None:
    ids = [9, 8, 7, 6]
    expected = llm.logits(ids).double().log_softmax(-1)[torch.arange(3), torch.tensor(ids[1:])]
    torch.testing.assert_close(llm.score(ids).double(), expected, atol=1e-5, rtol=0)
    assert llm.score([9]).shape == (0,)


def test_top_logprobs_are_as_many_as_asked_for_best_first(llm: LLM) -> None:
    [output] = llm.generate(["x"], dataclasses.replace(GREEDY, logprobs=4))
    [answer] = output.outputs
    assert answer.top_logprobs is not None
    assert answer.logprobs is not None
    for token, logprob, top in zip(answer.token_ids, answer.logprobs, answer.top_logprobs, strict=True):
        assert len(top) == 4
        assert list(top.items())[0] == (token, logprob)
        assert list(top.values()) == sorted(top.values(), reverse=True)


def test_several_answers_differ_and_are_each_repeatable_alone(llm: LLM) -> None:
    params = SamplingParams(max_tokens=10, seed=40, n=3, ignore_eos=True)
    [output] = llm.generate(["Once"], params)
    answers = [answer.token_ids for answer in output.outputs]
    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    assert len({tuple(ids) for ids in answers}) == 3
    [again] = llm.generate(["Once"], dataclasses.replace(params, seed=42, n=1))
    assert again.outputs[0].token_ids == answers[2]


def test_prompt_logprobs_are_the_scores_of_training_with_the_likeliest_tokens(llm: LLM) -> None:
    ids = list(range(10, 330))
    params = SamplingParams(max_tokens=3, prompt_logprobs=2, n=2, seed=1, ignore_eos=True)
    [output] = llm.generate([ids], params)
    assert output.prompt_logprobs == [None, *llm.score(ids).tolist()]
    assert output.prompt_top_logprobs is not None
    assert output.prompt_top_logprobs[0] is None
    best = [next(iter(top)) for top in output.prompt_top_logprobs[1:] if top]
    assert best == llm.logits(ids)[:-1].argmax(-1).tolist()
    [plain] = llm.generate([ids], dataclasses.replace(params, prompt_logprobs=None))
    assert plain.outputs == output.outputs
    assert plain.prompt_logprobs is None


def test_a_prompt_can_be_scored_without_an_answer(llm: LLM) -> None:
    [output] = llm.generate([[5] * llm.max_model_len], SamplingParams(max_tokens=0, prompt_logprobs=0))
    assert output.outputs[0].token_ids == []
    assert output.outputs[0].finish_reason == "length"
    assert output.prompt_logprobs == [None, *llm.score([5] * llm.max_model_len).tolist()]


def test_a_cached_prefix_is_reported_and_changes_nothing(llm: LLM) -> None:
    ids = [(11 * i) % 4000 + 7 for i in range(400)]
    [cold] = llm.generate([ids], GREEDY)
    [warm] = llm.generate([ids], GREEDY)
    assert cold == warm
    assert (cold.cached_len, warm.cached_len) == (0, 384)
    assert warm.report is not None
    assert (warm.report.prompt_len, warm.report.usable_match, warm.report.cut) == (400, 384, "whole prompt")
    assert warm.outputs[0].report == warm.report


def test_a_thinking_budget_ends_the_reasoning_and_lets_the_answer_follow(llm: LLM) -> None:
    """B187: reasoning has a limit of its own, and the answer gets the rest."""
    end = llm.tokenizer.token_id("</think>")
    free = dataclasses.replace(GREEDY, max_tokens=20, logit_bias={end: -100})  # type: ignore[arg-type]
    params = dataclasses.replace(free, thinking_budget=5, reasoning_end_id=end, logprobs=0)
    [unbound], [bound] = llm.generate(["Think"], free), llm.generate(["Think"], params)
    answer = bound.outputs[0]
    assert answer.token_ids[:6] == [*unbound.outputs[0].token_ids[:5], end]
    assert len(answer.token_ids) == 20
    assert end not in answer.token_ids[6:]
    scores = llm.score([*bound.prompt_token_ids, *answer.token_ids])[len(bound.prompt_token_ids) - 1 :]
    assert answer.logprobs == scores.tolist()


def test_a_stop_string_in_the_reasoning_ends_the_answer_only_if_asked(llm: LLM) -> None:
    end = llm.tokenizer.token_id("</think>")
    thinking = SamplingParams(seed=3, max_tokens=16, ignore_eos=True, thinking_budget=6, reasoning_end_id=end)
    [free] = llm.generate(["go"], thinking)
    thought, answer = free.outputs[0].text.split("</think>")
    stop = thought[-3:]
    assert stop not in answer
    [asleep] = llm.generate(["go"], dataclasses.replace(thinking, stop=(stop,)))
    [awake] = llm.generate(["go"], dataclasses.replace(thinking, stop=(stop,), stop_in_reasoning=True))
    assert asleep.outputs[0].text == free.outputs[0].text
    assert awake.outputs[0].text == thought[: thought.index(stop)]
    [shown] = llm.generate(
        ["go"], dataclasses.replace(thinking, stop=(stop,), stop_in_reasoning=True, include_stop=True)
    )
    assert shown.outputs[0].text == thought[: thought.index(stop) + len(stop)]


def test_several_answers_share_the_computed_prompt(llm: LLM) -> None:
    ids = [(13 * i) % 4000 + 9 for i in range(300)]
    before = llm.stats
    [output] = llm.generate([ids], SamplingParams(max_tokens=5, seed=3, n=6, ignore_eos=True))
    after = llm.stats
    assert len({tuple(answer.token_ids) for answer in output.outputs}) == 6
    computed = [answer.report.usable_match for answer in output.outputs if answer.report]
    assert len(computed) == 6
    assert after.num_generated_tokens - before.num_generated_tokens == 30
    alone = [llm.generate([ids], SamplingParams(max_tokens=5, seed=3 + i, ignore_eos=True))[0] for i in range(6)]
    assert [answer.token_ids for answer in output.outputs] == [one.outputs[0].token_ids for one in alone]


def test_routes_are_returned_where_the_engine_keeps_them() -> None:
    with LLM(build_model(), tokenizer=Tokenizer(ASSETS), max_num_seqs=4, keep_routes=True) as llm:
        ids = list(range(20, 320))
        params = dataclasses.replace(GREEDY, return_routes=True)
        [cold], [warm] = llm.generate([ids], params), llm.generate([ids], params)
        routes = cold.outputs[0].routes
        assert routes is not None
        assert routes.dtype.kind == "u"
        assert len(routes) == len(ids) + len(cold.outputs[0].token_ids) - 1
        assert warm.cached_len > 0
        assert np.array_equal(routes, warm.outputs[0].routes)  # type: ignore[arg-type]
    with LLM(build_model(), max_num_seqs=4) as llm, pytest.raises(RequestError, match="return_routes is True"):
        llm.generate([[5, 6]], params)


def test_a_stop_string_cuts_the_text_before_it_and_ends_generation(llm: LLM) -> None:
    [free] = llm.generate(["go"], dataclasses.replace(GREEDY, max_tokens=40))
    text = free.outputs[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    [cut] = llm.generate(["go"], dataclasses.replace(GREEDY, max_tokens=40, stop=(stop,)))
    assert cut.outputs[0].text == text[: text.index(stop)]
    assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", stop)
    assert len(cut.outputs[0].token_ids) < 40
    assert cut.outputs[0].token_ids == free.outputs[0].token_ids[: len(cut.outputs[0].token_ids)]


def test_the_end_token_is_counted_and_not_shown(llm: LLM) -> None:
    [free] = llm.generate(["go"], GREEDY)
    stop = free.outputs[0].token_ids[3]
    [ended] = llm.generate(["go"], dataclasses.replace(GREEDY, stop_token_ids=(stop,)))
    answer = ended.outputs[0]
    assert answer.token_ids[-1] == stop == answer.stop_reason
    assert answer.text == llm.tokenizer.decode(answer.token_ids[:-1])


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[5], []], r"prompts\[1\]: the prompt is empty"),
        ([""], r"prompts\[0\]: the prompt is empty"),
        ([[5], [4096]], r"prompts\[1\]: prompt holds 4096; token ids are integers from 0 to 4095"),
        ([[5, "a"]], r"prompts\[0\] holds 'a'; token ids are integers"),
        ([[5, True]], r"prompts\[0\] holds True"),
        ([3.5], r"prompts\[0\] is 3.5; it must be a list of token ids or text"),
    ],
)
def test_a_bad_prompt_is_named_and_the_next_call_works(llm: LLM, prompts: list[object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate(prompts, GREEDY)  # type: ignore[arg-type]
    assert len(llm.generate(["fine"], GREEDY)[0].outputs[0].token_ids) == 12


def test_a_prompt_that_fills_the_context_is_refused_and_can_still_be_scored(llm: LLM) -> None:
    full = [5] * llm.max_model_len
    with pytest.raises(PromptTooLong, match="at most 1023 leave room"):
        llm.generate([full], GREEDY)
    assert llm.score(full).shape == (llm.max_model_len - 1,)
    with pytest.raises(PromptTooLong, match="ids holds 1025 tokens; the context has 1024"):
        llm.score([*full, 5])
    with pytest.raises(RequestError, match="ids is empty"):
        llm.logits([])


def test_as_many_params_as_prompts_are_needed(llm: LLM) -> None:
    with pytest.raises(RequestError, match="there are 1 params for 2 prompts"):
        llm.generate(["a", "b"], [GREEDY])


def test_a_stream_joins_to_the_generated_text(llm: LLM) -> None:
    [output] = llm.generate(["Tell"], GREEDY)
    assert "".join(llm.stream("Tell", GREEDY)) == output.outputs[0].text


def test_a_stream_left_early_frees_the_engine(llm: LLM) -> None:
    stream = llm.stream("Tell", dataclasses.replace(GREEDY, max_tokens=500))
    next(stream)
    with pytest.raises(RequestError, match="a stream of this LLM is open"):
        llm.generate(["x"], GREEDY)
    stream.close()
    assert len(llm.generate(["x"], GREEDY)) == 1


def test_an_interrupt_leaves_the_engine_empty_and_working(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    [expected] = llm.generate(["abc"], GREEDY)
    engine = llm._open_engine()
    step, calls = engine.step, iter(range(100))

    def interrupted() -> list[object]:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return list(step())

    monkeypatch.setattr(engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["abc", "def"], GREEDY)
    monkeypatch.undo()
    assert engine.stats().used_pages == 0
    assert not engine.has_work()
    assert llm.generate(["abc"], GREEDY) == [expected]


def test_threads_take_turns(llm: LLM) -> None:
    [expected] = llm.generate(["abc"], GREEDY)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.extend(llm.generate(["abc"], GREEDY))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


def test_a_saved_checkpoint_folder_answers_like_the_model_it_was_saved_from(llm: LLM, tmp_path: Path) -> None:
    save_checkpoint(llm.model, tmp_path, weights="fp32")
    shutil.copy(ASSETS / "tokenizer.json", tmp_path)
    with benthic.LLM(tmp_path, device="cpu", dtype="float32") as loaded:
        assert loaded.generate(["abc"], GREEDY) == llm.generate(["abc"], GREEDY)


def test_a_closed_llm_says_so() -> None:
    llm = LLM(build_model(), tokenizer=Tokenizer(ASSETS))
    llm.close()
    llm.close()
    with pytest.raises(RequestError, match="this LLM is closed"):
        llm.generate(["x"])


def test_a_closed_llm_leaves_no_thread_behind_and_ends_what_is_under_way() -> None:
    before = set(threading.enumerate())
    with LLM(build_model(), tokenizer=Tokenizer(ASSETS), overlap_steps=1) as llm:
        stream = llm.stream("x", GREEDY)
        next(stream)
        assert set(threading.enumerate()) > before
    assert set(threading.enumerate()) <= before
    with pytest.raises(RequestError, match="closed before the answer was complete"):
        list(stream)


def test_without_a_tokenizer_ids_work_and_text_is_refused() -> None:
    with LLM(build_model()) as llm:
        [output] = llm.generate([[5, 6, 7]], GREEDY)
        assert len(output.outputs[0].token_ids) == 12
        assert output.outputs[0].text == ""
        with pytest.raises(RequestError, match="this LLM has no tokenizer"):
            llm.generate(["text"], GREEDY)
        with pytest.raises(RequestError, match="stop strings need a tokenizer"):
            llm.generate([[5]], SamplingParams(stop="x"))


def test_a_folder_without_a_tokenizer_is_asked_by_ids(tmp_path: Path) -> None:
    save_checkpoint(build_model(), tmp_path, weights="fp32")
    assert not (tmp_path / "tokenizer.json").exists()
    with LLM(tmp_path) as llm:
        [output] = llm.generate([[5, 6, 7]], GREEDY)
        assert len(output.outputs[0].token_ids) == 12
        with pytest.raises(RequestError, match=r"prompts\[1\] is the text 'hello'; .* give prompts as token ids"):
            llm.generate([[5], "hello"], GREEDY)
        with pytest.raises(RequestError, match=r"stop is .*; it must be empty, or use stop_token_ids"):
            llm.generate([[5]], SamplingParams(stop="x"))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"is not a tokenizer\.json"):
        LLM(tmp_path)


def test_wrong_settings_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'max_model_len'"):
        LLM("tiny", max_modellen=5)
    with pytest.raises(ConfigError, match="dtype is 'half'"):
        LLM("tiny", dtype="half")
    with pytest.raises(CheckpointError, match="there is no folder"):
        LLM(tmp_path / "nowhere")


@pytest.mark.parametrize("model", [None, 5, "", b"tiny"], ids=repr)
def test_what_is_no_model_is_refused(model: object) -> None:
    with pytest.raises(ConfigError, match=r"model is .*; it must be the folder of a checkpoint or a bundled model"):
        LLM(model)  # type: ignore[arg-type]


def test_a_name_that_is_nearly_known_gets_the_known_one() -> None:
    with pytest.raises(CheckpointError, match="did you mean 'tiny'"):
        LLM("tinny")
    with pytest.raises(CheckpointError, match="known by its sizes only; give the folder that holds its files"):
        LLM("deepseek-ai/DeepSeek-V4-Flash")


@pytest.mark.parametrize(
    ("setting", "value", "allowed"),
    [
        ("device", "foo", "it must be cpu, cuda or cuda:N"),
        ("device", "meta", "it must be cpu, cuda or cuda:N"),
        ("device", torch.device("meta"), "it must be cpu, cuda or cuda:N"),
        ("device", 1.5, "it must be cpu, cuda or cuda:N"),
        ("device", "cuda:99", "this machine has"),
        ("dtype", torch.float64, "it must be one of float32, bfloat16"),
        ("dtype", "float16", "it must be one of float32, bfloat16"),
        ("dtype", 5, "it must be one of float32, bfloat16"),
        ("numerics", "exact", "must be 'plain' or 'quantized'"),
    ],
)
def test_a_wrong_place_or_number_format_is_refused_with_what_is_allowed(
    setting: str, value: object, allowed: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM("tiny", **{setting: value})  # type: ignore[arg-type]
    assert setting in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.parametrize("prompts", [None, 5, {"a": 1}, {"hi"}, [None], [5.0], [b"hi"], [["hi"]]], ids=repr)
def test_what_is_no_prompt_is_refused(llm: LLM, prompts: object) -> None:
    with pytest.raises(RequestError, match=r"prompts(\[0\])? (is|holds) .*; (it must be|token ids are)"):
        llm.generate(prompts, GREEDY)  # type: ignore[arg-type]


@pytest.mark.parametrize("params", [{"max_tokens": 3}, 5, "greedy"], ids=repr)
def test_what_are_no_params_is_refused(llm: LLM, params: object) -> None:
    with pytest.raises(RequestError, match="params is .*; it must be a SamplingParams"):
        llm.generate(["hi"], params)  # type: ignore[arg-type]


def test_logits_and_score_take_ids_and_say_so(llm: LLM) -> None:
    for function in (llm.logits, llm.score):
        with pytest.raises(RequestError, match=r"ids is 'hi'; it must be a list of token ids, as tokenizer\.encode"):
            function("hi")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[None]], r"prompts\[0\] holds None; token ids are integers"),
        ([[5, None]], r"prompts\[0\] holds None; token ids are integers"),
        ([[5, True]], r"prompts\[0\] holds True; token ids are integers"),
        (["\ud800"], r"prompts\[0\] is .*whole characters"),
        (5, "prompts is 5; it must be a text"),
    ],
)
def test_a_prompt_of_the_wrong_kind_is_refused(llm: LLM, prompts: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        llm.generate(prompts)  # type: ignore[arg-type]


@pytest.mark.parametrize("checksum", ["", 1])
def test_a_checksum_that_is_none_is_refused_before_weights_are_read(llm: LLM, checksum: object) -> None:
    with pytest.raises(RequestError, match=f"checksum is {checksum!r}; it must be the text") as caught:
        llm.update_weights("/nowhere", checksum=checksum)  # type: ignore[arg-type]
    assert caught.value.param == "checksum"


def test_a_device_is_no_source_of_weights(llm: LLM) -> None:
    with pytest.raises(CheckpointError, match="/dev/zero is neither a folder nor a regular file"):
        llm.update_weights("/dev/zero")
