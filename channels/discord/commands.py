"""Slash commands, context menus and buttons: their registration, and the interactions of users with them.

A command is stored, then acknowledged within Discord's limit of three seconds ("… is thinking"); its answer
replaces that text. A button belongs to an approval, which a restart forgets, so nothing of it is stored.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import structlog

from channels.discord.api import UNREACHABLE, Api, RateLimited, Refused
from channels.discord.approvals import PREFIX, Approvals, private_reply, without_buttons
from channels.discord.cursor import COMMANDS, StoredState
from channels.discord.delivery import Delivery
from channels.discord.inflow import Chats
from channels.discord.parse import (
    ASK,
    ASK_ABOUT,
    ASK_WHO,
    BotProfile,
    Chat,
    Interaction,
    chat_of,
    from_command,
    read,
)
from gateway import SlashCommand
from gateway.channel import Cursor, InboundMessage, OverloadedError, Receive

log = structlog.get_logger("trunkline.discord")

_NAME = re.compile(r"[-_'\w]{1,32}")
_CHAT, _USER, _MESSAGE, _STRING = 1, 2, 3, 3
"""Types of commands (slash command, menu of a user, menu of a message), and of a text option."""
_MAX_COMMANDS = 100
_MAX_OPTION = 6000
_ADMINISTRATOR = "8"
"""Permission that a user needs to see admin commands, unless a server's settings override it."""
_EVERYWHERE = [0, 1]
"""Contexts of a command: servers and direct messages with the bot."""
_REGISTER_SECONDS = 60
_CALLBACK = "/interactions/{interaction_id}/{interaction_token}/callback"
_COMMAND, _BUTTON = 2, 3
"""Types of interactions."""
_DEFER = 5
"""Type of the response that shows "… is thinking"."""
_ATTEMPTS = 3
_ALREADY_ACKNOWLEDGED = 40060
_UNKNOWN_COMMAND = "This command no longer exists."
_UNAUTHORIZED = "You are not authorized to use this bot."
_BUSY = "Too many messages are waiting. Please try again in a moment."


def definitions(commands: Iterable[SlashCommand]) -> list[dict[str, Any]]:
    """Return the definitions of the commands to register, without names that Discord does not accept."""
    known = {command.name: _definition(command) for command in commands if _is_valid_name(command.name)}
    known.setdefault(ASK, _slash_command(ASK, "Ask something", required=True))
    chat = [body for _, body in sorted(known.items())]
    menus = [{"name": ASK_ABOUT, "type": _MESSAGE}, {"name": ASK_WHO, "type": _USER}]
    return [*chat[:_MAX_COMMANDS], *({**menu, "contexts": _EVERYWHERE} for menu in menus)]


async def register(
    api: Api, delivery: Delivery, commands: Iterable[SlashCommand], state: StoredState, receive: Receive
) -> None:
    """Register the commands, unless the same ones were registered before.

    A failed attempt is repeated every minute, a refused one is not.
    """
    wanted = definitions(commands)
    while True:
        try:
            application = await delivery.application()
            digest = _digest(application, wanted)
            if digest != state.commands:
                await api.call_with_retries(
                    "PUT", "/applications/{application_id}/commands", wanted, application_id=application
                )
                await receive(cursor=Cursor(state.account, digest, COMMANDS))
            return
        except Refused as refused:
            log.error("Discord refused the commands", reason=str(refused))
            return
        except Exception as error:  # noqa: BLE001 - the channel works without commands, too
            log.warning(
                "registration of the commands failed; retrying", reason=str(error) or type(error).__name__
            )
            await asyncio.sleep(_REGISTER_SECONDS)


def _digest(application: str, wanted: Sequence[Any]) -> str:
    return hashlib.blake2b(msgspec.json.encode([application, wanted]), digest_size=16).hexdigest()


def _is_valid_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name == name.lower()


def _definition(command: SlashCommand) -> dict[str, Any]:
    body = _slash_command(command.name, command.description)
    return body | {"default_member_permissions": _ADMINISTRATOR} if command.admin else body


