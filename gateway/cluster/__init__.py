"""Nodes: several gateways on one PostgreSQL database, of which one is active and the others stand by.

In: the settings of the cluster. Out: the fence of the node that owns the gateway. PostgreSQL holds the truth,
RabbitMQ passes the token of ownership on. Imported by ``trunkline run``, ``trunkline nodes``, the doctor and
the server, for ``/api/nodes``; ``node`` and ``token`` need the extra ``cluster``.
"""

from gateway.cluster.drain import NO_CLUSTER, Requested, request_drain, resume, rotate_certificate, say_clock
from gateway.cluster.folders import find_unshared
from gateway.cluster.membership import (
    MOST_CLOCK_SECONDS,
    NodeRow,
    NodeState,
    advance_rotation,
    read_nodes,
    read_rotation,
)

__all__ = [
    "MOST_CLOCK_SECONDS",
    "NO_CLUSTER",
    "NodeRow",
    "NodeState",
    "Requested",
    "advance_rotation",
    "find_unshared",
    "read_nodes",
    "read_rotation",
    "request_drain",
    "resume",
    "rotate_certificate",
    "say_clock",
]
