"""Selection of the model and the agent of a session by its users, and what there is to choose from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from gateway.contract.errors import InvalidRequestError, ProviderError, SettingsError
from gateway.events.types import ModelChanged
from gateway.models import MAIN, Agents, Models, is_chat_model
from gateway.session import Session
from gateway.session.frames import SessionFrame
from gateway.session.log import SessionRow

_LISTS_SECONDS = 3.0
"""Seconds to wait for the model lists of providers."""


class ModelChoice(Struct, frozen=True):
    """A model that a session can use; None is unknown.

    ``model`` is the full name of an alias. The context window is in tokens; prices are in US dollars per
    million tokens.
    """

    name: str
    model: str
    context_window: int | None
    images: bool | None
    tools: bool | None
    input_price: float | None
    output_price: float | None


class AgentChoice(Struct, frozen=True):
    """An agent that a session can use. Without a ``model`` it uses that of the gateway."""

    name: str
    description: str
    model: str | None


class Selection:
    """The choices of users, stored with the session. ``default`` returns the gateway's model."""

    def __init__(self, models: Models, agents: Agents, default: Callable[[], str]) -> None:
        self._models = models
        self._agents = agents
        self._default = default

    def agent_of(self, row: SessionRow) -> str:
        """Return the agent that answers in a session."""
        return self._agents.choose(row.agent, row.channel, row.address.chat)

    def agents(self) -> Sequence[AgentChoice]:
        """Return the agents, ``main`` first."""
        profiles = sorted(self._agents.all.values(), key=lambda one: (one.name != MAIN, one.name))
        return [AgentChoice(one.name, one.description, one.model) for one in profiles]

    async def models(self) -> Sequence[ModelChoice]:
        """Return the gateway's model, the aliases, and the chat models of each provider, each once.

        A provider that does not answer in time contributes the models in the settings.
        """
        aliases = self._models.configured.aliases
        listed = await self._models.lists.get_all(self._models.available_providers(), _LISTS_SECONDS)
        offered = [f"{name}/{one.id}" for name, found in listed.items() for one in found.models]
        names = {name: aliases.get(name, name) for name in (self._default(), *aliases)}
        names |= {name: name for name in offered if is_chat_model(name.partition("/")[2])}
        return [await self._choice(name, model) for name, model in names.items()]

    async def choose_model(self, session: Session, name: str | None) -> None:
        """Use a model from now on; None restores the default. Raises InvalidRequestError."""
        if name is not None:
            try:
                route = await self._models.resolve(name)
            except (ProviderError, SettingsError) as error:
                raise InvalidRequestError(f"the model is unchanged: {error}") from None
            # Store an alias by name, so that a later change of the settings applies to this session.
            name = name if name in self._models.configured.aliases else route.name
        session.row.model = name
        await self._changed(session)

    async def choose_agent(self, session: Session, name: str | None) -> None:
        """Use an agent from now on; None restores the default. Raises InvalidRequestError."""
        if name is not None and name not in self._agents.all:
            raise InvalidRequestError(f"the agent is unchanged: unknown agent {name!r}")
        session.row.agent = name
        await self._changed(session)

    async def _changed(self, session: Session) -> None:
        await session.save()
        model = self._agents.model_of(session.row) or self._default()
        session.publish(SessionFrame(model=model))
        session.events.emit(ModelChanged(model, session.id))

    async def _choice(self, name: str, model: str) -> ModelChoice:
        provider, _, short = model.partition("/")
        facts = await self._models.facts(provider, short)
        rates = facts.rates
        return ModelChoice(
            name,
            model,
            facts.context_window,
            facts.images,
            facts.tools,
            None if rates is None else rates.input,
            None if rates is None else rates.output,
        )
