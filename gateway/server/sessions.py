"""Sessions over REST: list, read, delete, send messages, abort, approve. Also dead letters."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.access.approvals import SERVER, Decision
from gateway.contract.client_message import ClientAudio, ClientMessage, ClientMsgId
from gateway.contract.errors import (
    InvalidPartTypeError,
    InvalidRequestError,
    InvalidStateError,
    NotFoundError,
    OverloadedError,
    PartValidationError,
)
from gateway.contract.messages import FilePart, ImagePart, Message, TextPart, new_id, part_from
from gateway.host import Host
from gateway.server.routes import Call, Nothing, PlainCall, Route
from gateway.session import Session
from gateway.session.dead_letters import DeadLetter, DeadLetters
from gateway.session.frames import Status, Totals
from gateway.session.log import ErrorRecord, SessionFilter, SessionRow, ToolRecord

CHANNEL = SERVER
"""The channel id of messages received by HTTP. No such channel runs: clients read the answers."""

_MAX_SEQ = 2**53
SessionId = Annotated[str, Meta(pattern=r"^[!-~]{1,200}$", description="The session's id")]


class SessionPath(Struct, frozen=True):
    """A session."""

    id: SessionId


class ApprovalPath(Struct, frozen=True):
    """An approval request of a session."""

    id: SessionId
    approval_id: Annotated[str, Meta(min_length=1, max_length=64, description="The request's id")]


class SessionQuery(Struct, frozen=True):
    """A page of the list of sessions, and a filter."""

    limit: Annotated[int, Meta(ge=1, le=500, description="Maximum number")] = 100
    before: Annotated[str, Meta(pattern=r"^[0-9]{1,16}(:[!-~]{1,200})?$")] | UnsetType = UNSET
    channel: Annotated[str, Meta(pattern=r"^[!-~]{1,64}$", description="Only this channel")] | UnsetType = (
        UNSET
    )
    unnamed: Literal["with", "without", "only"] = "with"
    """Whether to list the sessions of ``/v1`` requests without a session name."""


class MessageQuery(Struct, frozen=True):
    """A range of messages."""

    after: Annotated[int, Meta(ge=0, le=_MAX_SEQ, description="Only messages with a higher seq")] = 0
    last: Annotated[int, Meta(ge=1, le=1000, description="Only the newest so many")] = 200


class RecordQuery(Struct, frozen=True):
    """The number of records."""

    last: Annotated[int, Meta(ge=1, le=1000, description="Only the newest so many")] = 200


class IdempotencyHeaders(Struct, frozen=True):
    """The message's client_msg_id, if the body has none."""

    key: ClientMsgId | UnsetType = msgspec.field(default=UNSET, name="Idempotency-Key")


class NewMessage(Struct, frozen=True):
    """A message to send. With a known ``client_msg_id`` it is a duplicate and is not answered again."""

    text: str = ""
    parts: Annotated[list[TextPart | ImagePart | FilePart], Meta(max_length=32)] = []
    audio: ClientAudio | None = None
    client_msg_id: ClientMsgId | UnsetType = UNSET


class ApprovalDecision(Struct, frozen=True):
    """A user's decision about a tool call."""

    decision: Decision


class SessionInfo(Struct, frozen=True):
    """A session. Times are in milliseconds, ``cost`` is in US dollars, ``messages`` is their number.

    ``status`` is ``waiting`` while a tool waits for an approval.
    """

    id: str
    title: str
    channel: str
    created_at: int
    updated_at: int
    messages: int
    status: Status | Literal["waiting"]
    model: str
    usage: Totals


class SessionList(Struct, frozen=True):
    """Sessions, newest activity first. ``next`` is the ``before`` of the next page, null on the last one."""

    sessions: list[SessionInfo]
    next: str | None


class LoggedMessage(Struct, frozen=True):
    """A message and its sequence number in the session."""

    seq: int
    message: Message


class MessageList(Struct, frozen=True):
    """Messages, oldest first."""

    messages: list[LoggedMessage]


class ErrorList(Struct, frozen=True):
    """Errors, oldest first. ``count`` is the number of all errors in the session."""

    count: int
    errors: list[ErrorRecord]


class ToolCallList(Struct, frozen=True):
    """Tool calls, oldest first."""

    tool_calls: list[ToolRecord]


