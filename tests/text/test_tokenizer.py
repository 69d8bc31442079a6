import json
import shutil
from pathlib import Path

import deepseek_recipe as recipe
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benthic.errors import CheckpointError, RequestError
from benthic.text import PromptEncoder, Tokenizer
from benthic.text.tokenizer import DSML, END_THINK, REQUIRED_TOKENS, USER

from .conftest import CONTROL

TEXTS = st.text() | st.lists(st.sampled_from([*CONTROL, "<think", "think>", "<｜", "｜", "a", " ", "\n", "你"])).map(
    "".join
)


@given(text=TEXTS)
def test_every_text_survives_encoding_and_decoding(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=TEXTS)
def test_plain_text_never_becomes_a_control_token(tokenizer: Tokenizer, text: str) -> None:
    assert not tokenizer.control_ids.intersection(tokenizer.encode(text))


@given(text=TEXTS)
def test_plain_text_encodes_as_the_official_library_encodes_it(tokenizer: Tokenizer, text: str) -> None:
    conversation = recipe.Conversation([recipe.UserMessage(text)], thinking_mode=False)
    official = recipe.DeepseekV4Encoding().with_tokenizer(tokenizer.recipe).encode(conversation)
    assert official[2:-2] == tokenizer.encode(text)


def test_markup_is_read_as_control_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_markup(f"{USER}a{END_THINK}") == [
        tokenizer.token_id(USER),
        *tokenizer.encode("a"),
        tokenizer.token_id(END_THINK),
    ]


def test_plain_segments_are_joined_before_merging(tokenizer: Tokenizer) -> None:
    split = [("hel", False), ("lo wor", False), (DSML, True), ("ld", False)]
    assert tokenizer.encode_segments(split) == [
        *tokenizer.encode("hello wor"),
        tokenizer.token_id(DSML),
        *tokenizer.encode("ld"),
    ]


@given(data=st.binary())
def test_decoding_is_the_utf8_reading_of_the_bytes(tokenizer: Tokenizer, bytes_to_ids: list[int], data: bytes) -> None:
    ids = [bytes_to_ids[byte] for byte in data]
    assert tokenizer.decode(ids) == data.decode("utf-8", errors="replace") == tokenizer._full.decode(ids)


def test_the_bundled_tokenizer_loads_and_keeps_the_ids_of_the_family(tiny_folder: Path) -> None:
    tokenizer = Tokenizer(tiny_folder)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
    assert tokenizer.vocab_size <= 4096
    tokenizer.check_model(4096, 1)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer at .*tokenizer\.json"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"model": {"type": "Unigram"}, "decoder": {"type": "Metaspace"}}']
)
def test_a_file_that_is_no_byte_level_bpe_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer(tmp_path)


def test_all_missing_control_tokens_are_named_at_once(small_folder: Path, tmp_path: Path) -> None:
    settings = json.loads((small_folder / "tokenizer.json").read_text())
    settings["added_tokens"] = [t for t in settings["added_tokens"] if t["content"] not in ("<think>", "</think>")]
    (tmp_path / "tokenizer.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match="lacks the added tokens <think>, </think>"):
        PromptEncoder(Tokenizer(tmp_path), context_len=100)


def test_a_tokenizer_of_another_model_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(CheckpointError, match="the model embeds only 10"):
        tokenizer.check_model(10, 1)
    with pytest.raises(CheckpointError, match="eos_token_id 7"):
        tokenizer.check_model(tokenizer.vocab_size, 7)


@pytest.mark.parametrize("token_id", [-1, 10**6])
def test_ids_outside_the_vocabulary_are_refused(tokenizer: Tokenizer, token_id: int) -> None:
    with pytest.raises(RequestError, match=f"token id {token_id} at position 1 must be in"):
        tokenizer.decode([5, token_id])


def test_a_lone_surrogate_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="lone surrogate U\\+D800 at character 2"):
        tokenizer.encode("ab\ud800")


def test_an_unknown_token_name_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(CheckpointError, match="no token '<nope>'"):
        tokenizer.token_id("<nope>")


def test_every_required_token_is_one_id(tokenizer: Tokenizer) -> None:
    assert [tokenizer.encode_markup(token) for token in REQUIRED_TOKENS] == [
        [tokenizer.token_id(token)] for token in REQUIRED_TOKENS
    ]


def test_the_file_itself_may_be_given(small_folder: Path, tmp_path: Path) -> None:
    shutil.copy(small_folder / "tokenizer.json", tmp_path / "other.json")
    assert Tokenizer(tmp_path / "other.json").vocab_size == Tokenizer(small_folder).vocab_size
