"""Sections of a text: together they are the text, as it is parsed in one go."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it.token import Token

from gateway.markdown.grammar import normal, parsed_blocks
from gateway.markdown.sections import fences_are_closed, sections
from tests.gateway.markdown.documents import DOCUMENTS, HOSTILE, WITH_TABLES, work

pytestmark = pytest.mark.slow

LINES = st.sampled_from(
    [
        *("", "", "", " ", "\t", "a", "**b** c", "# d", "- e", "-", "*", "3) f", "10.", "- - g", "- [ ] h"),
        *("```", "```py", "````", "~~~", "  ```", "    ```", "- ```", "> ~~~", "``` `", "> i", ">", "> - j"),
        *(
            "  k",
            "   l",
            "    m",
            "\tn",
            "---",
            "* * *",
            "===",
            "| o | p |",
            "|---|---|",
            "| 1 |",
            "\xa0",
            "-\tq",
        ),
    ]
)


def seen(token: Token, line: int) -> tuple[object, ...]:
    place = token.map and [line + number for number in token.map]
    return token.type, place, token.content, token.info, token.markup, token.hidden, token.attrs, token.meta


def parts(text: str) -> list[int]:
    return [line for line, _ in sections(text)]


@given(DOCUMENTS | HOSTILE | WITH_TABLES | st.lists(LINES, max_size=20).map("\n".join))
@example("```\n\na\n\n```\n- b\n\n  c\n\nd")
@settings(deadline=None)
def test_sections_are_what_the_whole_text_is(text: str):
    text = normal(text)
    whole = [seen(token, 0) for token in parsed_blocks(text + "\n")]
    assert [seen(token, line) for line, tokens in sections(text) for token in tokens] == whole


def test_paragraphs_headings_and_code_are_sections():
    assert parts("a\nb\n\n# c\n\nd\n\n```\ne\n\nf\n```\ng\n\n**h**") == [0, 3, 5, 7, 12, 14]


def test_a_list_is_one_section_however_loose_it_is():
    assert parts("- a\n\n  b\n\n- c\n\n* d\n\n1. e\n\ne") == [0, 10]


def test_code_that_is_open_is_one_section_to_its_end():
    assert parts("a\n```\nb\n\nc\n\nd") == [0]
    assert parts("- a\n\n  ```\n  b\n\nc\n\nd") == [0, 5, 7]


def test_a_section_is_parsed_once():
    text = "\n\n".join(f"Paragraph {number}" for number in range(60))
    first = work(lambda: list(sections(text)))
    assert work(lambda: list(sections(text + "s and more\n\nof them"))) < first / 4


@pytest.mark.parametrize(
    "text", ["```\na\n```", "a ``` b", "~~~\n```\n~~~", "- ```\n  a\n  ```\n- b", "```\n\na\n\n````"]
)
def test_fences_that_are_closed(text: str):
    assert fences_are_closed(text)


@pytest.mark.parametrize(
    "text", ["```\na", "- ```\n\nb", "> ~~~\nb", "````\n```", "```\n\na\n\n    ```", "```\n~~~\n\n~~~"]
)
def test_fences_that_are_open(text: str):
    assert not fences_are_closed(text)
