"""Telegram channel of one bot."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import structlog

from channels.telegram.api import CallError, Client, RefusedError
from channels.telegram.delivery import Delivery
from channels.telegram.files import FileDownloader
from channels.telegram.health import ConnectionHealth
from channels.telegram.inflow import POLL_SECONDS, PROBE_SECONDS, Inflow, Webhook, poll
from channels.telegram.limits import RateLimiter
from channels.telegram.options import Options
from channels.telegram.parse import link_of, session_of
from channels.telegram.questions import Questions
from channels.telegram.render import Page, album_size, pages_of
from channels.telegram.updates.business import BusinessConnections
from channels.telegram.updates.chats import connection_of, is_channel, is_group
from channels.telegram.updates.history import History
from channels.telegram.updates.inline import InlineQueries
from channels.telegram.updates.objects import (
    BUSINESS_KINDS,
    CHANNEL_KINDS,
    INLINE_KINDS,
    KINDS,
    CallbackQuery,
)
from channels.telegram.updates.received import BotIdentity
from gateway import Answer, Message
from gateway.channel import (
    Address,
    Attention,
    Earlier,
    Health,
    Host,
    InboundMessage,
    MessageLink,
    OutboundMessage,
    Placed,
    Question,
    Receive,
    Streaming,
)

log = structlog.get_logger("trunkline.telegram")

_DRAFTS_EVERY, _EDITS_EVERY = 1.0, 4.0
"""Minimum seconds between two previews of an answer, at the published rate limits."""
_SILENCE = 2.5
"""Number of poll or probe intervals without a response after which the channel is unhealthy."""
_FASTEST = 0.25
"""Minimum seconds between two previews, however high ``pace`` is."""
_MAX_DRAFTS, _MAX_MARKS = 1000, 10_000
_REDRAW_EVERY = 5
"""Number of typing indicators after which an unchanged draft is sent again."""
_BUSINESS_WINDOW = 86_400.0
"""Seconds after the last message of a business chat in which the right ``can_reply`` covers it."""
_NAME_EVERY = 600.0
"""Seconds between two questions for the bot's user name; no update reports that it changed."""
_MAX_COMMANDS = 100
_MAX_DESCRIPTION = 256
_COMMAND = re.compile(r"[a-z0-9_]{1,32}")


