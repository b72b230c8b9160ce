"""Socket Mode: one connection at a time, and the next one before Slack ends it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

import aiohttp
import structlog

from channels.slack.api import Api, Json
from gateway.channel import Backoff, PlacementDeferred, PlacementRefused, PlacementUncertain

log = structlog.get_logger("trunkline.slack")

Answer = tuple[bool, Json | None]
"""Whether a delivery is acknowledged, and what is said along with that."""
Handle = Callable[[str, Json, Json], Awaitable[Answer]]
"""Takes the kind of a delivery, its payload, and the whole frame."""

_HEARTBEAT = 10.0
_LARGEST_FRAME = 4 * 1024 * 1024
_AT_ONCE = 64
_BACKOFF = Backoff(0.2, 30)


class Sockets:
    """The connection of one app. ``on_gap`` is called when one follows a time without any."""

    def __init__(self, app_token: str, base_url: str, handle: Handle, on_gap: Callable[[], None]) -> None:
        self._client = Api(app_token, base_url).client
        self._handle = handle
        self._on_gap = on_gap
        self._live = 0
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.problem = "connecting"
        """Why there is no connection; empty while there is one."""

    async def run(self) -> None:
        """Stay connected until cancelled."""
        failures = 1
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as http,
            asyncio.TaskGroup() as tasks,
        ):
            while True:
                leaving = asyncio.Event()
                try:
                    socket = await self._open(http)
                except (PlacementDeferred, PlacementUncertain, aiohttp.ClientError, TimeoutError) as error:
                    self.problem = str(error) or type(error).__name__
                    log.info("no connection to Slack", reason=self.problem)
                    await asyncio.sleep(_BACKOFF.pause(failures))
                    failures += 1
                    continue
                if not self._live:
                    self._on_gap()
                self._live += 1
                tasks.create_task(self._keep(socket, leaving))
                begun = asyncio.get_running_loop().time()
                await leaving.wait()
                lasted = asyncio.get_running_loop().time() - begun
                failures = 1 if lasted > _BACKOFF.pause(failures) else failures + 1
                if not self._live:
                    await asyncio.sleep(_BACKOFF.pause(failures) / 2)

    async def _open(self, http: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
        """A new connection. Raises PlacementRefused when the token does not do."""
        client: Any = self._client
        try:
            answer = await client.apps_connections_open(app_token=client.token)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PlacementDeferred(type(error).__name__) from error
        except Exception as error:
            raise _failure(error) from error
        url: Any = answer.get("url")
        return await http.ws_connect(str(url), heartbeat=_HEARTBEAT, max_msg_size=_LARGEST_FRAME)

    async def _keep(self, socket: aiohttp.ClientWebSocketResponse, leaving: asyncio.Event) -> None:
        """Read a connection until it ends; ``leaving`` is set as soon as another one is needed."""
        try:
            async with asyncio.TaskGroup() as tasks:
                async for frame in socket:
                    if frame.type is aiohttp.WSMsgType.TEXT:
                        await self._take(socket, leaving, tasks, frame.data)
        finally:
            self._live -= 1
            if not self._live:
                self.problem = "the connection is lost"
            leaving.set()
            await socket.close()

    async def _take(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        leaving: asyncio.Event,
        tasks: asyncio.TaskGroup,
        text: str,
    ) -> None:
        try:
            frame: object = json.loads(text)
        except (ValueError, RecursionError):
            log.warning("Slack sent a frame that is no JSON")
            return
        if not isinstance(frame, dict):
            return
        given = cast(Json, frame)
        kind = given.get("type")
        if kind == "hello":
            self.problem = ""
        elif kind == "disconnect":
            log.info("Slack ends a connection", reason=str(given.get("reason")))
            leaving.set()
        elif isinstance(given.get("envelope_id"), str):
            await self._slots.acquire()
            tasks.create_task(self._deliver(socket, given))

    async def _deliver(self, socket: aiohttp.ClientWebSocketResponse, frame: Json) -> None:
        """Handle one delivery, and acknowledge it if it is durable."""
        try:
            payload = frame.get("payload")
            given = cast(Json, payload) if isinstance(payload, dict) else {}
            taken, answer = await self._handle(str(frame.get("type")), given, frame)
            if taken:
                told = {"envelope_id": frame["envelope_id"], **({"payload": answer} if answer else {})}
                await socket.send_json(told)
        except ConnectionError as error:
            log.debug("an acknowledgement did not leave", reason=type(error).__name__)
        finally:
            self._slots.release()


def _failure(error: Exception) -> Exception:
    """Why no connection may be opened."""
    response: Any = getattr(error, "response", None)
    told: Any = getattr(response, "data", None)
    name = str(cast(Json, told).get("error", "")) if isinstance(told, dict) else ""
    status = getattr(response, "status_code", 0)
    if status == 429 or status >= 500 or name in ("ratelimited", "fatal_error", "internal_error", ""):
        return PlacementDeferred(name or f"{type(error).__name__}")
    return PlacementRefused(
        f"apps.connections.open: {name}; look at app_token, and whether the app has Socket Mode switched on"
    )
