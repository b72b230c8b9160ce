"""The caller of an action, and the services that do the work.

In: the context of a tool call or a command. Out: frozen values for ``desk``, ``teams`` and ``pulls``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
import structlog
from msgspec import Struct

from gateway import CommandContext, Message, TrunklineError, TurnContext
from gateway.events import BusEvent
from plugins.coding_agents.errors import ServiceUnavailableError

if TYPE_CHECKING:
    from gateway import Choice
    from plugins.coding_agents.forges.watch import PullRequestWatch
    from plugins.coding_agents.records import SessionRecord
    from plugins.coding_agents.sessions import Sessions
    from plugins.coding_agents.workspaces import Workspaces

log = structlog.get_logger("trunkline.coding_agents")

KEYS = "tools:"
"""Beginning of the keys of questions that this package asks."""


class FinalizeRequest(Struct, frozen=True, kw_only=True):
    """The texts of a commit and of its pull request, for which ``pr`` asks; empty ones are made."""

    message: str = ""
    title: str = ""
    body: str = ""
    base: str = ""
    draft: bool = False
    pr: bool = True


class Caller(Struct, frozen=True, kw_only=True):
    """The user of a request. ``owner`` owns sessions and workspaces, ``user`` is the id on the platform.

    ``address`` is that of the chat as plain data, ``session`` the chat's session.
    """

    owner: str
    user: str
    session: str
    address: Mapping[str, Any]
    name: str = ""


def caller_of(ctx: CommandContext | TurnContext) -> Caller:
    """Return the user who wrote the message of a command or a turn."""
    from plugins.coding_agents.sessions import owner_of

    inbound, sender = ctx.inbound, ctx.sender
    channel = inbound.address.channel
    # The holder of the gateway's token is one user, on the page and over HTTP.
    is_owner = inbound.role == "admin" and sender.id == "owner"
    return Caller(
        owner=owner_of(channel, sender.id, is_owner=is_owner),
        user=sender.id,
        session=ctx.session,
        address=cast("Mapping[str, Any]", msgspec.to_builtins(inbound.address)),
        name=sender.name or sender.username,
    )


def caller_of_session(record: SessionRecord) -> Caller:
    """Return the user of a session in its chat, for what happens without a message."""
    user = record.owner.partition(":")[2] or record.owner
    return Caller(owner=record.owner, user=user, session=record.session, address=record.address)


class Services(Struct, frozen=True, kw_only=True):
    """The parts of the plugin and of the gateway that actions use."""

    sessions: Sessions
    found: Workspaces | ServiceUnavailableError
    """The workspaces, or why there are none, such as a missing git."""
    watch: PullRequestWatch
    announce: Any
    questions: Any
    table: Callable[[str], Any]
    emit: Callable[[BusEvent], None]

    @property
    def workspaces(self) -> Workspaces:
        """The workspaces. Raises ServiceUnavailableError."""
        if isinstance(self.found, ServiceUnavailableError):
            raise self.found
        return self.found

    async def tell(self, address: Mapping[str, Any], message: Message | str, key: str) -> bool:
        """Announce a message once for each key. Return False if the chat cannot be reached at all."""
        return await _attempt(self.announce(address, message, key))

    async def ask(
        self, address: Mapping[str, Any], user: str, title: str, key: str, choices: Sequence[Choice]
    ) -> bool:
        """Ask a user once for each key. Return whether the chat can show the question at all."""
        return await _attempt(
            self.questions.ask(address, title, f"{KEYS}{key}", answerers=[user], choices=choices)
        )


async def _attempt(work: Any) -> bool:
    """Return False for a chat that can never be reached. Raises TrunklineError for a later attempt."""
    try:
        await work
    except TrunklineError as error:
        if error.name not in ("ForbiddenError", "InvalidRequestError"):
            raise
        log.warning("a chat cannot get messages of coding agents", reason=str(error))
        return False
    return True
