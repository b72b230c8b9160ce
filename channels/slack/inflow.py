"""Inflow of one workspace: parses deliveries and commits their messages, in order, with their files."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import assert_never

import structlog
from msgspec.structs import replace

from channels.slack.api import Api, Json, wait_at_most
from channels.slack.history import HistoryReader
from channels.slack.parse import (
    AppRemoved,
    ApprovalPressed,
    DeletedMessage,
    OtherMessage,
    Parsed,
    Rules,
    StopPressed,
    TokensRevoked,
    Upload,
    UserMessage,
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

_COMMIT_SECONDS = 2.3
"""Seconds to wait for a commit, of the three after which Slack retries; the retry is then acknowledged."""
_LONGEST_RAW = 100_000
_OVERLOADED_PAUSE = 1.0
_MOST_IN_PROGRESS = 1_000
"""Messages that wait for the history of their chat; further ones are read from the history."""


class Inflow:
    """Receiver of the deliveries of one workspace, active between ``start`` and ``stop``."""

    def __init__(
        self,
        api: Api,
        *,
        file_bytes: int,
        on_press: Callable[[ApprovalPressed], Awaitable[Awaitable[None] | None]],
        on_stop: Callable[[StopPressed], Awaitable[None]],
        on_leave: Callable[[], Awaitable[None]],
        on_revoke: Callable[[], Awaitable[None]],
    ) -> None:
        self.history = HistoryReader(api, self._commit_history)
        self._api = api
        self._file_bytes = file_bytes
        self._on_press = on_press
        self._on_stop = on_stop
        self._on_leave = on_leave
        self._on_revoke = on_revoke
        self._rules: Rules | None = None
        self._receive: Receive | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._in_progress: dict[str, asyncio.Task[Exception | None]] = {}

    def start(self, rules: Rules, receive: Receive, tasks: asyncio.TaskGroup) -> None:
        """Accept deliveries from now on."""
        self._rules = self.history.rules = rules
        self._receive, self._tasks = receive, tasks

    def stop(self) -> None:
        """Accept no more deliveries."""
        self._receive = self._tasks = None
        self.history.stop()
        self._in_progress.clear()

    async def commit(self, payload: Json) -> bool:
        """Parse a delivery and make it durable. Returns whether it may be acknowledged."""
        if self._receive is None or self._rules is None:
            return False
        try:
            parsed = parse(payload, self._rules, time.time_ns() // 1000)
        except Exception as error:  # noqa: BLE001 - unreadable payloads go to quarantine
            return await self.reject(payload, error)
        try:
            return await self._apply(parsed)
        except InvalidRequestError as error:
            return await self.reject(payload, error)
        except OverloadedError as error:
            log.warning("overloaded; Slack will retry the delivery", reason=str(error))
            return False

    async def _apply(self, parsed: Parsed) -> bool:
        assert self._receive is not None
        assert self._rules is not None
        match parsed:
            case UserMessage():
                return await self._receive_message(parsed)
            case OtherMessage(chat, ts):
                self.history.note_seen(chat, ts)
            case DeletedMessage(key):
                await self._receive(signals=[Withdrawal(self._rules.team, key)])
            case ApprovalPressed():
                notification = await self._on_press(parsed)
                if notification is not None:
                    self._run_later(notification)
            case StopPressed():
                await self._receive(signals=[StopRequest(parsed.session)])
                self._run_later(self._on_stop(parsed))
            case AppRemoved():
                self._run_later(self._on_leave())
            case TokensRevoked():
                self._run_later(self._on_revoke())
            case None:
                pass
            case _:
                assert_never(parsed)
        return True

    async def _receive_message(self, written: UserMessage) -> bool:
        """Commit a message after the missed messages of its chat.

        Returns False if that takes longer than Slack waits; the commit continues, and Slack's retry is
        acknowledged.
        """
        assert self._tasks is not None
        key, chat = written.message.dedup_key, written.message.address.chat
        task = self._in_progress.get(key)
        if task is None:
            if _is_in_history(written):
                self.history.add_pending(chat, written.ts)
                if len(self._in_progress) >= _MOST_IN_PROGRESS:
                    self.history.read_again(chat)
                    return False
            task = self._in_progress[key] = self._tasks.create_task(self._commit_in_order(written))
            task.add_done_callback(lambda _done: self._in_progress.pop(key, None))
        if not await wait_at_most(_COMMIT_SECONDS, task):
            log.info("a commit takes long; the message is acknowledged when Slack retries", key=key)
            return False
        failed = task.result()
        if failed is not None:
            raise failed
        return True

    async def _commit_in_order(self, written: UserMessage) -> Exception | None:
        chat, in_history = written.message.address.chat, _is_in_history(written)
        try:
            # A command is in no history, so it must not wait for one that cannot be read.
            if in_history or not self.history.is_failing(chat):
                await self.history.wait_until_read(chat)
            await self._commit_message(written)
        except InvalidRequestError as error:
            self.history.note_committed(chat, written.ts, (), ())  # the caller puts it into quarantine
            return error
        except Exception as error:  # noqa: BLE001 - returned to the caller; must not end the task group
            if in_history:
                self.history.read_again(chat)
            return error
        return None

    async def _commit_message(self, written: UserMessage) -> None:
        """Commit a message with its files and the cursors of its chat and thread.

        An edited message from a history is committed twice, as the original and as its revision. Later
        deliveries of either are then duplicates.
        """
        if self._receive is None:
            raise OverloadedError("the channel is not running")
        message = await with_files(written.message, written.files, self._api, self._file_bytes)
        if not written.ts:
            await self._receive(message)
            return
        address, history = message.address, self.history
        history.note_seen(address.chat, written.ts)
        thread = f"{address.chat}:{address.thread}"
        shards = [address.chat if address.thread in (None, written.ts) else thread]
        if address.thread == written.ts:
            shards.append(thread)
        both = (message,) if written.edited is None else (message, revision(message, written.edited))
        cursors = [history.cursor(shard, written.ts) for shard in shards]
        await self._receive(*both, cursor=cursors[0])
        for cursor in cursors[1:]:
            if cursor is not None:
                await self._receive(cursor=cursor)
        history.note_committed(address.chat, written.ts, shards, cursors)

    async def _commit_history(self, _chat: str, messages: Iterable[UserMessage]) -> None:
        """Commit messages of a history, oldest first, retrying while the gateway is overloaded."""
        for written in messages:
            while True:
                try:
                    await self._commit_message(written)
                except OverloadedError:
                    await asyncio.sleep(_OVERLOADED_PAUSE)
                    continue
                except InvalidRequestError as error:
                    await self.reject({"message": _summary(written.message)}, error)
                    self.history.note_committed(written.message.address.chat, written.ts, (), ())
                break

    async def reject(self, payload: Json, error: Exception) -> bool:
        """Put an unreadable payload into quarantine. Returns whether it may be acknowledged."""
        raw = json.dumps(payload, default=str)[:_LONGEST_RAW]
        key = payload.get("event_id")
        if not isinstance(key, str) or not key:
            key = hashlib.blake2b(raw.encode(), digest_size=12).hexdigest()
        account = self._rules.team if self._rules else ""
        reason = f"{type(error).__name__}: {error}"[:500]
        log.warning("an unreadable delivery goes to quarantine", key=key[:100], reason=reason)
        if self._receive is None:
            return False
        try:
            await self._receive(rejected=[Rejected(account, key.replace("\0", "")[:200], raw, reason)])
        except OverloadedError:
            return False
        return True

    def _run_later(self, work: Awaitable[None]) -> None:
        """Run something in the background, after the acknowledgement."""

        async def quietly() -> None:
            try:
                await work
            except Exception:
                log.exception("an action after a delivery failed")

        if self._tasks is not None:
            self._tasks.create_task(quietly())
        elif isinstance(work, Coroutine):
            work.close()


def _is_in_history(written: UserMessage) -> bool:
    """Return whether a message can be read again from the history of its chat; commands cannot."""
    return written.message.original.startswith(f"{written.message.address.chat}:")


def _summary(message: InboundMessage) -> Json:
    return {"key": message.dedup_key, "text": message.text}


_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_LONGEST_TEXT = 200_000
_TRIES = 3


async def with_files(
    message: InboundMessage, files: Sequence[Upload], api: Api, largest: int
) -> InboundMessage:
    """Fetch the files of a message; those that cannot be fetched are only named.

    The first audio file becomes the message's voice recording.
    """
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
    """Download a file, with retries. Returns None if it is too large or cannot be read."""
    if file.size > largest:
        return None
    for attempt in range(_TRIES):
        try:
            return await api.fetch(file.url, largest)
        except PlacementRefused as refused:
            log.info("a file is skipped", file=file.id, reason=str(refused))
            return None
        except PlacementDeferred as deferred:
            log.info("a download failed", file=file.id, attempt=attempt, reason=str(deferred))
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
