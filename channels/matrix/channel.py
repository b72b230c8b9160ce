"""Matrix channel of one account."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from channels.matrix.api import FAILURES, Api, RefusedError, TooLargeError
from channels.matrix.delivery import Delivery
from channels.matrix.inflow import Inflow
from channels.matrix.options import Options
from channels.matrix.parse import Bot, as_text
from channels.matrix.questions import Questions
from channels.matrix.render import Page, pages_of
from gateway import Message
from gateway.channel import (
    Address,
    Backoff,
    Earlier,
    Health,
    Host,
    InboundMessage,
    InvalidRequestError,
    Receive,
    SessionKey,
    Streaming,
)

log = structlog.get_logger("trunkline.matrix")

_BACKOFF = Backoff(0.5, 60, jitter=0.25)
_STREAM_SECONDS = 2.0


class MatrixChannel:
    """Channel of one account: follows ``/sync``, and answers in the rooms that it was invited to."""

    def __init__(self, host: Host, channel_id: str, options: Options) -> None:
        self.id = channel_id
        self._host = host
        self._options = options
        self._api = Api(options)
        self._inflow: Inflow | None = None
        self._failures = 0
        self._health = Health(ok=False, detail="starting")
        delivery = self._delivery = Delivery(self._api, options)
        self.send, self.find, self.edit = delivery.send, delivery.find, delivery.edit
        self.delete, self.typing = delivery.delete, delivery.typing
        questions = Questions(delivery)
        self.ask_question, self.question_closed = questions.ask, questions.closed

    async def run(self, receive: Receive) -> None:
        """Receive events until cancelled; a lost connection is made again."""
        async with self._api.connected():
            while True:
                try:
                    await (await self._signed_in(receive)).follow(self._ready)
                except (*FAILURES, RefusedError, TooLargeError) as error:
                    await self._failed(str(error), getattr(error, "seconds", None))

    def pages(self, message: Message, *, final: bool) -> Sequence[Page]:
        """Return the pages of an answer."""
        return pages_of(message, final=final, most=self._options.pages, tools=self._options.tools)

    def session_of(self, address: Address) -> str:
        """Return the session of a room. Raises InvalidRequestError for an address that names none."""
        if not (address.chat.startswith("!") and address.account.startswith("@")):
            raise InvalidRequestError(
                f"an address on {self.id} needs a user id and a room id such as !abc:example.org, not "
                f"{(address.account, address.chat)}"
            )
        own_thread = address.thread if self._options.session_strategy == "thread" else None
        return str(SessionKey(self.id, address.account, address.chat, own_thread))

    def streaming(self, address: Address) -> Streaming | None:
        """Return how running answers are shown: by edits."""
        return Streaming("edit", _STREAM_SECONDS / self._options.pace) if self._options.streaming else None

    async def history(self, message: InboundMessage, limit: int) -> Sequence[Earlier]:
        """Return what was written before the first message of a session."""
        return () if self._inflow is None else await self._inflow.history(message, limit)

    def health(self) -> Health:
        """Return the health of the connection to the homeserver."""
        return self._health

    async def _signed_in(self, receive: Receive) -> Inflow:
        me = as_text((await self._api.call("GET", "account", "whoami")).get("user_id"))
        try:
            name = as_text((await self._api.call("GET", "profile", me, "displayname")).get("displayname"))
        except RefusedError:
            name = ""
        commands = frozenset(command.name for command in self._host.commands())
        bot = Bot(self.id, me, name, self._options.session_strategy, commands)
        self._api.me = me
        self._inflow = Inflow(self._host, self._api, self._delivery, bot, self._options, receive)
        return self._inflow

    def _ready(self) -> None:
        if not self._health.ok:
            log.info("connected", channel=self.id, account=self._api.me)
        self._failures = 0
        self._health = Health(ok=True)

    async def _failed(self, reason: str, seconds: float | None) -> None:
        """Record a failure, and wait before the next attempt."""
        self._failures += 1
        if reason != self._health.detail:
            log.warning("the homeserver cannot be read", channel=self.id, reason=reason)
        self._health = Health(ok=False, detail=reason)
        await asyncio.sleep(seconds or _BACKOFF.pause(self._failures))


async def probe(options: Options) -> Sequence[Health]:
    """Ask the homeserver whose token it is, for ``trunkline doctor``; changes nothing there."""
    api = Api(options)
    try:
        async with api.connected():
            me = as_text((await api.call("GET", "account", "whoami")).get("user_id"))
    except (*FAILURES, RefusedError, TooLargeError) as error:
        return [Health(ok=False, detail=str(error))]
    return [Health(ok=True, detail=f"signed in as {me}")]
