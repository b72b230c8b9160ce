"""Hostile text takes time in proportion to its length, at most."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.markdown.parse import parse_markdown
from gateway.markdown.split import split_markdown
from gateway.markdown.tree import plain_text
from tests.gateway.markdown.documents import work

pytestmark = pytest.mark.slow

ATTACKS: dict[str, Callable[[int], str]] = {
    "quotes in quotes": lambda n: ">" * n + " x",
    "lines of deep quotes": lambda n: ("> " * 20 + "x\n") * (n // 40),
    "quotes that go on without a mark": lambda n: (">" * 15 + "a\n") * (n // 20),
    "lists in lists": lambda n: "- " * n,
    "numbers in numbers": lambda n: "1. " * n,
    "lists ever deeper": lambda n: "".join(" " * at + "- a\n" for at in range(int((2 * n) ** 0.5))),
    "many items": lambda n: "* a\n" * (n // 4),
    "empty items": lambda n: "-\n" * (n // 2),
    "an open fence": lambda n: "```\n" + "x\n" * (n // 2),
    "one line of code": lambda n: "```py\n" + "x" * n,
    "a fence with a long name": lambda n: "```" + "x" * n + "\ncode",
    "many fences": lambda n: "```\n" * (n // 4),
    "fences in quotes": lambda n: "> ```\n" * (n // 6),
    "open fences in items": lambda n: "- ```\nx\n" * (n // 8),
    "backticks": lambda n: "`" * n,
    "backticks that do not match": lambda n: "a`" * (n // 2),
    "one line": lambda n: "x" * n,
    "one paragraph": lambda n: "word " * (n // 5),
    "one sentence after the other": lambda n: "a. " * (n // 3),
    "a paragraph of lines": lambda n: "a\n" * (n // 2),
    "blank lines": lambda n: "a" + "\n" * n + "b",
    "space": lambda n: "a" + " " * n + "b",
    "a wide table": lambda n: "|a" * 1_000 + "|\n" + "|-" * 1_000 + "|\n" + "|a|\n" * (n // 4),
    "a long table": lambda n: "a|b\n-|-\n" + "x|y\n" * (n // 4),
    "a table of a row": lambda n: "|" * n + "\n" + "|-" * (n // 2),
    "headings": lambda n: "a\n=\n" * (n // 4),
    "open brackets": lambda n: "[" * n,
    "open pictures": lambda n: "![" * (n // 2),
    "links in links": lambda n: "[" * (n // 5) + "a" + "](b)" * (n // 5),
    "open links": lambda n: '[a](b "' * (n // 7),
    "emphasis in emphasis": lambda n: "*a **b " * (n // 7),
    "underscores": lambda n: "_a __b " * (n // 7),
    "angles": lambda n: "<a" * (n // 2),
    "backslashes": lambda n: "\\" * n,
    "references": lambda n: "&amp;" * (n // 5),
    "marks on one letter": lambda n: "a" + "\u0301" * n,
    "halves of flags": lambda n: "🇩" * n,
    "addresses": lambda n: "https://" * (n // 8),
    "an address with brackets": lambda n: "https://a" + ")" * n,
    "a link with a long name": lambda n: "[" + "word " * (n // 5) + "](http://x.y)",
    "a link to far away": lambda n: "[a](http://x.y/" + "z" * n + ")",
    "a name full of dots": lambda n: "[" + "a." * (n // 2) + "](http://x.y)",
}


SHORT, LONG = 4_000, 16_000


@pytest.mark.parametrize("attack", ATTACKS)
def test_parsing_is_linear(attack: str):
    short, long = (work(lambda n=n: plain_text(parse_markdown(ATTACKS[attack](n)))) for n in (SHORT, LONG))
    assert long <= 5 * max(short, LONG)
    assert short <= 60 * SHORT


@pytest.mark.parametrize("attack", ATTACKS)
def test_cutting_is_linear(attack: str):
    measured = 0

    def measure(piece: str) -> int:
        nonlocal measured
        measured += len(piece)
        return len(piece)

    short = work(lambda: split_markdown(ATTACKS[attack](SHORT), 500, measure))
    measured = 0
    long = work(lambda: split_markdown(ATTACKS[attack](LONG), 500, measure))
    assert long <= 6 * max(short, LONG)
    assert measured <= 12 * len(ATTACKS[attack](LONG))


@pytest.mark.parametrize("attack", ATTACKS)
def test_forty_thousand_characters_are_taken(attack: str):
    text = ATTACKS[attack](40_000)
    plain_text(parse_markdown(text))
    assert all(len(piece) <= 4_000 for piece in split_markdown(text, 4_000))