class TelegramChannel:
    """Channel of one bot: receives the messages for the bot and sends its answers."""

    def __init__(self, host: Host, channel_id: str, options: Options) -> None:
        self.id = channel_id
        self._host = host
        self._options = options
        token = options.token.get_secret_value()
        self._account = token.partition(":")[0]
        self._client = Client(token, options.api_base_url)
        self._webhook = _webhook(options)
        every = POLL_SECONDS if self._webhook is None else PROBE_SECONDS
        self._health = ConnectionHealth(channel_id, _SILENCE * every)
        self._delivery = Delivery(
            self._client,
            RateLimiter(options.pace),
            self._health.token_rejected,
            rich=options.rich_messages,
        )
        self._questions = Questions(channel_id, host, self._delivery)
        self._rename: Callable[[str], None] = lambda _username: None
        self._groups: dict[str, str] = {}
        """Ids of groups by the ids of the supergroups that they became."""
        self._history = History(topics=options.session_strategy == "thread")
        self._previews: dict[Address, tuple[OutboundMessage, int]] = {}
        """Newest draft of each open answer, and the typing indicators since it was sent."""
        self._marked: set[tuple[str, str]] = set()
        """Chat and message ids of user messages that have the ``thinking`` reaction."""

    async def run(self, receive: Receive) -> None:
        """Receive updates until cancelled."""
        async with self._client.connected(), asyncio.TaskGroup() as tasks:
            bot = await self._connect()
            files = FileDownloader(self._client, self._options.file_bytes, self._host.read_file)

            def answer_button(query: CallbackQuery) -> None:
                tasks.create_task(self._answer_button(query))

            ask = partial(self._host.answer, self.id)
            inline = InlineQueries(bot, tasks, self._may_ask, ask, self._delivery.call_best_effort)
            inflow = Inflow(
                receive=receive,
                bot=bot,
                files=files,
                history=self._history,
                attend=self._attend,
                note=self._delivery.note,
                answer_button=answer_button,
                decide=self._questions.decide,
                connections=BusinessConnections(self._options.business, self._client.call),
                answer_inline=inline.take,
                groups=self._groups,
            )
            await inflow.restore(await self._host.cursors(self.id))
            self._rename = inflow.rename
            tasks.create_task(inflow.run())
            tasks.create_task(self._follow_name())
            if self._webhook is None:
                await poll(self._client, inflow, self._health)
            else:
                self._webhook.inflow = inflow
                try:
                    await self._webhook.run(self._client, self._health)
                finally:
                    self._webhook.inflow = None

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Send one page."""
        self._previews.pop(outbound.address, None)
        placed = await self._delivery.place(outbound)
        await self._remove_mark(outbound)
        return placed

    def album_size(self, pages: Sequence[Page]) -> int:
        """Return how many of these pages, from the first one on, form an album."""
        return album_size(pages)

    async def send_album(self, outbounds: Sequence[OutboundMessage]) -> Sequence[Placed]:
        """Send files as one album."""
        self._previews.pop(outbounds[0].address, None)
        placed = await self._delivery.place_album(outbounds)
        await self._remove_mark(outbounds[-1])
        return placed

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        """Replace the content of a message with a page."""
        preview = not outbound.final
        await self._delivery.edit(outbound.address, placed.platform_id, outbound.page, preview=preview)
        await self._remove_mark(outbound)

    async def delete(self, placed: Placed, address: Address) -> None:
        """Delete a message."""
        await self._delivery.delete(address, placed.platform_id)

    async def find(self, outbound: OutboundMessage) -> Placed | None:
        """Return the message of a page after an uncertain send; None if there is none."""
        return await self._delivery.find(outbound)

    async def history(self, message: InboundMessage, limit: int) -> Sequence[Earlier]:
        """Return the received messages of the topic, and of the chain of replies, before a message."""
        return self._history.recall(message, limit)

    def session_of(self, address: Address) -> str:
        """Return the session of a chat. Raises InvalidRequestError for an address of another bot, or of no
        chat."""
        return session_of(address, self.id, self._account, self._options.session_strategy, self._groups)

    def read_link(self, link: str) -> MessageLink | None:
        """Return the message that a link names; None for other texts."""
        return link_of(link)

    def watermark(self, address: Address) -> str | None:
        """Return the newest known message id."""
        return self._delivery.watermark(address)

    def pages(self, message: Message, *, final: bool) -> Sequence[Page]:
        """Render an answer as Telegram messages."""
        return pages_of(message, final=final, most=self._options.pages, tools=self._options.tools)

    def streaming(self, address: Address) -> Streaming | None:
        """Return the preview mode: drafts in private chats, edits at a lower rate in groups and business
        chats, which have no drafts."""
        if not self._options.streaming:
            return None
        pace = self._options.pace
        if is_group(address.chat) or connection_of(address.chat) is not None:
            return Streaming("edit", max(_FASTEST, _EDITS_EVERY / pace))
        return Streaming("draft", max(_FASTEST, _DRAFTS_EVERY / pace))

    def reply_window(self, address: Address) -> float | None:
        """Return the seconds in which a bot may write in a business chat after its last message."""
        return None if connection_of(address.chat) is None else _BUSINESS_WINDOW

    async def draft(self, outbound: OutboundMessage) -> None:
        """Show the current part of an answer as a draft, with a Stop button."""
        number = int(outbound.nonce[:7], 16) or 1
        if len(self._previews) >= _MAX_DRAFTS:
            self._previews.clear()
        self._previews[outbound.address] = outbound, 0
        await self._delivery.show_draft(outbound, number)

    async def typing(self, address: Address) -> None:
        """Show the typing indicator, and react to the user's message with the emoji ``thinking`` if set."""
        topic = {} if address.thread is None else {"message_thread_id": int(address.thread)}
        emoji, asked = self._options.thinking, (address.chat, address.reply_to or "")
        if emoji and asked not in self._marked:
            if len(self._marked) >= _MAX_MARKS:
                self._marked.clear()
            self._marked.add(asked)
            await self._react(address, [{"type": "emoji", "emoji": emoji}])
        if not is_channel(address.chat):
            await self._delivery.send_indicator(address, "sendChatAction", action="typing", **topic)
        await self._refresh_draft(address)

    async def ask_question(self, question: Question) -> Placed:
        """Send the question with buttons."""
        return await self._questions.ask(question)

    async def question_closed(self, question: Question, answer: Answer, shown: Placed | None) -> None:
        """Replace the question with its outcome."""
        await self._questions.closed(question, answer, shown)

    def routes(self) -> Sequence[Any]:
        """Return the webhook route; empty when polling."""
        return () if self._webhook is None else self._webhook.routes()

    def health(self) -> Health:
        """Return the health of the connection to Telegram."""
        return self._health.health()

    async def refresh_name(self) -> None:
        """Ask Telegram for the bot's user name, so that mentions of a new one are seen."""
        try:
            found: object = await self._client.call("getMe")
        except CallError as error:
            log.info("the bot's user name could not be read", channel=self.id, reason=str(error))
            return
        username = cast("Mapping[str, object]", found).get("username") if isinstance(found, dict) else None
        if isinstance(username, str) and username:
            self._rename(username)

    def _attend(self, message: InboundMessage) -> Attention:
        found = self._host.attention(self.id, message)
        # "*" allows all users, and no channel: its id has to be listed.
        if is_channel(message.address.chat) and message.sender.id not in self._host.listed(self.id):
            return "ignore"
        return found

    async def _may_ask(self, message: InboundMessage) -> bool:
        return await self._host.role(self.id, message) is not None

    async def _connect(self) -> BotIdentity:
        """Fetch the bot's user name, remove its webhook when polling, and publish the commands."""
        found = await self._retry_until_accepted("getMe")
        if self._webhook is None:
            await self._retry_until_accepted("deleteWebhook", drop_pending_updates=False)
        names = await self._publish_commands()
        options = self._options
        username = str(found.get("username") or "")
        log.info("connected", channel=self.id, bot=username)
        if options.inline and not found.get("supports_inline_queries"):
            log.warning("the inline mode is off; enable it at @BotFather", channel=self.id)
        if options.business and not found.get("can_connect_to_business"):
            log.warning("the business mode is off; enable it at @BotFather", channel=self.id)
        return BotIdentity(
            channel=self.id,
            id=int(self._account),
            username=username,
            strategy=options.session_strategy,
            edits=options.edits == "rerun",
            commands=names,
            kinds=(
                *KINDS,
                *(BUSINESS_KINDS if options.business else ()),
                *(CHANNEL_KINDS if options.channel_posts else ()),
                *(INLINE_KINDS if options.inline else ()),
            ),
            stop_reaction=options.stop_reaction,
        )

    async def _follow_name(self) -> None:
        while True:
            await asyncio.sleep(_NAME_EVERY)
            await self.refresh_name()

    async def _retry_until_accepted(self, method: str, **arguments: Any) -> Any:
        """Retry a call with backoff until it succeeds. Raises RefusedError for status 400."""
        while True:
            try:
                answer = await self._client.call(method, **arguments)
            except CallError as error:
                if isinstance(error, RefusedError) and error.code == 400:
                    raise
                await self._health.failed(error)
            else:
                self._health.responded()
                return answer

    async def _publish_commands(self) -> Mapping[str, str]:
        """Publish the command menu. Returns the gateway's command name for each name on Telegram."""
        known = {command.name.lower().replace("-", "_"): command for command in self._host.commands()}
        offered = [
            {
                "command": name,
                "description": (command.description or command.name)[:_MAX_DESCRIPTION],
            }
            for name, command in known.items()
            if _COMMAND.fullmatch(name) and not command.admin
        ]
        try:
            await self._retry_until_accepted("setMyCommands", commands=offered[:_MAX_COMMANDS])
        except RefusedError as refused:
            log.warning("Telegram rejected the command menu", channel=self.id, reason=refused.reason)
        return {name: command.name for name, command in known.items()}

    async def _answer_button(self, query: CallbackQuery) -> None:
        try:
            await self._questions.answer(query)
        except Exception:
            log.exception("could not answer a pressed button", channel=self.id)

    async def _remove_mark(self, outbound: OutboundMessage) -> None:
        """Remove the reaction from the user's message after the last page of the answer."""
        address = outbound.address
        if self._options.thinking and outbound.final and outbound.part == outbound.parts - 1:
            self._marked.discard((address.chat, address.reply_to or ""))
            await self._react(address, [])

    async def _refresh_draft(self, address: Address) -> None:
        """Send the draft again while the answer does not grow, as during a long tool call: Telegram removes
        drafts after 30 seconds."""
        shown, typed = self._previews.get(address, (None, 0))
        if shown is None:
            return
        if typed + 1 < _REDRAW_EVERY:
            self._previews[address] = shown, typed + 1
        else:
            await self.draft(shown)

    async def _react(self, address: Address, reaction: Sequence[Mapping[str, str]]) -> None:
        if address.reply_to is None or connection_of(address.chat) is not None:
            return
        try:
            await self._delivery.send_indicator(
                address, "setMessageReaction", message_id=int(address.reply_to), reaction=[*reaction]
            )
        except CallError as error:
            log.info("could not set a reaction", reason=str(error))


def _webhook(options: Options) -> Webhook | None:
    if options.mode == "polling" or options.webhook_url is None or options.webhook_secret is None:
        return None
    return Webhook(options.webhook_url, options.webhook_secret.get_secret_value())
