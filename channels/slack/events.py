"""What Slack delivers, by socket or HTTP: durable first, then through bolt, which acknowledges it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any, cast

import structlog
from msgspec import Struct
from msgspec.structs import replace
from slack_bolt.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.request.async_request import AsyncBoltRequest

from channels.slack.api import Api, Json, patiently
from channels.slack.attachments import attached
from channels.slack.catching_up import CatchingUp
from channels.slack.parse import Deleted, Parsed, Pressed, Rules, Seen, Stopped, Written, parse
from gateway import (
    Host,
    InboundMessage,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    Receipt,
    Receive,
    Rejected,
)

log = structlog.get_logger("trunkline.slack")

_PATIENCE = 2.3
"""Seconds of the three that Slack waits; what takes longer is acknowledged when Slack asks again."""
_LONGEST_RAW = 100_000
_OVERLOADED_PAUSE = 1.0
_ANYTHING = re.compile(r".*", re.DOTALL)


class _Taken(Struct):
    """One delivery on its way: whether anybody looked at it, and whether it is durable."""

    begun: bool = False
    durable: bool = False


class Events:
    """Takes deliveries of one account. ``connected`` gives it what it needs to be durable."""

    def __init__(
        self,
        api: Api,
        host: Host,
        *,
        largest_file: int,
        on_press: Callable[[Pressed], Awaitable[None]],
        on_stop: Callable[[Stopped], Awaitable[None]],
    ) -> None:
        self.catching = CatchingUp(api, self._take)
        self._api = api
        self._host = host
        self._largest_file = largest_file
        self._on_press = on_press
        self._on_stop = on_stop
        self._rules: Rules | None = None
        self._receive: Receive | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._under_way: dict[str, asyncio.Task[Exception | None]] = {}
        self._app = self._bolt()

    def connected(self, rules: Rules, receive: Receive, tasks: asyncio.TaskGroup) -> None:
        """Begin to take deliveries."""
        self._rules = self.catching.rules = rules
        self._receive, self._tasks = receive, tasks

    def ended(self) -> None:
        """Take nothing any more."""
        self._receive = self._tasks = None
        self._under_way.clear()

    async def handle(self, kind: str, payload: Json, _frame: Mapping[str, Any]) -> tuple[bool, Json | None]:
        """Take one delivery: whether it may be acknowledged, and what is to be said with that."""
        taken = _Taken()
        answer: Json | None = None
        try:
            request = AsyncBoltRequest(mode="socket_mode", body=payload)
            request.context["taken"] = taken
            response = await self._app.async_dispatch(request)
            if response.status == 200 and response.body:
                answer = cast(Json, json.loads(response.body))
        except Exception as error:  # noqa: BLE001 - the library stumbles over payloads that are not as usual
            log.debug("bolt cannot read a delivery", kind=kind, reason=type(error).__name__)
        if not taken.begun:
            await self._commit(payload, taken)
        return taken.durable, answer

    def _bolt(self) -> AsyncApp:
        """The app: everything is made durable before a listener acknowledges it."""
        quiet = logging.getLogger("trunkline.slack.bolt")
        quiet.setLevel(logging.CRITICAL)  # what goes wrong is told here, without what people wrote

        async def authorize(team_id: str | None) -> AuthorizeResult:
            return AuthorizeResult(enterprise_id=None, team_id=team_id, bot_token=self._api.client.token)

        app: Any = AsyncApp(
            logger=quiet,
            client=self._api.client,
            signing_secret="checked before",  # noqa: S106 - signatures are checked where requests come in
            authorize=authorize,
            request_verification_enabled=False,
            ignoring_self_events_enabled=False,
        )

        async def commit(body: Json, context: dict[str, Any], next: Callable[[], Awaitable[None]]) -> None:
            taken: _Taken = context["taken"]
            await self._commit(body, taken)
            if taken.durable:
                await next()

        async def acknowledge(ack: Callable[[], Awaitable[None]]) -> None:
            await ack()

        app.use(commit)
        for kind in ("event", "command", "action", "shortcut", "view", "view_closed", "options"):
            getattr(app, kind)(_ANYTHING)(acknowledge)
        return cast(AsyncApp, app)

    async def _commit(self, payload: Json, taken: _Taken) -> None:
        """Make a delivery durable, or note why it is not."""
        taken.begun = True
        if self._receive is None or self._rules is None:
            return
        try:
            parsed = parse(payload, self._rules, time.time_ns() // 1000)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with it, it is kept and the next one comes
            taken.durable = await self._reject(payload, error)
            return
        try:
            taken.durable = await self._act(parsed)
        except InvalidRequestError as error:
            taken.durable = await self._reject(payload, error)
        except OverloadedError as error:
            log.warning("Slack is asked to come again", reason=str(error))

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

    async def _store(self, written: Written) -> Receipt | None:
        """Make a message durable, with its files and how far its room is read."""
        if self._receive is None:
            raise OverloadedError("the channel is not running")
        message = await attached(written.message, written.files, self._api, self._largest_file)
        if not written.ts:
            return (await self._receive(message))[0]
        address = message.address
        self.catching.saw(address.chat, written.ts)
        shard = address.chat if address.thread in (None, written.ts) else f"{address.chat}:{address.thread}"
        receipts = await self._receive(message, cursor=self.catching.passed(shard, written.ts))
        if address.thread == written.ts:
            cursor = self.catching.passed(f"{address.chat}:{address.thread}", written.ts)
            if cursor is not None:
                await self._receive(cursor=cursor)
        return receipts[0]

    async def _take(self, _chat: str, messages: Iterable[Written]) -> None:
        """Make messages of a history durable, in their order, however long that takes."""
        for written in messages:
            while True:
                try:
                    receipt = await self._store(written)
                    if receipt is not None and receipt.duplicate and written.revision is not None:
                        await self._store(replace(written, message=written.revision))
                except OverloadedError:
                    await asyncio.sleep(_OVERLOADED_PAUSE)
                    continue
                except InvalidRequestError as error:
                    await self._reject({"message": _plain(written.message)}, error)
                break

    async def _reject(self, payload: Json, error: Exception) -> bool:
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
