"""A fake Discord on a real socket: REST, gateway, files, and a page to try a bot by hand.

::

    async with FakeDiscord() as fake:
        ...  # point a bot at fake.api_url, fake.gateway_url and fake.cdn_url, with fake.token
        said = fake.say("general", f"{fake.mention} hello")
        await fake.until(lambda: fake.answers("general") == ["Hello, ada."])
        fake.transcript.check()
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Unpack

import msgspec
from aiohttp import web

from channels.discord.fake.api import PREFIXES, Account, AccountRoutes, Api
from channels.discord.fake.calls import Handler
from channels.discord.fake.chats import ChatRoutes
from channels.discord.fake.gateway import Gateway
from channels.discord.fake.interactions import CALLBACK, CommandRoutes, Endpoint, ResponseRoutes
from channels.discord.fake.limits import Figures, RateLimits, Scope, relaxed
from channels.discord.fake.messages import Cdn, Drafts, MessageRoutes
from channels.discord.fake.payloads import GuildViews, Views
from channels.discord.fake.people import People
from channels.discord.fake.state import Channel, Message, World
from gateway.testing.fake_platform import Clock, Control, FakeServer, ServerOptions, announce, options

_IDS: Final = ("key", "reply_to", "at")


def control_of(fake: FakeDiscord, world: World) -> Control:
    """Return the page and the control interface of a fake."""
    people = (fake.say, fake.edit, fake.delete, fake.react, fake.type, fake.slash, fake.press, fake.pick)
    people = (*people, fake.clear_reactions, fake.complete, fake.choices)
    people = (*people, fake.response, fake.rename)
    chats = (fake.start_thread, fake.archive, fake.dm, fake.add_channel, fake.add_guild, fake.refuse_dms)
    chats = (*chats, fake.forbid, fake.permit, fake.remove_channel, fake.add_private_thread)
    chats = (*chats, fake.add_forum, fake.post, fake.add_role, fake.rename_channel, fake.remove_from_thread)
    trouble = (fake.slow_down, fake.advance, fake.sever, fake.freeze, fake.close, fake.ask_reconnect)
    trouble = (*trouble, fake.invalidate, fake.expire_sessions, fake.deliver_raw)
    trouble = (*trouble, fake.require_shards)
    views = fake.views

    def state(most: int) -> Mapping[str, Any]:
        return {
            "bot": views.user(world.bot),
            "people": [views.user(user) for user in world.users.values()],
            "rooms": [
                {**_chat(world, views, chat, most), "bot_types": fake.is_typing(chat)}
                for chat in world.channels.values()
            ],
            "commands": [{"kind": command.kind, **command.body} for command in world.commands.values()],
            "bots": len(fake.gateway.connections),
        }

    folder = Path(__file__).with_name("page")
    return Control(fake, folder, state, (*people, *chats, *trouble), _argument)


def _chat(world: World, views: Views, channel: Channel, most: int) -> dict[str, Any]:
    person = world.users.get(channel.recipient or 0)
    return {
        **views.channel(channel),
        "title": f"@{person.name}" if person is not None else channel.name,
        "messages": [_message(world, views, message) for message in world.history(channel.id)[-most:]],
    }


def _message(world: World, views: Views, message: Message) -> dict[str, Any]:
    reader = world.users.get(message.reader or 0)
    name = None if reader is None else reader.name
    return {**views.message(message), "versions": message.versions, "reader": name}


def _argument(name: str, value: Any) -> Any:
    if name in _IDS and value is not None:
        return int(value)
    if name == "attach" and value is not None:
        return {file: base64.b64decode(data, validate=True) for file, data in value.items()}
    return value


class FakeDiscord(People, FakeServer):
    """The platform, with one guild and one channel: ``general``.

    ``privileged`` are the privileged intents of the application. What a correct bot would not do is a problem
    in the transcript.
    """

    cancels_handlers = False  # a session ends with the code that the bot closes its connection with

    def __init__(
        self,
        *,
        token: str = "fake-token",  # noqa: S107 - opens nothing
        bot: str = "trunkline",
        figures: Figures | None = None,
        privileged: Iterable[str] = ("MESSAGE_CONTENT",),
        **server: Unpack[ServerOptions],
    ) -> None:
        FakeServer.__init__(self, Clock(), server)
        self.figures = figures = figures or Figures()
        self.limits = RateLimits(self.clock, figures)
        self.account = Account(self.clock, figures, token, frozenset(privileged))
        world = World(self.clock, self.changes, bot)
        self.views = Views(world, figures.link_life)
        guilds = GuildViews(world, self.views, self.account.privileged)
        self.gateway = Gateway(self, world, self.views, guilds, self.account, figures)
        People.__init__(self, world, self.views, guilds, figures, self.gateway.publish)
        self.guild = world.add_guild("Workshop").id
        world.add_channel("general", world.guilds[self.guild])
        self._account_routes = AccountRoutes(world, self.views, guilds, self.account, figures)
        self.handlers = {**self._account_routes.handlers(), **self._handlers()}
        self.endpoint = Endpoint(self, figures, token, self.handlers[CALLBACK])
        guilds.public_key = lambda: self.endpoint.public_key
        self.cdn = Cdn(world, self.views)

    @property
    def token(self) -> str:
        """Return the bot token that is valid now."""
        return self.account.token

    @property
    def bot_id(self) -> int:
        """Return the id of the bot, which is also that of the application."""
        return self._world.bot.id

    @property
    def api_url(self) -> str:
        """Return the base URL of the REST API."""
        return f"{self.url}{PREFIXES[0]}"

    @property
    def gateway_url(self) -> str:
        """Return the URL of the gateway."""
        return f"ws{self.url.removeprefix('http')}/gw/"

    @property
    def cdn_url(self) -> str:
        """Return the base URL of files."""
        return f"{self.url}/cdn"

    async def start(self, stack: AsyncExitStack) -> None:
        """Set the URLs that the platform returns to bots."""
        self.views.files_url = self.cdn_url
        self.gateway.url = self._account_routes.gateway_url = self.gateway_url
        await self.endpoint.start(stack)
        stack.callback(self.sever)

    def slow_down(self, method: str, seconds: float = 1, scope: Scope = "user") -> None:
        """Refuse the next call with a name, with a 429 that asks to wait."""
        self.limits.script(method, seconds, scope)

    def advance(self, seconds: float) -> None:
        """Advance the platform's clock, and no other: messages become older, tokens expire."""
        self.clock.advance(seconds)

    def sever(self) -> None:
        """Cut every gateway connection without a close frame."""
        for connection in list(self.gateway.connections):
            connection.abort()

    def freeze(self, shard: int | None = None) -> None:
        """Stop sending on all present connections (of a shard), which stay open as zombies. New ones work."""
        for connection in self.gateway.connections_of(shard):
            connection.mute = True

    def close(self, code: int, shard: int | None = None) -> None:
        """Close every gateway connection with a close code, or only that of a shard."""
        self.gateway.close_all(code, shard)

    def require_shards(self, number: int) -> None:
        """Recommend this number of shards, and refuse logins with a smaller one."""
        self.account.shards = number

    def ask_reconnect(self) -> None:
        """Ask every bot to reconnect (opcode 7)."""
        self.gateway.ask_reconnect()

    def invalidate(self, *, resumable: bool = False) -> None:
        """Declare every session invalid (opcode 9)."""
        self.gateway.invalidate(resumable=resumable)

    def expire_sessions(self, shard: int | None = None) -> None:
        """Make all present sessions (of a shard) impossible to resume; they get no later events."""
        for session in self.gateway.sessions.values():
            session.expired = session.expired or shard in (None, session.shard[0])

    @contextmanager
    def held(self, *, reverse: bool = False) -> Generator[None]:
        """Hold the events of the block back until its end; send them in order or reversed."""
        self.gateway.hold()
        try:
            yield
        finally:
            self.gateway.release(reverse=reverse)

    async def register_endpoint(self, url: str) -> None:
        """Post interactions to a URL from now on. Raises ValueError if it does not pass Discord's checks."""
        await self.endpoint.check(url)
        self.post_interactions(url)

    def post_interactions(self, url: str) -> None:
        """Post interactions to a URL from now on, which was checked before."""
        self.endpoint.url = self._guilds.endpoint_url = url
        self.gateway.post_interaction = self.endpoint.post

    def deliver_raw(self, payload: str | dict[str, Any]) -> None:
        """Send anything to every bot: an event ``{"t": …, "d": …}`` in its sequence, or text as it is."""
        for session in self.gateway.sessions.values():
            if isinstance(payload, str):
                if session.connection is not None:
                    session.connection.send(payload)
            else:
                session.add_event(payload["t"], msgspec.to_builtins(payload["d"]))

    def routes(self) -> web.Application:
        """Return the application that serves the platform."""
        api = Api(self, self.handlers, self.account, self.figures, self.limits)
        app = web.Application(client_max_size=self.figures.request_bytes + 1)
        for prefix in PREFIXES:
            app.router.add_route("*", prefix + "/{tail:.*}", api.serve)
        app.router.add_get("/gw/", self.gateway.serve)
        app.router.add_get(r"/cdn/attachments/{channel:\d+}/{attachment:\d+}/{name}", self.cdn.serve)
        control_of(self, self._world).add_to(app)
        return app

    def _handlers(self) -> Mapping[str, Handler]:
        world, chats, views, figures = self._world, self._chats, self.views, self.figures
        drafts = Drafts(world, figures)
        reads = "MESSAGE_CONTENT" in self.account.privileged
        return {
            **MessageRoutes(world, chats, views, drafts, figures, reads=reads).handlers(),
            **ChatRoutes(world, chats, views).handlers(),
            **CommandRoutes(world, self._commands).handlers(),
            **ResponseRoutes(world, chats, views, drafts, self._interactions).handlers(),
        }


