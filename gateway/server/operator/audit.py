"""The route of the audit log, for admins."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.contract.errors import ForbiddenError
from gateway.server.now import ReaderOf, owner_as_reader
from gateway.server.routes import Call, Nothing, Route
from gateway.tables.audit import PAGE, AuditLog, AuditPage


class AuditQuery(Struct, frozen=True):
    """The page of the log. ``action`` is a whole name, or its beginning up to a dot, such as ``approval``."""

    cursor: Annotated[str, Meta(pattern=r"^[0-9a-f-]{1,64}$")] | UnsetType = UNSET
    actor: Annotated[str, Meta(min_length=1, max_length=240)] | UnsetType = UNSET
    action: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_.-]{0,99}$")] | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=PAGE)] = PAGE


class AuditRoutes:
    """The route ``/api/audit``. ``reader_of`` returns the reader of a request."""

    def __init__(self, log: AuditLog, reader_of: ReaderOf = owner_as_reader) -> None:
        self._log = log
        self._reader_of = reader_of

    def routes(self) -> list[Route]:
        """Return the route."""
        return [
            Route(
                "GET",
                "/api/audit",
                "listAudit",
                "List what was decided and by whom, the newest first, in pages of 100.",
                self._list,
                errors=(ForbiddenError,),
            )
        ]

    async def _list(self, call: Call[Nothing, AuditQuery, Nothing, None]) -> AuditPage:
        if not self._reader_of(call.request).is_admin:
            raise ForbiddenError("only admins read the audit log")
        given = call.query
        return await self._log.page(
            given.cursor if isinstance(given.cursor, str) else None,
            actor=given.actor if isinstance(given.actor, str) else None,
            action=given.action if isinstance(given.action, str) else None,
            most=given.limit,
        )
