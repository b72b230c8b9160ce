"""The page of the fake Telegram, and what its control interface can do."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from channels.telegram.fake.messages import shown_drafts
from channels.telegram.fake.state import Chat, Kind, Message, World, chat_json, message_json
from gateway.testing.fake_platform import Control

if TYPE_CHECKING:
    from channels.telegram.fake.server import FakeTelegram


class TelegramControl(Control):
    """The control interface, with the files that were sent: ``GET /_fake/file/{id}``."""

    def __init__(self, fake: FakeTelegram) -> None:
        def block(user: str, *, blocked: bool = True) -> None:
            (fake.block if blocked else fake.unblock)(user)

        def open(kind: Kind, title: str, people: Sequence[str] = ("Ada",), **traits: Any) -> int:
            return (
                fake.private(title) if kind == "private" else fake.group(title, *people, kind=kind, **traits)
            )

        def send(chat: int, name: str, data: str, **given: Any) -> int:
            file, mime = base64.b64decode(data, validate=True), mimetypes.guess_type(name)[0] or ""
            return fake.send(chat, file, kind="document", name=name, mime=mime, **given)

        def press(**given: Any) -> str:
            return fake.press(**given).id

        acts = (fake.say, send, press, fake.react, fake.stop, fake.edit, fake.topic, block, open)
        super().__init__(fake, Path(__file__).with_name("page"), self._rooms, acts)
        self._world = fake.world

    def add_to(self, app: web.Application) -> None:
        """Add the routes to the application of the platform."""
        app.router.add_get("/_fake/file/{id}", self._file)
        super().add_to(app)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        try:
            data = self._world.files.data(request.match_info["id"])
        except KeyError:
            raise web.HTTPNotFound from None
        nosniff = {"X-Content-Type-Options": "nosniff"}
        return web.Response(body=data, content_type="application/octet-stream", headers=nosniff)

    def _rooms(self, most: int) -> Mapping[str, Any]:
        world = self._world
        rooms = [_room(world, chat, most) for chat in world.chats.values() if chat.migrated_to is None]
        return {"bot": {"name": world.bot.first_name, "username": world.bot.username}, "rooms": rooms}


def _room(world: World, chat: Chat, most: int) -> dict[str, Any]:
    shown = sorted(chat.messages)[-most:]
    return {
        "chat": chat_json(chat),
        "blocked": chat.blocked or chat.status in ("left", "kicked"),
        "admin": chat.status == "administrator",
        "people": [person.first_name for person in chat.members.values()],
        "topics": [{"id": topic.id, "name": topic.name} for topic in chat.topics.values()],
        "messages": [_message(world, chat, chat.messages[number]) for number in shown],
        "drafts": [
            {"id": draft.id, "text": draft.text, "entities": draft.entities, "can_stop": draft.can_stop}
            for draft in shown_drafts(world, chat)
        ],
        "actions": len(chat.actions),
        "action": chat.actions[-1] if chat.actions else None,
        "commands": [command for commands in world.commands.values() for command in commands],
    }


def _message(world: World, chat: Chat, message: Message) -> dict[str, Any]:
    shown = message_json(chat, message)
    shown["mine"] = message.sender.id == world.bot.id
    shown["service"] = message.service
    shown["source"] = message.text if "rich_message" in message.media else None
    shown["reactions"] = [kind.get("emoji", "✦") for given in message.reactions.values() for kind in given]
    answers = [query for query in world.queries.values() if query.message == message.id]
    shown["toast"] = next(
        (query.answer.get("text") for query in reversed(answers) if query.answer and query.chat == chat.id),
        None,
    )
    return shown
