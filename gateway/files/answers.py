"""Answers for channels whose platform takes Markdown: their text, one line for each tool call, and files."""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import assert_never

from msgspec import Struct

from gateway.contract.messages import (
    ErrorPart,
    FilePart,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    verb_of,
)

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_MIME_TYPE = re.compile(r"[a-z]+/[a-z0-9.+-]{1,80}")
_LONGEST_CALL, _LONGEST_LINE, _LONGEST_NAME = 80, 500, 100


class AnswerFile(Struct, frozen=True):
    """A picture or file of an answer. ``name`` has no directories; ``mime_type`` is well-formed."""

    name: str
    mime_type: str
    data: bytes


def answer_markdown(parts: Sequence[Part], *, final: bool = True, tools: bool = True) -> str:
    """Return the text of an answer as Markdown, with one line for each tool call unless ``tools`` is False.

    While the answer grows (``final`` is False), calls without a result are left out. Files without content
    are named.
    """
    results = {part.tool_call_id: part for part in parts if isinstance(part, ToolResultPart)}
    shown = (part for part in parts if tools or not isinstance(part, ToolCallPart))
    return "\n\n".join(filter(None, (_paragraph(part, results, final) for part in shown)))


def _paragraph(part: Part, results: dict[str, ToolResultPart], final: bool) -> str:
    match part:
        case TextPart(content, kind):
            text = "" if kind == "reasoning" else _CONTROL.sub("", content).strip("\n")
            return f"*{text}*" if text and kind == "notice" else text
        case ErrorPart():
            return f"⚠️ {one_line(part.message or part.error_name)}"
        case FilePart(path, content):
            return f"📎 `{one_line(path)}`" if content is None else ""
        case ToolCallPart():
            result = results.get(part.tool_call_id)
            return _call(part, result) if result is not None or final else ""
        case ImagePart() | ToolResultPart():
            return ""
        case _:
            assert_never(part)


def _call(call: ToolCallPart, result: ToolResultPart | None) -> str:
    mark = "▫️" if result is None else "❌" if result.is_error else "✅"
    given = json.dumps(call.arguments, ensure_ascii=False, default=str) if call.arguments else ""
    line = one_line(f"{verb_of(result) or call.tool_name} {given}").replace("`", "'")
    return f"{mark} `{line if len(line) <= _LONGEST_CALL else line[: _LONGEST_CALL - 1] + '…'}`"


def answer_files(message: Message) -> Iterator[AnswerFile]:
    """Yield the pictures and files of an answer, without those that are empty or malformed."""
    for number, part in enumerate(message.parts, 1):
        if isinstance(part, ImagePart):
            yield from _file(f"image-{number}", part.mime_type, part.data)
        elif isinstance(part, FilePart) and part.content is not None:
            yield AnswerFile(_name(part.path), "text/plain", part.content.encode(errors="replace"))
        elif isinstance(part, ToolResultPart):
            for count, one in enumerate(part.attachments, 1):
                yield from _file(one.name or f"file-{number}-{count}", one.mime_type, one.data)


def _file(name: str, mime_type: str, data: str) -> Iterator[AnswerFile]:
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return
    mime = mime_type if _MIME_TYPE.fullmatch(mime_type) else "application/octet-stream"
    if content:
        ending = "" if "." in name else mimetypes.guess_extension(mime) or ""
        yield AnswerFile(_name(name + ending), mime, content)


def _name(path: str) -> str:
    base = PurePosixPath(path.replace("\\", "/")).name
    return one_line(re.sub(r'[<>:"|?*]+', "_", base))[-_LONGEST_NAME:] or "file"


def one_line(text: str) -> str:
    """Return a text as one line of at most 500 characters, without control characters."""
    return _CONTROL.sub("", " ".join(text.split()))[:_LONGEST_LINE]


PATCH = "text/x-diff"
"""The type of a file with a patch."""
MOST_DIFF = 100_000
"""Characters of the diffs in one file."""


def diff_of(result: ToolResultPart | None, most: int = MOST_DIFF) -> str:
    """Return the diff in the result of a tool that shows one, cut at a line; "" if there is none."""
    if result is None or result.is_error or result.display is None or result.display.kind != "diff":
        return ""
    # After a line that names the changed files.
    diff = result.output[max(f"\n{result.output}".find("\n--- "), 0) :]
    if len(diff) <= most:
        return diff
    head = diff[:most].rpartition("\n")[0]
    return f"{head}\n… ({len(diff):,} characters)"


def diff_file(parts: Sequence[Part]) -> str:
    """Return the diffs of all results of an answer, for a file that a chat folds; "" if there is none."""
    results = [part for part in parts if isinstance(part, ToolResultPart)]
    if any(one.mime_type == PATCH for part in results for one in part.attachments):
        return ""  # the answer has the whole patch as a file, and chats show the text of both
    diffs = [diff for part in results if (diff := diff_of(part))]
    return "\n\n".join(diffs)[:MOST_DIFF]
