"""Standing by: what a chain needs is loaded before it is needed, and nothing where there is no chain."""

from __future__ import annotations

import threading

from gateway.contract.provider import Provider, ProviderConfig
from gateway.extensions.backends import ProviderRegistry
from gateway.models import Agents, ConfiguredModels, Models, preload_providers
from gateway.settings import Settings


class Shelf:
    """Providers whose code can be loaded; remembers of which it was, and in which threads."""

    def __init__(self, *names: str) -> None:
        self.loaded: list[str] = []
        self.threads: set[threading.Thread] = set()
        self.registry = ProviderRegistry(self._configure)
        for name in names:
            self.registry.add_factory(name, _nobody_asks, load=lambda name=name: self._load(name))

    def _configure(self, provider_id: str) -> ProviderConfig:
        return ProviderConfig(id=provider_id, like="second" if provider_id == "spare" else None)

    def _load(self, name: str) -> None:
        self.threads.add(threading.current_thread())
        self.loaded.append(name)
        if name == "broken":
            raise ImportError("its library is not installed")


def _nobody_asks(_config: ProviderConfig) -> Provider:
    raise AssertionError("it is made when it is asked")


async def test_the_code_of_a_chain_is_loaded_beside_the_event_loop() -> None:
    shelf = Shelf("first", "broken", "second", "third")
    models = Models(shelf.registry, ConfiguredModels(aliases={"quick": "third/small"}))

    await preload_providers(("broken", "spare/big", "quick", "unknown/x"), models, shelf.registry)

    assert shelf.loaded == ["broken", "second", "third"]
    assert threading.main_thread() not in shelf.threads


async def test_nothing_is_loaded_without_a_chain() -> None:
    shelf = Shelf("first")
    models = Models(shelf.registry)

    await preload_providers((), models, shelf.registry)

    assert shelf.loaded == []


def test_the_chains_of_all_agents_count() -> None:
    settings = Settings.model_validate(
        {"fallback": ["second"], "agents": {"poet": {"fallback": ["third/x", "second"]}, "plain": {}}}
    )
    agents = Agents.of(settings, Models(Shelf().registry))

    assert agents.standby_names() == ("second", "third/x")


def test_an_agent_without_a_small_model_uses_that_of_the_settings() -> None:
    settings = Settings.model_validate(
        {"small_model": "tiny/x", "agents": {"poet": {"small_model": "mini/y"}, "plain": {}}}
    )
    agents = Agents.of(settings, Models(Shelf().registry))

    assert [agents.get(name).small_model for name in ("main", "poet", "plain")] == [
        "tiny/x",
        "mini/y",
        "tiny/x",
    ]
    assert agents.standby_names() == ("tiny/x", "mini/y")
