"""The route of the nodes of a cluster."""

from __future__ import annotations

from msgspec import Struct

from gateway.cluster import NodeRow, read_nodes
from gateway.server.routes import PlainCall, Route
from gateway.settings import ClusterSettings
from gateway.store import Store


class NodeList(Struct, frozen=True):
    """The nodes of the cluster by name; none without a cluster. ``node`` is the one that answers, or ""."""

    node: str
    nodes: list[NodeRow]


class NodeRoutes:
    """The route ``/api/nodes``."""

    def __init__(self, settings: ClusterSettings, store: Store) -> None:
        self._settings = settings
        self._store = store

    def routes(self) -> list[Route]:
        """Return the route."""
        return [
            Route(
                "GET",
                "/api/nodes",
                "listNodes",
                "List the nodes of the cluster: which one works, which ones stand by.",
                self._list,
                role="viewer",
            )
        ]

    async def _list(self, _call: PlainCall) -> NodeList:
        if self._settings.url is None:
            return NodeList("", [])
        return NodeList(self._settings.node, [*await self._store.read(read_nodes)])
