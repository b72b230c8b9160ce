"""The settings over REST: every value with its source, and changes of the settings file."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, cast

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
from gateway.server.errors import ConfirmIdentityError
from gateway.server.plugins.configuration import in_thread
from gateway.server.routes import Call, Nothing, PlainCall, Route
from gateway.settings import Settings
from gateway.settings.entries import ENABLED, KeyPath, flat
from gateway.settings.layers.changing import PlannedChange, SettingsFile, needs_proof
from gateway.settings.plugins import PluginsSettings
from gateway.settings.secrets import MASK
from gateway.settings.sections import Effective, effective
from gateway.settings.validation import resolve_key
from gateway.store import Store
from gateway.store.writes import audit_op

_Part = Annotated[str, Meta(min_length=1, max_length=200)]


class SettingInfo(Struct, frozen=True):
    """A setting. ``value`` is the one in the sources now, ``running`` the one that the gateway works with.

    Both are masked if it is a secret, and ``is_set`` tells whether it has one. ``source`` is a file with its
    line, a variable, ``command line`` or ``default``. ``choices`` are all values that it may have, if there
    are few. ``needs_restart`` says whether a change waits for the next start.
    """

    path: list[str]
    key: str
    value: Any
    running: Any
    source: str
    layer: str
    description: str
    kind: str
    choices: list[Any]
    is_secret: bool
    is_set: bool
    needs_proof: bool
    needs_restart: bool


class SettingList(Struct, frozen=True):
    """All settings in effect, in the order of ``config/example.toml``. ``file`` is changed here."""

    file: str
    can_change: bool
    settings: list[SettingInfo]


class SettingChange(Struct, frozen=True, forbid_unknown_fields=True):
    """A new value of a setting; null removes it from the file."""

    path: Annotated[list[_Part], Meta(min_length=1, max_length=12)]
    value: Any = None


class SavedChange(SettingChange, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A change whose difference the user has seen. ``digest`` is that of the plan."""

    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class ShownChange(PlannedChange, frozen=True, kw_only=True):
    """A planned change. ``needs_restart`` says whether it takes effect at the next start, else at once."""

    needs_restart: bool


class ChangeOutcome(Struct, frozen=True):
    """A change that is in the settings file. ``problem`` says why a running plugin did not take it over.

    Such a plugin goes on as it was, and the next start tries the change again.
    """

    needs_restart: bool
    problem: str


