"""Answers as Slack's messages: within every limit, without misleading markup."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from channels.slack import render
from channels.slack.fake.markup import (
    LONGEST_BLOCKS,
    Inspection,
    has_stray_bracket,
    notifying_mentions,
    visible_text,
)
from channels.slack.render import File, Text, blocks, notification_text, pages, safe_name, stream_text
from gateway import (
    Attachment,
    DisplayHints,
    ErrorPart,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from gateway.contract.messages import ResultMetadata

PIECES = st.sampled_from(
    [
        "<!here>",
        "<@U0123>",
        "`<!channel>`",
        "[https://bank.example](https://evil.example)",
        "<https://evil.example|https://bank.example>",
        "![secret](https://evil.example/?q=1)",
        "\n\n",
        "\n",
        "# head\n",
        "- item\n",
        "1. one\n",
        "```py\n",
        "```\n",
        "| a | b |\n|---|---|\n| 1 | 2 |\n",
        "> quote\n",
        "  > quote\n",
        "   - deep\n",
        "   ```\n",
        "   code\n",
        "*",
        "**",
        "_",
        "&amp;",
        "&",
        "&" * 900,
        "😀",
        "漢" * 50,
        "word " * 60,
        "x" * 900,
        "\ud800",
        "\u202e",
        "@everyone",
        "---\n",
    ]
)
MARKDOWN = st.lists(PIECES | st.text(max_size=20), max_size=40).map("".join)


def message(*parts: Part) -> Message:
    return Message(session_id="s", role="assistant", parts=parts)


def said(*parts: Part, final: bool = True) -> list[str]:
    return [
        visible_text(blocks(page.markdown))
        for page in pages(message(*parts), final=final)
        if isinstance(page, Text)
    ]


@given(MARKDOWN)
@example("```\n" + "a\n" * 5000)
@example("| " + "x" * 200 + " | y |\n|---|---|\n" + "| 1 | 2 |\n" * 300)
def test_every_page_is_within_the_limits_and_mentions_no_user(markdown: str) -> None:
    for final in (False, True):
        for page in pages(message(TextPart(markdown)), final=final, most=50):
            if isinstance(page, Text):
                check(page)


def check(page: Text) -> None:
    found = Inspection(blocks(page.markdown))
    assert (found.errors, found.mentions, found.mrkdwn) == ([], [], [])
    assert found.tables <= 1
    assert found.size <= LONGEST_BLOCKS
    assert all(text for text in texts(blocks(page.markdown)))
    assert len(notification_text(page.markdown)) < 4_000
    assert not list(notifying_mentions(notification_text(page.markdown), set()))
    assert not has_stray_bracket(notification_text(page.markdown))
    shown = stream_text(page.live)
    if shown is not None:
        assert len(shown) < 10_000
        assert len(shown.encode(errors="replace")) < 10_240
        assert not list(notifying_mentions(shown, set()))


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for one in value:
            yield from texts(one)
    elif isinstance(value, dict):
        if value.get("type") == "text":
            yield value["text"]
        for one in value.values():
            yield from texts(one)


@given(
    st.lists(
        st.sampled_from(["One. ", "two\n", "**bold** ", "`code` ", "\n\n", "- item\n", "<!here> "]),
        max_size=60,
    )
)
def test_what_a_stream_shows_only_grows(pieces: list[str]) -> None:
    before = ""
    for count in range(1, len(pieces) + 1):
        found = pages(message(TextPart("".join(pieces[:count]))), final=False)
        if not found or not isinstance(found[0], Text):
            continue
        shown = stream_text(found[0].live)
        assert shown is not None
        assert shown.startswith(before)
        before = shown


def test_code_that_is_still_being_written_is_not_closed_in_a_stream() -> None:
    (page,) = pages(message(TextPart("See:\n\n```py\nprint(1)")), final=False)
    assert isinstance(page, Text)
    assert page.live == "See:\n\n```py\nprint(1)"
    assert page.markdown.endswith("```")


def test_the_same_answer_makes_the_same_pages() -> None:
    answer = message(TextPart("One. " * 2000), ImagePart(base64.b64encode(b"x").decode(), "image/png"))
    assert pages(answer, final=True) == pages(answer, final=True)


def test_no_words_are_lost() -> None:
    words = [f"word{number}" for number in range(2000)]
    shown = " ".join(said(TextPart(" ".join(words))))
    assert [word for word in words if word not in shown] == []


def test_all_six_parts_show() -> None:
    picture = base64.b64encode(b"png").decode()
    found = pages(
        message(
            TextPart("hidden", kind="reasoning"),
            TextPart("**Look:**"),
            ToolCallPart("1", "shell", {"command": "ls -la"}),
            ToolCallPart("2", "search", {}),
            ToolCallPart("3", "never", {}),
            ToolResultPart("1", "long output", metadata=ResultMetadata(duration_ms=1234)),
            ToolResultPart(
                "2", "no", is_error=True, attachments=(Attachment("text/csv", picture, "../a.csv"),)
            ),
            ErrorPart("RateLimitError", "slow *down*\nplease"),
            ImagePart(picture, "image/png", alt_text="a map"),
            FilePart("notes/todo.txt", "milk"),
            FilePart("elsewhere.bin"),
        ),
        final=True,
    )
    text, *files = found
    assert isinstance(text, Text)
    assert visible_text(blocks(text.markdown)).split("\n\n") == [
        "Look:",
        "▫️ never\n✅ shell ls -la 1.2 s\n❌ search",
        "⚠️ slow *down* please",
        "📎 elsewhere.bin",
    ]
    assert [file.name for file in files if isinstance(file, File)] == ["a.csv", "image-8.png", "todo.txt"]
    assert "hidden" not in text.markdown


def test_tools_are_shown_only_if_configured() -> None:
    found = pages(
        message(
            TextPart("Look:"), ToolCallPart("1", "shell", {}), ToolResultPart("1", "x"), TextPart("Done.")
        ),
        final=True,
        tools=False,
    )
    assert [visible_text(blocks(page.markdown)) for page in found if isinstance(page, Text)] == [
        "Look:\n\nDone."
    ]


def test_tools_that_run_are_not_shown_yet_and_files_wait_for_the_end() -> None:
    answer = message(TextPart("One"), ToolCallPart("1", "shell", {}), FilePart("todo.txt", "milk"))
    assert said(*answer.parts, final=False) == ["One"]
    assert len(pages(answer, final=False)) == 1


def test_what_terminals_obey_is_left_out() -> None:
    shown = said(TextPart("\x1b[31mred\x1b[0m \x1b]8;;https://evil.example\x07link\x1b]8;;\x07\x00"))
    assert shown == ["red link"]


def test_a_notice_is_shown_as_one() -> None:
    parts = (TextPart("a failed. Answering with b instead.", "notice"), TextPart("so"))
    [page] = pages(message(*parts), final=True)
    assert isinstance(page, Text)
    assert page.markdown == "*a failed. Answering with b instead.*\n\nso"


def test_an_answer_without_content_is_said_to_be_one() -> None:
    assert pages(message(), final=False) == []
    (shown,) = pages(message(TextPart("hm", kind="reasoning"), TextPart("  ")), final=True)
    assert isinstance(shown, Text)
    assert shown.markdown == "_There was nothing to say._"


def test_a_long_answer_comes_as_a_file_too() -> None:
    text = "One sentence. " * 3000
    *shown, whole = pages(message(TextPart(text)), final=True, most=3)
    assert len(shown) == 3
    assert isinstance(whole, File)
    assert base64.b64decode(whole.data).decode() == text
    assert len(pages(message(TextPart(text)), final=False, most=3)) == 3


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("# Head\n\ntext", "Head\n\ntext"),
        ("a **b** _c_ ~~d~~ `e`", "a b c d e"),
        ("||a||", "||a||"),
        ("[here](https://a.example/x)", "here"),
        ("[https://bank.example](https://evil.example)", "https://bank.example (evil.example)"),
        ("![map](https://a.example/x.png)", "map (a.example)"),
        ("- one\n- two\n  - deep\n- three", "one\ntwo\ndeep\nthree"),
        ("> said", "said"),
        ("one\ntwo", "one\ntwo"),
    ],
)
def test_markdown_as_rich_text(markdown: str, shown: str) -> None:
    text = "\n".join("".join(texts_of_section(section)) for section in sections(blocks(markdown)[0]))
    assert text == shown


def sections(element: Any) -> Iterator[Any]:
    if element["type"] in ("rich_text", "rich_text_list"):
        for one in element["elements"]:
            yield from sections(one)
    else:
        yield element


def texts_of_section(section: Any) -> Iterator[str]:
    for element in section["elements"]:
        yield element.get("text", "")


def test_lists_continue_after_what_is_nested() -> None:
    elements: Any = blocks("3. one\n   - deep\n4. two")[0]["elements"]
    kinds = [(one["style"], one["indent"], one.get("offset", 0)) for one in elements]
    assert kinds == [("ordered", 0, 2), ("bullet", 1, 0), ("ordered", 0, 3)]


def test_content_that_a_list_cannot_hold_is_between_two_lists() -> None:
    item = "1. one\n\n   ```py\n   x = 1\n   y\n   ```\n   behind\n2. two\n   > said\n"
    item += "3. three\n   - deep\n\n     ```\n     z\n     ```\n   - [x] done\n4. four"
    elements: Any = blocks(item)[0]["elements"]
    shown = [
        (
            one["type"].removeprefix("rich_text_"),
            one.get("indent"),
            one.get("offset", 0),
            "|".join("".join(texts_of_section(section)) for section in sections(one)),
        )
        for one in elements
    ]
    assert shown == [
        ("list", 0, 0, "one"),
        ("preformatted", None, 0, "x = 1\ny"),
        ("section", None, 0, "behind"),
        ("list", 0, 1, "two"),
        ("quote", None, 0, "said"),
        ("list", 0, 2, "three"),
        ("list", 1, 0, "deep"),
        ("preformatted", None, 0, "z"),
        ("list", 1, 0, "☑ done"),
        ("list", 0, 3, "four"),
    ]


def test_a_table_is_in_a_monospaced_font() -> None:
    (element,) = blocks("| a | bb |\n|---|---:|\n| 1 | 2 |", {"table"})[0]["elements"]
    assert element["type"] == "rich_text_preformatted"
    assert element["elements"][0]["text"] == "a  bb\n─  ──\n1   2"


def raw(text: str) -> dict[str, str]:
    return {"type": "raw_text", "text": text}


def test_a_table_is_one_of_slack_where_it_stands() -> None:
    before, table, after = blocks(
        "See:\n\n| a | bb |\n|---|---:|\n| 1 | **2** [x](https://a.example) |\n| | 3 |\n\nso"
    )
    assert (before["type"], after["type"]) == ("rich_text", "rich_text")
    assert table["type"] == "table"
    assert [one["align"] for one in table["column_settings"]] == ["left", "right"]
    head, first, second = table["rows"]
    assert visible_text(head) == "a\nbb"
    assert all(cell["elements"][0]["elements"][0]["style"] == {"bold": True} for cell in head)
    assert first[0] == raw("1")
    assert first[1]["elements"][0]["elements"] == [
        {"type": "text", "text": "2", "style": {"bold": True}},
        {"type": "text", "text": " "},
        {"type": "link", "url": "https://a.example", "text": "x"},
    ]
    assert second == [raw(" "), raw("3")]
    assert not Inspection([before, table, after]).errors


def test_a_table_is_never_alone_as_slack_replaces_rich_text_by_rich_text_only() -> None:
    assert [block["type"] for block in blocks("| a |\n|---|\n| 1 |")] == ["rich_text", "table"]


@pytest.mark.parametrize(
    ("columns", "rows", "cell", "kinds"),
    [
        (20, 9, "x", ["rich_text", "table"]),
        (21, 1, "x", ["rich_text"]),
        (2, 99, "x", ["rich_text", "table"]),
        (2, 100, "x", ["rich_text"]),
        (1, 99, "x" * 100, ["rich_text", "table"]),
        (1, 99, "x" * 101, ["rich_text"]),
    ],
)
def test_a_table_over_the_limits_is_shown_in_letters_of_one_width(
    columns: int, rows: int, cell: str, kinds: list[str]
) -> None:
    lines = [[cell] * columns, ["---"] * columns, *([[cell] * columns] * rows)]
    found = blocks("\n".join(" | ".join(line) if columns > 1 else f"| {line[0]} |" for line in lines))
    assert [block["type"] for block in found] == kinds
    assert "|" not in visible_text(found[:1])
    assert not Inspection(found).errors


def test_a_message_has_one_table_and_shows_the_others_in_letters_of_one_width() -> None:
    table = "| a | b |\n|---|---|\n| 1 | 2 |"
    found = blocks(f"{table}\n\n{table}\n\n- x\n\n  {table.replace(chr(10), chr(10) + '  ')}\n- y")
    assert [block["type"] for block in found] == ["table", "rich_text"]
    kinds = [part["type"] for part in found[1]["elements"]]
    assert kinds == ["rich_text_preformatted", "rich_text_list", "rich_text_preformatted", "rich_text_list"]


def test_a_link_that_pretends_is_not_streamed() -> None:
    assert stream_text("[https://bank.example](https://evil.example)") is None
    assert stream_text("<https://evil.example|https://bank.example>") is None
    assert stream_text("![x](https://evil.example/x.png)") is None
    assert stream_text("[the bank](https://bank.example)") is not None


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("../../x", "x"),
        ("/etc/passwd", "passwd"),
        ("a\0b.txt", "a_b.txt"),
        ("C:\\x\\y.png", "y.png"),
        ("..", "file"),
        ("", "file"),
        ("n" * 300 + ".txt", "n" * 80 + ".txt"),
    ],
)
def test_names_of_files_are_safe(name: str, safe: str) -> None:
    assert safe_name(name) == safe


def test_measure_counts_bytes_where_they_are_many() -> None:
    assert render.measure("a" * 10) == 10
    assert render.measure("漢" * 10) == 12


@pytest.mark.parametrize("source", ["$a_1 * b_2*$", r"\(a^2\)", r"\[x_{i}\]", "$$\na\n- b\n# c\n$$"])
def test_a_formula_is_shown_as_it_was_written(source: str) -> None:
    (block,) = blocks(source)
    assert block["elements"] == [
        {"type": "rich_text_section", "elements": [{"type": "text", "text": source}]}
    ]
    assert stream_text(source) is None


def test_an_error_is_shown_as_it_was_said() -> None:
    words = "refused (401), see [a](http://b.c) \\(d\\) \\[e\\] $f$ 1) *g* _h_ `i` $$j$$"
    (page,) = [page for page in pages(message(ErrorPart("E", words)), final=True) if isinstance(page, Text)]
    assert notification_text(page.markdown) == f"⚠️ {words}"


DIFF = "--- a\n+++ a\n@@ -1,1 +1,1 @@\n-one\n+`1` @all"
EDIT: tuple[Part, ...] = (
    ToolCallPart("1", "edit", {"path": "a"}),
    ToolResultPart("1", f"Changed a (+1 -1)\n{DIFF}", "changed a (+1 -1)", display=DisplayHints(kind="diff")),
)


def test_an_answer_with_a_whole_patch_shows_it_once() -> None:
    patch = Attachment("text/x-diff", base64.b64encode(DIFF.encode()).decode(), "changes.patch")
    whole = ToolResultPart("1", DIFF, attachments=(patch,), display=DisplayHints(kind="diff"))
    found = pages(message(EDIT[0], whole, *EDIT, TextPart("Done.")), final=True)
    assert [page.name for page in found if isinstance(page, File)] == ["changes.patch"]


def test_the_diffs_of_an_answer_are_a_file_that_slack_folds() -> None:
    _, file = pages(message(*EDIT, *EDIT, TextPart("Done.")), final=True)
    assert isinstance(file, File)
    assert (file.name, base64.b64decode(file.data).decode()) == ("changes.diff", f"{DIFF}\n\n{DIFF}")
    assert len(pages(message(*EDIT, TextPart("Done.")), final=True, tools=False)) == 1
    assert len(pages(message(*EDIT, TextPart("Done.")), final=False)) == 1
