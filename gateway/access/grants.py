"""Grants: tool calls that a user allowed for a whole session, and capabilities of confined plugins.

Neither is asked about again until it is revoked.
"""

from __future__ import annotations

from msgspec import Struct
from sqlalchemy import Connection, select

from gateway.access.people import UserRef
from gateway.contract.errors import NotFoundError
from gateway.contract.messages import new_id, now_ms
from gateway.contract.tool import Tool
from gateway.patterns import granted
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.writes import Write, audit_op

ADD_GRANT = Write(
    "insert-new", 66, t.approval_grant, "id session channel user_id tool matches approved_by at"
)
DROP_GRANT = Write("delete", 67, t.approval_grant, "id")
PUT_PLUGIN_GRANT = Write("upsert", 94, t.plugin_grant, "id plugin capability allowed decided_by at")
DROP_PLUGIN_GRANT = Write("delete", 95, t.plugin_grant, "id")

_PLUGIN = "plugin:"


class Grant(Struct, frozen=True, kw_only=True):
    """One "always". It covers the calls of ``tool`` that ``matches`` stands for (``patterns.granted``).

    It is valid in one session, for calls that follow a message from ``user_id`` on ``channel``. ``at`` is
    milliseconds.
    """

    id: str
    session: str
    channel: str
    user_id: str
    tool: str
    matches: str
    approved_by: str
    at: int

    def put(self) -> Op:
        """Return the write that stores the grant; an existing one is unchanged."""
        return ADD_GRANT, (
            self.id,
            self.session,
            self.channel,
            self.user_id,
            self.tool,
            self.matches,
            self.approved_by,
            self.at,
        )


class Grants:
    """The stored grants. A session's grants are removed with the session."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def all(self) -> list[Grant]:
        """Return all grants, the latest first."""
        table = t.approval_grant
        query = select(table).order_by(table.c.at.desc(), table.c.id)

        def read(connection: Connection) -> list[Grant]:
            return [Grant(**row) for row in connection.execute(query).mappings()]

        return await self._store.read(read)

    async def allows(self, session: str, user: UserRef, tool: Tool, key: str) -> bool:
        """Return whether a grant covers a call of the tool with this match key."""
        c = t.approval_grant.c
        query = select(c.matches).where(
            c.session == session,
            c.channel == user.channel,
            c.user_id == user.user,
            c.tool == tool.name,
        )
        stored = await self._store.read(lambda connection: list(connection.execute(query).scalars()))
        return any(granted(tool.match_kind, matches, key) for matches in stored)

    async def write(self, *ops: Op) -> None:
        """Store grants, in one transaction with their audit rows."""
        await self._store.write(*ops)

    async def revoke(self, grant_id: str, by: UserRef) -> None:
        """Remove a grant. Raises NotFoundError."""
        found = next((grant for grant in await self.all() if grant.id == grant_id), None)
        if found is None:
            raise NotFoundError(f"no approval {grant_id!r}; list them with `trunkline approvals list`")
        audit = audit_op(str(by), "approval.revoke", found.tool, f"{found.matches} in {found.session}")
        await self._store.write((DROP_GRANT, (grant_id,)), audit)

    async def forgotten(self, user: UserRef) -> list[Op]:
        """Return the writes that delete all grants of a user."""
        c = t.approval_grant.c
        query = select(c.id).where(c.channel == user.channel, c.user_id == user.user)
        ids = await self._store.read(lambda connection: list(connection.execute(query).scalars()))
        return [(DROP_GRANT, (grant_id,)) for grant_id in ids]


def grant(session: str, user: UserRef, tool: str, matches: str, by: UserRef) -> Grant:
    """Make a new grant with the current time."""
    return Grant(
        id=new_id(),
        session=session,
        channel=user.channel,
        user_id=user.user,
        tool=tool,
        matches=matches,
        approved_by=str(by),
        at=now_ms(),
    )


class PluginGrant(Struct, frozen=True):
    """A decision: whether a plugin may use a capability, everywhere. ``at`` is milliseconds."""

    plugin: str
    capability: str
    allowed: bool
    decided_by: str
    at: int

    @property
    def id(self) -> str:
        """The key of its row: there is one decision for a capability of a plugin."""
        return plugin_grant_id(self.plugin, self.capability)

    def put(self) -> Op:
        """Return the write that stores the decision."""
        row = (self.id, self.plugin, self.capability, int(self.allowed), self.decided_by, self.at)
        return PUT_PLUGIN_GRANT, row


class PluginGrants:
    """The decisions about capabilities that were made after the installation of plugins, in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, PluginGrant] = {}

    async def load(self) -> None:
        """Read the decisions."""
        self._known = {one.id: one for one in await self.all()}

    async def all(self) -> list[PluginGrant]:
        """Return all decisions, the latest first."""
        query = select(t.plugin_grant).order_by(t.plugin_grant.c.at.desc(), t.plugin_grant.c.id)

        def read(connection: Connection) -> list[PluginGrant]:
            return [
                PluginGrant(row.plugin, row.capability, row.allowed == 1, row.decided_by, row.at)
                for row in connection.execute(query)
            ]

        return await self._store.read(read)

    def given(self, plugin: str) -> set[str]:
        """Return the grants that a plugin was given."""
        return {one.capability for one in self._known.values() if one.plugin == plugin and one.allowed}

    def refused(self, plugin: str) -> set[str]:
        """Return the grants that a plugin was refused permanently."""
        return {one.capability for one in self._known.values() if one.plugin == plugin and not one.allowed}

    def note(self, grant: PluginGrant) -> None:
        """Let a decision count that is stored."""
        self._known[grant.id] = grant

    async def revoke(self, grant_id: str, by: UserRef) -> None:
        """Remove a decision, so that the next use asks again. Raises NotFoundError."""
        found = next((one for one in await self.all() if one.id == grant_id), None)
        if found is None:
            raise NotFoundError(f"no approval {grant_id!r}; list them with `trunkline approvals list`")
        audit = audit_op(str(by), "capability.revoke", found.plugin, found.capability)
        await self._store.write((DROP_PLUGIN_GRANT, (grant_id,)), audit)
        self._known.pop(grant_id, None)


def plugin_grant_id(plugin: str, capability: str) -> str:
    """Return the id of the decision about a capability of a plugin."""
    return f"{_PLUGIN}{plugin}:{capability}"


def is_plugin_grant(grant_id: str) -> bool:
    """Return whether an id is that of a decision about a capability."""
    return grant_id.startswith(_PLUGIN)
