"""Answers as Slack messages. Pure: a message becomes Markdown, that is cut into pages, and each page can be
shown as blocks, as plain text for notifications, and as the text of a stream.
"""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from msgspec import Struct

from channels.slack.markup import escaped
from channels.slack.rich_text import rich_text, shows_links_honestly
from gateway import ErrorPart, FilePart, ImagePart, Message, Part, TextPart, ToolCallPart, ToolResultPart
from gateway.channel import verb_of
from gateway.markdown import parse_markdown, plain_text, split_markdown

LONGEST_PAGE = 3_800
"""Characters of Markdown; what it is shown as stays below what ``chat.update`` takes."""
_BYTES_FOR_EACH = 2.5
_LONGEST_NOTE = 2_900
_LONGEST_CALL = 80
# Not the opening brackets: behind a backslash they begin a formula.
_SPECIAL = re.compile(r"([\\`*_~\]<>#|$])")
_MENTION = re.compile(r"(?<=<)(?=[@!#])")
_LABELLED = re.compile(r"<[a-z][a-z0-9+.-]*:[^<>|]*\|", re.IGNORECASE)
_FENCE = re.compile(r"\n(?:```+|~~~+)$")
_STEERING = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
    r"(?:(?<=\x1b)(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.))?",
    re.DOTALL,
)
"""What terminals obey; nothing that people read."""
_JOINER = "\u2060"
"""Invisible; between the marks of a mention it is none any more."""


class Text(Struct, frozen=True):
    """A message of words. ``live`` is what a stream may show of it already, which only grows."""

    markdown: str
    live: str


class File(Struct, frozen=True):
    """A message that shows a file, with base64 ``data``."""

    name: str
    data: str
    note: str = ""


Page = Text | File
_TOOLS = (ToolCallPart, ToolResultPart)


def pages(message: Message, *, final: bool, most: int = 6, tools: bool = True) -> Sequence[Page]:
    """A message as the pages of a room. Files come at the end, and only when it is final.

    ``tools`` says whether it tells which tools were used.
    """
    told = message.parts if tools else [part for part in message.parts if not isinstance(part, _TOOLS)]
    markdown = "\n\n".join(_paragraphs(told, final=final))
    pieces = split_markdown(markdown, LONGEST_PAGE, measure, most=most + 1)
    texts = [Text(piece, piece) for piece in pieces]
    if texts and not final:
        texts[-1] = Text(pieces[-1], _open_end(pieces[-1], markdown))
    files = list(_files(message.parts)) if final else []
    if len(texts) > most:
        whole = base64.b64encode(markdown.encode(errors="replace")).decode()
        files = [File("answer.md", whole, "The whole answer"), *files]
    return [*texts[:most], *(files if final else ())]


def measure(piece: str) -> int:
    """How much room a piece of Markdown takes: its characters, or its bytes where they are many."""
    return max(len(piece), round(len(piece.encode(errors="replace")) / _BYTES_FOR_EACH))


def blocks(markdown: str) -> list[dict[str, object]]:
    """A page as Slack shows it. Rich text is not read for markup, so nothing in it can mention anybody."""
    return [{"type": "rich_text", "elements": rich_text(parse_markdown(markdown))}]


