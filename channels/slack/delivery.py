"""Delivery of answers: messages, streams and files, and the indicators shown while an answer is made."""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from time import monotonic
from typing import Any, cast

import structlog
from msgspec import Struct

from channels.slack.api import Api, Json, RefusedError
from channels.slack.render import File, Text, blocks, note, stream
from gateway.channel import Address, OutboundMessage, Placed, PlacementDeferred, PlacementUncertain

log = structlog.get_logger("trunkline.slack")

EVENT_TYPE = "trunkline_answer"
_FILE, _RESPONSE = "file:", "response:"
_MOST_STREAMS = 2_000
_FIRST, _SECOND = 0.6, 0.8
"""The shares of Slack's limits up to which streams begin, and what is shown may change."""
_SOON, _LATER = 0.5, 5.0
_FORGOTTEN = 600.0
"""Seconds after which nobody finishes a message any more."""
_NO_STREAM = frozenset(
    {"message_not_in_streaming_state", "stopped_by_user", "message_not_found", "msg_too_long"}
)


class _Stream(Struct):
    """A message that grows. ``sure``: whether Slack surely has what was sent."""

    sent: str
    sure: bool = True


class Placing:
    """The messages of one account. ``people`` tells whose message a ``ts`` in a room was."""

    def __init__(self, api: Api, *, streams: bool) -> None:
        self._api = api
        self._may_stream = streams
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._whole: OrderedDict[str, bool] = OrderedDict()
        self._uploads: OrderedDict[str, str] = OrderedDict()
        self._unfinished: OrderedDict[str, float] = OrderedDict()
        self._people: OrderedDict[tuple[str, str], str] = OrderedDict()
        self.team = ""
        self.bot_user = ""

    def heard(self, chat: str, ts: str, user: str) -> None:
        """Remember who wrote a message, for whom its answer is streamed."""
        _keep(self._people, (chat, ts), user)

    def streams(self, address: Address) -> bool:
        """Whether answers there are streamed, as far as it is known."""
        if not self._may_stream or address.thread is None or not self._has_room():
            return False
        return address.chat.startswith("D") or (address.chat, address.reply_to) in self._people

    def may_change(self, share: float = _FIRST) -> bool:
        """Whether a message may be changed that is not finished: each such has to be changed once more."""
        since = monotonic() - _FORGOTTEN
        while self._unfinished and next(iter(self._unfinished.values())) < since:
            self._unfinished.popitem(last=False)
        return self._api.pace.has_room("chat.update", share, owed=len(self._unfinished))

    def _has_room(self) -> bool:
        """Whether few enough streams begin and end."""
        pace = self._api.pace
        return pace.has_room("chat.startStream", _FIRST) and pace.has_room("chat.stopStream", _FIRST)

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Place one page."""
        page, address = outbound.page, outbound.address
        if isinstance(page, File):
            return await self._upload(page, outbound)
        if _is_response(address):
            return await self._respond(page, outbound)
        if not outbound.final and self.streams(address):
            placed = await self._start_stream(page, address)
            if placed is not None:
                return placed
        if not outbound.final and not self.may_change():
            raise PlacementDeferred("Slack takes few changes a minute", _LATER)
        answer = await self._api.call(
            "chat.postMessage",
            channel=address.chat,
            thread_ts=address.thread,
            unfurl_links=False,
            unfurl_media=False,
            **_content(page, outbound.nonce),
        )
        ts = _ts(answer)
        _keep(self._whole, ts, True)
        if not outbound.final:
            _keep(self._unfinished, ts, monotonic())
        return Placed(ts)

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        """Let a page show its content."""
        ts, page = placed.platform_id, outbound.page
        if ts.startswith((_FILE, _RESPONSE)) or not isinstance(page, Text):
            return
        if ts in self._streams and await self._grow(ts, page, outbound):
            return
        if not outbound.final and (ts in self._streams or not self.may_change(_SECOND)):
            return
        await self._update(ts, page, outbound)

    async def delete(self, placed: Placed, address: Address) -> None:
        """Take a message away."""
        ts = placed.platform_id
        try:
            if ts.startswith(_FILE):
                await self._api.call("files.delete", file=ts.removeprefix(_FILE))
            elif not ts.startswith(_RESPONSE):
                self._ended(ts)
                self._unfinished.pop(ts, None)
                await self._api.call("chat.delete", channel=address.chat, ts=ts)
        except RefusedError as refused:
            if refused.error not in ("message_not_found", "file_not_found", "file_deleted"):
                raise

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        """Look for a message by its nonce; a stream has none, and is the one after all that was known."""
        address, nonce = outbound.address, outbound.nonce
        if _is_response(address):
            return None
        if not self.bot_user:
            raise PlacementDeferred("it is not known yet which messages are the bot's", _SOON)
        file = self._uploads.get(nonce)
        if file is not None and await is_shared(self._api, file, address.chat):
            return Placed(_FILE + file)
        unnamed: str | None = None
        after = max(outbound.watermark or "0", address.reply_to or "0")
        async for message in self._messages(address, address.reply_to or outbound.watermark or "0"):
            if message.get("user") != self.bot_user:
                continue
            ts = str(message.get("ts"))
            if _nonce(message) == nonce:
                return Placed(ts)
            for shown in _objects(message.get("files")):
                if nonce in str(shown.get("name")):
                    return Placed(_FILE + str(shown.get("id")))
            if ts > after and not message.get("files") and _nonce(message) is None:
                unnamed = unnamed if ts in outbound.others else ts
        return Placed(unnamed) if unnamed is not None and self._may_stream and address.thread else None

    async def _messages(self, address: Address, oldest: str) -> AsyncIterator[Json]:
        """What stands in the room since, replies or not."""
        asked: dict[str, Any] = {"channel": address.chat, "oldest": oldest, "include_all_metadata": True}
        method = "conversations.history"
        if address.thread is not None:
            method, asked = "conversations.replies", {**asked, "ts": address.thread}
        async for rows in self._api.pages(method, "messages", **asked):
            for row in rows:
                yield row

    async def _start_stream(self, page: Text, address: Address) -> Placed | None:
        """Begin a stream; None where that is not possible, and nothing was placed."""
        shown = stream(page.live)
        if not shown:
            return None
        user = self._people.get((address.chat, address.reply_to or ""))
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
            log.info("an answer is not streamed", chat=address.chat, reason=str(refused))
            if refused.error in (
                "unknown_method",
                "missing_scope",
                "feature_disabled",
                "not_allowed_token_type",
            ):
                self._may_stream = False
            return None
        ts = _ts(answer)
        _keep(self._streams, ts, _Stream(shown))
        return Placed(ts)

    async def _grow(self, ts: str, page: Text, outbound: OutboundMessage) -> bool:
        """Let a stream show a page. Returns whether it does."""
        growing, chat = self._streams[ts], outbound.address.chat
        whole = outbound.final or outbound.part + 1 < outbound.parts
        shown = stream(page.markdown if whole else page.live)
        more = shown[len(growing.sent) :] if shown is not None and shown.startswith(growing.sent) else None
        if more is None or not growing.sure:
            return False
        if not whole and (not more or not self._api.pace.has_room("chat.appendStream", _SECOND)):
            return True
        growing.sure = False
        try:
            if whole:
                told = _metadata(outbound.nonce)
                await self._api.call(
                    "chat.stopStream", channel=chat, ts=ts, markdown_text=more or None, metadata=told
                )
                self._ended(ts)
            else:
                await self._api.call(
                    "chat.appendStream", urgent=False, channel=chat, ts=ts, markdown_text=more
                )
        except PlacementDeferred:
            growing.sure = True  # nothing was applied
            raise
        except RefusedError as refused:
            self._ended(ts)
            if refused.error not in _NO_STREAM:
                log.info("a stream ends early", chat=chat, reason=str(refused))
            return False
        growing.sure, growing.sent = True, growing.sent + more
        return True

    async def _end_stream(self, chat: str, ts: str) -> None:
        """Let a stream be a message like others."""
        try:
            await self._api.call("chat.stopStream", channel=chat, ts=ts)
        except RefusedError as refused:
            log.debug("a stream had ended", chat=chat, reason=str(refused))
        self._ended(ts)

    def _ended(self, ts: str) -> None:
        self._streams.pop(ts, None)
        _keep(self._whole, ts, True)

    async def _update(self, ts: str, page: Text, outbound: OutboundMessage) -> None:
        address = outbound.address
        if address.thread is not None and (ts in self._streams or ts not in self._whole):
            await self._end_stream(address.chat, ts)  # an earlier process may have begun it
        await self._api.call(
            "chat.update",
            urgent=outbound.final,
            channel=address.chat,
            ts=ts,
            **_content(page, outbound.nonce),
        )
        if outbound.final:
            self._unfinished.pop(ts, None)

    async def _respond(self, page: Text, outbound: OutboundMessage) -> Placed:
        """Answer a slash command for the one who gave it: Slack takes five answers, within half an hour."""
        address, shown = outbound.address, _content(page, None)
        url = address.reply_to or ""
        user = self._people.get((address.chat, url))
        try:
            await self._api.post(url, json={**shown, "response_type": "ephemeral"})
        except RefusedError as refused:
            log.info("a command is not answered by its address", reason=str(refused))
            if user is None:
                raise
            await self._api.call("chat.postEphemeral", channel=address.chat, user=user, **shown)
        return Placed(_RESPONSE + outbound.nonce)

    async def _upload(self, page: File, outbound: OutboundMessage) -> Placed:
        """The three steps. The file's name carries the nonce, by which it is found again."""
        address, content = outbound.address, base64.b64decode(page.data)
        stem, dot, ending = page.name.rpartition(".")
        name = f"{stem or page.name}-{outbound.nonce}{dot}{ending if stem else ''}"
        file = await upload(self._api, name, content)
        _keep(self._uploads, outbound.nonce, file)
        await share(self._api, file, page.name, address, page.note)
        return Placed(_FILE + file)


