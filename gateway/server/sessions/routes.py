"""Sessions over REST: list, read, delete, send, edit, undo, abort, approve. Also search."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.access import UserRef
from gateway.access.questions import SERVER
from gateway.contract.channel import Receipt
from gateway.contract.client_message import ClientAudio, ClientFile, ClientMessage, ClientMsgId, ClientUploads
from gateway.contract.errors import (
    InvalidPartTypeError,
    InvalidRequestError,
    InvalidStateError,
    NotFoundError,
    OverloadedError,
    PartValidationError,
)
from gateway.contract.messages import FilePart, ImagePart, Message, TextPart, new_id, now_ms, part_from
from gateway.conversations import (
    LONGEST_TITLE,
    ChangeSummary,
    Command,
    ConversationFilter,
    ConversationFinder,
    NewShare,
    SearchIndex,
    SearchPage,
    SearchSort,
    Selection,
    Share,
    SharePreview,
    Sort,
    one_line,
)
from gateway.host import Host
from gateway.server.errors import ConfirmIdentityError
from gateway.server.routes import Call, Nothing, Route
from gateway.session import Session
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
    """A question of a session, such as an approval request."""

    id: SessionId
    approval_id: Annotated[str, Meta(min_length=1, max_length=64, description="The request's id")]


class FilterQuery(Struct, frozen=True):
    """Filters of conversations."""

    channel: Annotated[str, Meta(pattern=r"^[!-~]{1,64}$", description="Only this channel")] | UnsetType = (
        UNSET
    )
    person: (
        Annotated[
            str, Meta(min_length=1, max_length=200, description="A user's id, or channel:id, who wrote there")
        ]
        | UnsetType
    ) = UNSET
    agent: (
        Annotated[str, Meta(min_length=1, max_length=64, description="The agent that answers")] | UnsetType
    ) = UNSET
    model: (
        Annotated[str, Meta(min_length=1, max_length=200, description="A part of provider/model")] | UnsetType
    ) = UNSET
    cost: Annotated[float, Meta(ge=0, le=1e9, description="More than these US dollars")] | UnsetType = UNSET
    error: (
        Annotated[
            str,
            Meta(pattern=r"^[A-Za-z]{1,64}$", description="The beginning of an error's name, or any"),
        ]
        | UnsetType
    ) = UNSET
    since: (
        Annotated[int, Meta(ge=0, le=_MAX_SEQ, description="Active since then, in milliseconds")] | UnsetType
    ) = UNSET

    @property
    def wanted(self) -> ConversationFilter | None:
        """The filter, or None if it has no condition beside the channel."""
        names = ("channel", "person", "agent", "model", "cost", "error", "since")
        given = {name: value for name in names if (value := getattr(self, name)) is not UNSET}
        return ConversationFilter(**given) if given.keys() - {"channel"} else None


class SessionQuery(FilterQuery, frozen=True):
    """A page of the list of sessions, and a filter. ``pinned``, ``unnamed`` and ``q`` exclude the others."""

    limit: Annotated[int, Meta(ge=1, le=500, description="Maximum number")] = 100
    before: (
        Annotated[str, Meta(pattern=r"^[0-9]{1,16}(\.[0-9]{1,20})?(e-[0-9]{1,3})?(:[!-~]{1,200})?$")]
        | UnsetType
    ) = UNSET
    sort: Annotated[Sort, Meta(description="cost and errors leave out those without")] = "newest"
    unnamed: Literal["with", "without", "only"] = "with"
    """Whether to list the sessions of ``/v1`` requests without a session name."""
    pinned: Annotated[bool, Meta(description="Only pinned sessions, or only others")] | UnsetType = UNSET
    q: Annotated[str, Meta(max_length=500, description="Words of the title, as in a search")] | UnsetType = (
        UNSET
    )


class MessageQuery(Struct, frozen=True):
    """A range of messages."""

    after: Annotated[int, Meta(ge=0, le=_MAX_SEQ, description="Only messages with a higher seq")] = 0
    before: Annotated[int, Meta(ge=1, le=_MAX_SEQ, description="Only messages with a lower seq")] = _MAX_SEQ
    last: Annotated[int, Meta(ge=1, le=1000, description="Number of newest entries to return")] = 200
    branch: (
        Annotated[
            str,
            Meta(
                min_length=1, max_length=64, description="The version with this id, by default the shown one"
            ),
        ]
        | UnsetType
    ) = UNSET
    html: Annotated[bool, Meta(description="Also return the HTML of answers")] = False


class SearchQuery(FilterQuery, frozen=True, kw_only=True):
    """A search, filters, and a page of its results."""

    q: Annotated[str, Meta(description="Words and quoted phrases; the last word may be a beginning")]
    limit: Annotated[int, Meta(ge=1, le=100, description="Maximum number")] = 50
    sort: Annotated[
        SearchSort, Meta(description="newest first, or best match first among the newest 1,000")
    ] = "newest"
    cursor: (
        Annotated[str, Meta(pattern=r"^[0-9]{1,19}(-[0-9]{1,4})?$", description="``next`` of the last page")]
        | UnsetType
    ) = UNSET


class RecordQuery(Struct, frozen=True):
    """The number of records."""

    last: Annotated[int, Meta(ge=1, le=1000, description="Number of newest entries to return")] = 200


class ChangeQuery(Struct, frozen=True):
    """The changes of one turn."""

    answer: (
        Annotated[str, Meta(min_length=1, max_length=64, description="Only those of this answer's turn")]
        | UnsetType
    ) = UNSET


class RepeatHeaders(Struct, frozen=True):
    """A key of the request: a repeated one has no effect."""

    key: ClientMsgId | UnsetType = msgspec.field(default=UNSET, name="Idempotency-Key")


class MessagePath(Struct, frozen=True):
    """A message of a session."""

    id: SessionId
    message_id: Annotated[str, Meta(min_length=1, max_length=64, description="The message's id")]


class IdempotencyHeaders(Struct, frozen=True):
    """The message's client_msg_id, if the body has none."""

    key: ClientMsgId | UnsetType = msgspec.field(default=UNSET, name="Idempotency-Key")


