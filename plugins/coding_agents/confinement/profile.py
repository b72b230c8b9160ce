"""The sandbox of a session: from its facts to what its program may read, write, reach and use.

In: a session, its program, and the settings. Out: a prefix for the program's arguments, variables, the key
and address of its model service, and a callback for the streams of its keeper. What the kernel cannot do here
is SandboxUnavailableError with the reason and the remedy; nothing falls back to less.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import structlog
from msgspec import Struct

from gateway import PluginError, TrunklineError
from gateway.api import ProcessService, ProgramAccess, ProgramPrefix
from plugins.coding_agents.adapters.contract import Adapter
from plugins.coding_agents.confinement import inside
from plugins.coding_agents.confinement.proxy import ModelService, NetworkExit
from plugins.coding_agents.errors import SandboxUnavailableError
from plugins.coding_agents.keeper_client import SIBLING_SOCKET, Stream
from plugins.coding_agents.records import SessionRecord
from plugins.coding_agents.settings import CodingAgentSettings
from plugins.programs.hosts import parse_rules

log = structlog.get_logger("trunkline.coding_agents")

PLACEHOLDER = "trunkline-placeholder-"
"""The begin of the key that a program gets in place of the real one."""
UNCONFINED = 'There is no sandbox: programs have all rights of the gateway, because sandbox = "off".'
_WITHHELD = (
    'It has no key: {names} stay in the gateway, because key = "proxied", and the gateway cannot add them to '
    'requests. key = "direct" gives them to the program.'
)
_CREDENTIAL = re.compile(r"(_KEY|_TOKEN)$")
_INSIDE = Path(inside.__file__)
_SCRIPTS = (_INSIDE, _INSIDE.parents[1] / "side_channel" / "report.py")
"""The programs that run in the sandbox beside the agent."""
_LINE_SECONDS = 60.0
_PYTHON = (os.path.realpath(sys.executable), "-I", "-S", "-B")
_SECRET_FOLDERS = (".ssh", ".gnupg", ".aws", ".kube", ".docker")
_SHARED_FOLDERS = ("/usr", "/opt")
_MOST_LINKS = 8
_SERVICE = f"http://{inside.HOST}:{inside.SERVICE_PORT}"
_ADDRESS = f"http://{inside.HOST}:{inside.PROXY_PORT}"
_PROXY: Mapping[str, str] = {
    **dict.fromkeys(("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"), _ADDRESS),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost,::1"),
    # Node.js uses a proxy for fetch() only with this variable.
    "NODE_USE_ENV_PROXY": "1",
}


class Folders(Struct, frozen=True):
    """Folders besides those of every session: the repository of a workspace."""

    writable: tuple[Path, ...] = ()
    readable: tuple[Path, ...] = ()


class Confined(Struct, frozen=True):
    """The confinement of one session: what goes before its program, its variables, and what serves it.

    ``key`` and ``base_url`` are what the program is configured with; it gets none of the variables
    ``withheld``. ``notice`` is for the user, "" if there is nothing to say.
    """

    prefix: Sequence[str] = ()
    env: Mapping[str, str] = {}
    on_stream: Callable[[Stream], None] | None = None
    key: str = ""
    base_url: str = ""
    notice: str = ""
    withheld: frozenset[str] = frozenset()


class SandboxReport(Struct, frozen=True):
    """The sandbox: its settings, and its layers or the ``problem`` because of which there is none."""

    sandbox: str
    network: str
    key: str
    layers: tuple[str, ...]
    problem: str


class Tasks(Protocol):
    """Tasks that end with the plugin."""

    def create_task(self, work: Coroutine[Any, Any, object], *, name: str = "") -> object:
        """Start one."""
        ...


class Confinement:
    """The sandbox of all sessions. ``data`` is the folder of the gateway's data; ``own`` that of the plugin.

    ``folders_of`` returns the folders of a session's workspace; ``serve_credentials`` answers its git, and
    ``serve_hook`` the hooks of its program.
    """

    def __init__(
        self,
        processes: ProcessService | None,
        settings: CodingAgentSettings,
        environ: Mapping[str, str],
        tasks: Tasks | None,
        *,
        data: Path,
        own: Path,
    ) -> None:
        self.folders_of: Callable[[SessionRecord], Awaitable[Folders]] | None = None
        self.serve_credentials: Callable[[SessionRecord, Stream], Awaitable[None]] | None = None
        self.serve_hook: Callable[[SessionRecord, Sequence[str], Stream], Awaitable[None]] | None = None
        self._processes = processes
        self._settings = settings
        self._environ = environ
        self._tasks = tasks
        self._own = own
        self._closed = tuple(_closed(data, Path(environ.get("HOME") or Path.home())))

    async def confine(self, record: SessionRecord, adapter: Adapter, program: str, home: Path) -> Confined:
        """Return the confinement of a session that starts. Raises SandboxUnavailableError."""
        service, streams = self._service_of(record, adapter), self.streams(record, adapter)
        named = service.url if service.named else ""
        if self._settings.sandbox == "off":
            log.warning("a coding agent runs without a sandbox", session=record.id, agent=adapter.name)
            return Confined(on_stream=streams, key=service.key, base_url=named, notice=UNCONFINED)
        is_open, folder = self._settings.network == "open", self._own / "sessions" / record.id
        keeps_keys = (self._settings.of(adapter.name).key or self._settings.key) == "proxied"
        proxied = keeps_keys and bool(service.key)
        if proxied and is_open:
            raise SandboxUnavailableError(
                f"the key of {adapter.title} cannot stay in the gateway if the program uses the machine's "
                'network: set network = "model" or "list", or key = "direct" to give it the key'
            )
        folders = Folders() if self.folders_of is None else await self.folders_of(record)
        made = (folder / "tmp", home, *folders.writable)
        await asyncio.to_thread(_make, folder, *made)
        writable = (Path(record.workdir), *made)
        readable = (folder / Path(SIBLING_SOCKET).parent, *folders.readable, *installation(program))
        found = await self._prefix((program,), writable, readable, is_open=is_open)
        log.info("a coding agent is confined", session=record.id, layers=found.layers)
        env, words, key = {"TMPDIR": str(folder / "tmp")}, found.argv, service.key
        if not is_open:
            env |= _PROXY
            words += (*_PYTHON, str(_INSIDE), str(folder / SIBLING_SOCKET))
        if proxied:
            key, named = service.placeholder, f"{_SERVICE}{service.parts.path}"
            # These names may be among the variables that the program gets of the gateway's.
            env |= {name: value for name, value in ((adapter.key, key), (adapter.url, named)) if name}
        given = {**env, **self._given(adapter)}
        withheld = frozenset(
            name
            for name in adapter.variables
            if keeps_keys and _CREDENTIAL.search(name) and name in self._environ and name not in given
        )
        notice = "" if key or not withheld else _WITHHELD.format(names=", ".join(sorted(withheld)))
        return Confined(words, env, streams, key, named, notice, withheld)

    async def wrap(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        *,
        writable: Sequence[Path],
        readable: Sequence[Path],
        network: bool = False,
    ) -> Sequence[str]:
        """Return arguments with those of a launcher before them, for a program without a network.

        With ``network`` the program has a network if the settings leave it open. Raises
        SandboxUnavailableError.
        """
        if self._settings.sandbox == "off":
            return argv
        readable = (*readable, *installation(argv[0]))
        is_open = network and self._settings.network == "open"
        found = await self._prefix(argv, writable, readable, is_open=is_open, path=environ.get("PATH", ""))
        return (*found.argv, *argv)

    async def report(self) -> SandboxReport:
        """Try the sandbox of the settings, and report its layers, or why there is none."""
        given = self._settings
        layers: tuple[str, ...] = ()
        problem = UNCONFINED
        if given.sandbox == "on":
            try:
                layers = (await self._prefix(("/bin/sh",), (), (), is_open=given.network == "open")).layers
                problem = ""
            except SandboxUnavailableError as error:
                problem = str(error)
        return SandboxReport(given.sandbox, given.network, given.key, layers, problem)

    def streams(self, record: SessionRecord, adapter: Adapter) -> Callable[[Stream], None]:
        """Return the callback for the streams of a session's keeper, also of one that runs already."""
        hosts = (*adapter.hosts, *(self._settings.allow_hosts if self._settings.network == "list" else ()))
        rules = [rule for host in hosts for rule in parse_rules(host)]
        way_out = NetworkExit(record.id, rules, self._service_of(record, adapter))

        async def serve(stream: Stream) -> None:
            try:
                async with asyncio.timeout(_LINE_SECONDS):
                    words = (await stream.readline()).decode(errors="replace").split()
                if words == ["credential"] and self.serve_credentials is not None:
                    await self.serve_credentials(record, stream)
                elif words[:1] == ["hook"] and self.serve_hook is not None:
                    await self.serve_hook(record, words, stream)
                else:
                    await way_out.serve(words or [""], stream)
            except (OSError, TrunklineError) as error:
                log.debug("a stream of a coding agent ended", session=record.id, reason=str(error))
            finally:
                await stream.close()

        def begin(stream: Stream) -> None:
            assert self._tasks is not None, "a gateway that only checks has no streams"
            self._tasks.create_task(serve(stream), name=f"stream of {record.id}")

        return begin

    def _service_of(self, record: SessionRecord, adapter: Adapter) -> ModelService:
        known = {**self._environ, **self._given(adapter)}
        named = (known.get(adapter.url, "") if adapter.url else "").rstrip("/")
        url = named or adapter.service
        key = known.get(adapter.key, "") if adapter.key and url else ""
        digest = hashlib.sha256(f"{PLACEHOLDER}{record.key}".encode()).hexdigest()
        return ModelService(url, key, f"{PLACEHOLDER}{digest[:32]}", named=bool(named))

    def _given(self, adapter: Adapter) -> dict[str, str]:
        """Return the variables that the operator gives to a program."""
        own = self._settings.of(adapter.name).env
        return {name: value.get_secret_value() for name, value in own.items()}

    async def _prefix(
        self,
        argv: Sequence[str],
        writable: Sequence[Path],
        readable: Sequence[Path],
        *,
        is_open: bool,
        path: str = "",
    ) -> ProgramPrefix:
        limits = self._settings.limits
        access = ProgramAccess(
            tuple(writable),
            (*readable, *_python_folders(), *_SCRIPTS, *self._settings.readable),
            network=is_open,
            processes=limits.processes,
            memory_mb=limits.memory_mb,
            cpu_seconds=limits.cpu_seconds,
            cpus=limits.cpus,
            closed=self._closed,
        )
        if self._processes is None:
            raise SandboxUnavailableError("this gateway cannot confine programs")
        try:
            environ = {"PATH": path or self._environ.get("PATH", os.defpath)}
            return await self._processes.program_prefix(argv, environ, access)
        except PluginError as error:
            fix = "" if is_open else ', or set network = "open" if the program may use the whole network'
            raise SandboxUnavailableError(
                f"the program cannot be confined: {error}{fix}; "
                + 'sandbox = "off" runs it with all rights of the gateway'
            ) from None