class AcceptedMessage(Struct, frozen=True):
    """A durably stored message. ``answer_id`` is the id of its answer; its events follow ``seq``.

    A ``refused`` message gets no answer: too many messages wait in the session.
    """

    client_msg_id: str
    message_id: str
    answer_id: str
    session: str
    seq: int
    duplicate: bool
    refused: bool | UnsetType = UNSET


class AbortResult(Struct, frozen=True):
    """The result of an abort: whether an answer was running."""

    aborted: bool


class ApprovalResult(Struct, frozen=True):
    """The approval request is resolved."""

    approval_id: str
    decision: Decision


class DeadLetterPath(Struct, frozen=True):
    """A dead letter."""

    id: Annotated[str, Meta(pattern=r"^[!-~]{1,64}$", description="The dead letter's id")]


class DeadLetterList(Struct, frozen=True):
    """Dead letters, newest first."""

    dead: list[DeadLetter]


class DeadLetterRoutes:
    """The routes under ``/api/dead``."""

    def __init__(self, letters: DeadLetters) -> None:
        self._letters = letters

    def routes(self) -> list[Route]:
        """Return the routes."""
        one = "/api/dead/{id}"
        return [
            Route(
                "GET", "/api/dead", "listDead", "List messages without an answer or unreadable.", self._list
            ),
            Route(
                "POST",
                f"{one}/replay",
                "replayDead",
                "Try once more to answer a message.",
                self._replay,
                errors=(NotFoundError, InvalidStateError),
            ),
            Route("DELETE", one, "dropDead", "Delete a dead letter.", self._drop, errors=(NotFoundError,)),
        ]

    async def _list(self, _call: PlainCall) -> DeadLetterList:
        return DeadLetterList(await self._letters.list())

    async def _replay(self, call: Call[DeadLetterPath, Nothing, Nothing, None]) -> None:
        await self._letters.replay(call.path.id)

    async def _drop(self, call: Call[DeadLetterPath, Nothing, Nothing, None]) -> None:
        await self._letters.drop(call.path.id)


