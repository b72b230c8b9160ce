"""Programs of confined plugins: argument vectors, never text for a shell, in their own sandbox."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from gateway.contract.errors import InvalidRequestError, ToolError
from gateway.extensions.admission.capabilities import ExecAccess
from gateway.extensions.broker.gate import Gate, Use
from gateway.patterns import granted_pattern

_PATH = "/usr/local/bin:/usr/bin:/bin"
"""The folders in which a program is found by its name: never those that a tool could write to."""
_MOST_SECONDS = 600.0
_MOST_INPUT = 700_000
_NO_CONTAINER = 125
"""The status of Docker itself, when it started no container."""
_MOST_OUTPUT = 300_000
"""Characters of each stream that a plugin gets."""
_DOCKER = (
    *("run", "--rm", "--interactive", "--network=none", "--read-only", "--cap-drop=ALL"),
    *("--security-opt=no-new-privileges", "--pids-limit=64", "--memory=512m", "--cpus=1"),
)


class ExecCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A command: its argument vector, the text for its standard input, and a limit in seconds."""

    argv: tuple[str, ...]
    input: str = ""
    timeout: float = 30.0
    session: str = ""


class DockerCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A command in a container that is made for it."""

    image: str
    argv: tuple[str, ...] = ()
    input: str = ""
    timeout: float = 60.0
    session: str = ""


class ToolRun(Struct, frozen=True):
    """A run of a tool of the plugin's folder, with its arguments as JSON in ``input``.

    ``script`` is the file with its code, relative to that folder; "" for a command. With ``image``
    it runs in a container, where that is possible.
    """

    argv: tuple[str, ...]
    input: str
    timeout: float
    session: str
    image: str = ""
    script: str = ""


class ProgramResult(Struct, frozen=True):
    """The end of a program."""

    exit_code: int
    stdout: str
    stderr: str


class RunsPrograms(Protocol):
    """Runs a program with an empty environment, and ends it after a number of seconds.

    ``confined``: without network and with the workspace as its only folder. ``session`` is the one that its
    events belong to. Raises ToolError.
    """

    async def __call__(
        self, argv: Sequence[str], data: bytes, seconds: float, *, confined: bool, session: str
    ) -> tuple[int, bytes, bytes]: ...


class Programs:
    """Programs of one plugin.

    The path of each program is fixed when the plugin is admitted: what is put before it in PATH later, or
    into a folder that tools may write, is not run.
    """

    def __init__(self, access: ExecAccess, gate: Gate, run: RunsPrograms) -> None:
        self._access = access
        self._gate = gate
        self._run = run
        self._paths: Mapping[str, str | None] = {
            name: _path_of(name) for pattern in access.allowlist if (name := _first_word(pattern))
        }

    async def exec(self, call: ExecCall) -> ProgramResult:
        """Run a command that a pattern of the manifest covers."""
        _check(call.argv, call.input, call.timeout)
        if call.argv[0] in self._paths and self._paths[call.argv[0]] is None:
            raise ToolError(
                f"exec: there was no program {call.argv[0]!r} in {_PATH} at the start; install it there, or "
                "name its absolute path"
            )
        pattern, program = self._covering(call.argv)
        shown = shlex.join(call.argv)
        use = Use(
            "exec",
            shown,
            None if pattern is None else f"exec:{pattern}",
            f"run {shown}",
            f'capabilities.exec.allowlist: ["{shown[:200]}"]; shells, interpreters and programs that start '
            "others need the exact command",
            call.session,
            call.argv,
        )
        await self._gate.check(use)
        return await self._result((program, *call.argv[1:]), call, confined=True)

    async def docker(self, declared: bool, call: DockerCall) -> ProgramResult:
        """Run a command in a container without network, capabilities and writable folders."""
        _check((call.image, *call.argv), call.input, call.timeout)
        if call.image.startswith("-"):
            raise InvalidRequestError(f"docker.run: {call.image!r} is not the name of an image")
        grant = "docker" if declared else None
        action = f"run a container of {call.image}"
        await self._gate.check(
            Use("docker", call.image, grant, action, "capabilities.docker: true", call.session, call.argv)
        )
        docker = shutil.which("docker", path=_PATH)
        if docker is None:
            raise ToolError("docker.run: the program docker is not installed on the gateway's machine")
        argv = (docker, *_DOCKER, call.image, *call.argv)
        return await self._result(argv, call, confined=False)

    async def tool(self, docker: bool, run: ToolRun) -> ProgramResult:
        """Run a tool of the plugin's folder: in a container if it names an image, else confined.

        A container that could not be started has run nothing, so that the tool is run confined then.
        """
        _check(run.argv, run.input, run.timeout)
        covered = self._access.enabled and covers_command(self._access.allowlist, run.script, run.argv)
        if run.image and (not covered or shutil.which("docker", path=_PATH)):
            call = DockerCall(run.image, run.argv, run.input, run.timeout, run.session)
            done = await self.docker(docker, call)
            if done.exit_code != _NO_CONTAINER or not covered:
                return done
        if not run.script:
            return await self.exec(ExecCall(run.argv, run.input, run.timeout, run.session))
        use = Use(
            "exec",
            run.script,
            f"exec:{run.script}" if covered else None,
            f"run its script {run.script}",
            f'capabilities.exec.allowlist: ["{run.script}"]',
            run.session,
            (run.argv, run.input),
        )
        await self._gate.check(use)
        program = _path_of(run.argv[0])
        if program is None:
            raise ToolError(f"{run.script}: there is no program {run.argv[0]!r} in {_PATH}; install it there")
        return await self._result((program, *run.argv[1:]), run, confined=True)

    def _covering(self, argv: Sequence[str]) -> tuple[str | None, str]:
        """Return the pattern that covers a command, and the path of its program."""
        for pattern in self._access.allowlist if self._access.enabled else ():
            path = self._paths.get(_first_word(pattern))
            if path is None or argv[0] not in (path, _first_word(pattern)):
                continue
            if granted_pattern(pattern, path, argv[1:]):
                return pattern, path
        return None, argv[0]

    async def _result(
        self, argv: Sequence[str], call: ExecCall | DockerCall | ToolRun, *, confined: bool
    ) -> ProgramResult:
        code, stdout, stderr = await self._run(
            argv, call.input.encode(), call.timeout, confined=confined, session=call.session
        )
        return ProgramResult(code, *(_cut(data.decode(errors="replace")) for data in (stdout, stderr)))


def covers_command(patterns: Sequence[str], script: str, argv: Sequence[str]) -> bool:
    """Return whether patterns of a manifest declare a tool: its script by name, or its command."""
    if script:
        return script in patterns
    return any(
        _first_word(pattern) == argv[0] and granted_pattern(pattern, argv[0], argv[1:])
        for pattern in patterns
    )


def _check(argv: Sequence[str], text: str, seconds: float) -> None:
    if not argv or not argv[0] or any("\0" in word for word in argv):
        raise InvalidRequestError("a command has a program, and no NUL character")
    if len(text) > _MOST_INPUT or not 0 < seconds <= _MOST_SECONDS:
        raise InvalidRequestError(
            f"a command has at most {_MOST_INPUT:,} characters of input and {_MOST_SECONDS:g} s"
        )


def _first_word(pattern: str) -> str:
    try:
        return next(iter(shlex.split(pattern)), "")
    except ValueError:
        return ""


def _path_of(name: str) -> str | None:
    """Return the absolute path of a program; None for one that is not found, or a relative path."""
    if "/" in name:
        return str(Path(name)) if name.startswith("/") and Path(name).is_file() else None
    return shutil.which(name, path=_PATH)


def _cut(text: str) -> str:
    if len(text) <= _MOST_OUTPUT:
        return text
    half = _MOST_OUTPUT // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
