"""Model calls of confined plugins: through the fallback chain, metered, and within budgets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msgspec import Struct

from gateway.contract.errors import OverloadedError, ProviderResolutionError
from gateway.conversations.titles import HiddenTurn
from gateway.extensions.generation import Lease
from gateway.extensions.registry import PluginRegistry
from gateway.models import Agents, ContextWindow, Models
from gateway.pipeline.intake import own_entry
from gateway.pipeline.model_call import ModelCaller
from gateway.session import Session, Sessions
from gateway.store.inbox import Entry

_MOST_AT_ONCE = 4
"""Calls of one plugin at once: a plugin whose own hook calls a model would otherwise call itself for ever."""
_MOST_TOKENS = 32_000


class Completion(Struct, frozen=True):
    """The answer of a model to a plugin. ``cost`` is in US dollars, None without a known price."""

    text: str
    input_tokens: int
    output_tokens: int
    cost: float | None


class _PluginTurn(HiddenTurn):
    """A model call of a plugin, as a turn that no user sees."""

    def __init__(
        self,
        session: Session,
        entry: Entry,
        plugin: str,
        prompt: str,
        lease: Lease,
        max_tokens: int,
        budget: float | None,
    ) -> None:
        super().__init__(session, entry, session.row.agent or "main", prompt, lease, max_tokens)
        self.plugin, self.plugin_limit = plugin, budget


class PluginCompletions:
    """Calls models for plugins; see ``gateway.extensions.broker.CompletionService``.

    ``default_model`` returns the model of the gateway.
    """

    def __init__(
        self,
        registry: PluginRegistry,
        sessions: Sessions,
        models: Models,
        agents: Agents,
        caller: ModelCaller,
        default_model: Callable[[], str],
    ) -> None:
        self._registry = registry
        self._default_model = default_model
        self._sessions = sessions
        self._models = models
        self._agents = agents
        self._caller = caller
        self._running: Counter[str] = Counter()

    async def complete(
        self,
        plugin: str,
        session: str,
        prompt: str,
        *,
        system: str = "",
        model: str = "",
        max_tokens: int = 4_096,
        budget: float | None = None,
    ) -> Completion:
        """Call a model for a plugin that works in a session."""
        if self._running[plugin] >= _MOST_AT_ONCE:
            raise OverloadedError(f"the plugin {plugin!r} makes {_MOST_AT_ONCE} model calls already")
        self._running[plugin] += 1
        try:
            return await self._call(plugin, session, prompt, system, model, max_tokens, budget)
        finally:
            self._running[plugin] -= 1

    async def window(self, session: str, agent: str) -> int:
        """Return the tokens that a request of an agent in a session may have."""
        found, own = self._sessions.get(session), self._agents.get(agent).model
        if found is not None and agent == (found.row.agent or "main"):
            own = self._agents.model_of(found.row)
        try:
            route = await self._models.resolve(own or self._default_model())
        except ProviderResolutionError:  # the call of the model reports it
            return ContextWindow().limit(None)
        return (await self._models.window(route)).limit(None)

    async def _call(
        self,
        plugin: str,
        session: str,
        prompt: str,
        system: str,
        model: str,
        max_tokens: int,
        budget: float | None,
    ) -> Completion:
        found = await self._sessions.find(session)
        running = found.turn
        entry = (
            running.entry
            if running is not None
            else own_entry(found, found.row.channel, found.address, "", f"({plugin})")
        )
        with self._registry.lease() as lease:
            longest = max(1, min(max_tokens, _MOST_TOKENS))
            turn = _PluginTurn(found, entry, plugin, prompt, lease, longest, budget)
            small = self._agents.get(turn.agent).small_model
            name = model or small or self._agents.model_of(found.row) or self._default_model()
            _, stop = await self._caller.call(turn, await self._models.resolve(name), system, ())
        usage = turn.usage
        cost = None if usage.cost is None else float(usage.cost)
        text = turn.build_message(stop).text
        return Completion(text, usage.input_tokens, usage.output_tokens, cost)