class SettingsRoutes:
    """The routes under ``/api/settings``."""

    def __init__(self, settings: Settings, store: Store, live: LivePlugins) -> None:
        self._started = settings
        self._store = store
        self._live = live
        self._file = SettingsFile(settings)
        self._schema: dict[str, Any] = {}

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
            planned = self._file.plan(path, value)
            return ShownChange(**structs.asdict(planned), needs_restart=self._needs_restart(path))

        return await in_thread(plan)

    async def _save(self, call: Call[Nothing, Nothing, Nothing, SavedChange]) -> ChangeOutcome:
        path, value = tuple(call.body.path), call.body.value
        plan = await in_thread(lambda: self._file.plan(path, value))
        if plan.only_in_terminal:
            raise ForbiddenError(f"{plan.only_in_terminal}; use a terminal: {plan.command}")
        if plan.needs_proof:
            call.require_proof()
        before = await in_thread(self._enabled)
        await in_thread(lambda: self._file.save(path, value, call.body.digest))
        actor = UserRef("", call.identity.account)
        await self._store.write(
            audit_op(str(actor), "settings.change", plan.key, "\n".join(plan.difference)[:2000])
        )
        return await self._take_over(path, before)

    async def _take_over(self, path: KeyPath, before: frozenset[str]) -> ChangeOutcome:
        """Let the running plugins that a saved change concerns have it."""
        if await in_thread(lambda: self._needs_restart(path)):
            return ChangeOutcome(needs_restart=True, problem="")
        concerned = (before ^ await in_thread(self._enabled)) if path == ENABLED else {*path[1:2]}
        problems: list[str] = []
        for name in sorted(concerned):
            try:
                await self._live.apply(name)
            except (PluginError, SettingsError) as error:
                problems.append(str(error))
        return ChangeOutcome(needs_restart=bool(problems), problem="\n".join(problems))

    def _enabled(self) -> frozenset[str]:
        return frozenset(self._started.reread().plugins.enabled)

    def _needs_restart(self, path: KeyPath) -> bool:
        """Return whether a change of a setting takes effect at the next start.

        Everything is read at the start alone, except what ``_take_over`` applies: which plugins run, and the
        settings of one that can be replaced or does not run.
        """
        if path == ENABLED:
            return False
        is_table = len(path) > 1 and path[0] == "plugins" and path[1] not in PluginsSettings.model_fields
        return not (is_table and self._live.can_apply(path[1]))

    def _read(self) -> SettingList:
        can_change = self._started.origin.reread is not None
        now = self._started.reread() if can_change else self._started
        if not self._schema:
            self._schema = Settings.model_json_schema()
        began = {row.key: row.value for row in effective(self._started)}

        @cache
        def given_to(plugin: str) -> dict[str, Any] | None:
            settings = self._live.settings_of(plugin)
            return None if settings is None else {row.key: row.value for row in effective(settings)}

        @cache
        def needs_restart(path: KeyPath) -> bool:
            return self._needs_restart(path)

        def info(path: KeyPath, row: Effective) -> SettingInfo:
            # All keys of a plugin's table have the same answer, which reads files.
            waits = needs_restart(path[:2] if path[0] == "plugins" else path[:1])
            if waits:
                running = began.get(row.key)
            elif path == ENABLED:
                running = self._live.entries(row.value)
            else:
                values = given_to(path[1])
                running = row.value if values is None else values.get(row.key)
            return self._info(path, row, running, waits)

        rows = [info(path, row) for path, row in zip(_paths(now), effective(now), strict=True)]
        return SettingList(str(self._started.file), can_change and self._started.file.suffix == ".toml", rows)

    def _info(self, path: KeyPath, row: Effective, running: Any, needs_restart: bool) -> SettingInfo:
        known, described = resolve_key(Settings, path), _described(self._schema, path)
        return SettingInfo(
            path=[*path],
            key=row.key,
            value=row.value,
            running=running,
            source=row.source,
            layer=row.layer,
            description=str(described.get("description", "")),
            kind=_kind(described, row.value),
            choices=_choices(self._schema, described),
            is_secret=known.secret,
            is_set=row.value == MASK,
            needs_proof=needs_proof(path),
            needs_restart=needs_restart,
        )


def _paths(settings: Settings) -> list[KeyPath]:
    return [path for path, _ in flat(settings.model_dump(mode="json"))]


def _described(schema: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    """Return the JSON Schema of a setting, or an empty one for a key without a declared type."""
    at: dict[str, Any] = schema
    described: dict[str, Any] = {}
    for part in path:
        table = _resolved(schema, at)
        found = table.get("properties", {}).get(part) or table.get("additionalProperties")
        if not isinstance(found, dict):
            return {}
        at = cast("dict[str, Any]", found)
        described = at
    return {**_resolved(schema, at), **described}


def _resolved(schema: dict[str, Any], at: dict[str, Any]) -> dict[str, Any]:
    """Return what a reference of a schema leads to; of alternatives the first one that is not null."""
    if "$ref" in at:
        return _resolved(schema, schema["$defs"][at["$ref"].rpartition("/")[2]])
    options = [each for each in at.get("anyOf", ()) if each.get("type") != "null"]
    return _resolved(schema, options[0]) if options else at


def _kind(described: dict[str, Any], value: Any) -> str:
    """Return the type of a setting: boolean, integer, number, string, array or object."""
    kind = described.get("type")
    if isinstance(kind, str):
        return kind
    names = (("boolean", bool), ("number", int | float), ("array", list), ("object", dict))
    return next((name for name, of in names if isinstance(value, of)), "string")


def _choices(schema: dict[str, Any], described: dict[str, Any]) -> list[Any]:
    found = _resolved(schema, described)
    return list(found.get("enum", [found["const"]] if "const" in found else []))
