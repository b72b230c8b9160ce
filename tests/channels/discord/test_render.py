"""Answers as Discord's messages: every kind of part, every limit, and no pings."""

from __future__ import annotations

import base64
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.discord.files import MAX_FILE_BYTES, MAX_FILES, safe_name
from channels.discord.render import LIMIT, Page, Style, discord_markdown, pages
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
from gateway.markdown import parse_markdown
from tests.gateway.markdown.documents import work


def answer(*parts: Part) -> Message:
    return Message(session_id="s", role="assistant", parts=parts)


def shown(*parts: Part, final: bool = True, style: Style = Style()) -> list[Page]:  # noqa: B008 - frozen
    return pages(answer(*parts), style, final=final)


def test_all_six_parts_show() -> None:
    data = base64.b64encode(b"png").decode()
    [page] = shown(
        TextPart("hidden", kind="reasoning"),
        TextPart("**Look:**"),
        ToolCallPart("1", "shell", {"command": "ls -la"}),
        ToolResultPart("1", "long output", metadata=ResultMetadata(duration_ms=1234)),
        ToolCallPart("2", "search", {}),
        ToolResultPart("2", "no", is_error=True, attachments=(Attachment("text/csv", data, "../a.csv"),)),
        ErrorPart("RateLimitError", "slow down please"),
        ImagePart(data, "image/png", alt_text="a map"),
        FilePart("notes/todo.txt", "milk"),
        FilePart("elsewhere.bin"),
    )
    assert "hidden" not in page.text
    for words in ("**Look:**", "shell", "search", "⚠️ slow down please", "elsewhere.bin"):
        assert words in page.text
    assert len(page.files) == 3


def test_an_answer_without_content_says_why() -> None:
    stopped = Message(session_id="s", role="assistant", metadata=Metadata(stop_reason="cancelled"))
    assert [page.text for page in shown(TextPart(" "))] == ["_There was nothing to say._"]
    assert [page.text for page in pages(stopped, Style(), final=True)] == ["_Stopped._"]
    assert pages(stopped, Style(), final=False) == []


@pytest.mark.parametrize(
    ("markdown", "discord"),
    [
        ("plain", "plain"),
        ("**bold** *it* ~~no~~ `code`", "**bold** *it* ~~no~~ `code`"),
        ("# One\n\ntext", "# One\n\ntext"),
        ("##### Five", "**Five**"),
        ("- a\n- b\n  - c", "- a\n- b\n  - c"),
        ("3. a\n4. b", "3. a\n4. b"),
        ("- [x] done\n- [ ] open", "- ☑ done\n- ☐ open"),
        ("> quoted\n> more", "> quoted\n> more"),
        ("```py\nx = 1\n```", "```py\nx = 1\n```"),
        ("| a | b |\n|---|---|\n| 1 | 22 |", "```\na  b\n─  ──\n1  22\n```"),
        ("[here](https://example.org/a)", "[here](<https://example.org/a>)"),
        ("https://example.org", "<https://example.org>"),
        ("![plan](https://example.org/p.png)", "plan <https://example.org/p.png>"),
        ("a\n\n---\n\nb", "a\n\n───\n\nb"),
        ("snake_case and 2 * 3", "snake\\_case and 2 \\* 3"),
        ("||spoiler *b*||", "||spoiler *b*||"),
        ("a || b || c", "a \\|\\| b \\|\\| c"),
        ("<@123> <@&4> <#5> </a:6>", "\\<@123> \\<@&4> \\<#5> \\</a:6>"),
        ("@everyone @here", "@\u200beveryone @\u200bhere"),
        ("1\\. no list", "1\\. no list"),
        ("\\# no heading", "\\# no heading"),
    ],
)
def test_markdown_as_discord_shows_it(markdown: str, discord: str) -> None:
    assert discord_markdown(markdown) == discord


def test_a_link_whose_words_name_another_place_shows_the_real_one() -> None:
    assert "evil.example" in discord_markdown("[https://bank.example](https://evil.example/x)")
    assert "(evil.example)" in discord_markdown("[bank.example](https://evil.example/x)")


