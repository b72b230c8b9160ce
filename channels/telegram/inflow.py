"""Intake of updates by polling or a webhook: they are durable before they are confirmed to Telegram.

Telegram sends the pictures of an album as separate updates. They are kept in the cursor, which is committed
with the messages, until the album is complete, and become one message.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
import structlog
from aiohttp import web
from msgspec import Struct
from msgspec.structs import replace

from channels.telegram.api import CallError, Client, RefusedError, UnansweredError
from channels.telegram.files import FileDownloader
from channels.telegram.health import ConnectionHealth
from channels.telegram.parse import (
    KINDS,
    BotIdentity,
    CallbackQuery,
    ReceivedMessage,
    StoppedGeneration,
    decoded,
    message_ids,
    parse_update,
    rejected,
    stopped_session,
    update_id_of,
)
from gateway.channel import Cursor, InboundMessage, OverloadedError, Receive, Rejected, StopRequest

log = structlog.get_logger("trunkline.telegram")

_ALBUM_SECONDS = 1.0
"""Seconds without a new piece after which an album counts as complete."""
_RETRY_SECONDS = 2.0
"""Pause before complete albums are submitted again after the inbox was full."""
_MAX_DONE = 200


class State(Struct, frozen=True, omit_defaults=True):
    """Read position of a bot: the id of the next update, the raw updates of incomplete albums, and the ids of
    the last updates that belonged to complete ones."""

    offset: int = 0
    albums: tuple[Any, ...] = ()
    done: tuple[int, ...] = ()


class _Piece(Struct, frozen=True):
    raw: Any
    update_id: int
    album: str
    message: InboundMessage
    at: float
    """Time of arrival, in seconds of the event loop's clock."""