async def upload(api: Api, name: str, content: bytes) -> str:
    """Upload a file, which nobody sees until it is shared. Returns its id."""
    try:
        begun = await api.call("files.getUploadURLExternal", filename=name, length=len(content))
        await api.post(str(begun["upload_url"]), data=content)
    except PlacementUncertain as error:
        raise PlacementDeferred(str(error), 1.0) from error  # an upload alone shows nothing to anybody
    return str(begun["file_id"])


async def share(api: Api, file: str, title: str, address: Address, comment: str = "") -> None:
    """Show an uploaded file in a room, as a message of its own."""
    await api.call(
        "files.completeUploadExternal",
        files=[{"id": file, "title": title}],
        channel_id=address.chat,
        thread_ts=address.thread,
        initial_comment=comment or None,
    )


async def is_shared(api: Api, file: str, chat: str) -> bool:
    """Return whether a file is shown in a room."""
    try:
        answer = await api.call("files.info", file=file)
    except RefusedError:
        return False
    return chat in str(cast(Mapping[str, Any], answer.get("file", {})).get("shares"))


def _content(page: Text, nonce: str | None) -> Json:
    """What a message shows. Blocks are always said: text alone would take them away on an update."""
    told: Json = {"blocks": blocks(page.markdown), "text": note(page.markdown) or " "}
    return told if nonce is None else {**told, "metadata": _metadata(nonce)}


