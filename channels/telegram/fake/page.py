"""The page of the fake platform, and what it calls under ``/_fake/``.

::

    GET  /_fake/state?after=N&most=M   what stands, of each room the last M messages, when it is newer than N
    GET  /_fake/transcript      every call of the bot
    GET  /_fake/file/ID         the bytes of a file
    POST /_fake/say             {chat, text, user?, reply_to?, thread?} -> {id}
    POST /_fake/press           {chat, message, button, user?} -> {id}
    POST /_fake/react           {chat, message, emoji, user?}
    POST /_fake/stop            {chat}
    POST /_fake/edit            {chat, message, text}
    POST /_fake/block           {user, blocked}
    POST /_fake/open            {kind, title, people, forum?, admin?} -> {id}
    POST /_fake/topic           {chat, name, user?} -> {id}
"""

from __future__ import annotations

import mimetypes
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from channels.telegram.fake.refusal import Refused
from channels.telegram.fake.rooms import Chat, Message
from channels.telegram.fake.sending import shown_drafts
from channels.telegram.fake.shown import chat_json, message_json

if TYPE_CHECKING:
    from channels.telegram.fake.server import FakeTelegram

_FILES = Path(__file__).with_name("page")
_POLL_SECONDS = 25
_MOST_SHOWN = 200
_POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
_STRICT = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Page:
    """What a browser asks of a fake platform."""

    def __init__(self, fake: FakeTelegram) -> None:
        self._fake = fake
        self._files = {path.name: path.read_bytes() for path in _FILES.iterdir()}
        self._does: dict[str, Callable[[Mapping[str, Any]], object]] = {
            "say": lambda given: fake.say(
                given["chat"],
                given["text"],
                given.get("user"),
                reply_to=given.get("reply_to"),
                thread=given.get("thread"),
            ),
            "press": lambda given: (
                fake.press(given["chat"], given["message"], given["button"], given.get("user")).id
            ),
            "react": lambda given: fake.react(
                given["chat"], given["message"], given["emoji"], given.get("user")
            ),
            "stop": lambda given: fake.stop(given["chat"]),
            "edit": lambda given: fake.edit(given["chat"], given["message"], given["text"]),
            "block": lambda given: (fake.block if given["blocked"] else fake.unblock)(given["user"]),
            "open": self._open,
            "topic": lambda given: fake.topic(given["chat"], given["name"], given.get("user")),
        }

    def add_to(self, app: web.Application) -> None:
        """Serve the page beside the Bot API."""
        app.router.add_get("/", self._page)
        app.router.add_get("/_fake/page/{name}", self._page)
        app.router.add_get("/_fake/state", self._state)
        app.router.add_get("/_fake/transcript", self._transcript)
        app.router.add_get("/_fake/file/{id}", self._file)
        app.router.add_post("/_fake/{what}", self._do)

    async def _page(self, request: web.Request) -> web.Response:
        name = request.match_info.get("name", "index.html")
        if name not in self._files:
            raise web.HTTPNotFound
        kind = mimetypes.guess_type(name)[0]
        return web.Response(body=self._files[name], content_type=kind, charset="utf-8", headers=_STRICT)

    async def _state(self, request: web.Request) -> web.Response:
        after, most = int(request.query.get("after", "-1")), int(request.query.get("most", _MOST_SHOWN))
        clock = self._fake.clock
        until = clock.now() + _POLL_SECONDS
        while clock.beats == after and clock.now() < until:
            await clock.changed(until)
        world = self._fake.world
        return _json(
            {
                "version": clock.beats,
                "bot": {"name": world.bot.first_name, "username": world.bot.username},
                "rooms": [
                    self._room(chat, most) for chat in world.chats.values() if chat.migrated_to is None
                ],
                "calls": len(self._fake.transcript.calls),
                "problems": self._fake.transcript.problems[-20:],
            }
        )

    async def _transcript(self, _request: web.Request) -> web.Response:
        return _json(self._fake.transcript.calls)

    async def _file(self, request: web.Request) -> web.Response:
        try:
            data = self._fake.world.files.data(request.match_info["id"])
        except KeyError:
            raise web.HTTPNotFound from None
        return web.Response(
            body=data, content_type="application/octet-stream", headers={"X-Content-Type-Options": "nosniff"}
        )

    async def _do(self, request: web.Request) -> web.Response:
        """Only JSON is taken, so that no page of another origin can write here."""
        does = self._does.get(request.match_info["what"])
        if does is None or request.content_type != "application/json":
            raise web.HTTPNotFound
        try:
            done = does(msgspec.json.decode(await request.read(), type=dict[str, Any]))
        except (LookupError, TypeError, ValueError, Refused) as error:
            return _json({"error": str(error)}, 400)
        return _json({"id": done})

    def _open(self, given: Mapping[str, Any]) -> int:
        if given["kind"] == "private":
            return self._fake.private(given["title"])
        return self._fake.group(
            given["title"],
            *given.get("people", ("Ada",)),
            kind=given["kind"],
            forum=given.get("forum", False),
            admin=given.get("admin", False),
        )

    def _room(self, chat: Chat, most: int) -> dict[str, Any]:
        world = self._fake.world
        shown = sorted(chat.messages)[-most:]
        return {
            "chat": chat_json(chat),
            "blocked": chat.blocked or chat.status in ("left", "kicked"),
            "admin": chat.status == "administrator",
            "people": [person.first_name for person in chat.members.values()],
            "topics": [{"id": topic.id, "name": topic.name} for topic in chat.topics.values()],
            "messages": [self._message(chat, chat.messages[number]) for number in shown],
            "drafts": [
                {"id": draft.id, "text": draft.text, "entities": draft.entities, "can_stop": draft.can_stop}
                for draft in shown_drafts(world, chat)
            ],
            "actions": len(chat.actions),
            "action": chat.actions[-1] if chat.actions else None,
            "commands": [command for commands in world.commands.values() for command in commands],
        }

    def _message(self, chat: Chat, message: Message) -> dict[str, Any]:
        shown = message_json(chat, message)
        shown["mine"] = message.sender.id == self._fake.world.bot.id
        shown["service"] = message.service
        shown["source"] = message.text if "rich_message" in message.media else None
        shown["reactions"] = [
            kind.get("emoji", "✦") for given in message.reactions.values() for kind in given
        ]
        answers = [query for query in self._fake.world.queries.values() if query.message == message.id]
        shown["toast"] = next(
            (
                query.answer.get("text")
                for query in reversed(answers)
                if query.answer and query.chat == chat.id
            ),
            None,
        )
        return shown


def _json(content: object, status: int = 200) -> web.Response:
    body = msgspec.json.encode(content)
    return web.Response(body=body, status=status, content_type="application/json", headers=_STRICT)
