"""Content of a Slack message: text in blocks and attachments, files, and the messages that it shows. Pure.

Texts are in Slack's markup (``<@U1>``, ``&lt;``) until ``plain_text`` converts them. Malformed parts are
skipped, because apps post arbitrary blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, cast

from msgspec import Struct

from channels.slack.render import escape
from gateway.channel import QuoteKind

Json = Mapping[str, Any]

LONGEST_QUOTE = 8_000
"""Most characters of one quoted or earlier message."""
_LONGEST_MARKUP = 40_000
"""Most characters that are read from blocks and attachments; also Slack's limit for the text of a message."""
_MOST_LINES = 2_000
_MOST_ATTACHMENTS = 20
_MOST_FILES = 20
_DEEPEST = 4
_ID = re.compile(r"[A-Z0-9]{1,24}", re.ASCII)


class Names(Protocol):
    """Names of users, channels and user groups by their ids; empty if unknown."""

    def username(self, user: str) -> str: ...

    def title(self, chat: str) -> str: ...

    def handle(self, group: str) -> str: ...


class NoNames:
    """Names of nothing: mentions keep their labels or ids."""

    def username(self, user: str) -> str:
        """Return no name."""
        return ""

    def title(self, chat: str) -> str:
        """Return no title."""
        return ""

    def handle(self, group: str) -> str:
        """Return no name."""
        return ""


class Upload(Struct, frozen=True):
    """File of a message that was not fetched yet. ``size`` is in bytes, as announced by Slack.

    A recorded audio clip has an audio type here, although Slack announces it as video.
    """

    id: str
    name: str
    mime_type: str
    size: int
    url: str


class Shown(Struct, frozen=True):
    """Content that a message shows besides its own text: a shared message, or the preview of a link.

    ``author`` is a user's or bot's id, and ``name`` its name as Slack shows it; both may be empty. ``kind``
    is reply for the first message of the thread in which the message was written.
    """

    markup: str
    author: str = ""
    name: str = ""
    files: tuple[Upload, ...] = ()
    kind: QuoteKind = "share"


def own_text(message: Json) -> str:
    """Return the markup of a user's message: its text, or the text of its blocks if there is none."""
    return _str(message, "text") or _joined(_blocks(message.get("blocks")))


def full_text(message: Json) -> str:
    """Return the markup of a message of any author, with all that its attachments show.

    Apps put a short version of their blocks into the text, which is left out if the blocks contain it.
    """
    own = _app_text(message) if message.get("bot_id") else own_text(message)
    shown = _rows(message, "attachments")[:_MOST_ATTACHMENTS]
    more = (_shared_line(one) if _is_message(one) else _joined(_attachment(one)) for one in shown)
    return _joined((own, *more))


def _app_text(message: Json) -> str:
    text, blocks = _str(message, "text"), _joined(_blocks(message.get("blocks")))
    return blocks if _squeezed(text) in _squeezed(blocks) else _joined((text, blocks))


def _shared_line(attachment: Json) -> str:
    shared = _shared(attachment)
    author = f" of {shared.name}" if shared.name else ""
    return f"[shared message{author}] {shared.markup}" if shared.markup else ""


def shown_in(message: Json) -> tuple[Shown, ...]:
    """Return the messages that a message shares, and the previews of its links."""
    found = (
        _shared(one) if _is_message(one) else Shown(_joined(_attachment(one)))
        for one in _rows(message, "attachments")[:_MOST_ATTACHMENTS]
    )
    return tuple(one for one in found if one.markup or one.files)


def as_shown(message: Json) -> Shown:
    """Return a whole message as one that another message shares."""
    profile = _dict(message, "bot_profile")
    name = _str(message, "username") or _str(profile, "name")
    author = _str(message, "user") or _str(message, "bot_id")
    shared = [file for one in _rows(message, "attachments")[:_MOST_ATTACHMENTS] for file in uploads(one)]
    return Shown(full_text(message), author, name, (*uploads(message), *shared)[:_MOST_FILES])


def uploads(message: Json) -> tuple[Upload, ...]:
    """Return the files of a message, up to twenty."""
    return tuple(_upload(one) for one in _rows(message, "files")[:_MOST_FILES])


def _shared(attachment: Json) -> Shown:
    inside = (
        _blocks(_dict(one, "message").get("blocks"), 1) for one in _rows(attachment, "message_blocks")[:5]
    )
    text = _str(attachment, "text") or _joined(line for lines in inside for line in lines)
    files = uploads(attachment)
    # The fallback of a message that has only files is not what its author wrote.
    text = text or ("" if files else _str(attachment, "fallback"))
    return Shown(
        text[:_LONGEST_MARKUP],
        _str(attachment, "author_id"),
        _str(attachment, "author_name") or _str(attachment, "author_subname"),
        files,
    )