class Inflow:
    """Intake of updates for one bot.

    ``note`` records that a message id exists in a chat. ``decide`` stores the decision of a pressed button
    before the update is confirmed to Telegram; ``answer_button`` shows the result afterwards.
    """

    def __init__(
        self,
        receive: Receive,
        bot: BotIdentity,
        files: FileDownloader,
        note: Callable[[str, int], None],
        answer_button: Callable[[CallbackQuery], None],
        decide: Callable[[CallbackQuery], Awaitable[None]],
    ) -> None:
        self.state = State()
        self._receive = receive
        self._bot = bot
        self._files = files
        self._note = note
        self._answer_button = answer_button
        self._decide = decide
        self._lock = asyncio.Lock()
        self._pieces: list[_Piece] = []
        self._waiting = asyncio.Event()

    async def restore(self, cursors: Iterable[Cursor]) -> None:
        """Restore the position and the incomplete albums of an earlier process."""
        for cursor in cursors:
            if cursor.account == str(self._bot.id) and not cursor.shard:
                try:
                    self.state = msgspec.json.decode(cursor.value, type=State)
                except (msgspec.DecodeError, RecursionError) as error:
                    log.error("cannot read the stored position of Telegram updates", reason=str(error))
        messages = [(raw, parse_update(raw, self._bot)) for raw in self.state.albums]
        await self._keep([(raw, one) for raw, one in messages if isinstance(one, ReceivedMessage)])

    async def take(self, raws: Sequence[Any], offset: int = 0) -> None:
        """Commit the updates, then answer pressed buttons. Raises OverloadedError if nothing was committed.

        ``offset`` is the id of the next update when polling; 0 for a webhook.
        """
        events = [(raw, parse_update(raw, self._bot)) for raw in raws]
        for raw in raws:
            for chat, number in message_ids(raw):
                self._note(str(chat), number)
        fresh = [
            (raw, one) for raw, one in events if isinstance(one, ReceivedMessage) and not self._is_done(raw)
        ]
        plain = await self._complete([(raw, one) for raw, one in fresh if one.album is None])
        pieces = await self._pieces_of([(raw, one) for raw, one in fresh if one.album is not None])
        refused = [one for _, one in events if isinstance(one, Rejected)]
        refused += [one for one in plain if isinstance(one, Rejected)]
        messages = [one for one in plain if isinstance(one, InboundMessage)]
        stops = [
            StopRequest(stopped_session(one, self._bot))
            for _, one in events
            if isinstance(one, StoppedGeneration)
        ]
        for _, event in events:
            if isinstance(event, CallbackQuery):
                await self._decide(event)
        async with self._lock:
            waiting = _merge_pieces(self._pieces, pieces)
            ready = [one for one in waiting if any(_is_later_in_chat(message, one) for message in messages)]
            await self._commit([*_join_albums(ready), *messages], waiting, ready, refused, offset, stops)
        for _, event in events:
            if isinstance(event, CallbackQuery):
                self._answer_button(event)

    async def run(self) -> None:
        """Submit albums when they are complete, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._waiting.wait()
            wait = _next_complete_at(self._pieces) - loop.time()
            try:
                if wait <= 0:
                    await self._submit_albums(loop.time())
            except OverloadedError:
                wait = _RETRY_SECONDS
            await asyncio.sleep(max(0.0, wait))

    async def _submit_albums(self, now: float) -> None:
        """Commit the albums that received no new piece for ``_ALBUM_SECONDS`` seconds."""
        async with self._lock:
            newest = _newest(self._pieces)
            ready = [piece for piece in self._pieces if newest[piece.album] + _ALBUM_SECONDS <= now]
            await self._commit(_join_albums(ready), self._pieces, ready, (), 0)

    async def _commit(
        self,
        messages: Sequence[InboundMessage],
        waiting: Sequence[_Piece],
        ready: Sequence[_Piece],
        refused: Sequence[Rejected],
        offset: int,
        stops: Sequence[StopRequest] = (),
    ) -> None:
        """Commit messages, stop requests and the new state in one transaction."""
        left = [piece for piece in waiting if piece not in ready]
        done = (*self.state.done, *(piece.update_id for piece in ready))[-_MAX_DONE:]
        state = State(offset or self.state.offset, tuple(piece.raw for piece in left), done)
        if state == self.state and not (messages or refused or stops):
            return
        value = msgspec.json.encode(state).decode()
        cursor = Cursor(str(self._bot.id), value)
        await self._receive(*messages, cursor=cursor, rejected=refused, signals=stops)
        self.state = state
        self._set_pieces(left)

    async def _complete(
        self, messages: Sequence[tuple[Any, ReceivedMessage]]
    ) -> list[InboundMessage | Rejected]:
        """Return messages with their files downloaded. One that fails is rejected."""
        try:
            return [*await self._files.complete([one for _, one in messages])]
        except Exception:  # an unexpected error in one message must not block the others
            log.exception("could not download files")
        made: list[InboundMessage | Rejected] = []
        for raw, one in messages:
            try:
                made += await self._files.complete([one])
            except Exception as error:
                log.exception("quarantined a message with files")
                made.append(rejected(raw, self._bot, type(error).__name__))
        return made

    async def _pieces_of(self, messages: Sequence[tuple[Any, ReceivedMessage]]) -> list[_Piece]:
        whole, now = await self._complete(messages), asyncio.get_running_loop().time()
        return [
            _Piece(raw, update_id_of(raw) or 0, f"{one.inbound.address.chat}:{one.album}", message, now)
            for (raw, one), message in zip(messages, whole, strict=True)
            if isinstance(message, InboundMessage)
        ]

    async def _keep(self, messages: Sequence[tuple[Any, ReceivedMessage]]) -> None:
        self._set_pieces(await self._pieces_of(messages))

    def _set_pieces(self, pieces: Sequence[_Piece]) -> None:
        self._pieces = list(pieces)
        if pieces:
            self._waiting.set()
        else:
            self._waiting.clear()

    def _is_done(self, raw: object) -> bool:
        return update_id_of(raw) in self.state.done


def _newest(pieces: Sequence[_Piece]) -> Mapping[str, float]:
    """Return the arrival time of the last piece of each album."""
    newest: dict[str, float] = {}
    for piece in pieces:
        newest[piece.album] = max(piece.at, newest.get(piece.album, 0.0))
    return newest


def _next_complete_at(pieces: Sequence[_Piece]) -> float:
    """Return the loop time at which the next album counts as complete."""
    return min(_newest(pieces).values(), default=0.0) + _ALBUM_SECONDS


def _merge_pieces(before: Sequence[_Piece], new: Sequence[_Piece]) -> list[_Piece]:
    """Return all pieces; of two with the same update id, only the newer."""
    return list({piece.update_id: piece for piece in (*before, *new)}.values())


def _is_later_in_chat(message: InboundMessage, piece: _Piece) -> bool:
    """Return whether a message was written in the same chat after a piece of an album: the album is
    complete then."""
    return message.address.chat == piece.message.address.chat and message.order > piece.message.order


def _join_albums(pieces: Sequence[_Piece]) -> list[InboundMessage]:
    """Return each album as one message with the ids of its first piece."""
    albums: dict[str, list[InboundMessage]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.message.order):
        albums.setdefault(piece.album, []).append(piece.message)
    return [
        replace(
            album[0],
            text="\n".join(filter(None, (one.text for one in album))),
            parts=tuple(part for one in album for part in one.parts),
        )
        for album in albums.values()
    ]


POLL_SECONDS = 25
_POLL_GRACE = 15.0
"""Seconds that a response may come after the end of a poll."""
_MAX_BATCH = 100
_OVERLOADED_PAUSE = 1.0


async def poll(client: Client, inflow: Inflow, health: ConnectionHealth) -> None:
    """Poll for updates until cancelled. A poll confirms the updates of the previous one, so it starts after
    they are committed."""
    while True:
        offset = inflow.state.offset
        # While unhealthy, poll without waiting: the first response makes the channel healthy again.
        wait = POLL_SECONDS if health.health().ok else 0
        try:
            batch = await client.call(
                "getUpdates",
                offset=offset,
                limit=_MAX_BATCH,
                timeout=wait,
                allowed_updates=[*KINDS],
                seconds=wait + _POLL_GRACE,
            )
        except CallError as error:
            if isinstance(error, RefusedError) and error.says("webhook is active"):
                await _remove_webhook(client)
            await health.failed(error)
            continue
        if not isinstance(batch, list):
            await health.failed(UnansweredError("getUpdates: the result is not a list"))
            continue
        health.succeeded()
        if batch:
            await _take_batch(inflow, cast("list[Any]", batch), offset)


async def _take_batch(inflow: Inflow, batch: list[Any], offset: int) -> None:
    """Commit a batch; if the inbox has no room for all of it, commit its updates one by one."""
    batch = sorted(batch, key=lambda raw: update_id_of(raw) or 0)
    numbers = [number for number in map(update_id_of, batch) if number is not None]
    try:
        await inflow.take(batch, max(numbers) + 1 if numbers else offset + 1)
    except OverloadedError as error:
        log.warning("the inbox is full; Telegram sends the updates again", reason=str(error))
        for raw in batch:
            try:
                await inflow.take([raw], (update_id_of(raw) or offset) + 1)
            except OverloadedError:
                await asyncio.sleep(_OVERLOADED_PAUSE)
                return


async def _remove_webhook(client: Client) -> None:
    try:
        await client.call("deleteWebhook", drop_pending_updates=False)
    except CallError as error:
        log.info("could not remove the webhook", reason=str(error))


PROBE_SECONDS = 60.0
_BODY_SECONDS = 20.0
_HEADER = "X-Telegram-Bot-Api-Secret-Token"
_RETRY_HEADERS = {"Retry-After": "2"}


class Webhook:
    """Webhook endpoint for updates. While ``inflow`` is None it responds 503, so that Telegram retries later.

    Requests carry a secret. The response 200 is sent when the update is durable; Telegram repeats all others.
    """

    def __init__(self, url: str, secret: str) -> None:
        self.inflow: Inflow | None = None
        self._url = url
        self._secret = secret.encode()

    def routes(self) -> Sequence[web.AbstractRouteDef]:
        """Return the webhook's only route."""
        return [web.post(urlsplit(self._url).path or "/", self._receive_update)]

    async def run(self, client: Client, health: ConnectionHealth) -> None:
        """Register the webhook at Telegram and check it periodically, until cancelled."""
        known = False
        while True:
            try:
                if not known:
                    await client.call(
                        "setWebhook",
                        url=self._url,
                        secret_token=self._secret.decode(),
                        allowed_updates=[*KINDS],
                    )
                info = await client.call("getWebhookInfo")
                if not isinstance(info, dict):
                    raise UnansweredError("getWebhookInfo: the result is not an object")
                info = cast("dict[str, Any]", info)
            except CallError as error:
                await health.failed(error)
                continue
            known = info.get("url") == self._url
            health.succeeded()
            if known and info.get("pending_update_count") and info.get("last_error_message"):
                health.report_problem(f"Telegram could not deliver: {info['last_error_message']}")
            await asyncio.sleep(PROBE_SECONDS if known else 1.0)

    async def _receive_update(self, request: web.Request) -> web.Response:
        given = request.headers.get(_HEADER, "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._secret):
            return web.Response(status=401)
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await request.read()
        except TimeoutError:
            return web.Response(status=408)
        try:
            update = decoded(body)
        except ValueError:
            return web.Response(status=400)
        if self.inflow is None:
            return web.Response(status=503, headers=_RETRY_HEADERS)
        try:
            await self.inflow.take([update])
        except OverloadedError as error:
            log.warning("the inbox is full; Telegram sends the updates again", reason=str(error))
            return web.Response(status=503, headers=_RETRY_HEADERS)
        return web.Response()
