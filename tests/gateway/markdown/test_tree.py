"""The tree as plain text."""

from __future__ import annotations

import pytest

from gateway.markdown.parse import parse_markdown
from gateway.markdown.tree import Link, Paragraph, Table, Text, inline_text, label_of, plain_text, table_text


@pytest.mark.parametrize(
    ("markdown", "plain"),
    [
        ("# Title\n\n**a** *b* ~~c~~ `d`", "Title\n\na b c d"),
        ("a\nb", "a\nb"),
        ("[words](https://x.y/z)", "words (https://x.y/z)"),
        ("<https://x.y>", "https://x.y"),
        ("<ann@x.y>", "ann@x.y"),
        ("![alt](https://x.y/z)", "alt (https://x.y/z)"),
        ("![](https://x.y/z)", "https://x.y/z"),
        ("```py\na\n  b\n```", "a\n  b"),
        ("> a\n> b\n>\n> c", "> a\n> b\n> \n> c"),
        ("- a\n  b\n- [x] c\n- [ ] d", "• a\n  b\n• [x] c\n• [ ] d"),
        ("9. a\n1. b\n   - c", "9. a\n10. b\n    • c"),
        ("1. a\n\n   b\n2. c", "1. a\n   \n   b\n\n2. c"),
        ("|a|b|\n|-|-|\n|1|`2`|", "a | b\n1 | 2"),
        ("a\n\n---\n\nb", "a\n\n---\n\nb"),
        ("", ""),
    ],
)
def test_a_tree_as_plain_text(markdown: str, plain: str):
    assert plain_text(parse_markdown(markdown)) == plain


def test_the_words_of_a_link_alone():
    link = Link((Text("the docs"),), "https://x.y", "x.y")
    assert (label_of(link), inline_text([link])) == ("the docs", "the docs (https://x.y)")


def test_trees_are_values():
    assert parse_markdown("*a*") == parse_markdown("_a_")
    assert hash(parse_markdown("- a")) == hash(parse_markdown("* a"))
    with pytest.raises(AttributeError):
        Paragraph(()).children = (Text("other"),)  # pyright: ignore[reportAttributeAccessIssue]


def table(markdown: str) -> Table:
    [block] = parse_markdown(markdown)
    assert isinstance(block, Table)
    return block


def test_columns_are_aligned_by_display_width() -> None:
    wide = table("| 名前 | n |\n|---|--:|\n| e\u0301t\u00e9 | 7 |\n| 👨‍👩‍👧 | 12 |")
    assert table_text(wide).split("\n") == ["名前   n", "────  ──", "e\u0301té    7", "👨‍👩‍👧    12"]


def test_columns_are_centered_and_end_without_spaces() -> None:
    assert table_text(table("| a | b |\n|:-:|:--|\n| long | c |")).split("\n") == [
        " a    b",
        "────  ─",
        "long  c",
    ]


def test_a_table_is_not_aligned_where_that_would_take_too_much() -> None:
    long = "x" * 50
    assert table_text(table(f"| a | b |\n|---|---|\n| {long} | c |"), 100) == f"a | b\n{long} | c"
