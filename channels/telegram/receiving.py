"""From updates to the gateway: what they say is durable before the platform is told so.

The pictures of an album come one by one. They wait for each other, in the cursor that is committed with what
was read, and become one message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from channels.telegram.files import Files
from channels.telegram.parse import Heard, Self, message_ids, parse_update, rejected, update_id_of
from channels.telegram.wire import CallbackQuery, StoppedGeneration
from gateway import Cursor, InboundMessage, OverloadedError, Receive, Rejected

log = structlog.get_logger("trunkline.telegram")

Signal = CallbackQuery | StoppedGeneration
"""What is acted upon at once, and is of no use later."""

_QUIET = 1.0
"""Seconds after which nothing more is expected to come to an album."""
_AGAIN = 2.0
_REMEMBERED = 200


class State(Struct, frozen=True, omit_defaults=True):
    """How far a bot was read: the number of the next update; pieces of albums that are not complete, as they
    came; and updates that were pieces of complete ones."""

    offset: int = 0
    albums: tuple[Any, ...] = ()
    done: tuple[int, ...] = ()


class _Piece(Struct, frozen=True):
    raw: Any
    update_id: int
    album: str
    message: InboundMessage
    at: float
    """When it came, in the loop's time."""


class Receiving:
    """Takes updates in, for one bot."""

    def __init__(
        self,
        receive: Receive,
        me: Self,
        files: Files,
        note: Callable[[str, int], None],
        act: Callable[[Signal], None],
    ) -> None:
        self.state = State()
        self._receive = receive
        self._me = me
        self._files = files
        self._note = note
        self._act = act
        self._lock = asyncio.Lock()
        self._pieces: list[_Piece] = []
        self._waiting = asyncio.Event()

    async def restore(self, cursors: Iterable[Cursor]) -> None:
        """Go on where an earlier process was."""
        for cursor in cursors:
            if cursor.account == str(self._me.id) and not cursor.shard:
                try:
                    self.state = msgspec.json.decode(cursor.value, type=State)
                except (msgspec.DecodeError, RecursionError) as error:
                    log.error("how far Telegram was read cannot be read", reason=str(error))
        heard = [(raw, parse_update(raw, self._me)) for raw in self.state.albums]
        await self._keep([(raw, one) for raw, one in heard if isinstance(one, Heard)])

    async def take(self, raws: Sequence[Any], offset: int = 0) -> None:
        """Make updates durable, and then act upon the others. Raises OverloadedError; nothing was taken then.

        ``offset`` is the number of the update to come next, where numbers matter.
        """
        events = [(raw, parse_update(raw, self._me)) for raw in raws]
        for raw in raws:
            for chat, number in message_ids(raw):
                self._note(str(chat), number)
        fresh = [(raw, one) for raw, one in events if isinstance(one, Heard) and not self._is_done(raw)]
        plain = await self._complete([(raw, one) for raw, one in fresh if one.album is None])
        pieces = await self._pieces_of([(raw, one) for raw, one in fresh if one.album is not None])
        refused = [one for _, one in events if isinstance(one, Rejected)]
        refused += [one for one in plain if isinstance(one, Rejected)]
        messages = [one for one in plain if isinstance(one, InboundMessage)]
        async with self._lock:
            waiting = _together(self._pieces, pieces)
            ready = [one for one in waiting if any(_follows(message, one) for message in messages)]
            await self._commit([*_albums(ready), *messages], waiting, ready, refused, offset)
        for _, event in events:
            if isinstance(event, CallbackQuery | StoppedGeneration):
                self._act(event)

    async def run(self) -> None:
        """Hand over albums when they are complete, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._waiting.wait()
            wait = _quiet_at(self._pieces) - loop.time()
            try:
                if wait <= 0:
                    await self._hand_over(loop.time())
            except OverloadedError:
                wait = _AGAIN
            await asyncio.sleep(max(0.0, wait))

    async def _hand_over(self, now: float) -> None:
        """Commit the albums that nothing more came to for a while."""
        async with self._lock:
            newest = _newest(self._pieces)
            ready = [piece for piece in self._pieces if newest[piece.album] + _QUIET <= now]
            await self._commit(_albums(ready), self._pieces, ready, (), 0)

    async def _commit(
        self,
        messages: Sequence[InboundMessage],
        waiting: Sequence[_Piece],
        ready: Sequence[_Piece],
        refused: Sequence[Rejected],
        offset: int,
    ) -> None:
        """Messages and the new state, in one transaction."""
        left = [piece for piece in waiting if piece not in ready]
        done = (*self.state.done, *(piece.update_id for piece in ready))[-_REMEMBERED:]
        state = State(offset or self.state.offset, tuple(piece.raw for piece in left), done)
        if state == self.state and not messages and not refused:
            return
        value = msgspec.json.encode(state).decode()
        cursor = Cursor(str(self._me.id), value)
        await self._receive(*messages, cursor=cursor, rejected=refused)
        self.state = state
        self._set_pieces(left)

    async def _complete(self, heard: Sequence[tuple[Any, Heard]]) -> list[InboundMessage | Rejected]:
        """Messages with their files, however strange one of them is."""
        try:
            return [*await self._files.complete([one for _, one in heard])]
        except Exception:  # one strange file must not keep back the others
            log.exception("files could not be taken in")
        made: list[InboundMessage | Rejected] = []
        for raw, one in heard:
            try:
                made += await self._files.complete([one])
            except Exception as error:
                log.exception("a message with files was set aside")
                made.append(rejected(raw, self._me, type(error).__name__))
        return made

    async def _pieces_of(self, heard: Sequence[tuple[Any, Heard]]) -> list[_Piece]:
        whole, now = await self._complete(heard), asyncio.get_running_loop().time()
        return [
            _Piece(raw, update_id_of(raw) or 0, f"{one.inbound.address.chat}:{one.album}", message, now)
            for (raw, one), message in zip(heard, whole, strict=True)
            if isinstance(message, InboundMessage)
        ]

    async def _keep(self, heard: Sequence[tuple[Any, Heard]]) -> None:
        self._set_pieces(await self._pieces_of(heard))

    def _set_pieces(self, pieces: Sequence[_Piece]) -> None:
        self._pieces = list(pieces)
        if pieces:
            self._waiting.set()
        else:
            self._waiting.clear()

    def _is_done(self, raw: object) -> bool:
        return update_id_of(raw) in self.state.done


def _newest(pieces: Sequence[_Piece]) -> Mapping[str, float]:
    """When the last piece of each album came."""
    newest: dict[str, float] = {}
    for piece in pieces:
        newest[piece.album] = max(piece.at, newest.get(piece.album, 0.0))
    return newest


def _quiet_at(pieces: Sequence[_Piece]) -> float:
    """When the next album is complete."""
    return min(_newest(pieces).values(), default=0.0) + _QUIET


def _together(before: Sequence[_Piece], new: Sequence[_Piece]) -> list[_Piece]:
    """All pieces, each once."""
    return list({piece.update_id: piece for piece in (*before, *new)}.values())


def _follows(message: InboundMessage, piece: _Piece) -> bool:
    """Whether a message was written in the same room after a piece of an album: the album is complete."""
    return message.address.chat == piece.message.address.chat and message.order > piece.message.order


def _albums(pieces: Sequence[_Piece]) -> list[InboundMessage]:
    """Each album as one message, which is known as its first piece."""
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