def _ts(answer: Json) -> str:
    """Where a message stands that was placed. Raises ValueError if Slack did not say."""
    ts = answer.get("ts")
    if not isinstance(ts, str) or not ts:
        raise ValueError("Slack did not say where the message is")
    return ts


def _metadata(nonce: str) -> Json:
    return {"event_type": EVENT_TYPE, "event_payload": {"k": nonce}}


def _nonce(message: Json) -> str | None:
    told: object = message.get("metadata")
    payload: object = cast(Json, told).get("event_payload") if isinstance(told, dict) else None
    return str(cast(Json, payload).get("k")) if isinstance(payload, dict) else None


def _objects(value: object) -> list[Json]:
    if not isinstance(value, list):
        return []
    return [cast(Json, one) for one in cast(list[object], value) if isinstance(one, dict)]


def _is_response(address: Address) -> bool:
    return address.reply_to is not None and "/" in address.reply_to


def _keep(memory: OrderedDict[Any, Any], key: object, value: object) -> None:
    memory[key] = value
    if len(memory) > _MOST_STREAMS:
        memory.popitem(last=False)


_STATUS_EVERY = 60.0
"""Seconds after which a status is set again; Slack lets it show for two minutes."""
_INDICATOR_TTL = 15.0
"""Seconds after which nobody is thinking any more."""
_STATUS = "is thinking…"
_MINE = frozenset(
    {"already_reacted", "no_reaction", "message_not_found", "invalid_thread_ts", "thread_ts_required"}
)
"""Refusals that are about the one message, not about what the app may do."""