class SessionRoutes:
    """The routes under ``/api/sessions``."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [*self._read_routes(), *self._write_routes()]

    def _read_routes(self) -> list[Route]:
        one, gone = "/api/sessions/{id}", (NotFoundError,)
        return [
            Route(
                "GET", "/api/sessions", "listSessions", "List sessions, newest activity first.", self._list
            ),
            Route("GET", one, "showSession", "Show one session.", self._show, errors=gone),
            Route(
                "GET",
                f"{one}/messages",
                "listMessages",
                "List the messages of a session, oldest first.",
                self._messages,
                errors=gone,
            ),
            Route(
                "GET",
                f"{one}/errors",
                "listErrors",
                "List the errors in a session's answers, oldest first.",
                self._errors,
                errors=gone,
            ),
            Route(
                "GET",
                f"{one}/tool-calls",
                "listToolCalls",
                "List the tool calls of a session with their outcomes, oldest first.",
                self._tool_calls,
                errors=gone,
            ),
        ]

    def _write_routes(self) -> list[Route]:
        one, gone = "/api/sessions/{id}", (NotFoundError,)
        return [
            Route(
                "DELETE",
                one,
                "deleteSession",
                "Delete a session with all its messages.",
                self._delete,
                errors=(NotFoundError, InvalidStateError),
            ),
            Route(
                "POST",
                f"{one}/messages",
                "postMessage",
                "Send a message; returns once it is durable. The first message creates the session.",
                self._post,
                success=202,
                errors=(OverloadedError, InvalidPartTypeError, PartValidationError),
                explain=_check_parts,
            ),
            Route(
                "POST",
                f"{one}/abort",
                "abortAnswer",
                "Abort the running answer of a session; its text so far is kept.",
                self._abort,
                errors=gone,
            ),
            Route(
                "POST",
                f"{one}/approvals/{{approval_id}}",
                "settleApproval",
                "Allow or deny a tool call.",
                self._approve,
                errors=gone,
            ),
        ]

    async def _list(self, call: Call[Nothing, SessionQuery, Nothing, None]) -> SessionList:
        page = call.query
        before, after_id = None, ""
        if isinstance(page.before, str):
            at, _, after_id = page.before.partition(":")
            before = int(at)
        wanted = SessionFilter(page.channel if isinstance(page.channel, str) else None, page.unnamed)
        rows = await self._host.sessions.list(page.limit + 1, before, after_id, wanted)
        shown = rows[: page.limit]
        more = f"{shown[-1].updated_at}:{shown[-1].id}" if len(rows) > len(shown) else None
        return SessionList([self._info(row, self._host.live(row.id)) for row in shown], more)

    async def _show(self, call: Call[SessionPath, Nothing, Nothing, None]) -> SessionInfo:
        session = await self._existing(call.path.id)
        return self._info(session.row, session)

    async def _messages(self, call: Call[SessionPath, MessageQuery, Nothing, None]) -> MessageList:
        session = await self._existing(call.path.id)
        found = await self._host.sessions.read(session.id, call.query.after, call.query.last)
        return MessageList([LoggedMessage(seq, message) for seq, message in found])

    async def _errors(self, call: Call[SessionPath, RecordQuery, Nothing, None]) -> ErrorList:
        session = await self._existing(call.path.id)
        return ErrorList(*await self._host.sessions.errors(session.id, call.query.last))

    async def _tool_calls(self, call: Call[SessionPath, RecordQuery, Nothing, None]) -> ToolCallList:
        session = await self._existing(call.path.id)
        return ToolCallList(await self._host.sessions.tool_calls(session.id, call.query.last))

    async def _delete(self, call: Call[SessionPath, Nothing, Nothing, None]) -> None:
        await self._existing(call.path.id)
        await self._host.sessions.delete(call.path.id)

    async def _post(
        self, call: Call[SessionPath, Nothing, IdempotencyHeaders, NewMessage]
    ) -> AcceptedMessage:
        body = call.body
        client_msg_id = _client_msg_id(body.client_msg_id, call.headers.key)
        message = ClientMessage.checked(client_msg_id, body.text, body.parts, body.audio)
        receipt = await self._host.accept(CHANNEL, message.inbound(CHANNEL, call.path.id, call.user))
        return AcceptedMessage(
            client_msg_id,
            receipt.message_id,
            receipt.answer_id,
            receipt.session,
            receipt.seq,
            receipt.duplicate,
            receipt.refused or UNSET,
        )

    async def _abort(self, call: Call[SessionPath, Nothing, Nothing, None]) -> AbortResult:
        await self._existing(call.path.id)
        return AbortResult(await self._host.abort(call.path.id))

    async def _approve(self, call: Call[ApprovalPath, Nothing, Nothing, ApprovalDecision]) -> ApprovalResult:
        approval_id, decision = call.path.approval_id, call.body.decision
        await self._host.approve(approval_id, decision, session=call.path.id)
        return ApprovalResult(approval_id, decision)

    async def _existing(self, session_id: str) -> Session:
        """Return a session. Raises NotFoundError for one that holds nothing but a refused message."""
        session = await self._host.sessions.find(session_id)
        if not session.saved:
            raise NotFoundError(f"no session {session_id!r}")
        return session

    def _info(self, row: SessionRow, live: Session | None) -> SessionInfo:
        row = row if live is None else live.row
        return SessionInfo(
            id=row.id,
            title=row.title,
            channel=row.channel,
            created_at=row.created_at,
            updated_at=row.updated_at,
            messages=row.messages,
            status=_status(live),
            model=self._host.model_of(row.channel, row),
            usage=Totals(row.input_tokens, row.output_tokens, row.cost),
        )


def _status(live: Session | None) -> Status | Literal["waiting"]:
    if live is None:
        return "idle"
    if live.turn is not None and live.turn.asked:
        return "waiting"
    return "running" if live.turn is not None else "queued" if live.pending else "idle"


def _check_parts(body: bytes) -> None:
    """Raise InvalidPartTypeError or PartValidationError for the first invalid part."""
    parts: Any = msgspec.json.decode(body, type=dict[str, Any]).get("parts")
    for index, part in enumerate(cast("list[object]", parts) if isinstance(parts, list) else ()):
        try:
            part_from(part)
        except (InvalidPartTypeError, PartValidationError) as error:
            raise type(error)(f"the body: $.parts[{index}]: {error}") from None


def _client_msg_id(in_body: str | UnsetType, in_header: str | UnsetType) -> str:
    """Return the id of a message. Raises InvalidRequestError if body and header differ."""
    given = {value for value in (in_body, in_header) if isinstance(value, str)}
    if len(given) > 1:
        raise InvalidRequestError("client_msg_id and Idempotency-Key differ")
    return given.pop() if given else new_id()
