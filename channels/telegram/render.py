"""Rendering of answers as Telegram messages: texts with entities, pictures, files. Pure.

Texts use entities, without a parse mode. Offsets and lengths of entities count UTF-16 units; the limits of
texts count code points.
"""

from __future__ import annotations

import base64
import binascii
import math
import mimetypes
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeVar, assert_never

from msgspec import Struct
from msgspec.structs import replace

from channels.telegram.pictures import is_photo, safe_name
from gateway import ErrorPart, FilePart, ImagePart, Message, Part, TextPart, ToolCallPart, ToolResultPart
from gateway.channel import diff_of, picture_type, recording_of, verb_of
from gateway.markdown import (
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
    inline_text,
    parse_markdown,
    split_markdown,
    table_text,
)

Entity = Mapping[str, Any]

MAX_TEXT = 4096
MAX_CAPTION = 1024
MAX_ENTITIES = 100
MAX_FILE = 50 * 1024 * 1024
QUESTION, ASKED, ANSWERED = "May I use", "❓ ", "✓ Answered"
OUTCOMES: Mapping[str, str] = {
    "once": "✓ Allowed once",
    "always": "✓ Always allowed",
    "deny": "✗ Denied",
    "timeout": "⌛ Not allowed: no answer in time",
    "cancelled": "✗ No longer asked",
}
"""First words of messages that are outcomes of questions; with ``QUESTION``, ``ASKED`` and ``ANSWERED`` they
distinguish questions from answers."""

_MAX_IN_ALBUM = 10
_MAX_ARGUMENT = 60
_MAX_ERROR = 300
_MAX_DIFF = 1_500
_VOICE_TYPES = ("audio/mpeg", "audio/mp3", "audio/mp4", "audio/m4a", "audio/x-m4a")
"""Audio types sent as voice messages, in addition to Opus in an Ogg file."""
_FULL_ANSWER = "answer.md"
_EMPTY_ANSWER = "(There was nothing to say.)"
# Not the opening brackets: a backslash before them begins a formula.
_SPECIAL = re.compile(r"([\\`*_{}\])#+.!~|<>&$-])")
_TERMINAL = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\|$)|[PX^_][^\x1b]*(?:\x1b\\|$)|.?)"
)
"""Terminal escape sequences: colours, titles, links."""
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


def is_question(text: str) -> bool:
    """Return whether a message of the bot is a question or shows its outcome."""
    return text.startswith((QUESTION, ASKED, ANSWERED, *OUTCOMES.values()))


class TextPage(Struct, frozen=True):
    """A text message. ``blocks`` are its content as a rich message, if it has headings or tables."""

    text: str
    entities: tuple[Entity, ...] = ()
    blocks: tuple[Mapping[str, Any], ...] = ()


class FilePage(Struct, frozen=True):
    """A message with a file: ``photo`` is shown as a picture, ``voice`` and ``audio`` can be played.

    ``seconds`` is the duration, if known.
    """

    kind: Literal["photo", "voice", "audio", "document"]
    name: str
    data: bytes
    caption: str = ""
    seconds: float | None = None


Page = TextPage | FilePage
P = TypeVar("P", TextPage, FilePage, Page)


def pages_of(message: Message, *, final: bool, most: int = 6, tools: bool = True) -> list[Page]:
    """Render a complete or partial message as Telegram messages: texts, and between them their files.

    A partial message ends with a text, because more files may follow the last ones. ``most`` limits the text
    messages; a longer answer is also attached as a file. ``tools`` shows which tools were used.
    """
    pages: list[Page] = []
    sources: list[str] = []
    left = most
    for section in _sections(message, final, tools):
        source = section.markdown
        pieces = _split(source, max(left, 0) + 1)
        pages += [page for piece in pieces[: max(left, 0)] if (page := _text_page(piece)) is not None]
        pages += section.files
        sources += [source] if source else []
        left -= len(pieces)
    if not final:
        while pages and isinstance(pages[-1], FilePage):
            pages.pop()
        return pages
    if left < 0:
        whole = "\n\n".join(sources).encode(errors="replace")
        pages.append(FilePage("document", _FULL_ANSWER, whole, "The whole answer."))
    if not pages and message.metadata.stop_reason != "cancelled":
        pages.append(TextPage(_EMPTY_ANSWER))
    return pages


