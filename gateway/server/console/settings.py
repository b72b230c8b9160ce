"""The settings over REST: every value with its source, and changes of the settings file."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from gateway.access import UserRef
from gateway.contract.errors import (
    ForbiddenError,
    InvalidRequestError,
    InvalidStateError,
    PluginError,
    SettingsError,
)
from gateway.plugin_services.live import LivePlugins
from gateway.server.console.setting_values import SettingInfo, SettingValues, is_key
from gateway.server.errors import ConfirmIdentityError
from gateway.server.plugins.configuration import in_thread
from gateway.server.providers import ProviderKeys
from gateway.server.routes import Call, Nothing, PlainCall, Route
from gateway.settings.entries import JOINED, KeyPath
from gateway.settings.layers.changing import PlannedChange, SettingsFile
from gateway.store import Store
from gateway.tables.audit import recorded

_Part = Annotated[str, Meta(min_length=1, max_length=200)]


class SettingList(Struct, frozen=True):
    """All settings in effect, in the order of ``config/example.toml``. ``file`` is changed here."""

    file: str
    can_change: bool
    settings: list[SettingInfo]


class SettingChange(Struct, frozen=True, forbid_unknown_fields=True):
    """A new value of a setting; null removes it from the file."""

    path: Annotated[list[_Part], Meta(min_length=1, max_length=12)]
    value: Any = None
    is_new: bool = False
    """True if the value is a new table, such as an agent, which must not exist yet."""


class SavedChange(SettingChange, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A change whose difference the user has seen. ``digest`` is that of the plan."""

    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class ShownChange(PlannedChange, frozen=True, kw_only=True):
    """A planned change. ``needs_restart`` says whether it takes effect at the next start, else at once."""

    needs_restart: bool


class ChangeOutcome(Struct, frozen=True):
    """A change that is in the settings file. ``problem`` says why a running plugin did not take it over.

    Such a plugin continues unchanged, and the next start tries the change again.
    """

    needs_restart: bool
    problem: str


class SettingsRoutes:
    """The routes under ``/api/settings``."""

    def __init__(
        self, store: Store, live: LivePlugins, keys: ProviderKeys, values: SettingValues, file: SettingsFile
    ) -> None:
        self._started = values.started
        self._keys = keys
        self._store = store
        self._live = live
        self._file = file
        self._values = values

    def routes(self) -> list[Route]:
        """Return the routes."""
        wrong = (InvalidRequestError, InvalidStateError)
        return [
            Route(
                "GET",
                "/api/settings",
                "listSettings",
                "List the settings in effect with their sources, secrets masked.",
                self._list,
                errors=(InvalidStateError,),
            ),
            Route(
                "POST",
                "/api/settings/plan",
                "planSetting",
                "Show what a change of a setting would write, and the equal command.",
                self._plan,
                errors=wrong,
            ),
            Route(
                "POST",
                "/api/settings",
                "changeSetting",
                "Change a setting in the settings file; it must be the file of the plan.",
                self._save,
                errors=(*wrong, ForbiddenError, ConfirmIdentityError),
            ),
        ]

    async def _list(self, _call: PlainCall) -> SettingList:
        return await in_thread(self._read)

    async def _plan(self, call: Call[Nothing, Nothing, Nothing, SettingChange]) -> ShownChange:
        path, value = tuple(call.body.path), call.body.value

        def plan() -> ShownChange:
            planned = self._file.plan(path, value, is_new=call.body.is_new)
            return ShownChange(**structs.asdict(planned), needs_restart=self._values.needs_restart(path))

        return await in_thread(plan)

    async def _save(self, call: Call[Nothing, Nothing, Nothing, SavedChange]) -> ChangeOutcome:
        path, value = tuple(call.body.path), call.body.value
        plan = await in_thread(lambda: self._file.plan(path, value, is_new=call.body.is_new))
        if plan.only_in_terminal:
            raise ForbiddenError(f"{plan.only_in_terminal}; use a terminal: {plan.command}")
        if plan.needs_proof:
            call.require_proof()
        before = await in_thread(self._listed)
        actor, difference = str(UserRef("", call.identity.account)), "\n".join(plan.difference)
        async with recorded(self._store, actor, "settings.change", plan.key, difference):
            await in_thread(lambda: self._file.save(path, value, call.body.digest))
        return await self._take_over(path, before)

    async def _take_over(self, path: KeyPath, before: frozenset[str]) -> ChangeOutcome:
        """Let the running plugins or the provider that a saved change concerns have it."""
        if await in_thread(lambda: self._values.needs_restart(path)):
            return ChangeOutcome(needs_restart=True, problem="")
        if is_key(path):
            return await self._renew(path[1])
        concerned = (before ^ await in_thread(self._listed)) if path in JOINED else {*path[1:2]}
        problems: list[str] = []
        for name in sorted(concerned):
            try:
                await self._live.apply(name)
            except (PluginError, SettingsError) as error:
                problems.append(str(error))
        return ChangeOutcome(needs_restart=bool(problems), problem="\n".join(problems))

    async def _renew(self, provider: str) -> ChangeOutcome:
        try:
            await self._keys.reload(provider)
        except SettingsError as error:
            return ChangeOutcome(needs_restart=True, problem=str(error))
        return ChangeOutcome(needs_restart=False, problem="")

    def _listed(self) -> frozenset[str]:
        plugins = self._started.reread().plugins
        return frozenset(plugins.enabled) ^ frozenset(plugins.disabled)

    def _read(self) -> SettingList:
        found = self._values.read()
        is_toml = self._started.file.suffix == ".toml"
        return SettingList(str(self._started.file), found.can_change and is_toml, found.all())
