"""The credentials with which git reads and pushes, for the gateway and for agents.

In: questions of git's credential helper. Out: a user name and a token for one repository, or a reason. No
credentials are in a URL, in arguments, in the environment or in a file of a repository. The gateway's own git
asks over a socket that exists for one command; an agent's asks over the socket of its keeper, and needs a
grant. Every grant is in the audit log.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import socket
import struct
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from gateway import new_id, now_ms
from plugins.coding_agents.errors import CredentialDeniedError
from plugins.coding_agents.workspaces.records import Grant, Rights, Table, WorkspaceRecord
from plugins.coding_agents.workspaces.sources import Source
from plugins.programs.environment import GIT_VARIABLES

HELPER = Path(__file__).with_name("helper.py")
"""The script that git runs; the sandbox of an agent must be able to read it."""
LONGEST_GRANT = 3_600
"""Seconds."""
READ_SECONDS = 10
MOST = 65_536

Login = Callable[[str, Rights], tuple[str, str] | None]
"""Returns user and password for the URL of a repository, or None if the settings have none."""


class Audit(Protocol):
    """Writes into the audit log, as ``PluginContext.audit`` does."""

    async def __call__(self, action: str, subject: str, detail: str = "", *, actor: str = "") -> None:
        """Write an action of a user."""
        ...


class Question(Struct, frozen=True):
    """A question of git's credential helper: the host with its port, and the path of the repository."""

    protocol: str
    host: str
    path: str

    def concerns(self, host: str, path: str) -> bool:
        """Return whether this is the repository."""
        return self.host.lower() == host and self.path.strip("/").removesuffix(".git") == path


def parse_question(data: bytes) -> Question:
    """Return the question in git's attributes, of which unknown ones are ignored."""
    fields = [line.partition("=") for line in data.decode(errors="replace").splitlines()]
    values = {name: value for name, _, value in fields}
    return Question(*(values.get(name, "") for name in ("protocol", "host", "path")))


def render_login(login: tuple[str, str]) -> bytes:
    """Return credentials as git reads them."""
    user, password = ("".join(c for c in text if c.isprintable()) for text in login)
    return f"username={user}\npassword={password}\n".encode()


def render_refusal(reason: str) -> bytes:
    """Return a reason as the helper reads it."""
    return f"error={' '.join(reason.split())}\n".encode()


def helper_settings(path: str) -> Sequence[str]:
    """Return git's settings for the helper that asks at a socket."""
    # A sandbox has the real program, but not the environment of packages that links to it.
    command = shlex.join((os.path.realpath(sys.executable), "-I", "-S", "-B", str(HELPER), path))
    return "credential.helper=", f"credential.helper=!{command}", "credential.useHttpPath=true"


def helper_environment(path: str) -> dict[str, str]:
    """Return the variables with which an agent's git asks at a socket, such as that of its keeper."""
    settings = [setting.partition("=") for setting in helper_settings(path)]
    found = {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, _, value) in enumerate(settings):
        found |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return found


@asynccontextmanager
async def answering(source: Source, login: tuple[str, str] | None) -> AsyncGenerator[Sequence[str]]:
    """Answer the gateway's own git meanwhile, for one repository. Yield git's settings for that."""
    if login is None or source.transport not in ("https", "http"):
        yield ()
        return

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if _peer(writer) == os.getuid():
                question = parse_question(await _read(reader.read))
                is_ours = (
                    question.concerns(source.host, source.path) and question.protocol == source.transport
                )
                writer.write(render_login(login) if is_ours else render_refusal(f"not for {question.host}"))
                await writer.drain()
        except (OSError, TimeoutError):
            pass  # git has ended
        finally:
            writer.close()

    # A path of a socket has at most 107 bytes, fewer than those of some data folders.
    folder = tempfile.mkdtemp(prefix="trunkline-")
    try:
        server = await asyncio.start_unix_server(answer, f"{folder}/socket")
        async with server:
            yield helper_settings(f"{folder}/socket")
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


