"""The agents of the settings: each says which model answers, how it is asked, and what it may use.

What an agent does not say is as the settings themselves say it, for they describe the agent ``main``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import structlog
from msgspec import Struct

from gateway.backends import ProviderRegistry
from gateway.errors import SettingsError
from gateway.routing.fallback import Fallback
from gateway.routing.models import Models
from gateway.session.log import SessionRow
from gateway.settings import MAIN, AgentSettings, Settings, read_agents
from gateway.settings.validation import wrong

log = structlog.get_logger("trunkline.agents")


class Profile(Struct, frozen=True):
    """One agent. ``model`` is a name of any kind, or None for the gateway's; ``tools`` None means all."""

    name: str
    fallback: Fallback
    description: str = ""
    model: str | None = None
    system_prompt: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    tools: frozenset[str] | None = None
    response_format: Literal["text", "json"] = "text"


class Agents:
    """The agents by name; ``main`` is always there. ``of_channel`` tells the one that a channel has."""

    def __init__(
        self,
        main: Profile,
        others: Mapping[str, Profile] | None = None,
        of_channel: Callable[[str], str | None] = lambda _channel: None,
    ) -> None:
        self.all = {MAIN: main, **(others or {})}
        self._of_channel = of_channel

    @classmethod
    def of(cls, settings: Settings, models: Models) -> Agents:
        """The agents of these settings."""
        fallback = Fallback(models, settings.fallback, settings.fallback_triggers)
        main = Profile(
            MAIN,
            fallback,
            "The agent that the settings describe",
            None,
            settings.system_prompt,
            settings.temperature,
            settings.max_tokens,
        )
        others = {name: _profile(name, said, main) for name, said in settings.agents.items()}
        return cls(main, others, settings.agent_of)

    def take_in(self, folders: Iterable[Path]) -> None:
        """Add the agents of folders that plugins brought; those of the settings count before them."""
        for folder in folders:
            try:
                found = read_agents(folder)
            except SettingsError as error:
                log.error("a folder of agents was left out", folder=str(folder), error=str(error))
                continue
            for name, said in found.items():
                self.all.setdefault(name, _profile(name, said, self.all[MAIN]))

    def get(self, name: str) -> Profile:
        """An agent by name; ``main`` where there is none of that name."""
        return self.all.get(name) or self.all[MAIN]

    def chosen(self, by_session: str | None, channel: str) -> str:
        """Who answers: the one that the session chose, or that its channel has, or ``main``.

        One that was taken out of the settings answers nowhere.
        """
        if by_session in self.all:
            return by_session
        return self._of_channel(channel) or MAIN

    def model_of(self, row: SessionRow, channel: str | None = None) -> str | None:
        """The model of a session, or of its agent; None for the gateway's."""
        return row.model or self.get(self.chosen(row.agent, channel or row.channel)).model

    def chains(self) -> tuple[str, ...]:
        """All who answer in others' place, as the settings name them."""
        return tuple(dict.fromkeys(name for agent in self.all.values() for name in agent.fallback.chain))

    def near(self, name: str) -> list[str]:
        """The agents whose names are like this one."""
        return get_close_matches(name, self.all, n=3, cutoff=0.4)


def check_channels(settings: Settings, agents: Agents) -> None:
    """Raise SettingsError, with all of them, for channels whose agent neither settings nor plugins have."""
    complaints = settings.unknown_agents(agents.all)
    if complaints:
        raise wrong(complaints)


def check_agents(settings: Settings, providers: ProviderRegistry, tools: Iterable[str]) -> None:
    """Raise SettingsError for an agent whose provider nobody brings; tools that nobody brings are told.

    Tools may come later, with a server that is not there yet, so that is no reason not to start.
    """
    there = frozenset(tools)
    for name, said in settings.agents.items():
        if said.provider is not None and not providers.serves(said.provider):
            near = get_close_matches(said.provider, providers.known(), n=3)
            hint = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(providers.known())}"
            raise SettingsError(f"agents.{name}.provider = {said.provider!r} is no provider; {hint}")
        for tool in set(said.tools or ()) - there:
            near = ", ".join(get_close_matches(tool, there, n=3))
            log.warning(
                "an agent may use a tool that nobody brings", agent=name, tool=tool, near=near or None
            )


def _profile(name: str, said: AgentSettings, main: Profile) -> Profile:
    return Profile(
        name,
        main.fallback.instead(said.fallback, said.fallback_triggers),
        said.description,
        _model(said),
        main.system_prompt if said.system_prompt is None else said.system_prompt,
        main.temperature if said.temperature is None else said.temperature,
        main.max_tokens if said.max_tokens is None else said.max_tokens,
        None if said.tools is None else frozenset(said.tools),
        said.response_format,
    )


def _model(said: AgentSettings) -> str | None:
    """The name of its model: below its provider, if it has one."""
    if said.provider is None or said.model is None or said.model.startswith(f"{said.provider}/"):
        return said.model or said.provider
    return f"{said.provider}/{said.model}"
