"""The commands that select the model and the agent of a session: ``/model`` and ``/agent``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import structlog

from gateway.commands.agent_draft import NEW, AgentDrafts
from gateway.contract.errors import InvalidRequestError, ProviderError, SettingsError
from gateway.contract.plugin import CommandContext, MentionCompletion, Plugin, PluginContext, SlashCommand
from gateway.contract.services import UIService
from gateway.events.types import ModelChanged
from gateway.extensions.registry import AgentSources
from gateway.models import Agents, Models, is_chat_model
from gateway.session import Session, Sessions, running
from gateway.session.frames import SessionFrame
from gateway.settings import DEFAULT

log = structlog.get_logger("trunkline.agents")

_MAX_SHOWN = 10
_LISTS_TIMEOUT, _CHOICES_TIMEOUT = 3.0, 1.5
"""Seconds to wait for the model lists of providers, because a user waits for the reply or for the choices."""
_RESTORE = MentionCompletion(DEFAULT, "", "restores the default")


class ModelCommands(Plugin):
    """/model and /agent; the selection is stored with the session. Admins let a model draft new agents.

    The plugin publishes the agents registry to which plugins add their folders. ``/agent`` reads the folders
    again, so that agents added at run time can be selected.
    """

    name = "choosing"

    def __init__(
        self,
        sessions: Sessions,
        models: Models,
        agents: Agents,
        default_model: Callable[[], str],
        drafts: Callable[[], AgentDrafts],
    ) -> None:
        self._sessions = sessions
        self._models = models
        self._agents = agents
        self._default_model = default_model
        self._drafts = drafts
        self._sources = AgentSources()
        self._ui: UIService | None = None

    async def activate(self, ctx: PluginContext) -> None:
        """Publish the agents registry."""
        self._ui = ctx.ui
        if ctx.set_agents_registry is not None:
            ctx.set_agents_registry(self._sources)

    def commands(self) -> Sequence[SlashCommand]:
        """Return /model and /agent."""
        return (
            SlashCommand(
                "model",
                "Show or change the model: /model NAME, /model default",
                self._model,
                choices=self._model_choices,
            ),
            SlashCommand(
                "agent",
                "Show or change the agent: /agent NAME, /agent new DESCRIPTION",
                self._agent,
                choices=self._agent_choices,
            ),
        )

    def _agent_choices(self, _partial: str) -> Sequence[MentionCompletion]:
        agents = (MentionCompletion(name, "", one.description) for name, one in self._agents.all.items())
        return [*agents, *((_RESTORE,) if DEFAULT not in self._agents.all else ())]

    async def _model_choices(self, _partial: str) -> Sequence[MentionCompletion]:
        names = [name.strip("`").partition("`")[0] for name in await self._names(_CHOICES_TIMEOUT)]
        return [*map(MentionCompletion, names), _RESTORE]

    async def _model(self, rest: str, ctx: CommandContext) -> str:
        session = self._sessions.get_loaded(ctx.session)
        if not rest:
            return await self._about_models(session, ctx)
        if rest == DEFAULT:
            session.row.model = None
            self._publish_model(session, ctx)
            return f"This session uses the default model again, `{self._default_for(session, ctx)}`."
        try:
            route = await self._models.resolve(rest)
        except (ProviderError, SettingsError) as error:
            return f"The model is unchanged: {error}"
        # Store an alias by name, so that a later change of the settings applies to this session.
        session.row.model = rest if rest in self._models.configured.aliases else route.name
        self._publish_model(session, ctx)
        return f"This session now uses {_label(rest, route.name)}."

    async def _about_models(self, session: Session, ctx: CommandContext) -> str:
        usual = self._default_for(session, ctx)
        now = session.row.model or usual
        lines = [f"The model is `{now}`{'' if now == usual else f'; the default is `{usual}`'}."]
        others = [name for name in await self._names() if name.strip("`").partition("`")[0] != now]
        if others:
            more = f" and {len(others) - _MAX_SHOWN} more" if len(others) > _MAX_SHOWN else ""
            lines.append(f"Other models: {', '.join(others[:_MAX_SHOWN])}{more}.")
        back = "" if session.row.model is None else f"; `/model {DEFAULT}` restores the default"
        return "\n\n".join([*lines, f"`/model NAME` selects another one{back}."])

    async def _names(self, seconds: float = _LISTS_TIMEOUT) -> Sequence[str]:
        """Return the models to choose from: aliases, then the chat models of each provider."""
        aliases = [_label(alias, model) for alias, model in self._models.configured.aliases.items()]
        listed = await self._models.lists.get_all(self._models.available_providers(), seconds)
        offered = [
            [f"`{provider}/{model.id}`" for model in found.models if is_chat_model(model.id)]
            for provider, found in listed.items()
        ]
        return [*aliases, *dict.fromkeys(_interleave(offered))]

    def _publish_model(self, session: Session, ctx: CommandContext) -> None:
        """Publish the session's current model to its viewers."""
        model = session.row.model or self._default_for(session, ctx)
        session.publish(SessionFrame(model=model))
        session.events.emit(ModelChanged(model, session.id))

    def _default_for(self, session: Session, ctx: CommandContext) -> str:
        return self._agents.get(self._agent_of(session, ctx)).model or self._default_model()

    def _agent_of(self, session: Session, ctx: CommandContext) -> str:
        return self._agents.choose(session.row.agent, ctx.channel, ctx.inbound.address.chat)

    async def _agent(self, rest: str, ctx: CommandContext) -> str:
        session = self._sessions.get_loaded(ctx.session)
        await self._read_folders()
        word, _, description = rest.partition(" ")
        if word == NEW:
            return await self._new_agent(description.strip().strip('"“”').strip(), session, ctx)
        if not rest:
            return self._about_agents(self._agent_of(session, ctx))
        if rest == DEFAULT:
            session.row.agent = None
        elif rest in self._agents.all:
            session.row.agent = rest
        else:
            near = self._agents.close_matches(rest)
            known = ", ".join(self._agents.all)
            hint = f"did you mean {', '.join(near)}?" if near else f"the agents are {known}"
            return f"The agent is unchanged: unknown agent {rest!r}; {hint}"
        self._publish_model(session, ctx)
        name = self._agent_of(session, ctx)
        picked = session.row.model
        with_model = f" with the model `{picked}` selected in this session" if picked else ""
        return f"This session now uses the agent `{name}`{with_model}."

    async def _read_folders(self) -> None:
        folders = (*self._sources.list(), self._drafts().folder)
        await asyncio.to_thread(self._agents.add_folders, folders)

    async def _new_agent(self, description: str, session: Session, ctx: CommandContext) -> str:
        """Draft an agent, show it, and save it if the user agrees."""
        turn = running.get()
        if ctx.role != "admin":
            return "/agent new is for admins."
        if not description:
            return '`/agent new "DESCRIPTION"` drafts an agent: say what it is for and what it may do.'
        if turn is None or self._ui is None:
            return "An agent can be drafted in a chat only."
        drafts = self._drafts()
        try:
            model = session.row.model or self._default_for(session, ctx)
            # As the session's turn, it can be stopped like an answer.
            session.turn = turn
            try:
                draft = await turn.run_abortable(drafts.write(turn, description, model))
            finally:
                session.turn = None
            if draft is None:
                return "Stopped. No agent was saved."
            if not await self._ui.confirm(f"Save this agent as {draft.name}?", draft.text):
                return f"The agent `{draft.name}` is not saved."
            await asyncio.to_thread(drafts.save, draft)
        except InvalidRequestError as error:
            return f"The draft is refused: {error}."
        await self._read_folders()
        if draft.name not in self._agents.all:
            return f"The agent `{draft.name}` is saved, but cannot be loaded; the log says why."
        log.info("an agent was saved", agent=draft.name, by=turn.sender.id, session=session.id)
        return f"The agent `{draft.name}` is saved. `/agent {draft.name}` selects it."

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
