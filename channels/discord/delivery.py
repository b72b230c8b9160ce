"""Delivery of answers: sends, edits, deletes and finds the bot's messages on Discord."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, cast

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from channels.discord.api import (
    ARCHIVED,
    INVALID_FORM,
    NO_HISTORY,
    NO_VOICE,
    THREAD_EXISTS,
    TOKEN_RETRY_SECONDS,
    UNKNOWN_MESSAGE,
    UNREACHABLE,
    VOICE_STAYS,
    Api,
    RateLimited,
    Refused,
    ServerFailure,
    refuse,
)
from channels.discord.parse import DEFAULT, REPLY, VOICE_FLAG, Snowflake, read, snowflake
from channels.discord.render import LIMIT, Page
from gateway.channel import (
    Address,
    OutboundMessage,
    Placed,
    PlacementDeferred,
    PlacementMismatch,
    PlacementUncertain,
)

log = structlog.get_logger("trunkline.discord")

T = TypeVar("T")
MESSAGES = "/channels/{channel_id}/messages"
MESSAGE = "/channels/{channel_id}/messages/{message_id}"
ORIGINAL = "/webhooks/{webhook_id}/{webhook_token}/messages/@original"
NO_PINGS: Mapping[str, Any] = {"parse": []}
"""Value of ``allowed_mentions`` with which a text pings no user or role."""
SUPPRESS_EMBEDS = 1 << 2
QUESTION_PREFIX = "🔐 "
"""Beginning of an approval question, which distinguishes it from an answer."""

_LOADING = 1 << 7
"""Flag of a response that shows "… is thinking"."""
_MAX_PREVIEWS, _PREVIEW_WINDOW = 3, 5.0
"""Preview edits per chat within these seconds. Discord allows five edits: two are left for final ones."""
_TYPING_INTERVAL = 8.0
"""Seconds between two typing calls; Discord shows the indicator for ten seconds."""
_ACKNOWLEDGEMENT_SECONDS = 5.0
_MAX_THREAD_NAME = 100
_MAX_NOTE = 500
_MAX_ENTRIES = 5_000
_SEARCH_PAGE, _MAX_SEARCH_PAGES = 100, 20
_GONE = (401, 404)
"""Statuses of an interaction whose token has expired or whose response was deleted."""


class HistoryMessage(Struct, frozen=True):
    """Message of a chat's history, with the fields that identify an answer."""

    id: Snowflake
    author: Mapping[str, Any]
    type: int = DEFAULT
    content: str = ""
    message_reference: Mapping[str, Any] | None = None
    components: tuple[Any, ...] = ()
    interaction_metadata: Mapping[str, Any] | None = None

    @property
    def reply_to(self) -> str | None:
        """Return the id of the message that it replies to."""
        return (self.message_reference or {}).get("message_id")


_PERMISSIONS = sum(1 << bit for bit in (6, 10, 11, 14, 15, 16, 35, 38, 46))
"""Add reactions, view channels, send messages, embed links, attach files, read message history, create public
threads, send messages in threads, send voice messages."""


class Application(Struct, frozen=True):
    """The bot's application at Discord, with the key and the URL of interactions over HTTP."""

    id: Snowflake
    verify_key: str = ""
    interactions_endpoint_url: str | None = None
    flags: int = 0
    approximate_guild_count: int = 1

    @property
    def invitation(self) -> str:
        """The address that adds the bot to a server, with the permissions that it uses."""
        scopes = "bot+applications.commands"
        return f"https://discord.com/oauth2/authorize?client_id={self.id}&scope={scopes}&permissions={_PERMISSIONS}"

    def misdirected(self, public_key: str) -> str:
        """Return the mistake in the settings for which interactions do not arrive; empty if there is none."""
        if public_key and self.verify_key.lower() != public_key.lower():
            return (
                "public_key is not the Public Key of this application; it is on the page General Information"
            )
        url = None if public_key else self.interactions_endpoint_url
        return (
            f"Discord posts commands and buttons to {url}: set public_key, or clear that URL" if url else ""
        )