async def serve(argv: Sequence[str] | None = None, on_applied: Callable[[], None] | None = None) -> None:
    """Run until cancelled. The first line of the output is the address."""
    parser = options("Fake Discord, and a page to write to the bot.", "discord")
    parser.add_argument("--token", default="fake-token", help="token of the bot")
    parser.add_argument("--no-limits", action="store_true", help="do not enforce the platform's rate limits")
    parser.add_argument("--outage", type=float, default=0, help="seconds of each 12 in which histories fail")
    parser.add_argument("--shards", type=int, default=1, help="number of shards that the bot has to use")
    parser.add_argument("--interactions", metavar="URL", help="post interactions to this address")
    given = vars(parser.parse_args(argv))
    outage, shards, endpoint = given.pop("outage"), given.pop("shards"), given.pop("interactions")
    figures = relaxed() if given.pop("no_limits") else None
    async with FakeDiscord(**given, figures=figures, on_applied=on_applied) as fake:
        fake.require_shards(shards)
        fake.fail_regularly("GET /channels/{channel_id}/messages", outage, 12)
        settings, facts = {"token": fake.token, "api_base_url": fake.api_url, "allow": "*"}, list[str]()
        if endpoint is not None:
            fake.post_interactions(endpoint)
            settings["public_key"] = fake.endpoint.public_key
            facts.append(f"public_key {fake.endpoint.public_key}")
        await announce(fake.url, "discord", settings, facts)
