"""The channel contract: a channel has ``run`` and ``send``; every other feature is an ability.

An ability is a protocol of one method, checked with ``isinstance``. A channel needs no base class; it
supports an ability by having the method.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from gateway.contract.messages import Message, Part
from gateway.contract.provider import TurnOptions

InboundKind = Literal["text", "audio"]
ResponseMode = Literal["text", "voice"]
SenderRole = Literal["admin", "user"]
"""A sender's role: users may talk, admins may also run admin commands."""


class SessionKey(Struct, frozen=True):
    """The conversation of a message; built by a channel, opaque to every other component."""

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
    """The destination of an answer: the chat, and the message that it answers.

    ``group`` is true if other users than the sender can read the chat.
    """

    channel: str
    account: str = ""
    chat: str = ""
    thread: str | None = None
    reply_to: str | None = None
    group: bool = False


class Sender(Struct, frozen=True, gc=False, omit_defaults=True):
    """The author of a message. ``id`` is the platform's user id, never a display name."""

    id: str
    name: str = ""


class Audio(Struct, frozen=True, omit_defaults=True):
    """A voice message."""

    url: str | None = None
    mime_type: str | None = None
    file_path: str | None = None


class InboundMessage(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """A received message, in the common form of all channels.

    ``dedup_key`` (and ``alt_key``) identify the message within channel and account: another message with the
    same key is a duplicate. ``order`` is the platform's own order within the conversation. ``revises`` is the
    key of the message that this one edits. ``role`` overrides the role from the channel's access rules, for
    senders that are authenticated in another way. ``model``, ``agent`` and ``options`` override those of the
    session for this message. ``before`` is the earlier transcript of a session that begins with this message.
    ``unattended``: the sender does not see approval requests, so a budget that would ask refuses at once;
    tools wait for other viewers of the session.
    ``sent_at`` is the platform's timestamp (ms), 0 if unknown; a revision has that of its original.
    ``in_reply_to`` is the platform's id of the message that this one replies to. ``seen`` is, for clients
    that follow the session's log, the last event shown when the message was written; 0 if unknown.
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
    sent_at: int = 0
    in_reply_to: str | None = None
    seen: int = 0
    model: str | None = None
    agent: str | None = None
    options: TurnOptions | None = None
    before: tuple[Message, ...] = ()
    unattended: bool = False
    response_mode: ResponseMode = "text"
    audio: Audio | None = None
    raw: dict[str, Any] | None = None

    @property
    def original(self) -> str:
        """Return the key of the message that this one edits, or its own key."""
        return self.revises or self.dedup_key


class Receipt(Struct, frozen=True, gc=False):
    """The confirmation that a message is committed; its answer will have the id ``answer_id``.

    There is no answer if it was ``ignored``, because an unauthorised user wrote it in a group, or
    ``refused``, because the queue is full and the chat got a notice.
    """

    message_id: str
    answer_id: str
    session: str
    seq: int
    duplicate: bool = False
    ignored: bool = False
    refused: bool = False


class Cursor(Struct, frozen=True):
    """A read position in a platform's event stream; committed with the messages up to there."""

    account: str
    value: str
    shard: str = ""


class Rejected(Struct, frozen=True):
    """An event that could not be parsed; stored raw in quarantine."""

    account: str
    key: str
    raw: str
    reason: str


class Withdrawal(Struct, frozen=True):
    """The deletion of a message by its sender: it is not answered, and a running answer is cancelled.

    ``account`` and ``dedup_key`` are those of the message, which may also arrive later.
    """

    account: str
    dedup_key: str


class StopRequest(Struct, frozen=True):
    """A user's request to stop the running answer of a session."""

    session: str


Signal = Withdrawal | StopRequest


class Receive(Protocol):
    """The callback that ``run`` gets: returns once all arguments are durable.

    ``signals`` are applied at once and again after a restart; duplicates are allowed. Raises OverloadedError
    if too many messages are queued in total or the gateway is stopping; nothing was accepted then. Signals
    without messages are refused only while it stops.
    """

    async def __call__(
        self,
        *messages: InboundMessage,
        cursor: Cursor | None = None,
        rejected: Sequence[Rejected] = (),
        signals: Sequence[Signal] = (),
    ) -> Sequence[Receipt]: ...


class OutboundMessage(Struct, frozen=True, kw_only=True):
    """One message to place in a chat. ``nonce`` is its idempotency key, at most 25 characters.

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
    """A placed message: the platform's id of it, for edits.

    ``order`` is its position in the platform's own order, as in ``InboundMessage.order``; 0 if unknown.
    """

    platform_id: str
    order: int = 0


class Responder(Protocol):
    """Receives the reply to one submitted message. Voice, receipts and errors are separate abilities."""

    async def send_text(self, text: str) -> None: ...


@runtime_checkable
class SendsVoice(Protocol):
    """A responder with speech output: called instead of ``send_text`` if the message asks for a voice answer.
    Channels play sound that an answer contains themselves."""

    async def send_voice(self, text: str) -> None: ...


@runtime_checkable
class SendsAck(Protocol):
    """A responder that gets a receipt once the message is durable; ``text`` is the message's id."""

    async def send_ack(self, text: str) -> None: ...


@runtime_checkable
class SendsError(Protocol):
    """A responder that shows failures in another way than text."""

    async def send_error(self, text: str) -> None: ...


@runtime_checkable
class Channel(Protocol):
    """A connection to a platform. Stopping is cancelling ``run``; ``send`` places one new message.

    ``run`` may raise any exception. A TrunklineError or PlacementRefused is logged in one line, because its
    text says what failed and what to do; any other exception is logged with its traceback.

    ``send`` may be called before ``run`` has connected. It reports the state of a message it did not place
    with PlacementDeferred, PlacementRefused or PlacementUncertain. A channel whose platform does not know
    nonces should reconcile (see Reconciles): after a crash its messages may otherwise appear twice.
    """

    @property
    def id(self) -> str: ...

    async def run(self, receive: Receive) -> None: ...

    async def send(self, outbound: OutboundMessage) -> Placed: ...


class PlacementUncertain(Exception):
    """The request was sent without a response: the message may or may not be in the chat."""


class PlacementDeferred(Exception):
    """Nothing was placed, but a retry may succeed: no connection, or a rate limit of ``seconds``."""

    def __init__(self, reason: str = "", seconds: float | None = None) -> None:
        super().__init__(reason)
        self.seconds = seconds


class PlacementRefused(Exception):
    """The platform will never accept this message: the chat is gone, or the bot may not write there."""


@runtime_checkable
class FollowsSession(Protocol):
    """Clients read the session's own log and resume there: nothing is placed or duplicated."""

    @property
    def follows_session(self) -> Literal[True]: ...


@runtime_checkable
class Paginates(Protocol):
    """Splits an answer into messages of its platform. Pure: the same answer makes the same pages.

    Pages are the channel's own values; equal ones look the same. An empty result means that there is nothing
    to show yet. A long message is split in a thread, so ``pages`` must not use the event loop.
    """

    def pages(self, message: Message, *, final: bool) -> Sequence[Any]: ...


@runtime_checkable
class Edits(Protocol):
    """Can edit a placed message; an unchanged content is not an error. Raises the errors of ``send``."""

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None: ...


@runtime_checkable
class Deletes(Protocol):
    """Can delete a placed message; a message that is gone is not an error."""

    async def delete(self, placed: Placed, address: Address) -> None: ...


class Streaming(Struct, frozen=True):
    """The way a running answer is shown: as edits of a placed message, or as a draft.

    ``every`` is the minimum interval between two updates, in seconds.
    """

    kind: Literal["edit", "draft"] = "edit"
    every: float = 1.0


@runtime_checkable
class Streams(Protocol):
    """Shows running answers; None disables that for an address."""

    def streaming(self, address: Address) -> Streaming | None: ...


@runtime_checkable
class Drafts(Protocol):
    """Can show a preview that places no message and disappears by itself."""

    async def draft(self, outbound: OutboundMessage) -> None: ...


@runtime_checkable
class Reconciles(Protocol):
    """Can check whether a message with this nonce is in the chat."""

    async def find(self, outbound: OutboundMessage) -> Placed | None: ...


@runtime_checkable
class Watermarks(Protocol):
    """Knows the newest message of a chat; it is stored with the intent to place another, for ``find``."""

    def watermark(self, address: Address) -> str | None: ...


@runtime_checkable
class ShowsTyping(Protocol):
    """Can show a typing indicator."""

    async def typing(self, address: Address) -> None: ...


@runtime_checkable
class AsksApproval(Protocol):
    """Can ask a user in the chat; the decision is returned through the gateway's approvals.

    Returns the place of the question. A typed yes or no counts only if it is a reply to it, or later in the
    platform's own order; if the place is None or has no order, no typed answer counts.
    """

    async def ask_approval(self, request: ApprovalRequest) -> Placed | None: ...


@runtime_checkable
class ShowsDecision(Protocol):
    """Can show the outcome of a request: once, always, deny, timeout or cancelled."""

    async def approval_decided(self, request: ApprovalRequest, outcome: str) -> None: ...


@runtime_checkable
class ServesHttp(Protocol):
    """Adds routes to the gateway's own web server: aiohttp route definitions."""

    def routes(self) -> Sequence[Any]: ...


@runtime_checkable
class ReportsHealth(Protocol):
    """Reports whether its connection works."""

    def health(self) -> Health: ...


class Health(Struct, frozen=True):
    """The state of a component, shown at ``/readyz``."""

    ok: bool
    detail: str = ""


class ApprovalRequest(Struct, frozen=True, kw_only=True):
    """A tool call that waits for a user. ``id`` is single-use; ``arguments`` are those of the call.

    ``always`` is the exact text that an "always" will match, to be printed on its button, at most 64
    printable characters. If it is None, "always" is not offered.
    """

    id: str
    session: str
    address: Address
    user: str
    tool_name: str
    arguments: Mapping[str, Any]
    created_at: int
    timeout_ms: int
    always: str | None = None

    def whole(self, limit: int) -> str:
        """Return all arguments as JSON, with invisible characters escaped.

        Raises PlacementRefused if that is more than ``limit`` characters, so that nothing is hidden.
        """
        text = visible_json(dict(self.arguments), indent=1)
        if len(text) > limit or len(self.tool_name) > _LONGEST_NAME:
            raise PlacementRefused(f"the question of {self.tool_name[:_LONGEST_NAME]!r} is too long to show")
        return text

    def shortened(self, limit: int) -> str:
        """Return every argument in at most ``limit`` characters, with long values cut in the middle.

        Only for channels that also attach all arguments as a file. Raises
        PlacementRefused if there are too many arguments even so.
        """
        values = {visible_json(key): visible_json(value) for key, value in self.arguments.items()}
        for most in _CUTS:
            lines = [f" {key}: {_cut_in_the_middle(value, most)}" for key, value in values.items()]
            text = "\n".join(("{", *lines, "}"))
            if len(text) <= limit and len(self.tool_name) <= _LONGEST_NAME:
                return text
        raise PlacementRefused(f"the question of {self.tool_name[:_LONGEST_NAME]!r} is too long to show")

    def in_full(self) -> bytes:
        """Return all arguments as a JSON file in UTF-8, uncut."""
        return visible_json(dict(self.arguments), indent=1).encode()


def visible_json(value: object, indent: int | None = None) -> str:
    """Return a value as JSON, with invisible and direction-changing characters escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    return _NOT_ASCII.sub(_escaped, text)


_LONGEST_NAME = 80
_CUTS = (1000, 500, 200, 100, 50)
_NOT_ASCII = re.compile(r"[^\n -~]")
# Unicode counts these as letters, marks and symbols, but fonts draw nothing for them.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable() and not _BLANK.match(character):
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _cut_in_the_middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … {len(text) - 2 * half:,} characters … {text[-half:]}"
