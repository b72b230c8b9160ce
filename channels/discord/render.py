"""Rendering of answers as Discord messages. Pure: equal answers make equal pages.

Discord shows headings up to the third level, lists, quotes, code and masked links, but no tables and no
images by URL. Text about users and chats stays text: nothing in it becomes a mention.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import assert_never

from msgspec import Struct

from channels.discord.files import MAX_FILE_BYTES, Upload, decoded, grouped, safe_name, upload_of
from gateway import ErrorPart, FilePart, ImagePart, Message, TextPart, ToolCallPart, ToolResultPart
from gateway.channel import diff_file, verb_of
from gateway.markdown import (
    Block,
    Break,
    Code,
    CodeBlock,
    Emphasis,
    Heading,
    Image,
    Inline,
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
    inline_text,
    parse_markdown,
    split_markdown,
    table_text,
)

LIMIT = 2000
"""Maximum length of a message, in code points."""
_LEAD = 600
"""A message up to this length takes the beginning of a next section that does not fit as a whole."""
_MAX_FLAT = 80
_MAX_ERROR = 500

_MARKUP = re.compile(r"([\\`*_~|<\[\]])")
_LEADS = re.compile(r"(?m)^(\s*[0-9]*)([#>+\-.)]+)(?=\s|$)|^(\s*)(-#|>>>)")
_EVERYONE = re.compile(r"@(?=everyone|here)", re.IGNORECASE)
_LANGUAGE = re.compile(r"[A-Za-z0-9+#_.\-]{1,32}")
_ZERO = "\u200b"
_FENCE = "```"


@lru_cache(maxsize=8)
def discord_markdown(text: str) -> str:
    """Convert Markdown to the Markdown that Discord shows."""
    # Cached because a piece is measured before it is used, and full pages recur while an answer grows.
    return "\n".join(_blocks(parse_markdown(text)))


def escaped(text: str) -> str:
    """Escape a text so that Discord shows it literally."""
    text = _MARKUP.sub(r"\\\1", text)
    text = _LEADS.sub(lambda m: f"{m[1] or m[3] or ''}\\{m[2] or m[4]}", text)
    return unpinged(text)


def unpinged(text: str) -> str:
    """Break @everyone and @here, so that they do not even look like a ping."""
    return _EVERYONE.sub(f"@{_ZERO}", text)


def fenced(text: str, language: str = "") -> str:
    """Return a code block. A fence inside it is broken up, because Discord has only one kind of fence."""
    inside = re.sub("``(?=`)", f"``{_ZERO}", text)
    if inside.endswith("`"):
        inside += _ZERO
    name = language if _LANGUAGE.fullmatch(language) else ""
    return f"{_FENCE}{name}\n{inside}\n{_FENCE}"


def code(text: str) -> str:
    """Return inline code."""
    if "`" not in text:
        return f"`{text}`" if text.strip() else text
    inside = re.sub("`(?=`)", f"`{_ZERO}", text)
    return f"`` {inside} ``"


def _blocks(blocks: Iterable[Block]) -> Iterator[str]:
    before: Block | None = None
    for block in blocks:
        # A list or a code block belongs to the heading before it, so no blank line separates them.
        if before is not None and not (
            isinstance(block, CodeBlock | ItemList) and isinstance(before, Heading)
        ):
            yield ""
        yield _block(block)
        before = block


def _block(block: Block) -> str:
    match block:
        case Paragraph(children):
            return _line(children)
        case Heading(level, children):
            words = " ".join(_line(children).splitlines())
            return f"{'#' * level} {words}" if level <= 3 else f"**{words}**"
        case CodeBlock(text, language):
            return fenced(text, language)
        case Quote(children):
            return "\n".join(f"> {line}" for line in "\n".join(_blocks(children)).split("\n"))
        case ItemList():
            return "\n".join(_items(block))
        case Table():
            return fenced(table_text(block))
        case Rule():
            return "───"
        case _:
            assert_never(block)


def _items(block: ItemList) -> Iterator[str]:
    for number, item in enumerate(block.items, block.start):
        mark = f"{number}. " if block.ordered else "- "
        task = {None: "", True: "☑ ", False: "☐ "}[item.checked]
        inside = task + "\n".join(map(_block, item.children) if block.tight else _blocks(item.children))
        yield mark + inside.replace("\n", "\n" + "  " * (2 if block.ordered else 1))


@lru_cache(maxsize=512)
def _line(inlines: tuple[Inline, ...]) -> str:
    # Cached because a paragraph is in many of the pieces that are measured before one is used.
    return "".join(map(_inline, inlines))


def _inline(inline: Inline) -> str:
    match inline:
        case Text(text):
            return escaped(text)
        case Code(text):
            return code(text)
        case Math(source):
            return "\n".join(map(escaped, source.split("\n")))
        case Break():
            return "\n"
        case Strong(children) | Emphasis(children) | Strike(children) | Spoiler(children):
            return _around(_MARKS[type(inline)], children)
        case Link():
            return _link(inline)
        case Image(alt, href):
            return f"{escaped(alt)} <{href}>" if alt else f"<{href}>"
        case _:
            assert_never(inline)


_MARKS: Mapping[type[Inline], str] = {Strong: "**", Emphasis: "*", Strike: "~~", Spoiler: "||"}


def _around(mark: str, children: tuple[Inline, ...]) -> str:
    inside = _line(children)
    return f"{mark}{inside}{mark}" if inside.strip() else inside


def _link(link: Link) -> str:
    """Return a link. If its label looks like another address, the real one follows it."""
    label = inline_text(link.children)
    address = link.href.replace(" ", "%20").replace("(", "%28").replace(")", "%29").replace(">", "%3E")
    if label in (link.href, link.host) or "://" in label:
        return f"<{address}>" if not link.shown_differs else f"{_unlinked(label)} (<{address}>)"
    shown = f"[{_line(link.children)}](<{address}>)"
    return f"{shown} ({escaped(link.host)})" if link.shown_differs else shown


def _unlinked(label: str) -> str:
    """Escape a label that looks like an address, so that Discord does not turn it into a link."""
    return escaped(label).replace("://", f":{_ZERO}//")


class Page(Struct, frozen=True):
    """One Discord message of an answer: its text and its files."""

    text: str
    files: tuple[Upload, ...] = ()

    @property
    def is_voice(self) -> bool:
        """Return whether it can be a voice message, which has one recording and nothing else."""
        return not self.text and len(self.files) == 1 and self.files[0].recording is not None


class Style(Struct, frozen=True):
    """Settings of rendering: the maximum number of messages per answer, and whether tool calls are shown."""

    max_pages: int = 6
    tools: bool = True


def pages(message: Message, style: Style, *, final: bool) -> list[Page]:
    """Return the messages of an answer; a preview has only text, and is empty while there is nothing to show.

    A final answer that is too long becomes its beginning, with the whole text as a file.
    """
    texts = list(islice(filter(str.strip, _texts(message, style)), style.max_pages + 1))
    if not final:
        return [Page(text) for text in texts[: style.max_pages]]
    uploads, note = _uploads(message)
    if style.tools and (diff := diff_file(message.parts)):
        # Discord folds the text of a file.
        uploads.append(Upload("changes.diff", diff.encode(errors="replace"), "text/x-diff; charset=utf-8"))
    if note and texts and len(texts[-1]) + len(note) < LIMIT:
        texts[-1] += f"\n{note}"
    elif note:
        texts.append(note)
    if len(texts) > style.max_pages:
        uploads = [Upload("answer.md", message.text.encode(errors="replace"), "text/markdown"), *uploads]
        texts = [_shortened(texts[0])]
    found = _with_files(texts, uploads)
    # Never nothing, also for a stopped answer: a command shows "… is thinking" until it is replaced.
    stopped = message.metadata.stop_reason == "cancelled"
    return found or [Page("_Stopped._" if stopped else "_There was nothing to say._")]


def _with_files(texts: Sequence[str], uploads: Sequence[Upload]) -> list[Page]:
    """Return pages with files: beside the text if it is one page, and a voice message always alone."""
    recordings = [Page("", (upload,)) for upload in uploads if upload.recording is not None]
    bundles = grouped(upload for upload in uploads if upload.recording is None)
    if len(texts) == 1 and len(bundles) == 1:
        return [Page(texts[0], bundles[0]), *recordings]
    return [*map(Page, texts), *(Page("", files) for files in bundles), *recordings]


def _texts(message: Message, style: Style) -> Iterator[str]:
    """Yield the text of each message. Short sections share a message with the next one."""
    page = ""
    for source, ready in _sections(message, style):
        space = LIMIT - len(page) - 2 if len(page) <= _LEAD else LIMIT
        pieces = (
            [source]
            if ready
            else map(discord_markdown, split_markdown(source, space, _measure, most=style.max_pages + 2))
        )
        for piece in pieces:
            joined = f"{page}{_between(page, ready)}{piece}"
            if page and len(joined) > LIMIT:
                yield page
                joined = piece
            page = joined
    if page:
        yield page


def _between(page: str, ready: bool) -> str:
    """Return the separator before a section: a blank line, except next to the lines of tool calls."""
    if not page:
        return ""
    return "\n" if ready or page.rpartition("\n")[2].startswith("-#") else "\n\n"


def _sections(message: Message, style: Style) -> Iterator[tuple[str, bool]]:
    """Yield each section of an answer, with True if it is Discord's Markdown already."""
    results = {part.tool_call_id: part for part in message.parts if isinstance(part, ToolResultPart)}
    for part in message.parts:
        match part:
            case TextPart(content, "notice"):
                yield f"*{content}*", False
            case TextPart(content, kind) if kind != "reasoning":
                yield content, False
            case ToolCallPart() if style.tools:
                yield _tool_line(part, results.get(part.tool_call_id)), True
            case ErrorPart(_, text):
                yield f"⚠️ {_short(text, _MAX_ERROR)}", True
            case TextPart() | ToolCallPart() | ToolResultPart() | ImagePart() | FilePart():
                pass  # not shown as text: reasoning, hidden tool calls; results are with their calls
            case _:
                assert_never(part)


