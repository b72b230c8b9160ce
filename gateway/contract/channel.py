"""The channel contract: a channel has ``run`` and ``send``; every other feature is an ability.

An ability is a protocol of one method, checked with ``isinstance``. A channel needs no base class; it
supports an ability by having the method.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from gateway.contract.messages import Message, Part
from gateway.contract.provider import TurnOptions

InboundKind = Literal["text", "audio"]
ResponseMode = Literal["text", "voice"]
SenderRole = Literal["admin", "user"]
"""A sender's role: users may talk, admins may also run admin commands."""
Addressing = Literal["direct", "command", "mention", "reply", "thread", "none"]
"""The way a message in a room addresses the bot, the strongest one first.

``direct``: it can only be for the bot, as in a private chat. ``command``: it is a command of the bot.
``mention``: it mentions the bot. ``reply``: it replies to a message of the bot. ``thread``: it was written in
a thread that the bot was called into, and does not begin with a mention of another user. ``none``: it does
not address the bot.
"""
Attention = Literal["answer", "remember", "ignore"]
"""The gateway's treatment of a message: answered, kept in memory as context, or dropped."""
QuoteKind = Literal["reply", "quote", "forward", "share", "room"]
"""A message that is replied to, a selected part of one, a forwarded message, or a shared message.

``room`` is no message, but what the sender's message says about the room, such as who else reads it.
"""


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

    ``group`` is true if other users than the sender can read the chat. ``title`` is the chat's display name.
    """

    channel: str
    account: str = ""
    chat: str = ""
    thread: str | None = None
    reply_to: str | None = None
    group: bool = False
    title: str = ""


class Sender(Struct, frozen=True, gc=False, omit_defaults=True):
    """The author of a message. ``id`` is the platform's user id, never a display name.

    ``name`` is the display name, ``username`` the name in mentions, without "@".
    """

    id: str
    name: str = ""
    username: str = ""


class Quoted(Struct, frozen=True, gc=False, omit_defaults=True):
    """Content of another message that a message points at. ``parts`` are its pictures and files.

    ``sender`` is None if the platform does not name the author; ``own``: the bot wrote it.
    """

    kind: QuoteKind
    text: str = ""
    sender: Sender | None = None
    parts: tuple[Part, ...] = ()
    own: bool = False


class Earlier(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """An earlier message of a room, as context. ``key`` is its ``dedup_key``, ``at`` its time in ms.

    ``files`` are the names of its files; ``own``: the bot wrote it. ``bot``: another bot wrote it.
    """

    key: str
    sender: Sender
    text: str = ""
    at: int = 0
    files: tuple[str, ...] = ()
    own: bool = False
    bot: bool = False


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
    session for this message. ``before`` is the earlier transcript of a session that begins with this message,
    and, with an ``origin`` marked as context, earlier messages of the room. ``addressed`` is the way in which
    it addresses the bot, and ``quotes`` are the messages that it points at.
    ``unattended``: the sender does not see approval requests, so a budget that would ask refuses at once,
    and a full queue without a notice; tools wait for other viewers of the session.
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
    addressed: Addressing = "direct"
    quotes: tuple[Quoted, ...] = ()
    unattended: bool = False
    response_mode: ResponseMode = "text"
    audio: Audio | None = None
    raw: dict[str, Any] | None = None

    @property
    def original(self) -> str:
        """Return the key of the message that this one edits, or its own key."""
        return self.revises or self.dedup_key

    @property
    def written_in(self) -> str | None:
        """Return the thread that it was written in; None if its answer opens the thread."""
        address = self.address
        return None if address.thread == address.reply_to else address.thread


class Receipt(Struct, frozen=True, gc=False):
    """The confirmation that a message is committed; its answer will have the id ``answer_id``.

    There is no answer if it was ``ignored``, because an unauthorised user wrote it in a group or it is not
    for the bot, or ``refused``, because the queue is full and the chat got a notice.
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


FeedbackValue = Literal["up", "down", "none"]
_GOOD = frozenset("👍❤🔥🥰👏🎉🤩🙏👌😍💯🏆")
_BAD = frozenset("👎🤬🤮💩🥱🥴💔😡")
_VARIANTS = dict.fromkeys((0xFE0F, *range(0x1F3FB, 0x1F400)))
"""Characters after an emoji that select its presentation or skin tone."""


def feedback_value(emojis: Iterable[str]) -> FeedbackValue:
    """Return what a user's reactions say about an answer; one against it outweighs those for it."""
    given = {emoji.translate(_VARIANTS) for emoji in emojis}
    return "down" if given & _BAD else "up" if given & _GOOD else "none"


class Feedback(Struct, frozen=True):
    """A user's feedback on an answer, such as a reaction; ``none`` takes it back.

    ``message`` is the platform's id of a message of the bot in ``chat``, ``user`` the platform's user id.
    Feedback on other messages, or of users who may not use the bot, is ignored. ``stops``: it also asks to
    stop the answer, if that is still being made.

    A platform that reports each reaction separately names it in ``sign``: each counts until it is taken back.
    ``none`` of an empty ``user`` takes back the sign of all users, or without a sign all feedback.
    """

    account: str
    chat: str
    message: str
    user: str
    value: FeedbackValue
    stops: bool = False
    sign: str = ""


