"""Inflow of one workspace: parses deliveries and commits their messages, in order, with their files."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Protocol, assert_never, cast
from weakref import WeakValueDictionary

import structlog
from msgspec.structs import replace

from channels.slack.api import Api, Json
from channels.slack.context.content import (
    Shown,
    Upload,
    as_shown,
    named_in,
    plain_text,
    shortened,
    uploads,
)
from channels.slack.context.directory import Directory
from channels.slack.history import HistoryReader
from channels.slack.parse import (
    AppOpened,
    AppRemoved,
    DeletedMessage,
    DirectoryChanged,
    FormAsked,
    FormError,
    FormSubmitted,
    OtherMessage,
    Parsed,
    QuestionPressed,
    Rules,
    StopPressed,
    TokensRevoked,
    UserMessage,
    parse,
    revision,
    sender_id,
    user_id_of,
)
from channels.slack.render import safe_name
from channels.slack.surfaces.form import Form
from gateway import FilePart, Part
from gateway.channel import (
    Attention,
    Audio,
    Feedback,
    InboundMessage,
    InvalidRequestError,
    OverloadedError,
    PlacementDeferred,
    PlacementRefused,
    PlacementUncertain,
    Quoted,
    Receive,
    Rejected,
    Sender,
    StopRequest,
    Withdrawal,
)

ReadFile = Callable[..., Awaitable[Part]]
"""``Host.read_file``."""
GetPart = Callable[..., Awaitable[Part | Audio]]

log = structlog.get_logger("trunkline.slack")

_COMMIT_SECONDS = 2.3
"""Seconds to wait for a commit, of the three after which Slack retries; the retry is then acknowledged."""
_LONGEST_RAW = 100_000
_OVERLOADED_PAUSE = 1.0
_MOST_IN_PROGRESS = 1_000
"""Messages that wait for the history of their chat; further ones are read from the history."""
_NAME_SECONDS = 1.0
"""Longest wait for names; a message whose names come later has none."""
_MOST_REMEMBERED = 100
"""Newest messages of a history that are kept as context; older ones would be dropped from it anyway."""


class Events(Protocol):
    """Handler of the deliveries that the inflow does not handle itself. ``Workspace`` is one."""

    def changed(self, event: Json) -> None:
        """Note a change of users, channels or user groups."""
        ...

    async def pressed(self, pressed: QuestionPressed) -> Awaitable[None] | None:
        """Store the answer of a pressed button, and return what shows the result."""
        ...

    async def stopped(self, stopped: StopPressed) -> None:
        """Handle a press of Stop, after the stop was stored."""
        ...

    async def opened(self, opened: AppOpened) -> None:
        """Handle a user who opened the app's tab or conversation."""
        ...

    async def left(self) -> None:
        """Handle the removal of the app from the workspace."""
        ...

    async def revoked(self) -> None:
        """Handle the revocation of tokens."""
        ...


