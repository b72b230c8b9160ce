"""Requests of an operator, which nodes read each second: that a node hands over or takes part again, and
that all replace their certificate."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, text

from gateway.cluster.certificate import new_certificate
from gateway.cluster.membership import NodeRow, advance_rotation, create_tables, lock_requests, read_nodes
from gateway.contract.errors import InvalidStateError, NotFoundError
from gateway.store import schema as t
from gateway.store.writes import audit_op

NO_CLUSTER = "no cluster uses this database; set cluster.url to start one"
_WORKING = ("starting", "active")


class Requested(NamedTuple):
    """A request: the node as it was before, and whether the request changed anything."""

    node: NodeRow
    changed: bool


def request_drain(connection: Connection, name: str | None, by: str) -> Requested:
    """Ask a node to hand over, without a name the active one. ``by`` is the actor in the audit log.

    Raises NotFoundError for an unknown name, and InvalidStateError if no other node could take over.
    """
    lock_requests(connection)
    nodes = read_nodes(connection)
    node = _find(nodes, name)
    if node.state in ("draining", "drained"):
        return Requested(node, changed=False)
    if node.state == "gone":
        raise InvalidStateError(f"node {node.name} is gone: its last heartbeat was at {node.heartbeat_at}")
    if node.state == "outdated":
        raise InvalidStateError(
            f"node {node.name} stands by in any case: its version is too old for the database"
        )
    if node.state == "wrong_clock":
        raise InvalidStateError(f"node {node.name} stands by in any case: {say_clock(node)}")
    if not any(other.state in (*_WORKING, "standby") for other in nodes if other is not node):
        others = ", ".join(f"{other.name} ({other.state})" for other in nodes if other is not node)
        raise InvalidStateError(
            f"no other node could take over from {node.name}: "
            + (
                f"{others}; start or resume one first"
                if others
                else "it is the only one; start another first"
            )
        )
    drain = "INSERT INTO drain SELECT start_id, false FROM node WHERE name = :name"
    connection.execute(text(drain), {"name": node.name})
    _record(connection, by, "node.drain", node.name)
    return Requested(node, changed=True)


def resume(connection: Connection, name: str, by: str) -> Requested:
    """Let a drained node take over again. ``by`` is the actor in the audit log. Raises NotFoundError."""
    lock_requests(connection)
    node = _find(read_nodes(connection), name)
    remove = "DELETE FROM drain WHERE start_id = (SELECT start_id FROM node WHERE name = :name)"
    changed = connection.execute(text(remove), {"name": name}).rowcount > 0
    if changed:
        _record(connection, by, "node.resume", name)
    return Requested(node, changed)


def rotate_certificate(connection: Connection, by: str) -> bool:
    """Ask all nodes to replace their certificate. Return False if they are still doing so.

    ``by`` is the actor in the audit log. Raises InvalidStateError if a live node could not follow.
    """
    cluster_id = connection.execute(text("SELECT id FROM cluster")).scalar_one()
    try:
        made = new_certificate(cluster_id)  # before the lock, since it takes a while
    except subprocess.SubprocessError:
        raise InvalidStateError(
            "no certificate could be made: is trunkline[cluster] installed here?"
        ) from None
    create_tables(connection)
    rotation = advance_rotation(connection)
    if not rotation.is_done:
        return False
    if rotation.older:
        raise InvalidStateError(
            f"the version of {', '.join(rotation.older)} is too old to replace the certificate; "
            "install this version there first"
        )
    begin = "UPDATE cluster SET step = step + 1, other_certificate = :certificate, other_key = :key"
    connection.execute(text(begin), made._asdict())
    _record(connection, by, "node.rotate", "certificate")
    return True


def say_clock(node: NodeRow) -> str:
    """Return how far the clock of a node is apart from the database's, as a sentence."""
    way = "ahead of" if node.clock_seconds > 0 else "behind"
    return f"the clock of {node.name} is {abs(node.clock_seconds):.1f} s {way} the database's"


def _find(nodes: Sequence[NodeRow], name: str | None) -> NodeRow:
    known = ", ".join(node.name for node in nodes)
    if name is None:
        found = next((node for node in nodes if node.owner_since is not None), None)
        if found is None:
            raise NotFoundError(f"no node is active at the moment; name one of {known}")
        return found
    found = next((node for node in nodes if node.name == name), None)
    if found is None:
        raise NotFoundError(f"no node is named {name!r}; the nodes are {known}")
    return found


def _record(connection: Connection, by: str, action: str, name: str) -> None:
    _write, row = audit_op(by, action, name)
    connection.execute(t.audit.insert(), dict(zip(t.audit.columns.keys(), row, strict=True)))
