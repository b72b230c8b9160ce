"""Rendering of answers, compared with the platform's own processing of texts and its limits."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from channels.telegram.fake import problems
from channels.telegram.fake import text as platform
from channels.telegram.fake.messages import rich_content
from channels.telegram.pictures import picture_type, safe_name
from channels.telegram.render import (
    MAX_FILE,
    FilePage,
    Page,
    TextPage,
    album_size,
    code,
    copyable,
    pages_of,
    styled,
    utf16,
)
from gateway import (
    Attachment,
    DisplayHints,
    ErrorPart,
    FilePart,
    ImagePart,
    Message,
    Metadata,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from gateway.contract.messages import ResultMetadata
from tests.channels.telegram.pictures import png


def answer(*parts: Part, stop: str | None = "end_turn") -> Message:
    return Message(session_id="s", role="assistant", parts=parts, metadata=Metadata(stop_reason=stop))


def only(*parts: Part) -> Page:
    [page] = pages_of(answer(*parts), final=True)
    return page


def marked(markdown: str) -> list[tuple[str, str]]:
    """Return the entities of a text with the words that they cover."""
    shown = styled(markdown)
    return [(entity["type"], under(shown.text, entity)) for entity in shown.entities]


def under(text: str, entity: Mapping[str, Any]) -> str:
    units = text.encode("utf-16-le")
    return units[2 * entity["offset"] : 2 * (entity["offset"] + entity["length"])].decode("utf-16-le")


def test_all_six_parts_show() -> None:
    data = base64.b64encode(png()).decode()
    said = (
        TextPart("hidden", kind="reasoning"),
        TextPart("**Look:**"),
        ToolCallPart("1", "shell", {"command": "ls -la"}),
        ToolResultPart("1", "long output", metadata=ResultMetadata(duration_ms=1234)),
        ToolCallPart("2", "search", {}),
        ToolResultPart("2", "no", is_error=True, attachments=(Attachment("image/png", data, "a.png"),)),
        ErrorPart("RateLimitError", "slow *down*\nplease"),
        ImagePart(data, "image/png", alt_text="a map"),
        FilePart("notes/todo.txt", "milk"),
        FilePart("elsewhere.bin"),
    )
    assert outline(*said) == [
        "Look:\n\n✓ shell ls -la · 1.2 s\n✗ search",
        "a.png",
        "⚠️ slow *down* please\n\n📄 elsewhere.bin",
        "a map.png",
        "todo.txt",
    ]


def outline(*parts: Part, final: bool = True, tools: bool = True) -> list[str]:
    """Return the texts of an answer and the names of its files, in order."""
    pages = pages_of(answer(*parts), final=final, tools=tools, most=3)
    return [page.name if isinstance(page, FilePage) else page.text for page in pages]


PICTURE = base64.b64encode(png()).decode()


def painted(call: str) -> tuple[Part, Part]:
    return ToolCallPart(call, "paint", {}), ToolResultPart(
        call, "", attachments=(Attachment("image/png", PICTURE, f"{call}.png"),)
    )


def test_files_are_between_the_texts_around_them() -> None:
    said = (TextPart("one"), *painted("a"), *painted("b"), TextPart("two"), *painted("c"), TextPart("three"))
    tools = "✓ paint\n✓ paint"
    assert outline(*said) == [f"one\n\n{tools}", "a.png", "b.png", "two\n\n✓ paint", "c.png", "three"]
    assert outline(*said, tools=False) == ["one", "a.png", "b.png", "two", "c.png", "three"]


def test_files_are_shown_when_text_follows_them() -> None:
    """Until then more files may follow, and belong to the same album."""
    said: list[Part] = [TextPart("one"), *painted("a")]
    assert outline(*said, final=False) == ["one\n\n✓ paint"]
    assert outline(*said, *painted("b"), final=False) == ["one\n\n✓ paint\n✓ paint"]
    assert outline(*said, TextPart("t"), final=False) == ["one\n\n✓ paint", "a.png", "t"]
    assert outline(*said, TextPart("\u200b"), final=False) == ["one\n\n✓ paint"]


def test_files_of_one_kind_are_albums() -> None:
    text, picture = TextPage("x"), FilePage("photo", "a", b"1")
    note, song, voice = (FilePage(kind, "a", b"1") for kind in ("document", "audio", "voice"))
    assert album_size([picture, picture, note]) == 2
    assert album_size([picture, text, picture]) == 1
    assert album_size([note, note, note]) == 3
    assert album_size([song, song, voice]) == 2
    assert album_size([voice, voice]) == 1
    assert album_size([text, picture]) == 1
    assert album_size([picture] * 12) == 10
    half = FilePage("document", "a", b"1" * (MAX_FILE // 2))
    assert album_size([half, half, half]) == 2


def test_the_most_texts_are_those_of_the_whole_answer() -> None:
    said = [TextPart("one"), *painted("a"), TextPart("two"), *painted("b"), TextPart("word " * 2_000)]
    *texts, whole = pages_of(answer(*said, *painted("c"), TextPart("end")), final=True, most=3)
    kinds = ["text" if isinstance(page, TextPage) else page.name for page in texts]
    assert kinds == ["text", "a.png", "text", "b.png", "text", "c.png"]
    assert isinstance(whole, FilePage)
    assert whole.name == "answer.md"
    assert whole.data.decode().split()[0::2_000][:2] == ["one", "word"]
    assert whole.data.endswith(b"\n\nend")


def test_tools_can_be_hidden() -> None:
    said = (TextPart("Look:"), ToolCallPart("1", "shell", {}), ToolResultPart("1", "x"), TextPart("Done."))
    [page] = pages_of(answer(*said), final=True, tools=False)
    assert isinstance(page, TextPage)
    assert page.text == "Look:\n\nDone."


def test_markdown_becomes_entities_counted_in_units_of_two_bytes() -> None:
    text = "😀 **bold _both_** ~~gone~~ ||secret|| `code` [here](https://example.org/)"
    assert styled(text).text == "😀 bold both gone secret code here"
    assert marked(text) == [
        ("bold", "bold both"),
        ("italic", "both"),
        ("strikethrough", "gone"),
        ("spoiler", "secret"),
        ("code", "code"),
        ("text_link", "here"),
    ]
    assert styled(text).entities[0]["offset"] == 3


def test_blocks_are_apart() -> None:
    shown = styled(
        "# Title\n\n- a\n- [x] b\n  1. c\n\n> said\n\n```py\nx = 1\n```\n\n---\n\n|a|b|\n|-|-|\n|1|2|"
    )
    assert shown.text == "Title\n\n• a\n• ☑ b\n   1. c\n\nsaid\n\nx = 1\n\n———\n\na  b\n─  ─\n1  2"
    assert [entity["type"] for entity in shown.entities] == ["bold", "blockquote", "pre", "pre"]
    assert shown.entities[2]["language"] == "py"


def test_code_in_a_list_follows_its_item_directly() -> None:
    for gap in ("\n", "\n\n"):
        shown = styled(f"1. a{gap}   ```py\n   x = 1\n   ```\n   - b{gap}     |c|\n     |-|\n2. d")
        text = shown.text.replace("\n\n", "\n")
        assert text == "1. a\nx = 1\n    • b\nc\n─\n2. d"
        assert [under(shown.text, entity) for entity in shown.entities] == ["x = 1", "c\n─"]
        assert "a\nx = 1" in shown.text
        assert "b\nc" in shown.text


MARKDOWN = st.lists(
    st.one_of(
        st.text(max_size=200),
        st.sampled_from(
            [
                "**", "_", "`", "```\n", "~~", "[a](http://b.c)", "\n\n", "\n- ", "\n1. ", "\n> ", "# ",
                "[a](http://localhost:8080/)", "[a](http://0/@)", "[a](https://a.b:99999)", "[a](https://[::1]/x)",
                "|a|b|\n|-|-|\n|1|2|\n", "@ada", ".@adam", "/@adam", "@@adam", "http://localhost/@adam",
                "(@adam_)", "\u00e9@adam", "😀" * 50, "word " * 400, "\u202e", "\u200b", "\ud800", "\0",
                "\r\n", "\t", "http://b.c/@adam", "https://", "[](", ")",
                "**b** " * 150, "x" * 5000,
            ]
        ),
    ),
    max_size=12,
).map("".join)  # fmt: skip

RICH = """# Sizes

