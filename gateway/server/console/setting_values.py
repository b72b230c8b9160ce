"""Values of settings with their sources: as they are written now, and as the gateway works with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from msgspec import Struct, structs

from gateway.plugin_services.live import LivePlugins
from gateway.server.providers import ProviderKeys
from gateway.settings import Settings
from gateway.settings.entries import ENABLED, JOINED, Entry, KeyPath, dotted, flat
from gateway.settings.layers.changing import needs_proof
from gateway.settings.plugins import PluginsSettings
from gateway.settings.secrets import MASK
from gateway.settings.sections import Effective, effective
from gateway.settings.validation import resolve_key


class SettingInfo(Struct, frozen=True):
    """A setting. ``value`` is the one in the sources now, ``running`` the one that the gateway works with.

    Both are masked if it is a secret, and ``is_set`` says whether it has one. ``source`` is a file with its
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
    inherited: bool = False


class SettingValues:
    """The settings of a running gateway. Its methods read files."""

    def __init__(self, started: Settings, live: LivePlugins, keys: ProviderKeys) -> None:
        self.started = started
        self._live = live
        self._keys = keys
        self._schema: dict[str, Any] = {}

    def read(self) -> SettingReading:
        """Read the sources. Raises SettingsError."""
        if not self._schema:
            self._schema = Settings.model_json_schema()
        return SettingReading(self, self._live, self._schema)

    def needs_restart(self, path: KeyPath) -> bool:
        """Return whether a change of a setting takes effect at the next start.

        Everything is read at the start alone, except what the console applies: which plugins run, the
        settings of one that can be replaced or does not run, and the keys of providers.
        """
        if is_key(path):
            return not self._keys.reloads(path[1])
        if path in JOINED:
            return False
        table, plugin = path[0], "".join(path[1:2])
        is_plugin = table == "plugins" and bool(plugin) and plugin not in PluginsSettings.model_fields
        return not (is_plugin and self._live.can_apply(plugin))


class SettingReading:
    """The settings at one time. ``now`` are those in the sources, which the gateway may not have yet."""

    def __init__(self, values: SettingValues, live: LivePlugins, schema: dict[str, Any]) -> None:
        self.can_change = values.started.origin.reread is not None
        self.now = values.started.reread() if self.can_change else values.started
        self.started = values.started
        self._values = values
        self._live = live
        self._schema = schema
        self._waiting: dict[KeyPath, bool] = {}
        self._given: dict[str, Mapping[str, Any] | None] = {}

    def all(self) -> list[SettingInfo]:
        """Return all settings in effect, in the order of ``config/example.toml``."""
        paths = [path for path, _ in flat(self._trees[0])]
        return [self._row(path, row) for path, row in zip(paths, effective(self.now), strict=True)]

    def one(self, path: KeyPath, *broader: KeyPath, choices: Sequence[str] = ()) -> SettingInfo:
        """Return a setting, with the value of the first broader key that has one if it has none itself."""
        (value, source, layer, at), running = (
            _first(settings, tree, (path, *broader))
            for settings, tree in zip((self.now, self.started), self._trees, strict=True)
        )
        row = Effective(key=dotted(path), value=value, source=source, layer=layer)
        found = self._info(path, row, running[0], self._needs_restart(path), inherited=at != path)
        return structs.replace(found, choices=[*choices]) if choices else found

    @cached_property
    def _trees(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.now.model_dump(mode="json"), self.started.model_dump(mode="json")

    @cached_property
    def _began(self) -> Mapping[str, Any]:
        return {row.key: row.value for row in effective(self.started)}

    def _needs_restart(self, path: KeyPath) -> bool:
        # All keys of a plugin's table have the same answer, which reads files.
        table = path[:2] if path[0] == "plugins" else path if is_key(path) else path[:1]
        if table not in self._waiting:
            self._waiting[table] = self._values.needs_restart(table)
        return self._waiting[table]

    def _row(self, path: KeyPath, row: Effective) -> SettingInfo:
        waits = self._needs_restart(path)
        if waits:
            running = self._began.get(row.key)
        elif path == ENABLED:
            running = self._live.entries(row.value)
        elif is_key(path) or path in JOINED:
            running = row.value  # a key is always masked
        else:
            given = self._given_to(path[1])
            running = row.value if given is None else given.get(row.key)
        return self._info(path, row, running, waits)

    def _given_to(self, plugin: str) -> Mapping[str, Any] | None:
        """Return the settings that a plugin runs with, or None if it does not run."""
        if plugin not in self._given:
            settings = self._live.settings_of(plugin)
            rows = None if settings is None else {row.key: row.value for row in effective(settings)}
            self._given[plugin] = rows
        return self._given[plugin]

    def _info(
        self, path: KeyPath, row: Effective, running: Any, needs_restart: bool, *, inherited: bool = False
    ) -> SettingInfo:
        known, described = resolve_key(Settings, path), _described(self._schema, path)
        return SettingInfo(
            path=[*path],
            key=row.key,
            value=row.value,
            running=running,
            source=row.source,
            layer=row.layer,
            description=str(described.get("description", "")),
            kind=_kind(self._schema, described, row.value),
            choices=_choices(self._schema, described),
            is_secret=known.secret,
            is_set=row.value == MASK,
            needs_proof=needs_proof(path),
            needs_restart=needs_restart,
            inherited=inherited,
        )


def is_key(path: KeyPath) -> bool:
    """Return whether a setting is a key of a provider, or its further keys."""
    return len(path) == 3 and path[0] == "providers" and path[2] in ("api_key", "api_keys")


def _first(
    settings: Settings, tree: Mapping[str, Any], paths: Sequence[KeyPath]
) -> tuple[Any, str, str, KeyPath]:
    """Return the value, the source, the layer and the key of the first of these keys that has a value."""
    written: dict[KeyPath, Entry] = {entry.path: entry for entry in settings.entries}
    found = ((path, _at(tree, path), written.get(path)) for path in paths)
    path, value, entry = next(
        (each for each in found if each[1] is not None or each[2]), (paths[-1], None, None)
    )
    if entry is None:
        return value, "default", "default", path
    return entry.written or value, entry.place, ", ".join(entry.layers), path


def _at(tree: Mapping[str, Any], path: KeyPath) -> Any:
    at: Any = tree
    for part in path:
        at = cast("dict[str, Any]", at).get(part) if isinstance(at, dict) else None
    return at


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


def _kind(schema: dict[str, Any], described: dict[str, Any], value: Any) -> str:
    """Return the type of a setting: boolean, integer, number, string, array or object.

    It is array for a setting that may also be one, such as a list or "*".
    """
    kinds = [_resolved(schema, each).get("type") for each in _alternatives(described)]
    if "array" in kinds:
        return "array"
    kind = described.get("type")
    if isinstance(kind, str):
        return kind
    names = (("boolean", bool), ("number", int | float), ("array", list), ("object", dict))
    return next((name for name, of in names if isinstance(value, of)), "string")


def _choices(schema: dict[str, Any], described: dict[str, Any]) -> list[Any]:
    """Return all values that a setting may have, or none if there are more than the schema lists."""
    found = [_resolved(schema, each) for each in _alternatives(described)]
    if not all("enum" in each or "const" in each for each in found):
        return []
    return [choice for each in found for choice in each.get("enum", [each.get("const")])]


def _alternatives(described: dict[str, Any]) -> list[dict[str, Any]]:
    options = [each for each in described.get("anyOf", ()) if each.get("type") != "null"]
    return options or [described]
