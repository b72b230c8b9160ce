"""Renderer of answers: Markdown, cut into pages, as blocks, notification text and stream text. Pure."""

from __future__ import annotations

import base64
import binascii
import json
import mimetypes
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Any, assert_never

from msgspec import Struct
from msgspec.structs import replace

from gateway import ErrorPart, FilePart, ImagePart, Message, Part, TextPart, ToolCallPart, ToolResultPart
from gateway import markdown as md
from gateway.channel import diff_file, verb_of
from gateway.markdown import parse_markdown, plain_text, split_markdown

LONGEST_PAGE = 3_800
"""Characters of Markdown; its blocks and text then stay within the limits of ``chat.update``."""
_BYTES_FOR_EACH = 2.5
_LONGEST_NOTE = 2_900
_LONGEST_CALL = 80
# Without opening brackets, because a backslash before one begins a formula.
_SPECIAL = re.compile(r"([\\`*_~\]<>#|$])")
_MENTION = re.compile(r"(?<=<)(?=[@!#])")
_LABELLED = re.compile(r"<[a-z][a-z0-9+.-]*:[^<>|]*\|", re.IGNORECASE)
_FENCE = re.compile(r"\n(?:```+|~~~+)$")
_CONTROL = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
    r"(?:(?<=\x1b)(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.))?",
    re.DOTALL,
)
"""Control characters and terminal escape sequences."""
_WORD_JOINER = "\u2060"
"""Invisible character that breaks a mention when inserted into it."""


class Text(Struct, frozen=True):
    """Page of text. ``live`` is the part that can be streamed, because later text only extends it.

    ``rated``: feedback buttons follow it.
    """

    markdown: str
    live: str
    rated: bool = False


class File(Struct, frozen=True):
    """Page that shows a file. ``data`` is base64."""

    name: str
    data: str
    note: str = ""


Page = Text | File
Element = dict[str, Any]
TABLE, BUTTONS = "table", "context_actions"
FEEDBACK = "trunkline_feedback"
_EMPTY_ANSWER = "_There was nothing to say._"
_TOOLS = (ToolCallPart, ToolResultPart)


def pages(
    message: Message, *, final: bool, most: int = 6, tools: bool = True, feedback: bool = False
) -> Sequence[Page]:
    """Render an answer as at most ``most`` text pages, followed by its files if it is final.

    A longer answer is also attached as a file. ``tools`` adds lines about the used tools, ``feedback``
    buttons to the last page of a complete answer of a model.
    """
    parts = message.parts if tools else [part for part in message.parts if not isinstance(part, _TOOLS)]
    markdown = "\n\n".join(_paragraphs(parts, final=final))
    pieces = split_markdown(markdown, LONGEST_PAGE, measure, most=most + 1)
    texts = [Text(piece, piece) for piece in pieces]
    if texts and not final:
        texts[-1] = Text(pieces[-1], _reopen_fence(pieces[-1], markdown))
    files = list(_files(message.parts)) if final else []
    if final and (diff := diff_file(parts)):
        # Slack folds the text of a file.
        files.append(File("changes.diff", base64.b64encode(diff.encode(errors="replace")).decode()))
    if len(texts) > most:
        whole = base64.b64encode(markdown.encode(errors="replace")).decode()
        files = [File("answer.md", whole, "The whole answer"), *files]
    shown = texts[:most]
    if shown and final and feedback and message.for_model:
        shown[-1] = replace(shown[-1], rated=any(isinstance(part, TextPart) for part in parts))
    if final and not (shown or files) and message.metadata.stop_reason != "cancelled":
        shown = [Text(_EMPTY_ANSWER, _EMPTY_ANSWER)]
    return [*shown, *(files if final else ())]


def measure(piece: str) -> int:
    """Return the length of Markdown in characters, or by its bytes if these are many."""
    return max(len(piece), round(len(piece.encode(errors="replace")) / _BYTES_FOR_EACH))


