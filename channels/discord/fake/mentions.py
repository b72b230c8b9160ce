"""Whom a text pings: what it mentions, less what ``allowed_mentions`` keeps quiet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from channels.discord.fake.errors import invalid
from channels.discord.fake.nouns import Json, Mentions

_USER: Final = re.compile(r"<@!?(\d+)>")
_ROLE: Final = re.compile(r"<@&(\d+)>")
_EVERYONE: Final = re.compile(r"@(everyone|here)")
_TEXT_DISPLAY: Final = 10


def mentioned(text: str) -> Mentions:
    """All that a text mentions."""
    return Mentions(
        tuple(dict.fromkeys(int(user) for user in _USER.findall(text))),
        tuple(dict.fromkeys(int(role) for role in _ROLE.findall(text))),
        _EVERYONE.search(text) is not None,
    )


def pinged(text: str, allowed: Mapping[str, Any] | None) -> Mentions:
    """What of it pings. Without ``allowed_mentions`` everything does."""
    found = mentioned(text)
    if allowed is None:
        return found
    parse: Sequence[str] = allowed.get("parse") or ()
    users = [int(user) for user in allowed.get("users") or ()]
    roles = [int(role) for role in allowed.get("roles") or ()]
    return Mentions(
        tuple(user for user in found.users if "users" in parse or user in users),
        tuple(role for role in found.roles if "roles" in parse or role in roles),
        found.everyone and "everyone" in parse,
    )


def check_allowed(allowed: Mapping[str, Any] | None) -> None:
    """Raises ApiError when ``allowed_mentions`` contradicts itself."""
    for kind in ("users", "roles"):
        given = (allowed or {}).get(kind)
        if given and kind in ((allowed or {}).get("parse") or ()):
            message = f'parse:["{kind}"] and {kind}: [ids...] are mutually exclusive.'
            raise invalid("allowed_mentions", "MESSAGE_ALLOWED_MENTIONS_PARSE_EXCLUSIVE", message)


def replied_user_pinged(allowed: Mapping[str, Any] | None) -> bool:
    """Whether an answer pings the person that it answers."""
    return True if allowed is None else bool(allowed.get("replied_user"))


def shown_text(content: str, components: Sequence[Json]) -> str:
    """All text of a message in which mentions count: its content, and components that show text."""
    return "\n".join([content, *_texts(components)])


def _texts(components: Sequence[Json]) -> Iterator[str]:
    for component in components:
        if component.get("type") == _TEXT_DISPLAY:
            yield component.get("content", "")
        yield from _texts(component.get("components") or ())
