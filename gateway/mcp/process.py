"""The process family of a local server, started, confined and ended by the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Protocol, cast

from gateway.confinement.programs import ProcessService, ProgramAccess, RunningProgram
from gateway.contract.errors import PluginError
from gateway.contract.services import TaskService
from gateway.settings import McpServerSettings

_TMP = "/tmp"  # noqa: S108 - a file system of its own in a confined process
_GRACE_SECONDS = 1.0
"""Time for a server to end after its stdin is closed; the specification asks for some."""
_STDERR_BYTES = 65_536
_PATH = "/usr/local/bin:/usr/bin:/bin"


class _Family(Protocol):
    """The processes of a server."""

    @property
    def problem(self) -> str: ...

    @property
    def stderr(self) -> bytearray: ...

    def kill(self, problem: str = "") -> None: ...

    async def wait(self) -> int | None: ...


class LocalProcess:
    """A running server, with the gateway's ends of its pipes."""

    def __init__(self, family: RunningProgram | _Family, stdin: int, stdout: int) -> None:
        self.stdin = os.fdopen(stdin, "wb", 0)
        self.stdout = os.fdopen(stdout, "rb", 0)
        self._family = family

    @property
    def last_words(self) -> str:
        """Why the gateway ended it, or else the last line of its stderr, which often names the reason."""
        lines = self._family.stderr.decode(errors="replace").strip().splitlines()
        return self._family.problem or (lines[-1].strip()[:300] if lines else "")

    def kill(self, problem: str) -> None:
        """End it at once."""
        self._family.kill(problem)

    async def end(self) -> None:
        """Close its pipes, which asks it to end, and end its family."""
        self.stdin.close()
        self.stdout.close()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_SECONDS):
                    await self._family.wait()
        finally:
            self._family.kill()
            await self._family.wait()


@asynccontextmanager
async def running(
    settings: McpServerSettings,
    environ: Mapping[str, str],
    processes: ProcessService | None,
    tasks: TaskService,
) -> AsyncGenerator[LocalProcess]:
    """Run a server for as long as the block. Nothing that it started outlives the block.

    ``environ`` is what it gets besides its own variables. Raises PluginError if it cannot be started.
    """
    variables = {**environ, **{name: value.get_secret_value() for name, value in settings.env.items()}}
    variables.setdefault("PATH", _PATH)
    argv = _found(settings, variables["PATH"])
    their_stdin, stdin = os.pipe()
    stdout, their_stdout = os.pipe()
    try:
        if settings.trust == "full":
            family = await _Unconfined.start(settings, argv, variables, (their_stdin, their_stdout), tasks)
        else:
            family = await _confined(settings, argv, variables, (their_stdin, their_stdout), processes)
    except BaseException:
        os.close(stdin)
        os.close(stdout)
        raise
    finally:
        os.close(their_stdin)
        os.close(their_stdout)
    process = LocalProcess(family, stdin, stdout)
    try:
        yield process
    finally:
        await process.end()


async def _confined(
    settings: McpServerSettings,
    argv: tuple[str, ...],
    variables: Mapping[str, str],
    pipes: tuple[int, int],
    processes: ProcessService | None,
) -> RunningProgram:
    """Start a server under the profile ``program``."""
    access, cwd = await asyncio.to_thread(_access, settings, argv)
    environ = {"HOME": _TMP, "TMPDIR": _TMP, **variables}
    missing = ["there is no launcher"]
    if processes is not None:
        program = await processes.start_program(argv, cwd, environ, access, pipes[1], pipes[0])
        if program is not None:
            return program
        missing = processes.missing_layers()
    raise PluginError(
        f'the kernel cannot confine it: {"; ".join(missing)}; trust = "full" runs it with all rights of the '
        "gateway"
    )


class _Unconfined:
    """A server with all rights of the gateway, in its own process group."""

    def __init__(self, program: asyncio.subprocess.Process) -> None:
        self.problem = ""
        self.stderr = bytearray()
        self._program = program

    @classmethod
    async def start(
        cls,
        settings: McpServerSettings,
        argv: tuple[str, ...],
        variables: Mapping[str, str],
        pipes: tuple[int, int],
        tasks: TaskService,
    ) -> _Unconfined:
        """Start it. Raises PluginError."""
        # A pipe of our own: asyncio's Process.wait() would wait for every program that holds asyncio's pipe.
        stderr, writing = os.pipe()
        try:
            program = await asyncio.create_subprocess_exec(
                *argv,
                stdin=pipes[0],
                stdout=pipes[1],
                stderr=writing,
                env=variables,
                cwd=settings.cwd,
                start_new_session=True,
            )
        except OSError as error:
            os.close(stderr)
            raise PluginError(f"{argv[0]} cannot be started: {error.strerror}") from None
        finally:
            os.close(writing)
        family = cls(program)
        tasks.create_task(family._listen(os.fdopen(stderr, "rb", 0)), name="stderr of an MCP server")
        tasks.create_task(family._follow(), name="end of an MCP server")
        return family

    def kill(self, problem: str = "") -> None:
        """End the group. It keeps its number while a process of it lives."""
        self.problem = self.problem or problem
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._program.pid, signal.SIGKILL)

    async def wait(self) -> int | None:
        """Wait for the end of the program."""
        return await self._program.wait()

    async def _listen(self, pipe: IO[bytes]) -> None:
        stream = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
        try:
            while data := await stream.read(_STDERR_BYTES):
                self.stderr += data
                del self.stderr[:-_STDERR_BYTES]
        finally:
            transport.close()

    async def _follow(self) -> None:
        """End what the program leaves behind, which would keep its pipes open."""
        await self._program.wait()
        self.kill()


def _found(settings: McpServerSettings, path: str) -> tuple[str, ...]:
    """Return the command with the absolute path of its program. Raises PluginError."""
    name = settings.command[0]
    program = os.path.expanduser(name) if "/" in name else shutil.which(name, path=path)  # noqa: PTH111
    if program is None or not program.startswith("/"):
        raise PluginError(f"there is no program {name!r} in PATH; write its absolute path, or install it")
    return (program, *settings.command[1:])


def _access(settings: McpServerSettings, argv: tuple[str, ...]) -> tuple[ProgramAccess, Path]:
    """Return what a server may use, and its working directory."""
    files = settings.capabilities.filesystem
    access = ProgramAccess(
        writable=files.roots if files.write else (),
        readable=(*_own_files(argv), *(files.roots if files.read else ())),
        network=settings.capabilities.network.enabled,
        processes=settings.processes,
        memory_mb=settings.memory_mb,
    )
    return access, settings.cwd or next((root for root in files.roots if root.is_dir()), Path(_TMP))


def _own_files(argv: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files of the program itself: scripts in its command, with the packages beside them.

    Folders are never among them: an argument may name what the server works on.
    """
    for word in argv[:2]:
        script = Path(word)
        if script.is_absolute() and script.is_file():
            for path in (script, script.resolve()):
                packages = [above for above in path.parents if above.name == "node_modules"]
                yield packages[-1] if packages else path


def first_of(error: BaseException) -> BaseException:
    """Return the first error of a group: task groups of the SDK raise even a single error as a group."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
