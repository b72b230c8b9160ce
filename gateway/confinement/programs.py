"""The service with which plugins run confined scripts and programs, as a protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from gateway.confinement import Confinement


class ProgramAccess(Struct, frozen=True):
    """The rights of a confined program besides the system's programs.

    ``memory_mb`` is for all of its processes together; 0 is no limit.
    """

    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()
    network: bool = False
    processes: int = 256
    memory_mb: int = 0


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
