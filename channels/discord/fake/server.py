"""A fake Discord on a real socket: REST, gateway, files, and a page to try a bot by hand.

::

    async with FakeDiscord() as fake:
        ...  # point a bot at fake.api_url, fake.gateway_url and fake.cdn_url, with fake.token
        said = fake.say("general", f"{fake.mention} hello")
        await fake.until(lambda: fake.answers("general") == ["Hello, ada."])
        fake.transcript.check()

It keeps to the platform's rules, and writes into the transcript what a correct bot would not have done.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import msgspec
from aiohttp import web

from channels.discord.fake.account import Account
from channels.discord.fake.api import PREFIXES, Api
from channels.discord.fake.calls import Handler
from channels.discord.fake.cdn import Cdn
from channels.discord.fake.clock import Clock
from channels.discord.fake.control import Action, Control
from channels.discord.fake.drafts import Drafts
from channels.discord.fake.figures import Figures
from channels.discord.fake.gateway import Gateway
from channels.discord.fake.guild_views import GuildViews
from channels.discord.fake.limits import RateLimits, Scope
from channels.discord.fake.people import People
from channels.discord.fake.routes_account import AccountRoutes
from channels.discord.fake.routes_commands import CommandRoutes
from channels.discord.fake.routes_hooks import HookRoutes
from channels.discord.fake.routes_messages import MessageRoutes
from channels.discord.fake.routes_rooms import RoomRoutes
from channels.discord.fake.views import Views
from channels.discord.fake.world import World
from gateway.testing.faults import Fault, FaultScript
from gateway.testing.transcript import Transcript


class FakeDiscord(People):
    """The platform, with one guild and one channel to begin with: ``general``.

    ``faults`` is the share of calls that go wrong, ``repeats`` of events that come twice, ``seed`` which.
    ``privileged`` are the intents that the application is allowed. ``on_applied`` is called when the bot
    wrote or changed a message, before its answer leaves.
    """

    def __init__(
        self,
        *,
        token: str = "fake-token",  # noqa: S107 - opens nothing
        bot: str = "trunkline",
        faults: float = 0,
        repeats: float = 0,
        seed: int = 0,
        port: int = 0,
        figures: Figures | None = None,
        privileged: Iterable[str] = ("MESSAGE_CONTENT",),
        on_applied: Callable[[], None] | None = None,
    ) -> None:
        self.url = ""
        self.figures = figures = figures or Figures()
        self.clock = Clock()
        self.transcript = Transcript()
        self.limits = RateLimits(self.clock, figures)
        self.account = Account(self.clock, figures, token, frozenset(privileged))
        world = World(self.clock, bot)
        self.views = Views(world, figures.link_life)
        guilds = GuildViews(world, self.views, self.account.privileged)
        self._faults = FaultScript(faults, repeats=repeats, seed=seed)
        self.gateway = Gateway(
            world,
            self.views,
            guilds,
            account=self.account,
            figures=figures,
            faults=self._faults,
            transcript=self.transcript,
        )
        super().__init__(world, self.views, guilds, figures, self.gateway.tell)
        self.guild = world.add_guild("Workshop").id
        world.add_channel("general", world.guilds[self.guild])
        self._account_routes = AccountRoutes(world, self.views, guilds, self.account, figures)
        self.handlers = {**self._account_routes.handlers(), **self._handlers()}
        self.cdn = Cdn(world, self.views)
        self._on_applied = on_applied
        self._port = port
        self._runner: web.AppRunner | None = None

    @property
    def token(self) -> str:
        """The bot's token, as it is valid now."""
        return self.account.token

    @property
    def bot_id(self) -> int:
        """The bot, and the application."""
        return self._world.bot.id

    @property
    def api_url(self) -> str:
        """Where the REST API is."""
        return f"{self.url}{PREFIXES[0]}"

    @property
    def gateway_url(self) -> str:
        """Where the gateway is."""
        return f"ws{self.url.removeprefix('http')}/gw/"

    @property
    def cdn_url(self) -> str:
        """Where files are."""
        return f"{self.url}/cdn"

    async def __aenter__(self) -> FakeDiscord:
        self._runner = web.AppRunner(self._app(), access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        self.views.files_url = self.cdn_url
        self.gateway.url = self._account_routes.gateway_url = self.gateway_url
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sever()
        if self._runner is not None:
            await self._runner.cleanup()

    # What goes wrong.

    def then(self, *faults: Fault, method: str = "") -> None:
        """What happens to the next calls: of one (``POST /channels/{channel_id}/messages``), or of any."""
        self._faults.then(*faults, method=method)

    def slow_down(self, method: str, seconds: float = 1, scope: Scope = "user") -> None:
        """The next call of a method is answered with a 429 that asks to wait."""
        self.limits.script(method, seconds, scope)

    def advance(self, seconds: float) -> None:
        """Time passes on the platform, and only there: messages grow old, tokens end, its clock is ahead."""
        self.clock.advance(seconds)

    def sever(self) -> None:
        """Every connection to the gateway breaks, without a word."""
        for connection in list(self.gateway.connections):
            connection.abort()

    def freeze(self) -> None:
        """Connections stand, and nothing comes through them any more: zombies. New ones work."""
        for connection in self.gateway.connections:
            connection.mute = True

    def close(self, code: int) -> None:
        """The gateway closes every connection with one of its codes."""
        self.gateway.close_all(code)

    def ask_reconnect(self) -> None:
        """The gateway asks bots to come back on another connection: opcode 7."""
        self.gateway.ask_reconnect()

    def invalidate(self, *, resumable: bool = False) -> None:
        """The gateway calls every session invalid: opcode 9."""
        self.gateway.invalidate(resumable=resumable)

    def expire_sessions(self) -> None:
        """No session of before can be resumed; what happens meanwhile is lost to it."""
        for session in self.gateway.sessions.values():
            session.expired = True

    @contextmanager
    def held(self, *, reverse: bool = False) -> Generator[None]:
        """What happens inside is told to bots afterwards, in order or in the wrong one."""
        self.gateway.hold()
        try:
            yield
        finally:
            self.gateway.release(reverse=reverse)

    def deliver_raw(self, payload: str | dict[str, Any]) -> None:
        """Send anything to every bot: an event ``{"t": …, "d": …}`` in its sequence, or text as it is."""
        for session in self.gateway.sessions.values():
            if isinstance(payload, str):
                if session.reader is not None:
                    session.reader.send(payload)
            else:
                session.tell(payload["t"], msgspec.to_builtins(payload["d"]))

    def _app(self) -> web.Application:
        api = Api(
            self.handlers,
            account=self.account,
            figures=self.figures,
            limits=self.limits,
            faults=self._faults,
            transcript=self.transcript,
            changes=self._world.changes,
            on_applied=self._on_applied,
        )
        control = Control(self._world, self.views, self.transcript, self._actions())
        control.bots = lambda: len(self.gateway.connections)
        control.typing = self.is_typing
        app = web.Application(client_max_size=self.figures.request_bytes + 1)
        for prefix in PREFIXES:
            app.router.add_route("*", prefix + "/{tail:.*}", api.serve)
        app.router.add_get("/gw/", self.gateway.serve)
        app.router.add_get(r"/cdn/attachments/{channel:\d+}/{attachment:\d+}/{name}", self.cdn.serve)
        app.add_routes(control.routes())
        return app

    def _handlers(self) -> Mapping[str, Handler]:
        world, rooms, views, figures = self._world, self._rooms, self.views, self.figures
        drafts = Drafts(world, figures)
        reads = "MESSAGE_CONTENT" in self.account.privileged
        return {
            **MessageRoutes(world, rooms, views, drafts, figures, reads=reads).handlers(),
            **RoomRoutes(world, rooms, views).handlers(),
            **CommandRoutes(world, self._commands).handlers(),
            **HookRoutes(world, rooms, views, drafts, self._interactions).handlers(),
        }

    def _actions(self) -> Mapping[str, Action]:
        """What can be done over HTTP."""
        people = (self.say, self.edit, self.delete, self.react, self.type, self.slash, self.press, self.pick)
        rooms = (self.start_thread, self.archive, self.dm, self.add_channel, self.add_guild, self.refuse_dms)
        rooms = (*rooms, self.forbid, self.permit, self.remove_channel, self.add_private_thread)
        wrong = (self.slow_down, self.advance, self.sever, self.freeze, self.close, self.ask_reconnect)
        wrong = (*wrong, self.invalidate, self.expire_sessions, self.deliver_raw)
        actions: list[Action] = [*people, *rooms, *wrong]
        return {action.__name__: action for action in actions}
