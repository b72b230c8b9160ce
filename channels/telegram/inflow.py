"""Intake of updates by polling or a webhook: they are durable before they are confirmed to Telegram.

Telegram sends the pictures of an album as separate updates. They are kept in the cursor, which is committed
with the messages, until the album is complete, and become one message. Only one of them has the caption, so
the album addresses the bot if any of them does.
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
from channels.telegram.files import FileDownloader, named
from channels.telegram.health import ConnectionHealth
from channels.telegram.parse import (
    Event,
    decoded,
    message_ids,
    named_topic,
    parse_update,
    rejected,
    stopped_session,
    update_id_of,
    withdrawals,
)
from channels.telegram.updates.business import BusinessConnections
from channels.telegram.updates.chats import connection_of
from channels.telegram.updates.history import History, calls
from channels.telegram.updates.objects import (
    BusinessConnection,
    CallbackQuery,
    DeletedBusinessMessages,
    InlineQuery,
    StoppedGeneration,
)
from channels.telegram.updates.received import Attached, BotIdentity, GroupMigration, ReceivedMessage
from gateway.channel import (
    Addressing,
    Attention,
    Cursor,
    Feedback,
    InboundMessage,
    OverloadedError,
    Quoted,
    Receive,
    Rejected,
    Signal,
    StopRequest,
)

log = structlog.get_logger("trunkline.telegram")

_ALBUM_SECONDS = 1.0
"""Seconds without a new piece after which an album counts as complete."""
_MAX_PENDING_SECONDS = 60
"""Seconds for which an album of an earlier process waits for updates that a webhook has not received yet."""
_RETRY_SECONDS = 2.0
"""Pause before complete albums are submitted again after the inbox was full."""
_MAX_DONE = 200
_MAX_ALBUMS = 200
"""Complete albums that are kept: an edit shows only its own picture, and has to bring the others again."""
_MAX_TOPICS = 5_000
"""Topics whose names are known; most messages name their topic."""
_GROUP_OF = "group of "
"""Beginning of the shard of a cursor that holds the group that became a supergroup."""
_STRONGEST: tuple[Addressing, ...] = ("direct", "command", "reply", "mention", "thread", "none")


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
    received: ReceivedMessage
    at: float
    """Time of arrival, in seconds of the event loop's clock."""


