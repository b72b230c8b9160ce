"""The commands that select the model and the agent of a session: ``/model`` and ``/agent``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from gateway.contract.errors import ProviderError, SettingsError
from gateway.contract.plugin import CommandContext, MentionCompletion, Plugin, PluginContext, SlashCommand
from gateway.extensions.registry import AgentSources
from gateway.models import Agents, Models, is_chat_model
from gateway.session import Session, Sessions
from gateway.session.frames import SessionFrame
from gateway.settings import DEFAULT

_MAX_SHOWN = 10
_LISTS_TIMEOUT = 3.0
"""Seconds to wait for the model lists of providers, because a user waits for the reply."""


class ModelCommands(Plugin):
    """/model and /agent; the selection is stored with the session.

    The plugin publishes the agents registry to which plugins add their folders. ``/agent`` reads the folders
    again, so that agents added at run time can be selected.
    """

    name = "choosing"

    def __init__(
        self, sessions: Sessions, models: Models, agents: Agents, default_model: Callable[[], str]
    ) -> None:
        self._sessions = sessions
        self._models = models
        self._agents = agents
        self._default_model = default_model
        self._sources = AgentSources()

    async def activate(self, ctx: PluginContext) -> None:
        """Publish the agents registry, and complete the arguments of ``/agent`` and ``/model``."""
        if ctx.set_agents_registry is not None:
            ctx.set_agents_registry(self._sources)
        ctx.register_mention_provider("/agent ", self._complete_agent)
        ctx.register_mention_provider("/model ", self._complete_model)

    def _complete_agent(self, partial: str) -> list[MentionCompletion]:
        return [
            MentionCompletion(f"/agent {name}", name, agent.description)
            for name, agent in self._agents.all.items()
            if partial.lower() in name.lower()
        ]

    async def _complete_model(self, partial: str) -> list[MentionCompletion]:
        names = [name.strip("`").partition("`")[0] for name in await self._names()]
        return [
            MentionCompletion(f"/model {name}", name) for name in names if partial.lower() in name.lower()
        ]

    def commands(self) -> Sequence[SlashCommand]:
        """Return /model and /agent."""
        return (
            SlashCommand("model", "Show or change the model: /model NAME, /model default", self._model),
            SlashCommand("agent", "Show or change the agent: /agent NAME", self._agent),
        )

    async def _model(self, rest: str, ctx: CommandContext) -> str:
        session = self._sessions.get_loaded(ctx.session)
        if not rest:
            return await self._about_models(session, ctx.channel)
        if rest == DEFAULT:
            session.row.model = None
            self._publish_model(session, ctx.channel)
            return f"This session uses the default model again, `{self._default_for(session, ctx.channel)}`."
        try:
            route = await self._models.resolve(rest)
        except (ProviderError, SettingsError) as error:
            return f"The model is unchanged: {error}"
        # Store an alias by name, so that a later change of the settings applies to this session.
        session.row.model = rest if rest in self._models.configured.aliases else route.name
        self._publish_model(session, ctx.channel)
        return f"This session now uses {_label(rest, route.name)}."

    async def _about_models(self, session: Session, channel: str) -> str:
        usual = self._default_for(session, channel)
        now = session.row.model or usual
        lines = [f"The model is `{now}`{'' if now == usual else f'; the default is `{usual}`'}."]
        others = [name for name in await self._names() if name.strip("`").partition("`")[0] != now]
        if others:
            more = f" and {len(others) - _MAX_SHOWN} more" if len(others) > _MAX_SHOWN else ""
            lines.append(f"Other models: {', '.join(others[:_MAX_SHOWN])}{more}.")
        back = "" if session.row.model is None else f"; `/model {DEFAULT}` restores the default"
        return "\n\n".join([*lines, f"`/model NAME` selects another one{back}."])

    async def _names(self) -> Sequence[str]:
        """Return the models to choose from: aliases, then the chat models of each provider."""
        aliases = [_label(alias, model) for alias, model in self._models.configured.aliases.items()]
        listed = await self._models.lists.get_all(self._models.available_providers(), _LISTS_TIMEOUT)
        offered = [
            [f"`{provider}/{model.id}`" for model in found.models if is_chat_model(model.id)]
            for provider, found in listed.items()
        ]
        return [*aliases, *dict.fromkeys(_interleave(offered))]

    def _publish_model(self, session: Session, channel: str) -> None:
        """Publish the session's current model to its viewers."""
        session.publish(SessionFrame(model=session.row.model or self._default_for(session, channel)))

    def _default_for(self, session: Session, channel: str) -> str:
        agent = self._agents.get(self._agents.choose(session.row.agent, channel))
        return agent.model or self._default_model()

    async def _agent(self, rest: str, ctx: CommandContext) -> str:
        session = self._sessions.get_loaded(ctx.session)
        await asyncio.to_thread(self._agents.add_folders, self._sources.list())
        if not rest:
            return self._about_agents(self._agents.choose(session.row.agent, ctx.channel))
        if rest == DEFAULT:
            session.row.agent = None
        elif rest in self._agents.all:
            session.row.agent = rest
        else:
            near = self._agents.close_matches(rest)
            known = ", ".join(self._agents.all)
            hint = f"did you mean {', '.join(near)}?" if near else f"the agents are {known}"
            return f"The agent is unchanged: unknown agent {rest!r}; {hint}"
        self._publish_model(session, ctx.channel)
        name = self._agents.choose(session.row.agent, ctx.channel)
        picked = session.row.model
        with_model = f" with the model `{picked}` selected in this session" if picked else ""
        return f"This session now uses the agent `{name}`{with_model}."

    def _about_agents(self, now: str) -> str:
        lines = [f"The agent is `{now}`."]
        others = [profile for name, profile in self._agents.all.items() if name != now]
        lines += [f"- `{other.name}` {other.description}".rstrip() for other in others]
        if others:
            lines.append("\n`/agent NAME` selects another one.")
        return "\n".join(lines)


def _label(name: str, full_name: str) -> str:
    return f"`{full_name}`" if name == full_name else f"`{name}` ({full_name})"


def _interleave(lists: Iterable[Sequence[str]]) -> Iterable[str]:
    """Yield the first of each list, then the second of each, and so on."""
    lists = list(lists)
    for place in range(max(map(len, lists), default=0)):
        yield from (names[place] for names in lists if place < len(names))