def blocks(markdown: str, without: Collection[str] = ()) -> list[Element]:
    """Render a page as blocks, without the kinds of blocks in ``without``.

    Rich text is not parsed for markup, so it cannot mention users. The first table that fits is one of
    Slack's own: a message may have only one.
    """
    found: list[Element] = []
    native = TABLE not in without
    for element in _blocks(parse_markdown(markdown)):
        if isinstance(element, md.Table):
            table = _table_block(element) if native else None
            if table is not None:
                found.append(table)
                native = False
                continue
            element = _preformatted(md.table_text(element, _WIDEST_TABLE))
        if element["elements"]:
            if not found or found[-1]["type"] != "rich_text":
                found.append({"type": "rich_text", "elements": []})
            found[-1]["elements"].append(element)
    # Slack refuses to replace rich text by blocks without any, so that a table needs some beside it.
    if not any(block["type"] == "rich_text" for block in found):
        found.insert(0, {"type": "rich_text", "elements": [_section([_text(" ")])]})
    return found


def feedback_buttons() -> list[Element]:
    """Return the block of buttons under an answer."""
    positive, negative = (
        {
            "text": {"type": "plain_text", "text": text},
            "accessibility_label": f"Mark this answer as {text.split()[0].lower()}",
            "value": value,
        }
        for text, value in (("Good answer", "up"), ("Bad answer", "down"))
    )
    element = {"type": "feedback_buttons", "positive_button": positive, "negative_button": negative}
    return [{"type": BUTTONS, "elements": [{**element, "action_id": FEEDBACK}]}]


