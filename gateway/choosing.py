"""The commands that choose who answers in a session: ``/model`` and ``/agent``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gateway.errors import ProviderError, SettingsError
from gateway.plugin import CommandContext, Plugin, SlashCommand
from gateway.routing import Agents, Models, converses
from gateway.session import Session, Sessions
from gateway.settings import DEFAULT

_SHOWN = 10
_HURRY = 3.0
"""Seconds to wait for lists of models while somebody looks at the chat."""


class Choosing(Plugin):
    """/model and /agent. What is chosen is kept with the session."""

    name = "choosing"

    def __init__(
        self, sessions: Sessions, models: Models, agents: Agents, default_model: Callable[[], str]
    ) -> None:
        self._sessions = sessions
        self._models = models
        self._agents = agents
        self._default_model = default_model

    def commands(self) -> Sequence[SlashCommand]:
        """Both."""
        return (
            SlashCommand("model", "Show the model, or use another: /model NAME, /model default", self._model),
            SlashCommand("agent", "Show the agent, or talk to another: /agent NAME", self._agent),
        )

    async def _model(self, rest: str, ctx: CommandContext) -> str:
        session = self._sessions.loaded(ctx.session)
        if not rest:
            return await self._about_models(session, ctx.channel)
        if rest == DEFAULT:
            session.row.model = None
            return f"This session uses the usual model again, `{self._usual(session, ctx.channel)}`."
        try:
            route = await self._models.resolve(rest)
        except (ProviderError, SettingsError) as error:
            return f"The model stays as it is: {error}"
        # An alias is kept as such, so that it means tomorrow what the settings say then.
        session.row.model = rest if rest in self._models.known.aliases else route.name
        return f"From now on this session uses {_told(rest, route.name)}."

    async def _about_models(self, session: Session, channel: str) -> str:
        usual = self._usual(session, channel)
        now = session.row.model or usual
        lines = [f"The model is `{now}`{'' if now == usual else f'; usually it is `{usual}`'}."]
        others = [name for name in await self._names() if name.strip("`").partition("`")[0] != now]
        if others:
            more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
            lines.append(f"There are {', '.join(others[:_SHOWN])}{more}.")
        back = "" if session.row.model is None else f"; `/model {DEFAULT}` goes back"
        return "\n\n".join([*lines, f"`/model NAME` uses another one{back}."])

    async def _names(self) -> Sequence[str]:
        """The models to choose from: aliases, what the settings name, and some of each provider."""
        aliases = [_told(alias, model) for alias, model in self._models.known.aliases.items()]
        listed = await self._models.lists.all(self._models.set_up(), _HURRY)
        offered = [
            [f"`{provider}/{model.id}`" for model in told.models if converses(model.id)]
            for provider, told in listed.items()
        ]
        return [*aliases, *dict.fromkeys(_in_turn(offered))]

    def _usual(self, session: Session, channel: str) -> str:
        agent = self._agents.get(self._agents.chosen(session.row.agent, channel))
        return agent.model or self._default_model()

    async def _agent(self, rest: str, ctx: CommandContext) -> str:
        session = self._sessions.loaded(ctx.session)
        if not rest:
            return self._about_agents(self._agents.chosen(session.row.agent, ctx.channel))
        if rest == DEFAULT:
            session.row.agent = None
        elif rest in self._agents.all:
            session.row.agent = rest
        else:
            near = self._agents.near(rest)
            hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(self._agents.all)}"
            return f"The agent stays as it is: there is no agent {rest!r}; {hint}"
        name = self._agents.chosen(session.row.agent, ctx.channel)
        picked = session.row.model
        told = f" with the model `{picked}` that was chosen here" if picked else ""
        return f"From now on `{name}` answers in this session{told}."

    def _about_agents(self, now: str) -> str:
        lines = [f"The agent is `{now}`."]
        others = [profile for name, profile in self._agents.all.items() if name != now]
        lines += [f"- `{other.name}` {other.description}".rstrip() for other in others]
        if others:
            lines.append("\n`/agent NAME` talks to another one.")
        return "\n".join(lines)


def _told(name: str, full_name: str) -> str:
    return f"`{full_name}`" if name == full_name else f"`{name}` ({full_name})"


def _in_turn(lists: Iterable[Sequence[str]]) -> Iterable[str]:
    """The first of each list, then the second of each, and so on."""
    lists = list(lists)
    for place in range(max(map(len, lists), default=0)):
        yield from (names[place] for names in lists if place < len(names))
