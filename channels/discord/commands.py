"""The bot's commands as registered with Discord: slash commands and context menus."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import structlog

from channels.discord.api import Api, Refused
from channels.discord.parse import ASK, ASK_ABOUT, ASK_WHO
from gateway import SlashCommand

log = structlog.get_logger("trunkline.discord")

_NAME = re.compile(r"[-_'\w]{1,32}")
_CHAT, _USER, _MESSAGE, _STRING = 1, 2, 3, 3
_MOST_CHAT = 100
_LONGEST = 6000
_ADMINISTRATOR = "8"
"""Permission that a user needs to see admin commands, unless a server's settings override it."""
_EVERYWHERE = [0, 1]


def registrations(commands: Iterable[SlashCommand]) -> list[dict[str, Any]]:
    """Return the commands to register. Names that Discord does not accept are left out."""
    known = {command.name: _typed(command) for command in commands if _is_name(command.name)}
    known.setdefault(ASK, _described(ASK, "Ask something", required=True))
    chat = [body for _, body in sorted(known.items())]
    menus = [{"name": ASK_ABOUT, "type": _MESSAGE}, {"name": ASK_WHO, "type": _USER}]
    return [*chat[:_MOST_CHAT], *({**menu, "contexts": _EVERYWHERE} for menu in menus)]


def print_of(app: str, registered: Sequence[Any]) -> str:
    """Return a hash of the commands; a different one means that they have to be registered again."""
    return hashlib.blake2b(msgspec.json.encode([app, registered]), digest_size=16).hexdigest()


async def register(api: Api, app: str, registered: Sequence[Any]) -> bool:
    """Register the commands. Returns whether Discord accepted them."""
    try:
        await api.insist("PUT", "/applications/{application_id}/commands", registered, application_id=app)
    except Refused as refused:
        log.error("Discord does not take the commands", reason=str(refused))
        return False
    return True


def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name == name.lower()


def _typed(command: SlashCommand) -> dict[str, Any]:
    body = _described(command.name, command.description)
    return body | {"default_member_permissions": _ADMINISTRATOR} if command.admin else body


def _described(name: str, text: str, *, required: bool = False) -> dict[str, Any]:
    option = {"type": _STRING, "name": "text", "description": "What goes with it", "required": required}
    return {
        "name": name,
        "type": _CHAT,
        "description": (" ".join(text.split()) or name)[:100],
        "options": [{**option, "max_length": _LONGEST}],
        "contexts": _EVERYWHERE,
    }
