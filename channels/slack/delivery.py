"""Delivery of answers as messages, streams and files, and the indicators shown meanwhile."""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from time import monotonic
from typing import Any, cast

import structlog
from msgspec import Struct

from channels.slack.api import Api, Json, RefusedError
from channels.slack.context.content import json_objects
from channels.slack.render import (
    BUTTONS,
    TABLE,
    File,
    Text,
    blocks,
    feedback_buttons,
    notification_text,
    stream_text,
)
from gateway.channel import (
    Address,
    OutboundMessage,
    Placed,
    PlacementDeferred,
    PlacementMismatch,
    PlacementUncertain,
)

log = structlog.get_logger("trunkline.slack")

EVENT_TYPE = "trunkline_answer"
_FILE, _RESPONSE = "file:", "response:"
_MOST_STREAMS = 2_000
_BEGIN_SHARE, _EDIT_SHARE = 0.6, 0.8
"""Shares of Slack's rate limits up to which streams begin, and answers in progress are edited."""
_NOT_SIGNED_IN_SECONDS, _FEW_EDITS_SECONDS = 0.5, 5.0
_UNFINISHED_TTL = 600.0
"""Seconds after which an unfinished message no longer reserves a final edit."""
_NOT_FOR_ALL = "the whole channel would see the file of an answer that is for you; ask in a direct message"
_MOST_RESPONSES = 5
"""Messages that a ``response_url`` accepts."""
_STREAM_ENDED = frozenset({"message_not_in_streaming_state", "stopped_by_user", "message_not_found"})
_OPTIONAL_BLOCKS = frozenset({TABLE, BUTTONS})
"""Kinds of blocks that older workspaces may not know; answers are complete without them."""
_TOO_LONG = "msg_blocks_too_long"
_BLOCKS_REFUSED = frozenset({"invalid_attachments", "invalid_blocks", _TOO_LONG})


class _Stream(Struct):
    """Message that is being streamed. ``confirmed`` is False while Slack may not have received all of
    ``sent``.
    """

    sent: str
    confirmed: bool = True


