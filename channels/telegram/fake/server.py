"""The fake Bot API on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web

from channels.telegram.fake import asking, editing, request, sending, text
from channels.telegram.fake.clock import Clock
from channels.telegram.fake.limits import Figures, Limits
from channels.telegram.fake.page import Page
from channels.telegram.fake.people import People
from channels.telegram.fake.refusal import Refused
from channels.telegram.fake.request import MOST_BYTES, Request, Upload
from channels.telegram.fake.schema import schema
from channels.telegram.fake.webhook import Address, Webhook
from channels.telegram.fake.world import Traits, World
from gateway.testing.faults import Fault, FaultScript
from gateway.testing.transcript import Transcript

TOKEN = "123456789:AAFakeTokenForTestsOnly-0123456789abcdef"  # noqa: S105 - of a bot that does not exist

_HANDLERS = {**sending.METHODS, **editing.METHODS, **asking.METHODS}
_WRITES = ("send", "edit", "delete", "set", "create", "close", "reopen", "answer")
_NOT_PLAYED = (
    "business_connection_id",
    "direct_messages_topic_id",
    "ephemeral_message_parameters",
    "inline_message_id",
)
_NOT_IN_ANSWERS = ("deleteWebhook", "setWebhook", "close", "logOut")


class FakeTelegram(People):
    """The Bot API at ``url``, for the bot with ``token``; a page to look at and to write on is at ``url``
    itself.

    ``base_url`` and ``base_file_url`` are what python-telegram-bot wants to be told. ``transcript`` has every
    call; what a correct client never does is a problem in it. ``limits`` turns the platform's rate limits on;
    ``retry_after`` is what a call slowed down by script is told, in whole seconds. ``on_applied`` is called
    when a method changed something, before its answer leaves. ``clock.pass_time`` lets time pass without
    waiting.
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
        faults: float = 0,
        repeats: float = 0,
        seed: int = 0,
        retry_after: int = 1,
        skew: float = 0,
        host: str = "127.0.0.1",
        port: int = 0,
        on_applied: Callable[[], None] | None = None,
    ) -> None:
        self.clock = Clock(skew)
        traits = Traits(
            token=token,
            name=name,
            username=username,
            privacy=privacy,
            topics=topics,
            people_make_topics=people_make_topics,
        )
        super().__init__(World(traits, self.clock))
        self.token = token
        self.url = ""
        self.transcript = Transcript()
        self.limits = Limits(self.clock, on=limits, figures=figures)
        self.retry_after = retry_after
        self.webhook = Webhook(self.clock, self.world.updates, self._called_back)
        self._faults = FaultScript(faults, repeats=repeats, seed=seed)
        self._place = (host, port)
        self._on_applied = on_applied
        self._open: set[asyncio.Transport] = set()
        self._stack = AsyncExitStack()
        self._closing = asyncio.Event()

    @property
    def base_url(self) -> str:
        """What comes before the token in the address of a method."""
        return f"{self.url}/bot"

    @property
    def base_file_url(self) -> str:
        """What comes before the token in the address of a file."""
        return f"{self.url}/file/bot"

    def then(self, *faults: Fault, method: str = "") -> None:
        """What happens to the next calls: of one method, or of any."""
        self._faults.then(*faults, method=method)

    def deliver_raw(self, payload: Mapping[str, Any]) -> None:
        """Put an update into the queue as it is, without its number: what no library knows, or what breaks
        one."""
        self.world.updates.push("", payload, queue="raw", seconds=86_400)

    def reorder(self) -> None:
        """Hand out the next batch of updates backwards."""
        self.world.updates.reversed = True

    def forget_updates(self) -> int:
        """Drop all updates that wait, as the platform does after 24 hours. Returns how many."""
        return self.world.updates.forget()

    def jump(self, update_id: int) -> None:
        """Go on counting updates elsewhere, as the platform does after a week without any."""
        self.world.updates.jump(update_id)

    def drop_sockets(self) -> None:
        """Break every connection there is."""
        for transport in self._open:
            transport.abort()
        self._open.clear()

    async def __aenter__(self) -> FakeTelegram:
        app = web.Application(client_max_size=MOST_BYTES + 1024 * 1024)
        app.router.add_route("*", "/bot{token}/{method}", self._method)
        app.router.add_get("/file/bot{token}/{path:.+}", self._file)
        Page(self).add_to(app)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, *self._place).start()
        bound, port = runner.addresses[0][:2]
        self.url = f"http://{bound}:{port}"
        tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        self._stack.callback(tasks.create_task(self.webhook.run()).cancel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _method(self, http: web.Request) -> web.StreamResponse:
        """One call, from its bytes to its answer."""
        if http.transport is not None:
            self._open = {transport for transport in self._open if not transport.is_closing()}
            self._open.add(http.transport)
        method = schema().spelling.get(http.match_info["method"].lower(), http.match_info["method"])
        if http.match_info["token"] != self.token:
            return _refusal(Refused("Unauthorized", 401))
        try:
            texts, uploads = await request.read(http)
        except Refused as refused:
            self._record(method, {}, refused)
            return _refusal(refused)
        fault = self._faults.of(method)
        answer = await self._call(method, texts, uploads, fault)
        if fault.startswith("drop") and http.transport is not None:
            http.transport.abort()
        return answer

    async def _call(
        self, method: str, texts: Mapping[str, str], uploads: Mapping[str, Upload], fault: Fault = "none"
    ) -> web.Response:
        """Check a call, do what it asks unless a fault is in the way, and write it down."""
        given: Mapping[str, Any] = texts
        remarks: list[str] = []
        try:
            asked = request.understood(method, texts, uploads)
            given, method = asked.arguments, asked.method
            remarks = [*asked.remarks, *text.remarks(asked)]
            remarks += [f"this fake does not play {name}" for name in _NOT_PLAYED if name in asked.arguments]
            self.limits.check(asked)
            if fault == "slow_down":
                raise self.limits.slow_down(asked, self.retry_after)
            result = None if fault.endswith("before") else await self._done(asked)
        except Refused as refused:
            self._record(method, given, refused, fault, remarks)
            return _refusal(refused)
        broken = fault not in ("none", "slow_down")
        self.transcript.record(
            method,
            given,
            status=502 if broken else 200,
            answer=result,
            fault=fault,
            problem="; ".join(remarks) or None,
        )
        return _refusal(Refused("Bad Gateway", 502)) if broken else _json({"ok": True, "result": result})

    def _record(
        self,
        method: str,
        given: Mapping[str, Any],
        refused: Refused,
        fault: Fault = "none",
        remarks: list[str] | None = None,
    ) -> None:
        problems = [*([refused.mistake] if refused.mistake else []), *(remarks or [])]
        self.transcript.record(
            method,
            given,
            status=refused.code,
            answer=refused.description,
            fault=fault,
            problem="; ".join(problems) or None,
        )
        if problems:
            self.clock.beat()

    async def _done(self, asked: Request) -> Any:
        try:
            return await self._do(asked)
        except Refused as refused:
            if not refused.far:
                self.limits.forgive(asked)
            raise

    async def _do(self, asked: Request) -> Any:
        match asked.method:
            case "getUpdates":
                return await self._updates(asked)
            case "setWebhook" | "deleteWebhook":
                return self._set_webhook(asked)
            case "getWebhookInfo":
                return self.webhook.info()
            case method if method in _HANDLERS:
                result = _HANDLERS[method](self.world, asked)
                if method.startswith(_WRITES) and self._on_applied is not None:
                    self._on_applied()
                return result
            case method:
                raise Refused("Not Found: method not found", 404, mistake=f"this fake does not play {method}")

    async def _updates(self, asked: Request) -> list[dict[str, Any]]:
        batch = await self.world.updates.poll(
            asked.get("offset", 0),
            asked.get("limit", 100),
            asked.get("timeout", 0),
            asked.get("allowed_updates"),
        )
        return [update.json for update in batch for _ in range(2 if self._faults.doubles() else 1)]

    def _set_webhook(self, asked: Request) -> bool:
        updates = self.world.updates
        if asked.get("drop_pending_updates"):
            updates.forget()
        address = None
        if asked.get("url"):
            connections = max(1, min(100, asked.get("max_connections", 40)))
            address = Address(url=asked["url"], secret=asked.get("secret_token", ""), connections=connections)
        self.webhook.set(address)
        updates.allow(asked.get("allowed_updates"))
        if address is not None:
            updates.terminate("setWebhook request")
        return True

    async def _called_back(self, body: bytes, content_type: str) -> None:
        """The method that an answer to a webhook may carry; nobody hears what came of it."""
        if content_type == "application/json":
            texts = request.from_json(body) if body.lstrip().startswith(b"{") else {}
        else:
            texts = dict(parse_qsl(body.decode(errors="replace")))
        method = texts.get("method", "")
        if method and method not in _NOT_IN_ANSWERS and not method.lower().startswith("get"):
            await self._call(method, texts, {})

    async def _file(self, http: web.Request) -> web.Response:
        upload = (
            self.world.files.at(http.match_info["path"]) if http.match_info["token"] == self.token else None
        )
        if upload is None:
            return _refusal(Refused("Not Found", 404))
        return web.Response(body=upload.data, content_type="application/octet-stream")


def _json(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    body = msgspec.json.encode(content)
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def _refusal(refused: Refused) -> web.Response:
    said: dict[str, Any] = {"ok": False, "error_code": refused.code, "description": refused.description}
    if refused.parameters:
        said["parameters"] = refused.parameters
    wait = refused.parameters.get("retry_after")
    return _json(said, refused.code, {"Retry-After": str(wait)} if wait else None)
