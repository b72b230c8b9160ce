"""Finding the provider of a model that is named alone."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from gateway.backends import ProviderRegistry
from gateway.errors import ProviderResolutionError
from gateway.routing.catalog import Catalog
from gateway.routing.lists import Lists
from gateway.settings import ModelSettings

_NEAREST = 3


class Finder:
    """Looks for a model, first in what is known offline, then in what providers say they offer."""

    def __init__(
        self,
        providers: ProviderRegistry,
        models: Mapping[str, ModelSettings],
        lists: Lists,
        catalog: Catalog,
    ) -> None:
        self._providers = providers
        self._models = models
        self._lists = lists
        self._catalog = catalog

    async def find(self, name: str, providers: Sequence[str], aliases: Sequence[str]) -> str:
        """The full name of a model at one of some providers, the first of them that has it.

        Raises ProviderResolutionError with the names that are nearest.
        """
        if not name.strip("/ "):
            raise ProviderResolutionError("no model is named; name one as provider/model")
        await self._catalog.load()
        found = self._known(name, providers) or await self._listed(name, providers)
        if found is None:
            raise self._unknown(name, providers, aliases)
        return found

    def _known(self, name: str, providers: Sequence[str]) -> str | None:
        """Where the settings have it; else who has it as its own, before those that only pass it on."""
        for provider_id in providers:
            if f"{provider_id}/{name}" in self._models or name in self._configured(provider_id):
                return f"{provider_id}/{name}"
        own = (p for p in providers if self._catalog.sells(self._kind(p), name))
        passed_on = (p for p in providers if self._catalog.find(self._kind(p), name))
        return next((f"{provider_id}/{name}" for ids in (own, passed_on) for provider_id in ids), None)

    async def _listed(self, name: str, providers: Sequence[str]) -> str | None:
        """Who lists it; else who lists one whose last word it is, as in ``vendor/model``."""
        listed = await self._lists.all(providers)
        offered = [
            (model.id, provider_id) for provider_id in providers for model in listed[provider_id].models
        ]
        wanted = name.lower()
        same = [pair for pair in offered if pair[0].lower() == wanted]
        ending = [pair for pair in offered if pair[0].lower().rpartition("/")[2] == wanted]
        return next((f"{provider_id}/{model}" for model, provider_id in (*same, *ending)), None)

    def _unknown(
        self, name: str, providers: Sequence[str], aliases: Sequence[str]
    ) -> ProviderResolutionError:
        provider_id, slash, model = name.partition("/")
        without_key = [p for p in self._providers.factories() if self._catalog.sells(p, name)]
        if without_key and not slash:
            variable = self._providers.variables(without_key[0])["api_key"][0]
            told = f"{name!r} is a model of {without_key[0]}, which is not set up; set {variable}"
            return ProviderResolutionError(told, suggestions=[f"{without_key[0]}/{name}"])
        near = self._near(name, providers, aliases)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        told = f"no provider that is set up offers a model {name!r}; name one as provider/model"
        if slash and model:
            told = f"no provider {provider_id!r}, and nobody offers a model {name!r}"
        return ProviderResolutionError(f"{told}{hint}", suggestions=near)

    def _near(self, name: str, providers: Sequence[str], aliases: Sequence[str]) -> list[str]:
        """The nearest names: of providers and aliases if a part fits, and of models.

        Where nobody who is set up says what there is, models of all providers are named.
        """
        provider_id, slash, model = name.partition("/")
        words = {word: word for word in (*aliases, *self._providers.known())}
        if slash:
            near = [words[word] for word in _close(provider_id, words)]
            return [f"{p}/{model}" for p in near] if near and model else near
        near = _nearest(name, words, self._names(providers))
        if near or any(self._lists.known(provider_id) for provider_id in providers):
            return near
        return _nearest(name, words, self._names(self._providers.factories()))

    def _names(self, providers: Iterable[str]) -> Iterable[tuple[str, str]]:
        """Every model there is to suggest, by its short name; what is listed counts before what is known."""
        for full_name in self._models:
            yield full_name.partition("/")[2], full_name
        for provider_id in providers:
            listed = [model.id for model in self._lists.known(provider_id)]
            known = listed or [facts.id for facts in self._catalog.of(self._kind(provider_id))]
            yield from ((model, f"{provider_id}/{model}") for model in known)

    def _configured(self, provider_id: str) -> Sequence[str]:
        return self._providers.configured(provider_id).models

    def _kind(self, provider_id: str) -> str:
        return self._providers.configured(provider_id).like or provider_id


def _nearest(name: str, words: Mapping[str, str], models: Iterable[tuple[str, str]]) -> list[str]:
    """The words, and the full names of the models whose short names, are like this one; the first has it."""
    known = dict(words)
    for short, full in models:
        known.setdefault(short.lower(), full)
    return [known[word] for word in _close(name.lower(), known)]


def _close(name: str, names: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, list(names), n=_NEAREST, cutoff=0.5)
