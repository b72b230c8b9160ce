"""Commands and buttons: interactions of users other than messages.

A command is made durable, then acknowledged within Discord's limit of three seconds ("… is thinking"); its
answer replaces that text. A button belongs to an approval, which lives only as long as the process, so
nothing of it is stored.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec
import structlog

from channels.discord.api import Api, Broken, Later, Refused
from channels.discord.parse import View, from_command
from channels.discord.placing import Places
from channels.discord.prompts import PREFIX, Prompts, expired, whisper
from channels.discord.rooms import Room, Rooms, room_of
from channels.discord.wire import Interaction, read
from gateway.channel import InboundMessage, OverloadedError, Receive

log = structlog.get_logger("trunkline.discord")

_CALLBACK = "/interactions/{interaction_id}/{interaction_token}/callback"
_COMMAND, _PRESSED = 2, 3
_DEFER = 5
_TRIES = 3
_ALREADY = 40060
_COMMANDS_ONLY = "I do not know this command any more."
_STRANGER = "I do not know you, so I may not answer."
_BUSY = "Too much is waiting to be answered. Please try again in a moment."


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
