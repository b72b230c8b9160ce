"""The routes of the nodes of a cluster: their list, and the requests to hand over, to take part again and to
replace the certificate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, TypeVar

from msgspec import Meta, Struct
from sqlalchemy import Connection
from sqlalchemy.exc import DatabaseError

from gateway.cluster import (
    NO_CLUSTER,
    NodeRow,
    Requested,
    read_nodes,
    read_rotation,
    request_drain,
    resume,
    rotate_certificate,
)
from gateway.contract.errors import InvalidStateError, NotFoundError
from gateway.server.routes import Call, Nothing, PlainCall, Route
from gateway.settings import Settings
from gateway.store import Store
from gateway.store.engine import open_error

T = TypeVar("T")


class NodePath(Struct, frozen=True):
    """A node."""

    name: Annotated[
        str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00-\x20\x7f]+$", description="The node's name")
    ]


class NodeList(Struct, frozen=True):
    """The nodes of the cluster by name; none without a cluster. ``node`` is the one that answers, or "".

    ``drain_seconds`` is the time that this node gives running answers when it hands over. ``rotating`` is
    True until all live nodes refuse the certificate that is being replaced.
    """

    node: str
    nodes: list[NodeRow]
    drain_seconds: float
    rotating: bool = False


class NodeRequest(Struct, frozen=True):
    """A stored request to a node, which follows it within about a second if it lives.

    ``changed`` is False if the node was already as the request wants it.
    """

    node: str
    changed: bool


class RotationRequest(Struct, frozen=True):
    """A stored request to all nodes. ``changed`` is False if they are still following an earlier one."""

    changed: bool


class NodeRoutes:
    """The routes under ``/api/nodes``."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        # A request may wait for a node that joins. It holds a connection of the readers meanwhile.
        self._one_at_a_time = asyncio.Lock()

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(
                "GET",
                "/api/nodes",
                "listNodes",
                "List the nodes of the cluster with their states.",
                self._list,
                role="viewer",
            ),
            Route(
                "POST",
                "/api/nodes/{name}/drain",
                "drainNode",
                "Let a node hand over to another one and stay on standby until it is resumed.",
                self._drain,
                errors=(NotFoundError, InvalidStateError),
            ),
            Route(
                "POST",
                "/api/nodes/{name}/resume",
                "resumeNode",
                "Let a drained node take over again.",
                self._resume,
                errors=(NotFoundError, InvalidStateError),
            ),
            Route(
                "POST",
                "/api/nodes/certificate",
                "rotateCertificate",
                "Replace the certificate of the link between nodes; they work meanwhile.",
                self._rotate,
                errors=(InvalidStateError,),
            ),
        ]

    async def _list(self, _call: PlainCall) -> NodeList:
        seconds = self._settings.limits.drain_seconds
        if self._settings.cluster.url is None:
            return NodeList("", [], seconds)
        rotating = not (await self._store.read(read_rotation)).is_done
        return NodeList(self._settings.cluster.node, [*await self._store.read(read_nodes)], seconds, rotating)

    async def _drain(self, call: Call[NodePath, Nothing, Nothing, None]) -> NodeRequest:
        name, by = call.path.name, call.identity.account
        return await self._request(lambda connection: request_drain(connection, name, by))

    async def _resume(self, call: Call[NodePath, Nothing, Nothing, None]) -> NodeRequest:
        name, by = call.path.name, call.identity.account
        return await self._request(lambda connection: resume(connection, name, by))

    async def _rotate(self, call: PlainCall) -> RotationRequest:
        by = call.identity.account
        return RotationRequest(await self._commit(lambda connection: rotate_certificate(connection, by)))

    async def _request(self, act: Callable[[Connection], Requested]) -> NodeRequest:
        node, changed = await self._commit(act)
        return NodeRequest(node.name, changed)

    async def _commit(self, act: Callable[[Connection], T]) -> T:
        """Commit a request. Its transaction reads, too, so it is not one of the writer."""
        if self._settings.cluster.url is None:
            raise InvalidStateError(NO_CLUSTER)

        def commit() -> T:
            engine = self._store.engine
            try:
                with engine.begin() as connection:
                    return act(connection)
            except DatabaseError as error:
                raise open_error(engine, error) from None

        async with self._one_at_a_time:
            return await asyncio.to_thread(commit)