def notification_text(markdown: str) -> str:
    """Render a page as plain text for notifications, escaped."""
    words = plain_text(parse_markdown(markdown))
    text = escape(words[:_LONGEST_NOTE])
    return text if len(text) <= LONGEST_PAGE else escape(words[: LONGEST_PAGE // len("&amp;")])


def stream_text(live: str) -> str | None:
    """Render a page as Markdown for a stream; None if it has pictures, formulas or misleading links."""
    if _LABELLED.search(live) or not is_safe_to_stream(parse_markdown(live)):
        return None
    return _MENTION.sub(_WORD_JOINER, live)


def escape(text: str) -> str:
    """Escape the characters that begin Slack's markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def safe_name(name: str) -> str:
    """Return a file's name without folders and without characters that file systems refuse."""
    plain = re.sub(r'[\x00-\x1f\x7f<>:"|?*\\/]+', "_", PurePosixPath(name.replace("\\", "/")).name)
    stem, dot, ending = plain.strip(". ").rpartition(".")
    return (f"{stem[:80]}{dot}{ending[:15]}" if stem else ending[:80]) or "file"


def _paragraphs(parts: Sequence[Part], *, final: bool) -> Iterator[str]:
    """Yield the texts of an answer, and the lines of consecutive tool calls as one paragraph."""
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
        text = _part_markdown(part)
        if text and lines:
            yield "\n".join(lines)
            lines = []
        if text:
            yield text
    if lines:
        yield "\n".join(lines)


def _part_markdown(part: Part) -> str:
    match part:
        case TextPart():
            text = "" if part.kind == "reasoning" else _CONTROL.sub("", part.content).strip("\n")
            return f"*{text}*" if text and part.kind == "notice" else text
        case ErrorPart():
            return f"⚠️ {_literal(part.message or part.error_name)}"
        case FilePart():
            return f"📎 {_code(part.path)}" if part.content is None else ""
        case ImagePart() | ToolCallPart() | ToolResultPart():
            return ""
        case _:
            assert_never(part)


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
    """Render text as one line of inline code, shortened."""
    line = " ".join(_CONTROL.sub("", text).replace("`", "'").split())
    return f"`{line if len(line) <= _LONGEST_CALL else line[: _LONGEST_CALL - 1] + '…'}`"


def _literal(text: str) -> str:
    """Render text as one line with Markdown escaped."""
    return _SPECIAL.sub(r"\\\1", " ".join(_CONTROL.sub("", text).split())[:500])


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
    """Yield a file page, unless the data is empty or malformed."""
    try:
        empty = not base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return
    if not empty:
        ending = "" if "." in name else mimetypes.guess_extension(mime_type) or ""
        yield File(safe_name(name + ending), data, alt[:200])


def _reopen_fence(piece: str, markdown: str) -> str:
    """Return the last piece without the closing fence of a code block that is not complete yet."""
    fence = _FENCE.search(piece)
    closed = fence is None or markdown.rstrip().endswith(fence.group())
    return piece if fence is None or closed else piece[: fence.start()]


_LONGEST_URL = 3_000
_WIDEST_TABLE = 2_000
_MOST_ROWS, _MOST_COLUMNS, _LONGEST_TABLE = 100, 20, 10_000
_DEEPEST_LIST = 8
_STYLES: Mapping[type[md.Inline], str] = {md.Strong: "bold", md.Emphasis: "italic", md.Strike: "strike"}


def is_safe_to_stream(tree: md.Tree) -> bool:
    """Return whether Slack may parse the Markdown itself: no misleading link, picture or formula.

    Slack would read the backslashes and underscores of a formula as markup.
    """
    return not any(
        isinstance(one, md.Image | md.Math) or (isinstance(one, md.Link) and one.shown_differs)
        for one in _every_inline(tree)
    )


def _blocks(tree: Iterable[md.Block], depth: int = 0) -> Iterator[Element | md.Table]:
    """Yield the elements of blocks; consecutive paragraphs share one section. Lists begin at ``depth``."""
    running: list[Element] = []
    for block in tree:
        words = _line(block)
        if words is not None:
            running += [_text("\n\n"), *words] if running and words else words
            continue
        if running:
            yield _section(running)
            running = []
        yield from _block_elements(block, depth)
    if running:
        yield _section(running)


def _line(block: md.Block) -> list[Element] | None:
    match block:
        case md.Paragraph(children):
            return list(_inlines(children))
        case md.Heading(_, children):
            return list(_inlines(children, {"bold": True}))
        case md.Rule():
            return [_text("―" * 12)]
        case _:
            return None


def _block_elements(block: md.Block, depth: int) -> Iterator[Element | md.Table]:
    match block:
        case md.Paragraph() | md.Heading() | md.Rule():
            pass
        case md.CodeBlock(text):
            yield _preformatted(text)
        case md.Table():
            yield block
        case md.Quote(children):
            yield {"type": "rich_text_quote", "elements": _inline_blocks(children)}
        case md.ItemList():
            yield from _list(block, min(depth, _DEEPEST_LIST))
        case _:
            assert_never(block)


def _list(block: md.ItemList, depth: int) -> Iterator[Element | md.Table]:
    """Yield the elements of a list.

    A list element of Slack has only lines. What else an item contains (a nested list, code, a quote, a table)
    follows as separate elements, and the list continues in a further one, with its numbers.
    """
    items: list[Element] = []
    first = block.start
    for number, item in enumerate(block.items, block.start):
        mark = "" if item.checked is None else "☑ " if item.checked else "☐ "
        lines = [*takewhile(lambda child: _line(child) is not None, item.children)]
        words = [*([_text(mark)] if mark else []), *_inline_blocks(lines)]
        items.append(_section(words or [_text(" ")]))
        apart = item.children[len(lines) :]
        if apart:
            yield _items(items, block, depth, first)
            items, first = [], number + 1
            yield from _blocks(apart, depth + 1)
    if items:
        yield _items(items, block, depth, first)


def _items(items: Sequence[Element], block: md.ItemList, depth: int, first: int) -> Element:
    style = "ordered" if block.ordered else "bullet"
    element: Element = {"type": "rich_text_list", "style": style, "indent": depth, "elements": list(items)}
    if block.ordered and first > 1:
        element["offset"] = first - 1
    return element


def _inline_blocks(tree: Iterable[md.Block]) -> list[Element]:
    """Render blocks where Slack accepts only inline elements, one per line."""
    found: list[Element] = []
    for block in tree:
        words = _line(block)
        if words is None:
            words = list(_flattened_block(block))
        found += [_text("\n"), *words] if found and words else words
    return found


def _flattened_block(block: md.Block) -> Iterator[Element]:
    match block:
        case md.CodeBlock(text) if text:
            yield _text(text, {"code": True})
        case md.Table():
            yield _text(md.table_text(block, _WIDEST_TABLE), {"code": True})
        case md.Quote(children):
            yield from _inline_blocks(children)
        case md.ItemList():
            yield _text(md.plain_text((block,)))
        case _:
            return


def _inlines(inlines: Iterable[md.Inline], style: Mapping[str, bool] = {}) -> Iterator[Element]:
    for inline in inlines:
        match inline:
            case md.Text(text) if text:
                yield _text(text, style)
            case md.Math(source):
                yield _text(source, style)
            case md.Code(text) if text:
                yield _text(text, {**style, "code": True})
            case md.Break():
                yield _text("\n")
            case md.Link():
                yield from _link(md.label_of(inline), inline.href, style)
                yield from [_text(f" ({inline.host})", style)] if inline.shown_differs else []
            case md.Image(alt, href, host):
                yield from _link(f"{alt or 'picture'} ({host})", href, style)
            case md.Spoiler(children):  # Slack has none
                yield from (_text("||", style), *_inlines(children, style), _text("||", style))
            case md.Strong() | md.Emphasis() | md.Strike():
                yield from _inlines(inline.children, {**style, _STYLES[type(inline)]: True})
            case _:
                pass


def _link(label: str, href: str, style: Mapping[str, bool]) -> Iterator[Element]:
    if not href.lower().startswith(("http://", "https://", "mailto:")) or len(href) > _LONGEST_URL:
        yield _text(label or href[:_LONGEST_URL], style)
        return
    element: Element = {"type": "link", "url": href, "text": label or href}
    yield {**element, "style": dict(style)} if style else element


def _text(text: str, style: Mapping[str, bool] = {}) -> Element:
    return {"type": "text", "text": text, "style": dict(style)} if style else {"type": "text", "text": text}


def _section(elements: list[Element]) -> Element:
    return {"type": "rich_text_section", "elements": elements}


def _preformatted(text: str) -> Element:
    return {"type": "rich_text_preformatted", "elements": [_text(text or " ")]}


def _table_block(table: md.Table) -> Element | None:
    """Render a table as a block; None if it is larger than Slack takes. The header is bold."""
    if len(table.rows) >= _MOST_ROWS or len(table.header) > _MOST_COLUMNS:
        return None
    rows = [[list(_inlines(cell, {"bold": True})) for cell in table.header]]
    rows += [[list(_inlines(cell)) for cell in row] for row in table.rows]
    shown = (one for row in rows for cell in row for one in cell)
    if sum(max(1, len(one.get("text", "")) + len(one.get("url", ""))) for one in shown) > _LONGEST_TABLE:
        return None
    settings = [{"align": align or "left", "is_wrapped": True} for align in table.aligns]
    return {"type": TABLE, "rows": [[*map(_cell, row)] for row in rows], "column_settings": settings}


def _cell(words: list[Element]) -> Element:
    """Return a cell: plain where it has no markup, as that is shorter; an empty one is refused."""
    if not words or (len(words) == 1 and words[0].keys() == {"type", "text"}):
        return {"type": "raw_text", "text": words[0]["text"] if words else " "}
    return {"type": "rich_text", "elements": [_section(words)]}


def _every_inline(tree: Iterable[md.Block]) -> Iterator[md.Inline]:
    for block in tree:
        match block:
            case md.Paragraph(children) | md.Heading(_, children):
                yield from _inside(children)
            case md.Quote(children):
                yield from _every_inline(children)
            case md.ItemList(items):
                for item in items:
                    yield from _every_inline(item.children)
            case md.Table(header, rows):
                for row in (header, *rows):
                    for cell in row:
                        yield from _inside(cell)
            case md.CodeBlock() | md.Rule():
                pass
            case _:
                assert_never(block)


def _inside(inlines: Iterable[md.Inline]) -> Iterator[md.Inline]:
    for inline in inlines:
        yield inline
        if isinstance(inline, md.Strong | md.Emphasis | md.Strike | md.Spoiler | md.Link):
            yield from _inside(inline.children)
