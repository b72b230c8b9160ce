"""Teams: several agents on one task, each in its own worktree, of which the user keeps one.

In: the sessions that one request started. Out: their changes side by side, and the end of those that the user
does not keep. The agents of a team do not know one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, convert, to_builtins

from gateway import Answer, Choice, now_ms
from plugins.coding_agents.errors import NoWorkspaceError, WorkspaceNotFoundError
from plugins.coding_agents.tools import replies
from plugins.coding_agents.tools.services import Caller, Services


class Member(Struct, frozen=True):
    """An agent of a team: its program, session and workspace."""

    agent: str
    session: str
    workspace: str


class Team(Struct, frozen=True, kw_only=True):
    """Agents with the same task. ``key`` is that of the request which started them."""

    key: str
    caller: Caller
    members: tuple[Member, ...]
    at: int


class Teams:
    """The teams of all users; each is kept until its user keeps one of its agents."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._table = services.table("teams")

    async def add(self, caller: Caller, key: str, members: Sequence[Member]) -> None:
        """Remember a team."""
        team = Team(key=key, caller=caller, members=tuple(members), at=now_ms())
        await self._table.put(f"{caller.owner} {key}"[:500], to_builtins(team))

    async def latest(self, owner: str) -> Team:
        """Return the newest team of a user. Raises NoWorkspaceError."""
        found = [convert(value, Team) for _, value in await self._table.items(f"{owner} ")]
        if not found:
            raise NoWorkspaceError(
                "there is no team of agents to compare; start one: /agents new 2 claude https://… TASK"
            )
        return max(found, key=lambda team: team.at)

    async def compare(self, caller: Caller, key: str, members: Sequence[Member] = ()) -> str:
        """Show the changes of agents side by side and ask which to keep. Return what could not be read.

        ``members`` are the agents to compare; without them those of the latest team.
        """
        services = self._services
        if not members:
            members = (await self.latest(caller.owner)).members
        elif len(members) < 2:
            raise NoWorkspaceError("name at least two agents with workspaces, such as /compare 1 2")
        shown = [
            (f"{number} {one.agent}", await services.workspaces.changes(one.workspace, caller.owner))
            for number, one in enumerate(members, 1)
        ]
        await services.announce(caller.address, replies.comparison(caller.session, shown), f"compare {key}")
        await self._table.put(
            f"asked {key}"[:500],
            to_builtins(Team(key=key, caller=caller, members=tuple(members), at=now_ms())),
        )
        choices = [Choice(str(number), f"Keep {name}") for number, (name, _) in enumerate(shown, 1)]
        await services.ask(
            caller.address,
            caller.user,
            "Which changes do you keep?",
            key,
            [*choices, Choice("all", "Keep all")],
        )
        return ""

    async def answered(self, key: str, answer: Answer) -> bool:
        """Keep the agent that the user chose. Return False if the question is of another part."""
        stored: Any = await self._table.get(f"asked {key}"[:500])
        if stored is None:
            return False
        team = convert(stored, Team)
        if answer.value is not None and answer.value.isdigit():
            text = await self.keep(team.caller, team.members, int(answer.value))
            await self._services.tell(team.caller.address, text, f"kept {key}")
        await self._table.delete(f"asked {key}"[:500])
        return True

    async def keep(self, caller: Caller, members: Sequence[Member], number: int) -> str:
        """Stop the other agents and remove their worktrees, with all that is only there."""
        if not 1 <= number <= len(members):
            raise NoWorkspaceError(f"there is no agent {number} in the comparison")
        sessions, workspaces = self._services.sessions, self._services.workspaces
        kept = members[number - 1]
        for one in members:
            if one is kept:
                continue
            if any(one.session == known.id and not known.is_ended for known in sessions.list(caller.owner)):
                await sessions.stop(one.session, caller.owner, force=True)
            try:
                await workspaces.remove(one.workspace, caller.owner, force=True)
            except WorkspaceNotFoundError:
                continue  # removed by an earlier attempt
        for name, value in await self._table.items(f"{caller.owner} "):
            if convert(value, Team).members == tuple(members):
                await self._table.delete(name)
        others = len(members) - 1
        return (
            f"Kept {number} {kept.agent} {replies.code(kept.session.rpartition('-')[2])}; "
            f"{others} other{'s were' if others > 1 else ' was'} stopped, and the worktree removed."
        )
