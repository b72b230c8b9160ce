"""The services with which plugins run confined programs, and learn what these may do, as protocols."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import Struct

from gateway.confinement import Confinement


class ProgramAccess(Struct, frozen=True):
    """The rights of a confined program besides the system's programs.

    ``closed`` are folders that it must not reach, also where they are below folders that every program may
    read; what is in them can still be named in ``writable`` and ``readable``. ``programs`` are executables
    that it starts. ``memory_mb`` and ``cpus`` are for all of its processes together, ``cpu_seconds`` for
    each; 0 means no limit.
    """

    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    network: bool = False
    processes: int = 256
    memory_mb: int = 0
    cpu_seconds: int = 0
    cpus: float = 0.0
    closed: tuple[Path, ...] = ()
    programs: tuple[str, ...] = ()


class ProgramPrefix(Struct, frozen=True):
    """The arguments to put before those of a program, and the layers that will confine it."""

    argv: tuple[str, ...]
    layers: tuple[str, ...]


class RunningProgram(Protocol):
    """A confined program. It ends with the gateway, and all that it started ends with it."""

    @property
    def pid(self) -> int:
        """The id of the first process of its family, as the gateway sees it."""
        ...

    @property
    def problem(self) -> str:
        """Why the gateway ended it, if it did."""
        ...

    @property
    def stderr(self) -> bytearray:
        """The end of what it wrote to stderr, if that is not its output."""
        ...

    def terminate(self) -> None:
        """Ask it to end."""
        ...

    def kill(self, problem: str = "") -> None:
        """End it at once."""
        ...

    async def wait(self) -> int | None:
        """Wait for its end, and return its status: 128 and the number of a signal; None if unknown."""
        ...


class ProcessService(Protocol):
    """Processes that the kernel confines, as far as it can."""

    def missing_layers(self) -> list[str]:
        """Return why nothing can be confined here, each reason with its remedy; [] if it is possible."""
        ...

    async def run_script(
        self,
        python: str,
        script: Path,
        arguments: Sequence[str],
        data: bytes,
        limits: Confinement,
        output: bytearray,
    ) -> int | None:
        """Run a script of the gateway on content of others; see ``gateway.confinement.run_confined``."""
        ...

    async def start_program(
        self,
        argv: Sequence[str],
        cwd: Path,
        environ: Mapping[str, str],
        access: ProgramAccess,
        output: int,
        stdin: int | None = None,
    ) -> RunningProgram | None:
        """Start a program with this descriptor as its output; None if it cannot be confined here.

        With the descriptor ``stdin`` its stderr is kept apart. Raises PluginError if the program cannot be
        started.
        """
        ...

    async def program_prefix(
        self, argv: Sequence[str], environ: Mapping[str, str], access: ProgramAccess
    ) -> ProgramPrefix:
        """Return a prefix for a program that outlives the gateway, and that another process starts.

        It confines the program once that is started; this tries it. Without ``access.network`` the program
        has its own network, in which only it listens. Raises PluginError if the kernel cannot do that
        here, with the reason and the remedy, or if the access covers what is closed.
        """
        ...


class NodeService(Protocol):
    """The nodes of a cluster, for programs that outlive the gateway and may run on another machine."""

    async def connect(
        self, protocol: asyncio.Protocol, *, session: str, node: str, host: str, boot_id: str
    ) -> asyncio.Transport:
        """Connect to ``coding-agents/sessions/SESSION/keeper.sock`` in the data directory, on its machine.

        ``node``, ``host`` and ``boot_id`` are those of the gateway that started the program. Raises
        ProcessLookupError with the reason if that machine says that it runs no longer, and another OSError
        while no node there answers.
        """
        ...


Decision = Literal["once", "always", "deny"]


class ProgramAction(Struct, frozen=True, kw_only=True):
    """An action that a program asks about, which a plugin runs for a user.

    ``name`` is that of permission rules, such as ``coding_agents:claude:Bash``; it begins with the plugin's
    name. ``text`` is what the program wants to do, such as a command, and patterns are compared with it.
    ``user`` is the id of a user with its channel (``telegram:123``), or ``owner``; ``address`` and
    ``session`` are those of the user's chat, as plain data.
    """

    name: str
    text: str
    folder: str
    user: str
    address: Mapping[str, Any]
    session: str = ""


class PermissionService(Protocol):
    """Permissions of programs that a plugin runs for users, outside of a turn.

    Raises InvalidRequestError for an action of another plugin, and StoreError.
    """

    async def decide(self, action: ProgramAction) -> Literal["allow", "deny", "ask"]:
        """Return what the rules of the settings, or an earlier "always" of the user there, decide.

        Only a rule that names the action allows it, and a pattern no text that is more than one command of
        a shell. A user who may no longer use the bot is denied.
        """
        ...

    async def record(self, action: ProgramAction, decision: Decision, by: str, key: str) -> None:
        """Store the answer to an action in the audit log, and an "always" as a grant, once for each key.

        The grant covers the same text in the same folder and chat; ``trunkline approvals`` lists it. ``by``
        is ``Answer.by``.
        """
        ...

    def answerers(self, action: ProgramAction) -> tuple[str, ...]:
        """Return the ids of the users who may answer in the chat besides its admins: none for a user of
        another channel.
        """
        ...
