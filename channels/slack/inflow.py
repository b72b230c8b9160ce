"""Inflow of one workspace: parses deliveries and commits their messages, in order, with their files."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence

import structlog
from msgspec.structs import replace

from channels.slack.api import Api, Json, patiently
from channels.slack.history import CatchingUp
from channels.slack.parse import (
    Deleted,
    Left,
    Parsed,
    Pressed,
    Revoked,
    Rules,
    Seen,
    Stopped,
    Upload,
    Written,
    parse,
    revision,
)
from channels.slack.render import safe_name
from gateway import FilePart, ImagePart, Part
from gateway.channel import (
    Audio,
    InboundMessage,
    InvalidRequestError,
    OverloadedError,
    PlacementDeferred,
    PlacementRefused,
    Receive,
    Rejected,
    StopRequest,
    Withdrawal,
)

log = structlog.get_logger("trunkline.slack")

_PATIENCE = 2.3
"""Seconds of the three that Slack waits; what takes longer is acknowledged when Slack asks again."""
_LONGEST_RAW = 100_000
_OVERLOADED_PAUSE = 1.0
_MOST_UNDER_WAY = 1_000
"""Deliveries that wait for the history of their room; the history brings the others."""


class Inflow:
    """Takes what Slack says of one workspace. ``connected`` gives it what it needs for that."""

    def __init__(
        self,
        api: Api,
        *,
        file_bytes: int,
        on_press: Callable[[Pressed], Awaitable[Awaitable[None] | None]],
        on_stop: Callable[[Stopped], Awaitable[None]],
        on_leave: Callable[[], Awaitable[None]],
        on_revoke: Callable[[], Awaitable[None]],
    ) -> None:
        self.catching = CatchingUp(api, self._take)
        self._api = api
        self._file_bytes = file_bytes
        self._on_press = on_press
        self._on_stop = on_stop
        self._on_leave = on_leave
        self._on_revoke = on_revoke
        self._rules: Rules | None = None
        self._receive: Receive | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._under_way: dict[str, asyncio.Task[Exception | None]] = {}

    def connected(self, rules: Rules, receive: Receive, tasks: asyncio.TaskGroup) -> None:
        """Begin to take deliveries."""
        self._rules = self.catching.rules = rules
        self._receive, self._tasks = receive, tasks

    def ended(self) -> None:
        """Take nothing any more."""
        self._receive = self._tasks = None
        self.catching.ended()
        self._under_way.clear()

    async def commit(self, payload: Json) -> bool:
        """Make a delivery durable. Returns whether it is, or was nothing to keep."""
        if self._receive is None or self._rules is None:
            return False
        try:
            parsed = parse(payload, self._rules, time.time_ns() // 1000)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is kept and the next one comes
            return await self.reject(payload, error)
        try:
            return await self._act(parsed)
        except InvalidRequestError as error:
            return await self.reject(payload, error)
        except OverloadedError as error:
            log.warning("Slack is asked to come again", reason=str(error))
            return False

    async def _act(self, parsed: Parsed) -> bool:
        assert self._receive is not None
        assert self._rules is not None
        match parsed:
            case Written():
                return await self._written(parsed)
            case Seen(chat, ts):
                self.catching.saw(chat, ts)
            case Deleted(key):
                await self._receive(signals=[Withdrawal(self._rules.team, key)])
            case Pressed():
                told = await self._on_press(parsed)
                if told is not None:
                    self._later(told)
            case Stopped():
                await self._receive(signals=[StopRequest(parsed.session)])
                self._later(self._on_stop(parsed))
            case Left():
                self._later(self._on_leave())
            case Revoked():
                self._later(self._on_revoke())
            case None:
                pass
        return True

    async def _written(self, written: Written) -> bool:
        """A message: after what was missed in its room, and in time or when Slack asks again."""
        assert self._tasks is not None
        key, chat = written.message.dedup_key, written.message.address.chat
        task = self._under_way.get(key)
        if task is None:
            if _is_listed(written):
                self.catching.arrived(chat, written.ts)
                if len(self._under_way) >= _MOST_UNDER_WAY:
                    self.catching.again(chat)
                    return False
            task = self._under_way[key] = self._tasks.create_task(self._in_turn(written))
            task.add_done_callback(lambda _done: self._under_way.pop(key, None))
        if not await patiently(_PATIENCE, task):
            log.info("a message takes its time; it is acknowledged when it comes again", key=key)
            return False
        failed = task.result()
        if failed is not None:
            raise failed
        return True

    async def _in_turn(self, written: Written) -> Exception | None:
        chat, listed = written.message.address.chat, _is_listed(written)
        try:
            # What no history tells of comes only once, and need not wait for one that cannot be read.
            if listed or not self.catching.fails(chat):
                await self.catching.done(chat)
            await self._store(written)
        except InvalidRequestError as error:
            self.catching.committed(chat, written.ts, (), ())  # it goes to the quarantine
            return error
        except Exception as error:  # noqa: BLE001 - handed to who waits; the task's group must not end
            if listed:
                self.catching.again(chat)
            return error
        return None

    async def _store(self, written: Written) -> None:
        """Make a message durable, with its files and how far its room is read.

        One that was changed comes together with its new wording: then what still tells of an older one, or of
        the message as it was at first, tells nothing new.
        """
        if self._receive is None:
            raise OverloadedError("the channel is not running")
        message = await attached(written.message, written.files, self._api, self._file_bytes)
        if not written.ts:
            await self._receive(message)
            return
        address, catching = message.address, self.catching
        catching.saw(address.chat, written.ts)
        thread = f"{address.chat}:{address.thread}"
        shards = [address.chat if address.thread in (None, written.ts) else thread]
        if address.thread == written.ts:
            shards.append(thread)
        both = (message,) if written.edited is None else (message, revision(message, written.edited))
        cursors = [catching.cursor(shard, written.ts) for shard in shards]
        await self._receive(*both, cursor=cursors[0])
        for cursor in cursors[1:]:
            if cursor is not None:
                await self._receive(cursor=cursor)
        catching.committed(address.chat, written.ts, shards, cursors)

    async def _take(self, _chat: str, messages: Iterable[Written]) -> None:
        """Make messages of a history durable, in their order, however long that takes."""
        for written in messages:
            while True:
                try:
                    await self._store(written)
                except OverloadedError:
                    await asyncio.sleep(_OVERLOADED_PAUSE)
                    continue
                except InvalidRequestError as error:
                    await self.reject({"message": _plain(written.message)}, error)
                    self.catching.committed(written.message.address.chat, written.ts, (), ())
                break

    async def reject(self, payload: Json, error: Exception) -> bool:
        """Keep what cannot be read, so that it is looked at by a person and not sent again."""
        raw = json.dumps(payload, default=str)[:_LONGEST_RAW]
        key = payload.get("event_id")
        if not isinstance(key, str) or not key:
            key = hashlib.blake2b(raw.encode(), digest_size=12).hexdigest()
        account = self._rules.team if self._rules else ""
        reason = f"{type(error).__name__}: {error}"[:500]
        log.warning("Slack sent what cannot be read; it is kept in quarantine", key=key[:100], reason=reason)
        if self._receive is None:
            return False
        try:
            await self._receive(rejected=[Rejected(account, key.replace("\0", "")[:200], raw, reason)])
        except OverloadedError:
            return False
        return True

    def _later(self, work: Awaitable[None]) -> None:
        """Do something after the acknowledgement."""

        async def quietly() -> None:
            try:
                await work
            except Exception:
                log.exception("what a person pressed could not be done")

        if self._tasks is not None:
            self._tasks.create_task(quietly())
        elif isinstance(work, Coroutine):
            work.close()


def _is_listed(written: Written) -> bool:
    """Return whether the history of its room has a message, so that it can be read again."""
    return written.message.original.startswith(f"{written.message.address.chat}:")


def _plain(message: InboundMessage) -> Json:
    return {"key": message.dedup_key, "text": message.text}


_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_LONGEST_TEXT = 200_000
_TRIES = 3


async def attached(
    message: InboundMessage, files: Sequence[Upload], api: Api, largest: int
) -> InboundMessage:
    """The message with its files; what cannot be had is named all the same. One recording can be heard."""
    if not files:
        return message
    parts: list[Part] = []
    for file in files:
        part = await _part(file, api, largest, listen=message.audio is None)
        if isinstance(part, Audio):
            message = replace(message, kind="audio", audio=part)
        else:
            parts.append(part)
    return replace(message, parts=tuple(parts))


async def _part(file: Upload, api: Api, largest: int, *, listen: bool) -> Part | Audio:
    name = safe_name(file.name)
    heard = listen and file.mime_type.startswith("audio/")
    readable = heard or file.mime_type in _PICTURES or _is_text(file.mime_type)
    content = await _content(file, api, largest) if readable and file.url else None
    if content is None:
        return FilePart(name)
    if heard:
        return Audio(f"data:{file.mime_type};base64,{base64.b64encode(content).decode()}", file.mime_type)
    if file.mime_type in _PICTURES:
        return ImagePart(base64.b64encode(content).decode(), file.mime_type, alt_text=name)
    return FilePart(name, content.decode(errors="replace")[:_LONGEST_TEXT])


async def _content(file: Upload, api: Api, largest: int) -> bytes | None:
    """A file's bytes; None if they cannot be had."""
    if file.size > largest:
        return None
    for attempt in range(_TRIES):
        try:
            return await api.fetch(file.url, largest)
        except PlacementRefused as refused:
            log.info("a file is not looked at", file=file.id, reason=str(refused))
            return None
        except PlacementDeferred as deferred:
            log.info("a file is fetched again", file=file.id, attempt=attempt, reason=str(deferred))
    return None


def _is_text(mime_type: str) -> bool:
    return mime_type.startswith("text/") or mime_type in (
        "application/json",
        "application/xml",
        "application/yaml",
        "application/x-yaml",
        "application/toml",
        "application/javascript",
    )
