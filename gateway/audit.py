"""The audit: who was given what, by whom, for the operator to look up. Rows are only ever added."""

from __future__ import annotations

from gateway.messages import new_id, now_ms
from gateway.store import Op
from gateway.store import schema as t
from gateway.store.writes import Write

AUDIT = Write("insert", 60, t.audit, "id at actor action subject detail")


def audit_op(actor: str, action: str, subject: str, detail: str | None = None) -> Op:
    """The write that records an action; it is committed together with what it tells of."""
    return AUDIT, (new_id(), now_ms(), actor, action, subject, detail)
