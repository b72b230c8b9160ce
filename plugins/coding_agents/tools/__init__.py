"""Coding agents for models and users: seven tools, and slash commands that need no model.

In: calls of models, and commands. Out: actions of the ``desk``, for the user who wrote the message. This
module and ``commands`` are loaded with the plugin; the desk and all it needs are loaded by the first action.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from pydantic import Field

from gateway import (
    DisplayHints,
    Tool,
    ToolContext,
    ToolError,
    ToolOutput,
    TrunklineError,
    TurnContext,
    tool_from,
)
from plugins.coding_agents.tools.services import Caller, FinalizeRequest, caller_of

if TYPE_CHECKING:
    from plugins.coding_agents.tools.desk import Desk

OpenDesk = Callable[[], Awaitable["Desk"]]
"""Starts the services on first use, and returns the desk. Raises ServiceUnavailableError."""

_LONG_MS = 900_000
_MOST_CHATS = 1_000

Target = Annotated[
    str, Field(description="Number, id or short id of an agent; empty for the one that was started last")
]


class AgentTools:
    """The tools of models. The seed's names in capitals mean the same: names match in any case."""

    def __init__(self, desk: OpenDesk) -> None:
        self._desk = desk
        self._callers: dict[str, Caller] = {}
        self.chats: Any = None
        """The durable table of callers, for calls that are repeated after a crash."""
        self.all: Sequence[Tool] = (
            tool_from(
                self.spawn_coding_agent,
                display=DisplayHints(verb="starting a coding agent", fields={"command": "task"}),
                match_key=lambda arguments: arguments["agent"],
                idempotent=True,
                timeout_ms=_LONG_MS,
            ),
            tool_from(
                self.send_to_coding_agent,
                display=DisplayHints(verb="sending to a coding agent", fields={"command": "text"}),
                idempotent=True,
            ),
            tool_from(
                self.stop_coding_agent,
                display=DisplayHints(verb="stopping a coding agent"),
                idempotent=True,
            ),
            tool_from(
                self.list_coding_agents,
                display=DisplayHints(verb="listing coding agents"),
                idempotent=True,
                read_only=True,
            ),
            tool_from(
                self.provision_workspace,
                display=DisplayHints(verb="preparing a workspace", fields={"url": "repo"}),
                match_key=lambda arguments: arguments.get("repo") or None,
                match_kind="url",
                idempotent=True,
                timeout_ms=_LONG_MS,
            ),
            tool_from(
                self.finalize_workspace,
                display=DisplayHints(verb="committing and pushing", fields={"command": "title"}),
                idempotent=True,
                timeout_ms=_LONG_MS,
            ),
            tool_from(
                self.show_changes,
                display=DisplayHints(verb="showing the changes"),
                idempotent=True,
                read_only=True,
                timeout_ms=_LONG_MS,
            ),
        )
        self._names = {tool.name for tool in self.all}

    async def note_chat(self, tool: str, ctx: TurnContext) -> None:
        """Remember the author and the chat of a call's message, which a tool itself does not get."""
        if tool.casefold() not in self._names:
            return
        caller = caller_of(ctx)
        if self._callers.get(ctx.session) == caller:
            return
        if self.chats is not None:
            await self.chats.put(ctx.session, msgspec.to_builtins(caller))
        self._callers[ctx.session] = caller
        if len(self._callers) > _MOST_CHATS:
            del self._callers[next(iter(self._callers))]

    async def spawn_coding_agent(
        self,
        context: ToolContext,
        agent: Annotated[str, Field(description="claude, codex, gemini, opencode, aider, pi or shell")],
        task: Annotated[str, Field(description="What the agent is to do, in the words of the user")] = "",
        repo: Annotated[
            str, Field(description="URL of the repository; the agent gets a new worktree of it")
        ] = "",
        branch: Annotated[str, Field(description="Branch to work on; a new one if empty")] = "",
        base: Annotated[str, Field(description="Branch to begin from; the default branch if empty")] = "",
        workdir: Annotated[
            str, Field(description="Absolute folder to work in, instead of a repository")
        ] = "",
        workspace: Annotated[str, Field(description="Id of an existing workspace to work in")] = "",
        model: Annotated[str, Field(description="Model of the program; its default if empty")] = "",
        count: Annotated[
            int, Field(ge=1, le=5, description="Agents to start on the same task, each in a worktree")
        ] = 1,
    ) -> str:
        """Start a coding agent, such as Claude Code, in a terminal that continues after this conversation.

        The user sees in the chat what it does, and is asked what it may do.
        """
        from plugins.coding_agents.tools.desk import Start

        start = Start(
            agents=tuple(name.strip() for name in agent.split(",") if name.strip()),
            task=task,
            repo=repo,
            branch=branch,
            base=base,
            workdir=workdir,
            workspace=workspace,
            model=model,
            count=count,
        )
        return await self._act(context, lambda desk, caller: desk.spawn(caller, start, context.key))

    async def send_to_coding_agent(
        self,
        context: ToolContext,
        text: Annotated[str, Field(description="Text to send, such as y to accept a question")] = "",
        keys: Annotated[
            list[str], Field(max_length=50, description="Keys to press instead, such as enter or ctrl+c")
        ] = [],  # noqa: B006 - pydantic copies it for each call
        session: Target = "",
    ) -> str:
        """Send text or keys to a coding agent. Accept a question of an agent only if the user says so."""
        return await self._act(
            context,
            lambda desk, caller: desk.send(caller, context.key, session=session, text=text, keys=keys),
        )

    async def stop_coding_agent(
        self,
        context: ToolContext,
        session: Annotated[
            str, Field(description="Number or id of the agent, or all; empty for the last one")
        ] = "",
        force: Annotated[bool, Field(description="End it at once")] = False,
    ) -> str:
        """Stop a coding agent. Its changes stay in its workspace."""
        return await self._act(context, lambda desk, caller: desk.stop(caller, session, force=force))

    async def list_coding_agents(self, context: ToolContext) -> str:
        """List the coding agents of the user: number, program, id, status and folder."""
        desk, caller = await self._desk(), await self._caller(context)
        return desk.list(caller, prompts=False)

    async def provision_workspace(
        self,
        context: ToolContext,
        repo: Annotated[str, Field(description="URL of the repository")] = "",
        branch: Annotated[str, Field(description="Branch to work on; a new one if empty")] = "",
        base: Annotated[str, Field(description="Branch to begin from; the default branch if empty")] = "",
        strategy: Annotated[
            Literal["worktree", "clone"], Field(description="A worktree of the cached repository, or a clone")
        ] = "worktree",
        parent: Annotated[
            str, Field(description="Id of a workspace whose repository is used, instead of repo")
        ] = "",
    ) -> str:
        """Prepare a workspace: the files of a repository on a branch, in which agents can work."""
        return await self._act(
            context,
            lambda desk, caller: desk.provision(
                caller, context.key, repo=repo, branch=branch, base=base, strategy=strategy, parent=parent
            ),
        )

    async def finalize_workspace(
        self,
        context: ToolContext,
        workspace: Annotated[
            str, Field(description="Id of the workspace, or number of its agent; empty for the last one")
        ] = "",
        message: Annotated[str, Field(description="Message of the commit")] = "",
        title: Annotated[str, Field(description="Title of the pull request")] = "",
        body: Annotated[str, Field(description="Text of the pull request")] = "",
        base: Annotated[str, Field(description="Branch to merge into; the default branch if empty")] = "",
        draft: Annotated[bool, Field(description="Open it as a draft")] = False,
        pull_request: Annotated[bool, Field(description="Open a pull request after the push")] = True,
    ) -> str:
        """Commit all changes of a workspace, push its branch, and open a pull request."""
        request = FinalizeRequest(
            message=message, title=title, body=body, base=base, draft=draft, pr=pull_request
        )
        return await self._act(context, lambda desk, caller: desk.finalize(caller, workspace, request))

    async def show_changes(
        self,
        context: ToolContext,
        workspace: Annotated[
            str, Field(description="Id of the workspace, or number of its agent; empty for the last one")
        ] = "",
    ) -> ToolOutput:
        """Show the user the changes of a workspace, and read them. The user sees the whole diff."""
        changes = await self._act(context, lambda desk, caller: desk.changes(caller, context.key, workspace))
        if not changes.files:
            return ToolOutput("Nothing has changed.")
        note = "\n(cut off)" if changes.truncated else ""
        return ToolOutput(f"{changes.stat}\n\n{changes.patch}{note}", untrusted=True)

    async def _act(self, context: ToolContext, action: Callable[[Desk, Caller], Awaitable[Any]]) -> Any:
        """Run an action for the caller. Raises ToolError with the code and text of a named error."""
        try:
            return await action(await self._desk(), await self._caller(context))
        except ToolError:
            raise
        except TrunklineError as error:
            raise ToolError(f"{error.name}: {error}") from error

    async def _caller(self, context: ToolContext) -> Caller:
        known = self._callers.get(context.session)
        if known is None and self.chats is not None:
            stored = await self.chats.get(context.session)
            known = None if stored is None else msgspec.convert(stored, Caller)
        if known is None:
            raise ToolError("it is not known for which user the coding agent works; write the request again")
        return known