class NewMessage(Struct, frozen=True):
    """A message to send. With a known ``client_msg_id`` it is a duplicate and is not answered again."""

    text: str = ""
    parts: Annotated[list[TextPart | ImagePart | FilePart], Meta(max_length=32)] = []
    audio: ClientAudio | None = None
    files: Annotated[list[ClientFile], Meta(max_length=32)] = []
    uploads: ClientUploads = []
    client_msg_id: ClientMsgId | UnsetType = UNSET


class SessionChange(Struct, frozen=True, forbid_unknown_fields=True):
    """A change of a session: its title, which no model replaces from then on, whether it is pinned, and the
    model and agent that answer from now on; null restores the default.
    """

    title: Annotated[str, Meta(min_length=1, max_length=LONGEST_TITLE)] | UnsetType = UNSET
    pinned: bool | UnsetType = UNSET
    model: Annotated[str, Meta(min_length=1, max_length=200)] | UnsetType | None = UNSET
    agent: Annotated[str, Meta(min_length=1, max_length=200)] | UnsetType | None = UNSET


class NewFork(Struct, frozen=True, forbid_unknown_fields=True):
    """A fork. It ends with the message, or before it if it is a user's; without one it has all messages."""

    message_id: Annotated[str, Meta(min_length=1, max_length=64)] | UnsetType = UNSET


class Lineage(Struct, frozen=True):
    """The session that a fork was made from, which may be deleted, and the last message it has from there.

    The copy of the message has another id. For a nested run: the session that started it, and the answer.
    """

    session: str
    message_id: str


class UndoResult(Struct, frozen=True):
    """The ids of the messages that were hidden or shown again; none if the request was carried out before.

    ``turns`` are those of its answers. ``remains`` is true if a chat still shows the answer, because its
    channel can neither delete nor change messages. ``kept`` are files that tools changed and that stay as
    they are, each with the reason.
    """

    messages: tuple[str, ...]
    turns: tuple[str, ...]
    remains: bool
    kept: tuple[tuple[str, str], ...]


