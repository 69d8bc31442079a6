import pytest
from hypothesis import given
from hypothesis import strategies as st

from benthic.errors import RequestError
from benthic.text import Detokenizer, StopStrings, Tokenizer
from benthic.text.tokenizer import END_THINK

LETTERS = st.text(alphabet="ab你😀", max_size=30)
STOPS = st.lists(st.text(alphabet="ab你😀", min_size=1, max_size=4), max_size=5)


def cut(items: list[int], cuts: list[int]) -> list[list[int]]:
    borders = [0, *sorted(min(c, len(items)) for c in cuts), len(items)]
    return [items[a:b] for a, b in zip(borders, borders[1:], strict=False)]


@given(data=st.binary() | st.text().map(str.encode), cuts=st.lists(st.integers(0, 60)))
def test_pieces_of_any_bytes_cut_anywhere_join_to_the_whole(
    tokenizer: Tokenizer, bytes_to_ids: list[int], data: bytes, cuts: list[int]
) -> None:
    ids = [bytes_to_ids[byte] for byte in data]
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(piece) for piece in cut(ids, cuts)]
    assert "".join(pieces) + detokenizer.flush() == tokenizer.decode(ids)
    assert detokenizer.num_tokens == len(ids)


@given(text=st.text())
def test_no_piece_of_a_valid_text_holds_half_a_character(
    tokenizer: Tokenizer, bytes_to_ids: list[int], text: str
) -> None:
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push([bytes_to_ids[byte]]) for byte in text.encode()]
    assert "".join(pieces) == text
    assert detokenizer.flush() == ""
    assert all(len(piece) <= 1 for piece in pieces)


def test_an_unfinished_character_is_one_replacement_at_the_end(tokenizer: Tokenizer, bytes_to_ids: list[int]) -> None:
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(bytes_to_ids[byte] for byte in "a😀".encode()[:-1]) == "a"
    assert detokenizer.flush() == "\ufffd"


def test_a_space_after_half_a_character_shows_both(tokenizer: Tokenizer, bytes_to_ids: list[int]) -> None:
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(bytes_to_ids[byte] for byte in b"\xf0\x9f \x80") == "\ufffd \ufffd"


def test_skipped_ids_show_nothing_and_are_counted(tokenizer: Tokenizer) -> None:
    eos = tokenizer.eos_token_id
    detokenizer = Detokenizer(tokenizer, skip=[eos])
    ids = [*tokenizer.encode("hello"), eos]
    assert detokenizer.push(ids) + detokenizer.flush() == "hello"
    assert detokenizer.num_tokens == len(ids)


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition, character by character: the stop string completed first; of equals the one begun first."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            longest = max(done, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(text=LETTERS, stops=STOPS, cuts=st.lists(st.integers(0, 60)))
def test_text_is_cut_before_the_stop_string_completed_first(
    tokenizer: Tokenizer, bytes_to_ids: list[int], text: str, stops: list[str], cuts: list[int]
) -> None:
    ids = [bytes_to_ids[byte] for byte in text.encode()]
    detokenizer = Detokenizer(tokenizer, stops)
    shown = "".join(detokenizer.push(piece) for piece in cut(ids, cuts)) + detokenizer.flush()
    assert (shown, detokenizer.stopped) == first_stop(text, stops)


@given(text=LETTERS, stops=STOPS)
def test_only_what_may_become_a_stop_string_is_held(text: str, stops: list[str]) -> None:
    watch = StopStrings(stops)
    shown = ""
    for end, char in enumerate(text, 1):
        shown += watch.push(char)
        if watch.matched is not None:
            break
        held = text[len(shown) : end]
        assert held == "" or any(stop.startswith(held) for stop in stops)


@given(text=LETTERS, stops=STOPS, cuts=st.lists(st.integers(0, 60)))
def test_the_stop_string_is_shown_where_that_is_asked_for_and_nothing_after_it(
    tokenizer: Tokenizer, bytes_to_ids: list[int], text: str, stops: list[str], cuts: list[int]
) -> None:
    ids = [bytes_to_ids[byte] for byte in text.encode()]
    detokenizer = Detokenizer(tokenizer, stops, include_stop=True)
    shown = "".join(detokenizer.push(piece) for piece in cut(ids, cuts)) + detokenizer.flush()
    expected, stop = first_stop(text, stops)
    assert (shown, detokenizer.stopped) == (expected + (stop or ""), stop)


@given(reasoning=LETTERS, answer=LETTERS, stops=STOPS, cuts=st.lists(st.integers(0, 120)), is_whole=st.booleans())
def test_stop_strings_sleep_while_the_model_reasons(
    tokenizer: Tokenizer,
    bytes_to_ids: list[int],
    reasoning: str,
    answer: str,
    stops: list[str],
    cuts: list[int],
    is_whole: bool,
) -> None:
    # Half a character before the end of the reasoning must not reach into the answer either.
    thought = reasoning.encode() if is_whole else reasoning.encode() + "😀".encode()[:2]
    end = tokenizer.token_id(END_THINK)
    ids = [bytes_to_ids[byte] for byte in thought] + [end] + [bytes_to_ids[byte] for byte in answer.encode()]
    detokenizer = Detokenizer(tokenizer, stops, after_id=end)
    shown = "".join(detokenizer.push(piece) for piece in cut(ids, cuts)) + detokenizer.flush()
    expected, stop = first_stop(answer, stops)
    assert (shown, detokenizer.stopped) == (thought.decode(errors="replace") + END_THINK + expected, stop)


@given(reasoning=LETTERS, stops=STOPS, cuts=st.lists(st.integers(0, 120)))
def test_a_reply_that_is_all_reasoning_meets_no_stop_string(
    tokenizer: Tokenizer, bytes_to_ids: list[int], reasoning: str, stops: list[str], cuts: list[int]
) -> None:
    ids = [bytes_to_ids[byte] for byte in reasoning.encode()]
    detokenizer = Detokenizer(tokenizer, stops, after_id=tokenizer.token_id(END_THINK))
    assert "".join(detokenizer.push(piece) for piece in cut(ids, cuts)) + detokenizer.flush() == reasoning
    assert detokenizer.stopped is None


def test_a_stop_string_over_three_tokens_shows_nothing_of_itself(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, ["aab"])
    ids = [token_id for char in "xaaabzz" for token_id in tokenizer.encode(char)]
    assert "".join(detokenizer.push([token_id]) for token_id in ids) == "xa"
    assert detokenizer.stopped == "aab"
    assert detokenizer.num_tokens == len(tokenizer.encode("x")) + 4


def test_after_a_stop_string_ids_are_ignored(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer, ["lo"])
    assert detokenizer.push(tokenizer.encode("hello hello")) == "hel"
    assert detokenizer.push(tokenizer.encode("more")) + detokenizer.flush() == ""


def test_an_empty_stop_string_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="empty") as error:
        Detokenizer(tokenizer, ["a", ""])
    assert error.value.param == "stop"
