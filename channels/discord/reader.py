"""Conversion of Discord's events to gateway messages, including their files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec
import structlog

from channels.discord import parse
from channels.discord.api import Api, Broken, Later, Refused
from channels.discord.files import is_ours, received
from channels.discord.parse import View
from channels.discord.placing import Places
from channels.discord.rooms import Room, Rooms
from channels.discord.wire import Attachment, Deleted, Message, read
from gateway import FilePart, Part
from gateway.channel import Audio, InboundMessage, Rejected, Withdrawal

log = structlog.get_logger("trunkline.discord")

_LOADING_SECONDS = 20.0
_KEPT_RAW = 64_000
_TITLE = 80
MISFITS = (msgspec.ValidationError, ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""Errors that reading an invalid event raises."""


class Reader:
    """Reader for the events of one bot."""

    def __init__(self, api: Api, rooms: Rooms, places: Places, view: View) -> None:
        self.view = view
        self._api = api
        self._rooms = rooms
        self._places = places

    async def message(self, data: Any, *, room: Room | None = None) -> InboundMessage | None:
        """Return a new message; None if it needs no answer. Raises MISFITS."""
        said = msgspec.structs.replace(read(data, Message), edited_timestamp=None)
        self._places.note(said.channel_id, said.id)
        if said.author.id == self.view.account:
            self._rooms.join(said.channel_id)
        return await self._inbound(said, room)

    async def past(self, data: Any, room: Room) -> list[InboundMessage]:
        """A message of a room's history, and its new wording if it was changed; none when it needs no answer.

        They go together: then what still tells of an older wording tells nothing new. Raises MISFITS.
        """
        found = [await self.message(data, room=room), await self.changed(data, room=room)]
        return [message for message in found if message is not None]

    async def changed(self, data: Any, *, room: Room | None = None) -> InboundMessage | None:
        """Return an edited message; None if it needs no new answer. Raises MISFITS."""
        if self.view.options.edits == "ignore" or not isinstance(data, dict) or "author" not in data:
            return None
        said = read(data, Message)
        # Without this time no user edited it: Discord added a link preview, or opened a thread.
        return None if said.edited_timestamp is None else await self._inbound(said, room)

    def removed(self, data: Any) -> list[Withdrawal]:
        """Return the deleted messages, including those that were not for the bot. Raises MISFITS."""
        gone = read(data, Deleted)
        keys = (*gone.ids, *(() if gone.id is None else (gone.id,)))
        return [Withdrawal(self.view.account, key) for key in keys]

    def rejected(self, key: str, raw: object, why: object) -> Rejected:
        """Return an event that could not be read, for quarantine."""
        if not isinstance(raw, str):
            try:
                raw = msgspec.json.encode(raw).decode()
            except (TypeError, ValueError, RecursionError):
                raw = repr(raw)[:_KEPT_RAW]
        log.warning("an event could not be read", name=key, reason=_sound(str(why))[:200])
        return Rejected(self.view.account, key, _sound(raw)[:_KEPT_RAW], _sound(str(why))[:1000])

    async def _inbound(self, said: Message, room: Room | None) -> InboundMessage | None:
        view = self.view
        if not parse.is_speech(said, view.account):
            return None
        if room is None:
            room = await self._rooms.of(said.channel_id, said.guild_id, said.channel_type, view.account)
        if not parse.is_meant(said, room, view):
            return None
        parts, audio = await self._files(said.attachments)
        message = parse.inbound(said, room, view, parts, audio)
        if not (message.text or message.parts or message.audio):
            return None
        if message.address.thread == said.id:
            self._places.titles.put(said.id, " ".join(message.text.split())[:_TITLE].strip())
        return message

    async def _files(self, attachments: Sequence[Attachment]) -> tuple[list[Part], Audio | None]:
        """What hangs on a message. What cannot be had is named."""
        parts: list[Part] = []
        audio: Audio | None = None
        for got in await asyncio.gather(*map(self._file, attachments)):
            if isinstance(got, Audio):
                audio = audio or got
            else:
                parts.append(got)
        return parts, audio

    async def _file(self, attachment: Attachment) -> Part | Audio:
        view, why = self.view.options, ""
        if attachment.size > view.file_bytes:
            why = f"it is larger than {view.file_bytes} bytes"
        elif not is_ours(attachment.url, view.api_base_url):
            why = "it does not lie with Discord"
        else:
            try:
                async with asyncio.timeout(_LOADING_SECONDS):
                    data = await self._api.download(attachment.url)
                if len(data) <= view.file_bytes:
                    return received(attachment, data)
                why = f"it is larger than {view.file_bytes} bytes"
            except (Refused, Later, Broken, aiohttp.ClientError, OSError) as error:
                why = f"it could not be loaded ({type(error).__name__})"
        named = received(attachment, b"")
        name = named.path if isinstance(named, FilePart) else attachment.filename
        return FilePart(name, f"[This file was not read: {why}.]")


def _sound(text: str) -> str:
    """Return a text that every database accepts."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