class Credentials:
    """The grants of agents, and the answers to their git."""

    def __init__(
        self, table: Table, login: Login, audit: Audit, *, may_push: bool, clock: Callable[[], int] = now_ms
    ) -> None:
        self._table = table
        self._login = login
        self._audit = audit
        self._may_push = may_push
        self._clock = clock
        self.on_change: Callable[[Grant, str], None] = lambda _grant, _revoked: None

    async def grant(
        self, record: WorkspaceRecord, source: Source, rights: Rights, seconds: int = LONGEST_GRANT
    ) -> Grant:
        """Permit an agent to get credentials for a time. Raises CredentialDeniedError if it must not push."""
        if rights == "write" and not self._may_push:
            raise CredentialDeniedError(
                "agents must not push: the gateway does with finalize, or set agent_may_push = true in "
                "[plugins.coding_agents.workspaces]"
            )
        now = self._clock()
        ends = now + 1_000 * max(1, min(seconds, LONGEST_GRANT))
        grant = Grant(new_id(), record.id, source.host, source.path, rights, now, ends)
        detail = f"{rights} {source.name} for {(ends - now) // 1_000} s"
        await self._audit("credential.grant", record.id, detail, actor=record.owner)
        await self._table.put(_key(grant), msgspec.to_builtins(grant))
        self.on_change(grant, "")
        return grant

    async def revoke(self, workspace: str, reason: str) -> None:
        """End the grants of a workspace that is removed."""
        for grant in await self.grants(workspace):
            await self._table.delete(_key(grant))
            if grant.is_within(self._clock()):
                self.on_change(grant, reason)

    async def grants(self, workspace: str) -> list[Grant]:
        """Return the grants of a workspace, also those that have ended."""
        return [msgspec.convert(value, Grant) for _, value in await self._table.items(f"{workspace} ")]

    async def serve(
        self,
        record: WorkspaceRecord,
        source: Source,
        read: Callable[[int], Awaitable[bytes]],
        write: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """Answer one question of an agent's git, on a connection through its keeper."""
        try:
            question = parse_question(await _read(read))
            answer = render_login(await self.find(record, source, question))
        except TimeoutError:
            return
        except CredentialDeniedError as error:
            answer = render_refusal(str(error))
        await write(answer)

    async def find(self, record: WorkspaceRecord, source: Source, question: Question) -> tuple[str, str]:
        """Return the credentials that a question gets. Raises CredentialDeniedError with the cause."""
        if question.protocol not in ("https", "http") or question.protocol != source.transport:
            raise CredentialDeniedError(f"there are no credentials for {question.protocol[:20]} addresses")
        found = await self.grants(record.id)
        fitting = [grant for grant in found if question.concerns(grant.host, grant.path)]
        live = [grant for grant in fitting if grant.is_within(self._clock())]
        if not live:
            wanted = f"{question.host}/{question.path.strip('/')}"
            raise CredentialDeniedError(
                "the grant has ended" if fitting else f"this workspace has no grant for {wanted}"[:300]
            )
        rights: Rights = "write" if any(grant.rights == "write" for grant in live) else "read"
        login = self._login(source.url, rights)
        if login is None:
            key = "read_token" if rights == "read" else "token"
            raise CredentialDeniedError(
                f'the settings have no {key} in [plugins.coding_agents.forges."{source.host}"]; the gateway '
                "fetches and pushes for you"
            )
        return login


def _key(grant: Grant) -> str:
    return f"{grant.workspace} {grant.id}"


async def _read(read: Callable[[int], Awaitable[bytes]]) -> bytes:
    """Return git's attributes, up to the blank line, without the line that names the service."""
    found = b""
    async with asyncio.timeout(READ_SECONDS):
        while b"\n\n" not in found and len(found) < MOST and (piece := await read(4_096)):
            found += piece
    return found.removeprefix(b"credential\n")


def _peer(writer: asyncio.StreamWriter) -> int:
    """Return the user id of the process at the other end."""
    size = struct.calcsize("3i")
    found = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", found)[1])


def proxy_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which git reaches hosts: proxies, certificates and keys of the operator."""
    proxies = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy")
    names = (*proxies, *GIT_VARIABLES)
    found = {name: environ[name] for name in names if environ.get(name)}
    if "GIT_SSL_CAINFO" not in found and environ.get("SSL_CERT_FILE"):
        found["GIT_SSL_CAINFO"] = environ["SSL_CERT_FILE"]
    return found