def installation(program: str) -> Iterator[Path]:
    """Yield what a program needs of its installation: the executable, what it links to, its packages.

    The folder ``bin`` of an executable, and the libraries beside it, need no mention.
    """
    path = Path(program)
    for _ in range(_MOST_LINKS):
        yield path
        parts = path.parts
        if "node_modules" in parts:
            yield Path(*parts[: parts.index("node_modules") + 1])
        elif (path.parent / "node_modules").is_dir():
            yield path.parent / "node_modules"
        if not path.is_symlink():
            return
        path = Path(os.path.normpath(path.parent / path.readlink()))


def _closed(data: Path, home: Path) -> Iterator[Path]:
    """Yield the folders with secrets, and that of the gateway if it is below what every program may read."""
    yield data.absolute()
    yield from (home / name for name in _SECRET_FOLDERS)
    here = Path.cwd()
    if any(here.is_relative_to(folder) for folder in _SHARED_FOLDERS):
        yield here


def _python_folders() -> Iterator[Path]:
    """Yield what the interpreter of ``inside.py`` needs, wherever it is installed."""
    yield Path(_PYTHON[0])
    yield from (Path(sys.base_prefix) / name for name in ("bin", "lib", "lib64"))


def _make(*folders: Path) -> None:
    for folder in folders:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
