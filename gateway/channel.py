"""The channel contract: a connection to a platform is ``run`` and ``send``; all else is an ability.

An ability is a protocol of one method, looked up with ``isinstance``. Nothing here inherits; a channel
that can do more simply has the method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from gateway.messages import Message, Part

InboundKind = Literal["text", "audio"]
ResponseMode = Literal["text", "voice"]
SenderRole = Literal["admin", "user"]
"""What a sender may do: a user talks, an admin may also do what is for admins."""


class SessionKey(Struct, frozen=True):
    """Which conversation a message belongs to; built by a channel, read by nobody else."""

    channel: str
    account: str
    chat: str
    thread: str | None = None
    user: str | None = None

    def __str__(self) -> str:
        parts = [self.channel, self.account, self.chat]
        if self.thread is not None:
            parts.append(f"t{self.thread}")
        if self.user is not None:
            parts.append(f"u{self.user}")
        return ":".join(parts)


class Address(Struct, frozen=True, gc=False, omit_defaults=True):
    """Where an answer goes: the room, and the message it answers.

    ``group`` says that others than the sender read along there.
    """

    channel: str
    account: str = ""
    chat: str = ""
    thread: str | None = None
    reply_to: str | None = None
    group: bool = False


class Sender(Struct, frozen=True, gc=False, omit_defaults=True):
    """Who wrote. ``id`` is the platform's own, never a display name."""

    id: str
    name: str = ""


class Audio(Struct, frozen=True, omit_defaults=True):
    """A voice message."""

    url: str | None = None
    mime_type: str | None = None
    file_path: str | None = None


