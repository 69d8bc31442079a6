"""The stream of training examples and the tokenizer that it is written in."""

import gzip
import json
import pickle
import random
import tomllib
from functools import cache
from importlib.resources import files
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from benthic.errors import DataError
from benthic.tasks.lexicon import bundled_words
from benthic.tasks.mixture import MIXTURES
from benthic.tasks.render import EOS
from benthic.tasks.stream import ExampleStream

TOKENIZER = Path(str(files("benthic") / "assets" / "tiny" / "tokenizer.json"))
SPECIALS = {
    "<｜begin▁of▁sentence｜>": 0,
    "<｜end▁of▁sentence｜>": 1,
    "<｜▁pad▁｜>": 2,
    "<｜User｜>": 4083,
    "<｜Assistant｜>": 4084,
    "<think>": 4085,
    "</think>": 4086,
    "｜DSML｜": 4087,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return read_tokenizer()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stands in for what scripts/prepare_text.py collects."""
    rng = random.Random("text")
    words = bundled_words()[:600]
    passages = [" ".join(rng.choices(words, k=60)) + "." for _ in range(80)]
    content = {part: passages for part in ("wordnet", "bible", "jargon", "devil")} | {"words": list(words)}
    folder = tmp_path_factory.mktemp("data")
    (folder / "text.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
    return folder


@pytest.fixture(scope="module", params=sorted(MIXTURES))
def stream(request: pytest.FixtureRequest, data: Path) -> ExampleStream:
    return ExampleStream(request.param, tokenizer=TOKENIZER, data=data)


def test_equal_seeds_give_equal_examples_in_any_process(stream: ExampleStream) -> None:
    first = list(islice(stream(5), 60))
    sent = pickle.loads(pickle.dumps(stream))  # noqa: S301  made in this line
    assert list(islice(sent(5), 60)) == first
    assert list(islice(stream(6), 60)) != first


def test_examples_fit_the_context_and_have_a_weight_for_each_token(stream: ExampleStream, tokenizer: Tokenizer) -> None:
    for example in islice(stream(1), 300):
        assert 0 < len(example.token_ids) == len(example.weights) <= 8192
        assert example.token_ids[0] == 0 and example.token_ids[-1] == tokenizer.token_to_id(EOS)
        assert example.weights[0] == 0 and example.weights[-1] > 0
        assert all(0 <= token < 4096 for token in example.token_ids)


def test_short_examples_are_short_and_every_task_occurs(data: Path) -> None:
    stream = ExampleStream("short", tokenizer=TOKENIZER, data=data)
    lengths: dict[str, list[int]] = {}
    for example in islice(stream(2), 1500):
        lengths.setdefault(example.task, []).append(len(example.token_ids))
    assert set(lengths) == set(MIXTURES["short"])
    assert all(max(lengths[task]) < 450 for task in ("addition", "subtraction", "sorting", "reversal", "counting"))
    assert sum(lengths["addition"]) / len(lengths["addition"]) < 70
    assert max(map(max, lengths.values())) < 2048


def test_long_examples_reach_far(data: Path) -> None:
    stream = ExampleStream("long", tokenizer=TOKENIZER, data=data)
    assert max(len(example.token_ids) for example in islice(stream(3), 400)) > 4000


def test_an_unknown_mixture_names_those_there_are(data: Path) -> None:
    with pytest.raises(DataError, match=r"'medium'; known: long, short"):
        ExampleStream("medium", tokenizer=TOKENIZER, data=data)


def test_missing_text_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"prepare_text\.py"):
        next(ExampleStream("short", tokenizer=TOKENIZER, data=tmp_path)(0))


def test_damaged_text_is_reported_as_such(tmp_path: Path) -> None:
    (tmp_path / "text.json.gz").write_bytes(gzip.compress(b'{"words": []}'))
    with pytest.raises(DataError, match="make it again"):
        next(ExampleStream("short", tokenizer=TOKENIZER, data=tmp_path)(0))


def test_control_tokens_stand_where_config_and_format_expect_them(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == 4096
    assert {token: tokenizer.token_to_id(token) for token in SPECIALS} == SPECIALS


def test_every_letter_has_an_entry_with_and_without_a_blank(tokenizer: Tokenizer) -> None:
    for letter in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ":
        assert len(tokenizer.encode(letter).ids) == len(tokenizer.encode(" " + letter).ids) == 1


def test_digits_are_one_token_each_and_quotes_are_not_glued_to_words(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("347285").ids) == 6
    assert tokenizer.encode('"planet').ids == tokenizer.encode('"').ids + tokenizer.encode("planet").ids


@cache
def read_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER))


@given(st.text(max_size=80))
def test_any_text_comes_back_from_its_tokens(text: str) -> None:
    ids = read_tokenizer().encode(text, add_special_tokens=False).ids
    assert read_tokenizer().decode(ids, skip_special_tokens=False) == text


def test_the_recipe_of_the_bundled_model_names_mixtures_that_exist() -> None:
    recipe = tomllib.loads((Path(__file__).parents[2] / "recipes" / "tiny.toml").read_text())
    assert {stage["mixture"] for stage in recipe["stages"].values()} <= set(MIXTURES)
    assert recipe["stages"]["long"]["max_len"] == 8192
