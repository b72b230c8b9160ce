"""Commands on the gateway's machine: the tool ``shell``.

In: ``[plugins.shell]`` with ``shell = true`` and ``roots``, and argument vectors of the model, each approved
by a user or allowed by a rule. Out: the output of the commands, while they run and as their result. The
kernel confines commands to the roots, without a network, where it can; elsewhere, or with ``confined =
false``, they have all rights of the gateway. No command gets the gateway's environment, and none outlives its
call. The plugin loader imports it.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import shlex
import shutil
import signal
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import structlog
from msgspec import Struct
from pydantic import BaseModel, Field, field_validator

from gateway import (
    DisplayHints,
    Plugin,
    PluginContext,
    PluginError,
    SettingsError,
    Tool,
    ToolContext,
    ToolError,
    ToolOutput,
    tool_from,
)
from gateway.api import ProcessService, ProgramAccess, ResultMetadata, RunningProgram

log = structlog.get_logger("trunkline.shell")

MOST_SECONDS = 600
"""Longest time limit of a command, in seconds."""
KEPT_BYTES = 200_000
"""Output that is kept from the beginning, and from the end; what is between is dropped."""
GRACE_SECONDS = 1.0
"""Time between SIGTERM and SIGKILL for a command that exceeds its limit."""

_MOST_CHARACTERS = 32_000
_CHUNK = 65_536
_ROUNDS = 20
_SIGNAL_STATUS = 128
_MARK = "TRUNKLINE_SHELL"
_KEPT = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER")
_SET: Mapping[str, str] = {
    # No colours, pagers, editors and questions: there is no terminal.
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    # A repository's own settings must not start a program when git only reads it.
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "core.fsmonitor",
    "GIT_CONFIG_VALUE_0": "false",
    "GIT_CONFIG_KEY_1": "protocol.ext.allow",
    "GIT_CONFIG_VALUE_1": "never",
}
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)


class ShellSettings(BaseModel):
    """The settings of the plugin."""

    shell: bool = Field(
        default=False,
        description="Offer the tool, which runs commands on this machine; default false",
    )
    roots: tuple[Path, ...] = Field(
        default=(), description="Folders that commands may run in; the first one is the default"
    )
    seconds: int = Field(
        default=120, ge=1, le=MOST_SECONDS, description="Time limit of a command, if the model does not say"
    )
    confined: bool = Field(
        default=True,
        description="Let the kernel confine commands to the roots, the programs and a /tmp of their own, "
        "where it can; false gives them all rights of the gateway; default true",
    )
    network: bool = Field(default=False, description="Give confined commands a network; default false")
    readable: tuple[Path, ...] = Field(
        default=(), description="Further folders and files that confined commands may read"
    )
    processes: int = Field(
        default=256, ge=1, le=10_000, description="Most processes of a confined command at once; default 256"
    )
    memory_mb: int = Field(
        default=0,
        ge=0,
        description="Most memory of a confined command in MB; default 0, which means no limit",
    )
    environment: dict[str, str] = Field(default={}, description="Further variables of all commands, by name")

    @field_validator("roots")
    @classmethod
    def _folders(cls, roots: tuple[Path, ...]) -> tuple[Path, ...]:
        for root in roots:
            if not root.is_absolute() or not root.is_dir():
                raise ValueError(f"has {str(root)!r}, which is not the absolute path of a folder")
        return tuple(root.resolve() for root in roots)


class Planned(Struct, frozen=True):
    """A command as it will run: the program's absolute path, its arguments, and the folder."""

    program: str
    arguments: tuple[str, ...]
    folder: Path