def album_size(pages: Sequence[Page]) -> int:
    """Return how many of these pages, from the first one on, Telegram takes as one album."""
    first, size, total = pages[0], 0, 0
    if isinstance(first, TextPage) or first.kind == "voice":
        return 1
    for page in pages[:_MAX_IN_ALBUM]:
        if isinstance(page, TextPage) or page.kind != first.kind:
            break
        total += len(page.data)
        if total > MAX_FILE:
            break
        size += 1
    return size


def code(text: str) -> str:
    """Return a short text as Markdown inline code, whichever backticks it contains."""
    words = " ".join(text.split()) or " "
    longest = max(map(len, re.findall(r"`+", words)), default=0)
    fence = "`" * (longest + 1)
    space = " " if "`" in words else ""
    return f"{fence}{space}{words}{space}{fence}"


def plain(text: str) -> str:
    """Escape a text for Markdown, so that it is shown literally."""
    return _SPECIAL.sub(r"\\\1", text)


def cut(text: str, most: int) -> str:
    """Shorten a text to at most ``most`` code points."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


class _Section:
    """A piece of an answer: its readable content, and the files that follow it."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._ends_with_tools = False
        self.files: list[FilePage] = []

    @property
    def markdown(self) -> str:
        """Return the content as Markdown."""
        said = (_TERMINAL.sub("", piece) for piece in self._pieces)
        return "\n\n".join(_close_fence(piece) for piece in said if piece.strip())

    def add(self, piece: str, *, tool: bool = False) -> None:
        """Add Markdown; the lines of consecutive tool calls form one piece."""
        if tool and self._ends_with_tools:
            self._pieces[-1] += f"\n{piece}"
        else:
            self._pieces.append(piece)
        self._ends_with_tools = tool


def _sections(message: Message, final: bool, tools: bool) -> Sequence[_Section]:
    """Return the sections of an answer.

    Text begins a new one after files; the line of a tool call or of a file does not, so that the pictures of
    several calls stay together.
    """
    results = {part.tool_call_id: part for part in message.parts if isinstance(part, ToolResultPart)}
    sections = [_Section()]
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            if tools:
                result = results.get(part.tool_call_id)
                sections[-1].add(_tool_line(part, result, final), tool=True)
                if diff := diff_of(result, _MAX_DIFF):
                    sections[-1].add(_folded(diff))
            continue
        said = _part_markdown(part)
        if said is not None and said.strip():
            if sections[-1].files and not isinstance(part, FilePart):
                sections.append(_Section())
            sections[-1].add(said)
        sections[-1].files += _uploads(part)
    return sections


def _part_markdown(part: Part) -> str | None:
    match part:
        case TextPart(content, "notice"):
            return f"*{content}*"
        case TextPart(content, kind):
            return None if kind == "reasoning" else content
        case ErrorPart(_, words):
            return f"⚠️ {plain(cut(' '.join(words.split()), _MAX_ERROR))}"
        case FilePart(path, content):
            return None if content else f"📄 {code(path)}"
        case ImagePart() | ToolCallPart() | ToolResultPart():
            return None
        case _:
            assert_never(part)


def _tool_line(call: ToolCallPart, result: ToolResultPart | None, final: bool) -> str:
    """Return the line for a tool call: state, name, main argument and duration."""
    failed = final if result is None else result.is_error
    mark = "✗" if failed else "⏳" if result is None else "✓"
    verb = verb_of(result)
    words = [f"{mark} {plain(verb)}" if verb else f"{mark} {code(call.tool_name)}"]
    argument = _argument(call.arguments)
    if argument:
        words.append(code(cut(argument, _MAX_ARGUMENT)))
    taken = result.metadata.duration_ms if result is not None and result.metadata is not None else None
    if taken is not None:
        words.append(f"· {plain(_duration(taken))}")
    return " ".join(words)


