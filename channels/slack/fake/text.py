"""Slack's markup: typed text becomes sequences, and an app's text is searched for mentions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from channels.slack.fake.state import Json, Workspace

_PING = re.compile(
    r"<(?:!(?:here|channel|everyone|group)(?:\|[^<>]*)?|!subteam\^\w+(?:\|[^<>]*)?|@[UW]\w+(?:\|[^<>]*)?)>"
)
_SEQUENCE = re.compile(r"<(?:[@#!][\w^]+[^<>]*|[a-z][a-z0-9+.-]*:[^<>]+)>")
_TYPED = re.compile(r"https?://[^\s<>]*[^\s<>.,;:!?)]|(?<!\w)([@#])([\w-]+(?:\.[\w-]+)*)")
_BROADCASTS = ("here", "channel", "everyone")


def typed(text: str, team: Workspace) -> str:
    """Return typed text as a client sends it: escaped, with links, ``@name`` and ``#room`` as sequences."""
    kept: list[str] = []
    end = 0
    for match in _TYPED.finditer(text):
        kept += [escaped(text[end : match.start()]), _meant(match, team)]
        end = match.end()
    return "".join([*kept, escaped(text[end:])])


def _meant(match: re.Match[str], team: Workspace) -> str:
    sign, name = match.groups()
    if sign is None:
        return f"<{escaped(match.group())}>"
    if sign == "@" and name in _BROADCASTS:
        return f"<!{name}>"
    if sign == "@" and (user := team.user(name)) is not None:
        return f"<@{user.id}>"
    if sign == "#" and (room := team.named(name)) is not None:
        return f"<#{room.id}|{room.name}>"
    return match.group()


def escaped(text: str) -> str:
    """Text without a meaning of its own."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def stored(text: str) -> str:
    """Return an app's text as the platform stores it: escaped, except sequences and entities."""
    kept: list[str] = []
    end = 0
    for match in _SEQUENCE.finditer(text):
        kept += [_bare(text[end : match.start()]), match.group()]
        end = match.end()
    return "".join([*kept, _bare(text[end:])])


def pings(text: str, allowed: set[str]) -> Iterator[str]:
    """Return the sequences in a text that notify users who may not be notified."""
    for match in _PING.finditer(text):
        if not any(name in match.group() for name in allowed):
            yield match.group()


def stray(text: str) -> bool:
    """Return whether a text has a ``<`` that begins no sequence and should have been escaped."""
    return "<" in _SEQUENCE.sub("", text)


def rich_text(text: str) -> list[Json]:
    """The block that a client makes of what a person typed, given as sequences."""
    elements: list[Json] = []
    end = 0
    for match in _SEQUENCE.finditer(text):
        elements += _text(text[end : match.start()])
        elements.append(_element(match.group()[1:-1]))
        end = match.end()
    section = {"type": "rich_text_section", "elements": [*elements, *_text(text[end:])]}
    return [{"type": "rich_text", "block_id": "typed", "elements": [section]}]


def _text(text: str) -> list[Json]:
    return [{"type": "text", "text": unescaped(text)}] if text else []


def unescaped(text: str) -> str:
    """Text as it is read."""
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _element(inside: str) -> Json:
    name, _, label = inside.partition("|")
    if inside.startswith("@"):
        return {"type": "user", "user_id": name[1:]}
    if inside.startswith("#"):
        return {"type": "channel", "channel_id": name[1:]}
    if inside.startswith("!"):
        return {"type": "broadcast", "range": name[1:]}
    return {"type": "link", "url": name, **({"text": label} if label else {})}


def _bare(text: str) -> str:
    text = re.sub(r"&(?!amp;|lt;|gt;)", "&amp;", text)
    return text.replace("<", "&lt;").replace(">", "&gt;")
