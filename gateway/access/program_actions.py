"""Permissions of programs that plugins run for users, outside of a turn: rules first, then earlier answers.

The name of an action begins with its plugin's name and a colon, such as ``coding_agents:claude:Bash``; rules
of ``[permissions]`` name it. A rule for all tools (``*``) never allows one. The plugin asks the user where
nothing decides, and reports the answer: an "always" becomes a grant, and each answer a row of the audit log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import convert, structs

from gateway.access.grants import Grant
from gateway.access.people import THE_OWNER, UserRef
from gateway.access.permissions import Action, Permissions
from gateway.access.policy import Access
from gateway.confinement.programs import Decision, ProgramAction
from gateway.contract.channel import Address, InboundMessage, Sender, SenderRole
from gateway.contract.errors import InvalidRequestError
from gateway.contract.messages import now_ms
from gateway.contract.provider import ToolDefinition
from gateway.contract.tool import Tool
from gateway.store import Op
from gateway.store.writes import audit_op

_COMPOUND = re.compile(r"[;&|<>`$()\n\r]")
"""Characters with which a shell runs more than the words that a person's pattern was written for."""


class ProgramPermissions:
    """The permissions of one plugin's programs; see ``gateway.confinement.programs.PermissionService``."""

    def __init__(self, access: Access, plugin: str) -> None:
        self._access = access
        self._plugin = plugin

    async def decide(self, action: ProgramAction) -> Action:
        """Return what rules and earlier answers say about an action."""
        tool, role = self._tool(action), await self._role(action)
        if role is None:
            return "deny"
        decided = _by_rule(self._access.permissions, tool, action.text, role)
        if decided != "ask":
            return decided
        user = UserRef.parse(action.user)
        covered = await self._access.grants.allows(action.session, user, tool, _always(action))
        return "allow" if covered else "ask"

    async def record(self, action: ProgramAction, decision: Decision, by: str, key: str) -> None:
        """Store an answer, and the grant of an "always"; once for each key."""
        self._tool(action)
        ops: list[Op] = [
            audit_op(by, f"approval.{decision}", action.name, f"{_always(action)} in {action.session}")
        ]
        if decision == "always":
            user = UserRef.parse(action.user)
            ops.append(
                Grant(
                    id=key,
                    session=action.session,
                    channel=user.channel,
                    user_id=user.user,
                    tool=action.name,
                    matches=_always(action),
                    approved_by=by,
                    at=now_ms(),
                ).put()
            )
        await self._access.grants.write(*ops)

    def answerers(self, action: ProgramAction) -> tuple[str, ...]:
        """Return who may answer in the chat besides admins: the user, if it is one of the chat's channel."""
        user = UserRef.parse(action.user)
        return (user.user,) if user.channel in ("", _address(action.address).channel) else ()

    def _tool(self, action: ProgramAction) -> Tool:
        if not action.name.startswith(f"{self._plugin}:"):
            raise InvalidRequestError(
                f"plugin {self._plugin!r} cannot decide about {action.name[:80]!r}; the name of an action "
                f"begins with {self._plugin}:"
            )
        return Tool(
            definition=ToolDefinition(action.name, "", {}),
            execute=_run_by_program,
            match_key=lambda _arguments: action.text,
        )

    async def _role(self, action: ProgramAction) -> SenderRole | None:
        user = UserRef.parse(action.user)
        if user == THE_OWNER:
            return "admin"
        address = structs.replace(_address(action.address), channel=user.channel)
        asked = InboundMessage(
            session=action.session, dedup_key="", address=address, sender=Sender(user.user)
        )
        await self._access.confirm(user.channel, asked)
        return self._access.policy.role(user.channel, asked)


def _by_rule(permissions: Permissions, tool: Tool, text: str, role: SenderRole) -> Action:
    """Return what the rules decide. A pattern allows no more than one command of a shell."""
    decided = permissions.decide(tool, {}, role, ask_by_default=True)
    if decided != "allow" or not _COMPOUND.search(text):
        return decided
    plain = permissions.decide(structs.replace(tool, match_key=None), {}, role, ask_by_default=True)
    return "allow" if plain == "allow" else "ask"


def _always(action: ProgramAction) -> str:
    """Return the text that an "always" stores: it covers this text in this folder."""
    return f"{action.text} (in {action.folder})"


def _address(given: Mapping[str, Any]) -> Address:
    return convert({"channel": "", **given}, Address)


async def _run_by_program(_arguments: Any, _context: Any) -> str:
    raise InvalidRequestError("an action of a program is run by the program")
