"""Markdown for tests: documents as users and models write them, and hostile text."""

from __future__ import annotations

import cProfile
from collections.abc import Callable, Iterable, Iterator

from hypothesis import strategies as st

from gateway.markdown.tree import (
    Block,
    Break,
    Code,
    CodeBlock,
    Heading,
    Image,
    Inline,
    ItemList,
    Link,
    Math,
    Paragraph,
    Quote,
    Rule,
    Table,
    Text,
)

Lines = list[str]

WORDS = st.sampled_from(
    [
        *("alpha", "beta", "gamma", "delta", "one", "two", "snake_case", "2.5", "a.b", "漢字。", "naïve"),
        *("e\u0301a", "😀", "👍🏽", "👩\u200d👩\u200d👧", "🇩🇪", "C#", "3)", "Mr."),
    ]
)


def phrases(most: int, mark: str = "") -> st.SearchStrategy[str]:
    return st.lists(WORDS, min_size=1, max_size=most).map(lambda words: mark + " ".join(words) + mark)


INLINE = st.one_of(
    phrases(9),
    phrases(9),
    phrases(9).map(lambda words: words + "."),
    phrases(6, "**"),
    phrases(6, "*"),
    phrases(4, "~~"),
    phrases(4, "`"),
    st.builds("**{} *{}* {}**".format, phrases(4), phrases(4), phrases(4)),
    st.sampled_from(["$x_1 + y$", r"\(a_b * c_d\)", "$$n$$", r"\[ \frac{a}{b} \]", "$5 and $10"]),
    st.builds("[{}](https://example.org/{})".format, phrases(3), st.integers(0, 999)),
)


def words(most: int = 20, between: str = " ") -> st.SearchStrategy[str]:
    return st.lists(INLINE, min_size=1, max_size=most).map(lambda parts: "x " + between.join(parts))


PARAGRAPH = st.one_of(words(), words(between="\n")).map(lambda text: text.split("\n"))
HEADING = st.builds("{} {}".format, st.sampled_from(["#", "##", "####"]), words(3)).map(lambda line: [line])
CODE = st.builds(
    lambda language, lines: [f"```{language}", *lines, "```"],
    st.sampled_from(["", "python", "sh -x"]),
    st.lists(
        st.builds("{}{}".format, st.sampled_from(["", "  ", "\t"]), phrases(9)) | st.just(""), max_size=12
    ),
)
FORMULA = st.sampled_from([["$$", "a_i", "- b_i", "$$"], ["\\[", "# c", "\\]"], ["$$d * e * f$$"]])
TABLE = st.integers(1, 4).flatmap(
    lambda width: st.lists(
        st.lists(phrases(3), min_size=width, max_size=width).map(lambda cells: f"| {' | '.join(cells)} |"),
        min_size=1,
        max_size=9,
    ).map(lambda rows: [rows[0], "|---" * width + "|", *rows[1:]])
)


def joined(blocks: Iterable[Lines]) -> Lines:
    lines: Lines = []
    for block in blocks:
        lines += ["", *block] if lines else block
    return lines


def quoted(blocks: list[Lines]) -> Lines:
    return ["> " + line for line in joined(blocks)]


def listed(items: list[list[Lines]], ordered: bool, counted: bool, loose: bool) -> Lines:
    lines: Lines = []
    for number, item in enumerate(items, 1):
        mark = f"{number if counted else 1}. " if ordered else "- "
        first, *others = joined(item)
        lines += [mark + first, *(" " * len(mark) + line if line else "" for line in others)]
        lines += [""] if loose else []
    return lines


def containers(inner: st.SearchStrategy[Lines]) -> st.SearchStrategy[Lines]:
    blocks = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        blocks.map(quoted),
        st.builds(
            listed, st.lists(blocks, min_size=1, max_size=4), st.booleans(), st.booleans(), st.booleans()
        ),
    )


BLOCKS = st.recursive(st.one_of(PARAGRAPH, PARAGRAPH, HEADING, CODE, FORMULA), containers, max_leaves=8)
DOCUMENTS = st.lists(BLOCKS, min_size=1, max_size=6).map(lambda blocks: "\n".join(joined(blocks)))
WITH_TABLES = st.lists(BLOCKS | TABLE, min_size=1, max_size=5).map(lambda blocks: "\n".join(joined(blocks)))

_BITS = [
    *("*", "**", "_", "`", "``", "```", "~~~", "~~", "[", "](", "http://a.b/c", ")", "!", "<", ">", "> "),
    *(
        "- ",
        "1. ",
        "2) ",
        "# ",
        "\n",
        "\n\n",
        "\n    ",
        "\n  ",
        "|",
        "||",
        "|--|--|",
        "\n|",
        "\\",
        "&amp;",
        " ",
    ),
    *(
        "  \n",
        "word",
        "zwei",
        "😀",
        "👩\u200d👩\u200d👧",
        "e\u0301",
        "\t",
        "---",
        "\n===",
        "漢字",
        "。",
        ". ",
    ),
    *("x" * 50, "y z " * 30, "\u200b", "\0", "\r\n", "[ ] ", "](javascript:x)", "<http://x.y>", "\n```\n"),
    "a | b\n--- | ---\n",
    *("$", "$$", "\\(", "\\)", "\\[", "\\]", "\n$$\n", "\n\\[", "$a$"),
]
HOSTILE = st.lists(st.sampled_from(_BITS) | st.text(max_size=5), max_size=120).map("".join)


def said(tree: Iterable[Block]) -> str:
    """Return all readable text and all URLs of a tree, without space."""
    return "".join("".join(_said(block) for block in tree).split())


def _said(block: Block) -> str:
    match block:
        case Paragraph(children) | Heading(_, children):
            return _inlines(children)
        case CodeBlock(text):
            return text
        case Quote(children):
            return said(children)
        case ItemList(items):
            return "".join(said(item.children) for item in items)
        case Table(header, rows):
            return "".join(_inlines(cell) for row in (header, *rows) for cell in row)
        case Rule():
            return "---"


def _inlines(inlines: Iterable[Inline]) -> str:
    return "".join(map(_inline, inlines))


def _inline(inline: Inline) -> str:
    match inline:
        case Text(text) | Code(text) | Math(text):
            return text
        case Link(children, href):
            return _inlines(children) + href
        case Image(alt, href):
            return alt + href
        case Break():
            return " "
        case _:
            return _inlines(inline.children)


def letters(text: str) -> Iterator[str]:
    return filter(str.isalpha, text)


def work(task: Callable[[], object]) -> int:
    """Count the functions that a task calls: its time, on any machine."""
    profile = cProfile.Profile(subcalls=False)
    profile.runcall(task)
    return sum(entry.callcount for entry in profile.getstats())
