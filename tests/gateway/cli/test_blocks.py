"""Markdown cut into blocks: all but the last are final, so a terminal draws each once."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.cli.chat.conversation import blocks

LINES = (
    "a",
    "# t",
    "- a",
    "  b",
    "    c",
    "1. x",
    "> q",
    "```",
    "~~~",
    "---",
    "===",
    "",
    "|a|b|",
    "|-|-|",
    "<p>",
    "\tc",
)
texts = st.lists(st.sampled_from(LINES), max_size=12).map("\n".join) | st.text(
    "a-*#`>|= \n\t[]:<", max_size=30
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("\n \n", []),
        ("one", ["one"]),
        ("one\ntwo\n\nthree", ["one\ntwo", "three"]),
        ("# Title\ntext", ["# Title", "text"]),
        ("- a\n- b\n\n  c\n\nend", ["- a\n- b\n\n  c", "end"]),
        ("```py\n\nx = 1\n```\nend", ["```py\n\nx = 1\n```", "end"]),
        ("[a]: http://example\n\n[a]", ["[a]: http://example", "[a]"]),
    ],
)
def test_a_text_is_cut_into_its_top_level_blocks(text: str, expected: list[str]) -> None:
    assert blocks(text) == expected


@given(texts, texts, st.booleans())
@example(text="a\n```", more=":`", growing=True)
def test_all_blocks_but_the_last_are_final_for_any_continuation(text: str, more: str, growing: bool) -> None:
    final = blocks(text, growing=True)[:-1]
    assert blocks(text + more, growing=growing)[: len(final)] == final


@given(texts)
def test_no_line_with_something_on_it_is_lost(text: str) -> None:
    kept = [line.strip() for block in blocks(text) for line in block.split("\n") if line.strip()]
    assert kept == [line.strip() for line in text.split("\n") if line.strip()]