class Shell(Plugin):
    """The tool ``shell``, if the settings switch it on."""

    name = "shell"
    settings_model = ShellSettings
    environ = _KEPT

    def __init__(self) -> None:
        self._settings = ShellSettings()
        self._environment: dict[str, str] = {}
        self._processes: ProcessService | None = None
        self._tool = tool_from(
            self.shell,
            display=DisplayHints(verb="running a command", fields={"command": "argv", "folder": "cwd"}),
            match_key=self._match_key,
            match_kind="command",
            timeout_ms=(MOST_SECONDS + 60) * 1000,
        )

    async def activate(self, ctx: PluginContext) -> None:
        """Read the settings, and say in the log which rights the tool has."""
        settings = self._settings = ctx.options(ShellSettings)
        self._processes = None
        if not settings.shell:
            log.info("the tool shell is off; set plugins.shell.shell = true to offer it")
            return
        if not settings.roots:
            raise SettingsError("plugins.shell.roots is empty: name the folders that commands may run in")
        own = await asyncio.to_thread(Path(ctx.cwd).resolve)
        if own in settings.roots:
            raise SettingsError(
                f"plugins.shell.roots has {str(own)!r}, the data directory of the gateway; use a folder in it"
            )
        kept = {name: value for name, value in ctx.environ.items() if name in _KEPT}
        self._environment = {**kept, **_SET, **settings.environment}
        self._environment["PATH"] = self._path(self._environment.get("PATH", os.defpath))
        missing = ["plugins.shell.confined is false"] if not settings.confined else []
        if ctx.processes is not None and settings.confined:
            missing = await asyncio.to_thread(ctx.processes.missing_layers)
            self._processes = ctx.processes if not missing else None
        roots = [str(root) for root in settings.roots]
        if self._processes is not None:
            # Its own /tmp is the only place besides the roots that a command can write to.
            self._environment |= {"HOME": "/tmp", "TMPDIR": "/tmp", **settings.environment}  # noqa: S108
            log.info("the tool shell is on: the kernel confines its commands", roots=roots)
            return
        log.warning(
            "the tool shell is on: commands run with all rights of the gateway, without a sandbox",
            roots=roots,
            reason="; ".join(missing),
        )

    def tools(self) -> Sequence[Tool]:
        """Return the tool if it is switched on."""
        return (self._tool,) if self._settings.shell else ()

    async def shell(
        self,
        argv: Annotated[
            list[str],
            Field(
                min_length=1,
                max_length=1000,
                description="Program and arguments, not interpreted by a shell; for pipes use bash -c",
            ),
        ],
        context: ToolContext,
        cwd: Annotated[str, Field(description="Folder to run in; default: the first root")] = "",
        timeout: Annotated[  # noqa: ASYNC109 - the model's name for the time limit, in seconds
            int | None, Field(ge=1, le=MOST_SECONDS, description="Time limit in seconds")
        ] = None,
    ) -> ToolOutput:
        """Run a command and return its output. Nothing that it starts outlives it."""
        planned = await asyncio.to_thread(self._plan, argv, cwd)
        async with context.watching(self._settings.roots):
            return await self._run(planned, timeout or self._settings.seconds, context)

    async def _run(self, planned: Planned, seconds: int, context: ToolContext) -> ToolOutput:
        mark = uuid.uuid4().hex
        # A pipe of our own: asyncio's Process.wait() would wait for every program that holds asyncio's pipe.
        reading, writing = os.pipe()
        try:
            process = await self._start(planned, mark, writing)
        except (OSError, PluginError) as error:
            os.close(reading)
            reason = error.strerror or error if isinstance(error, OSError) else error
            raise ToolError(f"{planned.program} cannot be started: {reason}") from None
        finally:
            os.close(writing)
        output = _Output(context)
        in_time = False
        try:
            await output.open(reading)
            in_time = await _follow(process, output, seconds)
        finally:
            await _end(process, mark, output)
        if not in_time:
            return ToolOutput(f"{output.text()}\n[stopped after {seconds} s]".lstrip(), is_error=True)
        if isinstance(process, _Confined) and process.problem:
            return ToolOutput(f"{output.text()}\n[stopped: {process.problem}]".lstrip(), is_error=True)
        code = process.returncode
        ended = "" if code == 0 else f"\n[exit status {code}]"
        text = f"{output.text()}{ended}".lstrip("\n") or "[no output]"
        return ToolOutput(text, is_error=code != 0, metadata=ResultMetadata(exit_code=code))

    async def _start(
        self, planned: Planned, mark: str, output: int
    ) -> asyncio.subprocess.Process | _Confined:
        """Start a command, confined if that is possible. Raises OSError or PluginError."""
        environment = {**self._environment, _MARK: mark}
        words = (planned.program, *planned.arguments)
        if self._processes is not None:
            settings = self._settings
            access = ProgramAccess(
                settings.roots, settings.readable, settings.network, settings.processes, settings.memory_mb
            )
            program = await self._processes.start_program(words, planned.folder, environment, access, output)
            if program is not None:
                return _Confined(program)
        return await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=planned.folder,
            start_new_session=True,
        )

    def _match_key(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the command as permissions compare it; None if it cannot run."""
        argv, cwd = arguments.get("argv"), arguments.get("cwd", "")
        if not isinstance(argv, list) or not isinstance(cwd, str):
            return None
        words = cast("list[object]", argv)
        if not all(isinstance(word, str) for word in words):
            return None
        try:
            planned = self._plan(cast("list[str]", words), cwd)
        except ToolError:
            return None
        command = shlex.join((planned.program, *planned.arguments))
        at_root = planned.folder == self._settings.roots[0]
        return command if at_root else f"cd {shlex.quote(str(planned.folder))} && {command}"

    def _plan(self, argv: Sequence[str], cwd: str) -> Planned:
        """Find the folder and the program of a command. Raises ToolError."""
        if not argv or not argv[0] or sum(map(len, argv)) > _MOST_CHARACTERS:
            raise ToolError(f"a command has a program, and {_MOST_CHARACTERS} characters at most")
        if any("\0" in word for word in (*argv, cwd)):
            raise ToolError("a command cannot contain a NUL character")
        folder = self._folder(cwd)
        name = argv[0]
        if "/" in name:
            program = os.path.normpath(folder / name)
        else:
            found = shutil.which(name, path=self._environment["PATH"])
            if found is None:
                raise ToolError(f"there is no program {name!r}; write its path if it is in no folder of PATH")
            program = found
        return Planned(program, tuple(argv[1:]), folder)

    def _folder(self, cwd: str) -> Path:
        """Return the folder to run in, with all links resolved. Raises ToolError outside of the roots."""
        roots = self._settings.roots
        folder = (roots[0] / cwd).resolve()
        if not any(folder.is_relative_to(root) for root in roots):
            raise ToolError(f"{cwd!r} is outside of the roots: {', '.join(map(str, roots))}")
        if not folder.is_dir():
            raise ToolError(f"{cwd!r} is not a folder")
        return folder

    def _path(self, folders: str) -> str:
        """Return PATH without relative folders and without those in the roots, which tools can write to."""
        return os.pathsep.join(
            folder
            for folder in folders.split(os.pathsep)
            if folder.startswith("/")
            and not any(Path(folder).resolve().is_relative_to(root) for root in self._settings.roots)
        )


class _Confined:
    """A confined command, as far as it resembles a process of asyncio."""

    def __init__(self, program: RunningProgram) -> None:
        self._program = program
        self.pid = program.pid
        self.returncode: int | None = None

    @property
    def problem(self) -> str:
        """Why the gateway ended it, if it did."""
        return self._program.problem

    def send(self, number: signal.Signals) -> None:
        """Ask it to end, or end it and all that it started."""
        if number == signal.SIGTERM:
            self._program.terminate()
        else:
            self._program.kill()

    async def wait(self) -> int:
        """Wait for its end. The status is negative for a signal, as that of other processes."""
        status = await self._program.wait()
        if status is None:
            status = -signal.SIGKILL
        self.returncode = _SIGNAL_STATUS - status if status > _SIGNAL_STATUS else status
        return self.returncode


class _Output:
    """The output of a command: shown while it runs, its beginning and its end kept for the result."""

    def __init__(self, context: ToolContext) -> None:
        self._show = context.progress
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0
        self._stream = asyncio.StreamReader()
        self._transport: asyncio.ReadTransport | None = None

    def add(self, data: bytes) -> None:
        """Add and show output."""
        self._show(_clean(self._decode(data)))
        room = max(KEPT_BYTES - len(self._head), 0)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * KEPT_BYTES:
            self._dropped += len(self._tail) - KEPT_BYTES
            del self._tail[:-KEPT_BYTES]

    async def open(self, descriptor: int) -> None:
        """Read from this end of a pipe from now on; ``close`` closes it."""
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(self._stream)
        self._transport, _ = await loop.connect_read_pipe(lambda: protocol, os.fdopen(descriptor, "rb", 0))

    async def read(self) -> None:
        """Add output until the end of the pipe."""
        while data := await self._stream.read(_CHUNK):
            self.add(data)

    async def close(self) -> None:
        """Add what is left in the pipe of a command that has ended, and close the pipe."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GRACE_SECONDS):
                    await self.read()
        finally:
            if self._transport is not None:
                self._transport.close()

    def text(self) -> str:
        """Return the output without control characters."""
        if not self._dropped:
            return _clean((self._head + self._tail).decode(errors="replace")).rstrip()
        head, tail = (_clean(part.decode(errors="replace")) for part in (self._head, self._tail))
        return f"{head}\n[{self._dropped} bytes left out]\n{tail}".rstrip()


async def _follow(process: asyncio.subprocess.Process | _Confined, output: _Output, seconds: float) -> bool:
    """Add the output of a command until its program ends. Return False if that takes too long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(output.read())
            await process.wait()
            # A program in the background may keep the pipe open; the rest is read after its end.
            reading.cancel()
        return True
    return False


async def _end(process: asyncio.subprocess.Process | _Confined, mark: str, output: _Output) -> None:
    """End the command and everything that it started: SIGTERM, then SIGKILL for its group and its mark."""
    try:
        if process.returncode is None:
            _signal(process, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GRACE_SECONDS):
                    await process.wait()
    finally:
        # The group keeps its number as long as one process is in it.
        _signal(process, signal.SIGKILL)
        await asyncio.to_thread(_kill_rest, process.pid, mark)
        await process.wait()
        await output.close()


def _signal(process: asyncio.subprocess.Process | _Confined, number: signal.Signals) -> None:
    if isinstance(process, _Confined):
        process.send(number)
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _kill_rest(session: int, mark: str) -> None:
    """Kill what has left the process group: every process of the session, or with the mark of the command.

    Repeated until none is found, because a process may start another one meanwhile.
    """
    entry = f"{_MARK}={mark}".encode()
    for _ in range(_ROUNDS):
        found = [folder for folder in Path("/proc").glob("[0-9]*") if _belongs(folder, session, entry)]
        for folder in found:
            with contextlib.suppress(OSError):
                os.kill(int(folder.name), signal.SIGKILL)
        if not found:
            return


def _belongs(folder: Path, session: int, entry: bytes) -> bool:
    try:
        # After the name, which may hold anything: state, parent, group, session.
        state, _, _, of = (folder / "stat").read_bytes().rpartition(b")")[2].split()[:4]
        return state != b"Z" and (
            int(of) == session or entry in (folder / "environ").read_bytes().split(b"\0")
        )
    except (OSError, ValueError):
        return False


def _clean(text: str) -> str:
    """Return text without escape sequences and control characters, which terminals and logs obey."""
    return _ESCAPES.sub("", text.replace("\r\n", "\n"))


plugin = Shell()