_SESSION, _SAID = "agents.sessions.setStatus", "assistant.threads.setStatus"
_ADD, _REMOVE = "reactions.add", "reactions.remove"


class _Sign(Struct):
    """One sign: when it was shown, and when it was last asked for."""

    address: Address
    shown_at: float
    asked_at: float


class Presence:
    """The signs of one account. What the app may not do it is not asked again.

    Slack takes few of them a minute, so answers never wait for their turn: a sign is shown if it can be
    shown and taken back at once, and else it is left out.
    """

    def __init__(self, api: Api, reaction: str, clock: Callable[[], float] = monotonic) -> None:
        self._api = api
        self._reaction = reaction
        self._clock = clock
        self._signs: dict[tuple[str, str], _Sign] = {}
        self._denied: set[str] = set()

    async def thinking(self, address: Address) -> None:
        """Show it; this is called again every few seconds as long as it is so."""
        place, now = _location(address), self._clock()
        if place is None:
            return
        sign = self._signs.get(place)
        if sign is not None:
            sign.asked_at = now
        if address.thread is None:
            if sign is None and self._reaction and await self._api.pace.spare(_ADD, _REMOVE):
                self._signs[place] = _Sign(address, now, now)
                await self._try(_ADD, channel=place[0], timestamp=place[1], name=self._reaction)
            return
        if sign is not None and now < sign.shown_at + _STATUS_EVERY:
            return
        if await self._api.pace.spare(_SESSION, _SAID, *(() if sign is not None else (_SESSION,))):
            self._signs[place] = _Sign(address, now, now)
            thread = {"channel_id": place[0], "thread_ts": place[1]}
            await self._try(_SESSION, **thread, status="processing")
            await self._try(_SAID, **thread, status=_STATUS)

    async def done(self, address: Address) -> None:
        """Take it back."""
        place = _location(address)
        if place is None:
            return
        if address.thread is not None:
            await self.idle(*place)
        elif self._signs.pop(place, None) is not None:
            await self._try(_REMOVE, channel=place[0], timestamp=place[1], name=self._reaction)

    async def idle(self, chat: str, thread: str) -> None:
        """A thread waits for its people."""
        sign = self._signs.pop((chat, thread), None)
        if sign is not None or await self._api.pace.spare(_SESSION):
            await self._try(_SESSION, channel_id=chat, thread_ts=thread, status="active")

    async def sweep(self) -> None:
        """Take back what nobody has asked for in a while: an answer may end without any words."""
        since = self._clock() - _INDICATOR_TTL
        for sign in [sign for sign in self._signs.values() if sign.asked_at < since]:
            await self.done(sign.address)

    async def _try(self, method: str, **arguments: Any) -> None:
        if method in self._denied:
            return
        try:
            await self._api.call(method, has_turn=True, **arguments)
        except RefusedError as refused:
            if refused.error not in _MINE:
                self._denied.add(method)
                log.info("a sign of thinking is not shown any more", reason=str(refused))
        except (PlacementDeferred, PlacementUncertain) as error:
            log.debug("a sign of thinking was not shown", reason=str(error))


def _location(address: Address) -> tuple[str, str] | None:
    stamp = address.thread or address.reply_to
    return None if not stamp or "/" in stamp else (address.chat, stamp)
