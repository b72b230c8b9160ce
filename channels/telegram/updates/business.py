"""Business connections: the accounts in whose private chats the bot writes on behalf of their owners."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

import msgspec
import structlog

from channels.telegram.api import RefusedError
from channels.telegram.updates.objects import BusinessConnection

log = structlog.get_logger("trunkline.telegram")

_MAX_CONNECTIONS = 1_000


class BusinessConnections:
    """The known business connections of one bot.

    ``owners`` are the ids of the users whose connections count: any user of Telegram can connect any bot.
    ``call`` is ``Client.call``.
    """

    def __init__(self, owners: Collection[str], call: Callable[..., Awaitable[Any]]) -> None:
        self._owners = owners
        self._call = call
        self._known: OrderedDict[str, BusinessConnection] = OrderedDict()

    def note(self, connection: BusinessConnection) -> None:
        """Record the present state of a connection."""
        self._known[connection.id] = connection
        self._known.move_to_end(connection.id)
        if len(self._known) > _MAX_CONNECTIONS:
            self._known.popitem(last=False)
        state = "may reply" if connection.may_reply else "may not reply"
        log.info(
            "business connection",
            owner=connection.user.id,
            listed=str(connection.user.id) in self._owners,
            state=state if connection.is_enabled else "disabled",
        )

    async def is_answered(self, connection_id: str) -> bool:
        """Return whether messages of a connection are answered.

        Raises ValueError if the connection does not exist any more, and the errors of ``Client.call`` if
        Telegram cannot be asked.
        """
        connection = self._known.get(connection_id) or await self._read(connection_id)
        if str(connection.user.id) not in self._owners:
            return False
        if not connection.is_enabled:
            raise ValueError("the business connection is disabled")
        return connection.may_reply

    async def _read(self, connection_id: str) -> BusinessConnection:
        try:
            found: Mapping[str, Any] = await self._call(
                "getBusinessConnection", business_connection_id=connection_id
            )
        except RefusedError as refused:
            if refused.code in (400, 403):
                raise ValueError(f"the business connection is unknown: {refused.reason}") from None
            raise
        # An invalid object is a ValidationError, which is a ValueError.
        connection = msgspec.convert(found, BusinessConnection)
        self.note(connection)
        return connection
