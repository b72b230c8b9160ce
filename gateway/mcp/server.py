"""One server: started at its first use, started again after its end, and what it was seen to offer."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import structlog
from msgspec import Struct

from gateway.confinement.programs import ProcessService
from gateway.contract.errors import CATCHABLE, PluginError, ToolError, is_cancellation_requested
from gateway.contract.services import TaskService
from gateway.contract.tool import AskUser, ToolOutput
from gateway.mcp.definitions import KnownTools, Listing
from gateway.mcp.process import LocalProcess, first_of, running
from gateway.settings import McpServerSettings
from gateway.settings.secrets import without_passwords

if TYPE_CHECKING:
    from gateway.mcp.requests import Completes
    from gateway.mcp.session import Guard, Session

log = structlog.get_logger("trunkline.mcp")

T = TypeVar("T")
State = Literal["connected", "idle", "disabled", "failed", "needs login", "needs registration"]

_PAUSES = (0.0, 1.0, 5.0, 30.0)
"""Seconds before a server may be started again, after one failure, two, and so on."""
_END_SECONDS = 2.0
"""Longest wait for the reason of an end."""
_LISTING_PAUSE = 5.0
"""Seconds between two lists of one server, however often it says that its list has changed."""


class ServerStatus(Struct, frozen=True):
    """The state of a server, for the operator.

    ``tools`` is the number of tools that are offered, ``waiting`` of those that wait for an approval.
    ``left_out`` says which tools no model gets, ``junk`` is the number of lines that were not messages.
    """

    name: str
    state: State
    problem: str
    source: str
    tools: int
    waiting: int
    left_out: tuple[str, ...]
    junk: int
    protocol: str


class Server:
    """A server of the settings. ``changed`` is called when its tools may be others.

    ``environ`` is what a local server gets besides its own variables. ``complete``
    returns what calls models for it. ``login`` is the file with the login at a remote server.
    """

    def __init__(
        self,
        name: str,
        settings: McpServerSettings,
        known: KnownTools,
        processes: ProcessService | None,
        environ: Mapping[str, str],
        tasks: TaskService | None,
        changed: Callable[[], None] = lambda: None,
        complete: Callable[[], Completes] | None = None,
        *,
        login: Path,
    ) -> None:
        self.name = name
        self.settings = settings
        self.known = known
        self.problem = ""
        """Why it failed last; "" after it was connected."""
        self._processes = processes
        self._environ = environ
        self._tasks = tasks
        self._changed = changed
        self._complete = complete
        self._login = login
        self._left_out: tuple[str, ...] = ()
        self._session: Session | None = None
        self._guard: Guard | None = None
        self._run: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._failures = 0
        self._next_start = 0.0

    @property
    def status(self) -> ServerStatus:
        """The present state."""
        session = self._session
        state: State = "connected" if session else "failed" if self.problem else "idle"
        if state == "failed" and self._guard is not None and self._guard.needs:
            state = "needs login" if self._guard.needs == "login" else "needs registration"
        return ServerStatus(
            name=self.name,
            state=state if self.settings.enabled else "disabled",
            problem=self.problem,
            source=without_passwords(self.settings.url or shlex.join(self.settings.command)),
            tools=sum(1 for _ in self.known.offered()),
            waiting=len(self.known.waiting()),
            left_out=self._left_out,
            junk=session.guard.junk if session else 0,
            protocol=session.protocol if session else "",
        )

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        progress: Callable[[str], None],
        user: tuple[str, AskUser] | None = None,
    ) -> ToolOutput:
        """Call a tool, after a start if it does not run. Raises ToolError.

        ``user`` is the session of the call and how to ask its user.
        """
        session = await self.connect()
        definition = next((each for each in self.known.offered() if each.name == tool), None)
        if definition is None:
            raise ToolError(
                f"the MCP server {self.name!r} has changed the tool {tool!r}; its operator approves it with "
                f"`trunkline mcp approve {self.name}`"
            )
        caller = None if user is None else (await _sdk("requests")).Caller(*user)
        try:
            return await self._answer(session, session.call(definition, arguments, progress, caller))
        except asyncio.CancelledError:
            # The server may hang. Reading its lists shows that, and ends it in that case.
            session.note_change()
            raise

    async def prompt(self, name: str, arguments: Mapping[str, str]) -> str:
        """Return the text of a prompt, after a start if it does not run. Raises ToolError."""
        session = await self.connect()
        seconds = self.settings.timeout / 1000
        try:
            async with asyncio.timeout(seconds):
                return await self._answer(session, session.prompt(name, arguments))
        except TimeoutError:
            raise ToolError(f"the MCP server {self.name!r} did not answer within {seconds:g} s") from None

    async def _answer(self, session: Session, work: Awaitable[T]) -> T:
        """Await what a session does. Raises ToolError, which says whether the server has ended."""
        try:
            answer = await work
        except ToolError as error:
            if session.is_open:
                raise ToolError(f"the MCP server {self.name!r} answered: {error}") from None
            if self._run is not None:
                await asyncio.wait([self._run], timeout=_END_SECONDS)
            raise ToolError(self._ended_text()) from None
        self._failures = 0
        return answer

    async def connect(self) -> Session:
        """Return the session, after a start if there is none. Raises ToolError."""
        if not self.settings.enabled:
            raise ToolError(f"the MCP server {self.name!r} is not enabled")
        if self._tasks is None:
            raise ToolError(f"the MCP server {self.name!r} is not started: the gateway does not run")
        async with self._starting:
            if self._session is not None and self._session.is_open:
                return self._session
            wait = self._next_start - asyncio.get_running_loop().time()
            if wait > 0:
                raise ToolError(f"{self._ended_text()}; it can be started again in {wait:.0f} s")
            if self._run is not None:
                # Its end is near: the session is closed, and the process ended.
                await asyncio.wait([self._run])
            ready: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
            self._run = self._tasks.create_task(
                self._keep(ready, self._tasks), name=f"MCP server {self.name}"
            )
            self._run.add_done_callback(lambda _: ready.cancel())
            # A caller that gives up leaves the start to the next one.
            return await asyncio.shield(ready)

    def stop(self) -> None:
        """End the server permanently."""
        self.settings = self.settings.model_copy(update={"enabled": False})
        if self._run is not None:
            self._run.cancel()

    def forgive(self) -> None:
        """Forget the failures, so that the next call starts the server at once."""
        self._failures, self._next_start, self.problem = 0, 0.0, ""

    def _ended_text(self) -> str:
        return f"the MCP server {self.name!r} failed: {self.problem or 'it ended'}"

    async def _keep(self, ready: asyncio.Future[Session], tasks: TaskService) -> None:
        """Run the server until it ends. ``ready`` gets its session, or the ToolError of the start."""
        try:
            async with self._running(tasks) as session:
                if not ready.done():
                    ready.set_result(session)
                await self._follow(session, tasks)
        except CATCHABLE as raised:
            error = first_of(raised)
            if is_cancellation_requested(error):
                raise
            problem = self._guard.problem if self._guard is not None else ""
            self._fail(problem or str(error) or type(error).__name__)
            if not problem and not isinstance(error, PluginError | ToolError):
                log.exception("the session with an MCP server failed", server=self.name)
        finally:
            self._session = None
            if not ready.done():
                ready.set_exception(ToolError(self._ended_text()))
                ready.exception()  # the caller may be gone

    @asynccontextmanager
    async def _running(self, tasks: TaskService) -> AsyncGenerator[Session]:
        """Start the server, connect and take its list of tools. Raises PluginError or ToolError.

        Also raises ToolError after the block, with the reason of the session's end.
        """
        seconds = self.settings.timeout / 1000
        process: LocalProcess | None = None
        sdk = await _sdk("session")
        requests = sdk.Requests(self.name, self.settings, self._complete)
        session: Session = sdk.Session(self.name, requests)
        self._guard = session.guard
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(seconds):
                    if self.settings.url is None:
                        process = await stack.enter_async_context(
                            running(self.settings, self._environ, self._processes, tasks)
                        )
                        await stack.enter_async_context(session.over(sdk.pipes(process, session)))
                    else:
                        session = await self._reach(stack, session)
                    self._session = session
                    await self._take(await session.offers())
            except TimeoutError:
                raise ToolError(f"it did not answer within {seconds:g} s{_because(process)}") from None
            except ToolError as error:
                raise ToolError(session.guard.problem or f"{error}{_because(process)}") from None
            self.problem = ""
            try:
                yield session
            finally:
                self._session = None
            raise ToolError(session.guard.problem or f"it ended{_because(process)}")

    async def _reach(self, stack: contextlib.AsyncExitStack, session: Session) -> Session:
        """Connect to a remote server by streamable HTTP, or by SSE if it does not know that."""
        remote, login = await _sdk("remote"), (self.name, self._login)
        try:
            await stack.enter_async_context(
                session.over(remote.streamable_http(self.settings, session, *login))
            )
        except ToolError as error:
            if session.guard.problem:
                raise
            again: Session = type(session)(self.name, session.requests)
            self._guard = again.guard
            try:
                await stack.enter_async_context(again.over(remote.sse(self.settings, again, *login)))
            except ToolError:
                raise ToolError(again.guard.problem or str(error)) from None
            return again
        return session

    async def _follow(self, session: Session, tasks: TaskService) -> None:
        """Take new lists of tools until the session ends."""
        listening = tasks.create_task(session.listen(), name=f"changes of MCP server {self.name}")
        try:
            while True:
                await session.wake.wait()
                session.wake.clear()
                if not session.is_open:
                    return
                if session.has_changed:
                    session.has_changed = False
                    await self._take(await self._listing(session))
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_LISTING_PAUSE):
                            while session.is_open:
                                await session.wake.wait()
                                session.wake.clear()
                    session.wake.set()
        finally:
            listening.cancel()

    async def _listing(self, session: Session) -> Listing:
        """Return the lists of a running server. Raises ToolError if it hangs."""
        seconds = 2 * self.settings.timeout / 1000  # as for a call, which one-threaded servers finish first
        try:
            async with asyncio.timeout(seconds):
                return await session.offers()
        except TimeoutError:
            raise ToolError(f"it did not answer within {seconds:g} s") from None

    async def _take(self, listing: Listing) -> None:
        waiting = await asyncio.to_thread(self.known.update, listing)
        if waiting:
            log.warning(
                "an MCP server has new or changed tools, which are not offered until they are approved",
                server=self.name,
                tools=waiting[:10],
                approve=f"trunkline mcp approve {self.name}",
            )
        if listing.left_out and listing.left_out != self._left_out:
            log.warning("tools of an MCP server are left out", server=self.name, tools=listing.left_out[:10])
        self._left_out = listing.left_out
        self._changed()

    def _fail(self, problem: str) -> None:
        self.problem = without_passwords(problem)
        pause = _PAUSES[min(self._failures, len(_PAUSES) - 1)]
        self._failures += 1
        self._next_start = asyncio.get_running_loop().time() + pause
        log.warning("an MCP server failed", server=self.name, reason=self.problem, pause=pause)


async def _sdk(module: str) -> Any:
    """Import a module that uses the SDK. Raises PluginError if the extra is not installed."""
    try:
        return await asyncio.to_thread(import_module, f"gateway.mcp.{module}")
    except ImportError as error:
        raise PluginError(
            f"MCP servers need the extra mcp ({error}); run pip install 'trunkline[mcp]'"
        ) from None


def _because(process: LocalProcess | None) -> str:
    words = process.last_words if process is not None else ""
    return f": {words}" if words else ""
