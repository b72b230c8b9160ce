"""What is meant for the bot in one workspace: made durable, in its turn and with its files."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable

import structlog

from channels.slack.api import Api, Json, patiently
from channels.slack.attachments import attached
from channels.slack.catching_up import CatchingUp
from channels.slack.parse import (
    Deleted,
    Left,
    Parsed,
    Pressed,
    Rules,
    Seen,
    Stopped,
    Written,
    parse,
    revision,
)
from gateway import (
    Host,
    InboundMessage,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    Receive,
    Rejected,
)

log = structlog.get_logger("trunkline.slack")

_PATIENCE = 2.3
"""Seconds of the three that Slack waits; what takes longer is acknowledged when Slack asks again."""
_LONGEST_RAW = 100_000
_OVERLOADED_PAUSE = 1.0


class Inflow:
    """Takes what Slack says of one workspace. ``connected`` gives it what it needs for that."""

    def __init__(
        self,
        api: Api,
        host: Host,
        *,
        file_bytes: int,
        on_press: Callable[[Pressed], Awaitable[None]],
        on_stop: Callable[[Stopped], Awaitable[None]],
        on_leave: Callable[[], Awaitable[None]],
    ) -> None:
        self.catching = CatchingUp(api, self._take)
        self._api = api
        self._host = host
        self._file_bytes = file_bytes
        self._on_press = on_press
        self._on_stop = on_stop
        self._on_leave = on_leave
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
        match parsed:
            case Written():
                return await self._written(parsed)
            case Seen(chat, ts):
                self.catching.saw(chat, ts)
            case Deleted(session, key):
                self._host.withdraw(session, key)
            case Pressed():
                self._later(self._on_press(parsed))
            case Stopped():
                self._later(self._stop(parsed))
            case Left():
                self._later(self._on_leave())
            case None:
                pass
        return True

    async def _written(self, written: Written) -> bool:
        """A message: after what was missed in its room, and in time or when Slack asks again."""
        assert self._tasks is not None
        key = written.message.dedup_key
        task = self._under_way.get(key)
        if task is None:
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
        try:
            await self.catching.done(written.message.address.chat)
            await self._store(written)
        except Exception as error:  # noqa: BLE001 - handed to who waits; the task's group must not end
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
        address = message.address
        self.catching.saw(address.chat, written.ts)
        shard = address.chat if address.thread in (None, written.ts) else f"{address.chat}:{address.thread}"
        both = (message,) if written.edited is None else (message, revision(message, written.edited))
        await self._receive(*both, cursor=self.catching.passed(shard, written.ts))
        if address.thread == written.ts:
            cursor = self.catching.passed(f"{address.chat}:{address.thread}", written.ts)
            if cursor is not None:
                await self._receive(cursor=cursor)

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

    async def _stop(self, stopped: Stopped) -> None:
        with contextlib.suppress(NotFoundError):
            await self._host.abort(stopped.session)
        await self._on_stop(stopped)

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


def _plain(message: InboundMessage) -> Json:
    return {"key": message.dedup_key, "text": message.text}