Signal = Withdrawal | StopRequest | Feedback


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
    channels that do not cut. It is not ``final`` while the answer is being made. ``watermark`` is the
    result of ``Watermarks`` before the first attempt to place it. ``others`` are the ids of messages that
    were placed in the room since and are known not to be this one, ``elsewhere`` the rooms and ids of what
    the account placed in other rooms; only ``find`` gets them. ``response_mode`` is what the sender
    asked for; a channel without speech output sends the answer unchanged.
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


class PlacementMismatch(Exception):
    """A placed message cannot be edited into a page, such as a file into a text, or is gone. Raised by
    ``Edits.edit``.

    The message and those after it are deleted, and their pages are placed again.
    """


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
    """Can edit a placed message; an unchanged content is not an error. Raises the errors of ``send``, and
    PlacementMismatch."""

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None: ...


@runtime_checkable
class SendsAlbums(Protocol):
    """Can place several pages with one call, all of them or none.

    ``album_size`` returns how many of these pages, from the first one on, form an album; at most 1 for none.
    ``send_album`` raises the errors of ``send``; after PlacementRefused each page is sent on its own.
    """

    def album_size(self, pages: Sequence[Any]) -> int: ...

    async def send_album(self, outbounds: Sequence[OutboundMessage]) -> Sequence[Placed]: ...


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
    """Can show a preview that places no message, and that the platform removes."""

    async def draft(self, outbound: OutboundMessage) -> None: ...


@runtime_checkable
class Reconciles(Protocol):
    """Can check whether a message with this nonce is in the chat."""

    async def find(self, outbound: OutboundMessage) -> Placed | None: ...


@runtime_checkable
class RecallsHistory(Protocol):
    """Can read the messages before a message: of its thread, or of the chain of replies that it ends.

    ``history`` returns the newest ``limit`` of them, oldest first, without the message itself. It is called
    once for each session, for the first message. Its failures are logged, and do not delay the answer.
    """

    async def history(self, message: InboundMessage, limit: int) -> Sequence[Earlier]: ...


@runtime_checkable
class ResolvesGroups(Protocol):
    """Knows the groups of users, such as roles, that access rules may name: ``role:123``.

    ``groups_of`` returns the groups of a user that were confirmed in the last five minutes; it fails closed.
    ``refresh_groups`` asks the platform where that is older, also for a user without groups; it is called for
    every message of a user who is in none of the groups that the rules name. It has 3 s, and its failures are
    logged.
    """

    def groups_of(self, user: str) -> Collection[str]: ...

    async def refresh_groups(self, user: str, address: Address) -> None: ...


@runtime_checkable
class OpensChats(Protocol):
    """Knows the session of a chat from an address alone, so that a plugin can write there first.

    Where each user of a room has a session, it is one of the room itself. Without this ability it is
    ``str(SessionKey(channel, account, chat, thread))``. Raises InvalidRequestError for an address at which
    the channel cannot send.
    """

    def session_of(self, address: Address) -> str: ...


class MessageLink(Struct, frozen=True):
    """A message that a link of the platform names.

    ``chat`` and ``message`` are the platform's ids, ``key`` is the ``dedup_key`` of such a message of a user,
    and ``account`` the account in which it is, empty if the link does not say.
    """

    chat: str
    message: str
    key: str
    account: str = ""


@runtime_checkable
class ReadsLinks(Protocol):
    """Knows the links to messages of its platform, so that users can ask about a message by its link.

    Pure. Returns None for any other text.
    """

    def read_link(self, link: str) -> MessageLink | None: ...


@runtime_checkable
class LimitsReplies(Protocol):
    """Can reply to a message of an address only for some seconds; None where the platform has no limit.

    Later an operator has to confirm that the message is answered again.
    """

    def reply_window(self, address: Address) -> float | None: ...


@runtime_checkable
class Watermarks(Protocol):
    """Knows the newest message of a chat; it is stored with the intent to place another, for ``find``."""

    def watermark(self, address: Address) -> str | None: ...


@runtime_checkable
class ShowsTyping(Protocol):
    """Can show a typing indicator."""

    async def typing(self, address: Address) -> None: ...


@runtime_checkable
class ShowsTitle(Protocol):
    """Can show the title of a conversation, such as the name of a thread that the bot opened.

    ``address`` is that of the conversation's first message. A title that cannot be shown there is not an
    error; failures are logged.
    """

    async def show_title(self, address: Address, title: str) -> None: ...


@runtime_checkable
class ServesHttp(Protocol):
    """Adds routes to the gateway's own web server: aiohttp route definitions."""

    def routes(self) -> Sequence[Any]: ...


@runtime_checkable
class ReportsHealth(Protocol):
    """Reports whether its connection works."""

    def health(self) -> Health: ...


class Health(Struct, frozen=True):
    """The state of a component, shown at ``/readyz``.

    A probe says in ``addressed_only`` why the platform passes on no other messages of rooms than those for
    the bot, and how to change that. The doctor warns where ``groups = "always"`` asks for them.
    """

    ok: bool
    detail: str = ""
    addressed_only: str = ""
