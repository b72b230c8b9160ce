"""The bot's commands as registered with Discord: slash commands and context menus."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import aiohttp
import msgspec
import structlog

from channels.discord.api import Api, Broken, Later, Refused
from channels.discord.approvals import PREFIX, Prompts, expired, whisper
from channels.discord.delivery import Places
from channels.discord.inflow import Rooms
from channels.discord.parse import (
    ASK,
    ASK_ABOUT,
    ASK_WHO,
    Interaction,
    Room,
    View,
    from_command,
    read,
    room_of,
)
from gateway import SlashCommand
from gateway.channel import InboundMessage, OverloadedError, Receive

log = structlog.get_logger("trunkline.discord")

_NAME = re.compile(r"[-_'\w]{1,32}")
_CHAT, _USER, _MESSAGE, _STRING = 1, 2, 3, 3
_MOST_CHAT = 100
_LONGEST = 6000
_ADMINISTRATOR = "8"
"""Permission that a user needs to see admin commands, unless a server's settings override it."""
_EVERYWHERE = [0, 1]
_CALLBACK = "/interactions/{interaction_id}/{interaction_token}/callback"
_COMMAND, _PRESSED = 2, 3
_DEFER = 5
_TRIES = 3
_ALREADY = 40060
_COMMANDS_ONLY = "I do not know this command any more."
_STRANGER = "I do not know you, so I may not answer."
_BUSY = "Too much is waiting to be answered. Please try again in a moment."


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


class Interactions:
    """Intake of interactions. Each is processed at once, independent of the order of messages."""

    def __init__(self, api: Api, rooms: Rooms, places: Places, prompts: Prompts, view: View) -> None:
        self.view = view
        self._api = api
        self._rooms = rooms
        self._places = places
        self._prompts = prompts

    async def take(self, data: Any, receive: Receive) -> None:
        """Process an interaction. Raises MISFITS for an invalid one, and the errors of ``receive`` except
        overload."""
        interaction = read(data, Interaction)
        if interaction.type == _PRESSED:
            await self._press(interaction)
        elif interaction.type == _COMMAND:
            await self._command(interaction, receive)

    async def _press(self, interaction: Interaction) -> None:
        person, data = interaction.person, interaction.data
        if person is not None and data is not None and data.custom_id.startswith(PREFIX):
            await self._respond(interaction, await self._prompts.press(data.custom_id, person.id))
        else:
            await self._respond(interaction, expired())

    async def _command(self, interaction: Interaction, receive: Receive) -> None:
        message = from_command(interaction, self._room(interaction), self.view)
        if message is None:
            await self._respond(interaction, whisper(_COMMANDS_ONLY))
            return
        deferral: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._places.deferrals.put(interaction.id, deferral)
        worked = False
        try:
            worked = await self._accept(interaction, message, receive)
        finally:
            if not deferral.done():
                deferral.set_result(worked)

    async def _accept(self, interaction: Interaction, message: InboundMessage, receive: Receive) -> bool:
        """Make a command durable, and acknowledge it. Returns whether "… is thinking" is shown."""
        try:
            (receipt,) = await receive(message)
        except OverloadedError:
            await self._respond(interaction, whisper(_BUSY))
            return False
        if receipt.refused:
            await self._respond(interaction, whisper(_BUSY))
            return False
        if receipt.ignored:
            await self._respond(interaction, whisper(_STRANGER))
            return False
        if receipt.duplicate:  # it was acknowledged on its first arrival; if not, its three seconds are over
            return True
        return await self._respond(interaction, {"type": _DEFER})

    async def _respond(self, interaction: Interaction, body: dict[str, Any]) -> bool:
        """Respond to an interaction, which is possible once. Returns whether it has a response."""
        for _ in range(_TRIES):
            try:
                await self._api.call(
                    "POST",
                    _CALLBACK,
                    body,
                    interaction_id=interaction.id,
                    interaction_token=interaction.token,
                )
            except Refused as refused:
                if refused.code != _ALREADY:
                    log.info("an interaction could not be answered", reason=str(refused))
                return refused.code == _ALREADY
            except (Later, Broken, aiohttp.ClientError, OSError) as error:
                await asyncio.sleep(min(error.seconds, 1.0) if isinstance(error, Later) else 0.1)
            else:
                return True
        return False

    def _room(self, interaction: Interaction) -> Room:
        """Return the chat of an interaction. Raises msgspec.ValidationError."""
        key = interaction.channel_id
        if key is None:
            raise msgspec.ValidationError("an interaction without a room")
        if interaction.guild_id is None:
            return Room(key, "dm")
        known = self._rooms.known(key)
        if known is not None or interaction.channel is None:
            return known or Room(key, "channel")
        return self._rooms.put(room_of(interaction.channel, self.view.account))
