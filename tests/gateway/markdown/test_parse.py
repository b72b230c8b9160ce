"""The parser: each kind of node, destinations of links, and hostile text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.markdown.links import host_of
from gateway.markdown.parse import parse_markdown
from gateway.markdown.tree import (
    Block,
    Break,
    Code,
    CodeBlock,
    Emphasis,
    Heading,
    Image,
    Inline,
    Item,
    ItemList,
    Link,
    Math,
    Paragraph,
    Quote,
    Rule,
    Spoiler,
    Strike,
    Strong,
    Table,
    Text,
    plain_text,
)
from tests.gateway.markdown.documents import DOCUMENTS, HOSTILE, WITH_TABLES, letters, said


def inlines(markdown: str) -> tuple[Inline, ...]:
    (block,) = parse_markdown(markdown)
    assert isinstance(block, Paragraph)
    return block.children


def link(markdown: str) -> Link:
    (found,) = (node for node in inlines(markdown) if isinstance(node, Link))
    return found


def words(text: str) -> Paragraph:
    return Paragraph((Text(text),))


@pytest.mark.parametrize(
    ("markdown", "node"),
    [
        ("just words", Text("just words")),
        ("**a**", Strong((Text("a"),))),
        ("__a__", Strong((Text("a"),))),
        ("*a*", Emphasis((Text("a"),))),
        ("~~a~~", Strike((Text("a"),))),
        ("||a||", Spoiler((Text("a"),))),
        ("||a **b**||, c", Spoiler((Text("a "), Strong((Text("b"),))))),
        # These are operators of programs.
        *((text, Text(text)) for text in ("a||b||c", "a || b || c", "||a", "a||", "||||", "|| a||")),
        ("`||a||`", Code("||a||")),
        ("`a *b* &amp;`", Code("a *b* &amp;")),
        ("``a`b``", Code("a`b")),
        ("*a **b***", Emphasis((Text("a "), Strong((Text("b"),))))),
        (r"\*a\*", Text("*a*")),
        ("&lt;b&gt; &copy;", Text("<b> ©")),
        ("<b>raw</b>", Text("<b>raw</b>")),
        ("snake_case_name", Text("snake_case_name")),
        ("**open", Text("**open")),
        ("[open](http://a.b", Text("[open](")),
    ],
)
def test_each_kind_of_inline(markdown: str, node: Inline):
    assert inlines(markdown)[0] == node


@pytest.mark.parametrize(
    ("markdown", "block"),
    [
        ("a\nb", Paragraph((Text("a"), Break(), Text("b")))),
        ("a  \nb", Paragraph((Text("a"), Break(), Text("b")))),
        ("a\\\nb", Paragraph((Text("a"), Break(), Text("b")))),
        ("   a\n     b", Paragraph((Text("a"), Break(), Text("b")))),
        ("### *a*", Heading(3, (Emphasis((Text("a"),)),))),
        ("a\n===", Heading(1, (Text("a"),))),
        ("```py hl\na\n\n b\n```", CodeBlock("a\n\n b", "py")),
        ("~~~\n```\n~~~", CodeBlock("```")),
        ("    a\n     b", CodeBlock("a\n b")),
        ("```py\nopen", CodeBlock("open", "py")),
        ("> a\n> > b", Quote((words("a"), Quote((words("b"),))))),
        ("---", Rule()),
        ("- a\n- b", ItemList((Item((words("a"),)), Item((words("b"),))))),
        ("3) a", ItemList((Item((words("a"),)),), ordered=True, start=3)),
        ("- a\n\n- b", ItemList((Item((words("a"),)), Item((words("b"),))), tight=False)),
        ("- [ ] a\n- [x] b", ItemList((Item((words("a"),), False), Item((words("b"),), True)))),
        (
            "1. a\n   - b\n\n     c",
            ItemList(
                (Item((words("a"), ItemList((Item((words("b"), words("c"))),), tight=False))),),
                ordered=True,
            ),
        ),
        (
            "|a|*b*|\n|:-|-:|\n|1|\n|2|3|4|",
            Table(
                ((Text("a"),), (Emphasis((Text("b"),)),)),
                (((Text("1"),), ()), ((Text("2"),), (Text("3"),))),
                ("left", "right"),
            ),
        ),
        ("<div>\nraw\n</div>", Paragraph((Text("<div>"), Break(), Text("raw"), Break(), Text("</div>")))),
    ],
)
def test_each_kind_of_block(markdown: str, block: Block):
    assert parse_markdown(markdown) == (block,)


def test_definitions_of_links_stay_words():
    assert inlines("[a]: http://b.c")[0] == Text("[a]: ")


def test_line_ends_of_any_kind_and_nul_characters():
    assert parse_markdown("a\r\nb\rc\0") == parse_markdown("a\nb\nc\ufffd")
    assert parse_markdown("") == ()


@pytest.mark.parametrize(
    ("href", "host"),
    [
        ("https://Example.org:8080/x?y#z", "example.org"),
        ("http://user@evil.org/", "evil.org"),
        ("mailto:Ann@example.org", "ann@example.org"),
        ("tg://user?id=1", "tg://user?id=1"),
        ("https://b\u00fccher.de", "xn--bcher-kva.de"),
    ],
)
def test_links_tell_where_they_lead(href: str, host: str):
    assert link(f"[words]({href})").host == host


@pytest.mark.parametrize(
    "href",
    [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "vbscript:x",
        "//evil.org/x",
        "/path",
        "#part",
        "http://",
        "slack://open",
        "",
    ],
)
def test_an_address_that_may_not_be_a_link_is_text(href: str):
    assert inlines(f"[**words**]({href})") == (Strong((Text("words"),)), Text(f" ({href})"))
    assert inlines(f"![alt]({href})") == (Text(f"alt ({href})"),)


def test_an_address_that_is_text_can_be_read():
    assert inlines("[size](src/gr\u00f6\u00dfe.py)") == (Text("size (src/gr\u00f6\u00dfe.py)"),)
    assert inlines("[a b.txt](<a b.txt>)") == (Text("a b.txt"),)


def test_an_address_that_is_none_leads_nowhere():
    assert host_of("http://[") is None


@pytest.mark.parametrize(
    ("label", "href", "differs"),
    [
        ("the docs", "https://evil.org", False),
        ("evil.org", "https://evil.org", False),
        ("www.evil.org", "https://evil.org", False),
        ("https://evil.org/a", "https://evil.org/b", False),
        ("bank.com", "https://evil.org", True),
        ("**bank**.com", "https://evil.org", True),
        ("https://bank.com/login", "https://evil.org", True),
        ("https://bank.com:443@evil.org", "https://evil.org", True),
        ("go to bank.com now", "https://evil.org", True),
        ("BANK.COM", "https://evil.org", True),
        ("bank\u200b.com", "https://evil.org", True),
        ("bank\u3002com", "https://evil.org", True),
        ("\uff42ank.com", "https://evil.org", True),
        ("b\u0430nk.com", "https://bank.com", True),
        ("192.0.2.1", "https://evil.org", True),
        ("version 1.2", "https://evil.org", False),
        ("wait... what", "https://evil.org", False),
        ("bank.com", "tg://resolve?domain=evil", True),
        ("Ann", "tg://user?id=1", False),
        ("ann@bank.com", "mailto:ann@evil.org", True),
        ("ann@evil.org", "mailto:ann@evil.org", False),
        ("https://bank.com@evil.org/", "https://bank.com@evil.org/", True),
    ],
)
def test_words_that_name_another_host_are_marked(label: str, href: str, differs: bool):
    assert link(f"[{label}]({href})").shown_differs is differs


@pytest.mark.parametrize(
    ("markdown", "address"),
    [
        ("see https://a.b/c_d_e.", "https://a.b/c_d_e"),
        ("(https://a.b/x)", "https://a.b/x"),
        ("https://a.b/x_(y)!", "https://a.b/x_(y)"),
        ("<https://a.b/c>", "https://a.b/c"),
        ("https://a.b?x=1&amp;y=2", "https://a.b?x=1&y=2"),
        ("HTTPS://A.B", "HTTPS://A.B"),
    ],
)
def test_bare_addresses_are_links(markdown: str, address: str):
    assert link(markdown).children == (Text(address),)


def test_a_bare_address_keeps_what_stands_around_it():
    assert inlines("(https://a.b)).") == (
        Text("("),
        Link((Text("https://a.b"),), "https://a.b", "a.b"),
        Text(")). "[:-1]),
    )
    assert inlines("https://") == (Text("https://"),)
    assert inlines("`https://a.b`") == (Code("https://a.b"),)


def test_a_link_holds_no_other_link():
    (outer,) = inlines("[![badge](https://i.mg/x.png) https://x.y](https://a.b)")
    assert outer == Link((Text("badge https://x.y"),), "https://a.b", "a.b", shown_differs=True)


def test_a_link_without_words_shows_its_address():
    assert link("[](https://a.b)").children == (Text("https://a.b"),)


def test_pictures():
    assert inlines("![a *b*](https://i.mg/x.png)") == (Image("a b", "https://i.mg/x.png", "i.mg"),)


def test_what_is_nested_too_deep_is_text_and_bounded():
    def depth(blocks: tuple[Block, ...]) -> int:
        return max((1 + depth(block.children) for block in blocks if isinstance(block, Quote)), default=0)

    tree = parse_markdown(">" * 100_000 + " hello")
    assert depth(tree) == 16
    assert plain_text(tree).endswith(">>> hello")


def test_emphasis_that_is_nested_too_deep_is_dropped_but_never_its_words():
    def depth(nodes: tuple[Inline, ...]) -> int:
        return max((1 + depth(n.children) for n in nodes if isinstance(n, Strong | Emphasis)), default=0)

    nodes = inlines("*a **b " * 100 + "c [l](https://x.y) " + "d** e*" * 100)
    assert 10 < depth(nodes) < 20
    assert plain_text([Paragraph(nodes)]).count("a") == 100
    assert "https://x.y" in plain_text([Paragraph(nodes)])


def test_lists_in_items_that_are_too_deep_lose_nothing():
    text = "".join(f"{'  ' * level}- item{level}\n" for level in range(40)) + "- last\n\nafter"
    shown = plain_text(parse_markdown(text))
    assert [f"item{level}" in shown for level in range(40)] == [True] * 40
    assert shown.endswith("• last\n\nafter")


def test_a_paragraph_too_long_to_be_parsed_is_words():
    nodes = inlines("**a** https://x.y\n" * 1_000)
    assert nodes[:3] == (Text("**a** "), Link((Text("https://x.y"),), "https://x.y", "x.y"), Break())


def test_a_table_too_wide_is_words():
    assert isinstance(parse_markdown("a|" * 30 + "\n" + "-|" * 30)[0], Paragraph)


def test_a_fence_of_absurd_length_is_words():
    assert isinstance(parse_markdown("`" * 40 + "\na")[0], Paragraph)
    assert isinstance(parse_markdown("`" * 30 + "\na")[0], CodeBlock)


@given(DOCUMENTS | WITH_TABLES | HOSTILE)
@settings(deadline=None, max_examples=60)
def test_every_text_has_a_tree_and_so_has_every_beginning_of_it(text: str):
    for end in {len(text), len(text) // 2, len(text) // 3, max(0, len(text) - 1)}:
        plain_text(parse_markdown(text[:end]))


@given(HOSTILE)
@settings(deadline=None)
def test_no_word_is_lost(text: str):
    """But for what is not a word: names of code, titles of links, names of characters, cells beyond a row."""
    text = re.sub(r"[`~|&\"']|(?<!\])\(", "", text)
    shown = letters(said(parse_markdown(text)))
    assert all(letter in shown for letter in letters(text))


@given(st.text())
def test_text_without_markup_stays_unchanged(text: str):
    kept = "".join(mark for mark in text if mark.isalnum())
    assert said(parse_markdown("x" + kept)) == "x" + kept


@pytest.mark.parametrize(
    "source",
    [
        "$a_1 * b_2*$",
        r"\(a^2\)",
        r"\[x_{i}\]",
        "$$a$$",
        "$\\alpha$",
        "$a$.",
        "$$\na\n- b\n$$",
        "\\[\n# a\n\\]",
        r"$\$5$",
    ],
)
def test_a_formula_is_literal(source: str):
    (paragraph,) = parse_markdown(source)
    assert isinstance(paragraph, Paragraph)
    assert paragraph.children[0] == Math(source.removesuffix("."))
    assert plain_text((paragraph,)) == source


@pytest.mark.parametrize(
    "text", ["$5 and $10", "$ a$", "$a $", "$a$5", r"\$a\$", "$$", r"\(", "$5-$10", "$\n\n$", "a$$b"]
)
def test_money_is_not_a_formula(text: str):
    assert "Math(" not in repr(parse_markdown(text))


def test_a_formula_stands_in_lists_quotes_and_tables():
    text = "- $a_b$\n\n  $$\n  c\n  + d\n  $$\n\n> \\[e\\]\n\n| f |\n|---|\n| $g_h_i$ |\n"
    found = re.findall(r"Math\(source='([^']*)'\)", repr(parse_markdown(text)))
    assert found == ["$a_b$", r"$$\nc\n+ d\n$$", r"\\[e\\]", "$g_h_i$"]


def cells_of(markdown: str) -> int:
    tables = [block for block in parse_markdown(markdown) if isinstance(block, Table)]
    return sum(len(table.header) * (1 + len(table.rows)) for table in tables)


@pytest.mark.parametrize(
    ("columns", "row", "cells"),
    [(2, "|x1|y1|\n", 1_000), (18, "|" + "x|" * 18 + "\n", 990), (18, "|x\n", 18 * 12)],
    ids=["long", "wide", "short rows"],
)
def test_a_table_has_a_bounded_number_of_cells_and_its_further_rows_are_text(
    columns: int, row: str, cells: int
) -> None:
    header = "|" + "h|" * columns + "\n|" + "-|" * columns + "\n"
    markdown = header + row * 2_000
    assert cells_of(markdown) == cells
    assert plain_text(parse_markdown(markdown)).count("x") == markdown.count("x"), "a row is lost"


def test_a_paragraph_with_too_many_marks_stays_text() -> None:
    text = "_*" * 1_001
    assert inlines(text) == (Text(text),)