def _slash_command(name: str, text: str, *, required: bool = False) -> dict[str, Any]:
    option = {"type": _STRING, "name": "text", "description": "Argument", "required": required}
    return {
        "name": name,
        "type": _CHAT,
        "description": (" ".join(text.split()) or name)[:100],
        "options": [{**option, "max_length": _MAX_OPTION}],
        "contexts": _EVERYWHERE,
    }


class Interactions:
    """Intake of interactions. Each is processed at once, independent of the order of messages."""

    def __init__(
        self, api: Api, chats: Chats, delivery: Delivery, approvals: Approvals, bot: BotProfile
    ) -> None:
        self._bot = bot
        self._api = api
        self._chats = chats
        self._delivery = delivery
        self._approvals = approvals

    async def process(self, data: Any, receive: Receive) -> None:
        """Process an interaction; types other than command and button are ignored.

        Raises PARSE_ERRORS for an invalid one, and the errors of ``receive`` except OverloadedError.
        """
        interaction = read(data, Interaction)
        if interaction.type == _BUTTON:
            await self._press(interaction)
        elif interaction.type == _COMMAND:
            await self._command(interaction, receive)

    async def _press(self, interaction: Interaction) -> None:
        person, data = interaction.person, interaction.data
        if person is not None and data is not None and data.custom_id.startswith(PREFIX):
            await self._respond(interaction, await self._approvals.press(data.custom_id, person.id))
        else:
            await self._respond(interaction, without_buttons())

    async def _command(self, interaction: Interaction, receive: Receive) -> None:
        message = from_command(interaction, self._chat(interaction), self._bot)
        if message is None:
            await self._respond(interaction, private_reply(_UNKNOWN_COMMAND))
            return
        acknowledgement: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._delivery.acknowledgements.put(interaction.id, acknowledgement)
        acknowledged = False
        try:
            acknowledged = await self._accept(interaction, message, receive)
        finally:
            if not acknowledgement.done():
                acknowledgement.set_result(acknowledged)

    async def _accept(self, interaction: Interaction, message: InboundMessage, receive: Receive) -> bool:
        """Store a command and acknowledge it. Returns whether "… is thinking" is shown."""
        try:
            (receipt,) = await receive(message)
        except OverloadedError:
            await self._respond(interaction, private_reply(_BUSY))
            return False
        if receipt.refused:
            await self._respond(interaction, private_reply(_BUSY))
            return False
        if receipt.ignored:
            await self._respond(interaction, private_reply(_UNAUTHORIZED))
            return False
        if receipt.duplicate:
            # The first arrival was acknowledged, or else its three seconds are over.
            return True
        return await self._respond(interaction, {"type": _DEFER})

    async def _respond(self, interaction: Interaction, body: dict[str, Any]) -> bool:
        """Send the only response that an interaction may have. Returns whether it has one now."""
        for _ in range(_ATTEMPTS):
            try:
                await self._api.call(
                    "POST",
                    _CALLBACK,
                    body,
                    interaction_id=interaction.id,
                    interaction_token=interaction.token,
                )
            except Refused as refused:
                if refused.code != _ALREADY_ACKNOWLEDGED:
                    log.info("Discord refused the response to an interaction", reason=str(refused))
                return refused.code == _ALREADY_ACKNOWLEDGED
            except UNREACHABLE as error:
                await asyncio.sleep(min(error.seconds, 1.0) if isinstance(error, RateLimited) else 0.1)
            else:
                return True
        return False

    def _chat(self, interaction: Interaction) -> Chat:
        """Return the chat of an interaction. Raises msgspec.ValidationError if it names none."""
        key = interaction.channel_id
        if key is None:
            raise msgspec.ValidationError("an interaction without a channel")
        if interaction.guild_id is None:
            return Chat(key, "dm")
        known = self._chats.known(key)
        if known is not None or interaction.channel is None:
            return known or Chat(key, "channel")
        return self._chats.put(chat_of(interaction.channel, self._bot.account))
