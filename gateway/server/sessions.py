"""Sessions over REST: list, show, delete; read and write messages; abort; approve."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import msgspec
from aiohttp import web
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
from gateway.server.answers import json_answer
from gateway.server.routes import Call, Nothing, Route
from gateway.session import Session
from gateway.session.frames import Status, Totals
from gateway.session.log import ErrorRecord, SessionFilter, SessionRow, ToolRecord

CHANNEL = SERVER
"""The channel of messages that come by REST. It is none that runs: their answers are read, not placed."""

_LARGEST = 2**53
SessionId = Annotated[str, Meta(pattern=r"^[!-~]{1,200}$", description="The session's id")]


class SessionPath(Struct, frozen=True):
    """Which session."""

    id: SessionId


class ApprovalPath(Struct, frozen=True):
    """Which request for approval, in which session."""

    id: SessionId
    approval_id: Annotated[str, Meta(min_length=1, max_length=64, description="The request's id")]


class Page(Struct, frozen=True):
    """Which part of the list."""

    limit: Annotated[int, Meta(ge=1, le=500, description="How many at most")] = 100
    before: Annotated[str, Meta(pattern=r"^[0-9]{1,16}(:[!-~]{1,200})?$")] | UnsetType = UNSET
    channel: Annotated[str, Meta(pattern=r"^[!-~]{1,64}$", description="Only this one's")] | UnsetType = UNSET
    unnamed: Literal["with", "without", "only"] = "with"
    """Whether to list the sessions of requests to ``/v1`` that named none."""


class Range(Struct, frozen=True):
    """Which messages."""

    after: Annotated[int, Meta(ge=0, le=_LARGEST, description="Only those with a higher seq")] = 0
    last: Annotated[int, Meta(ge=1, le=1000, description="Only the newest so many of them")] = 200


class Repeatable(Struct, frozen=True):
    """The message's own name, where the body has none."""

    key: ClientMsgId | UnsetType = msgspec.field(default=UNSET, name="Idempotency-Key")


class NewMessage(Struct, frozen=True):
    """Something to say. The same ``client_msg_id`` again is the same message, and is answered once."""

    text: str = ""
    parts: Annotated[list[TextPart | ImagePart | FilePart], Meta(max_length=32)] = []
    audio: ClientAudio | None = None
    client_msg_id: ClientMsgId | UnsetType = UNSET


class Verdict(Struct, frozen=True):
    """A person's word on a tool."""

    decision: Decision


