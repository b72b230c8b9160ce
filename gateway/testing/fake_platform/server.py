"""The server of a fake platform: its socket, its fault script and its transcript."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, ClassVar, Self, TypedDict

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.testing.fake_platform.calls import Fault, FaultScript, Transcript
from gateway.testing.fake_platform.clock import Changes, Clock


class ServerOptions(TypedDict, total=False):
    """The options of each fake platform.

    ``faults`` is the share of calls that fail by chance, ``repeats`` the share of events that are delivered
    twice, ``seed`` selects which. ``on_applied`` is called after a call of the bot changed the platform and
    before its answer leaves. Port 0 takes any free port.
    """

    host: str
    port: int
    faults: float
    repeats: float
    seed: int
    on_applied: Callable[[], None] | None


class FakeServer(ABC):
    """A fake platform at ``url``, while its context is open. ``transcript`` holds all calls of the bot.

    ``cancels_handlers`` says that a request ends with its connection.
    """

    cancels_handlers: ClassVar[bool] = True

    def __init__(self, clock: Clock, options: ServerOptions) -> None:
        self.url = ""
        self.clock = clock
        self.changes = Changes()
        self.transcript = Transcript()
        self.faults = FaultScript(
            options.get("faults", 0), repeats=options.get("repeats", 0), seed=options.get("seed", 0)
        )
        self._intercepted: list[tuple[str, int]] = []
        self._address = options.get("host", "127.0.0.1"), options.get("port", 0)
        self._on_applied = options.get("on_applied")
        self._stack = AsyncExitStack()
        self._runner: web.AppRunner | None = None

    def then(self, *faults: Fault, method: str = "") -> None:
        """Set what happens to the next calls: of one method, or of any."""
        self.faults.then(*faults, method=method)

    def fail_regularly(self, method: str, seconds: float, every: float) -> None:
        """Let all calls of a method fail for so many seconds of each ``every`` seconds."""
        self.faults.fail_regularly(method, seconds, every)

    def answer_next(self, method: str, *answers: object) -> None:
        """Replace the results of the next calls of a method that succeed."""
        self.faults.answer_next(method, *answers)

    def intercept(self, path: str, *statuses: int) -> None:
        """Let a proxy answer the next requests whose path contains ``path``, with these statuses and a page.

        They do not reach the platform.
        """
        self._intercepted += [(path, status) for status in statuses]

    def applied(self) -> None:
        """Report that a call of the bot changed the platform."""
        if self._on_applied is not None:
            self._on_applied()

    def record(
        self,
        method: str,
        arguments: Mapping[str, Any],
        *problems: str | None,
        status: int = 200,
        answer: object = None,
        fault: Fault = "none",
    ) -> None:
        """Write a call into the transcript, with the rules that it broke."""
        problem = "; ".join(filter(None, problems)) or None
        self.transcript.record(method, arguments, status=status, answer=answer, fault=fault, problem=problem)
        self.changes.bump()

    @abstractmethod
    def routes(self) -> web.Application:
        """Return the application that serves the platform."""

    @abstractmethod
    async def start(self, stack: AsyncExitStack) -> None:
        """Start what runs beside the server, at ``url``; ``stack`` stops it."""

    def drop_sockets(self) -> None:
        """Break all connections."""
        for connection in self._runner.server.connections if self._runner and self._runner.server else ():
            if connection.transport is not None:
                connection.transport.abort()

    async def __aenter__(self) -> Self:
        app = self.routes()
        app.middlewares.insert(0, self._pass_on)
        runner = self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=self.cancels_handlers, shutdown_timeout=0.1
        )
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, *self._address).start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        await self.start(self._stack)
        return self

    @web.middleware
    async def _pass_on(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request as a proxy does if it is to be intercepted."""
        found = next((one for one in self._intercepted if one[0] in request.path), None)
        if found is None:
            return await handler(request)
        self._intercepted.remove(found)
        page = "<html><body>The proxy wants something else.</body></html>"
        headers = {"Location": "/proxy"} if found[1] < 400 else {}
        return web.Response(status=found[1], text=page, content_type="text/html", headers=headers)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)


def as_json(
    content: object, status: int = 200, headers: Mapping[str, str] | None = None, charset: str | None = None
) -> web.Response:
    """Return a response whose body is ``content`` as JSON."""
    return web.Response(
        body=msgspec.json.encode(content, enc_hook=str),
        status=status,
        content_type="application/json",
        charset=charset,
        headers=headers,
    )


def cut(request: web.Request) -> None:
    """Break the connection of a request, so that its answer is lost."""
    if request.transport is not None:
        request.transport.abort()
