"""The broker of one confined plugin: answers the calls of its process, each through the gate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import structlog
from msgspec import Struct

from gateway.contract.errors import InvalidRequestError
from gateway.contract.services import EventService, NoticeLevel, SessionService
from gateway.contract.tool import Tool
from gateway.extensions.admission.manifest import Admitted
from gateway.extensions.broker.conversations import (
    CompleteCall,
    Conversations,
    MessagesCall,
    MetadataCall,
    SendCall,
)
from gateway.extensions.broker.files import Files, PathCall, WriteCall
from gateway.extensions.broker.gate import Gate, Use
from gateway.extensions.broker.network import Http, HttpCall
from gateway.extensions.broker.programs import (
    DockerCall,
    ExecCall,
    ProgramResult,
    Programs,
    RunsPrograms,
    ToolRun,
)
from gateway.extensions.broker.services import CompletionService, SendService, SizedTable
from gateway.extensions.broker.values import KeyCall, ListCall, SecretCall, Secrets, SetCall, Values
from gateway.extensions.deadlines import Deadline, gathering
from gateway.fetching import Network
from gateway.settings.layers.own_files import OwnFiles

log = structlog.get_logger("trunkline.plugins")

_LONGEST_LINE = 8_192


class BrokerServices(Struct, frozen=True, kw_only=True):
    """The services of the gateway that the broker of a plugin uses.

    ``workspace`` is the gateway's working directory, ``own`` returns its own files. ``private`` are
    the networks that requests may reach although they are not public. ``secret`` returns a secret of the
    plugin by name, ``facts`` those about a session that are not its text.
    """

    workspace: Path
    own: Callable[[], OwnFiles] = OwnFiles
    private: Sequence[Network]
    events: EventService
    sessions: SessionService
    facts: Callable[[str], Awaitable[Mapping[str, Any]]]
    send: SendService
    models: CompletionService
    table: SizedTable
    run: RunsPrograms
    secret: Callable[[str], str | None]
    tools: Callable[[], Sequence[Tool]]
    notify: Callable[[str, NoticeLevel], None]


class Notice(Struct, frozen=True, forbid_unknown_fields=True):
    """A notice for the operator, or a line of the log."""

    message: str
    level: NoticeLevel = "info"
    session: str = ""


class ToolEntry(Struct, frozen=True):
    """A tool of the gateway, as plugins see it."""

    name: str
    description: str
    schema: Mapping[str, Any]


Handler = Callable[[Any], Awaitable[Any]]


class Broker:
    """Answers the calls of one plugin's process. An unknown or malformed call is an InvalidRequestError."""

    def __init__(self, admitted: Admitted, gate: Gate, services: BrokerServices) -> None:
        manifest = admitted.manifest
        self._name = manifest.name
        self._gate = gate
        gate.paused = self._paused
        self._services = services
        self._open: dict[str, list[list[Deadline]]] = {}
        """The clocks of the calls that the gateway makes, by session."""
        needs = manifest.capabilities
        self._grants = tuple(needs.grants())
        own, events = services.own, services.events
        files = Files(needs.filesystem, services.workspace, own, gate, events, manifest.name)
        self._programs = programs = Programs(needs.exec, gate, services.run)
        self._docker = needs.docker
        values = Values(needs.storage_mb, gate, services.table)
        chats = Conversations(
            needs, gate, self.works_in, services.sessions, services.send, services.models, services.facts
        )
        self._methods: Mapping[str, tuple[type[Struct], Handler]] = {
            "fs.open": (PathCall, files.open),
            "fs.list": (PathCall, files.list),
            "fs.write": (WriteCall, files.write),
            "fs.delete": (PathCall, files.delete),
            "http.request": (HttpCall, Http(needs.network, gate, services.private).request),
            "exec": (ExecCall, programs.exec),
            "docker.run": (DockerCall, partial(programs.docker, needs.docker)),
            "kv.get": (KeyCall, values.get),
            "kv.set": (SetCall, values.set),
            "kv.delete": (KeyCall, values.delete),
            "kv.list": (ListCall, values.list),
            "secrets.get": (SecretCall, Secrets(manifest.secrets, self._name, gate, services.secret).get),
            "send": (SendCall, chats.send),
            "session.messages": (MessagesCall, chats.messages),
            "session.metadata": (MetadataCall, chats.metadata),
            "llm.complete": (CompleteCall, partial(chats.complete, self._name)),
            "notify": (Notice, self._notify),
            "log": (Notice, self._log),
            "tools.list": (Struct, self._tools),
        }

    @contextmanager
    def working_in(self, session: str) -> Generator[None]:
        """Let the plugin ask, read and call models in a session during a call that the gateway makes."""
        with gathering() as clocks:
            calls = self._open.setdefault(session, [])
            calls.append(clocks)
            try:
                yield
            finally:
                # By identity: two calls may have equal lists.
                calls[:] = [other for other in calls if other is not clocks]
                if not calls and self._open.get(session) is calls:
                    del self._open[session]

    @contextmanager
    def _paused(self, session: str) -> Generator[None]:
        """Stop the clocks of the session's calls while an admin is asked."""
        clocks = [clock for calls in self._open.get(session, ()) for clock in calls]
        for clock in clocks:
            clock.pause()
        try:
            yield
        finally:
            for clock in clocks:
                clock.resume()

    def works_in(self, session: str) -> bool:
        """Return whether the gateway waits for the plugin in a session."""
        return bool(session) and session in self._open

    async def check(self, capability: str, value: str, *arguments: object) -> None:
        """Check and record that the gateway lets the plugin work on its own. Raises CapabilityDenied."""
        grant = next((each for each in self._grants if each.partition(":")[0] == capability), None)
        action, missing = f"use its {capability}", f"capabilities.{capability}: true"
        await self._gate.check(Use(capability, value, grant, action, missing, arguments=(value, *arguments)))

    async def run_tool(self, run: ToolRun) -> ProgramResult:
        """Run a tool of the plugin's folder. The plugin's process cannot call this."""
        with self.working_in(run.session):
            return await self._programs.tool(self._docker, run)

    async def serve(self, method: str, params: Any) -> Any:
        """Answer a call. Raises TrunklineError, which the process gets as its error."""
        found = self._methods.get(method)
        if found is None or not isinstance(params, dict):
            raise InvalidRequestError(f"there is no call {method[:100]!r} with these parameters")
        kind, handler = found
        given = {name: value for name, value in cast("dict[str, Any]", params).items() if name != "call_id"}
        if method not in ("send", "session.messages") and not self.works_in(str(given.get("session", ""))):
            # Questions are asked in the chat of the turn that the plugin works for, and in no other one.
            given["session"] = ""
        if kind is Struct:
            return await handler(None)
        try:
            call = msgspec.convert(given, kind)
        except msgspec.ValidationError as error:
            raise InvalidRequestError(f"{method}: {error}") from None
        return await handler(call)

    async def _notify(self, notice: Notice) -> None:
        self._services.notify(notice.message[:_LONGEST_LINE], notice.level)

    async def _log(self, line: Notice) -> None:
        write = {"warning": log.warning, "error": log.error}.get(line.level, log.info)
        write("a plugin writes", plugin=self._name, message=line.message[:_LONGEST_LINE])

    async def _tools(self, _call: None) -> list[ToolEntry]:
        definitions = [tool.definition for tool in self._services.tools()]
        return [ToolEntry(one.name, one.description, one.parameters) for one in definitions]