def _folded(diff: str) -> str:
    """Return a diff as a quoted code block, which is written as a quote that clients fold."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", diff)), 0)
    lines = (f"{fence}diff", *diff.split("\n"), fence)
    return "\n".join(f"> {line}" for line in lines)


def _argument(arguments: Mapping[str, object]) -> str:
    """Return the main argument: the first that is a non-empty text or a number."""
    for value in arguments.values():
        if isinstance(value, str | int | float) and not isinstance(value, bool) and str(value).strip():
            return str(value)
    return ""


def _duration(ms: int) -> str:
    return f"{ms} ms" if ms < 100 else f"{ms / 1000:.1f} s"


def _close_fence(markdown: str) -> str:
    """Close an open code fence, so that it does not include the text that follows."""
    fence = ""
    for line in markdown.split("\n"):
        found = _FENCE.fullmatch(line)
        if found is None:
            continue
        mark, rest = found[1], found[2]
        if not fence:
            fence = "" if mark[0] == "`" and "`" in rest else mark
        elif mark[0] == fence[0] and len(mark) >= len(fence) and not rest.strip():
            fence = ""
    return f"{markdown}\n{fence}" if fence else markdown


def _split(source: str, most: int) -> Sequence[str]:
    return split_markdown(source, MAX_TEXT, _size, most=most) if source.strip() else ()


def _size(markdown: str) -> int:
    """Return the size of a piece in code points, or in scaled entities if those reach their limit first."""
    shown = styled(markdown)
    return max(len(shown.text), math.ceil(shown.count * MAX_TEXT / MAX_ENTITIES))


def _text_page(markdown: str) -> TextPage | None:
    shown = styled(markdown)
    return None if is_blank(shown.text) else TextPage(shown.text[:MAX_TEXT], shown.entities, shown.blocks)


def _uploads(part: Part) -> Iterable[FilePage]:
    match part:
        case ImagePart():
            yield from _file(part.data, part.mime_type, part.alt_text or "picture", part.alt_text or "")
        case FilePart(path, content):
            if content:
                yield FilePage("document", safe_name(path), content.encode(errors="replace"))
        case ToolResultPart():
            for attachment in part.attachments:
                yield from _file(attachment.data, attachment.mime_type, attachment.name or "file", "")
        case TextPart() | ErrorPart() | ToolCallPart():
            pass
        case _:
            assert_never(part)


def _file(encoded: str, mime: str, name: str, caption: str) -> Iterable[FilePage]:
    """Yield a file from base64; skip one that is invalid, empty or too large."""
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return
    if not data or len(data) > MAX_FILE:
        return
    mime = picture_type(data) or mime.partition(";")[0].strip().lower()
    name = safe_name(name)
    if mime.startswith(("image/", "audio/")) and "." not in name:
        name += mimetypes.guess_extension(mime) or ""
    if mime.startswith("audio/"):
        yield _audio(data, mime, name, cut(inert(caption), MAX_CAPTION))
    else:
        kind = "photo" if is_photo(data) else "document"
        yield FilePage(kind, name, data, cut(inert(caption), MAX_CAPTION))


def _audio(data: bytes, mime: str, name: str, caption: str) -> FilePage:
    recording = recording_of(data)
    if recording is not None:
        return FilePage("voice", name, data, caption, recording.seconds)
    return FilePage("voice" if mime in _VOICE_TYPES else "audio", name, data, caption)


_CLEANED: dict[int, str | None] = {
    **{code: " " for code in range(32) if code != ord("\n")},
    127: None,
    ord("\r"): None,
    **dict.fromkeys(range(0x2028, 0x202F)),
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
}
_MENTION = re.compile(r"(?<!\w)@(?=\w)")
_INERT = "@\u2060"
_ADDRESS = re.compile(
    r"https?://(?:(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z][A-Za-z0-9-]{1,62}"
    r"|\d{1,3}(?:\.\d{1,3}){3})(?::[1-9]\d{0,3})?(?:[/?#][!-~]*)?"
)
"""Addresses that Telegram certainly accepts; one invalid address makes it refuse the whole message."""
_MAX_ADDRESS = 2000
_WIDE = re.compile("[\U00010000-\U0010ffff]")
_LANGUAGE = re.compile(r"[\w+#.-]{1,40}")
_STYLES = frozenset(("bold", "italic", "underline", "strikethrough", "spoiler"))
_RULE = "———"


class Styled(Struct, frozen=True):
    """A text and its entities."""

    text: str = ""
    entities: tuple[Entity, ...] = ()
    count: int = 0
    """Number of entities before the limit of ``MAX_ENTITIES`` was applied."""
    blocks: tuple[Mapping[str, Any], ...] = ()
    """The same content as blocks of a rich message, if it has headings or tables."""


@lru_cache(maxsize=8)
def styled(markdown: str) -> Styled:
    """Convert Markdown to text and entities, without surrounding whitespace, which Telegram removes as
    well."""
    # Cached: each piece is measured and then rendered, and full pages repeat while an answer grows.
    writer, tree = _Writer(), parse_markdown(markdown)
    writer.blocks(tree)
    return replace(writer.done(), blocks=rich_blocks(tree))


def utf16(text: str) -> int:
    """Return the length of a text in UTF-16 units."""
    return len(text) if text.isascii() else len(text) + len(_WIDE.findall(text))


def is_blank(text: str) -> bool:
    """Return whether a text has no visible characters."""
    return all(unicodedata.category(letter) in ("Zs", "Zl", "Zp", "Cc", "Cf", "Mn") for letter in text)


def inert(text: str) -> str:
    """Disable mentions in a text with invisible marks: names stay readable but notify no user."""
    return _MENTION.sub(_INERT, text)


def copyable(page: P) -> P:
    """Return a page without the marks of ``inert``, for a chat of the bot with one user: its texts are copied
    as they were written."""
    if isinstance(page, FilePage):
        return replace(page, caption=page.caption.replace(_INERT, "@"))
    marks: list[int] = []
    at = 0
    for piece in page.text.split(_INERT)[:-1]:
        at += utf16(piece) + len(_INERT)
        marks.append(at - 1)
    if not marks:
        return page
    entities: list[Entity] = []
    for entity in page.entities:
        start, stop = entity["offset"], entity["offset"] + entity["length"]
        start, stop = start - bisect_left(marks, start), stop - bisect_left(marks, stop)
        entities.append({**entity, "offset": start, "length": stop - start})
    return replace(page, text=page.text.replace(_INERT, "@"), entities=tuple(entities))


class _Writer:
    """Writer for a Markdown tree that records the position of each entity."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._at = 0
        self._entities: list[dict[str, Any]] = []
        self._indent = ""
        self._quoting = False
        self._linking = False

    def done(self) -> Styled:
        """Return the written text with its entities."""
        return _trimmed("".join(self._pieces), list(_split_at_code(self._entities)))

    def blocks(self, blocks: Iterable[Block], between: str = "\n\n") -> None:
        """Write blocks, one below the other."""
        for number, block in enumerate(blocks):
            if number and self._indent and isinstance(block, CodeBlock | Table):
                # Clients show a code block on its own lines: spaces before it would be an empty line.
                self._write("\n")
            elif number:
                self._line(between)
            self._block(block)

    def _block(self, block: Block) -> None:
        match block:
            case Paragraph(children):
                self._inlines(children)
            case Heading(_, children):
                self._within("bold", children)
            case CodeBlock(text, language):
                more = {"language": language} if _LANGUAGE.fullmatch(language) else {}
                self._marked("pre", text or " ", **more)
            case Quote(children):
                self._quote(children)
            case ItemList():
                self._list(block)
            case Table():
                self._marked("pre", table_text(block))
            case Rule():
                self._write(_RULE)
            case _:
                assert_never(block)

    def _quote(self, children: tuple[Block, ...]) -> None:
        """Write a quote; Telegram does not nest quotes, so that an inner one gets a leading mark."""
        if self._quoting:
            self._write("» ")
            self.blocks(children)
            return
        start, self._quoting = self._at, True
        match children:
            case (CodeBlock(text, "diff"),):
                # A folded quote cannot contain code.
                self._lines(text or " ")
                kind = "expandable_blockquote"
            case _:
                self.blocks(children)
                kind = "blockquote"
        self._quoting = False
        self._note(kind, start)

    def _list(self, block: ItemList) -> None:
        for number, item in enumerate(block.items):
            if number:
                self._line("\n" if block.tight else "\n\n")
            mark = f"{block.start + number}. " if block.ordered else "• "
            self._item(item, mark, block.tight)

    def _item(self, item: Item, mark: str, tight: bool) -> None:
        self._write(mark)
        if item.checked is not None:
            self._write("☑ " if item.checked else "☐ ")
        before, self._indent = self._indent, self._indent + " " * (len(mark) + 1)
        self.blocks(item.children, "\n" if tight else "\n\n")
        self._indent = before

    def _inlines(self, inlines: Iterable[Inline]) -> None:
        for inline in inlines:
            self._inline(inline)

    def _inline(self, inline: Inline) -> None:
        match inline:
            case Text(text) | Math(text):
                self._lines(text)
            case Code(text):
                self._code(text)
            case Break():
                self._line("\n")
            case Strong(children):
                self._within("bold", children)
            case Emphasis(children):
                self._within("italic", children)
            case Strike(children):
                self._within("strikethrough", children)
            case Spoiler(children):
                self._within("spoiler", children)
            case Link():
                self._link(inline)
            case Image(alt, href, host):
                self._link(Link((Text(f"🖼 {alt or host}"),), href, host))
            case _:
                assert_never(inline)

    def _lines(self, text: str) -> None:
        first, *others = text.split("\n")
        self._write(inert(first))
        for line in others:
            self._line("\n")
            self._write(inert(line))

    def _link(self, link: Link) -> None:
        label = inline_text(link.children)
        if not _ADDRESS.fullmatch(link.href) or len(link.href) > _MAX_ADDRESS:
            self._write(inert(label if label == link.href else f"{label} ({link.href})"))
        elif label != link.href:
            start, self._linking = self._at, True
            self._inlines(link.children)
            self._linking = False
            self._note("text_link", start, url=link.href)
            if link.shown_differs:
                self._write(f" ({link.host})")
        elif "@" in label:
            self._marked("text_link", label, url=link.href)
        else:
            self._write(label)

    def _within(self, kind: str, children: tuple[Inline, ...]) -> None:
        start = self._at
        self._inlines(children)
        self._note(kind, start)

    def _code(self, text: str) -> None:
        if self._linking:
            self._write(inert(text))
        else:
            self._marked("code", text)

    def _marked(self, kind: str, text: str, **more: Any) -> None:
        start = self._at
        self._write(text)
        self._note(kind, start, **more)

    def _note(self, kind: str, start: int, **more: Any) -> None:
        if self._at > start:
            self._entities.append({"type": kind, "offset": start, "length": self._at - start, **more})

    def _line(self, end: str) -> None:
        self._write(end + self._indent)

    def _write(self, text: str) -> None:
        text = text.translate(_CLEANED)
        self._pieces.append(text)
        self._at += utf16(text)


