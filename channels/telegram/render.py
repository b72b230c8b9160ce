"""Answers as messages of Telegram: texts with entities, pictures, files. Pure."""

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
from gateway import (
    ErrorPart,
    FilePart,
    ImagePart,
    Message,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    recording_of,
    split_markdown,
)

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
"""What messages begin with that are no answers, but ask whether a tool may run, or say what was decided."""

_MOST_ARGUMENT = 60
_MOST_ERROR = 300
_SPOKEN = ("audio/mpeg", "audio/mp3", "audio/mp4", "audio/m4a", "audio/x-m4a")
"""What is shown as a voice message besides Opus in an Ogg file."""
_WHOLE = "answer.md"
_NOTHING = "(There is nothing to say.)"
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+.!~|<>&-])")
_TERMINAL = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\|$)|[PX^_][^\x1b]*(?:\x1b\\|$)|.?)"
)
"""What terminals take for orders: colours, titles, links."""
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")


def is_question(text: str) -> bool:
    """Whether a message of the bot is about whether a tool may run."""
    return text.startswith((QUESTION, *OUTCOMES.values()))


class TextPage(Struct, frozen=True):
    """A message of text."""

    text: str
    entities: tuple[Entity, ...] = ()


class FilePage(Struct, frozen=True):
    """A message with a file; a ``photo`` is shown as a picture, a ``voice`` and an ``audio`` can be played.

    ``seconds`` is how long it is, where that is known.
    """

    kind: Literal["photo", "voice", "audio", "document"]
    name: str
    data: bytes
    caption: str = ""
    seconds: float | None = None


Page = TextPage | FilePage


def pages_of(message: Message, *, final: bool, most: int = 6, tools: bool = True) -> list[Page]:
    """The message, whole or so far, as messages of the platform; files come with the final one.

    ``tools`` says whether it tells which tools were used.
    """
    pieces = (_TERMINAL.sub("", piece) for piece in _pieces(message, final, tools))
    source = "\n\n".join(_closed(piece) for piece in pieces if piece.strip())
    texts = [page for piece in _split(source) if (page := _text_page(piece)) is not None]
    pages: list[Page] = list(texts[:most])
    if not final:
        return pages
    if len(texts) > most:
        pages.append(FilePage("document", _WHOLE, source.encode(errors="replace"), "The whole answer."))
    pages += _uploads(message)
    if not pages and message.metadata.stop_reason != "cancelled":
        pages.append(TextPage(_NOTHING))
    return pages


def code(text: str) -> str:
    """A short text as Markdown's code, whatever stands in it."""
    words = " ".join(text.split()) or " "
    longest = max(map(len, re.findall(r"`+", words)), default=0)
    fence = "`" * (longest + 1)
    space = " " if "`" in words else ""
    return f"{fence}{space}{words}{space}{fence}"


def plain(text: str) -> str:
    """A text as Markdown that shows it as it is."""
    return _SPECIAL.sub(r"\\\1", text)


def cut(text: str, most: int) -> str:
    """A text of at most so many code points."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _pieces(message: Message, final: bool, tools: bool) -> Iterator[str]:
    """What is to be read, as Markdown; lines of tools that follow each other stay together."""
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
        case TextPart(content, kind):
            return None if kind == "reasoning" else content
        case ErrorPart(_, words):
            return f"⚠️ {plain(cut(' '.join(words.split()), _MOST_ERROR))}"
        case FilePart(path, content):
            return None if content else f"📄 {code(path)}"
        case _:
            return None


def _tool(call: ToolCallPart, result: ToolResultPart | None, final: bool) -> str:
    """One line for a tool: what became of it, its name, what it was to do, how long it took."""
    failed = final if result is None else result.is_error
    mark = "✗" if failed else "⏳" if result is None else "✓"
    verb = result.display.verb if result is not None and result.display is not None else None
    words = [f"{mark} {plain(verb)}" if verb else f"{mark} {code(call.tool_name)}"]
    argument = _argument(call.arguments)
    if argument:
        words.append(code(cut(argument, _MOST_ARGUMENT)))
    taken = result.metadata.duration_ms if result is not None and result.metadata is not None else None
    if taken is not None:
        words.append(f"· {plain(_seconds(taken))}")
    return " ".join(words)


def _argument(arguments: Mapping[str, object]) -> str:
    """The argument that tells most: the first that is text or a number."""
    for value in arguments.values():
        if isinstance(value, str | int | float) and not isinstance(value, bool) and str(value).strip():
            return str(value)
    return ""


def _seconds(ms: int) -> str:
    return f"{ms} ms" if ms < 100 else f"{ms / 1000:.1f} s"


def _closed(markdown: str) -> str:
    """Markdown that ends no code of what follows: a fence that is open is closed."""
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


def _split(source: str) -> Sequence[str]:
    return split_markdown(source, MOST_TEXT, _room) if source.strip() else ()


def _room(markdown: str) -> int:
    """The room a piece takes: of code points, or of entities where these are more of what there may be."""
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
    """A file that is base64; one that cannot be read or is too large is left out."""
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
