"""The routes of sessions: list, show, spawn, send, stop, resize, output and metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct, field

from gateway.api import ApiCall, ApiConnection, ApiRoute, ApiSocket, Figure
from plugins.coding_agents.api.preflight import PreflightReport
from plugins.coding_agents.errors import (
    CodingAgentError,
    FolderTrustError,
    KeeperLostError,
    NoInputError,
    NotInstalledError,
    NotReadyError,
    OutputGoneError,
    SandboxUnavailableError,
    ServiceUnavailableError,
    SessionLimitError,
    SessionNotFoundError,
    UnknownAgentError,
    WorkdirError,
    WorkspaceNotFoundError,
)
from plugins.coding_agents.records import AskedQuestion, PublicStatus, SessionRecord, Status

if TYPE_CHECKING:
    from plugins.coding_agents.sessions import Sessions

BASE = "/api/coding-agents"
_LONGEST_TEXT = 100_000
_MOST_KEYS = 200
_SPAWN_ERRORS = (
    UnknownAgentError,
    NotInstalledError,
    WorkdirError,
    FolderTrustError,
    WorkspaceNotFoundError,
    SessionLimitError,
    SandboxUnavailableError,
    ServiceUnavailableError,
)
_SEND_ERRORS: tuple[type[CodingAgentError], ...] = (SessionNotFoundError, NotReadyError, KeeperLostError)


class SessionPath(Struct, frozen=True):
    """A session, by its id or its short id."""

    id: Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,80}$", description="Id of the session, or its last part")]


class SessionView(Struct, frozen=True):
    """A session of the requesting user. Times are milliseconds.

    ``public_status`` is running, blocked, completed or error. ``question`` is what its program asks,
    and ``cost_usd`` what it has cost by its own report, null if it reports none.
    """

    id: str
    short_id: str
    agent: str
    status: Status
    public_status: PublicStatus
    workdir: str
    workspace: str
    task: str
    model: str
    created_at: int
    last_activity: int
    pid: int
    end: int
    """The offset behind the output so far."""
    error: str
    exit_status: int | None
    question: AskedQuestion | None
    resumes: str
    cost_usd: float | None


class SessionList(Struct, frozen=True):
    """The sessions of the requesting user, the oldest first."""

    sessions: list[SessionView]


class SpawnBody(Struct, frozen=True):
    """A session to start. ``agentType`` and ``initialTask`` are other names of ``agent`` and ``task``."""

    agent: Annotated[str, Meta(max_length=80)] = ""
    task: Annotated[str, Meta(max_length=_LONGEST_TEXT)] = ""
    workdir: Annotated[str, Meta(max_length=4_000)] = ""
    workspace: Annotated[str, Meta(max_length=200)] = ""
    model: Annotated[str, Meta(max_length=200)] = ""
    agent_type: Annotated[str, Meta(max_length=80)] = field(default="", name="agentType")
    initial_task: Annotated[str, Meta(max_length=_LONGEST_TEXT)] = field(default="", name="initialTask")


class SendBody(Struct, frozen=True):
    """A text, or keys by their names."""

    text: Annotated[str, Meta(max_length=_LONGEST_TEXT)] = ""
    keys: Annotated[list[Annotated[str, Meta(max_length=100)]], Meta(max_length=_MOST_KEYS)] = []


class StopBody(Struct, frozen=True):
    """The end of a session; with ``force`` at once."""

    force: bool = False


class SizeBody(Struct, frozen=True):
    """The size of a terminal."""

    rows: Annotated[int, Meta(ge=1, le=65_535)]
    cols: Annotated[int, Meta(ge=1, le=65_535)]


class OutputQuery(Struct, frozen=True):
    """The offset after which output is asked for."""

    after: Annotated[int, Meta(ge=0, le=2**53)] = 0


class Output(Struct, frozen=True):
    """Output of a terminal: bytes (base64) from an offset, and the offset behind them."""

    after: int
    next: int
    data: bytes


class Metrics(Struct, frozen=True):
    """The figures of ``/metrics``, by name and labels."""

    metrics: list[MetricView]


class MetricView(Struct, frozen=True):
    """One figure."""

    name: str
    labels: Mapping[str, str]
    value: float


class TerminalQuery(Struct, frozen=True):
    """The view that a client has of a terminal: the bytes after an offset, or rows of the rendered screen."""

    view: Literal["bytes", "rows"] = "bytes"
    after: Annotated[int, Meta(ge=0, le=2**53)] = 0


class SessionRoutes:
    """The routes of sessions. ``service`` returns the sessions, ``loaded`` those that exist already."""

    def __init__(
        self,
        service: Callable[[], Awaitable[Sessions]],
        loaded: Callable[[], Sessions | None],
        figures: Callable[[], Sequence[Figure]],
        check: Callable[[], Awaitable[PreflightReport]],
    ) -> None:
        self._check = check
        self._service = service
        self._loaded = loaded
        self._figures = figures

    def routes(self) -> list[ApiRoute | ApiSocket]:
        """Return the routes; the fixed words before ``{id}``."""
        one = f"{BASE}/{{id}}"
        return [
            ApiRoute("GET", BASE, "List the sessions of coding agents.", self._list),
            ApiRoute("POST", BASE, "Start a session of a coding agent.", self._spawn, _SPAWN_ERRORS),
            ApiRoute("GET", f"{BASE}/metrics", "Show the metrics of coding agents.", self._metrics),
            ApiRoute(
                "GET",
                f"{BASE}/preflight",
                "Show which programs are installed, and what confines them.",
                self._preflight,
                (ServiceUnavailableError,),
            ),
            ApiRoute("GET", one, "Show a session.", self._show, (SessionNotFoundError,)),
            ApiRoute(
                "POST", f"{one}/send", "Type a text or keys.", self._send, (*_SEND_ERRORS, NoInputError)
            ),
            ApiRoute("POST", f"{one}/stop", "Stop a session.", self._stop, (SessionNotFoundError,)),
            ApiRoute("POST", f"{one}/resize", "Set the size of the terminal.", self._resize, _SEND_ERRORS),
            ApiRoute(
                "GET",
                f"{one}/output",
                "Read output from an offset.",
                self._output,
                (*_SEND_ERRORS, OutputGoneError),
            ),
            ApiSocket(
                f"{one}/terminal",
                "Follow the terminal of a session, and type in it.",
                self._terminal,
                (SessionNotFoundError, KeeperLostError),
            ),
        ]

    async def _list(self, call: ApiCall[None, None, None]) -> SessionList:
        sessions = self._loaded()
        return SessionList([] if sessions is None else [_view(one) for one in sessions.list(call.user)])

    async def _spawn(self, call: ApiCall[None, None, SpawnBody]) -> SessionView:
        from plugins.coding_agents.sessions import SpawnRequest  # with the first session

        body = call.body
        sessions = await self._service()
        return _view(
            await sessions.spawn(
                SpawnRequest(
                    agent=body.agent or body.agent_type,
                    owner=call.user,
                    task=body.task or body.initial_task,
                    workdir=body.workdir,
                    workspace=body.workspace,
                    model=body.model,
                    key=f"http {call.key}" if call.key else "",
                )
            )
        )

    async def _metrics(self, call: ApiCall[None, None, None]) -> Metrics:
        return Metrics([MetricView(one.name, one.labels, one.value) for one in self._figures()])

    async def _preflight(self, call: ApiCall[None, None, None]) -> PreflightReport:
        return await self._check()

    async def _show(self, call: ApiCall[SessionPath, None, None]) -> SessionView:
        return _view(self._known().get(call.path.id, call.user))

    async def _send(self, call: ApiCall[SessionPath, None, SendBody]) -> SessionView:
        key = f"http {call.key}" if call.key else ""
        sent = self._known().send(call.path.id, call.user, text=call.body.text, keys=call.body.keys, key=key)
        return _view(await sent)

    async def _stop(self, call: ApiCall[SessionPath, None, StopBody]) -> SessionView:
        return _view(await self._known().stop(call.path.id, call.user, force=call.body.force))

    async def _resize(self, call: ApiCall[SessionPath, None, SizeBody]) -> SessionView:
        session = self._known().session(call.path.id, call.user)
        session.resize(call.body.rows, call.body.cols)
        return _view(session.record)

    async def _output(self, call: ApiCall[SessionPath, OutputQuery, None]) -> Output:
        session = self._known().session(call.path.id, call.user)
        data = await session.read_output(call.query.after)
        return Output(call.query.after, call.query.after + len(data), data)

    async def _terminal(self, call: ApiCall[SessionPath, TerminalQuery, None], client: ApiConnection) -> None:
        session = self._known().session(call.path.id, call.user)
        from plugins.coding_agents.terminal import serve_terminal  # with the first session

        await serve_terminal(session, client, view=call.query.view, after=call.query.after)

    def _known(self) -> Sessions:
        """Return the sessions; without any, the one of a request does not exist."""
        sessions = self._loaded()
        if sessions is None:
            raise SessionNotFoundError("there is no such session of yours")
        return sessions


def _view(record: SessionRecord) -> SessionView:
    names = SessionView.__struct_fields__
    own = {name: getattr(record, name) for name in names if name != "end"}
    return SessionView(**own, end=record.offset)