class Inflow:
    """Receiver of the deliveries of one workspace, active between ``start`` and ``stop``."""

    def __init__(
        self,
        api: Api,
        directory: Directory,
        *,
        file_bytes: int,
        read_file: ReadFile,
        attention: Callable[[InboundMessage], Attention],
        form: Form,
        events: Events,
    ) -> None:
        self.history = HistoryReader(api, self._commit_history, on_chats=directory.note_chats)
        self._api = api
        self._directory = directory
        self._file_bytes = file_bytes
        self._read_file = read_file
        self._attention = attention
        self._form = form
        self._events = events
        self._rules: Rules | None = None
        self._receive: Receive | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._in_progress: dict[str, asyncio.Task[Exception | None]] = {}
        self._deleted: set[str] = set()
        """Messages in progress that were deleted meanwhile, and so must not become context."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks by chat, so that a message whose names are loaded is not passed by a later one.

        Also by message, for feedback on it.
        """

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
        """Parse a delivery and make it durable. Returns whether it may be acknowledged.

        Raises FormError for a form that is to be shown again.
        """
        if self._receive is None or self._rules is None:
            return False
        try:
            parsed = parse(payload, self._rules, time.time_ns() // 1000)
        except FormError:
            raise
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
            case FormSubmitted(written):
                return await self._receive_form(written)
            case DeletedMessage(key):
                if key in self._in_progress:
                    self._deleted.add(key)
                await self._receive(signals=[Withdrawal(self._rules.team, key)])
            case Feedback():
                # In turn, so that the later one of two presses counts.
                async with self._turns.setdefault(f"{parsed.chat}:{parsed.message}", asyncio.Lock()):
                    await self._receive(signals=[parsed])
            case QuestionPressed():
                notification = await self._events.pressed(parsed)
                if notification is not None:
                    self._run_later(notification)
            case StopPressed():
                await self._receive(signals=[StopRequest(parsed.session)])
                self._run_later(self._events.stopped(parsed))
            case None:
                pass
            case _:
                self._apply_change(parsed)
        return True

    def _apply_change(
        self, change: AppOpened | AppRemoved | DirectoryChanged | FormAsked | OtherMessage | TokensRevoked
    ) -> None:
        match change:
            case OtherMessage(chat, ts):
                self.history.note_seen(chat, ts)
            case FormAsked():
                self._run_later(self._form.open(change))
            case AppOpened():
                self._run_later(self._events.opened(change))
            case AppRemoved():
                self._run_later(self._events.left())
            case DirectoryChanged(event):
                self._events.changed(dict(event))
            case TokensRevoked():
                self._run_later(self._events.revoked())
            case _:
                assert_never(change)

    async def _receive_form(self, written: UserMessage) -> bool:
        """Commit the message of a form. Raises FormError if it would not be answered."""
        problem = await self._form.problem(written.message)
        if problem:
            raise FormError(problem)
        try:
            return await self._receive_message(written)
        except OverloadedError as error:
            raise FormError("The bot has too much to do. Try again later.") from error
        except InvalidRequestError as error:
            raise FormError(f"This cannot be accepted: {error}") from error

    async def _receive_message(self, written: UserMessage) -> bool:
        """Commit a message after the missed messages of its chat.

        Returns False if that takes longer than Slack waits; the commit continues, and Slack's retry is
        acknowledged.
        """
        assert self._tasks is not None
        key, chat = written.message.dedup_key, written.message.address.chat
        attention = self._attention(written.message)
        if attention == "ignore":
            self.history.note_seen(chat, written.ts)
            return True
        if attention == "answer":
            self._note_called(written)
        task = self._in_progress.get(key)
        if task is None:
            if attention == "answer" and _is_in_history(written):
                self.history.add_pending(chat, written.ts)
                if len(self._in_progress) >= _MOST_IN_PROGRESS:
                    self.history.read_again(chat)
                    return False
            task = self._in_progress[key] = self._tasks.create_task(self._commit_in_order(written))
            task.add_done_callback(lambda _done: self._forget(key))
        await asyncio.wait([task], timeout=_COMMIT_SECONDS)
        if not task.done():
            log.info("a commit takes long; the message is acknowledged when Slack retries", key=key)
            return False
        failed = task.result()
        if failed is not None:
            raise failed
        return True

    def _note_called(self, written: UserMessage) -> str:
        """Note that a message calls the bot into its thread, and return when it does.

        That is when the message was written, which for a shortcut is later than its source.
        """
        message = written.message
        called = written.ts if _is_in_history(written) else _stamp(message.order)
        if message.address.thread is not None:
            self.history.note_called(message.address.chat, message.address.thread, called)
        return called

    def _forget(self, key: str) -> None:
        self._in_progress.pop(key, None)
        self._deleted.discard(key)

    async def _commit_in_order(self, written: UserMessage) -> Exception | None:
        chat, in_history = written.message.address.chat, _is_in_history(written)
        try:
            if self._attention(written.message) != "answer":
                await self._remember(written)
                return None
            # A command is in no history, so it must not wait for one that cannot be read.
            if in_history or not self.history.is_failing(chat):
                await self.history.wait_until_read(chat)
            await self._commit_message(written)
        except InvalidRequestError as error:
            self.history.note_committed(chat, written.ts, (), ())  # the caller puts it into quarantine
            return error
        except Exception as error:  # returned to the caller; must not end the task group
            if not isinstance(error, OverloadedError):  # a caller that waits no longer would not see it
                log.exception("a message could not be committed", chat=chat)
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
        written, quotes = await self._named(await self._with_root(written))
        get = partial(_part, api=self._api, largest=self._file_bytes, read_file=self._read_file)
        message = await with_files(written.message, written.files, get)
        message = await with_quotes(message, quotes, get, len(written.files))
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
        called = self._note_called(written)
        cursors = [history.cursor(shard, written.ts, called) for shard in shards]
        await self._receive(*both, cursor=cursors[0])
        for cursor in cursors[1:]:
            if cursor is not None:
                await self._receive(cursor=cursor)
        history.note_committed(address.chat, written.ts, shards, cursors)

    async def _with_root(self, written: UserMessage) -> UserMessage:
        """Return a message that calls the bot into a thread, with the thread's first message if it has files.

        A reply in a thread is the way to ask about a picture. The history of the thread only names its files.
        """
        address, history = written.message.address, self.history
        thread = written.message.written_in
        if thread is None or not written.ts or history.follows(address.chat, thread, written.ts):
            return written
        try:
            async with asyncio.timeout(_NAME_SECONDS):
                answer = await self._api.call(
                    "conversations.replies", channel=address.chat, ts=thread, limit=1
                )
        except (PlacementDeferred, PlacementRefused, PlacementUncertain, TimeoutError) as error:
            log.info("the first message of a thread cannot be read", chat=address.chat, reason=str(error))
            return written
        rows: object = answer.get("messages")
        first: object = cast(list[object], rows)[0] if isinstance(rows, list) and rows else None
        if not isinstance(first, dict) or cast(Json, first).get("ts") != thread:
            return written
        root = replace(as_shown(cast(Json, first)), kind="reply")
        return replace(written, shown=(*written.shown, root)) if root.files else written

    async def _remember(self, written: UserMessage) -> None:
        """Pass on a message that is only context: without the content of its files, and without a cursor."""
        if self._receive is None:
            raise OverloadedError("the channel is not running")
        named, quotes = await self._named(written)
        message = replace(
            named.message,
            parts=tuple(map(_only_named, named.files)),
            quotes=tuple(
                replace(quote, parts=tuple(map(_only_named, shown.files))) for quote, shown in quotes
            ),
        )
        self.history.note_seen(message.address.chat, written.ts)
        both = (message,) if written.edited is None else (message, revision(message, written.edited))
        if message.dedup_key not in self._deleted:
            await self._receive(*both)

    async def _named(self, written: UserMessage) -> tuple[UserMessage, list[tuple[Quoted, Shown]]]:
        """Return a message with the names in it, and its quotes; in the order of the messages of its chat.

        Waits at most a second for names: every message before this one has its own second, begun earlier.
        """
        assert self._rules is not None
        rules, directory, message = self._rules, self._directory, written.message
        loop = asyncio.get_running_loop()
        until = loop.time() + _NAME_SECONDS
        chat, user = message.address.chat, user_id_of(message.sender.id)
        texts = [written.markup, *(one.markup for one in written.shown)]
        ids = [user, chat, *(one.author for one in written.shown)]
        ids += [one for text in texts for one in named_in(text) if one != rules.bot_user]
        async with self._turns.setdefault(chat, asyncio.Lock()):
            await directory.load(ids, until - loop.time())
        person, sender = directory.person(user), message.sender
        message = replace(
            message,
            text=plain_text(written.markup, rules.bot_user, directory) if written.markup else message.text,
            sender=Sender(sender.id, person.name or sender.name, person.username or sender.username),
            address=replace(message.address, title=directory.title(chat)),
        )
        quotes = [(self._quoted(one, rules), one) for one in written.shown]
        return replace(written, message=message), quotes

    def _quoted(self, shown: Shown, rules: Rules) -> Quoted:
        """Return what a message shows as a quote without its files."""
        person = self._directory.person(shown.author)
        author: Sender | None = None
        if shown.author or shown.name:
            found = sender_id(rules, shown.author) if shown.author else ""
            author = Sender(found, person.name or shown.name, person.username)
        return Quoted(
            shown.kind,
            shortened(plain_text(shown.markup, "", self._directory)),
            author,
            own=bool(shown.author) and shown.author in (rules.bot_user, rules.bot),
        )

    async def _commit_history(self, _chat: str, messages: Iterable[UserMessage]) -> None:
        """Commit messages of a history, oldest first, retrying while the gateway is overloaded.

        Messages that are only context are passed on too, the newest of them. ``messages`` are parsed one by
        one, because a message that calls the bot into a thread decides how later ones address it.
        """
        found: list[tuple[Attention, UserMessage]] = []
        for written in messages:
            found.append((self._attention(written.message), written))
            if found[-1][0] == "answer":
                self._note_called(written)
        context = [written for attention, written in found if attention == "remember"]
        kept = {written.ts for written in context[-_MOST_REMEMBERED:]}
        for attention, written in found:
            if attention == "ignore" or (attention == "remember" and written.ts not in kept):
                continue
            while True:
                try:
                    await (self._commit_message if attention == "answer" else self._remember)(written)
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


def _stamp(order: int) -> str:
    return f"{order // 1_000_000}.{order % 1_000_000:06}"


def _only_named(file: Upload) -> FilePart:
    return FilePart(safe_name(file.name))


def _summary(message: InboundMessage) -> Json:
    return {"key": message.dedup_key, "text": message.text}


_MOST_FILES = 20
"""Files of one message, with those of its quotes; further ones are only named."""
_TRIES = 3


async def with_files(message: InboundMessage, files: Sequence[Upload], get: GetPart) -> InboundMessage:
    """Fetch the files of a message; those that cannot be fetched are only named.

    The first audio file becomes the message's voice recording.
    """
    if not files:
        return message
    parts: list[Part] = []
    for file in files:
        part = await get(file, listen=message.audio is None)
        if isinstance(part, Audio):
            message = replace(message, kind="audio", audio=part)
        else:
            parts.append(part)
    return replace(message, parts=tuple(parts))


async def with_quotes(
    message: InboundMessage, quotes: Sequence[tuple[Quoted, Shown]], get: GetPart, fetched: int
) -> InboundMessage:
    """Add quotes with their files. All files of a message share its limit, of which ``fetched`` are used.

    The first recording becomes the message's, if it has none of its own.
    """
    found: list[Quoted] = []
    left = max(0, _MOST_FILES - fetched)
    for quote, shown in quotes:
        parts: list[Part] = []
        for file in shown.files[:_MOST_FILES]:
            part = await get(file, listen=message.audio is None) if left else _only_named(file)
            left = max(0, left - 1)
            if isinstance(part, Audio):
                # It is the audio of the message if the sender's own has none.
                message = replace(message, kind="text" if message.text else "audio", audio=part)
            else:
                parts.append(part)
        found.append(replace(quote, parts=tuple(parts)))
    return replace(message, quotes=tuple(found)) if found else message


async def _part(file: Upload, *, api: Api, largest: int, read_file: ReadFile, listen: bool) -> Part | Audio:
    file = await _with_url(file, api)
    name = safe_name(file.name)
    heard = listen and file.mime_type.startswith("audio/")
    readable = heard or not file.mime_type.startswith(("audio/", "video/"))
    content = await _content(file, api, largest) if readable and file.url else None
    if not isinstance(content, bytes):
        return FilePart(name, content)
    if heard:
        return Audio(f"data:{file.mime_type};base64,{base64.b64encode(content).decode()}", file.mime_type)
    return await read_file(name, file.mime_type, content)


async def _with_url(file: Upload, api: Api) -> Upload:
    """Return a file with its URL: in a channel of several organizations, a message has only its id."""
    for attempt in range(_TRIES if file.id and not file.url else 0):
        try:
            answer = await api.call("files.info", file=file.id)
        except PlacementRefused as refused:
            log.info("a file is skipped", file=file.id, reason=str(refused))
            break
        except (PlacementDeferred, PlacementUncertain) as error:
            log.info("a file cannot be looked up", file=file.id, attempt=attempt, reason=str(error))
        else:
            return next(iter(uploads({"files": [answer.get("file")]})), file)
    return file


async def _content(file: Upload, api: Api, largest: int) -> bytes | str:
    """Download a file, with retries. Returns a note if it is too large or cannot be read."""
    if file.size > largest:
        return f"[it has more than {largest:,} bytes]"
    reason = ""
    for attempt in range(_TRIES):
        try:
            return await api.fetch(file.url, largest)
        except PlacementRefused as refused:
            log.info("a file is skipped", file=file.id, reason=str(refused))
            reason = str(refused)
            break
        except PlacementDeferred as deferred:
            log.info("a download failed", file=file.id, attempt=attempt, reason=str(deferred))
            reason = str(deferred)
    return f"[it could not be downloaded: {reason}]"