def note(markdown: str) -> str:
    """A page as a notification tells it."""
    words = plain_text(parse_markdown(markdown))
    told = escaped(words[:_LONGEST_NOTE])
    return told if len(told) <= LONGEST_PAGE else escaped(words[: LONGEST_PAGE // len("&amp;")])


def stream(live: str) -> str | None:
    """What a stream shows of a page, as Markdown; None when that would hide where a link leads."""
    if _LABELLED.search(live) or not shows_links_honestly(parse_markdown(live)):
        return None
    return _MENTION.sub(_JOINER, live)


def safe_name(name: str) -> str:
    """A file's name without its folders and without what no file system takes."""
    plain = re.sub(r'[\x00-\x1f\x7f<>:"|?*\\/]+', "_", PurePosixPath(name.replace("\\", "/")).name)
    stem, dot, ending = plain.strip(". ").rpartition(".")
    return (f"{stem[:80]}{dot}{ending[:15]}" if stem else ending[:80]) or "file"


def _paragraphs(parts: Sequence[Part], *, final: bool) -> Iterator[str]:
    """The texts of a message, and its tools' lines, those that follow each other together."""
    lines: list[str] = []
    calls = {part.tool_call_id: part for part in parts if isinstance(part, ToolCallPart)}
    answered = {part.tool_call_id for part in parts if isinstance(part, ToolResultPart)}
    for part in parts:
        if isinstance(part, ToolResultPart):
            lines.append(_result(part, calls.get(part.tool_call_id)))
            continue
        if isinstance(part, ToolCallPart):
            lines += [f"▫️ {_call(part)}"] if final and part.tool_call_id not in answered else []
            continue
        said = _said(part)
        if said and lines:
            yield "\n".join(lines)
            lines = []
        if said:
            yield said
    if lines:
        yield "\n".join(lines)


def _said(part: Part) -> str:
    if isinstance(part, TextPart):
        text = "" if part.kind == "reasoning" else _STEERING.sub("", part.content).strip("\n")
        return f"*{text}*" if text and part.kind == "notice" else text
    if isinstance(part, ErrorPart):
        return f"⚠️ {_literal(part.message or part.error_name)}"
    if isinstance(part, FilePart) and part.content is None:
        return f"📎 {_code(part.path)}"
    return ""


def _result(part: ToolResultPart, call: ToolCallPart | None) -> str:
    mark = "❌" if part.is_error else "✅"
    took = part.metadata.duration_ms if part.metadata else None
    name = _call(call, verb_of(part)) if call is not None else _code(part.title or "tool")
    return f"{mark} {name}" + (f" {_seconds(took)}" if took is not None else "")


def _call(call: ToolCallPart, verb: str | None = None) -> str:
    given = ", ".join(
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        for value in call.arguments.values()
    )
    if verb:
        return f"{_literal(verb)} {_code(given)}" if given.strip() else _literal(verb)
    return _code(f"{call.tool_name} {given}".strip())


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def _code(text: str) -> str:
    """One line of code, cut, in Markdown."""
    line = " ".join(_STEERING.sub("", text).replace("`", "'").split())
    return f"`{line if len(line) <= _LONGEST_CALL else line[: _LONGEST_CALL - 1] + '…'}`"


def _literal(text: str) -> str:
    """One line that Markdown leaves alone."""
    return _SPECIAL.sub(r"\\\1", " ".join(_STEERING.sub("", text).split())[:500])


def _files(parts: Sequence[Part]) -> Iterator[File]:
    for number, part in enumerate(parts):
        if isinstance(part, ImagePart):
            yield from _file(f"image-{number}", part.mime_type, part.data, part.alt_text or "")
        elif isinstance(part, FilePart) and part.content is not None:
            data = base64.b64encode(part.content.encode(errors="replace")).decode()
            yield File(safe_name(part.path), data)
        elif isinstance(part, ToolResultPart):
            for count, one in enumerate(part.attachments):
                yield from _file(one.name or f"attachment-{number}-{count}", one.mime_type, one.data, "")


def _file(name: str, mime_type: str, data: str, alt: str) -> Iterator[File]:
    """A file, unless its data is none."""
    try:
        empty = not base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return
    if not empty:
        ending = "" if "." in name else mimetypes.guess_extension(mime_type) or ""
        yield File(safe_name(name + ending), data, alt[:200])


def _open_end(piece: str, markdown: str) -> str:
    """The last piece without the fence that closes code which is not at its end yet."""
    fence = _FENCE.search(piece)
    closed = fence is None or markdown.rstrip().endswith(fence.group())
    return piece if fence is None or closed else piece[: fence.start()]