class InboundMessage(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """What a channel received, in the one form the gateway understands.

    ``dedup_key`` (and ``alt_key``) name the message within channel and account: the same key is the same
    message, however often it arrives. ``order`` is the platform's own order within the conversation.
    ``revises`` is the key of an earlier message that this one is the new wording of. ``role`` is what the
    sender may do, from whoever knows that for sure; platforms leave it to the rules of their channel.
    ``model`` answers it in place of the session's own. ``before`` is what was said earlier, elsewhere: a
    session that begins with this message begins with that. ``unattended``: whoever sent it shows its
    questions to nobody, so a budget that asks first refuses at once; tools wait for whoever else looks on.
    """

    session: str
    dedup_key: str
    address: Address
    sender: Sender
    role: SenderRole | None = None
    kind: InboundKind = "text"
    text: str = ""
    parts: tuple[Part, ...] = ()
    alt_key: str | None = None
    order: int = 0
    revises: str | None = None
    model: str | None = None
    before: tuple[Message, ...] = ()
    unattended: bool = False
    response_mode: ResponseMode = "text"
    audio: Audio | None = None
    raw: dict[str, Any] | None = None

    @property
    def original(self) -> str:
        """The key of the message that this is, or is a new wording of."""
        return self.revises or self.dedup_key


class Receipt(Struct, frozen=True, gc=False):
    """The message is committed; its answer will have the id ``answer_id``, if it is not ``ignored``."""

    message_id: str
    answer_id: str
    session: str
    seq: int
    duplicate: bool = False
    ignored: bool = False


class Cursor(Struct, frozen=True):
    """How far a platform was read; committed together with what was read up to there."""

    account: str
    value: str
    shard: str = ""


class Rejected(Struct, frozen=True):
    """An event that could not be parsed: kept, raw, in quarantine."""

    account: str
    key: str
    raw: str
    reason: str


class Receive(Protocol):
    """What the gateway hands to ``run``: returns once everything given is durable.

    Raises OverloadedError when a bound is reached; nothing was accepted then.
    """

    async def __call__(
        self,
        *messages: InboundMessage,
        cursor: Cursor | None = None,
        rejected: Sequence[Rejected] = (),
    ) -> Sequence[Receipt]: ...


class OutboundMessage(Struct, frozen=True, kw_only=True):
    """One message to place in a room. ``nonce`` is its idempotency key, at most 25 characters.

    ``page`` is what ``pages`` made of the answer for this message, number ``part`` of ``parts``; None for
    channels that do not cut. It is not ``final`` while the answer is being made. ``watermark`` is what the
    channel said when it was first about to be placed. ``others`` are the ids of messages that
    were placed in the room since and are known not to be this one, ``elsewhere`` the rooms and ids of what
    the account placed in other rooms; only ``find`` is told of them. ``response_mode`` is what the sender
    asked for; a channel that cannot speak sends what the answer holds.
    """

    address: Address
    message: Message
    page: Any = None
    part: int = 0
    parts: int = 1
    nonce: str
    final: bool = True
    watermark: str | None = None
    others: tuple[str, ...] = ()
    elsewhere: tuple[tuple[str, str], ...] = ()
    response_mode: ResponseMode = "text"


class Placed(Struct, frozen=True):
    """Where the platform put it: its own id for the message, for edits."""

    platform_id: str


class Responder(Protocol):
    """Takes the reply to one submitted message. Voice, receipts and errors are abilities of their own."""

    async def send_text(self, text: str) -> None: ...


@runtime_checkable
class SendsVoice(Protocol):
    """A responder that can speak: where the message asks for a voice answer, it gets the text to say instead
    of ``send_text``. Channels place what an answer holds; one that holds sound is theirs to play."""

    async def send_voice(self, text: str) -> None: ...


@runtime_checkable
class SendsAck(Protocol):
    """Wants to know that the message is durable; ``text`` is the message's id."""

    async def send_ack(self, text: str) -> None: ...


@runtime_checkable
class SendsError(Protocol):
    """Shows failures in another way than text."""

    async def send_error(self, text: str) -> None: ...


@runtime_checkable
class Channel(Protocol):
    """A connection to a platform. Stopping is cancelling ``run``; ``send`` places one new message.

    ``run`` may fail with anything. A TrunklineError or PlacementRefused is told in one line, as it says by
    itself what is wrong and what to do; anything else with where it came from.

    ``send`` may be called before ``run`` has connected. It says what became of a message it did not place
    with PlacementDeferred, PlacementRefused or PlacementUncertain. A channel whose platform does not know
    nonces should reconcile (see Reconciles): after a crash its messages may otherwise appear twice.
    """

    @property
    def id(self) -> str: ...

    async def run(self, receive: Receive) -> None: ...

    async def send(self, outbound: OutboundMessage) -> Placed: ...


class PlacementUncertain(Exception):
    """The request left, and no answer came: the message may or may not stand in the room."""


class PlacementDeferred(Exception):
    """Nothing was placed, and it may work later: no connection, or the platform asked to wait ``seconds``."""

    def __init__(self, reason: str = "", seconds: float | None = None) -> None:
        super().__init__(reason)
        self.seconds = seconds


class PlacementRefused(Exception):
    """The platform will never take this message: the room is gone, or the bot may not write there."""


@runtime_checkable
class FollowsSession(Protocol):
    """Its clients read the session's own log and resume there: nothing is placed, nothing can double."""

    @property
    def follows_session(self) -> Literal[True]: ...


@runtime_checkable
class Paginates(Protocol):
    """Cuts an answer into messages of its platform. Pure: the same answer makes the same pages.

    Pages are the channel's own values; equal ones look the same. None at all means that there is nothing
    to show yet.
    """

    def pages(self, message: Message, *, final: bool) -> Sequence[Any]: ...


@runtime_checkable
class Edits(Protocol):
    """Can change a message it placed; putting the same content twice is no error. Raises as ``send`` does."""

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None: ...


@runtime_checkable
class Deletes(Protocol):
    """Can remove a message it placed; one that is gone is no error."""

    async def delete(self, placed: Placed, address: Address) -> None: ...


class Streaming(Struct, frozen=True):
    """How an answer is shown while it is made: as edits of what is placed, or as a draft.

    ``every`` is the shortest time between two showings, in seconds.
    """

    kind: Literal["edit", "draft"] = "edit"
    every: float = 1.0


@runtime_checkable
class Streams(Protocol):
    """Shows answers while they are made; None where it does not."""

    def streaming(self, address: Address) -> Streaming | None: ...


@runtime_checkable
class Drafts(Protocol):
    """Can show a preview that places nothing and goes by itself."""

    async def draft(self, outbound: OutboundMessage) -> None: ...


@runtime_checkable
class Reconciles(Protocol):
    """Can find out whether a message with this nonce stands in the room."""

    async def find(self, outbound: OutboundMessage) -> Placed | None: ...


@runtime_checkable
class Watermarks(Protocol):
    """Knows the newest message of a room; it is kept with the intent to place another, for ``find``."""

    def watermark(self, address: Address) -> str | None: ...


@runtime_checkable
class ShowsTyping(Protocol):
    """Can show that an answer is being made."""

    async def typing(self, address: Address) -> None: ...


@runtime_checkable
class AsksApproval(Protocol):
    """Can ask a person in the room; the answer comes back through the gateway's approvals."""

    async def ask_approval(self, request: ApprovalRequest) -> None: ...


@runtime_checkable
class ShowsDecision(Protocol):
    """Can show what became of a request: once, always, deny, timeout or cancelled."""

    async def approval_decided(self, request: ApprovalRequest, outcome: str) -> None: ...


@runtime_checkable
class ServesHttp(Protocol):
    """Adds routes to the gateway's own web server: aiohttp route definitions."""

    def routes(self) -> Sequence[Any]: ...


@runtime_checkable
class ReportsHealth(Protocol):
    """Knows whether its connection really works."""

    def health(self) -> Health: ...


class Health(Struct, frozen=True):
    """State of a part of the gateway, shown at ``/readyz``."""

    ok: bool
    detail: str = ""


class ApprovalRequest(Struct, frozen=True, kw_only=True):
    """A tool waits for a person. ``id`` is single-use; ``arguments`` are the real ones."""

    id: str
    session: str
    address: Address
    user: str
    tool_name: str
    arguments: Mapping[str, Any]
    created_at: int
    timeout_ms: int