def rich_blocks(tree: Sequence[Block]) -> tuple[Mapping[str, Any], ...]:
    """Return the blocks of a rich message; none for content that a text shows as well, or that Telegram would
    refuse."""
    if not any(isinstance(block, Heading | Table) for block in tree):
        return ()
    writer = _RichWriter()
    blocks = writer.blocks(tree, 1)
    return () if writer.refused else tuple(blocks)


_MAX_BLOCKS = 500
_MAX_DEPTH = 16
_MAX_COLUMNS = 20
RichText = str | Mapping[str, Any] | Sequence[Any]


class _RichWriter:
    """Writer for the blocks of a rich message. ``refused``: they exceed the limits of Telegram.

    Mentions are only text in it, because the message is sent without detection of entities.
    """

    def __init__(self) -> None:
        self._left = _MAX_BLOCKS
        self.refused = False

    def blocks(self, blocks: Iterable[Block], depth: int) -> list[Mapping[str, Any]]:
        """Return the blocks of a Markdown tree."""
        return [self._block(block, depth) for block in blocks]

    def _count(self, depth: int, blocks: int = 1) -> None:
        self._left -= blocks
        self.refused = self.refused or self._left < 0 or depth > _MAX_DEPTH

    def _block(self, block: Block, depth: int) -> Mapping[str, Any]:
        self._count(depth)
        match block:
            case Paragraph(children):
                return {"type": "paragraph", "text": self._text(children, depth)}
            case Heading(level, children):
                return {"type": "heading", "text": self._text(children, depth), "size": level}
            case CodeBlock(text, language):
                more = {"language": language} if _LANGUAGE.fullmatch(language) else {}
                return {"type": "pre", "text": text.translate(_CLEANED) or " ", **more}
            case Quote(children):
                return {"type": "blockquote", "blocks": self.blocks(children, depth + 1)}
            case ItemList():
                return {"type": "list", "items": self._items(block, depth + 1)}
            case Table():
                return {"type": "table", "cells": self._cells(block, depth + 1), "is_bordered": True}
            case Rule():
                return {"type": "divider"}
            case _:
                assert_never(block)

    def _items(self, block: ItemList, depth: int) -> list[Mapping[str, Any]]:
        self._count(depth, len(block.items))
        found: list[Mapping[str, Any]] = []
        for number, item in enumerate(block.items, block.start):
            children = self.blocks(item.children, depth + 1) or [{"type": "paragraph", "text": " "}]
            label = {"value": number, "type": "1"} if block.ordered else {}
            checked = {} if item.checked is None else {"has_checkbox": True, "is_checked": item.checked}
            found.append({"blocks": children, **label, **checked})
        return found

    def _cells(self, table: Table, depth: int) -> list[list[Mapping[str, Any]]]:
        self._count(depth, 1 + len(table.rows))
        self.refused = self.refused or len(table.header) > _MAX_COLUMNS
        rows: list[list[Mapping[str, Any]]] = []
        for row in (table.header, *table.rows):
            head = {} if rows else {"is_header": True}
            cells = zip(row, table.aligns, strict=True)
            rows.append(
                [
                    {"text": self._text(cell, depth), "align": align or "left", "valign": "top", **head}
                    for cell, align in cells
                ]
            )
        return rows

    def _text(self, inlines: Iterable[Inline], depth: int) -> RichText:
        pieces = [self._inline(inline, depth + 1) for inline in inlines]
        return pieces[0] if len(pieces) == 1 else pieces or " "

    def _inline(self, inline: Inline, depth: int) -> RichText:
        self._count(depth, 0)
        match inline:
            case Text(text) | Math(text):
                return text.translate(_CLEANED)
            case Code(text):
                return {"type": "code", "text": text.translate(_CLEANED)}
            case Break():
                return "\n"
            case Strong(children):
                return {"type": "bold", "text": self._text(children, depth)}
            case Emphasis(children):
                return {"type": "italic", "text": self._text(children, depth)}
            case Strike(children):
                return {"type": "strikethrough", "text": self._text(children, depth)}
            case Spoiler(children):
                return {"type": "spoiler", "text": self._text(children, depth)}
            case Link():
                return self._link(inline, depth)
            case Image(alt, href, host):
                return self._link(Link((Text(f"🖼 {alt or host}"),), href, host), depth)
            case _:
                assert_never(inline)

    def _link(self, link: Link, depth: int) -> RichText:
        label = self._text(link.children, depth)
        if not _ADDRESS.fullmatch(link.href) or len(link.href) > _MAX_ADDRESS:
            where = "" if inline_text(link.children) == link.href else f" ({link.href})"
            return [label, where.translate(_CLEANED)] if where else label
        shown = {"type": "url", "text": label, "url": link.href}
        return [shown, f" ({link.host})"] if link.shown_differs else shown


