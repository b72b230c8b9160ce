"""A fake Telegram on a real socket: the Bot API, and people who write to the bot.

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Unpack

from aiohttp import web

from channels.telegram.fake.api import Api
from channels.telegram.fake.calls import MOST_BYTES
from channels.telegram.fake.control import TelegramControl
from channels.telegram.fake.limits import Figures, Limits
from channels.telegram.fake.people import People
from channels.telegram.fake.state import Traits, World
from gateway.testing.fake_platform import Clock, FakeServer, ServerOptions, announce, options

TOKEN = "123456789:AAFakeTokenForTestsOnly-0123456789abcdef"  # noqa: S105 - of a bot that does not exist


class FakeTelegram(People, FakeServer):
    """The Bot API at ``url``, for the bot with ``token``, and a page to write to the bot.

    ``limits`` turns the platform's rate limits on; ``retry_after`` is the wait in whole seconds that a call
    slowed down by script is asked for. ``skew`` shifts the dates that the platform writes, in seconds.
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
        limits: bool = False,
        figures: Figures | None = None,
        retry_after: int = 1,
        skew: float = 0,
        **server: Unpack[ServerOptions],
    ) -> None:
        FakeServer.__init__(self, Clock(skew=skew), server)
        traits = Traits(
            token=token,
            name=name,
            username=username,
            privacy=privacy,
            topics=topics,
            people_make_topics=people_make_topics,
        )
        People.__init__(self, World(traits, self.clock, self.changes))
        self.limits = Limits(self.clock, on=limits, figures=figures)
        self._api = Api(self, self.world, self.limits, retry_after)
        self.webhook = self._api.webhook

    @property
    def token(self) -> str:
        """The token that the platform accepts; it may be replaced while a bot is connected."""
        return self.world.token

    @token.setter
    def token(self, token: str) -> None:
        self.world.token = token

    @property
    def base_url(self) -> str:
        """The address of a method up to its token, as python-telegram-bot takes it."""
        return f"{self.url}/bot"

    @property
    def base_file_url(self) -> str:
        """The address of a file up to its token, as python-telegram-bot takes it."""
        return f"{self.url}/file/bot"

    def deliver_raw(self, payload: Mapping[str, Any]) -> None:
        """Put an update into the queue as it is, without its number."""
        self.world.updates.push("", payload, queue="raw", seconds=86_400)

    def reorder(self) -> None:
        """Hand out the next batch of updates backwards."""
        self.world.updates.reversed = True

    def forget_updates(self) -> int:
        """Drop all updates that wait, as the platform does after 24 hours. Returns how many."""
        return self.world.updates.forget()

    def jump(self, update_id: int) -> None:
        """Number the next update so, as the platform picks a random number after a week without any."""
        self.world.updates.jump(update_id)

    def routes(self) -> web.Application:
        """Return the application that serves the platform."""
        app = web.Application(client_max_size=MOST_BYTES + 1024 * 1024)
        app.router.add_route("*", "/bot{token}/{method}", self._api.serve)
        app.router.add_get("/file/bot{token}/{path:.+}", self._api.file)
        TelegramControl(self).add_to(app)
        return app

    async def start(self, stack: AsyncExitStack) -> None:
        """Deliver to the webhook while the platform runs."""
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        stack.callback(tasks.create_task(self.webhook.run()).cancel)


async def serve(argv: Sequence[str] | None = None, on_applied: Callable[[], None] | None = None) -> None:
    """Run until cancelled, with some people and rooms. The first line of the output is the address."""
    parser = options("A fake Telegram: the Bot API, and a page to write to the bot.")
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