class Delivery:
    """The bot's messages in one workspace."""

    def __init__(self, api: Api, *, streams: bool) -> None:
        self._api = api
        self._may_stream = streams
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._not_streaming: OrderedDict[str, bool] = OrderedDict()
        self._uploads: OrderedDict[str, str] = OrderedDict()
        self._unfinished: OrderedDict[str, float] = OrderedDict()
        self._authors: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._refused_blocks: set[str] = set()
        self.team = ""
        self.bot_user = ""

    def remember_author(self, chat: str, ts: str, user: str) -> None:
        """Remember the author of a message, because a stream in a channel has to name its recipient."""
        _remember(self._authors, (chat, ts), user)

    def can_stream(self, address: Address) -> bool:
        """Return whether an answer to this address can be streamed: in threads, within the rate limits."""
        if not self._may_stream or address.thread is None or not self._can_start_stream():
            return False
        return address.chat.startswith("D") or (address.chat, address.reply_to) in self._authors

    def can_edit(self, share: float = _BEGIN_SHARE) -> bool:
        """Return whether the edit limit allows an optional edit.

        Each unfinished message reserves one edit, because it must still get its final content.
        """
        since = monotonic() - _UNFINISHED_TTL
        while self._unfinished and next(iter(self._unfinished.values())) < since:
            self._unfinished.popitem(last=False)
        return self._api.limiter.has_capacity("chat.update", share, reserved=len(self._unfinished))

    def _can_start_stream(self) -> bool:
        """Return whether the rate limits allow to start and stop one more stream."""
        pace = self._api.limiter
        return pace.has_capacity("chat.startStream", _BEGIN_SHARE) and pace.has_capacity(
            "chat.stopStream", _BEGIN_SHARE
        )

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Post one page, as a file, a response to a command, a stream or a message."""
        page, address = outbound.page, outbound.address
        if isinstance(page, File):
            try:
                if is_response(address):
                    raise RefusedError("upload", _NOT_FOR_ALL)
                return await self._upload(page, outbound)
            except RefusedError as refused:
                # The rest of the answer must not depend on one file. If the chat is gone, this fails, too.
                log.info("Slack refused a file", chat=address.chat, reason=str(refused))
                note = f"⚠️ `{page.name.replace('`', '')}` could not be sent: `{refused}`"
                page = Text(note, note)
        if is_response(address):
            return await self._respond_to_command(page, outbound)
        if not outbound.final and self.can_stream(address):
            placed = await self._start_stream(page, address)
            if placed is not None:
                return placed
        if not outbound.final and not self.can_edit():
            raise PlacementDeferred("the rate limit of edits is nearly used up", _FEW_EDITS_SECONDS)
        answer = await self._write(
            "chat.postMessage",
            lambda without: _message_body(page, outbound.nonce, without),
            channel=address.chat,
            thread_ts=address.thread,
            unfurl_links=False,
            unfurl_media=False,
        )
        ts = _placed_ts(answer)
        _remember(self._not_streaming, ts, True)
        if not outbound.final:
            _remember(self._unfinished, ts, monotonic())
        return Placed(ts)

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        """Change a posted page to its current content. Skips optional edits when the rate limit is nearly
        used up.
        """
        ts, page = placed.platform_id, outbound.page
        if ts.startswith((_FILE, _RESPONSE)) or not isinstance(page, Text):
            return
        if ts in self._streams and await self._extend_stream(ts, page, outbound):
            return
        if not outbound.final and (ts in self._streams or not self.can_edit(_EDIT_SHARE)):
            return
        try:
            await self._update(ts, page, outbound)
        except RefusedError as refused:
            is_late = outbound.final and refused.error == "edit_window_closed"
            if refused.error != "message_not_found" and not is_late:
                raise
            # An answer must not be lost with its message: it is placed again. So is one that the workspace
            # does not let the bot edit any more, but only once it is complete.
            raise PlacementMismatch(str(refused)) from refused

    async def delete(self, placed: Placed, address: Address) -> None:
        """Delete a message or file. A message that does not exist any more is a success."""
        ts = placed.platform_id
        try:
            if ts.startswith(_FILE):
                await self._api.call("files.delete", file=ts.removeprefix(_FILE))
            elif not ts.startswith(_RESPONSE):
                self._note_end(ts)
                self._unfinished.pop(ts, None)
                await self._api.call("chat.delete", channel=address.chat, ts=ts)
        except RefusedError as refused:
            if refused.error not in ("message_not_found", "file_not_found", "file_deleted"):
                raise

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        """Find a posted page by its nonce; return None if it is not there.

        A stream has no nonce until it ends; it is found as a newer message of the bot without one.
        """
        address, nonce = outbound.address, outbound.nonce
        if is_response(address):
            return None
        if not self.bot_user:
            raise PlacementDeferred("not signed in to the workspace yet", _NOT_SIGNED_IN_SECONDS)
        file = self._uploads.get(nonce)
        if file is not None and await is_shared(self._api, file, address.chat):
            return Placed(_FILE + file)
        stream: str | None = None
        replied, watermark = address.reply_to or "0", outbound.watermark or "0"
        async for message in list_messages(self._api, address, address.reply_to or watermark):
            if message.get("user") != self.bot_user:
                continue
            if (placed := _placed_with(nonce, message)) is not None:
                return placed
            ts = str(message.get("ts"))
            is_unnamed = not message.get("files") and _nonce(message) is None
            if is_unnamed and ts > max(watermark, replied) and ts not in outbound.others:
                stream = ts
        return Placed(stream) if stream is not None and self._may_stream and address.thread else None

    async def _start_stream(self, page: Text, address: Address) -> Placed | None:
        """Start a stream. Returns None if Slack refuses or the text cannot be streamed."""
        shown = stream_text(page.live)
        if not shown:
            return None
        user = self._authors.get((address.chat, address.reply_to or ""))
        direct = address.chat.startswith("D")
        try:
            answer = await self._api.call(
                "chat.startStream",
                channel=address.chat,
                thread_ts=address.thread,
                markdown_text=shown,
                recipient_user_id=None if direct else user,
                recipient_team_id=None if direct else self.team,
            )
        except RefusedError as refused:
            log.info("Slack refused a stream", chat=address.chat, reason=str(refused))
            if refused.error in (
                "unknown_method",
                "missing_scope",
                "feature_disabled",
                "not_allowed_token_type",
            ):
                self._may_stream = False
            return None
        ts = _placed_ts(answer)
        _remember(self._streams, ts, _Stream(shown))
        return Placed(ts)

    async def _extend_stream(self, ts: str, page: Text, outbound: OutboundMessage) -> bool:
        """Append to a stream, and stop it if the page is complete.

        Returns False if the page has to be shown by an edit instead.
        """
        stream, chat = self._streams[ts], outbound.address.chat
        whole = outbound.final or outbound.part + 1 < outbound.parts
        shown = stream_text(page.markdown if whole else page.live)
        more = shown[len(stream.sent) :] if shown is not None and shown.startswith(stream.sent) else None
        if more is None or not stream.confirmed:
            return False
        if not whole and (not more or not self._api.limiter.has_capacity("chat.appendStream", _EDIT_SHARE)):
            return True
        stream.confirmed = False
        try:
            if whole:
                await self._write(
                    "chat.stopStream",
                    lambda without: _stream_end(page, outbound.nonce, without),
                    channel=chat,
                    ts=ts,
                    markdown_text=more or None,
                )
                self._note_end(ts)
            else:
                await self._api.call(
                    "chat.appendStream", urgent=False, channel=chat, ts=ts, markdown_text=more
                )
        except PlacementDeferred:
            stream.confirmed = True  # nothing was applied
            raise
        except RefusedError as refused:
            if refused.error in _STREAM_ENDED:
                self._note_end(ts)
            else:  # the stream continues, so that the edit with the final content has to end it
                log.info("Slack refused to extend a stream", chat=chat, reason=str(refused))
            return False
        stream.confirmed, stream.sent = True, stream.sent + more
        return True

    async def _end_stream(self, chat: str, ts: str) -> None:
        """Stop a stream, so that the message can be edited."""
        try:
            await self._api.call("chat.stopStream", channel=chat, ts=ts)
        except RefusedError as refused:
            log.debug("a stream had ended before", chat=chat, reason=str(refused))
        self._note_end(ts)

    def _note_end(self, ts: str) -> None:
        self._streams.pop(ts, None)
        _remember(self._not_streaming, ts, True)

    async def _update(self, ts: str, page: Text, outbound: OutboundMessage) -> None:
        address = outbound.address
        if address.thread is not None and (ts in self._streams or ts not in self._not_streaming):
            await self._end_stream(address.chat, ts)  # an earlier process may have started a stream
        await self._write(
            "chat.update",
            lambda without: _message_body(page, outbound.nonce, without),
            urgent=outbound.final,
            channel=address.chat,
            ts=ts,
        )
        if outbound.final:
            self._unfinished.pop(ts, None)

    async def _write(self, method: str, body_of: Callable[[Collection[str]], Json], **arguments: Any) -> Json:
        """Post or change a message, without the optional blocks that Slack refuses.

        ``body_of`` returns its content without some kinds of blocks.
        """
        without = set(self._refused_blocks)
        while True:
            body = body_of(without)
            try:
                return await self._api.call(method, **arguments, **body)
            except RefusedError as refused:
                kinds = (str(block["type"]) for block in body.get("blocks", ()))
                kind = next((one for one in kinds if one in _OPTIONAL_BLOCKS), None)
                if refused.error not in _BLOCKS_REFUSED or kind is None:
                    raise
                log.info("Slack refused a block of an answer", kind=kind, reason=str(refused))
                without.add(kind)
                if refused.error != _TOO_LONG:  # the length is a property of this answer only
                    self._refused_blocks.add(kind)

    async def _respond_to_command(self, page: Text, outbound: OutboundMessage) -> Placed:
        """Answer a slash command so that only its author sees the answer.

        Uses the ``response_url``, which is valid for five answers within 30 minutes, then
        ``chat.postEphemeral``.
        """
        address, shown = outbound.address, _message_body(page, None, _OPTIONAL_BLOCKS)
        url, _, user = (address.reply_to or "").partition("#")
        try:
            if user and outbound.part >= _MOST_RESPONSES:
                raise RefusedError("response_url", "it is used up")
            await self._api.post(url, json={**shown, "response_type": "ephemeral"})
        except RefusedError as refused:
            log.info("a response_url was refused", reason=str(refused))
            if not user:
                raise
            await self._api.call("chat.postEphemeral", channel=address.chat, user=user, **shown)
        return Placed(_RESPONSE + outbound.nonce)

    async def _upload(self, page: File, outbound: OutboundMessage) -> Placed:
        """Upload and share a file. Its name contains the nonce, by which ``find`` recognizes it."""
        address, content = outbound.address, base64.b64decode(page.data)
        stem, dot, ending = page.name.rpartition(".")
        name = f"{stem or page.name}-{outbound.nonce}{dot}{ending if stem else ''}"
        file = await upload(self._api, name, content)
        _remember(self._uploads, outbound.nonce, file)
        await share(self._api, file, page.name, address, page.note)
        return Placed(_FILE + file)


async def upload(api: Api, name: str, content: bytes) -> str:
    """Upload a file without sharing it. Returns its id."""
    try:
        begun = await api.call("files.getUploadURLExternal", filename=name, length=len(content))
        await api.post(str(begun["upload_url"]), data=content)
    except PlacementUncertain as error:
        raise PlacementDeferred(str(error), 1.0) from error  # an upload that is not shared is invisible
    return str(begun["file_id"])


async def share(api: Api, file: str, title: str, address: Address, comment: str = "") -> None:
    """Share an uploaded file in a chat, as a separate message."""
    await api.call(
        "files.completeUploadExternal",
        files=[{"id": file, "title": title}],
        channel_id=address.chat,
        thread_ts=address.thread,
        initial_comment=comment or None,
    )


async def list_messages(api: Api, address: Address, oldest: str) -> AsyncIterator[Json]:
    """Yield the messages of a chat or thread since ``oldest``, with their metadata."""
    arguments: dict[str, Any] = {"channel": address.chat, "oldest": oldest, "include_all_metadata": True}
    method = "conversations.history"
    if address.thread is not None:
        method, arguments = "conversations.replies", {**arguments, "ts": address.thread}
    async for rows in api.pages(method, "messages", **arguments):
        for row in rows:
            yield row


async def is_shared(api: Api, file: str, chat: str) -> bool:
    """Return whether a file is shared in a chat."""
    try:
        answer = await api.call("files.info", file=file)
    except RefusedError:
        return False
    return chat in str(cast(Mapping[str, Any], answer.get("file", {})).get("shares"))


def _message_body(page: Text, nonce: str | None, without: Collection[str]) -> Json:
    """Return the content of a message. Always has blocks: without them an update removes them."""
    buttons = _buttons(page, without)
    body: Json = {
        "blocks": [*blocks(page.markdown, without), *buttons],
        "text": notification_text(page.markdown) or " ",
    }
    return body if nonce is None else {**body, "metadata": _metadata(nonce)}


def _stream_end(page: Text, nonce: str, without: Collection[str]) -> Json:
    """Return what the end of a stream adds to its text."""
    buttons = _buttons(page, without)
    return {"metadata": _metadata(nonce), **({"blocks": buttons} if buttons else {})}


def _buttons(page: Text, without: Collection[str]) -> list[Json]:
    return feedback_buttons() if page.rated and BUTTONS not in without else []


def _placed_ts(answer: Json) -> str:
    """Return the timestamp (the id) of a posted message. Raises ValueError if the answer has none."""
    ts = answer.get("ts")
    if not isinstance(ts, str) or not ts:
        raise ValueError("the answer has no ts")
    return ts


def _metadata(nonce: str) -> Json:
    return {"event_type": EVENT_TYPE, "event_payload": {"k": nonce}}


def _placed_with(nonce: str, message: Json) -> Placed | None:
    """Return the place of the page with a nonce, if it is this message or one of its files."""
    if _nonce(message) == nonce:
        return Placed(str(message.get("ts")))
    files = (file for file in json_objects(message.get("files")) if nonce in str(file.get("name")))
    return next((Placed(_FILE + str(file.get("id"))) for file in files), None)


def _nonce(message: Json) -> str | None:
    metadata: object = message.get("metadata")
    payload: object = cast(Json, metadata).get("event_payload") if isinstance(metadata, dict) else None
    return str(cast(Json, payload).get("k")) if isinstance(payload, dict) else None


def is_response(address: Address) -> bool:
    """Return whether only the author of a command sees its answer."""
    return address.reply_to is not None and "/" in address.reply_to


def _remember(memory: OrderedDict[Any, Any], key: object, value: object) -> None:
    memory[key] = value
    if len(memory) > _MOST_STREAMS:
        memory.popitem(last=False)


_STATUS_EVERY = 60.0
"""Seconds after which a status is set again; Slack removes it after two minutes."""
_INDICATOR_TTL = 15.0
"""Seconds after the last request to show an indicator until it is removed."""
_STATUS = "is thinking…"
_ABOUT_ONE_MESSAGE = frozenset(
    {"already_reacted", "no_reaction", "message_not_found", "invalid_thread_ts", "thread_ts_required"}
)
"""Errors that concern a single message, so that the method may be called for others."""


_SESSION_METHOD, _STATUS_METHOD = "agents.sessions.setStatus", "assistant.threads.setStatus"
_ADD, _REMOVE = "reactions.add", "reactions.remove"


class _Indicator(Struct):
    """Shown indicator, with the times when it was last set and last requested."""

    address: Address
    shown_at: float
    asked_at: float


class Indicators:
    """Indicators that an answer is in progress: a status in threads, a reaction on the message elsewhere.

    Their rate limits are low, and answers never wait for them: an indicator is shown only if the limits allow
    to set and remove it at once. A method that the app may not call is not called again.
    """

    def __init__(self, api: Api, reaction: str, clock: Callable[[], float] = monotonic) -> None:
        self._api = api
        self._reaction = reaction
        self._clock = clock
        self._shown: dict[tuple[str, str], _Indicator] = {}
        self._denied: set[str] = set()

    async def show(self, address: Address) -> None:
        """Show the indicator of an answer, or keep it. Called every few seconds while the answer is in
        progress.
        """
        place, now = _location(address), self._clock()
        if place is None:
            return
        indicator = self._shown.get(place)
        if indicator is not None:
            indicator.asked_at = now
        if address.thread is None:
            if indicator is None and self._reaction and await self._api.limiter.try_acquire(_ADD, _REMOVE):
                self._shown[place] = _Indicator(address, now, now)
                await self._call(_ADD, channel=place[0], timestamp=place[1], name=self._reaction)
            return
        if indicator is not None and now < indicator.shown_at + _STATUS_EVERY:
            return
        if await self._api.limiter.try_acquire(
            _SESSION_METHOD, _STATUS_METHOD, *(() if indicator is not None else (_SESSION_METHOD,))
        ):
            self._shown[place] = _Indicator(address, now, now)
            thread = {"channel_id": place[0], "thread_ts": place[1]}
            await self._call(_SESSION_METHOD, **thread, status="processing")
            await self._call(_STATUS_METHOD, **thread, status=_STATUS)

    async def clear(self, address: Address) -> None:
        """Remove the indicator of an answer."""
        place = _location(address)
        if place is None:
            return
        if address.thread is not None:
            await self.mark_idle(*place)
        elif self._shown.pop(place, None) is not None:
            await self._call(_REMOVE, channel=place[0], timestamp=place[1], name=self._reaction)

    async def mark_idle(self, chat: str, thread: str) -> None:
        """Set the status of a thread's agent session to ``active``, which removes its stop button."""
        indicator = self._shown.pop((chat, thread), None)
        if indicator is not None or await self._api.limiter.try_acquire(_SESSION_METHOD):
            await self._call(_SESSION_METHOD, channel_id=chat, thread_ts=thread, status="active")

    async def clear_stale(self) -> None:
        """Remove indicators that were not requested lately, since a turn may end without an answer."""
        since = self._clock() - _INDICATOR_TTL
        for indicator in [indicator for indicator in self._shown.values() if indicator.asked_at < since]:
            await self.clear(indicator.address)

    async def _call(self, method: str, **arguments: Any) -> None:
        if method in self._denied:
            return
        try:
            await self._api.call(method, acquired=True, **arguments)
        except RefusedError as refused:
            if refused.error not in _ABOUT_ONE_MESSAGE:
                self._denied.add(method)
                log.info("an indicator is no longer shown", reason=str(refused))
        except (PlacementDeferred, PlacementUncertain) as error:
            log.debug("an indicator was not shown", reason=str(error))


def _location(address: Address) -> tuple[str, str] | None:
    stamp = address.thread or address.reply_to
    return None if not stamp or "/" in stamp else (address.chat, stamp)
