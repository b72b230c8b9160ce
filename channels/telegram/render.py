"""Rendering of answers as Telegram messages: texts with entities, pictures, files. Pure."""

from __future__ import annotations

import base64
import binascii
import math
import mimetypes
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from channels.telegram.pictures import is_photo, picture_type, safe_name
from channels.telegram.styling import MOST_ENTITIES, Entity, is_blank, styled
from gateway import ErrorPart, FilePart, ImagePart, Message, TextPart, ToolCallPart, ToolResultPart
from gateway.channel import recording_of, verb_of
from gateway.markdown import split_markdown

MOST_TEXT = 4096
MOST_CAPTION = 1024
MOST_FILE = 50 * 1024 * 1024
QUESTION = "May I use"
OUTCOMES: Mapping[str, str] = {
    "once": "✓ Allowed once",
    "always": "✓ Always allowed",
    "deny": "✗ Denied",
    "timeout": "⌛ Not allowed: nobody answered in time",
    "cancelled": "✗ No longer asked",
}
"""First words of messages that are approval outcomes; with ``QUESTION`` they distinguish questions from
answers."""

_MOST_ARGUMENT = 60
_MOST_ERROR = 300
_SPOKEN = ("audio/mpeg", "audio/mp3", "audio/mp4", "audio/m4a", "audio/x-m4a")
"""Audio types sent as voice messages, in addition to Opus in an Ogg file."""
_WHOLE = "answer.md"
_NOTHING = "(There is nothing to say.)"
# Not the opening brackets: a backslash before them begins a formula.
_SPECIAL = re.compile(r"([\\`*_{}\])#+.!~|<>&$-])")
_TERMINAL = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\|$)|[PX^_][^\x1b]*(?:\x1b\\|$)|.?)"
)
"""Terminal escape sequences: colours, titles, links."""
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


def is_question(text: str) -> bool:
    """Return whether a message of the bot asks for a tool approval or shows its outcome."""
    return text.startswith((QUESTION, *OUTCOMES.values()))


class TextPage(Struct, frozen=True):
    """A text message."""

    text: str
    entities: tuple[Entity, ...] = ()


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


def pages_of(message: Message, *, final: bool, most: int = 6, tools: bool = True) -> list[Page]:
    """Render a complete or partial message as Telegram messages; only a final one includes files.

    ``most`` limits the text messages; a longer answer is also attached as a file. ``tools`` shows which tools
    were used.
    """
    said = (_TERMINAL.sub("", piece) for piece in _pieces(message, final, tools))
    source = "\n\n".join(_closed(piece) for piece in said if piece.strip())
    pieces = _split(source, most + 1)
    texts = [page for piece in pieces if (page := _text_page(piece)) is not None]
    pages: list[Page] = list(texts[:most])
    if not final:
        return pages
    if len(pieces) > most:
        pages.append(FilePage("document", _WHOLE, source.encode(errors="replace"), "The whole answer."))
    pages += _uploads(message)
    if not pages and message.metadata.stop_reason != "cancelled":
        pages.append(TextPage(_NOTHING))
    return pages


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


def _pieces(message: Message, final: bool, tools: bool) -> Iterator[str]:
    """Yield the readable content as Markdown; consecutive tool lines form one piece."""
    results = {part.tool_call_id: part for part in message.parts if isinstance(part, ToolResultPart)}
    lines: list[str] = []
    for part in message.parts:
        if isinstance(part, ToolCallPart):
            lines += [_tool(part, results.get(part.tool_call_id), final)] if tools else []
            continue
        said = _said(part)
        if said is None:
            continue
        if lines:
            yield "\n".join(lines)
            lines = []
        yield said
    if lines:
        yield "\n".join(lines)


def _said(part: object) -> str | None:
    match part:
        case TextPart(content, "notice"):
            return f"*{content}*"
        case TextPart(content, kind):
            return None if kind == "reasoning" else content
        case ErrorPart(_, words):
            return f"⚠️ {plain(cut(' '.join(words.split()), _MOST_ERROR))}"
        case FilePart(path, content):
            return None if content else f"📄 {code(path)}"
        case _:
            return None


def _tool(call: ToolCallPart, result: ToolResultPart | None, final: bool) -> str:
    """Return the line for a tool call: state, name, main argument and duration."""
    failed = final if result is None else result.is_error
    mark = "✗" if failed else "⏳" if result is None else "✓"
    verb = verb_of(result)
    words = [f"{mark} {plain(verb)}" if verb else f"{mark} {code(call.tool_name)}"]
    argument = _argument(call.arguments)
    if argument:
        words.append(code(cut(argument, _MOST_ARGUMENT)))
    taken = result.metadata.duration_ms if result is not None and result.metadata is not None else None
    if taken is not None:
        words.append(f"· {plain(_seconds(taken))}")
    return " ".join(words)


def _argument(arguments: Mapping[str, object]) -> str:
    """Return the main argument: the first that is a non-empty text or a number."""
    for value in arguments.values():
        if isinstance(value, str | int | float) and not isinstance(value, bool) and str(value).strip():
            return str(value)
    return ""


def _seconds(ms: int) -> str:
    return f"{ms} ms" if ms < 100 else f"{ms / 1000:.1f} s"


def _closed(markdown: str) -> str:
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
    return split_markdown(source, MOST_TEXT, _room, most=most) if source.strip() else ()


def _room(markdown: str) -> int:
    """Return the size of a piece in code points, or in scaled entities if those reach their limit first."""
    shown = styled(markdown)
    return max(len(shown.text), math.ceil(shown.count * MOST_TEXT / MOST_ENTITIES))


def _text_page(markdown: str) -> TextPage | None:
    shown = styled(markdown)
    return None if is_blank(shown.text) else TextPage(shown.text[:MOST_TEXT], shown.entities)


def _uploads(message: Message) -> Iterable[FilePage]:
    for part in message.parts:
        if isinstance(part, ImagePart):
            yield from _file(part.data, part.mime_type, part.alt_text or "picture", part.alt_text or "")
        elif isinstance(part, FilePart) and part.content:
            yield FilePage("document", safe_name(part.path), part.content.encode(errors="replace"))
        elif isinstance(part, ToolResultPart):
            for attachment in part.attachments:
                yield from _file(attachment.data, attachment.mime_type, attachment.name or "file", "")


def _file(encoded: str, mime: str, name: str, caption: str) -> Iterable[FilePage]:
    """Yield a file from base64; skip one that is invalid, empty or too large."""
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return
    if not data or len(data) > MOST_FILE:
        return
    mime = picture_type(data) or mime.partition(";")[0].strip().lower()
    name = safe_name(name)
    if mime.startswith(("image/", "audio/")) and "." not in name:
        name += mimetypes.guess_extension(mime) or ""
    if mime.startswith("audio/"):
        yield _audio(data, mime, name, cut(caption, MOST_CAPTION))
    else:
        yield FilePage("photo" if is_photo(data) else "document", name, data, cut(caption, MOST_CAPTION))


def _audio(data: bytes, mime: str, name: str, caption: str) -> FilePage:
    recording = recording_of(data)
    if recording is not None:
        return FilePage("voice", name, data, caption, recording.seconds)
    return FilePage("voice" if mime in _SPOKEN else "audio", name, data, caption)
