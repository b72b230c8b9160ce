"""Fake Telegram on a real socket: the Bot API, and users that write to the bot.

::

    async with FakeTelegram() as fake:
        chat = fake.private("Ada")
        fake.say(chat, "Hi")
        ...  # a bot with base_url = fake.base_url and token = fake.token answers
        assert fake.answers(chat) == ["Hello"]
        fake.transcript.check()
"""

from __future__ import annotations

import asyncio
import base64
import mimetypes
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Unpack

from aiohttp import web

from channels.telegram.fake.api import Api
from channels.telegram.fake.calls import MAX_BYTES
from channels.telegram.fake.limits import Figures, Limits
from channels.telegram.fake.messages import shown_drafts
from channels.telegram.fake.people import People
from channels.telegram.fake.state import BotSettings, Chat, Kind, Message, World, chat_json, message_json
from gateway.testing.fake_platform import Clock, Control, FakeServer, ServerOptions, announce, options

TOKEN = "123456789:AAFakeTokenForTestsOnly-0123456789abcdef"  # noqa: S105 - of a bot that does not exist


class FakeTelegram(People, FakeServer):
    """Bot API at ``url`` for the bot with ``token``, and a page for writing to the bot.

    ``limits`` enables the platform's rate limits. ``retry_after`` is the wait, in whole seconds, of calls
    that a test slows down. ``skew`` shifts the platform's dates, in seconds.
    """

    def __init__(
        self,
        *,
        token: str = TOKEN,
        name: str = "Fake bot",
        username: str = "fake_bot",
        privacy: bool = True,
        topics: bool = False,
        people_make_topics: bool = True,
        business: bool = False,
        inline: bool = False,
        limits: bool = False,
        figures: Figures | None = None,
        retry_after: int = 1,
        skew: float = 0,
        **server: Unpack[ServerOptions],
    ) -> None:
        FakeServer.__init__(self, Clock(skew=skew), server)
        traits = BotSettings(
            token=token,
            name=name,
            username=username,
            privacy=privacy,
            topics=topics,
            people_make_topics=people_make_topics,
            business=business,
            inline=inline,
        )
        People.__init__(self, World(traits, self.clock, self.changes))
        self.limits = Limits(self.clock, on=limits, figures=figures)
        self._api = Api(self, self.world, self.limits, retry_after)
        self.webhook = self._api.webhook

    @property
    def token(self) -> str:
        """Return the token that the platform accepts; it may be replaced while a bot is connected."""
        return self.world.token

    @token.setter
    def token(self, token: str) -> None:
        self.world.token = token

    @property
    def retry_after(self) -> int:
        """Return the wait in whole seconds of calls that a test slows down."""
        return self._api.retry_after

    @retry_after.setter
    def retry_after(self, seconds: int) -> None:
        self._api.retry_after = seconds

    @property
    def base_url(self) -> str:
        """Return the address of a method up to its token, as python-telegram-bot takes it."""
        return f"{self.url}/bot"

    @property
    def base_file_url(self) -> str:
        """Return the address of a file up to its token, as python-telegram-bot takes it."""
        return f"{self.url}/file/bot"

    def deliver_raw(self, payload: Mapping[str, Any]) -> None:
        """Queue an update as it is, without its id."""
        self.world.updates.push("", payload, queue="raw", seconds=86_400)

    def reorder(self) -> None:
        """Reverse the next batch of updates."""
        self.world.updates.reversed = True

    def forget_updates(self) -> int:
        """Drop all waiting updates, as the platform does after 24 hours. Returns their number."""
        return self.world.updates.forget()

    def jump(self, update_id: int) -> None:
        """Set the next update id; the platform picks a random one after a week without updates."""
        self.world.updates.jump(update_id)

    def routes(self) -> web.Application:
        """Return the application that serves the platform."""
        app = web.Application(client_max_size=MAX_BYTES + 1024 * 1024)
        app.router.add_route("*", "/bot{token}/{method}", self._api.serve)
        app.router.add_get("/file/bot{token}/{path:.+}", self._api.file)
        TelegramControl(self).add_to(app)
        return app

    async def start(self, stack: AsyncExitStack) -> None:
        """Run the webhook while the server runs."""
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        stack.callback(tasks.create_task(self.webhook.run()).cancel)


async def serve(argv: Sequence[str] | None = None, on_applied: Callable[[], None] | None = None) -> None:
    """Run until cancelled, with some users and chats. The first line of the output is the address."""
    parser = options("Fake Telegram: the Bot API, and a page to write to the bot.", "telegram")
    parser.add_argument("--token", default=TOKEN, help="token of the bot")
    parser.add_argument("--limits", action="store_true", help="enforce the platform's rate limits")
    parser.add_argument("--topics", action="store_true", help="give private chats topics")
    given = parser.parse_args(argv)
    async with FakeTelegram(**vars(given), on_applied=on_applied) as fake:
        fake.private("Ada")
        fake.private("Ben")
        fake.group("Lab", "Ada", "Ben", admin=True)
        fake.group("Street", "Ada", "Ben")
        fake.group("Forum", "Ada", "Ben", forum=True, admin=True)
        settings = {"token": fake.token, "api_base_url": fake.url, "allow": "*"}
        await announce(fake.url, "telegram", settings, [f"token {fake.token}"])


class TelegramControl(Control):
    """Control interface of the page, with the files of messages at ``/_fake/file/{id}``."""

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

        actions = (fake.say, send, press, fake.react, fake.stop, fake.edit, fake.topic, block, open)
        super().__init__(fake, Path(__file__).with_name("page"), self._chats, actions)
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

    def _chats(self, most: int) -> Mapping[str, Any]:
        world = self._world
        rooms = [_chat_json(world, chat, most) for chat in world.chats.values() if chat.migrated_to is None]
        return {"bot": {"name": world.bot.first_name, "username": world.bot.username}, "rooms": rooms}


def _chat_json(world: World, chat: Chat, most: int) -> dict[str, Any]:
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