def _is_message(attachment: Json) -> bool:
    """Return whether an attachment is a shared message instead of a preview of a link or an app's card."""
    return any(attachment.get(key) for key in ("is_share", "is_msg_unfurl", "message_blocks"))


def _attachment(attachment: Json) -> Iterator[str]:
    """Yield the lines of an app's card or of the preview of a link."""
    found = False
    title, link = _str(attachment, "title"), _str(attachment, "title_link")
    lines = (
        _str(attachment, "pretext"),
        _str(attachment, "author_name"),
        f"{title} ({escape(link)})" if title and link and link not in title else title,
        _str(attachment, "text"),
        *(_joined_pair(_str(one, "title"), _str(one, "value")) for one in _rows(attachment, "fields")),
        *_blocks(attachment.get("blocks"), 1),
    )
    for line in filter(None, lines):
        found = True
        yield line
    if not found and _str(attachment, "fallback"):
        yield _str(attachment, "fallback")


def _joined_pair(title: str, value: str) -> str:
    return ": ".join(filter(None, (title, value)))


def _blocks(blocks: object, depth: int = 0) -> Iterator[str]:
    """Yield the lines of blocks, in markup."""
    if depth > _DEEPEST:
        return
    for block in json_objects(blocks):
        match block.get("type"):
            case "rich_text":
                yield from _rich_text(block)
            case "section" | "header":
                yield _object_text(block.get("text"))
                yield from map(_object_text, json_objects(block.get("fields")))
            case "context":
                yield " ".join(filter(None, map(_object_text, json_objects(block.get("elements")))))
            case "image" | "video":
                yield _object_text(block)
            case "markdown":
                yield escape(_str(block, "text"))
            case "table":
                for row in _lists(block.get("rows")):
                    yield " | ".join(_cell(cell, depth) for cell in json_objects(row))
            case _:
                pass


def _cell(cell: Json, depth: int) -> str:
    if cell.get("type") == "rich_text":
        return " ".join(_blocks([cell], depth + 1))
    return escape(_str(cell, "text"))


def _object_text(given: object) -> str:
    """Return the markup of a text object, or of an image."""
    if not isinstance(given, Mapping):
        return ""
    one = cast(Json, given)
    if one.get("type") in ("image", "video"):
        title = _object_text(one.get("title"))
        words = escape(_str(one, "alt_text"))
        return f"[image: {words or title}]" if words or title else ""
    text = _str(one, "text")
    return text if one.get("type") == "mrkdwn" else escape(text)


def _rich_text(block: Json) -> Iterator[str]:
    for part in json_objects(block.get("elements")):
        match part.get("type"):
            case "rich_text_list":
                indent = part.get("indent")
                space = "  " * min(indent, 8) if isinstance(indent, int) else ""
                ordered, before = part.get("style") == "ordered", part.get("offset")
                first = before + 1 if isinstance(before, int) else 1
                for number, entry in enumerate(json_objects(part.get("elements")), first):
                    yield f"{space}{f'{number}.' if ordered else '•'} {_inline(entry)}"
            case "rich_text_quote":
                yield "\n".join(f"&gt; {line}" for line in _inline(part).split("\n"))
            case "rich_text_preformatted":
                yield f"```\n{_inline(part)}\n```"
            case _:
                yield _inline(part)


def _inline(part: Json) -> str:
    return "".join(map(_element, json_objects(part.get("elements"))))


def _element(one: Json) -> str:
    match one.get("type"):
        case "text":
            text = escape(_str(one, "text"))
            return f"`{text}`" if text and _dict(one, "style").get("code") else text
        case "link":
            link, text = escape(_str(one, "url")).replace("|", "%7C"), escape(_str(one, "text"))
            return f"<{link}|{text}>" if link and text else f"<{link}>" if link else text
        case "user":
            return _token("@", one, "user_id")
        case "channel":
            return _token("#", one, "channel_id")
        case "usergroup":
            return _token("!subteam^", one, "usergroup_id")
        case "broadcast":
            return escape(f"@{_str(one, 'range')}")
        case "emoji":
            return escape(f":{_str(one, 'name')}:")
        case _:
            return escape(_str(one, "fallback") or _str(one, "value"))


def _token(sign: str, one: Json, key: str) -> str:
    found = _str(one, key)
    return f"<{sign}{found}>" if _ID.fullmatch(found) else ""