def _split_at_code(entities: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Remove the parts of styles that overlap code, which Telegram does not accept."""
    code = sorted(
        (one["offset"], one["offset"] + one["length"]) for one in entities if one["type"] in ("code", "pre")
    )
    for entity in entities:
        if entity["type"] not in _STYLES:
            yield entity
            continue
        start, stop = entity["offset"], entity["offset"] + entity["length"]
        for begin, end in code:
            if end <= start or begin >= stop:
                continue
            if begin > start:
                yield entity | {"offset": start, "length": begin - start}
            start = max(start, end)
        if start < stop:
            yield entity | {"offset": start, "length": stop - start}


def _trimmed(text: str, entities: list[dict[str, Any]]) -> Styled:
    """Remove surrounding whitespace; entities are shifted, and those of whitespace only are dropped."""
    kept = text.strip()
    cut, end = utf16(text[: len(text) - len(text.lstrip())]), utf16(kept)
    moved: list[Entity] = []
    for entity in entities:
        start = max(0, entity["offset"] - cut)
        stop = min(end, entity["offset"] + entity["length"] - cut)
        if stop > start:
            moved.append(entity | {"offset": start, "length": stop - start})
    moved.sort(key=lambda one: (one["offset"], -one["length"]))
    return Styled(kept, tuple(moved[:MAX_ENTITIES]), len(moved))