class TaskInfo(Struct, frozen=True):
    """A nested run: its conversation, the tool call of the ``parent`` message that started it, its agent."""

    root: str
    call_id: str
    agent: str


class ShareRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A link to create. ``days`` is the time until it expires; the gateway's setting if unset."""

    days: Annotated[int, Meta(ge=1, le=365)] | UnsetType = UNSET


class ShareList(Struct, frozen=True):
    """Valid links to conversations, newest first, without their addresses."""

    shares: list[Share]


class SharePath(Struct, frozen=True):
    """A link, by its id, which is not its address."""

    share: Annotated[str, Meta(min_length=1, max_length=64, description="The id of the link")]


Decision = Annotated[str, Meta(max_length=4_000)] | Annotated[list[str], Meta(max_length=25)]


class ApprovalDecision(Struct, frozen=True):
    """An answer to a question: ``once``, ``always`` or ``deny`` for a tool, else its choices or a text."""

    decision: Decision


class SessionInfo(Struct, frozen=True):
    """A session. Times are in milliseconds, ``cost`` is in US dollars, ``messages`` is their number.

    ``status`` is ``waiting`` while a question, such as the approval of a tool, is open. ``parent`` is null
    unless it is a fork or a nested run, and ``task`` unless it is a nested run.
    """

    id: str
    title: str
    channel: str
    created_at: int
    updated_at: int
    messages: int
    status: Status | Literal["waiting"]
    model: str
    agent: str
    usage: Totals
    parent: Lineage | None
    pinned: bool
    task: TaskInfo | None


class SessionList(Struct, frozen=True):
    """Sessions, newest activity first. ``next`` is the ``before`` of the next page, null on the last one."""

    sessions: list[SessionInfo]
    next: str | None


class ChildList(Struct, frozen=True):
    """The sessions of nested runs, oldest first."""

    children: list[SessionInfo]


class LoggedMessage(Struct, frozen=True):
    """A message and its sequence number in the session.

    ``html`` has the parts of an answer that pages show as HTML, each with its index; it is safe to insert.
    ``rendered`` is Markdown by a plugin's renderer, to show instead of the parts, with its HTML.
    """

    seq: int
    message: Message
    html: list[tuple[int, str]] | UnsetType = UNSET
    rendered: str | UnsetType = UNSET
    rendered_html: str | UnsetType = UNSET


class MessageList(Struct, frozen=True):
    """Messages, oldest first. ``next`` is the ``before`` of the page of earlier ones, null without any."""

    messages: list[LoggedMessage]
    next: int | None = None


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
    """The question is answered."""

    approval_id: str
    decision: Decision


class SearchRoutes:
    """The route ``/api/search``."""

    def __init__(self, index: SearchIndex) -> None:
        self._index = index

    def routes(self) -> list[Route]:
        """Return the route."""
        return [
            Route(
                "GET",
                "/api/search",
                "searchMessages",
                "Find the newest or best matching messages and titles that contain all words of a query.",
                self._search,
            )
        ]

    async def _search(self, call: Call[Nothing, SearchQuery, Nothing, None]) -> SearchPage:
        asked = call.query
        wanted = asked.wanted
        if wanted is None and isinstance(asked.channel, str):
            wanted = ConversationFilter(channel=asked.channel)
        before, _, start = asked.cursor.partition("-") if isinstance(asked.cursor, str) else ("", "", "")
        if asked.sort == "match":
            cursor = (int(before), int(start or 0)) if before else None
            return await self._index.find_best(asked.q, asked.limit, cursor, wanted)
        if before:
            return await self._index.find(asked.q, asked.limit, int(before), wanted)
        return await self._index.find(asked.q, asked.limit, wanted=wanted)