class Recent(Generic[T]):
    """Mapping of limited size: a new key removes the entry that was put longest ago."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, T] = OrderedDict()

    def put(self, key: str, value: T) -> T:
        """Add or replace an entry, and return its value."""
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > _MAX_ENTRIES:
            self._values.popitem(last=False)
        return value

    def get(self, key: str) -> T | None:
        """Return the value of a key; None if there is none."""
        return self._values.get(key)

    def pop(self, key: str) -> T | None:
        """Remove an entry and return its value; None if there is none."""
        return self._values.pop(key, None)


class Delivery:
    """Sender of a bot's messages. The methods that place messages raise the errors of a channel's ``send``.

    ``by_user``: each user of a chat has a session, so several answers may be placed in a chat at once.
    ``acknowledgements`` are by interaction id: True once "… is thinking" is shown, False if that failed.
    ``titles`` are by message id: the name of the thread that is opened on the message. ``registered`` is the
    application as it was when Discord was asked first.
    """

    def __init__(self, api: Api, *, by_user: bool, pace: float = 1.0) -> None:
        self.acknowledgements: Recent[asyncio.Future[bool]] = Recent()
        self.titles: Recent[str] = Recent()
        self._api = api
        self._by_user = by_user
        self._joined: Recent[bool] = Recent()
        self._newest: Recent[str] = Recent()
        self._answer_chats: Recent[str] = Recent()
        self._typed: Recent[float] = Recent()
        self._previews: Recent[deque[float]] = Recent()
        self._max_previews = max(1, int(_MAX_PREVIEWS * pace))
        self.registered: Application | None = None

    def note(self, chat: str, message: str) -> None:
        """Record the id of a message that was seen in a chat."""
        if int(message) > int(self._newest.get(chat) or "0"):
            self._newest.put(chat, message)

    def newest(self, address: Address) -> str | None:
        """Return the greatest message id that was seen in a chat; None if none was seen."""
        answered = (address.reply_to or "").partition(":")[0]
        seen = self._newest.get(address.thread or address.chat)
        return max((one for one in (seen, answered) if one), key=int, default=None)

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Send a message. The first page of a command's answer replaces "… is thinking", if that is shown."""
        address = outbound.address
        try:
            if outbound.part == 0 and ":" in (address.reply_to or ""):
                placed = await self._respond(outbound)
                if placed is not None:
                    return placed
            chat = await self.chat_for(address)
            if chat == address.thread:
                await self._join(chat)
            try:
                return await self._create(chat, outbound)
            except Refused as refused:
                page = cast("Page", outbound.page)
                if not page.files:
                    raise
                # The rest of the answer must not depend on files. If the chat is gone, this call fails, too.
                log.info("Discord refused the files of a message", chat=chat, reason=str(refused))
                return await self._create(chat, replace(outbound, page=_without_files(page, refused)))
        except Refused as refused:
            refuse(refused)

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        """Replace the content of a message; an archived thread is opened again."""
        chat, message = placed.platform_id.split(":")
        self.note(chat, message)
        if not outbound.final:
            self._limit_previews(chat)
        page = cast("Page", outbound.page)
        body = _body(page)
        try:
            try:
                await self._change(chat, message, body, page, optional=not outbound.final)
            except Refused as refused:
                if refused.code != ARCHIVED:
                    raise
                await self._api.place("PATCH", "/channels/{channel_id}", {"archived": False}, channel_id=chat)
                await self._change(chat, message, body, page)
        except Refused as refused:
            if page.is_voice and refused.code == VOICE_STAYS:
                return
            if refused.code == UNKNOWN_MESSAGE or page.files:
                # A user deleted it, or ``send`` has other ways to show its files. It is placed again.
                raise PlacementMismatch(str(refused)) from refused
            refuse(refused)

    async def delete(self, placed: Placed) -> None:
        """Delete a message, if it still exists."""
        chat, message = placed.platform_id.split(":")
        try:
            await self._api.place("DELETE", MESSAGE, None, channel_id=chat, message_id=message)
        except Refused as refused:
            if refused.status != 404:
                refuse(refused)

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        """Search for a message whose ``send`` had an uncertain result.

        Raises PlacementDeferred if Discord cannot be asked now.
        """
        address = outbound.address
        try:
            if outbound.part == 0 and ":" in (address.reply_to or ""):
                found = await self._find_response(address)
                if found is not None:
                    return found
            for chat in dict.fromkeys((address.thread, address.chat)):
                if chat is not None and (found := await self._search(chat, outbound)) is not None:
                    return found
        except UNREACHABLE as error:
            raise _deferred(error) from error
        return None

    async def typing(self, address: Address) -> None:
        """Show the typing indicator, at most every eight seconds. Raises Refused and UNREACHABLE.

        It is not shown for a command, which shows "… is thinking", or where a thread is still to be opened.
        """
        chat, now = address.thread or address.chat, asyncio.get_running_loop().time()
        not_shown = ":" in (address.reply_to or "") or address.thread == address.reply_to
        if not_shown or now < (self._typed.get(chat) or 0) + _TYPING_INTERVAL:
            return
        self._typed.put(chat, now)
        await self._api.call("POST", "/channels/{channel_id}/typing", channel_id=chat, optional=True)

    async def chat_for(self, address: Address) -> str:
        """Return the chat of an answer. Opens its thread if that is to be opened on the user's message."""
        message = address.reply_to
        if message is None or address.thread != message:
            return address.thread or address.chat
        chat = self._answer_chats.get(message)
        if chat is None:
            body = {"name": self.titles.get(message) or "Answer", "auto_archive_duration": 1440}
            try:
                await self._api.place(
                    "POST", MESSAGE + "/threads", body, channel_id=address.chat, message_id=message
                )
                chat = message
            except Refused as refused:
                # If the bot may not open threads, or the message is deleted, the answer goes to the channel.
                chat = message if refused.code == THREAD_EXISTS else address.chat
            self._answer_chats.put(message, chat)
        return chat

    async def name_thread(self, address: Address, title: str) -> None:
        """Rename the thread that the bot opened on the first message of a conversation, if it did."""
        message = address.reply_to
        if message is None or address.thread != message:
            return
        try:
            # Discord may already know the thread from an earlier process, or the answer went to the channel.
            body = {"name": title[:_MAX_THREAD_NAME]}
            await self._api.call("PATCH", "/channels/{channel_id}", body, channel_id=message, optional=True)
        except (Refused, *UNREACHABLE) as error:
            log.info("a thread could not be renamed", thread=message, reason=str(error))

    async def application(self) -> str:
        """Return the id of the bot's application. Raises Refused and UNREACHABLE."""
        if self.registered is None:
            try:
                self.registered = read(await self._api.call("GET", "/applications/@me"), Application)
            except msgspec.ValidationError as error:
                raise ServerFailure("the response names no application") from error
        return self.registered.id

    async def _join(self, thread: str) -> None:
        """Join a thread once. A member may unarchive it, and is still known as one after a restart."""
        if self._joined.get(thread) is None:
            try:
                await self._api.place(
                    "PUT", "/channels/{channel_id}/thread-members/@me", None, channel_id=thread
                )
            except Refused as refused:
                log.info("the bot could not join a thread", thread=thread, reason=str(refused))
            self._joined.put(thread, True)

    async def _create(self, chat: str, outbound: OutboundMessage) -> Placed:
        page = cast("Page", outbound.page)
        body = _body(page) | {"nonce": outbound.nonce, "enforce_nonce": True}
        if (message := self._reply_to(chat, outbound)) is not None:
            body["message_reference"] = {"message_id": message}
        if page.is_voice:
            body = body | {"flags": VOICE_FLAG}
        response = await self._post(chat, body, page, optional=not outbound.final)
        placed = self._placed(chat, response)
        if str(response.get("content", "")).strip() != page.text.strip():
            # An earlier attempt with this nonce was applied, with the content of that time.
            await self._change(chat, placed.platform_id.rpartition(":")[2], _body(page), page)
        return placed

    async def _post(
        self, chat: str, body: dict[str, Any], page: Page, *, optional: bool
    ) -> Mapping[str, Any]:
        """Send a message, and again without a feature that the chat refuses: a reply, or a voice message."""
        while True:
            try:
                return await self._api.place(
                    "POST", MESSAGES, body, uploads=page.files, optional=optional, channel_id=chat
                )
            except Refused as refused:
                if refused.code == NO_HISTORY and "message_reference" in body:
                    del body["message_reference"]
                elif refused.code == INVALID_FORM and "In message_reference: Unknown message" in str(refused):
                    # The user deleted the question. A preview without a reference could not be found after a
                    # crash, to delete it when the event of the deletion arrives. A final answer is found by
                    # its text.
                    if optional:
                        raise PlacementDeferred("the question was deleted") from refused
                    del body["message_reference"]
                elif refused.code in NO_VOICE and body["flags"] & VOICE_FLAG:
                    body["flags"] = SUPPRESS_EMBEDS
                else:
                    raise

    async def _change(
        self, chat: str, message: str, body: Mapping[str, Any], page: Page, *, optional: bool = False
    ) -> None:
        await self._api.place(
            "PATCH",
            MESSAGE,
            body,
            uploads=page.files,
            optional=optional,
            channel_id=chat,
            message_id=message,
        )

    async def _respond(self, outbound: OutboundMessage) -> Placed | None:
        """Replace "… is thinking" by the answer; None if that text is not shown. A repetition is harmless."""
        interaction, token = cast("str", outbound.address.reply_to).split(":", 1)
        acknowledged = self.acknowledgements.get(interaction)
        if acknowledged is not None:
            await asyncio.wait([acknowledged], timeout=_ACKNOWLEDGEMENT_SECONDS)
            if acknowledged.done() and not acknowledged.result():
                return None
        page = cast("Page", outbound.page)
        try:
            response = await self._api.place(
                "PATCH",
                ORIGINAL,
                _body(page),
                uploads=page.files,
                webhook_id=await self.application(),
                webhook_token=token,
            )
        except UNREACHABLE as error:  # of ``application``: nothing was placed
            raise _deferred(error) from error
        except Refused as refused:
            if refused.status in _GONE:
                return None
            raise
        return self._placed(outbound.address.thread or outbound.address.chat, response)

    async def _find_response(self, address: Address) -> Placed | None:
        """Return the answer of a command; None if "… is thinking" is still shown or the response is gone."""
        token = cast("str", address.reply_to).split(":", 1)[1]
        try:
            response = await self._api.call(
                "GET", ORIGINAL, webhook_id=await self.application(), webhook_token=token
            )
        except Refused as refused:
            if refused.status in _GONE:
                return None
            raise
        if int(response.get("flags", 0)) & _LOADING:
            return None
        return self._placed(address.thread or address.chat, response)

    async def _search(self, chat: str, outbound: OutboundMessage) -> Placed | None:
        """Search the messages after the user's message and after the watermark for the answer."""
        asked = (outbound.address.reply_to or "0").split(":")[0]
        after = max(int(asked), int(outbound.watermark or "0"))
        for _ in range(_MAX_SEARCH_PAGES):
            history = await self._history(chat, after)
            for message in history:
                if f"{chat}:{message.id}" in outbound.others:
                    continue
                if self._is_answer(message, chat, outbound):
                    self.note(chat, message.id)
                    return Placed(f"{chat}:{message.id}")
            if len(history) < _SEARCH_PAGE:
                break
            after = int(history[-1].id)
        return None

    async def _history(self, chat: str, after: int) -> list[HistoryMessage]:
        """Return up to 100 messages after an id, oldest first; none if the bot has no access to the chat.

        Raises PlacementDeferred while Discord rejects the token.
        """
        query: dict[str, str | int] = {"after": str(after), "limit": _SEARCH_PAGE}
        try:
            response = await self._api.call("GET", MESSAGES, query=query, channel_id=chat)
            return sorted(read(response, tuple[HistoryMessage, ...]), key=lambda found: int(found.id))
        except Refused as refused:
            if refused.status == 401:
                raise PlacementDeferred(str(refused), TOKEN_RETRY_SECONDS) from refused
            return []
        except msgspec.ValidationError as error:
            raise ServerFailure("the history is unreadable") from error

    def _is_answer(self, message: HistoryMessage, chat: str, outbound: OutboundMessage) -> bool:
        own = message.author.get("id") == self._api.me.get("id")
        regular = message.type in (DEFAULT, REPLY) and message.interaction_metadata is None
        if not (own and regular) or message.components or message.content.startswith(QUESTION_PREFIX):
            return False
        expected = self._reply_to(chat, outbound)
        never_replies = outbound.part or outbound.address.reply_to in (None, chat)
        if message.reply_to is not None or (expected is None and never_replies):
            return message.reply_to == expected
        # The answer of a command outside of its response, or an answer whose question was deleted before it
        # was sent: only its text identifies it.
        page = cast("Page | None", outbound.page)
        return page is not None and message.content == page.text.strip()

    def _reply_to(self, chat: str, outbound: OutboundMessage) -> str | None:
        """Return the id of the message that an answer replies to, if any; it is found by that.

        Only the first page replies, unless several answers may be placed in the chat at once: otherwise the
        later pages are those after the first one.
        """
        message = outbound.address.reply_to
        if message is None or ":" in message or chat == message:
            return None
        concurrent = self._by_user and outbound.address.group
        return message if outbound.part == 0 or concurrent else None

    def _placed(self, chat: str, response: Mapping[str, Any]) -> Placed:
        """Return the place of a message. Raises PlacementUncertain if the response does not name it."""
        try:
            message, where = snowflake(response["id"]), snowflake(response.get("channel_id", chat))
        except (msgspec.ValidationError, KeyError, TypeError) as error:
            raise PlacementUncertain("the response names no message") from error
        self.note(where, message)
        return Placed(f"{where}:{message}")

    def _limit_previews(self, chat: str) -> None:
        """Count a preview edit. Raises PlacementDeferred if the chat had too many in the last seconds."""
        now = asyncio.get_running_loop().time()
        edits = self._previews.get(chat) or self._previews.put(chat, deque())
        while edits and edits[0] <= now - _PREVIEW_WINDOW:
            edits.popleft()
        if len(edits) >= self._max_previews:
            raise PlacementDeferred("too many preview edits in this chat", edits[0] + _PREVIEW_WINDOW - now)
        edits.append(now)


def _deferred(error: BaseException) -> PlacementDeferred:
    if isinstance(error, RateLimited):
        return PlacementDeferred("rate limited by Discord", error.seconds)
    return PlacementDeferred(str(error) or type(error).__name__)


def _without_files(page: Page, refused: Refused) -> Page:
    """Return a page that says why its files are missing."""
    names = ", ".join(upload.name for upload in page.files).replace("`", "")[:200]
    note = f"⚠️ `{names}` could not be sent: `{refused}`"[:_MAX_NOTE]
    return Page(f"{page.text[: LIMIT - _MAX_NOTE - 1]}\n{note}".strip())


def _body(page: Page) -> dict[str, Any]:
    return {"content": page.text, "allowed_mentions": NO_PINGS, "flags": SUPPRESS_EMBEDS}
