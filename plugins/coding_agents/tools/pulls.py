"""Pull requests in chats: their news, and the button that lets the agent fix what a review found.

In: events of the watch, and answers of users. Out: announcements, questions, and tasks for agents. All have
keys of the event, so that a repeated event changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, convert, to_builtins

from gateway import Answer, Choice
from plugins.coding_agents.errors import CodingAgentError, NotReadyError
from plugins.coding_agents.forges.contract import PullRequest
from plugins.coding_agents.forges.watch import PullRequestEvent
from plugins.coding_agents.records import SessionRecord
from plugins.coding_agents.sessions import SpawnRequest
from plugins.coding_agents.tools import replies
from plugins.coding_agents.tools.services import Caller, Services, caller_of_session
from plugins.coding_agents.workspaces import WorkspaceRecord
from plugins.coding_agents.workspaces.records import WorkspaceEvent

FIX = "fix"
_CHOICES = (Choice(FIX, "Let the agent fix it", style="good"), Choice("no", "Not now"))


class PullMerged(WorkspaceEvent, frozen=True, tag="pr:merged"):
    """A pull request of a workspace was merged; ``detail`` is its address."""


class PullClosed(WorkspaceEvent, frozen=True, tag="pr:closed"):
    """A pull request of a workspace was closed; ``detail`` is its address."""


class ChecksFailed(WorkspaceEvent, frozen=True, tag="pr:checks_failed"):
    """Checks of a pull request failed; ``detail`` is its address."""


_EVENTS: Mapping[str, type[WorkspaceEvent]] = {
    "merged": PullMerged,
    "closed": PullClosed,
    "checks_failed": ChecksFailed,
}


class Fix(Struct, frozen=True, kw_only=True):
    """A task that waits for its user's decision."""

    caller: Caller
    workspace: str
    agent: str
    task: str


class Pulls:
    """The news of pull requests, for the chats in which they were made."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._fixes = services.table("fixes")

    async def watch(self, workspace: WorkspaceRecord, caller: Caller | None = None) -> None:
        """Watch the pull request of a workspace. Once is enough.

        Without a ``caller`` the chat of the last session in the workspace gets the news.
        """
        chats = [one for one in self._sessions_of(workspace.owner, workspace.id) if one.address]
        if caller is None and chats:
            caller = caller_of_session(chats[-1])
        elif caller is None:
            # Its end is noted all the same: the workspace is removed some time after it.
            caller = Caller(owner=workspace.owner, user="", session="", address={})
        pull = PullRequest(
            number=workspace.pr_number,
            url=workspace.pr_url,
            state="open",
            title="",
            head=workspace.branch,
            base=workspace.base,
            sha=workspace.commit,
        )
        context = {"caller": to_builtins(caller), "workspace": workspace.id}
        await self._services.watch.add(workspace.url, pull, context)

    async def report(self, event: PullRequestEvent) -> None:
        """Tell the chat about an event, and offer to let the agent fix it."""
        caller = convert(event.context["caller"], Caller)
        workspace = str(event.context["workspace"])
        services = self._services
        if event.kind in ("merged", "closed"):
            await services.workspaces.note_pull(workspace, event.pull.state)
        if kind := _EVENTS.get(event.kind):
            services.emit(kind(workspace, caller.owner, event.pull.url))
        if not caller.address:
            return
        sent = await services.tell(caller.address, replies.pull_news(event), event.key)
        if not sent or event.kind not in ("checks_failed", "comments"):
            return
        last = self._sessions_of(caller.owner, workspace)
        fix = Fix(
            caller=caller,
            workspace=workspace,
            agent=last[-1].agent if last else "claude",
            task=replies.fix_task(event),
        )
        await self._fixes.put(event.key, to_builtins(fix))
        title = f"PR #{event.pull.number}: let the agent fix it?"
        if not await services.ask(caller.address, caller.user, title, event.key, _CHOICES):
            await self._fixes.delete(event.key)

    async def answered(self, key: str, answer: Answer) -> bool:
        """Give the agent its task if the user wants it. Return False if the question is of another part.

        Raises NotReadyError while the agent does something else: the answer is then handed over again.
        """
        stored: Any = await self._fixes.get(key)
        if stored is None:
            return False
        if answer.value == FIX:
            fix = convert(stored, Fix)
            try:
                text = await self._resume(fix, key)
            except NotReadyError:
                waits = "The agent is busy. It gets the task as soon as it is ready."
                await self._services.tell(fix.caller.address, waits, f"{key} waits")
                raise
            except CodingAgentError as error:
                text = f"The agent cannot fix it: {error}"
            await self._services.tell(fix.caller.address, text, f"{key} fix")
        await self._fixes.delete(key)
        return True

    async def _resume(self, fix: Fix, key: str) -> str:
        """Send the task to the session of the workspace, or continue its last one."""
        sessions, owner = self._services.sessions, fix.caller.owner
        known = self._sessions_of(owner, fix.workspace)
        if live := [one for one in known if not one.is_ended and one.spawn_key != key]:
            record = await sessions.send(live[-1].id, owner, text=fix.task, key=key)
            return replies.sent(fix.task, record)
        record = await sessions.spawn(
            SpawnRequest(
                agent=fix.agent,
                owner=owner,
                task=fix.task,
                workspace=fix.workspace,
                address=fix.caller.address,
                session=fix.caller.session,
                key=key,
                resumes=known[-1].id if known else "",
            )
        )
        return (
            f"{record.agent} {replies.code(record.short_id)} works on it in {replies.code(record.workdir)}."
        )

    def _sessions_of(self, owner: str, workspace: str) -> list[SessionRecord]:
        found = self._services.sessions.list(owner)
        return [one for one in found if one.workspace == workspace]