|*a*|b|
|:-|-:|
|[x](https://example.org/) @ada|`c`|

1. one
   - [x] two

> said

```py
1
```
---
"""


def test_headings_and_tables_are_also_blocks_of_a_rich_message() -> None:
    page = only(TextPart(RICH))
    assert isinstance(page, TextPage)
    heading, table, ordered, quote, code_block, rule = page.blocks
    assert heading == {"type": "heading", "text": "Sizes", "size": 1}
    head, row = table["cells"]
    assert [cell.get("is_header") for cell in head] == [True, True]
    assert [(cell["align"], cell["valign"]) for cell in row] == [("left", "top"), ("right", "top")]
    assert row[0]["text"] == [{"type": "url", "text": "x", "url": "https://example.org/"}, " @ada"]
    assert row[1]["text"] == {"type": "code", "text": "c"}
    [item] = ordered["items"]
    assert (item["value"], item["type"]) == (1, "1")
    assert item["blocks"][1]["items"][0]["is_checked"]
    assert quote["blocks"] == [{"type": "paragraph", "text": "said"}]
    assert code_block == {"type": "pre", "text": "1", "language": "py"}
    assert rule == {"type": "divider"}
    assert problems("InputRichMessage", {"blocks": [*page.blocks]}) == []


def test_a_text_without_headings_and_tables_is_not_a_rich_message() -> None:
    page = only(TextPart("**a** `b`\n\n- c\n\n> d"))
    assert isinstance(page, TextPage)
    assert page.blocks == ()


@pytest.mark.parametrize(
    "source",
    ["|a" * 21 + "|\n" + "|-" * 21 + "|", "# a\n" + "- b\n" * 500, "# a\n\n" + "> " * 17 + "b"],
)
def test_what_a_rich_message_cannot_hold_is_a_text(source: str) -> None:
    assert styled(source).text
    assert styled(source).blocks == ()


@settings(deadline=None)
@given(st.sampled_from(["# a\n\n", "|a|b|\n|-|-|\n|1|2|\n\n"]), MARKDOWN)
def test_every_rich_message_is_what_the_platform_takes(lead: str, text: str) -> None:
    blocks = [*styled(lead + text).blocks]
    if blocks:
        assert problems("InputRichMessage", {"blocks": blocks}) == []
        rich_content({"blocks": blocks})


def test_styles_do_not_cross_code() -> None:
    assert marked("**a `b` c**") == [("bold", "a "), ("code", "b"), ("bold", " c")]


def test_addresses_that_the_platform_refuses_are_words() -> None:
    shown = styled("[here](http://localhost:8080/) and [there](https://xn--e1afmkfd.xn--p1ai/x?y#z)")
    assert shown.text == "here (http://localhost:8080/) and there"
    assert [entity["url"] for entity in shown.entities] == ["https://xn--e1afmkfd.xn--p1ai/x?y#z"]


def test_mentions_notify_no_user() -> None:
    shown = styled("@ada @all [ada](tg://user?id=5) `@ada` a@example.org")
    found = platform.styled(shown.text, "", [dict(entity) for entity in shown.entities])
    kinds = {entity["type"] for entity in found.entities}
    assert "mention" not in kinds
    assert "text_mention" not in kinds
    assert not any("user" in str(entity.get("url")) for entity in shown.entities)


def test_a_page_for_a_private_chat_has_no_invisible_marks() -> None:
    source = "😀 @ada **@bob _and_ @cyd** [see @dan](https://example.org/) `@eve` @@fay"
    page = only(TextPart(source))
    assert isinstance(page, TextPage)
    shown = copyable(page)
    assert shown.text == "😀 @ada @bob and @cyd see @dan @eve @@fay"
    assert [(one["type"], under(shown.text, one)) for one in shown.entities] == [
        ("bold", "@bob and @cyd"),
        ("italic", "and"),
        ("text_link", "see @dan"),
        ("code", "@eve"),
    ]
    assert copyable(shown) is shown
    [picture] = pages_of(answer(ImagePart(PICTURE, "image/png", "of @ada")), final=True)
    assert isinstance(picture, FilePage)
    assert picture.caption == "of @\u2060ada"
    assert copyable(picture).caption == "of @ada"


def test_a_link_that_reads_like_another_place_shows_where_it_leads() -> None:
    assert "evil.example" in styled("[https://bank.example](https://evil.example/x)").text


def test_each_tool_has_a_line() -> None:
    parts: list[Part] = [
        ToolCallPart("1", "shell", {"command": "ls *.py"}),
        ToolResultPart("1", "many\nlines", metadata=ResultMetadata(duration_ms=340)),
        ToolCallPart("2", "read_file", {"path": "`x`"}),
        ToolResultPart("2", "no such file", is_error=True),
        ToolCallPart("3", "wait", {}),
    ]
    [so_far] = pages_of(answer(*parts), final=False)
    assert isinstance(so_far, TextPage)
    assert so_far.text == "✓ shell ls *.py · 0.3 s\n✗ read_file `x`\n⏳ wait"
    final = only(*parts, TextPart("Done."))
    assert isinstance(final, TextPage)
    assert final.text.endswith("✗ wait\n\nDone.")


def test_a_notice_is_shown_as_one() -> None:
    page = only(TextPart("a failed. Answering with b instead.", "notice"), TextPart("so"))
    assert isinstance(page, TextPage)
    assert page.text == "a failed. Answering with b instead.\n\nso"
    assert [entity["type"] for entity in page.entities] == ["italic"]


def test_reasoning_is_not_shown_and_errors_are_short_and_plain() -> None:
    page = only(TextPart("hm", "reasoning"), ErrorPart("X", "it *broke* " + "x" * 999))
    assert isinstance(page, TextPage)
    assert page.text.startswith("⚠️ it *broke* xxx")
    assert len(page.text) < 310
    assert page.entities == ()


def test_pictures_and_files_are_uploads() -> None:
    picture = base64.b64encode(png()).decode()
    pages = pages_of(
        answer(
            TextPart("Look:"),
            ImagePart(picture, "image/png", "a cat"),
            FilePart("a/b/notes.md", "# Notes"),
            FilePart("a/b/only-named.md"),
            ToolResultPart("1", "", attachments=(Attachment("text/plain", "aGk=", "../hi.txt"),)),
        ),
        final=True,
    )
    assert isinstance(pages[0], TextPage)
    assert pages[0].text == "Look:\n\n📄 a/b/only-named.md"
    assert pages[1:] == [
        FilePage("photo", "a cat.png", png(), "a cat"),
        FilePage("document", "notes.md", b"# Notes"),
        FilePage("document", "hi.txt", b"hi"),
    ]


def test_a_picture_that_is_none_is_sent_as_a_file_and_rubbish_is_not_sent() -> None:
    page = only(ImagePart(base64.b64encode(b"no picture").decode(), "image/png"))
    assert isinstance(page, FilePage)
    assert page.kind == "document"
    assert len(pages_of(answer(TextPart("x"), ImagePart("!!!", "image/png")), final=True)) == 1


@pytest.mark.parametrize("size", [(1, 1), (9_999, 2), (6_000, 6_000), (1, 30)])
def test_only_pictures_of_sizes_that_are_taken_are_photos(size: tuple[int, int]) -> None:
    header = png(1, 1)[:16] + size[0].to_bytes(4, "big") + size[1].to_bytes(4, "big") + png(1, 1)[24:]
    page = only(ImagePart(base64.b64encode(header).decode(), "image/png"))
    assert isinstance(page, FilePage)
    assert (page.kind == "photo") is (size == (1, 1))


def test_orders_to_terminals_are_left_out() -> None:
    page = only(
        TextPart(
            "\x1b[1;31mred\x1b[0m \x1b]8;;http://evil.example\x07link\x1b]8;;\x1b\\ \x1bPq#0\x1b\\end\x1b"
        )
    )
    assert isinstance(page, TextPage)
    assert page.text == "red link end"


def test_nothing_to_say_is_said_unless_it_was_stopped() -> None:
    assert pages_of(answer(), final=False) == []
    assert [page.text for page in pages_of(answer(), final=True) if isinstance(page, TextPage)] == [
        "(There was nothing to say.)"
    ]
    assert pages_of(answer(stop="cancelled"), final=True) == []


def test_an_open_fence_ends_with_its_part() -> None:
    page = only(TextPart("```py\nx = 1"), ToolCallPart("1", "shell", {}), TextPart("**then**"))
    assert isinstance(page, TextPage)
    assert [entity["type"] for entity in page.entities] == ["pre", "code", "bold"]


def test_a_growing_answer_keeps_the_pages_that_are_full() -> None:
    words = " ".join(f"word{number}" for number in range(1500))
    before = pages_of(answer(TextPart(words[:9000])), final=False)
    after = pages_of(answer(TextPart(words)), final=True)
    assert after[: len(before) - 1] == before[:-1]


@pytest.mark.parametrize(
    "given",
    [
        "../../x",
        "/etc/passwd",
        "C:\\a\\b.txt",
        "a\0b",
        "CON",
        "con.txt",
        "x" * 300,
        "",
        "..",
        "\u202egpj.exe",
        " . ",
    ],
)
def test_names_of_files_are_harmless(given: str) -> None:
    name = safe_name(given)
    assert name
    assert not set(name) & set("/\\\0\u202e")
    assert len(name) <= 100
    assert name.split(".")[0].lower() != "con"
    assert not name.startswith(".")


def test_types_of_pictures_are_detected_from_their_bytes() -> None:
    assert picture_type(png()) == "image/png"
    assert picture_type(b"RIFF1234WEBPxx") == "image/webp"
    assert picture_type(b"<svg>") is None


@settings(deadline=None)
@given(MARKDOWN, st.booleans())
def test_every_page_is_what_the_platform_takes(text: str, final: bool) -> None:
    for page in pages_of(answer(TextPart(text)), final=final, most=50):
        if isinstance(page, FilePage):
            continue
        assert 1 <= len(page.text) <= platform.MAX_TEXT
        assert len(page.entities) <= platform.MAX_ENTITIES
        entities = [dict(entity) for entity in page.entities]
        kept = platform.styled(page.text, "", entities)
        assert kept.text == page.text
        assert not any(entity["type"] in ("mention", "text_mention") for entity in kept.entities)
        end = utf16(page.text)
        for entity in entities:
            assert entity["length"] > 0
            assert 0 <= entity["offset"] <= end - entity["length"]
            under(page.text, entity).encode()


@settings(deadline=None)
@given(st.sampled_from(["http", "https"]), st.text(max_size=40))
def test_a_link_of_any_address_is_taken(scheme: str, rest: str) -> None:
    shown = styled(f"[here](<{scheme}://{rest}>) {scheme}://{rest}")
    platform.styled(shown.text, "", [dict(entity) for entity in shown.entities])


@settings(deadline=None)
@given(st.text())
def test_code_shows_any_text(text: str) -> None:
    shown = styled(code(text))
    words = " ".join(text.split()).translate(dict.fromkeys(range(0xD800, 0xE000)))
    if words and not any(ord(c) < 32 or 0x2028 <= ord(c) <= 0x202E or ord(c) == 127 for c in words):
        assert shown.text.strip() == words.strip()


@pytest.mark.parametrize("source", ["$a_1 * b_2*$", r"\(a^2\)", r"\[x_{i}\]", "$$\na\n- b\n# c\n$$"])
def test_a_formula_is_shown_as_it_was_written(source: str) -> None:
    page = only(TextPart(source))
    assert (page.text, list(page.entities)) == (source, [])


def test_an_error_is_shown_as_it_was_said() -> None:
    words = "refused (401), see [a](http://b.c) \\(d\\) \\[e\\] $f$ 1) *g* _h_ `i` $$j$$"
    assert only(ErrorPart("E", words)).text == f"⚠️ {words}"


DIFF = "--- a\n+++ a\n@@ -1,1 +1,1 @@\n-one\n+`1` @all"
EDIT: tuple[Part, ...] = (
    ToolCallPart("1", "edit", {"path": "a"}),
    ToolResultPart("1", f"Changed a (+1 -1)\n{DIFF}", "changed a (+1 -1)", display=DisplayHints(kind="diff")),
)


def test_a_diff_is_a_folded_quote_after_its_tool() -> None:
    said = (*EDIT, TextPart("Done."))
    [page] = pages_of(answer(*said), final=True)
    assert isinstance(page, TextPage)
    inert = DIFF.replace("@all", "@\u2060all")
    [folded] = [entity for entity in page.entities if entity["type"] == "expandable_blockquote"]
    assert under(page.text, folded).replace("@\u2060", "@") == inert.replace("@\u2060", "@")
    assert not [entity for entity in page.entities if entity["type"] == "pre"]
    assert page.text.startswith("✓ changed a (+1 -1) a\n\n---")
    assert page.text.endswith("\n\nDone.")
    assert outline(*said, tools=False) == ["Done."]


def test_a_long_diff_is_cut_and_a_failed_call_has_none() -> None:
    call, result = EDIT
    assert isinstance(result, ToolResultPart)
    long = structs.replace(result, output=DIFF + "\n+x" * 5_000)
    [page] = pages_of(answer(call, long), final=True)
    assert isinstance(page, TextPage)
    assert len(page.text) < 2_000
    assert page.text.endswith(f"… ({len(long.output):,} characters)")
    assert outline(call, structs.replace(result, is_error=True)) == ["✗ changed a (+1 -1) a"]
