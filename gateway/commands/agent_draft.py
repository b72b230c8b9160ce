"""Drafts of agents: a hidden agent writes an agent file from a description, which a user may save.

A draft is checked like the output of any model: it can name no file but its own, no tool that its author does
not have, and no model that cannot be called.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path

from msgspec import Struct

from gateway.access.permissions import Permissions
from gateway.access.rooms import Rooms
from gateway.contract.errors import InvalidRequestError, ProviderError, SettingsError
from gateway.conversations.titles import HiddenTurn
from gateway.models import Agents, Models
from gateway.pipeline.model_call import ModelCaller
from gateway.session import RunOverrides, Turn
from gateway.settings import DEFAULT, HIDDEN, MAIN, AgentSettings, parse_agent

DRAFTER = "drafter"
"""Name of the hidden agent."""
FOLDER = "saved_agents"
"""Folder of saved drafts in the data directory."""
NEW = "new"
"""The word after /agent that asks for a draft; no agent can have this name."""
_LONGEST = 8_000
"""Most characters of a draft: the question must show all of it."""
_LONGEST_DESCRIPTION = 2_000
_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_LONGEST_NAME = 40
_NAME_LINE = re.compile(r"^name:[ \t]*(.*?)[ \t]*\n", re.MULTILINE)
_FENCE = re.compile(r"\s*```\w*\n(.*?)\n?```\s*", re.DOTALL)
_SETTINGS = {"description", "system_prompt", "tools", "mode", "model", "temperature", "max_tokens"}
_RESERVED = (MAIN, DEFAULT, NEW, "readme")


class Draft(Struct, frozen=True):
    """A checked draft: the name of the agent, and the text of its file."""

    name: str
    text: str


class AgentDrafts:
    """Writes, checks and saves drafts, as files of ``folder``."""

    def __init__(
        self,
        models: Models,
        agents: Agents,
        caller: ModelCaller,
        permissions: Permissions,
        rooms: Rooms,
        folder: Path,
    ) -> None:
        self._models = models
        self._agents = agents
        self._caller = caller
        self._permissions = permissions
        self._rooms = rooms
        self.folder = folder

    async def write(self, turn: Turn, description: str, model: str) -> Draft:
        """Let a model write an agent. Raises InvalidRequestError for an unusable draft, with the reason."""
        if len(description) > _LONGEST_DESCRIPTION:
            raise InvalidRequestError(f"describe it in at most {_LONGEST_DESCRIPTION:,} characters")
        tools = await self._tools_of(turn)
        request = f"{description}\n\nThe tools are: {', '.join(sorted(tools)) or 'none'}."
        hidden = HiddenTurn(turn.session, turn.entry, DRAFTER, request, turn.lease)
        route = await self._models.resolve(model)
        _, stop = await self._caller.call(hidden, route, self._agents.get(DRAFTER).system_prompt, ())
        return await self._checked(hidden.build_message(stop).text, tools)

    def save(self, draft: Draft) -> Path:
        """Write the file of a draft, whole or not at all. Raises InvalidRequestError if the name is taken."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{draft.name}.md"
        partial = self.folder / f".{draft.name}.{os.getpid()}.tmp"
        try:
            with partial.open("w", encoding="utf-8") as out:
                out.write(draft.text)
                out.flush()
                os.fsync(out.fileno())
            # A link, because a rename would replace a file that another user saved meanwhile.
            os.link(partial, file)
        except FileExistsError:
            raise InvalidRequestError(f"an agent {draft.name!r} exists already") from None
        except OSError as error:
            raise InvalidRequestError(f"{file} cannot be written: {error.strerror}") from None
        finally:
            partial.unlink(missing_ok=True)
        return file

    async def _tools_of(self, turn: Turn) -> frozenset[str]:
        """Return the tools that the author of a draft has here."""
        offered = await turn.plugins.get_filtered_tools(turn.ctx)
        role = turn.ctx.role
        names = frozenset(t.name for t in offered if not self._permissions.denies(t.name, role))
        room = self._rooms.of(turn.entry.channel, turn.entry.inbound).tools
        limits = RunOverrides(tools=self._agents.get(turn.agent).tools).narrow_tools(room)
        return names if limits is None else names & limits

    async def _checked(self, answer: str, tools: Collection[str]) -> Draft:
        fenced = _FENCE.fullmatch(answer)
        text = (answer if fenced is None else fenced[1]).strip() + "\n"
        found = _NAME_LINE.search(text)
        if not text.startswith("---\n") or found is None:
            raise InvalidRequestError("the model wrote no agent file with a name; describe the agent again")
        name, text = found[1].strip("\"'"), text[: found.start()] + text[found.end() :]
        self._check_name(name)
        if not all(one.isprintable() or one in "\n\t" for one in text):
            raise InvalidRequestError("it contains invisible characters, which the question cannot show")
        if len(text) > _LONGEST:
            raise InvalidRequestError(f"it has {len(text):,} characters; at most {_LONGEST:,} can be shown")
        try:
            agent = parse_agent(text, Path(f"{name}.md"))
            _check_settings(agent, tools)
            if agent.model is not None:
                await self._models.resolve(agent.model)
        except (ProviderError, SettingsError) as error:
            raise InvalidRequestError(str(error)) from None
        return Draft(name, text)

    def _check_name(self, name: str) -> None:
        if _NAME.fullmatch(name) is None or len(name) > _LONGEST_NAME:
            raise InvalidRequestError(
                f"{name[:60]!r} is not a name; use up to {_LONGEST_NAME} lower-case letters, digits, hyphens"
            )
        taken = name in self._agents.all or name in (*_RESERVED, *HIDDEN)
        if taken or (self.folder / f"{name}.md").exists():
            raise InvalidRequestError(f"an agent {name!r} exists already, or the name is reserved")


def _check_settings(agent: AgentSettings, tools: Collection[str]) -> None:
    """Raise InvalidRequestError for settings that a draft cannot have."""
    if extra := sorted(agent.model_fields_set - _SETTINGS):
        raise InvalidRequestError(f"a draft cannot set {', '.join(extra)}; edit the file once it is saved")
    if not (agent.system_prompt or "").strip():
        raise InvalidRequestError("it has no system prompt")
    if agent.tools is None:
        # Without the line the agent would have every tool, also those that its author lacks.
        raise InvalidRequestError("it does not say which tools the agent may use (tools: [])")
    for tool in agent.tools:
        if tool not in tools:
            near = get_close_matches(tool, tools, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "it does not exist, or you lack it"
            raise InvalidRequestError(f"unknown tool {tool!r}; {hint}")
