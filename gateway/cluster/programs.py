"""Programs that outlive the gateway, on the machines of all nodes: the active node reaches each of them.

In: requests of plugins, and of the active node. Out: connections. A program listens at a Unix socket in
the shared data directory, which only processes on its machine can connect to: another node asks one there,
and that passes the bytes on.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import stat
import struct
from pathlib import Path
from typing import cast

import structlog

from gateway.api.beneath import FOLDER, open_below
from gateway.cluster.link import CONNECT_SECONDS, Link, ProgramRequest
from gateway.cluster.membership import Membership, read_boot_id
from gateway.contract.errors import StoreError

log = structlog.get_logger("trunkline.cluster")

_FOLDERS = ("coding-agents", "sessions")
_SOCKET = "keeper.sock"
_SESSION = re.compile(r"pty-[0-9]{1,15}-[0-9a-f]{8}")
_JOINED, _ENDED, _REFUSED = b"joined", b"ended ", b"refused "
"""The first line of a connection to a program. What a node refuses may work later; what has ended may not."""
_LONGEST_LINE = 512
_RESTARTED = "the machine was started again"


class Programs:
    """The programs of all machines. ``serve`` answers the other nodes; ``connect`` is for plugins.

    Only the active node is served. Call ``check`` each second.
    """

    def __init__(self, data_dir: Path, membership: Membership, link: Link, tasks: asyncio.TaskGroup) -> None:
        self._data_dir = data_dir
        self._membership = membership
        self._link = link
        self._tasks = tasks
        self._served: dict[asyncio.Transport, str] = {}
        """Connections of other nodes, with the process that each comes from."""
        self._made: dict[asyncio.Transport, str] = {}
        """Connections to other nodes, with the process that each leads to."""

    async def connect(
        self, protocol: asyncio.Protocol, *, session: str, node: str, host: str, boot_id: str
    ) -> asyncio.Transport:
        """Connect to a program on the machine of other nodes; see ``ctx.programs``.

        Nodes on the machine with that boot id are asked. Without one, the node of that name is, which knows
        whether its machine was started again. Raises ProcessLookupError or another OSError.
        """
        try:
            found = await self._membership.find_neighbors(boot_id)
        except StoreError as error:
            raise ConnectionError(str(error)) from None
        there = [one for one in found if one.is_there] or [one for one in found if one.name == node]
        if node == self._membership.name and not there:
            raise ProcessLookupError(_RESTARTED)
        request = ProgramRequest(session, node, host, boot_id, self._membership.start_id)
        reasons: list[str] = []
        for one in there:
            asking = _Asking(protocol)
            try:
                transport = await self._link.connect(one.address, request, asking)
                self._made[transport] = one.start_id
                await asking.join(transport)
            except ProcessLookupError:
                raise
            except OSError as error:
                reasons.append(f"{one.name}: {error or 'no answer in time'}")
            else:
                return transport
        raise ConnectionError("; ".join(reasons) or f"no node lives on the machine of node {node}")

    def serve(self, request: ProgramRequest) -> asyncio.Protocol:
        """Return the protocol that connects another node with a program of this machine, or refuses it."""
        return _Serving(self, request)

    def begin(self, serving: _Serving, request: ProgramRequest) -> None:
        """Find the program that another node asks for."""
        self._served[serving.transport] = request.start_id
        self._tasks.create_task(self._join(serving, request), name=f"program {request.session}")

    async def _join(self, serving: _Serving, request: ProgramRequest) -> None:
        try:
            await self._check_asker(request)
            self._check_machine(request)
            sock = await asyncio.to_thread(_connect, self._data_dir, request.session)
            near = _End(serving.transport)
            other, _ = await asyncio.get_running_loop().create_unix_connection(lambda: near, sock=sock)
        except (OSError, StoreError) as error:
            log.debug("refused a connection to a program", session=request.session, reason=str(error))
            answer = _ENDED if isinstance(error, ProcessLookupError) else _REFUSED
            serving.transport.write(answer + str(error).encode() + b"\n")
            serving.transport.close()
        else:
            serving.join(other)

    async def _check_asker(self, request: ProgramRequest) -> None:
        owner = await self._membership.find_owner()
        if owner.start_id != request.start_id:
            raise PermissionError("only the active node may use programs")

    def _check_machine(self, request: ProgramRequest) -> None:
        """Check that the program was started on this machine, since its last boot."""
        if request.boot_id and request.boot_id == read_boot_id():
            return
        if (request.node, request.host) == (self._membership.name, socket.gethostname()):
            raise ProcessLookupError(_RESTARTED)
        raise ConnectionError("the program was started on another machine")

    async def check(self) -> None:
        """End connections of a node that is not active any more, and those to nodes that live no longer.

        A machine that has vanished, or a frozen process, closes none. Raises StoreError.
        """
        if served := _open(self._served):
            owner = await self._membership.find_owner()
            for transport in served:
                if self._served[transport] != owner.start_id:
                    transport.abort()
        if made := _open(self._made):
            live = {one.start_id for one in await self._membership.find_neighbors()}
            for transport in made:
                if self._made[transport] not in live:
                    transport.abort()

    def close(self) -> None:
        """End all connections."""
        for transport in (*_open(self._served), *_open(self._made)):
            transport.abort()


class _End(asyncio.Protocol):
    """One of two joined connections: what arrives goes to the other one, as fast as that takes it."""

    def __init__(self, other: asyncio.Transport | None = None) -> None:
        self.other = other

    def data_received(self, data: bytes) -> None:
        if self.other is not None and not self.other.is_closing():
            self.other.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            self.other.close()

    def pause_writing(self) -> None:
        if self.other is not None and not self.other.is_closing():
            self.other.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.is_closing():
            self.other.resume_reading()


class _Serving(_End):
    """The connection of another node, from its request on."""

    transport: asyncio.Transport

    def __init__(self, programs: Programs, request: ProgramRequest) -> None:
        super().__init__()
        self._programs = programs
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._programs.begin(self, self._request)

    def join(self, other: asyncio.Transport) -> None:
        """Join it with the program, unless the other node has left."""
        if self.transport.is_closing():
            other.abort()
            return
        self.other = other
        self.transport.write(_JOINED + b"\n")


class _Asking(asyncio.Protocol):
    """A connection to another node. Its protocol gets all that follows the first line."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol
        self._line = b""
        self._joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def join(self, transport: asyncio.Transport) -> None:
        """Wait for the first line. Raises ProcessLookupError if the program has ended, or another OSError."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._joined
        except BaseException:
            transport.abort()
            raise
        self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._joined.done():
            self._protocol.data_received(data)
            return
        self._line += data
        line, ended, _ = self._line.partition(b"\n")
        if line == _JOINED and ended:
            self._joined.set_result(None)
        elif ended or len(line) > _LONGEST_LINE:
            kind = ProcessLookupError if line.startswith(_ENDED) else ConnectionRefusedError
            self._joined.set_exception(kind(line.partition(b" ")[2].decode(errors="replace")))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._joined.done():
            self._joined.set_exception(exc or ConnectionResetError("the node ended the connection"))
        elif self._joined.exception() is None:
            self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()


def _open(transports: dict[asyncio.Transport, str]) -> list[asyncio.Transport]:
    """Forget connections that have ended, and return the others."""
    for transport in [one for one in transports if one.is_closing()]:
        del transports[transport]
    return [*transports]


def _connect(data_dir: Path, session: str) -> socket.socket:
    """Connect to the socket of a session, and of nothing else.

    Raises ProcessLookupError if no program listens there, and another OSError if that cannot be found out.
    """
    if not _SESSION.fullmatch(session):
        raise PermissionError("this is not the name of a session")
    base = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # By itself: where the shared directory is not mounted, nothing is known about sessions.
        folders = open_below(base, _FOLDERS, FOLDER)
    finally:
        os.close(base)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.setblocking(False)
    try:
        found = open_below(folders, (session, _SOCKET), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            about = os.fstat(found)
            if not stat.S_ISSOCK(about.st_mode) or about.st_uid != os.getuid():
                raise PermissionError(f"{_SOCKET} is not a socket of the gateway's user")
            made.connect(f"/proc/self/fd/{found}")
        finally:
            os.close(found)
        peer = made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", peer)[1] != os.getuid():
            raise PermissionError("another user's program listens there")
    except (FileNotFoundError, ConnectionRefusedError) as error:
        made.close()
        raise ProcessLookupError(f"no keeper runs for {session} ({error.strerror})") from None
    except BaseException:
        made.close()
        raise
    finally:
        os.close(folders)
    return made