class SessionRoutes:
    """The routes under ``/api/sessions``."""

    def __init__(
        self, host: Host, search: SearchIndex, selection: Selection, finder: ConversationFinder
    ) -> None:
        self._finder = finder
        self._host = host
        self._selection = selection
        self._search = search

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [*self._read_routes(), *self._write_routes(), *self._undo_routes(), *self._share_routes()]

    def _undo_routes(self) -> list[Route]:
        one = "/api/sessions/{id}"
        return [
            Route(
                "POST",
                f"{one}/undo",
                "undoExchange",
                "Hide the last message of a session and its answer.",
                self._undo,
                errors=(NotFoundError, InvalidStateError),
            ),
            Route(
                "POST",
                f"{one}/redo",
                "redoExchange",
                "Restore what was undone last, unless a message was answered since.",
                self._redo,
                errors=(NotFoundError, InvalidStateError),
            ),
        ]

    def _share_routes(self) -> list[Route]:
        one, gone = "/api/sessions/{id}", (NotFoundError,)
        return [
            Route(
                "POST",
                f"{one}/share",
                "shareSession",
                "Create a public read-only page of what a session holds now.",
                self._share,
                success=201,
                errors=(NotFoundError, InvalidStateError),
            ),
            Route(
                "GET",
                f"{one}/share/preview",
                "previewShare",
                "Return what a public page of a session would show now.",
                self._preview,
                errors=gone,
            ),
            Route("GET", f"{one}/shares", "listShares", "List the public pages of a session.", self._shares),
            Route(
                "DELETE",
                "/api/shares/{share}",
                "revokeShare",
                "Revoke a public page at once.",
                self._unshare,
                errors=gone,
            ),
        ]

    async def _share(self, call: Call[SessionPath, Nothing, Nothing, ShareRequest]) -> NewShare:
        session, days = await existing(self._host, call.path.id), call.body.days
        return await self._host.shares.create(session, call.user, days if isinstance(days, int) else None)

    async def _preview(self, call: Call[SessionPath, Nothing, Nothing, None]) -> SharePreview:
        session = await existing(self._host, call.path.id)
        return await self._host.shares.preview(session.id)

    async def _shares(self, call: Call[SessionPath, Nothing, Nothing, None]) -> ShareList:
        return ShareList([*await self._host.shares.list(call.path.id)])

    async def _unshare(self, call: Call[SharePath, Nothing, Nothing, None]) -> None:
        await self._host.shares.revoke(call.path.share, call.user)

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
                "List the messages of a session, or of one of its versions, oldest first.",
                self._messages,
                errors=gone,
            ),
            Route(
                "GET",
                f"{one}/children",
                "listChildren",
                "List the nested runs that a session's tool calls started, oldest first.",
                self._children,
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
            Route(
                "GET",
                f"{one}/changes",
                "listChanges",
                "List the files that tools changed in a session, with their contents before and after.",
                self._changes,
                errors=gone,
            ),
        ]

    def _write_routes(self) -> list[Route]:
        one, gone = "/api/sessions/{id}", (NotFoundError,)
        return [
            Route(
                "PATCH",
                one,
                "changeSession",
                "Rename or pin a session, or select its model or agent.",
                self._change,
                errors=gone,
            ),
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
                f"{one}/fork",
                "forkSession",
                "Copy a session, with new message ids; the original stays as it is.",
                self._fork,
                success=201,
                errors=(NotFoundError, InvalidStateError),
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
                errors=(*gone, ConfirmIdentityError),
            ),
        ]

    async def _list(self, call: Call[Nothing, SessionQuery, Nothing, None]) -> SessionList:
        page = call.query
        before, after_id = None, ""
        if isinstance(page.before, str):
            at, _, after_id = page.before.partition(":")
            before = float(at)
        if page.wanted is not None or page.sort != "newest":
            return await self._find(page, None if before is None else (before, after_id))
        before = None if before is None else int(before)
        wanted = SessionFilter(
            page.channel if isinstance(page.channel, str) else None,
            page.unnamed,
            page.pinned if isinstance(page.pinned, bool) else None,
        )
        if isinstance(page.q, str):
            rows = await self._search.find_sessions(page.q, page.limit + 1, before, after_id, wanted)
        else:
            rows = await self._host.sessions.list(page.limit + 1, before, after_id, wanted)
        shown = rows[: page.limit]
        more = f"{shown[-1].updated_at}:{shown[-1].id}" if len(rows) > len(shown) else None
        return SessionList([self._info(row, self._host.live(row.id)) for row in shown], more)

    async def _find(self, page: SessionQuery, cursor: tuple[float, str] | None) -> SessionList:
        if page.unnamed != "with" or isinstance(page.pinned, bool) or isinstance(page.q, str):
            raise InvalidRequestError("the query: unnamed, pinned and q go with no other filter or order")
        channel = page.channel if isinstance(page.channel, str) else None
        wanted = page.wanted or ConversationFilter(channel=channel)
        found = await self._finder.find(wanted, page.sort, page.limit, cursor)
        return SessionList([self._info(row, self._host.live(row.id)) for row in found.sessions], found.next)

    async def _show(self, call: Call[SessionPath, Nothing, Nothing, None]) -> SessionInfo:
        session = await existing(self._host, call.path.id)
        return self._info(session.row, session)

    async def _messages(self, call: Call[SessionPath, MessageQuery, Nothing, None]) -> MessageList:
        session = await existing(self._host, call.path.id)
        asked = call.query
        upto = asked.before - 1
        if isinstance(asked.branch, str):
            whole = await self._host.branches.read(session, asked.branch)
            found = [one for one in whole if asked.after < one[0] <= upto]
        else:
            found = await self._host.sessions.read(session.id, asked.after, asked.last + 1, upto)
        shown = found[-asked.last :]
        logged = [await _logged(session, seq, message, html=asked.html) for seq, message in shown]
        return MessageList(logged, shown[0][0] if len(found) > len(shown) else None)

    async def _children(self, call: Call[SessionPath, Nothing, Nothing, None]) -> ChildList:
        rows = await self._host.sessions.children(await existing(self._host, call.path.id))
        return ChildList([self._info(row, self._host.live(row.id)) for row in rows])

    async def _errors(self, call: Call[SessionPath, RecordQuery, Nothing, None]) -> ErrorList:
        session = await existing(self._host, call.path.id)
        return ErrorList(*await self._host.sessions.errors(session.id, call.query.last))

    async def _tool_calls(self, call: Call[SessionPath, RecordQuery, Nothing, None]) -> ToolCallList:
        session = await existing(self._host, call.path.id)
        return ToolCallList(await self._host.sessions.tool_calls(session.id, call.query.last))

    async def _changes(self, call: Call[SessionPath, ChangeQuery, Nothing, None]) -> ChangeSummary:
        session, answer = await existing(self._host, call.path.id), call.query.answer
        return await self._host.changes.read(session.id, answer if isinstance(answer, str) else None)

    async def _change(self, call: Call[SessionPath, Nothing, Nothing, SessionChange]) -> SessionInfo:
        change = call.body
        if change == SessionChange():
            raise InvalidRequestError("the body: one of title, pinned, model and agent is required")
        title = one_line(change.title) if isinstance(change.title, str) else None
        if title == "":
            raise InvalidRequestError("the body: $.title must contain a visible character")
        session = await existing(self._host, call.path.id)
        if title is not None:
            session = await self._host.rename(call.path.id, title)
        if not isinstance(change.model, UnsetType):
            await self._selection.choose_model(session, change.model)
        if not isinstance(change.agent, UnsetType):
            await self._selection.choose_agent(session, change.agent)
        if isinstance(change.pinned, bool):
            await session.pin(now_ms() if change.pinned else None)
        return self._info(session.row, session)

    async def _fork(self, call: Call[SessionPath, Nothing, Nothing, NewFork]) -> SessionInfo:
        await existing(self._host, call.path.id)
        message = call.body.message_id
        fork = await self._host.fork(call.path.id, call.user, message if isinstance(message, str) else None)
        return self._info(fork.row, fork)

    async def _undo(self, call: Call[SessionPath, Nothing, RepeatHeaders, None]) -> UndoResult:
        session, key = await existing(self._host, call.path.id), call.headers.key
        change = await self._host.undo.undo(session, Command(key if isinstance(key, str) else ""))
        return UndoResult(change.messages, change.turns, change.remains, change.kept)

    async def _redo(self, call: Call[SessionPath, Nothing, RepeatHeaders, None]) -> UndoResult:
        session, key = await existing(self._host, call.path.id), call.headers.key
        change = await self._host.undo.redo(session, Command(key if isinstance(key, str) else ""))
        return UndoResult(change.messages, change.turns, change.remains, change.kept)

    async def _delete(self, call: Call[SessionPath, Nothing, Nothing, None]) -> None:
        await existing(self._host, call.path.id)
        await self._host.sessions.delete(call.path.id)

    async def _post(
        self, call: Call[SessionPath, Nothing, IdempotencyHeaders, NewMessage]
    ) -> AcceptedMessage:
        body = call.body
        client_msg_id = key_of(body.client_msg_id, call.headers.key)
        message = ClientMessage.checked(
            client_msg_id, body.text, body.parts, body.audio, body.files, body.uploads
        )
        message = await message.read_files(self._host.read_file)
        inbound = message.inbound(CHANNEL, call.path.id, call.user)
        receipt = await self._host.accept(CHANNEL, inbound, uploads=message.uploads)
        return accepted(client_msg_id, receipt)

    async def _abort(self, call: Call[SessionPath, Nothing, Nothing, None]) -> AbortResult:
        await existing(self._host, call.path.id)
        return AbortResult(await self._host.abort(call.path.id, call.identity.account))

    async def _approve(self, call: Call[ApprovalPath, Nothing, Nothing, ApprovalDecision]) -> ApprovalResult:
        approval_id, decision = call.path.approval_id, call.body.decision
        if "always" in ((decision,) if isinstance(decision, str) else decision):
            call.require_proof()
        by = UserRef("", call.identity.account)
        await self._host.settle(approval_id, decision, session=call.path.id, by=by)
        return ApprovalResult(approval_id, decision)

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
            agent=self._selection.agent_of(row),
            usage=Totals(row.input_tokens, row.output_tokens, row.cost),
            parent=None if row.parent is None else Lineage(row.parent, row.parent_message or ""),
            pinned=row.pinned_at is not None,
            task=None if row.root is None else TaskInfo(row.root, row.call_id or "", row.agent or ""),
        )