def _upload(file: Json) -> Upload:
    size, mime_type = file.get("size"), _str(file, "mimetype")
    if file.get("subtype") == "slack_audio":
        mime_type = f"audio/{mime_type.rpartition('/')[2] or 'mp4'}"
    return Upload(
        _str(file, "id"),
        _str(file, "name") or "file",
        mime_type,
        size if isinstance(size, int) else 0,
        _str(file, "url_private_download") or _str(file, "url_private"),
    )


def _joined(lines: Iterable[str]) -> str:
    """Join the first lines with text, up to a bound, so that a huge message costs little."""
    found: list[str] = []
    size = 0
    for line in islice(lines, _MOST_LINES):
        if not line:
            continue
        found.append(line[: _LONGEST_MARKUP - size])
        size += len(found[-1]) + 1
        if size >= _LONGEST_MARKUP:
            break
    return "\n".join(found)


def _squeezed(text: str) -> str:
    return " ".join(text.split())


def _str(given: Json, key: str) -> str:
    value = given.get(key)
    return value if isinstance(value, str) else ""


def _dict(given: Json, key: str) -> Json:
    value = given.get(key)
    return cast(Json, value) if isinstance(value, Mapping) else {}


def _rows(given: Json, key: str) -> Sequence[Json]:
    return json_objects(given.get(key))


def json_objects(value: object) -> list[dict[str, Any]]:
    """Return the objects of a JSON list; none of another value."""
    if not isinstance(value, list):
        return []
    return [cast("dict[str, Any]", one) for one in cast(list[object], value) if isinstance(one, dict)]


def _lists(value: object) -> Iterator[list[object]]:
    if isinstance(value, list):
        yield from (cast(list[object], one) for one in cast(list[object], value) if isinstance(one, list))


_SEQUENCE = re.compile(r"<([^<>]+)>")
_ENTITIES = (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&"))
_OTHER_FIRST = re.compile(r"\s*<(@[UW][A-Z0-9]+|!subteam\^[A-Z0-9]+)(\|[^<>]*)?>", re.ASCII)
_NAMED = re.compile(r"<(?:[@#]|!subteam\^)([A-Z0-9]{1,24})(?:\|[^<>]*)?>", re.ASCII)
_LONGEST_NAME = 64


def mentions(text: str, user: str) -> bool:
    """Return whether a text mentions a user."""
    return re.search(rf"<@{re.escape(user)}(\|[^<>]*)?>", text) is not None


def begins_with_mention(text: str, bot_user: str) -> bool:
    """Return whether a text begins with a mention of a user or a user group, apart from the bot."""
    return _OTHER_FIRST.match(_without(text, bot_user)) is not None


def named_in(text: str) -> Iterator[str]:
    """Yield the ids of the users, channels and user groups that a text mentions."""
    return (match[1] for match in _NAMED.finditer(text))


_NO_NAMES = NoNames()


def plain_text(text: str, bot_user: str, names: Names = _NO_NAMES) -> str:
    """Return a message's text without markup and without mentions of the bot."""

    def replaced(match: re.Match[str]) -> str:
        return _sequence_text(match[1], names)

    return _unescape(_SEQUENCE.sub(replaced, _without(text, bot_user))).strip()


def _without(text: str, bot_user: str) -> str:
    return re.sub(rf"<@{re.escape(bot_user)}(\|[^<>]*)?>[:,]?[ \t]*", "", text)


def _sequence_text(sequence: str, names: Names) -> str:
    inside, _, label = sequence.partition("|")
    sign, name = inside[:1], inside[1:]
    if sign == "@":
        return f"@{_one_line(names.username(name)) or label or name}"
    if sign == "#":
        return f"#{_one_line(names.title(name)).removeprefix('#') or label or name}"
    if sign == "!":
        kind, _, group = name.partition("^")
        handle = _one_line(names.handle(group)) if kind == "subteam" else ""
        return f"@{handle}" if handle else label or f"@{group or kind if kind == 'subteam' else kind}"
    return f"{label} ({inside})" if label and label not in inside else inside


def _one_line(name: str) -> str:
    """Return a name for use inside a text, where it must not look like a separate line."""
    return " ".join("".join(c if c.isprintable() else " " for c in name[:200]).split())[:_LONGEST_NAME]


def _unescape(text: str) -> str:
    for entity, mark in _ENTITIES:
        text = text.replace(entity, mark)
    return text


def shortened(text: str) -> str:
    """Return a quoted text, cut to its limit."""
    return text if len(text) <= LONGEST_QUOTE else f"{text[: LONGEST_QUOTE - 1]}…"