def _measure(piece: str) -> int:
    return len(discord_markdown(piece))


def _tool_line(call: ToolCallPart, result: ToolResultPart | None) -> str:
    """Return a line in small print with a tool call, its outcome and its duration."""
    about = _first_argument(call.arguments)
    verb = verb_of(result)
    name = escaped(_flat(verb)) if verb else code(_flat(call.tool_name))
    line = f"-# 🔧 {name}{f' {code(about)}' if about else ''}"
    if result is None:
        return f"{line} …"
    took = None if result.metadata is None else result.metadata.duration_ms
    mark = "✗" if result.is_error else "✓"
    return f"{line} {mark}{'' if took is None else f' {_duration(took)}'}"


def _first_argument(arguments: Mapping[str, object]) -> str:
    value = next(iter(arguments.values()), "")
    return _flat(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def _flat(text: str) -> str:
    flat = unpinged(" ".join(text.split()))
    return flat if len(flat) <= _MAX_FLAT else flat[: _MAX_FLAT - 1] + "…"


def _short(text: str, most: int) -> str:
    flat = " ".join(text.split())
    return escaped(flat if len(flat) <= most else flat[: most - 1] + "…")


def _duration(ms: int) -> str:
    return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def _uploads(message: Message) -> tuple[list[Upload], str]:
    """Return the files of an answer, and a note with the names of those that cannot be sent."""
    uploads: list[Upload] = []
    notes: list[str] = []
    for name, upload in _files(message):
        if upload is None:
            notes.append(f"📄 {code(_flat(name))}")
        elif len(upload.data) > MAX_FILE_BYTES:
            notes.append(f"📄 {code(_flat(name))} is too large to be sent here.")
        else:
            uploads.append(upload)
    return uploads, "\n".join(notes)[:LIMIT]


def _files(message: Message) -> Iterator[tuple[str, Upload | None]]:
    for part in message.parts:
        match part:
            case FilePart():
                yield part.path, upload_of(part)
            case ImagePart():
                yield part.alt_text or "image", upload_of(part)
            case ToolResultPart():
                for attached in part.attachments:
                    name = safe_name(attached.name or part.title or "result")
                    yield name, decoded(attached.data, attached.mime_type, name)
            case TextPart() | ToolCallPart() | ErrorPart():
                pass
            case _:
                assert_never(part)


def _shortened(text: str) -> str:
    """Return the beginning of an answer, with a note that the whole answer is in the file."""
    note = "\n-# The whole answer is in the file."
    if len(text) + len(note) <= LIMIT:
        return text + note
    lines = text[: LIMIT - len(note) - 8].rpartition("\n")[0] or text[: LIMIT - len(note) - 8]
    return lines + ("\n```" if lines.count("```") % 2 else "") + note