class Inflow:
    """Intake of updates for one bot.

    ``attend`` returns the gateway's treatment of a message. ``note`` records that a message id exists in a
    chat. ``decide`` stores the decision of a pressed button before the update is confirmed to Telegram;
    ``answer_button`` shows the result afterwards. ``answer_inline`` begins to answer an inline query.
    ``groups``, filled here, are the ids of groups by those of the supergroups that they became.
    """

    def __init__(
        self,
        receive: Receive,
        bot: BotIdentity,
        files: FileDownloader,
        history: History,
        attend: Callable[[InboundMessage], Attention],
        note: Callable[[str, int], None],
        answer_button: Callable[[CallbackQuery], None],
        decide: Callable[[CallbackQuery], Awaitable[None]],
        connections: BusinessConnections,
        answer_inline: Callable[[InlineQuery], None],
        groups: dict[str, str],
    ) -> None:
        self.state = State()
        self._receive = receive
        self._groups = groups
        self._topics: dict[tuple[str, str], str] = {}
        self._bot = replace(bot, groups=groups, topics=self._topics)
        self._files = files
        self._history = history
        self._attend = attend
        self._note = note
        self._answer_button = answer_button
        self._decide = decide
        self._connections = connections
        self._answer_inline = answer_inline
        self._lock = asyncio.Lock()
        self._pieces: list[_Piece] = []
        self._albums: dict[str, tuple[ReceivedMessage, ...]] = {}
        self._waiting = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._since = 0.0
        """Loop time since when Telegram has delivered each update at once."""

    async def restore(self, cursors: Iterable[Cursor]) -> None:
        """Restore the position and the incomplete albums of an earlier process."""
        for cursor in cursors:
            if cursor.account == str(self._bot.id) and not cursor.shard:
                try:
                    self.state = msgspec.json.decode(cursor.value, type=State)
                except (msgspec.DecodeError, RecursionError) as error:
                    log.error("cannot read the stored position of Telegram updates", reason=str(error))
            elif cursor.account == str(self._bot.id) and cursor.shard.startswith(_GROUP_OF):
                self._groups[cursor.shard.removeprefix(_GROUP_OF)] = cursor.value
        messages = [(raw, parse_update(raw, self._bot)) for raw in self.state.albums]
        self._set_pieces(
            self._pieces_of([(raw, one) for raw, one in messages if isinstance(one, ReceivedMessage)])
        )

    async def take(self, raws: Sequence[Any], offset: int = 0) -> None:
        """Commit the updates, then answer buttons and inline queries. Raises OverloadedError if nothing was
        committed.

        ``offset`` is the id of the next update when polling; 0 for a webhook.
        """
        self._note_topics(raws)
        events = [(raw, parse_update(raw, self._bot)) for raw in raws]
        if await self._follow(event for _, event in events if isinstance(event, GroupMigration)):
            events = [(raw, parse_update(raw, self._bot)) for raw in raws]
        if split := _first_dependent([event for _, event in events]):
            await self.take(raws[:split], update_id_of(raws[split]) or 0 if offset else 0)
            await self.take(raws[split:], offset)
            return
        for raw in raws:
            for chat, number in message_ids(raw):
                self._note(chat, number)
        events = [(raw, await self._check_connection(raw, event)) for raw, event in events]
        whole, pieces = self._fresh(events)
        messages, refused = await self._complete(whole)
        refused += [one for _, one in events if isinstance(one, Rejected)]
        for _, event in events:
            if isinstance(event, CallbackQuery):
                await self._decide(event)
        async with self._lock:
            waiting = _merge_pieces(self._pieces, pieces)
            ready = [one for one in waiting if any(_completes(message, one) for _, message in whole)]
            albums, failed = await self._complete(_join_albums(ready))
            refused += failed
            signals = self._signals([event for _, event in events])
            await self._commit([*albums, *messages], waiting, ready, refused, offset, signals)
        for _, event in events:
            if isinstance(event, CallbackQuery):
                self._answer_button(event)
            elif isinstance(event, InlineQuery):
                self._answer_inline(event)

    def _fresh(
        self, events: Sequence[tuple[Any, object]]
    ) -> tuple[list[tuple[Any, ReceivedMessage]], list[_Piece]]:
        """Return the messages that were not processed before, and apart from them the pieces of albums."""
        placed = [
            (raw, self._place(one))
            for raw, one in events
            if isinstance(one, ReceivedMessage) and not self._is_done(raw)
        ]
        pieces = self._pieces_of([(raw, one) for raw, one in placed if one.is_piece])
        return [(raw, self._with_album(one, pieces)) for raw, one in placed if not one.is_piece], pieces

    def _note_topics(self, raws: Iterable[object]) -> None:
        for chat, topic, name in filter(None, map(named_topic, raws)):
            self._topics.pop((chat, topic), None)
            self._topics[chat, topic] = name
            if len(self._topics) > _MAX_TOPICS:
                del self._topics[next(iter(self._topics))]

    async def _follow(self, migrations: Iterable[GroupMigration]) -> bool:
        """Store which groups became supergroups, before messages of these. Return whether any was new."""
        new = {one for one in migrations if one.supergroup not in self._groups}
        for one in new:
            # Telegram reports it in both chats. The first session of a chain of ids is that of all.
            group = self._groups.get(one.group, one.group)
            await self._receive(cursor=Cursor(str(self._bot.id), group, _GROUP_OF + one.supergroup))
            self._groups[one.supergroup] = group
            log.info("a group became a supergroup", group=one.group, supergroup=one.supergroup)
        return bool(new)

    def _signals(self, events: Sequence[Event]) -> list[Signal]:
        signals: list[Signal] = []
        for event in events:
            if isinstance(event, Feedback):
                signals.append(event)
            elif isinstance(event, StoppedGeneration):
                signals.append(StopRequest(stopped_session(event, self._bot)))
            elif isinstance(event, DeletedBusinessMessages):
                signals += withdrawals(event, self._bot)
        return signals

    def caught_up(self) -> None:
        """Record that Telegram has delivered all updates: an album without new pieces is complete then."""
        if not self._caught_up.is_set():
            self._since = asyncio.get_running_loop().time()
            self._caught_up.set()

    def fell_behind(self) -> None:
        """Record that updates may be waiting at Telegram, among them pieces of albums."""
        self._caught_up.clear()

    @property
    def is_behind(self) -> bool:
        """Return whether updates may be waiting at Telegram."""
        return not self._caught_up.is_set()

    def rename(self, username: str) -> None:
        """Take another user name of the bot for its name in the next updates."""
        if username != self._bot.username:
            log.info("the bot has another user name", channel=self._bot.channel, bot=username)
            self._bot = replace(self._bot, username=username)

    @property
    def kinds(self) -> list[str]:
        """The kinds of updates to request."""
        return [*self._bot.kinds]

    async def _check_connection(self, raw: object, event: Event) -> Event:
        """Return an event; None, or a rejection, for a message of a business chat that is not answered.

        Raises OverloadedError if Telegram cannot be asked about the connection.
        """
        if isinstance(event, BusinessConnection):
            self._connections.note(event)
        if not isinstance(event, ReceivedMessage):
            return event
        connection = connection_of(event.inbound.address.chat)
        try:
            if connection is None or await self._connections.is_answered(connection):
                return event
        except ValueError as error:
            log.warning("a message of a business account is not answered", reason=str(error))
            return rejected(raw, self._bot, str(error))
        except CallError as error:
            raise OverloadedError(f"a business connection cannot be checked now: {error}") from error
        return None

    async def run(self) -> None:
        """Submit albums when they are complete, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._waiting.wait()
            await self._caught_up.wait()
            wait = max(_next_complete_at(self._pieces), self._since + _ALBUM_SECONDS) - loop.time()
            try:
                if wait <= 0:
                    await self._submit_albums(loop.time())
            except OverloadedError:
                wait = _RETRY_SECONDS
            await asyncio.sleep(max(0.0, wait))

    async def _submit_albums(self, now: float) -> None:
        """Commit the albums that received no new piece for ``_ALBUM_SECONDS`` seconds."""
        newest = _newest(self._pieces)
        ready = [piece for piece in self._pieces if newest[piece.album] + _ALBUM_SECONDS <= now]
        albums, failed = await self._complete(_join_albums(ready))
        async with self._lock:
            # During the download, a later message may have completed an album, or another piece of it come.
            albums_of = {piece.album for piece in ready}
            if [piece for piece in self._pieces if piece.album in albums_of] == ready:
                await self._commit(albums, self._pieces, ready, failed, 0)

    async def _commit(
        self,
        messages: Sequence[InboundMessage],
        waiting: Sequence[_Piece],
        ready: Sequence[_Piece],
        refused: Sequence[Rejected],
        offset: int,
        signals: Sequence[Signal] = (),
    ) -> None:
        """Commit messages, signals and the new state in one transaction."""
        left = [piece for piece in waiting if piece not in ready]
        done = (*self.state.done, *(piece.update_id for piece in ready))[-_MAX_DONE:]
        state = State(offset or self.state.offset, tuple(piece.raw for piece in left), done)
        if state == self.state and not (messages or refused or signals):
            return
        value = msgspec.json.encode(state).decode()
        cursor = Cursor(str(self._bot.id), value)
        receipts = await self._receive(*messages, cursor=cursor, rejected=refused, signals=signals)
        for message, receipt in zip(messages, receipts, strict=False):
            if not (receipt.ignored or receipt.duplicate):
                self._history.called(message)
        self._keep_albums(ready)
        self.state = state
        self._set_pieces(left)

    def _place(self, received: ReceivedMessage) -> ReceivedMessage:
        """Return a message with the thread that it belongs to, and keep it as history."""
        message = received.inbound
        if message.addressed in ("none", "mention") and self._history.is_called(received):
            received = replace(received, inbound=replace(message, addressed="thread"))
        if self._attend(received.inbound) != "ignore":
            self._history.keep(received)
        return received

    def _keep_albums(self, pieces: Iterable[_Piece]) -> None:
        """Keep albums for edits of their pieces."""
        for piece in pieces:
            if self._attend(piece.received.inbound) != "ignore":
                before = self._albums.pop(piece.album, ())
                known = {one.inbound.original: one for one in (piece.received, *before)}
                album = sorted(known.values(), key=lambda one: one.inbound.order)
                self._albums[piece.album] = tuple(album)
        while len(self._albums) > _MAX_ALBUMS:
            del self._albums[next(iter(self._albums))]

    def _with_album(self, edit: ReceivedMessage, new: Sequence[_Piece]) -> ReceivedMessage:
        """Return an edited piece of an album as the edited album; other messages as they are."""
        if edit.album is None:
            return edit
        name = _album_name(edit)
        self._keep_albums(piece for piece in (*self._pieces, *new) if piece.album == name)
        before, changed = self._albums.get(name, ()), edit.inbound
        album = tuple(edit if one.inbound.original == changed.original else one for one in before)
        if edit not in album:
            return edit
        self._albums[name] = album
        whole, revises = _joined(album), album[0].inbound.original
        named = replace(whole.inbound, dedup_key=changed.dedup_key, alt_key=changed.alt_key, revises=revises)
        return replace(whole, inbound=named)

    async def _complete(
        self, messages: Sequence[tuple[Any, ReceivedMessage]]
    ) -> tuple[list[InboundMessage], list[Rejected]]:
        """Return messages with their files downloaded if they are answered; one that fails is rejected."""
        attention = [self._attend(one.inbound) for _, one in messages]
        wanted = [pair for pair, kind in zip(messages, attention, strict=True) if kind == "answer"]
        answered = iter(await self._download(wanted))
        made: list[InboundMessage | Rejected] = [
            next(answered) if kind == "answer" else named(one)
            for (_, one), kind in zip(messages, attention, strict=True)
            if kind != "ignore"
        ]
        refused = [one for one in made if isinstance(one, Rejected)]
        return [one for one in made if isinstance(one, InboundMessage)], refused

    async def _download(
        self, messages: Sequence[tuple[Any, ReceivedMessage]]
    ) -> list[InboundMessage | Rejected]:
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

    def _pieces_of(self, messages: Sequence[tuple[Any, ReceivedMessage]]) -> list[_Piece]:
        now = asyncio.get_running_loop().time()
        return [_Piece(raw, update_id_of(raw) or 0, _album_name(one), one, now) for raw, one in messages]

    def _set_pieces(self, pieces: Sequence[_Piece]) -> None:
        self._pieces = list(pieces)
        if pieces:
            self._waiting.set()
        else:
            self._waiting.clear()

    def _is_done(self, raw: object) -> bool:
        return update_id_of(raw) in self.state.done


def _first_dependent(events: Sequence[Event]) -> int | None:
    """Return the index of the first message that an earlier one may put into a thread: whether that is so is
    known when the earlier one is accepted."""
    called: set[str] = set()
    for index, event in enumerate(events):
        if isinstance(event, ReceivedMessage):
            message = event.inbound
            if message.addressed == "none" and not event.to_another and message.address.chat in called:
                return index
            if calls(message):
                called.add(message.address.chat)
    return None


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


def _completes(message: ReceivedMessage, piece: _Piece) -> bool:
    """Return whether a message was written in the same chat after a piece of an album, or edits the album:
    it is complete then."""
    album, inbound = piece.received.inbound, message.inbound
    is_edit = message.album is not None and _album_name(message) == piece.album
    return is_edit or (inbound.address.chat == album.address.chat and inbound.order > album.order)


def _album_name(piece: ReceivedMessage) -> str:
    return f"{piece.inbound.address.chat}:{piece.album}"


def _join_albums(pieces: Sequence[_Piece]) -> list[tuple[Any, ReceivedMessage]]:
    """Return each album as one message with the ids of its first piece, and the raw update of that."""
    albums: dict[str, list[_Piece]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.received.inbound.order):
        albums.setdefault(piece.album, []).append(piece)
    return [(album[0].raw, _joined([piece.received for piece in album])) for album in albums.values()]


def _joined(album: Sequence[ReceivedMessage]) -> ReceivedMessage:
    """Return the messages of an album as one. All reply to the same message; a forwarded one has a quote
    each."""
    first, quotes, files = album[0], list[Quoted](), list[Attached]()
    for one in album:
        shown = one.inbound.quotes
        if quotes and shown and shown[0].kind != "forward":
            shown = ()
        kept = (file for file in one.files if file.quote is None or shown)
        files += [file if file.quote is None else replace(file, quote=len(quotes)) for file in kept]
        quotes += shown
    addressed = min((one.inbound.addressed for one in album), key=_STRONGEST.index)
    if addressed == "thread" and any(one.to_another for one in album):
        addressed = "none"
    return replace(
        first,
        inbound=replace(
            first.inbound,
            text="\n".join(filter(None, (one.inbound.text for one in album))),
            addressed=addressed,
            quotes=tuple(quotes),
        ),
        files=tuple(files),
    )


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
                allowed_updates=inflow.kinds,
                seconds=wait + _POLL_GRACE,
            )
        except CallError as error:
            inflow.fell_behind()
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
        inflow.caught_up()


async def _take_batch(inflow: Inflow, batch: list[Any], offset: int) -> None:
    """Commit a batch; if the inbox has no room for all of it, commit its updates one by one."""
    batch = sorted(batch, key=lambda raw: update_id_of(raw) or 0)
    numbers = [number for number in map(update_id_of, batch) if number is not None]
    try:
        await inflow.take(batch, max(numbers) + 1 if numbers else offset + 1)
    except OverloadedError as error:
        log.warning("updates were not accepted; Telegram sends them again", reason=str(error))
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
        known, waited = False, 0
        while True:
            try:
                if not known and self.inflow is not None:
                    await client.call(
                        "setWebhook",
                        url=self._url,
                        secret_token=self._secret.decode(),
                        allowed_updates=self.inflow.kinds,
                    )
                info = await client.call("getWebhookInfo")
                if not isinstance(info, dict):
                    raise UnansweredError("getWebhookInfo: the result is not an object")
                info = cast("dict[str, Any]", info)
            except RefusedError as error:
                if error.says("webhook"):
                    error.reason = f"webhook_url is refused: {error.reason}"
                await health.failed(error)
                continue
            except CallError as error:
                await health.failed(error)
                continue
            known = info.get("url") == self._url
            health.succeeded()
            if known and info.get("pending_update_count") and info.get("last_error_message"):
                health.report_problem(f"Telegram could not deliver: {info['last_error_message']}")
            waited += 1
            if self.inflow is not None and (
                not info.get("pending_update_count") or waited > _MAX_PENDING_SECONDS
            ):
                self.inflow.caught_up()
            behind = self.inflow is None or self.inflow.is_behind
            await asyncio.sleep(1.0 if behind or not known else PROBE_SECONDS)

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
            log.warning("an update was not accepted; Telegram sends it again", reason=str(error))
            return web.Response(status=503, headers=_RETRY_HEADERS)
        return web.Response()
