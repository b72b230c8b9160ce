"""The routes of model providers: their state, test calls, and replacing a key."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from gateway.app import Gateway
from gateway.contract.errors import (
    InvalidStateError,
    NotFoundError,
    PluginError,
    ProviderError,
    SettingsError,
)
from gateway.contract.messages import now_ms
from gateway.contract.provider import Capabilities
from gateway.models import MAIN, to_usd
from gateway.probes import PingResult, metered, ping
from gateway.provider_http import HttpProvider
from gateway.provider_http.leases import KeyUse
from gateway.server.now import Observer
from gateway.server.now.providers import title_of
from gateway.server.now.shapes import ProviderNow
from gateway.server.plugins.configuration import in_thread
from gateway.server.providers.keys import KeyPlace, ProviderKeys, Way
from gateway.server.routes import Call, Nothing, PlainCall, Route
from gateway.settings.secrets import without_passwords
from gateway.store.writes import audit_op
from gateway.tables.audit import recorded

_DAY_MS = 86_400_000
_DAYS = 30
_SENT_CHARACTERS = 2000

_Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="The provider's id")]


class KeyPath(Struct, frozen=True):
    """A key of a provider, by its position in the settings."""

    provider: _Id
    key: Annotated[int, Meta(ge=1, le=1000, description="Position of the key, from 1")]


class ProviderPath(Struct, frozen=True):
    """A provider."""

    provider: _Id


class RetriedProvider(Struct, frozen=True):
    """A provider that is asked again before the end of its pause.

    ``circuit``: it was skipped after failures, and the next call asks it. ``keys`` waited for a rate limit,
    and are used again; ``calls`` waited for a key.
    """

    provider: str
    circuit: bool
    keys: int
    calls: int


class NewKey(Struct, frozen=True, forbid_unknown_fields=True):
    """A key in place of another one. With ``check`` the provider is asked first whether it accepts it."""

    key: Annotated[str, Meta(pattern=r"^[!-~]{1,8192}$")]
    check: bool = True


class ReplacedKey(Struct, frozen=True):
    """A key that was replaced: its place, how the test of the new one ended, and when it takes effect.

    ``restart``: the provider cannot change its credentials while it runs.
    """

    provider: str
    alias: str
    place: str
    tested: str
    in_effect: Literal["now", "restart"]


class TrialRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A provider, or a model ``provider/model``, that gets one short request."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][^\x00-\x20\x7f]{0,199}$")]


class KeyInfo(Struct, frozen=True):
    """A key: its alias, its state, and how it is replaced; never the key itself, nor a part of it.

    ``state``: ``usable``, ``refused`` by the provider since ``since``, ``limited`` until ``until``, or
    ``missing``. ``models`` are those that this holds for, empty for all. Only admins get ``place``,
    ``command`` and ``reason``, which is why no page replaces the key.
    """

    alias: str
    position: int
    state: Literal["usable", "refused", "limited", "missing"]
    since: int | None
    until: int | None
    models: Sequence[str]
    running: int
    way: Way
    place: str = ""
    command: str = ""
    reason: str = ""


class ProviderState(Struct, frozen=True, kw_only=True):
    """A model provider that is set up. ``state`` is null until its first call.

    ``can`` are its abilities, ``usd`` the cost of 30 days, ``problem`` what prevents its use. Only admins get
    ``endpoint``.
    """

    id: str
    name: str
    plugin: str
    auth_method: str
    can: Sequence[str]
    keys: Sequence[KeyInfo]
    state: ProviderNow | None
    usd: float
    calls: int
    unpriced: int
    in_effect: Literal["now", "restart"]
    endpoint: str = ""
    problem: str = ""


class Chain(Struct, frozen=True):
    """The fallback chain of an agent. ``source`` is its place in the settings, empty for the default."""

    agent: str
    model: str
    chain: Sequence[str]
    source: str = ""


class ModelCost(Struct, frozen=True):
    """The use of a model ``provider/model`` in 30 days; ``unpriced`` calls have no price."""

    model: str
    calls: int
    usd: float
    unpriced: int


class ProviderList(Struct, frozen=True):
    """The providers that are set up, the fallback chain of each agent, and what models cost in 30 days."""

    providers: Sequence[ProviderState]
    chains: Sequence[Chain]
    costs: Sequence[ModelCost]


class ProviderRoutes:
    """The routes ``/api/models/providers`` and ``/api/models/test``."""

    def __init__(self, gateway: Gateway, observer: Observer, keys: ProviderKeys) -> None:
        self._gateway = gateway
        self._watch = observer.providers
        self._keys = keys

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(
                "GET",
                "/api/models/providers",
                "listProviders",
                "List the model providers with their keys, limits and cost, and the fallback chains.",
                self._list,
                errors=(InvalidStateError,),
                role="viewer",
            ),
            Route(
                "POST",
                "/api/models/providers/{provider}/keys/{key}",
                "replaceKey",
                "Replace a key of a provider; the new one takes effect without a restart.",
                self._replace,
                errors=(NotFoundError, InvalidStateError),
                needs_proof=True,
            ),
            Route(
                "POST",
                "/api/models/providers/{provider}/try",
                "tryProvider",
                "End the pause of a provider after failures or a rate limit, so that calls ask it now.",
                self._try,
                errors=(NotFoundError, InvalidStateError),
            ),
            Route(
                "POST",
                "/api/models/test",
                "testModel",
                "Send one short request to a provider or model.",
                self._test,
                errors=(NotFoundError,),
            ),
        ]

    async def _list(self, call: PlainCall) -> ProviderList:
        gateway, is_admin = self._gateway, call.identity.role == "admin"
        until = now_ms()
        ledger = gateway.parts.spending.ledger
        by_provider = {
            row.key: row for row in await ledger.usage_by("provider", until - _DAYS * _DAY_MS, until)
        }
        self._watch.look(until)
        states = {state.id: state for state in self._watch.states()}
        names = dict.fromkeys((*gateway.settings.providers, *gateway.providers.set_up(), *states))
        found: list[ProviderState] = []
        for name in names:
            places = await in_thread(partial(self._keys.places, name))
            row = by_provider.get(name)
            usd = 0.0 if row is None else float(to_usd(row.nano_usd or 0))
            calls, unpriced = (0, 0) if row is None else (row.calls, row.unpriced)
            found.append(self._state(name, places, states.get(name), usd, calls, unpriced, is_admin=is_admin))
        costs = [
            ModelCost(row.key, row.calls, float(to_usd(row.nano_usd or 0)), row.unpriced)
            for row in await ledger.usage_by("model", until - _DAYS * _DAY_MS, until)
        ]
        return ProviderList(found, self._chains(is_admin=is_admin), costs)

    async def _replace(self, call: Call[KeyPath, Nothing, Nothing, NewKey]) -> ReplacedKey:
        provider, position = call.path.provider, call.path.key
        self._require(provider)
        alias, actor = alias_of(position), call.identity.account
        async with recorded(self._gateway.parts.store, actor, "models.key", f"{provider} {alias}") as record:
            place, tested = await self._keys.replace(provider, position, call.body.key, check=call.body.check)
            record.outcome = f"{place.way}: {tested}"
        self._watch.forget_rejections(provider)
        return ReplacedKey(provider, alias, place.place, tested, self._in_effect(provider))

    async def _try(self, call: Call[ProviderPath, Nothing, Nothing, None]) -> RetriedProvider:
        gateway, provider = self._gateway, call.path.provider
        self._require(provider)
        made = gateway.providers.get(provider)
        http = made if isinstance(made, HttpProvider) else None
        async with recorded(gateway.parts.store, call.identity.account, "models.try", provider) as record:
            calls = http.limits.waiting if http is not None and http.limits is not None else 0
            circuit = gateway.profiles.all[MAIN].fallback.try_again(provider)
            keys = 0 if http is None else http.end_holds()
            if not (circuit or keys):
                raise InvalidStateError(f"{provider} is not paused: calls ask it already")
            record.outcome = (
                f"circuit {'open' if circuit else 'closed'}, {keys} keys held, {calls} calls waiting"
            )
        return RetriedProvider(provider, circuit, keys, calls)

    def _require(self, provider: str) -> None:
        if not self._gateway.providers.serves(provider):
            raise NotFoundError(f"there is no provider {provider!r}; `trunkline providers list` shows all")

    async def _test(self, call: Call[Nothing, Nothing, Nothing, TrialRequest]) -> PingResult:
        gateway, name = self._gateway, call.body.name
        if not gateway.providers.serves(name.partition("/")[0]):
            raise NotFoundError(f"there is no provider {name.partition('/')[0]!r}")
        account, spending = call.identity.account, gateway.parts.spending
        meter_of = metered(spending.ledger, spending.prices, account)
        result = await ping(gateway.providers, gateway.models, name, meter_of)
        outcome = "answers" if result.ok else result.error
        await gateway.parts.store.write(audit_op(account, "models.test", name, outcome))
        return replace(result, detail=gateway.redactor.redact_text(result.detail)[:_SENT_CHARACTERS])

    def _in_effect(self, provider: str) -> Literal["now", "restart"]:
        return "now" if self._gateway.providers.reloads(provider) else "restart"

    def _chains(self, *, is_admin: bool) -> list[Chain]:
        gateway = self._gateway
        places = {entry.path: entry.place for entry in gateway.settings.entries} if is_admin else {}
        found: list[Chain] = []
        for agent in gateway.profiles.all.values():
            own = places.get(("agents", agent.name, "fallback"), "")
            chain = agent.fallback.chain
            source = own or (places.get(("fallback",), "") if chain else "")
            found.append(Chain(agent.name, agent.model or gateway.model, chain, source))
        return found

    def _state(
        self,
        name: str,
        places: Sequence[KeyPlace],
        state: ProviderNow | None,
        usd: float,
        calls: int,
        unpriced: int,
        *,
        is_admin: bool,
    ) -> ProviderState:
        gateway = self._gateway
        made, owner = gateway.providers.get(name), gateway.activator.provider_owner.get(name, "")
        endpoint = problem = ""
        if made is not None:
            try:
                endpoint = without_passwords(made.api_endpoint)
            except (SettingsError, ProviderError, PluginError) as error:
                problem = without_passwords(str(error))
        abilities = () if made is None else Capabilities.__struct_fields__
        uses = {use.position: use for use in made.key_uses} if isinstance(made, HttpProvider) else {}
        has_key = bool(gateway.providers.configured(name).keys)
        return ProviderState(
            id=name,
            name=title_of(gateway, name),
            plugin="" if owner == "providers" else owner,
            auth_method="" if made is None else made.auth_method,
            can=[each for each in abilities if made is not None and getattr(made.capabilities, each)],
            keys=[
                _key(each, uses.get(each.position), state, has_key=has_key, is_admin=is_admin)
                for each in places
            ],
            state=state,
            usd=usd,
            calls=calls,
            unpriced=unpriced,
            in_effect=self._in_effect(name),
            endpoint=endpoint if is_admin else "",
            problem=problem,
        )


def alias_of(position: int) -> str:
    """Return the name of a key, as in the trails of messages."""
    return f"key {position}"


def _key(
    place: KeyPlace, use: KeyUse | None, state: ProviderNow | None, *, has_key: bool, is_admin: bool
) -> KeyInfo:
    now, use = now_ms(), use or KeyUse(place.position)
    shown: Literal["usable", "refused", "limited", "missing"] = "usable"
    since = until = None
    if use.rejected_seconds is not None:
        shown, since = "refused", now - round(use.rejected_seconds * 1000)
    elif state is not None and state.circuit == "rejected":
        shown, since = "refused", state.since
    elif use.held_seconds > 0:
        shown, until = "limited", now + round(use.held_seconds * 1000)
    elif not has_key and place.way != "terminal":
        shown = "missing"
    key = KeyInfo(
        alias_of(place.position), place.position, shown, since, until, use.models, use.running, place.way
    )
    if not is_admin:
        return key
    return replace(key, place=place.place, command=place.command, reason=place.reason)
