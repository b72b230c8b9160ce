"""Answers as the content of events."""

from __future__ import annotations

import base64

import pytest

from channels.matrix.render import PAGE_BYTES, Text, body_of, measure, pages_of
from gateway import (
    Attachment,
    ErrorPart,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from gateway.channel import AnswerFile


def answer(*parts: Part) -> Message:
    return Message(id="m1", session_id="s", role="assistant", parts=parts)


@pytest.mark.parametrize(
    ("markdown", "html"),
    [
        ("||a||", "<p><span data-mx-spoiler>a</span></p>"),
        ("**a** _b_ ~~c~~ `d<`", "<p><strong>a</strong> <em>b</em> <del>c</del> <code>d&lt;</code></p>"),
        ("# T", "<h1>T</h1>"),
        ("```py\nx<y\n```", '<pre><code class="language-py">x&lt;y\n</code></pre>'),
        ("> q", "<blockquote><p>q</p></blockquote>"),
        ("3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'),
        ("- [x] a\n  - b", "<ul><li>☑ a<ul><li>b</li></ul></li></ul>"),
        ("|a|b|\n|-|-|\n|1|2|", "<table><thead><tr><th>a</th><th>b</th></tr></thead>"
         "<tbody><tr><td>1</td><td>2</td></tr></tbody></table>"),
        ("---", "<hr>"),
        ("[x](https://a.org/?\"b)", '<p><a href="https://a.org/?%22b">x</a></p>'),
        ("[b.org](https://a.org)", '<p><a href="https://a.org">b.org</a> (a.org)</p>'),
        ("![p](https://a.org/p.png)", '<p><a href="https://a.org/p.png">p</a></p>'),
        ("<script>alert(1)</script>", "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>"),
        ("$x^2$", '<p><span data-mx-maths="x^2"><code>$x^2$</code></span></p>'),
    ],
)  # fmt: skip
def test_markdown_becomes_html_of_the_tags_that_clients_show(markdown: str, html: str) -> None:
    assert body_of(markdown)["formatted_body"] == html


def test_an_answer_mentions_no_user() -> None:
    assert body_of("@room and @ada:example.org")["m.mentions"] == {}


def test_all_six_parts_show() -> None:
    data = base64.b64encode(b"GIF89a").decode()
    parts = (
        TextPart("hello"),
        TextPart("hidden", kind="reasoning"),
        ToolCallPart("c1", "weather", {"city": "Oslo"}),
        ToolResultPart("c1", "rain", attachments=(Attachment("text/csv", data, "a/b.csv"),)),
        ErrorPart("ProviderError", "it broke"),
        ImagePart(data, "image/gif"),
        FilePart("notes.txt", "text"),
        FilePart("seen.txt"),
    )
    text, *files = pages_of(answer(*parts), final=True)
    assert isinstance(text, Text)
    assert text.markdown.split("\n\n") == [
        "hello", '✅ `weather {"city": "Oslo"}`', "⚠️ it broke", "📎 `seen.txt`",
    ]  # fmt: skip
    assert [(one.name, one.mime_type) for one in files if isinstance(one, AnswerFile)] == [
        ("b.csv", "text/csv"), ("image-6.gif", "image/gif"), ("notes.txt", "text/plain"),
    ]  # fmt: skip
    assert len(pages_of(answer(*parts), final=False)) == 1
    assert "weather" not in str(pages_of(answer(*parts), final=True, tools=False)[0])


def test_an_answer_without_content_is_said_to_be_one() -> None:
    assert pages_of(answer(TextPart("  ")), final=False) == []
    assert pages_of(answer(TextPart("  ")), final=True) == [Text("_There was nothing to say._")]


def test_each_page_fits_into_an_event() -> None:
    pages = pages_of(answer(TextPart("*ü* <&> | " * 20_000)), final=True)
    texts = [page for page in pages if isinstance(page, Text)]
    assert len(texts) > 1
    assert all(measure(page.markdown) <= PAGE_BYTES for page in texts)
