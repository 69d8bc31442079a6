"""Tags outside of calls, calls without tools, the end of calls: what is shown, and that no token is lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benthic.text.markup import MarkupReader, Piece

D = "\N{FULLWIDTH VERTICAL LINE}DSML\N{FULLWIDTH VERTICAL LINE}"
BLOCK, END_BLOCK = f"<{D}tool_calls>\n", f"</{D}tool_calls>"
CALL = f'<{D}invoke name="f">\n<{D}parameter name="a" string="true">x</{D}parameter>\n</{D}invoke>\n'
WITHOUT_CALLS = {
    "plain": ("a < b </p> c", "a < b </p> c"),
    "empty block": (f"a{BLOCK}{END_BLOCK}b", "ab"),
    "two openings": (f"a{BLOCK}{BLOCK}b", "a\n\nb"),
    "stray closings": (f"a</{D}invoke>b{END_BLOCK}c</{D}parameter>", "abc"),
    "stray parameter": (f'a<{D}parameter name="a" string="true">b', "ab"),
    "marker alone": (f"a{D}b", "ab"),
    "marker after an opening": (f"a{BLOCK}{D}b", "a\nb"),
    "no tag": (f"a<{D}b c\nd", "ab c\nd"),
    "no tag but a tag": (f"a<{D}b</{D}invoke>c", "abc"),
    "block and prose": (f"a{BLOCK}b{END_BLOCK}c", "a\nbc"),
    "unfinished": (f"a<{D}tool_ca", "a"),
    "unfinished block": (f"a{BLOCK}", "a"),
    "unfinished call": (f'a{BLOCK}<{D}invoke name="f"', "a"),
    "sign at the end": ("a <", "a <"),
}


def pieces_of(markup: str, sizes: list[int]) -> list[Piece[int]]:
    """Cut into tokens of so many characters each, again and again; the marker is a token of its own."""
    texts: list[str] = []
    for position, between in enumerate(markup.split(D)):
        texts += [D] if position else []
        while between:
            size = sizes[len(texts) % len(sizes)]
            texts, between = [*texts, between[:size]], between[size:]
    return [Piece([i], text, is_marker=text == D) for i, text in enumerate(texts)]


def read(markup: str, sizes: list[int], *, has_tools: bool) -> tuple[str, str, MarkupReader[int]]:
    """The text outside of calls, that of calls, and the reader."""
    reader: MarkupReader[int] = MarkupReader(has_tools)
    pieces, out = pieces_of(markup, sizes), []
    for piece in pieces:
        out += reader.push(piece)
    out += reader.flush()
    assert [token for piece in out for token in piece.group] == list(range(len(pieces)))
    begin = next((i for i, piece in enumerate(out) if piece.begins_calls), len(out))
    before, calls = ("".join(piece.text for piece in part) for part in (out[:begin], out[begin:]))
    return before, calls, reader


SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@pytest.mark.parametrize("name", WITHOUT_CALLS)
@pytest.mark.parametrize("has_tools", [True, False])
def test_tags_that_belong_to_no_call_are_dropped_and_text_stays(name: str, has_tools: bool) -> None:
    markup, shown = WITHOUT_CALLS[name]

    @settings(max_examples=20)
    @given(SIZES)
    def check(sizes: list[int]) -> None:
        before, calls, reader = read(markup, sizes, has_tools=has_tools)
        assert (before, calls, reader.refused) == (shown, "", [])

    check()


@settings(max_examples=30)
@given(SIZES, st.sampled_from(["", BLOCK, f"<{D}function_calls>\n", f"<{D}tool_call>\n"]))
def test_calls_come_out_as_they_are_from_their_first_tag_on(sizes: list[int], opening: str) -> None:
    before, calls, reader = read(f"a {opening}{CALL}", sizes, has_tools=True)
    assert before + calls == f"a {opening}{CALL}"
    assert before in "a "
    assert not reader.is_over


@settings(max_examples=30)
@given(SIZES)
def test_the_end_of_the_block_is_the_end_of_the_reply(sizes: list[int]) -> None:
    assert read(f"a{BLOCK}{CALL}{CALL}{END_BLOCK}", sizes, has_tools=True)[2].is_over
    assert not read(f"a{BLOCK}{CALL}{CALL}", sizes, has_tools=True)[2].is_over


@settings(max_examples=30)
@given(SIZES)
def test_a_parameter_of_no_kind_becomes_a_string(sizes: list[int]) -> None:
    for kind, read_as in (("", ' string="true"'), (' string="false"', ' string="false"')):
        _, calls, _ = read(BLOCK + CALL.replace(' string="true"', kind), sizes, has_tools=True)
        assert calls.endswith(CALL.replace(' string="true"', read_as))


@settings(max_examples=30)
@given(SIZES)
@pytest.mark.parametrize(
    ("markup", "shown", "names"),
    [
        (f"a{BLOCK}{CALL}{CALL}{END_BLOCK}b", "ab", ["f"]),
        (f"a{CALL}b{CALL}c", "a\nb\nc", ["f", "f"]),
        (f'a<{D}invoke name="g"/>b', "ab", ["g"]),
        (f"a{BLOCK}{CALL[:40]}", "a", ["f"]),
    ],
)
def test_without_tools_whole_calls_are_dropped_and_named(
    markup: str, shown: str, names: list[str], sizes: list[int]
) -> None:
    before, calls, reader = read(markup, sizes, has_tools=False)
    assert (before, calls, reader.refused) == (shown, "", names)