def test_a_fence_inside_code_does_not_end_it() -> None:
    written = discord_markdown("~~~\n```\n@everyone\n~~~")
    assert written.count("```") == 2


def test_a_tool_is_one_small_line() -> None:
    call = ToolCallPart("c", "shell", {"command": "ls -la"})
    assert shown(call, final=False) == [Page("-# 🔧 `shell` `ls -la` …")]
    done = ToolResultPart("c", "files", metadata=ResultMetadata(duration_ms=1234))
    assert shown(call, done, TextPart("There."))[0].text == "-# 🔧 `shell` `ls -la` ✓ 1.2 s\nThere."
    failed = ToolResultPart("c", "no", is_error=True)
    assert shown(call, failed)[0].text.endswith("✗")
    assert shown(call, done, TextPart("There."), style=Style(tools=False)) == [Page("There.")]


def test_reasoning_is_not_shown() -> None:
    assert shown(TextPart("hm", kind="reasoning"), TextPart("so")) == [Page("so")]


def test_an_error_is_plain() -> None:
    (page,) = shown(TextPart("Half"), ErrorPart("RateLimitError", "the backend wants us to *wait*"))
    assert page.text == "Half\n⚠️ the backend wants us to \\*wait\\*"


def test_pictures_and_files_hang_on_the_answer() -> None:
    parts = (
        TextPart("Look."),
        ImagePart("aGVsbG8=", "image/png", "a plan"),
        FilePart("src/../../../etc/notes.txt", "remember"),
        ToolResultPart("c", "x", attachments=(Attachment("text/csv", "YSxi", "t.csv"),)),
    )
    (page,) = shown(*parts)
    assert page.text == "Look."
    assert [(f.name, f.data) for f in page.files] == [
        ("a_plan.png", b"hello"),
        ("notes.txt", b"remember"),
        ("t.csv", b"a,b"),
    ]
    assert shown(*parts, final=False) == [Page("Look.")]


def test_files_that_cannot_be_sent_are_named() -> None:
    large = FilePart("large.txt", "x" * (MAX_FILE_BYTES + 1))
    (page,) = shown(TextPart("Look."), large, FilePart("only/named.txt"))
    assert not page.files
    assert "too large" in shown(large)[0].text
    assert "named.txt" in shown(FilePart("only/named.txt"))[0].text


def test_many_files_take_several_messages() -> None:
    made = shown(*(FilePart(f"{n}.txt", "x") for n in range(25)))
    assert [len(page.files) for page in made] == [10, 10, 5]


def test_an_answer_without_words_says_so() -> None:
    assert len(shown()) == 1
    assert shown(final=False) == []


def test_an_answer_that_is_too_long_becomes_a_file() -> None:
    text = "\n\n".join(f"{n} " + "word " * 300 for n in range(30))
    (page,) = shown(TextPart(text), style=Style(max_pages=3))
    assert len(page.text) <= LIMIT
    assert page.text.startswith("0 word")
    assert page.files[0].data.decode() == text
    assert len(shown(TextPart(text), style=Style(max_pages=3), final=False)) == 3


def test_what_is_shown_of_a_growing_answer_stays() -> None:
    text = "\n\n".join(f"Paragraph {n}. " + "word " * 80 for n in range(30))
    before: list[Page] = []
    for end in range(200, len(text), 400):
        now = shown(TextPart(text[:end]), final=False, style=Style(max_pages=50))
        assert now[: max(0, len(before) - 1)] == before[:-1]
        before = now


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\windows\\system.ini", "system.ini"),
        ("a\0b.txt", "ab.txt"),
        ("CON", "file_CON"),
        ("nul.txt", "file_nul.txt"),
        ("...", "file"),
        ("x" * 300, "x" * 100),
        ("näme größe.txt", "näme_größe.txt"),
    ],
)
def test_names_of_files_are_safe(name: str, safe: str) -> None:
    assert safe_name(name) == safe


