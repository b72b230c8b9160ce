"""Slack's markup of what people write, as the plain text that they meant."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(r"<([^<>]+)>")
_ENTITIES = (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&"))


def mentions(text: str, user: str) -> bool:
    """Whether a text mentions a user."""
    return re.search(rf"<@{re.escape(user)}(\|[^<>]*)?>", text) is not None


def plain(text: str, bot_user: str) -> str:
    """What was written, without the bot's own name."""
    text = re.sub(rf"<@{re.escape(bot_user)}(\|[^<>]*)?>[:,]?[ \t]*", "", text)
    return _unescaped(_SEQUENCE.sub(_meant, text)).strip()


def escaped(text: str) -> str:
    """Text that says only what it says."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _meant(match: re.Match[str]) -> str:
    inside, _, label = match.group(1).partition("|")
    sign, name = inside[0], inside[1:]
    if sign == "@":
        return f"@{label or name}"
    if sign == "#":
        return f"#{label or name}"
    if sign == "!":
        return label or f"@{name.partition('^')[0]}"
    return f"{label} ({inside})" if label and label not in inside else inside


def _unescaped(text: str) -> str:
    for entity, mark in _ENTITIES:
        text = text.replace(entity, mark)
    return text