class SessionInfo(Struct, frozen=True):
    """A session. Times are milliseconds, ``cost`` is US dollars, ``messages`` is their number.

    ``status`` is ``waiting`` while a tool waits for a person's approval.
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
    """A message and its number in the session."""

    seq: int
    message: Message


class MessageList(Struct, frozen=True):
    """Messages, oldest first."""

    messages: list[LoggedMessage]


class ErrorList(Struct, frozen=True):
    """Errors, oldest first. ``count`` is how many the session holds in all."""

    count: int
    errors: list[ErrorRecord]


class ToolCallList(Struct, frozen=True):
    """Tool calls, oldest first."""

    tool_calls: list[ToolRecord]


class Newest(Struct, frozen=True):
    """How much of a list."""

    last: Annotated[int, Meta(ge=1, le=1000, description="Only the newest so many of them")] = 200


class Accepted(Struct, frozen=True):
    """The message is durable. ``answer_id`` is its answer's id; follow it from ``seq`` on.

    One that is ``refused`` gets no answer: too many messages wait in the session.
    """

    client_msg_id: str
    message_id: str
    answer_id: str
    session: str
    seq: int
    duplicate: bool
    refused: bool | UnsetType = UNSET


class Aborted(Struct, frozen=True):
    """Whether there was an answer to stop."""

    aborted: bool


class Settled(Struct, frozen=True):
    """The request for approval is settled."""

    approval_id: str
    decision: Decision


class SessionRoutes:
    """The routes under ``/api/sessions``."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def routes(self) -> list[Route]:
        """All of them."""
        return [*self._reading(), *self._changing()]

    def _reading(self) -> list[Route]:
        one = "/api/sessions/{id}"
        return [
            Route(
                method="GET",
                path="/api/sessions",
                name="listSessions",
                summary="Sessions, newest activity first.",
                call=self._list,
                query=Page,
                answer=SessionList,
            ),
            Route(
                method="GET",
                path=one,
                name="showSession",
                summary="One session.",
                call=self._show,
                takes=SessionPath,
                answer=SessionInfo,
                errors=(NotFoundError,),
            ),
            Route(
                method="GET",
                path=f"{one}/messages",
                name="listMessages",
                summary="What was said in a session, oldest first.",
                call=self._messages,
                takes=SessionPath,
                query=Range,
                answer=MessageList,
                errors=(NotFoundError,),
            ),
            Route(
                method="GET",
                path=f"{one}/errors",
                name="listErrors",
                summary="Errors in a session's answers, oldest first.",
                call=self._errors,
                takes=SessionPath,
                query=Newest,
                answer=ErrorList,
                errors=(NotFoundError,),
            ),
            Route(
                method="GET",
                path=f"{one}/tool-calls",
                name="listToolCalls",
                summary="Tool calls of a session with their outcomes, oldest first.",
                call=self._tool_calls,
                takes=SessionPath,
                query=Newest,
                answer=ToolCallList,
                errors=(NotFoundError,),
            ),
        ]

    def _changing(self) -> list[Route]:
        one = "/api/sessions/{id}"
        return [
            Route(
                method="DELETE",
                path=one,
                name="deleteSession",
                summary="Remove a session with all its messages.",
                call=self._delete,
                takes=SessionPath,
                status=204,
                errors=(NotFoundError, InvalidStateError),
            ),
            Route(
                method="POST",
                path=f"{one}/messages",
                name="postMessage",
                summary="Say something; returns once it is durable. A session begins with its first message.",
                call=self._post,
                takes=SessionPath,
                headers=Repeatable,
                body=NewMessage,
                answer=Accepted,
                status=202,
                errors=(OverloadedError, InvalidPartTypeError, PartValidationError),
                explain=_check_parts,
            ),
            Route(
                method="POST",
                path=f"{one}/abort",
                name="abortAnswer",
                summary="Stop the answer a session is making; what it has so far is kept.",
                call=self._abort,
                takes=SessionPath,
                answer=Aborted,
                errors=(NotFoundError,),
            ),
            Route(
                method="POST",
                path=f"{one}/approvals/{{approval_id}}",
                name="settleApproval",
                summary="Allow or deny what a tool wants to do.",
                call=self._approve,
                takes=ApprovalPath,
                body=Verdict,
                answer=Settled,
                errors=(NotFoundError,),
            ),
        ]

    async def _list(self, call: Call[Nothing, Page, Nothing, None]) -> SessionList:
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

    async def _messages(self, call: Call[SessionPath, Range, Nothing, None]) -> MessageList:
        session = await self._existing(call.path.id)
        found = await self._host.sessions.read(session.id, call.query.after, call.query.last)
        return MessageList([LoggedMessage(seq, message) for seq, message in found])

    async def _errors(self, call: Call[SessionPath, Newest, Nothing, None]) -> ErrorList:
        session = await self._existing(call.path.id)
        return ErrorList(*await self._host.sessions.errors(session.id, call.query.last))

    async def _tool_calls(self, call: Call[SessionPath, Newest, Nothing, None]) -> ToolCallList:
        session = await self._existing(call.path.id)
        return ToolCallList(await self._host.sessions.tool_calls(session.id, call.query.last))

    async def _delete(self, call: Call[SessionPath, Nothing, Nothing, None]) -> None:
        await self._existing(call.path.id)
        await self._host.sessions.delete(call.path.id)

    async def _post(self, call: Call[SessionPath, Nothing, Repeatable, NewMessage]) -> web.Response:
        said = call.body
        name = _one_name(said.client_msg_id, call.headers.key)
        message = ClientMessage.checked(name, said.text, said.parts, said.audio)
        receipt = await self._host.accept(CHANNEL, message.inbound(CHANNEL, call.path.id, call.user))
        accepted = Accepted(
            name,
            receipt.message_id,
            receipt.answer_id,
            receipt.session,
            receipt.seq,
            receipt.duplicate,
            receipt.refused or UNSET,
        )
        return json_answer(accepted, 202)

    async def _abort(self, call: Call[SessionPath, Nothing, Nothing, None]) -> Aborted:
        await self._existing(call.path.id)
        return Aborted(await self._host.abort(call.path.id))

    async def _approve(self, call: Call[ApprovalPath, Nothing, Nothing, Verdict]) -> Settled:
        approval_id, decision = call.path.approval_id, call.body.decision
        await self._host.approve(approval_id, decision, session=call.path.id)
        return Settled(approval_id, decision)

    async def _existing(self, session_id: str) -> Session:
        """The session, unless all there is of it is a message that was refused."""
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
    """Raise InvalidPartTypeError or PartValidationError for the first part that cannot be read."""
    parts: Any = msgspec.json.decode(body, type=dict[str, Any]).get("parts")
    for index, part in enumerate(cast("list[object]", parts) if isinstance(parts, list) else ()):
        try:
            part_from(part)
        except (InvalidPartTypeError, PartValidationError) as error:
            raise type(error)(f"the body: $.parts[{index}]: {error}") from None


def _one_name(in_body: str | UnsetType, in_header: str | UnsetType) -> str:
    """The message's name, which may be said in two places but not differently."""
    names = {name for name in (in_body, in_header) if isinstance(name, str)}
    if len(names) > 1:
        raise InvalidRequestError("client_msg_id and Idempotency-Key differ")
    return names.pop() if names else new_id()