def test_a_paragraph_is_written_once_however_often_a_page_is_measured() -> None:
    text = "\n\n".join(f"Ship **{number}** of `many`, *late*" for number in range(40))
    parse_markdown(text)
    first = work(lambda: discord_markdown(text))
    assert work(lambda: discord_markdown(f"{text}\n\nAnd *one* more")) < 0.7 * first


WORDS = st.one_of(
    st.text(max_size=200),
    st.sampled_from(["```\n", "~~~py\n", "@everyone ", "<@1>", "| a | b |\n|---|---|\n", "> ", "- ", "\n\n"]),
    st.sampled_from(["😀" * 400, "word " * 500, "x" * 2500, "_*`~|[](<", "# h\n", "[a](https://b.example)"]),
)
TEXTS = st.lists(WORDS, max_size=12).map("".join)
PARTS = st.one_of(
    TEXTS.map(TextPart),
    st.builds(ErrorPart, st.just("E"), TEXTS),
    st.builds(ToolCallPart, st.just("c"), TEXTS, st.dictionaries(st.text(max_size=5), TEXTS, max_size=2)),
    st.builds(ToolResultPart, st.just("c"), TEXTS, is_error=st.booleans()),
    st.builds(FilePart, TEXTS, st.one_of(st.none(), st.text(max_size=20))),
    st.builds(ImagePart, st.sampled_from(["aGVsbG8=", "no base64!"]), st.sampled_from(["image/png", "x/y"])),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(PARTS, max_size=6), st.booleans())
def test_every_limit_is_kept(parts: list[Part], final: bool) -> None:
    made = shown(*parts, final=final)
    assert made or not final
    for page in made:
        assert len(page.text) <= LIMIT
        assert page.text.strip() or page.files
        assert len(page.files) <= MAX_FILES
        outside = re.sub(r"```.*?```|``.*?``|`[^`\n]*`", "", page.text, flags=re.DOTALL)
        assert not re.search(r"@(everyone|here)", outside)
        assert not re.search(r"(?<!\\)<(@[!&]?|#)\d+>", outside)
    assert made == shown(*parts, final=final)


def test_a_notice_is_shown_as_one() -> None:
    assert shown(TextPart("a failed. Answering with b instead.", "notice"), TextPart("so")) == [
        Page("*a failed. Answering with b instead.*\n\nso")
    ]


@pytest.mark.parametrize("source", ["$a_1 * b_2*$", r"\(a^2\)", r"\[x_{i}\]", "$$\na\n- b\n# c\n$$"])
def test_a_formula_is_shown_as_it_was_written(source: str) -> None:
    # What Discord reads as markup is escaped; it shows the rest.
    assert re.sub(r"\\([\\`*_~|<\[\]#>+\-.)])", r"\1", discord_markdown(source)) == source


DIFF = "--- a\n+++ a\n@@ -1,1 +1,1 @@\n-one\n+`1` @all"
EDIT: tuple[Part, ...] = (
    ToolCallPart("1", "edit", {"path": "a"}),
    ToolResultPart("1", f"Changed a (+1 -1)\n{DIFF}", "changed a (+1 -1)", display=DisplayHints(kind="diff")),
)


def test_an_answer_with_a_whole_patch_shows_it_once() -> None:
    patch = Attachment("text/x-diff", base64.b64encode(DIFF.encode()).decode(), "changes.patch")
    whole = ToolResultPart("1", DIFF, attachments=(patch,), display=DisplayHints(kind="diff"))
    [page] = shown(EDIT[0], whole, *EDIT, TextPart("Done."))
    assert [file.name for file in page.files] == ["changes.patch"]


def test_the_diffs_of_an_answer_are_a_file_that_discord_folds() -> None:
    [page] = shown(*EDIT, *EDIT, TextPart("Done."))
    [file] = page.files
    assert (file.name, file.data.decode()) == ("changes.diff", f"{DIFF}\n\n{DIFF}")
    assert shown(*EDIT, TextPart("Done."), style=Style(tools=False)) == [Page("Done.")]
    assert not any(page.files for page in shown(*EDIT, TextPart("Do"), final=False))
