"""HTML of Markdown for the web page: safe for every input, and independent of how it is streamed."""

from __future__ import annotations

import re
from html import escape, unescape
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.websocket.render import Block, BlockRenderer, render_html, render_message
from gateway import (
    ErrorPart,
    FilePart,
    ImagePart,
    Message,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

pytestmark = pytest.mark.slow

# fmt: off
_TAGS = {
    "p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "hr", "br", "strong",
    "em", "s", "code", "pre", "a", "span", "table", "thead", "tbody", "tr", "th", "td", "div", "figure",
    "figcaption", "input", "math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "msup", "msub", "msubsup",
    "mfrac", "msqrt", "mroot", "mover", "munder", "munderover", "mtable", "mtr", "mtd", "mstyle", "mpadded",
    "mphantom", "menclose", "mmultiscripts", "mprescripts", "none",
}
# fmt: on
_ATTRIBUTES = {
    "class",
    "href",
    "target",
    "rel",
    "start",
    "type",
    "disabled",
    "checked",
    "role",
    "tabindex",
    "aria-label",
    "accent",
    "accentunder",
    "depth",
    "display",
    "displaystyle",
    "fence",
    "form",
    "height",
    "largeop",
    "linethickness",
    "lspace",
    "mathvariant",
    "maxsize",
    "minsize",
    "movablelimits",
    "notation",
    "rspace",
    "scriptlevel",
    "separator",
    "stretchy",
    "voffset",
    "width",
}


class _Audit(HTMLParser):
    """Parser that collects tags, attributes and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]


def _audit(html: str) -> _Audit:
    audit = _Audit()
    audit.feed(html)
    return audit


def _assert_safe(html: str) -> None:
    audit = _audit(html)
    assert audit.tags <= _TAGS
    assert audit.attributes <= _ATTRIBUTES
    assert all(address.lower().startswith(("http://", "https://", "mailto:")) for address in audit.addresses)


def _stream(chunks: list[str]) -> list[Block]:
    renderer = BlockRenderer()
    blocks = [block for chunk in chunks for block in renderer.feed(chunk)]
    return [block for block in [*blocks, *renderer.finish()] if block is not None]


def _joined(blocks: list[Block]) -> str:
    return "".join(block.html for block in blocks)


# -- Markdown


def test_common_markdown_is_rendered() -> None:
    html = render_html("# Title\n\nSome **bold**, *soft*, ~~gone~~ and `code`.\n\n- one\n- two\n")
    for piece in (
        "<h1>Title</h1>",
        "<strong>bold</strong>",
        "<em>soft</em>",
        "<s>gone</s>",
        "<code>code</code>",
        "<li>one</li>",
    ):
        assert piece in html


def test_a_table_is_aligned_by_class_and_scrolls_by_itself() -> None:
    html = render_html("| a | b |\n|:-:|--:|\n| 1 | 2 |\n")
    assert '<td class="align-center">1</td>' in html
    assert '<td class="align-right">2</td>' in html
    assert html.startswith('<div class="table"')
    assert "style" not in html


def test_a_task_list_shows_boxes_that_cannot_be_ticked() -> None:
    html = render_html("- [x] done\n- [ ] open\n")
    assert html.count('type="checkbox"') == 2
    assert html.count("disabled") == 2
    assert html.count('checked=""') == 1


def test_code_is_coloured_by_class_and_names_its_language() -> None:
    html = render_html("```python\ndef f(): return 1\n```\n")
    assert "<figcaption><span>python</span></figcaption>" in html
    assert '<span class="k">def</span>' in html


@pytest.mark.parametrize("info", ["", "no-such-language", 'py"><script>', "../../etc/passwd"])
def test_code_in_no_known_language_stays_plain(info: str) -> None:
    html = render_html(f"```{info}\n<b>&\n```\n")
    assert "<code>&lt;b&gt;&amp;\n</code>" in html
    _assert_safe(html)


def test_code_too_long_to_colour_in_time_stays_plain() -> None:
    html = render_html("```python\n" + "x = 1\n" * 10_000 + "```\n")
    assert "<code>x = 1\n" in html


def test_a_hostile_paragraph_too_long_to_parse_is_shown_as_text() -> None:
    html = render_html("![" * 5_000 + "**a**")
    assert html.endswith("**a**</p>\n")


def test_reference_definitions_stay_readable_text() -> None:
    html = render_html("See [docs][1].\n\n[1]: https://example.org/docs\n")
    assert 'href="https://example.org/docs"' in html
    assert "[docs][1]" in html


# -- safety


@pytest.mark.parametrize(
    "attack",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "<svg onload=alert(1)>",
        "text <b onclick=alert(1)>bold</b>",
        "[x](javascript:alert(1))",
        "[x](JaVaScRiPt:alert(1))",
        "[x](java&#x0A;script:alert(1))",
        "[x](&#106;avascript:alert(1))",
        "[x](data:text/html;base64,PHNjcmlwdD4=)",
        "[x](vbscript:msgbox(1))",
        "[x](file:///etc/passwd)",
        "<javascript:alert(1)>",
        "![x](javascript:alert(1))",
        "![x](data:image/svg+xml;base64,PHN2Zz4=)",
        '[x](https://a.b "onmouseover=alert(1)")',
        '![" onerror="alert(1)](https://a.b/c.png)',
        '[x](https://a.b/"onclick="alert(1))',
        "`<script>alert(1)</script>`",
        "```html\n<script>alert(1)</script>\n```",
        "| <script>alert(1)</script> |\n|-|\n",
        "https://a.b/<script>",
        "[a]: javascript:alert(1)\n\n[a]",
    ],
)
def test_an_attack_stays_inert(attack: str) -> None:
    _assert_safe(render_html(attack))
    assert _joined(_stream(list(attack))) == render_html(attack)


def test_a_link_opens_elsewhere_and_passes_nothing_on() -> None:
    html = render_html("[docs](https://example.org/)")
    assert html == (
        '<p><a href="https://example.org/" target="_blank" rel="noopener noreferrer nofollow">docs</a></p>\n'
    )


@pytest.mark.parametrize(
    ("source", "host"),
    [
        ("[bank.com](https://evil.example/)", "evil.example"),
        ("[https://bank.com/login](https://evil.example/)", "evil.example"),
        ("[**bank.com**](https://evil.example/)", "evil.example"),
        ("[`bank.com`](https://evil.example/)", "evil.example"),
        ("[bank\uff0ecom](https://evil.example/)", "evil.example"),
        ("[write to ceo@bank.com](mailto:thief@evil.example)", "thief@evil.example"),
        ("<https://bank.com@evil.example/>", "evil.example"),
        ("https://bank.com@evil.example/ now", "evil.example"),
    ],
)
def test_a_link_that_reads_like_another_host_shows_its_own(source: str, host: str) -> None:
    assert f'<span class="link-host"> ({host})</span>' in render_html(source)


@pytest.mark.parametrize(
    "source",
    [
        "[bank.com](https://www.bank.com/a)",
        "[Docs](https://example.org)",
        "https://example.org/a.b",
        "<https://example.org>",
    ],
)
def test_an_honest_link_needs_no_note(source: str) -> None:
    assert "link-host" not in render_html(source)


def test_a_refused_link_shows_where_it_would_have_led() -> None:
    assert render_html("[click](javascript:alert(1))") == "<p>click (javascript:alert(1))</p>\n"


def test_a_picture_is_a_link_with_its_host_and_is_never_loaded() -> None:
    html = render_html("![a chart](https://example.org/secret.png)")
    assert "<img" not in html
    assert 'class="picture"' in html
    assert ">a chart</a>" in html
    assert "(example.org)" in html


def test_a_bare_address_becomes_a_link_without_the_mark_that_ends_the_sentence() -> None:
    html = render_html("See (https://example.org/a_(b)). Or `https://no.link/`.")
    assert 'href="https://example.org/a_(b)"' in html
    assert "no.link/</code>" in html
    assert html.count("<a ") == 1


# -- formulas


@pytest.mark.parametrize(
    "source", ["$a^2$", r"\(a^2\)", "$$a^2$$", r"\[a^2\]", "$$\na^2\n$$", "\\[\na^2\n\\]"]
)
def test_a_formula_is_mathml(source: str) -> None:
    html = render_html(f"{source}\n")
    display = "inline" if source.startswith(("$a", "\\(")) else "block"
    assert f'<math display="{display}"><mrow><msup><mi>a</mi><mn>2</mn></msup></mrow></math>' in html


@pytest.mark.parametrize(
    "text",
    [
        "It costs $5 and $10.",
        "a $ b $ c",
        "$a$5",
        r"\$a\$",
        "`$a$`",
        "$5-$10",
        "$$ $$",
        r"\(\)",
        "100$ or 50$",
    ],
)
def test_money_and_the_like_are_not_formulas(text: str) -> None:
    assert "<math" not in render_html(text)


@pytest.mark.parametrize(
    "latex",
    [
        r"\begin{aligned}a&=b\\&=c\end{aligned}",
        r"\begin{gathered}a\\b\end{gathered}",
        r"\begin{cases}a&b\end{cases}",
    ],
)
def test_environments_of_several_lines_are_tables(latex: str) -> None:
    assert "<mtable" in render_html(f"$$\n{latex}\n$$")


def test_a_formula_of_several_lines_is_neither_a_list_nor_a_heading() -> None:
    html = render_html("so\n$$\na\n- b\n=\n# c\n$$\nand\n")
    assert [tag for tag in ("<ul", "<h1", "<h2") if tag in html] == []
    assert html.startswith("<p>so</p>\n")
    assert html.endswith("<p>and</p>\n")


@pytest.mark.parametrize(
    "latex",
    [
        r"\frac{",
        r"}{",
        r"\nosuchcommand x",
        r"a_a_a",
        r"\def\a{\a\a}\a",
        r"\newcommand{\a}{bb}\a",
        "{" * 900 + "x" + "}" * 900,
        r"\begin{nothing}x\end{nothing}",
        r"\frac{a",
        r"\begin{matrix}a&b&\end{matrix}",
        "^" * 50,
    ],
)
def test_what_cannot_be_read_is_shown_as_it_was_written(latex: str) -> None:
    html = render_html(f"so ${latex}$ it is")
    assert "<math" not in html
    assert latex in unescape(html)


@pytest.mark.parametrize(
    "latex",
    [
        r'\text{"><img src=x onerror=alert(1)>}',
        r"\href{javascript:alert(1)}{x}",
        r"\style{position:fixed}{x}",
        r"\text{&lt;script&gt;}",
        r"\color{red}{x}",
        r"\hspace{9999em}x",
    ],
)
def test_nothing_gets_through_a_formula(latex: str) -> None:
    html = render_html(f"$${latex}$$")
    _assert_safe(html)
    assert "javascript" not in html.replace(escape(latex), "")
    assert "9999" not in html.replace(escape(latex), "")


def test_formulas_of_a_block_are_converted_up_to_a_bound() -> None:
    formula = f"${'a' * 300}$"
    html = render_html(" ".join([formula] * 10) + f"\n\n{formula}\n")
    assert html.count("<math") == 6 + 1
    assert html.count(formula) == 4


# -- incremental rendering

# fmt: off
_PIECES = st.sampled_from([
    "a", "b c", "\n", "\n\n", "\r\n", "\r", "# ", "- ", "* ", "+ ",
    "1. ", "2) ", "10. ", "> ", "    ", "  ", " ", "\t", "```", "````",
    "~~~", "```py\n", "---", "===", "***", "[x](http://y.z)", "[x]: http://y\n", "[x]", "![i](j)", "**",
    "*", "_", "`", "~~", "<b>", "<!--", "&amp;", "\\", "https://a.b/c.", "[ ] ",
    "[x] ", "\x00", "\x0b", "\u2028", "\xa0", "\U0001f600", "javascript:", "<http://q.r>", "<", "]",
    "(", ")", "| a | b |\n", "|---|:-:|\n", "|-|\n", "|",
    "$", "$$", "\\(", "\\)", "\\[", "\\]", "\n$$\n", "\\frac", "{a}", "\\text{", "}", "&", "^2", "_i",
])
# fmt: on
_INDENTS = st.sampled_from(["", "  ", "    ", "> ", "- ", "1. ", "   ", "\t", "* ", "> - "])
_LINES = st.sampled_from(
    [
        "",
        "x",
        "x",
        "# h",
        "```",
        "~~~",
        "---",
        "===",
        "| a | b |",
        "|--|--|",
        "- y",
        "> q",
        "2. z",
        "+ w",
        "    code",
        "$$",
        "$$ a",
        "- b $$",
        "\\[",
        "\\]",
    ]
)
_TEXTS = st.one_of(
    st.lists(_PIECES, max_size=60).map("".join),
    st.lists(st.tuples(_INDENTS, _LINES).map("".join), max_size=25).map("\n".join),
    st.text(max_size=200),
)


@given(_TEXTS, st.lists(st.integers(0, 400), max_size=8))
def test_blocks_are_the_whole_however_the_text_is_cut(text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    chunks = [text[start:end] for start, end in pairwise(places)]
    whole = render_html(text)
    assert _joined(_stream(chunks)) == whole
    assert _joined(_stream(list(text))) == whole


@given(_TEXTS)
def test_a_block_covers_the_text_up_to_its_end(text: str) -> None:
    blocks = _stream(list(text))
    ends = [0, *(block.upto for block in blocks)]
    assert [block.index for block in blocks] == list(range(len(blocks)))
    for block, start in zip(blocks, ends, strict=False):
        assert render_html(text[start : block.upto]) == block.html
    assert not text[ends[-1] :].strip(" \t\r\n")


@given(_TEXTS)
def test_the_html_of_every_input_is_safe(text: str) -> None:
    _assert_safe(render_html(text))


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ("para\n", 0),
        ("para\n\n", 1),
        ("# head\n", 1),
        ("head\n===\n", 1),
        ("---\n", 1),
        ("```\ncode\n", 0),
        ("```\ncode\n\n```\n", 1),
        ("- a\n- b\n\n", 0),
        ("- a\n- b\n\nnext\n", 1),
        ("- a\n\n  more of a\n", 0),
        ("1. a\n# head\n", 2),
        ("| a |\n|-|\n| b |\n", 0),
        ("| a |\n|-|\n| b |\n\n", 1),
        ("> quote\n\n", 1),
        ("    code\n\nafter\n", 1),
        ("a\r\n\r\nb", 1),
    ],
)
def test_a_block_closes_as_soon_as_it_cannot_change(text: str, closed: int) -> None:
    renderer = BlockRenderer()
    assert sum(block is not None for character in text for block in renderer.feed(character)) == closed


_LINES_OF_A_KIND = [
    "some words of an ordinary length\n",
    "word\n\n",
    "- item\n",
    "- item\n\n",
    "1. item\n   * nested\n",
    "> quote\n",
    "| a | b |\n",
    "    code\n",
    "**bold** start\n",
    "# head\n",
    "x\n",
]


@pytest.mark.parametrize("line", _LINES_OF_A_KIND)
@pytest.mark.parametrize("opening", ["", "```\n", "| a | b |\n|--|--|\n"])
def test_the_work_grows_with_the_text_and_not_with_its_square(opening: str, line: str) -> None:
    looks: list[int] = []
    for size in (10_000, 40_000):
        renderer = BlockRenderer()
        for character in opening + line * (size // len(line)):
            list(renderer.feed(character))
        list(renderer.finish())
        looks.append(renderer.parsed_size)
    assert looks[1] <= 6 * looks[0]


def test_a_long_block_of_code_is_looked_at_once() -> None:
    code = "```python\n" + "x = 1\n" * 5_000 + "```\n"
    renderer = BlockRenderer()
    for character in code:
        list(renderer.feed(character))
    assert renderer.parsed_size == len(code)


_TABLE = "|" + "a|" * 18 + "\n|" + "-|" * 18 + "\n"
_HOSTILE = {
    "short rows": (_TABLE, "|x\n"),
    "wide rows": (_TABLE, "|" + "**x**|" * 18 + "\n"),
    "lines": ("", "x\n"),
    "items": ("", "1) x\n"),
    "nested items": ("", "- x\n  - x\n    - x\n"),
    "quotes": ("", "> *x*\n>\n"),
    "emphasis": ("", "*x **y _z \n"),
    "long lines": ("- y\n", "*x* " * 10_000 + "\n"),
}


@pytest.mark.parametrize("kind", _HOSTILE)
def test_a_long_block_is_parsed_in_pieces_of_bounded_size_and_nothing_is_lost(kind: str) -> None:
    opening, line = _HOSTILE[kind]
    text = opening + line * (61_000 // len(line))
    renderer = BlockRenderer()
    steps = [*renderer.feed(text), *renderer.finish()]
    html = "".join(block.html for block in steps if block is not None)
    assert html == render_html(text)
    assert max(renderer.parse_sizes) < 20_000
    assert re.sub(r"<[^>]*>", "", html).count("x") == text.count("x")
    _assert_safe(html)


@pytest.mark.parametrize("kind", _HOSTILE)
def test_between_two_pauses_one_piece_is_parsed_at_most(kind: str) -> None:
    opening, line = _HOSTILE[kind]
    renderer, parsed = BlockRenderer(), 0
    for _ in renderer.feed(opening + line * (61_000 // len(line))):
        assert len(renderer.parse_sizes) <= parsed + 2, "a look that found no end, and the cut"
        parsed = len(renderer.parse_sizes)


def test_tables_have_a_bounded_number_of_cells() -> None:
    html = render_html("|a|b|\n|-|-|\n" + "|x|y|\n" * 800)
    assert html.count("<td>") + html.count("<th>") == 1_000
    assert re.sub(r"<[^>]*>", "", html).count("x") == 800


def test_a_list_is_cut_between_its_items() -> None:
    html = render_html("".join(f"{number}. item\n   more of it\n" for number in range(1, 401)))
    assert html.count("<li>item\nmore of it</li>") == 400
    assert html.count("<ol") > 1
    assert "<p>" not in html


def test_code_is_coloured_up_to_a_number_of_words_and_the_rest_is_plain() -> None:
    code = "x = 1\n" * 3_000
    html = render_html(f"```python\n{code}```\n")
    assert 0 < html.count("<span class=") < 3_000
    assert re.sub(r"<[^>]*>", "", html).endswith(code + "\n")


def test_long_code_is_shown_as_it_was_written_without_the_parser() -> None:
    code = "  a\n\nb = 1  \n" * 5_000
    renderer = BlockRenderer()
    (block,) = filter(None, renderer.feed(f"  ```python x\n{code}   ```\n"))
    assert renderer.parse_sizes == []
    assert "<span>python</span>" in block.html
    assert code.replace("  a", "a") in block.html


def test_an_answer_has_a_bounded_number_of_coloured_characters() -> None:
    code = "```python\n" + "x = 1\n" * 1_000 + "```\n\n"
    html = render_html(code * 40)
    assert html.count("x = 1\n" * 1_000) == 40 - 100_000 // 6_000
    assert html.count("<figure") == 40


def test_a_finished_block_is_not_rendered_again() -> None:
    text = "# one *of* these\n\n" + "|a|b|\n|-|-|\n" + "|x|y|\n" * 9 + "\n```python\nx = 1\n```\n"
    first, second = _stream(list(text)), _stream([text])
    assert len(first) == 3
    assert all(one.html is other.html for one, other in zip(first, second, strict=True))


# -- whole messages


def test_004_07_a_message_is_rendered_part_by_part() -> None:
    message = Message(
        session_id="s",
        role="assistant",
        parts=(
            TextPart("**hi**"),
            TextPart("thinking", "reasoning"),
            ToolCallPart("c", "clock", {}),
            ToolResultPart("c", "12:00"),
            ErrorPart("ToolError", "broken"),
            ImagePart("AA==", "image/png", "a dot"),
            FilePart("src/a.py", "x = 1\n", "python", (3, 3)),
            FilePart("empty.bin"),
        ),
    )
    rendered = dict(filter(None, render_message(message)))
    assert set(rendered) == {0, 1, 6}
    assert rendered[0] == "<p><strong>hi</strong></p>\n"
    assert "<span>src/a.py:3-3</span>" in rendered[6]
    assert '<span class="mi">1</span>' in rendered[6]


def test_what_a_person_typed_is_left_as_typed() -> None:
    typed = Message(session_id="s", role="user", parts=(TextPart("**hi**"),))
    assert not any(render_message(typed))
