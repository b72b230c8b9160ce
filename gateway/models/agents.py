"""Agents: the model, the prompt and the tools that answer in a session.

The settings outside of ``[agents]`` describe the agent ``main``. Any other agent inherits from it what its
own settings leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

import structlog
from msgspec import Struct

from gateway.contract.errors import SettingsError
from gateway.extensions.backends import ProviderRegistry
from gateway.models.fallback import Fallback
from gateway.models.resolve import Models
from gateway.session.log import SessionRow
from gateway.settings import MAIN, AgentSettings, Settings, read_agents
from gateway.settings.validation import settings_error

log = structlog.get_logger("trunkline.agents")


class Profile(Struct, frozen=True):
    """One agent. ``model`` is any model name, or None for the gateway's; ``tools`` None allows every tool."""

    name: str
    fallback: Fallback
    description: str = ""
    model: str | None = None
    system_prompt: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    tools: frozenset[str] | None = None
    response_format: Literal["text", "json"] = "text"
    stop_sequences: tuple[str, ...] = ()


class Agents:
    """The agents by name, always with ``main``. ``channel_agent`` returns the agent configured for a channel.
    The agents by name, always with ``main``. ``channel_agent`` returns the agent configured for a channel.
    """

    def __init__(
        self,
        main: Profile,
        others: Mapping[str, Profile] | None = None,
        channel_agent: Callable[[str], str | None] = lambda _channel: None,
    ) -> None:
        self.all = {MAIN: main, **(others or {})}
        self._channel_agent = channel_agent

    @classmethod
    def of(cls, settings: Settings, models: Models) -> Agents:
        """Build the agents of these settings."""
        fallback = Fallback(models, settings.fallback, settings.fallback_triggers)
        main = Profile(
            MAIN,
            fallback,
            "The agent of the main settings",
            None,
            settings.system_prompt,
            settings.temperature,
            settings.max_tokens,
            stop_sequences=settings.stop_sequences,
        )
        others = {name: _profile(name, said, main) for name, said in settings.agents.items()}
        return cls(main, others, settings.agent_of)

    def add_folders(self, folders: Iterable[Path]) -> None:
        """Add the agents in folders that plugins provide; an agent of the settings wins over one of that
        name.
        """
        for folder in folders:
            try:
                found = read_agents(folder)
            except SettingsError as error:
                log.error("cannot read a folder of agents", folder=str(folder), error=str(error))
                continue
            profiles = {name: _profile(name, said, self.all[MAIN]) for name, said in found.items()}
            # Replaced as a whole: this may run in a thread while the event loop iterates over it.
            self.all = {**self.all, **{n: p for n, p in profiles.items() if n not in self.all}}

    def get(self, name: str) -> Profile:
        """Return an agent by name, or ``main`` if that name is unknown."""
        return self.all.get(name) or self.all[MAIN]

    def choose(self, by_session: str | None, channel: str) -> str:
        """Return the name of the agent that answers: the session's, else the channel's, else ``main``.

        A session's agent that was removed from the settings is ignored.
        """
        if by_session in self.all:
            return by_session
        return self._channel_agent(channel) or MAIN

    def model_of(self, row: SessionRow, channel: str | None = None) -> str | None:
        """Return the model of a session or of its agent; None for the gateway's model."""
        return row.model or self.get(self.choose(row.agent, channel or row.channel)).model

    def fallback_names(self) -> tuple[str, ...]:
        """Return the entries of all fallback chains, each once, as written in the settings."""
        return tuple(dict.fromkeys(name for agent in self.all.values() for name in agent.fallback.chain))

    def close_matches(self, name: str) -> list[str]:
        """Return the agents with a name similar to this one."""
        return get_close_matches(name, self.all, n=3, cutoff=0.4)


def check_channels(settings: Settings, agents: Agents) -> None:
    """Raise SettingsError, listing every channel with an agent that neither settings nor plugins define."""
    complaints = settings.unknown_agents(agents.all)
    if complaints:
        raise settings_error(complaints)


def check_agents(settings: Settings, providers: ProviderRegistry, tools: Iterable[str]) -> None:
    """Raise SettingsError for an agent with an unknown provider; log its unknown tools.

    An unknown tool does not prevent the start: the server that provides it may connect later.
    """
    there = frozenset(tools)
    for name, said in settings.agents.items():
        if said.provider is not None and not providers.serves(said.provider):
            near = get_close_matches(said.provider, providers.known(), n=3)
            hint = (
                f"did you mean {', '.join(near)}?"
                if near
                else f"known providers: {', '.join(providers.known())}"
            )
            raise SettingsError(f"agents.{name}.provider = {said.provider!r} is not a provider; {hint}")
        for tool in set(said.tools or ()) - there:
            near = ", ".join(get_close_matches(tool, there, n=3))
            log.warning("an agent lists an unknown tool", agent=name, tool=tool, near=near or None)


def _profile(name: str, said: AgentSettings, main: Profile) -> Profile:
    return Profile(
        name,
        main.fallback.with_chain(said.fallback, said.fallback_triggers),
        said.description,
        _model(said),
        main.system_prompt if said.system_prompt is None else said.system_prompt,
        main.temperature if said.temperature is None else said.temperature,
        main.max_tokens if said.max_tokens is None else said.max_tokens,
        None if said.tools is None else frozenset(said.tools),
        said.response_format,
        main.stop_sequences if said.stop_sequences is None else said.stop_sequences,
    )


def _model(said: AgentSettings) -> str | None:
    """Return the full name of an agent's model: below its provider, if it has one."""
    if said.provider is None or said.model is None or said.model.startswith(f"{said.provider}/"):
        return said.model or said.provider
    return f"{said.provider}/{said.model}"