async def existing(host: Host, session_id: str) -> Session:
    """Return a session. Raises NotFoundError for one that holds nothing but a refused message."""
    session = await host.sessions.find(session_id)
    if not session.saved:
        raise NotFoundError(f"no session {session_id!r}")
    return session


def _status(live: Session | None) -> Status | Literal["waiting"]:
    if live is None:
        return "idle"
    if live.asked:
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


def accepted(client_msg_id: str, receipt: Receipt) -> AcceptedMessage:
    """Return the response for a message that is durable."""
    return AcceptedMessage(
        client_msg_id,
        receipt.message_id,
        receipt.answer_id,
        receipt.session,
        receipt.seq,
        receipt.duplicate,
        receipt.refused or UNSET,
    )


def key_of(in_body: str | UnsetType, in_header: str | UnsetType) -> str:
    """Return the id of a message. Raises InvalidRequestError if body and header differ."""
    given = {value for value in (in_body, in_header) if isinstance(value, str)}
    if len(given) > 1:
        raise InvalidRequestError("client_msg_id and Idempotency-Key differ")
    return given.pop() if given else new_id()


async def _logged(session: Session, seq: int, message: Message, *, html: bool) -> LoggedMessage:
    shown = session.rendered(message := message.with_state_of())
    if shown is message:
        return LoggedMessage(seq, message, await _html_of(message) if html else UNSET)
    from gateway.server.pages.blocks import render_html  # the Markdown parser, for pages only

    return LoggedMessage(seq, message, UNSET, shown.text, render_html(shown.text) if html else UNSET)


async def _html_of(message: Message) -> list[tuple[int, str]] | UnsetType:
    from gateway.server.pages.messages import render_message  # the Markdown parser, for pages only

    html: list[tuple[int, str]] = []
    for part in render_message(message):
        if part is None:
            await asyncio.sleep(0)
        else:
            html.append(part)
    return html or UNSET
