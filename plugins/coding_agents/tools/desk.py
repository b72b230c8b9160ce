"""The actions of users on coding agents: what model tools and slash commands have in common.

In: requests of a caller, each with a key that is the same if the request is repeated after a crash. Out:
replies in Markdown, and messages with diffs. An action finds the sessions and workspaces of its caller only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from gateway import Answer, TrunklineError
from plugins.coding_agents.adapters import find_adapter
from plugins.coding_agents.errors import (
    CodingAgentError,
    MissingRepoError,
    NoInputError,
    NoSessionError,
    NoWorkspaceError,
    SessionNotFoundError,
)
from plugins.coding_agents.records import SessionRecord
from plugins.coding_agents.sessions import SpawnRequest
from plugins.coding_agents.tools import replies
from plugins.coding_agents.tools.pulls import Pulls
from plugins.coding_agents.tools.services import KEYS, Caller, FinalizeRequest, Services
from plugins.coding_agents.tools.teams import Member, Teams
from plugins.coding_agents.workspaces import Changes, FinalizeResult, WorkspaceRecord

MOST_AT_ONCE = 5
"""Agents that one request starts."""
_NUMBER = re.compile(r"#?(\d{1,3})")
_TITLE = 72
_SCREEN_LINES = 30


class Start(Struct, frozen=True, kw_only=True):
    """A request to start agents: each of ``agents``, ``count`` times.

    They work in a new worktree of ``repo``, in ``workspace``, or in the folder ``workdir``.
    """

    agents: tuple[str, ...]
    task: str = ""
    repo: str = ""
    branch: str = ""
    base: str = ""
    workdir: str = ""
    workspace: str = ""
    model: str = ""
    count: int = 1


class Desk:
    """The actions, for the callers of one gateway."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self._sessions = services.sessions
        self.pulls = Pulls(services)
        self.teams = Teams(services)

    async def answered(self, answer: Answer) -> None:
        """Take the answer to a question of this package."""
        key = answer.key.removeprefix(KEYS)
        if not await self.pulls.answered(key, answer):
            await self.teams.answered(key, answer)

    async def spawn(self, caller: Caller, start: Start, key: str) -> str:
        """Start agents. Several ones get a worktree each, also if they share a repository."""
        names = [find_adapter(name).name for name in start.agents] * start.count
        if not names:
            raise NoInputError("no coding agent was named")
        if len(names) > MOST_AT_ONCE:
            raise NoInputError(f"at most {MOST_AT_ONCE} agents can be started at once")
        repo = start.repo
        if len(names) > 1 and not repo:
            if not start.workspace:
                raise MissingRepoError("several agents need a repository, so that each gets a worktree of it")
            repo = self.services.workspaces.get(start.workspace, caller.owner).url
        said: list[str] = []
        members: list[Member] = []
        for number, name in enumerate(names, 1):
            own = f"{key} {number}"
            workspace = start.workspace
            if repo:
                branch = start.branch if len(names) == 1 or not start.branch else f"{start.branch}-{number}"
                made = await self.services.workspaces.provision(
                    caller.owner, repo, branch=branch, base=start.base, task=start.task, key=own
                )
                workspace = made.id
                if setup := replies.prepared(made):
                    said.append(setup)
            elif not workspace and not start.workdir:
                workspace = self._current_workspace(caller)
            record = await self._start(caller, start, name, workspace, own)
            said.append(replies.started(find_adapter(name).title, record))
            members.append(Member(name, record.id, workspace))
        if len(members) > 1:
            await self.teams.add(caller, key, members)
            said.append("`/compare` shows their changes side by side.")
        return "\n\n".join(said)

    def list(self, caller: Caller, *, prompts: bool = True) -> str:
        """Return the numbered list of the caller's sessions."""
        return replies.listed(self.listed(caller), prompts=prompts)

    async def send(
        self, caller: Caller, key: str, *, session: str = "", text: str = "", keys: Sequence[str] = ()
    ) -> str:
        """Send a text, or keys by their names."""
        if not text.strip() and not keys:
            raise NoInputError("there is nothing to send: give a text, or names of keys such as enter")
        record = self.find(caller, session)
        if record.workspace and text and record.question is None:
            # A task may spoil what the previous one did: /agents N undo brings it back.
            with suppress(CodingAgentError):
                await self.services.workspaces.checkpoint(record.workspace, caller.owner, _first_line(text))
        record = await self._sessions.send(record.id, caller.owner, text=text, keys=keys, key=key)
        return replies.sent(" ".join(keys) if keys else text, record)

    async def stop(self, caller: Caller, session: str = "", *, force: bool = False) -> str:
        """Stop a session, or ``all``."""
        if session == "all":
            own = [one for one in self._sessions.list(caller.owner) if not one.is_ended]
            found = [one for one in own if force or not self._sessions.is_away(one)]
            if not found:
                raise NoSessionError("no coding agent of yours runs")
        else:
            found = [self.find(caller, session)]
        return replies.stopped(
            [await self._sessions.stop(one.id, caller.owner, force=force) for one in found]
        )

    def attach(self, caller: Caller, session: str = "") -> str:
        """Return the screen of a session, and how to use its terminal."""
        record = self.find(caller, session)
        lines = self._sessions.session(record.id, caller.owner).tail(_SCREEN_LINES)
        screen = replies.block("\n".join(lines)) if lines else "The screen is empty."
        return (
            f"{replies.started(find_adapter(record.agent).title, record)}\n\n{screen}\n\n"
            f"The page of the gateway has its terminal. Here `/agents {record.short_id} TEXT` sends a text, "
            f"and `/agents {record.short_id} keys enter` keys."
        )

    async def provision(
        self, caller: Caller, key: str, *, repo: str, branch: str, base: str, strategy: str, parent: str
    ) -> str:
        """Make a workspace."""
        if not repo and not parent:
            raise MissingRepoError("name the repository, such as https://github.com/acme/app")
        record = await self.services.workspaces.provision(
            caller.owner,
            repo,
            branch=branch,
            base=base,
            strategy="clone" if strategy == "clone" else "worktree",
            parent=parent,
            key=key,
        )
        return replies.provisioned(record, str(self.services.workspaces.places.tree(record.id)))

    async def changes(self, caller: Caller, key: str, target: str = "") -> Changes:
        """Show the changes of a workspace in the chat, and return them."""
        workspace, session = self._target(caller, target)
        changes = await self.services.workspaces.changes(workspace.id, caller.owner)
        by = f"{session.agent} {replies.code(session.short_id)} · " if session is not None else ""
        heading = f"{by}{workspace.repository} · {replies.code(workspace.branch)}"
        message = replies.changes_message(caller.session, heading, changes)
        await self.services.announce(caller.address, message, f"diff {key}")
        return changes

    async def finalize(self, caller: Caller, target: str, request: FinalizeRequest) -> str:
        """Commit, push and open a pull request, and watch that."""
        workspace, _ = self._target(caller, target)
        result = await self.finalize_workspace(caller.owner, workspace.id, request, caller)
        note = "The repository is a folder, which has no pull requests." if request.pr else ""
        return replies.finalized(result, note if workspace.url.startswith("file:") else "")

    async def finalize_workspace(
        self, owner: str, workspace: str, request: FinalizeRequest, caller: Caller | None = None
    ) -> FinalizeResult:
        """Finalize a workspace of a user. Without a ``caller`` the chat of its last session gets the news."""
        workspaces = self.services.workspaces
        record = workspaces.get(workspace, owner)
        used = [one for one in self._sessions.list(owner) if one.workspace == record.id]
        title = request.title or _first_line(request.message)
        title = title or (_first_line(used[-1].task) if used else "")
        result = await workspaces.finalize(
            record.id,
            owner,
            message=request.message,
            title=title,
            body=request.body,
            base=request.base,
            draft=request.draft,
            pr=request.pr,
            by=("" if caller is None else caller.name, ""),
        )
        record = workspaces.get(record.id, owner)
        # One that has ended is watched only if this request opened it.
        if record.pr_number and (record.pr_state == "open" or not result.nothing_to_commit):
            await self.pulls.watch(record, caller)
        return result

    async def undo(self, caller: Caller, session: str = "", number: int = 0) -> str:
        """Restore the files of a workspace as they were before a task."""
        workspace, _ = self._target(caller, session)
        found = await self.services.workspaces.undo(workspace.id, caller.owner, number)
        before = f" as they were before {replies.code(found.label)}" if found.label else ""
        return f"Restored the files{before} (checkpoint {found.number})."

    async def resume(self, caller: Caller, key: str, session: str = "") -> str:
        """Continue an ended session in a new one."""
        record = await self._sessions.resume(self.find(caller, session).id, caller.owner, key)
        return replies.started(find_adapter(record.agent).title, record)

    async def compare(self, caller: Caller, key: str, targets: Sequence[str] = ()) -> None:
        """Show the changes of several agents side by side, and ask which to keep."""
        found = [self._target(caller, target) for target in targets]
        members = [
            Member(session.agent if session else "agent", session.id if session else "", workspace.id)
            for workspace, session in found
        ]
        await self.teams.compare(caller, key, members)

    async def keep(self, caller: Caller, number: int) -> str:
        """Keep one agent of the latest team."""
        team = await self.teams.latest(caller.owner)
        return await self.teams.keep(caller, team.members, number)

    async def workdir_of(self, workspace: str, owner: str) -> str:
        """Return the folder of a workspace, which is in use from now on."""
        workspaces = self.services.workspaces
        record = await workspaces.use(workspace, owner, in_use=True)
        return str(workspaces.places.tree(record.id))

    def find(self, caller: Caller, name: str = "") -> SessionRecord:
        """Return a session by number, id or short id; without one the last that was started.

        Raises NoSessionError and SessionNotFoundError.
        """
        listed = self.listed(caller)
        if not listed:
            raise NoSessionError("you have no coding agents; start one: /agents new claude TASK")
        if not name:
            return next((one for one in reversed(listed) if not one.is_ended), listed[-1])
        if number := _NUMBER.fullmatch(name):
            at = int(number[1])
            if not 1 <= at <= len(listed):
                raise SessionNotFoundError(f"there is no agent {at}; /agents lists yours")
            return listed[at - 1]
        return self._sessions.get(name, caller.owner)

    def listed(self, caller: Caller) -> list[SessionRecord]:
        """Return the sessions that lists show, the oldest first: those that run, and the last ended ones."""
        found = self._sessions.list(caller.owner)
        ended = [one for one in found if one.is_ended][-MOST_AT_ONCE:]
        return [one for one in found if not one.is_ended or one in ended]

    def _target(self, caller: Caller, name: str) -> tuple[WorkspaceRecord, SessionRecord | None]:
        """Return the workspace that a name means, of a session or its own, and the session.

        Without a name it is that of the last session with a workspace, else the newest workspace.
        """
        listed = self._sessions.list(caller.owner)
        if name.startswith("ws-"):
            workspace = self.services.workspaces.get(name, caller.owner)
        elif name:
            record = self.find(caller, name)
            if not record.workspace:
                raise NoWorkspaceError(
                    f"{record.agent} {record.short_id} works in {record.workdir}, which is not a workspace; "
                    "start an agent with the address of a repository to get one"
                )
            return self.services.workspaces.get(record.workspace, caller.owner), record
        else:
            known = {one.id: one for one in self.services.workspaces.list(caller.owner)}
            for record in reversed(listed):
                if record.workspace in known:
                    return known[record.workspace], record
            if not known:
                raise NoWorkspaceError(
                    "you have no workspace; start an agent with the address of a repository to get one"
                )
            workspace = next(iter(known.values()))
        last = [one for one in listed if one.workspace == workspace.id]
        return workspace, last[-1] if last else None

    def _current_workspace(self, caller: Caller) -> str:
        """Return the newest workspace that no session uses yet; "" without one."""
        if isinstance(self.services.found, TrunklineError):
            return ""
        used = {one.workspace for one in self._sessions.list(caller.owner)}
        free = [one for one in self.services.workspaces.list(caller.owner) if one.status == "ready"]
        return next((one.id for one in free if one.id not in used), "")

    async def _start(
        self, caller: Caller, start: Start, agent: str, workspace: str, key: str
    ) -> SessionRecord:
        try:
            return await self._sessions.spawn(
                SpawnRequest(
                    agent=agent,
                    owner=caller.owner,
                    task=start.task,
                    workdir="" if workspace else start.workdir,
                    workspace=workspace,
                    model=start.model,
                    address=caller.address,
                    session=caller.session,
                    key=key,
                )
            )
        except CodingAgentError:
            # The worktree of an agent that could not be started has no work to lose.
            if start.repo and workspace:
                await self.services.workspaces.remove(workspace, caller.owner, force=True)
            raise


def _first_line(text: str) -> str:
    line = text.strip().split("\n", 1)[0]
    return line if len(line) <= _TITLE else f"{line[: _TITLE - 1].rstrip()}…"
