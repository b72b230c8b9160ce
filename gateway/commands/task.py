"""The tool ``task``: the model gives a task to an agent, which works on it in its own session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec.structs import replace
from pydantic import Field

from gateway.contract.errors import ToolError
from gateway.contract.messages import DisplayHints
from gateway.contract.plugin import Plugin
from gateway.contract.tool import Tool, ToolContext, ToolOutput, tool_from
from gateway.models import Agents

_LIMIT_MS = 600_000
"""Time limit of a call besides the time of its run."""


class Tasks(Plugin):
    """The tool for nested runs. Hidden agents cannot be chosen."""

    name = "tasks"

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._listed: object = None
        self._tool = tool_from(
            self.task,
            display=DisplayHints(verb="working on a task"),
            # It does nothing itself: each call of the run needs its own permission. A repeated call finds
            # the run of the first one.
            read_only=True,
            idempotent=True,
            concurrent=True,
            timeout_ms=_LIMIT_MS,
        )
        self._about = self._tool.definition.description

    def tools(self) -> Sequence[Tool]:
        """Return the tool; its description lists the agents that there are now."""
        agents = self._agents.all
        # Built again only for other agents: the same object is what counts as built in.
        if agents is not self._listed:
            lines = [f"- {name}: {one.description}".rstrip(": ") for name, one in agents.items()]
            about = "\n".join((self._about, "The agents:", *lines))
            definition = replace(self._tool.definition, description=about)
            self._tool, self._listed = replace(self._tool, definition=definition), agents
        return (self._tool,)

    async def task(
        self,
        context: ToolContext,
        description: Annotated[
            str,
            Field(min_length=1, max_length=80, description="The task in three to seven words, for the user"),
        ],
        prompt: Annotated[
            str,
            Field(min_length=1, description="The whole task. The agent knows nothing of this conversation"),
        ],
        agent: Annotated[
            str,
            Field(description="The name of the agent that works on it"),
        ],
        session: Annotated[
            str | None, Field(description="The session of an earlier task, to continue with what it knows")
        ] = None,
    ) -> ToolOutput:
        """Give a task to an agent that works on its own, and get its last message as the result.

        Use it for work of many steps whose details this conversation does not need. Several calls in one
        reply run at the same time. The user does not see the result: tell what matters of it.
        """
        if not prompt.strip() or not description.strip():
            raise ToolError("the description and the prompt must not be empty")
        if agent not in self._agents.all:
            near = self._agents.close_matches(agent)
            known = ", ".join(sorted(self._agents.all))
            hint = f"did you mean {' or '.join(near)}?" if near else f"the agents are {known}"
            raise ToolError(f"unknown agent {agent!r}; {hint}")
        nested = context.run_nested
        try:
            text, failed = await nested(prompt, agent=agent, description=description, session=session), False
        except ToolError as error:
            text, failed = f"Error: {error}", True
        place = f"\n\n(task session: {nested.sessions[-1]})" if nested.sessions else ""
        return ToolOutput(f"{text}{place}", is_error=failed, title=description)
