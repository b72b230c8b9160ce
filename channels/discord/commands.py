"""Slash commands, context menus and buttons: their registration, and the interactions of users with them.

A command is stored, then acknowledged within Discord's limit of three seconds ("… is thinking"); its answer
replaces that text. A button belongs to a question, which the gateway keeps, so nothing of it is stored here.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec
import structlog

from channels.discord.api import INVALID_FORM, UNREACHABLE, Api, RateLimited, Refused
from channels.discord.delivery import ORIGINAL, Delivery
from channels.discord.inflow import COMMANDS, EventReader, StoredState
from channels.discord.parse import (
    ASK,
    ASK_ABOUT,
    ASK_WHO,
    TYPING,
    BotProfile,
    Chat,
    Interaction,
    chat_of,
    from_command,
    read,
    shared,
    time_of,
)
from channels.discord.questions import PREFIX, Questions, private_reply, without_buttons
from channels.discord.rooms import Chats, Roles
from gateway import MentionCompletion, SlashCommand, now_ms
from gateway.channel import Cursor, InboundMessage, OverloadedError, Receive

log = structlog.get_logger("trunkline.discord")

_NAME = re.compile(r"[-_'\w]{1,32}")
_CHAT, _USER, _MESSAGE, _STRING = 1, 2, 3, 3
"""Types of commands (slash command, menu of a user, menu of a message), and of a text option."""
_REFUSED_INDEX = re.compile(r"^In ([0-9]+)[.:]", re.MULTILINE)
"""Index of a refused command in the text of an error."""
_MAX_NAMED = 5
_MAX_COMMANDS = 100
_MAX_OPTION = 6000
_ADMINISTRATOR = "8"
"""Permission that a user needs to see admin commands, unless a server's settings override it."""
_EVERYWHERE = [0, 1]
"""Contexts of a command: servers and direct messages with the bot."""
_REGISTER_SECONDS = 60
_FILE_SECONDS = 1.5
"""Longest download of the files of a message that a menu was opened on: the response is due in 3 seconds."""
_CALLBACK = "/interactions/{interaction_id}/{interaction_token}/callback"
_COMMAND, _BUTTON = 2, 3
"""Types of interactions."""
_DEFER, _CHOICES = 5, 8
"""Types of responses: "… is thinking", and choices of an option."""
_MAX_CHOICES, _MAX_CHOICE = 25, 100
_CHOICES_SECONDS = 2.0
"""Longest search for choices: the response is due in 3 seconds."""
Complete = Callable[[InboundMessage, str, str], Awaitable[Sequence[MentionCompletion]]]
"""Returns what the sender of a command, by its name, can select for the text typed so far."""
Answer = Callable[[dict[str, Any]], Awaitable[bool]]
"""Sends the response to an interaction that came over HTTP. Returns False if the request has ended."""
_SHOWN_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds between the attempts to find a response that Discord does not confirm."""
_ATTEMPTS = 3
_ALREADY_ACKNOWLEDGED = 40060
_UNKNOWN_COMMAND = "This command no longer exists."
_UNAUTHORIZED = "You are not authorized to use this bot."
_ELSEWHERE = "This bot does not answer in this channel."
_BUSY = "Too many messages are waiting. Please try again in a moment."


def definitions(commands: Iterable[SlashCommand]) -> list[dict[str, Any]]:
    """Return the definitions of the commands to register, without names that Discord does not accept."""
    known = {command.name: _definition(command) for command in commands if _is_valid_name(command.name)}
    known.setdefault(ASK, _slash_command(ASK, "Ask something", required=True))
    chat = [body for _, body in sorted(known.items())]
    menus = [{"name": ASK_ABOUT, "type": _MESSAGE}, {"name": ASK_WHO, "type": _USER}]
    return [*chat[:_MAX_COMMANDS], *({**menu, "contexts": _EVERYWHERE} for menu in menus)]


async def register(
    api: Api,
    delivery: Delivery,
    commands: Sequence[SlashCommand],
    state: StoredState,
    receive: Receive,
    report: Callable[[str], None],
) -> None:
    """Register the commands, unless the same ones were registered before.

    Commands that Discord refuses are left out, and named to ``report``. A failed attempt is repeated every
    minute.
    """
    wanted = definitions(commands)
    names = {body["name"] for body in wanted}
    left_out = [command.name for command in commands if command.name not in names]
    report(_unregistered(left_out))
    while True:
        try:
            application = await delivery.application()
            digest = _digest(application, wanted)
            if digest != state.commands:
                refused = await _replace_all(api, application, wanted)
                report(_unregistered([*left_out, *refused]))
                # Refused commands are tried and reported again at the next start.
                if not refused:
                    await receive(cursor=Cursor(state.account, digest, COMMANDS))
            return
        except Refused as error:
            log.error("Discord refused the commands", reason=str(error))
            report(f"Discord refused the commands: {error}")
            return
        except Exception as error:  # noqa: BLE001 - the channel works without commands, too
            log.warning(
                "registration of the commands failed; retrying", reason=str(error) or type(error).__name__
            )
            await asyncio.sleep(_REGISTER_SECONDS)


async def _replace_all(api: Api, application: str, wanted: Sequence[dict[str, Any]]) -> list[str]:
    """Register commands, without those that Discord refuses; return the names of these."""
    path, left_out = "/applications/{application_id}/commands", list[str]()
    while True:
        try:
            await api.call_with_retries("PUT", path, wanted, application_id=application)
            return left_out
        except Refused as refused:
            invalid = {int(index) for index in _REFUSED_INDEX.findall(str(refused))}
            kept = [body for index, body in enumerate(wanted) if index not in invalid]
            if refused.code != INVALID_FORM or len(kept) == len(wanted):
                raise
            names = [body["name"] for index, body in enumerate(wanted) if index in invalid]
            log.error("Discord refused some commands", names=names, reason=str(refused))
            left_out += names
            wanted = kept


def _unregistered(names: Sequence[str]) -> str:
    """Return the text of the health report about commands that are not registered."""
    if not names:
        return ""
    shown = ", ".join(sorted(names)[:_MAX_NAMED]) + (", …" if len(names) > _MAX_NAMED else "")
    return f"not registered as commands, because Discord does not accept them: {shown}"


def _digest(application: str, wanted: Sequence[Any]) -> str:
    return hashlib.blake2b(msgspec.json.encode([application, wanted]), digest_size=16).hexdigest()


def _is_valid_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name == name.lower()


def _definition(command: SlashCommand) -> dict[str, Any]:
    body = _slash_command(command.name, command.description, completes=command.choices is not None)
    return body | {"default_member_permissions": _ADMINISTRATOR} if command.admin else body


def _slash_command(
    name: str, text: str, *, required: bool = False, completes: bool = False
) -> dict[str, Any]:
    option = {"type": _STRING, "name": "text", "description": "Argument", "required": required}
    if completes:
        option["autocomplete"] = True
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
        self,
        api: Api,
        chats: Chats,
        roles: Roles,
        reader: EventReader,
        delivery: Delivery,
        questions: Questions,
        bot: BotProfile,
        complete: Complete,
    ) -> None:
        self._bot = bot
        self._complete = complete
        self._api = api
        self._chats = chats
        self._roles = roles
        self._reader = reader
        self._delivery = delivery
        self._questions = questions
        self._answers: dict[str, Answer] = {}

    async def process(self, data: Any, receive: Receive, answer: Answer | None = None) -> None:
        """Process an interaction; types other than a command, a button and a typed option are ignored.

        The response is passed to ``answer``, or posted to Discord without it. Raises PARSE_ERRORS for an
        invalid interaction, and the errors of ``receive`` except OverloadedError.
        """
        interaction = read(data, Interaction)
        if answer is not None:
            self._answers[interaction.id] = answer
        try:
            await self._process(interaction, receive)
        finally:
            self._answers.pop(interaction.id, None)

    async def _process(self, interaction: Interaction, receive: Receive) -> None:
        self._note_roles(interaction)
        if interaction.type == _BUTTON:
            await self._press(interaction)
        elif interaction.type == _COMMAND:
            await self._command(interaction, receive)
        elif interaction.type == TYPING:
            choices = await self._choices(interaction)
            await self._respond(interaction, {"type": _CHOICES, "data": {"choices": choices}})

    async def _choices(self, interaction: Interaction) -> list[dict[str, str]]:
        """Return the choices of the option that a user types; none if they are not found in time."""
        message, data = from_command(interaction, self._chat(interaction), self._bot), interaction.data
        if message is None or data is None:
            return []
        typed = next((str(option.value or "") for option in data.options if option.focused), "")
        try:
            async with asyncio.timeout(_CHOICES_SECONDS):
                offers = await self._complete(message, data.name, typed)
        except TimeoutError:
            log.info("the choices of a command were not found in time", command=data.name)
            return []
        return [
            {"name": f"{one.label}: {one.description}".removesuffix(": ")[:_MAX_CHOICE], "value": one.value}
            for one in offers
            if 0 < len(one.value) <= _MAX_CHOICE
        ][:_MAX_CHOICES]

    async def _press(self, interaction: Interaction) -> None:
        person, data = interaction.person, interaction.data
        if person is not None and data is not None and data.custom_id.startswith(PREFIX):
            await self._respond(
                interaction, await self._questions.press(data.custom_id, person.id, interaction.message_id)
            )
        else:
            await self._respond(interaction, without_buttons())

    async def _command(self, interaction: Interaction, receive: Receive) -> None:
        message = from_command(interaction, self._chat(interaction), self._bot)
        if message is None:
            await self._respond(interaction, private_reply(_UNKNOWN_COMMAND))
            return
        attention = self._reader.attend(message)
        if attention == "ignore":
            await self._respond(interaction, private_reply(_ELSEWHERE))
            return
        pointed, is_answered = shared(interaction, self._bot), attention == "answer"
        message = await self._reader.with_files(message, (), pointed, read=is_answered, seconds=_FILE_SECONDS)
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
        answer = self._answers.pop(interaction.id, None)
        if answer is not None and await answer(body):
            if body["type"] == _DEFER:
                await self._wait_until_shown(interaction)
            return True
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

    async def _wait_until_shown(self, interaction: Interaction) -> None:
        """Wait until Discord shows "… is thinking" after it was sent as an HTTP response.

        Until then Discord refuses to replace that text, and the answer would be a message beside it.
        """
        for pause in _SHOWN_PAUSES:
            try:
                application = await self._delivery.application()
                await self._api.call("GET", ORIGINAL, webhook_id=application, webhook_token=interaction.token)
            except (Refused, *UNREACHABLE):
                await asyncio.sleep(pause)
            else:
                return

    def _note_roles(self, interaction: Interaction) -> None:
        member, person = interaction.member, interaction.person
        if interaction.guild_id is not None and member is not None and person is not None:
            age = (now_ms() - time_of(interaction.id)) / 1000
            self._roles.note(interaction.guild_id, person.id, member.roles, age)

    def _chat(self, interaction: Interaction) -> Chat:
        """Return the chat of an interaction. Raises msgspec.ValidationError if it names none."""
        key = interaction.channel_id
        if key is None:
            raise msgspec.ValidationError("an interaction without a channel")
        if interaction.guild_id is None:
            return Chat(key, "dm")
        known = self._chats.known(key)
        if known is not None or interaction.channel is None:
            return known or Chat(key, "channel", guild=interaction.guild_id)
        return self._chats.put(chat_of(interaction.channel, self._bot.account))
