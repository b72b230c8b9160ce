"""The splitter: where a text is cut, and what is inserted around a cut."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.markdown.grammar import normal
from gateway.markdown.parse import parse_markdown
from gateway.markdown.segments import segment_text
from gateway.markdown.source import Source
from gateway.markdown.split import _Splitter, split_markdown  # pyright: ignore[reportPrivateUsage]
from gateway.markdown.tree import CodeBlock, Table, plain_text
from tests.gateway.markdown.documents import DOCUMENTS, HOSTILE, WITH_TABLES, letters, said, words

pytestmark = pytest.mark.slow

WORDS = "word " * 100


FENCED = st.lists(
    st.sampled_from(
        ["```py", "```", "~~~", "````", "> ```", "- ```", "  ```", "x = 1", "", "> x", "  y", "- z"]
    ),
    max_size=9,
).map("\n".join)


def in_utf16(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def in_bytes(text: str) -> int:
    return len(text.encode(errors="replace"))


def as_shown(text: str) -> int:
    return len(plain_text(parse_markdown(text)))


def code(count: int) -> str:
    return "".join(f"line {number}\n" for number in range(count))


def is_balanced(piece: str) -> bool:
    """Return whether no code is open at the end of a piece."""
    return not segment_text(piece)[1][-1].closing


@pytest.mark.parametrize("blank", ["", " ", "\n\n", " \t\n"])
def test_blank_text_has_no_pieces(blank: str):
    assert split_markdown(blank, 100) == []


def test_a_text_that_fits_is_one_piece():
    assert split_markdown("# a\n\n- b", 100) == ["# a\n\n- b"]
    assert split_markdown("\n\n    code\n\n", 100) == ["    code"]


def test_paragraphs_stay_whole_where_that_leaves_pieces_half_full():
    text = "\n\n".join(["a" * 60, "b" * 60, "c" * 60])
    assert split_markdown(text, 130) == [f"{'a' * 60}\n\n{'b' * 60}", "c" * 60]


def test_a_border_between_blocks_is_better_than_one_between_items():
    text = "a" * 60 + "\n\n- b\n- c\n- d\n" + "- " + "e" * 60
    assert split_markdown(text, 100)[0] == "a" * 60


def test_a_heading_goes_with_what_it_heads():
    text = "a" * 50 + "\n\n## Heading\n\n" + "b" * 60
    assert split_markdown(text, 100) == ["a" * 50, "## Heading\n\n" + "b" * 60]


def test_a_heading_too_long_continues_as_a_heading():
    first, second = split_markdown("## " + WORDS[:150], 100)
    assert (first[:3], second[:3]) == ("## ", "## ")


def test_code_continues_under_the_same_fence():
    pieces = split_markdown(f"~~~~python title\n{code(30)}~~~~", 120)
    assert all(piece.startswith("~~~~python") and piece.endswith("\n~~~~") for piece in pieces)
    blocks = [block for piece in pieces for block in parse_markdown(piece)]
    assert all(isinstance(block, CodeBlock) and block.language == "python" for block in blocks)
    assert "\n".join(block.text for block in blocks if isinstance(block, CodeBlock)) == code(30).strip()


def test_code_is_cut_at_a_blank_line_if_there_is_one():
    pieces = split_markdown("```\n" + code(9) + "\n" + code(30) + "```", 100)
    assert pieces[0] == "```\n" + code(9) + "\n```"


def test_code_in_a_quote_stays_in_the_quote():
    lines = "".join(f"> {line}\n" for line in ["```py", *code(30).split("\n")[:-1], "```"])
    pieces = split_markdown(lines, 100)
    assert all(piece.startswith("> ```py\n> line") and piece.endswith("\n> ```") for piece in pieces)


def test_code_in_an_item_is_outdented_after_the_cut():
    lines = "".join(f"   {line}\n" for line in ["```py", *code(30).split("\n")[:-1], "```"])
    first, *others = split_markdown(f"1. Run this:\n{lines}2. Done", 120)
    assert first.startswith("1. Run this:\n   ```py\n   line")
    assert first.endswith("\n   ```")
    assert others[0].startswith("```py\nline")
    assert others[0].endswith("\n```")
    assert others[-1].endswith("\n```\n\n2. Done")


def test_a_line_of_code_too_long_is_cut_between_characters():
    pieces = split_markdown(f"```\n{'x' * 300}\n```", 100)
    assert [len(piece) for piece in pieces] == [100, 100, 100, 32]
    assert "".join(piece[4:-4] for piece in pieces) == "x" * 300


def test_code_that_is_open_at_the_end_is_closed():
    assert split_markdown("a\n\n```py\nb", 100) == ["a\n\n```py\nb\n```"]
    assert split_markdown("```py", 100) == ["```py\n```"]
    assert split_markdown("> ```\n> b", 100) == ["> ```\n> b\n> ```"]
    assert split_markdown("- ```\n  b", 100) == ["- ```\n  b\n  ```"]
    assert all(map(is_balanced, split_markdown("```\n" + code(100), 100)))


def test_code_that_ends_with_its_container_is_closed():
    assert split_markdown("> ```\n> a\n\nb", 100) == ["> ```\n> a\n> ```\n\nb"]


def test_code_by_indentation_stays_code():
    pieces = split_markdown("".join(f"    {line}\n" for line in code(30).split("\n")), 100)
    assert all(isinstance(block, CodeBlock) for piece in pieces for block in parse_markdown(piece))


def test_a_list_is_cut_between_its_items():
    pieces = split_markdown("".join(f"- {'item ' * 9}\n" for _ in range(6)), 100)
    assert [piece.count("- ") for piece in pieces] == [2, 2, 2]


def test_the_numbers_of_a_list_continue():
    pieces = split_markdown("".join(f"1. {'item ' * 9}\n" for _ in range(6)), 100)
    assert [piece[:2] for piece in pieces] == ["1.", "3.", "5."]
    pieces = split_markdown("".join(f"> 1) {'item ' * 9}\n" for _ in range(6)), 110)
    assert [piece[:5] for piece in pieces] == ["> 1) ", "> 3) ", "> 5) "]


def test_the_number_is_right_after_an_item_that_was_cut():
    pieces = split_markdown(f"1. a\n1. {WORDS.strip()}\n1. c\n1. d", 300)
    assert pieces[0].startswith("1. a\n1. word")
    assert pieces[-1].endswith("word\n\n3. c\n1. d")


def test_items_of_an_inner_list_are_outdented_after_a_cut_among_them():
    text = "- outer\n" + "".join(f"  - {'inner ' * 9}\n    more\n" for _ in range(4)) + "- last"
    first, second = split_markdown(text, 170)
    assert first.count("\n  - inner") == 2
    assert second.startswith("- inner")
    assert "\n  more\n" in second
    assert second.endswith("\n\n- last")


def test_a_table_continues_under_its_header():
    rows = "".join(f"| row {number} | {'x' * 20} |\n" for number in range(9))
    pieces = split_markdown(f"| a | b |\n|---|--:|\n{rows}", 150)
    tables = [block for piece in pieces for block in parse_markdown(piece)]
    assert all(isinstance(table, Table) and table.aligns == ("", "right") for table in tables)
    assert sum(len(table.rows) for table in tables if isinstance(table, Table)) == 9
    assert len(pieces) == 3


def test_a_header_without_room_is_left_out():
    text = f"| {'head ' * 30} |\n|---|\n" + f"| {'cell ' * 30} |\n" * 2
    pieces = split_markdown(text, 100)
    assert max(map(len, pieces)) <= 100
    assert "".join(letters("".join(pieces))) == "".join(letters(text))


def test_a_row_too_long_is_cut_between_words():
    pieces = split_markdown(f"|a|b|\n|-|-|\n|{'cell ' * 40}|x|\n|y|z|", 120)
    assert all(piece.startswith("|a|b|\n|-|-|\n") for piece in pieces)


def test_a_paragraph_is_cut_at_a_sentence():
    assert split_markdown("One two three. Four five six. Seven eight nine ten.", 40) == [
        "One two three. Four five six.",
        "Seven eight nine ten.",
    ]


def test_a_paragraph_is_cut_at_the_end_of_a_line_before_a_sentence():
    assert split_markdown("One two three\nfour. Five six seven eight.", 24)[0] == "One two three"


def test_a_sentence_without_spaces_is_cut_after_its_mark():
    assert split_markdown("漢字漢字。漢字漢字漢字漢字。漢字", 15)[0] == "漢字漢字。漢字漢字漢字漢字。"


def test_a_sentence_is_cut_at_a_word_and_a_word_anywhere():
    assert split_markdown("one two three four", 12) == ["one two", "three four"]
    assert split_markdown("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]


@pytest.mark.parametrize(
    "cluster",
    ["e\u0301", "👍🏽", "👩\u200d👩\u200d👧", "🇩🇪", "\u1112\u1161\u11ab", "한\u11ab", "ก\u0e33", "❤\ufe0f"],
)
def test_what_is_seen_as_one_character_is_not_torn(cluster: str):
    for limit in range(10, 20):
        for piece in split_markdown(cluster * 20, limit):
            assert piece.replace(cluster, "") == ""


def test_a_character_of_absurdly_many_parts_is_torn():
    pieces = split_markdown("a" + "\u0301" * 500, 100)
    assert max(map(len, pieces)) == 100
    assert "".join(pieces) == "a" + "\u0301" * 500


@pytest.mark.parametrize("mark", ["**", "*", "_", "~~", "`", "``"])
def test_markup_is_closed_before_a_cut_and_opened_again(mark: str):
    pieces = split_markdown(f"{mark}{WORDS.strip()}{mark}", 120)
    assert all(piece.startswith(mark) and piece.endswith(mark) for piece in pieces)
    assert said(parse_markdown(" ".join(pieces))) == WORDS.replace(" ", "")


def test_markup_within_markup_is_closed_and_opened_in_order():
    pieces = split_markdown(f"**{WORDS}*{WORDS.strip()}***", 120)
    assert pieces[-1].startswith("***word")
    assert said([block for piece in pieces for block in parse_markdown(piece)]) == 2 * WORDS.replace(" ", "")


def test_stars_that_mark_nothing_are_not_closed():
    assert split_markdown(f"2 * 3 {WORDS}", 100)[0].count("*") == 1


def test_a_link_stays_whole():
    text = "word " * 14 + "[a link of some words](https://example.org/path) " + WORDS
    pieces = split_markdown(text, 100)
    assert any("[a link of some words](https://example.org/path)" in piece for piece in pieces)


def test_the_rest_of_a_paragraph_does_not_become_a_block():
    for start in ["- a", "1986. a", "# a", "> a", "+ a", "***", "~~~ a"]:
        text = f"{'word ' * 10}{start} {'b' * 40} c"
        shown = said([block for piece in split_markdown(text, 55) for block in parse_markdown(piece)])
        assert shown == said(parse_markdown(text))


def test_the_rest_of_a_paragraph_does_not_become_a_table():
    text = f"{'word ' * 16}a | b\n--- | --- | ---"
    assert all(not isinstance(block, Table) for p in split_markdown(text, 90) for block in parse_markdown(p))


def test_a_line_that_is_cut_does_not_become_a_fence():
    pieces = split_markdown(f"```{'word ' * 30}`` and so on", 100)
    assert all(map(is_balanced, pieces))


def test_a_quote_continues_as_a_quote():
    text = f"> > {WORDS}\n> > {WORDS}"
    assert all(piece.startswith("> > word") for piece in split_markdown(text, 100))


@pytest.mark.parametrize(
    ("measure", "text"),
    [
        (in_utf16, "😀" * 1_000),
        (in_bytes, "漢字 " * 500),
        (as_shown, "[word](https://example.org/) **b** " * 200),
    ],
)
def test_room_is_counted_as_the_platform_counts_it(measure, text: str):
    pieces = split_markdown(text, 300, measure)
    assert all(measure(piece) <= 300 for piece in pieces)
    assert all(measure(piece) > 240 for piece in pieces[:-1])


def test_little_is_measured():
    """Measuring renders the piece, which takes most of the time."""
    measured: list[int] = []

    def measure(piece: str) -> int:
        measured.append(len(piece))
        return as_shown(piece)

    text = "\n\n".join(f"## Part\n\n{'One sentence. ' * 12}\n\n- an *item*\n- another one" for _ in range(40))
    pieces = split_markdown(text, 1_000, measure)
    assert len(measured) <= 5 * len(pieces)
    assert sum(measured) <= 5 * len(text)


def test_fences_and_markup_without_room_are_left_out():
    text = "```python\nabc\n```\n\n**" + "word " * 10 + "**"
    pieces = split_markdown(text, 8)
    assert max(map(len, pieces)) <= 8
    assert "abc" in "".join(pieces).replace("`", "").replace("\n", "")


def test_no_piece_at_all_fits():
    with pytest.raises(ValueError, match="not even one character fits into 0"):
        split_markdown("a", 0)


def test_pieces_stay_when_the_text_grows():
    """As an answer that is streamed does, a few characters at a time."""
    text = "\n\n".join(
        f"## Part {part}\n\n{'One sentence is here. ' * 9}\n\n- **an** item\n- another one\n\n"
        f"```py\n{code(6)}```\n\n1. {'first ' * 30}\n2. second"
        for part in range(4)
    )
    shown: list[str] = []
    changed = 0
    for end in range(3, len(text), 3):
        pieces = split_markdown(text[:end], 600)
        settled = shown[:-1]
        changed += pieces[: len(settled)] != settled
        shown = pieces
    assert len(shown) == 4
    assert changed == 0


@given(st.lists(words(30), min_size=1, max_size=6).map("\n\n".join), st.data())
@settings(deadline=None)
def test_pieces_of_paragraphs_stay_when_the_text_grows(text: str, data: st.DataObject):
    text = "".join(mark for mark in text if mark not in "*`~[]()")
    end = data.draw(st.integers(0, len(text)))
    settled = split_markdown(text[:end], 300)[:-1]
    assert split_markdown(text, 300)[: len(settled)] == settled


LIMITS = st.sampled_from([300, 400, 1_000])
MEASURES = st.sampled_from([len, in_utf16, in_bytes])


@given(DOCUMENTS | HOSTILE | FENCED)
@example("x alpha\n\n> - x alpha\n> ")
@settings(deadline=None)
def test_a_text_that_fits_is_taken_as_it_is_and_would_be_cut_to_the_same(text: str):
    thorough = [*_Splitter(Source(normal(text)), 10**6, len).pieces()]
    assert split_markdown(text, 10**6) == thorough


@given(DOCUMENTS, LIMITS, MEASURES)
@settings(deadline=None, max_examples=60)
def test_nothing_is_lost_and_every_piece_is_markdown_by_itself(text: str, limit: int, measure):
    pieces = split_markdown(text, limit, measure)
    assert all(measure(piece) <= limit for piece in pieces)
    assert all(map(is_balanced, pieces))
    assert [split_markdown(piece, limit, measure) for piece in pieces] == [[piece] for piece in pieces]
    assert said([block for piece in pieces for block in parse_markdown(piece)]) == said(parse_markdown(text))


@given(WITH_TABLES, LIMITS)
@settings(deadline=None)
def test_rows_are_kept_under_their_header(text: str, limit: int):
    whole = [block for block in parse_markdown(text) if isinstance(block, Table)]
    pieces = split_markdown(text, limit)
    assert all(map(is_balanced, pieces))
    cut = [block for piece in pieces for block in parse_markdown(piece) if isinstance(block, Table)]
    assert sum((table.rows for table in cut), ()) == sum((table.rows for table in whole), ())
    assert {table.header for table in cut} == {table.header for table in whole}


@given(HOSTILE, st.sampled_from([1, 2, 10, 50, 300, 1_000]), MEASURES)
@settings(deadline=None, max_examples=60)
def test_text_that_means_harm_is_cut_all_the_same(text: str, limit: int, measure):
    limit = max(limit, 4)
    pieces = split_markdown(text, limit, measure)
    assert all(measure(piece) <= limit for piece in pieces)
    left = letters("".join(pieces))
    assert all(letter in left for letter in letters(text))
    if limit >= 300:
        assert all(map(is_balanced, pieces))
        assert [split_markdown(piece, limit, measure) for piece in pieces] == [[piece] for piece in pieces]


def formulas(text: str) -> list[str]:
    return re.findall(r"Math\(source='(.*?)'\)", repr(parse_markdown(text)))


@given(DOCUMENTS | WITH_TABLES, st.integers(150, 500))
def test_a_formula_is_in_one_piece(text: str, limit: int):
    pieces = split_markdown(text, limit)
    assert [formula for piece in pieces for formula in formulas(piece)] == formulas(text)


def test_a_formula_is_not_cut_between_its_words():
    text = "word " * 10 + "$a + b + c + d + e + f$ " + "word " * 10
    assert all(piece.count("$") in (0, 2) for piece in split_markdown(text, 60))


def test_a_formula_too_long_for_a_message_loses_nothing():
    text = "$$\n" + "a + b\n" * 40 + "$$"
    pieces = split_markdown(text, 100)
    assert "".join("".join(pieces).split()) == "".join(text.split())


@pytest.mark.parametrize("most", [1, 3, 7])
def test_only_as_many_pieces_are_made_as_are_wanted(most: int) -> None:
    text = "\n\n".join(f"{number}: {WORDS[:90]}" for number in range(1_000))
    measured = 0

    def measure(piece: str) -> int:
        nonlocal measured
        measured += len(piece)
        return len(piece)

    pieces = split_markdown(text, 200, measure, most=most)
    assert pieces == split_markdown(text, 200)[:most]
    assert measured < 20 * 200 * most


def test_pieces_continue_where_what_is_looked_at_ends() -> None:
    text = "".join(f"[{number}](https://example.org/{'x' * 400})\n\n" for number in range(60))
    pieces = split_markdown(text, 20, lambda piece: len(plain_text(parse_markdown(piece))) // 40, most=9)
    joined = "\n\n".join(pieces)
    shown = [number for number in range(60) if f"[{number}]" in joined]
    assert shown == list(range(9))
