"""The configuration of plugins with a manifest: shown without secrets, and changed in the settings file.

What is written is checked by the schema of the manifest before, and read back after: a value that another
source of the settings overrides is refused, so that no change is acknowledged that has no effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, cast

from msgspec import Meta, Struct

from gateway.contract.errors import InvalidRequestError, NotFoundError, PluginError, SettingsError
from gateway.extensions.admission.admission import Admission, checked, rights
from gateway.extensions.admission.capabilities import from_config
from gateway.extensions.admission.config_schema import with_defaults, without_secrets, wrong_values
from gateway.extensions.admission.locations import Found
from gateway.extensions.admission.manifest import Manifest
from gateway.extensions.admission.secrets import PluginSecrets
from gateway.settings import PluginSettings, Settings
from gateway.settings.entries import dotted, flat
from gateway.settings.layers.editing import EditedFile, merged_values
from gateway.settings.validation import field_name

_LONGEST_SECRET = 64 * 1024
_REFERENCE = re.compile(r"\$(?=\{)|\{(?=env:|file:)")

Secret = Annotated[str, Meta(min_length=1, max_length=_LONGEST_SECRET)]


class PluginSummary(Struct, frozen=True):
    """A plugin with a manifest; ``problem`` lists the mistakes in that.

    ``rights`` says whether it is confined, ``configurable`` whether it has settings.
    """

    name: str
    version: str
    description: str
    enabled: bool
    rights: str
    configurable: bool
    problem: str


class PluginConfig(Struct, frozen=True):
    """The configuration of a plugin.

    ``schema`` is the JSON Schema (2020-12) of ``values``, which have its defaults. ``given`` are the keys
    that the settings set, ``hidden`` those among them whose values are secret, in TOML notation; their values
    are not in ``values``. ``secrets`` says for each secret of the manifest whether it is set. ``problem``
    says what is wrong with the values.
    """

    name: str
    version: str
    description: str
    schema: dict[str, Any]
    values: dict[str, Any]
    given: list[str]
    hidden: list[str]
    secrets: dict[str, bool]
    problem: str


class ConfigChange(Struct, frozen=True, forbid_unknown_fields=True):
    """Changes of a configuration: a JSON Merge Patch (RFC 7396) of the values, and secrets by name.

    null removes a value, so that its default applies, or a secret.
    """

    values: dict[str, Any] = {}
    secrets: dict[str, Secret | None] = {}


class PluginConfigs:
    """The configuration of all plugins with a manifest, as the settings are now. Its methods read files.

    ``changing`` is the lock of the settings file, where others change it in this process.
    """

    def __init__(self, settings: Settings, home: Path | None, changing: Lock | None = None) -> None:
        self._started = settings
        self._home = home
        self._changing = changing or Lock()

    def list(self) -> list[PluginSummary]:
        """Return the plugins that are enabled, and all others that are found. Raises SettingsError."""
        settings = self._started.reread()
        disabled = {*settings.plugins.disabled}
        summaries: list[PluginSummary] = []
        for name, (entry, found) in self._found(settings).items():
            manifest = found.manifest
            summaries.append(
                PluginSummary(
                    name=name,
                    version=manifest.version if manifest else "",
                    description=manifest.description if manifest else "",
                    enabled=entry in settings.plugins.enabled and not {entry, name} & disabled,
                    rights=rights(settings.plugins.of(entry, name).trust),
                    configurable=bool(manifest and (manifest.config.get("properties") or manifest.secrets)),
                    problem=found.problem,
                )
            )
        return summaries

    def read(self, name: str) -> PluginConfig:
        """Return a plugin's configuration. Raises NotFoundError, and PluginError for a wrong manifest."""
        settings = self._started.reread()
        entry, manifest = self._manifest(settings, name)
        names = _tables(entry, manifest)
        schema, options = dict(manifest.config), dict(settings.plugins.of(*names).options)
        # The value behind a reference to a variable or a file may be secret.
        referred = {
            each.path[2:]
            for each in settings.entries
            if each.written is not None and each.path[0] == "plugins" and each.path[1] in names
        }
        values, hidden = without_secrets(schema, with_defaults(schema, options), referred)
        given = [dotted(path) for path, _ in flat(options)]
        stored = PluginSecrets(settings.data_dir).of(manifest.name)
        wrong = wrong_values(schema, with_defaults(schema, options)) if schema else ()
        return PluginConfig(
            name=manifest.name,
            version=manifest.version,
            description=manifest.description,
            schema=schema,
            values=values,
            given=given,
            hidden=[key for path in hidden if (key := dotted(path)) in given],
            secrets={each: each in stored for each in manifest.secrets},
            problem="; ".join(f"{dotted(path) or 'the table'} {said}" for path, said in wrong),
        )

    def change(self, name: str, change: ConfigChange, *, literal: bool = False) -> PluginConfig:
        """Write changes to the settings file and the store of secrets; both are durable afterwards.

        With ``literal``, for callers that are not the operator, no text is a reference to a variable or a
        file, and settings that grant commands or hosts cannot be changed. Raises InvalidRequestError for
        wrong values, and SettingsError if the file cannot have them.
        """
        with self._changing:
            settings = self._started.reread()
            entry, manifest = self._manifest(settings, name)
            _check_secrets(manifest, change.secrets)
            if change.values:
                self._check(settings, entry, manifest, change.values)
                if literal:
                    _check_rights(settings, manifest, change.values)
                values = _literal(change.values) if literal else change.values
                self._write(settings, entry, manifest, values)
            store = PluginSecrets(settings.data_dir)
            for secret, value in change.secrets.items():
                if value is None:
                    store.drop(manifest.name, secret)
                else:
                    store.put(manifest.name, secret, value.strip())
            return self.read(manifest.name)

    def _check(self, settings: Settings, entry: str, manifest: Manifest, values: Mapping[str, Any]) -> None:
        """Raise InvalidRequestError for values that the manifest refuses, or that are the gateway's own."""
        table = ("plugins", manifest.name)
        # Also in camelCase, which the settings accept: a page must not set what a plugin may do.
        if own := next((key for key in values if field_name(PluginSettings, key)), None):
            raise InvalidRequestError(
                f"{dotted((*table, own))} is a setting of the gateway; edit {settings.file}"
            )
        before = settings.plugins.of(*_tables(entry, manifest)).options
        after = with_defaults(manifest.config, merged_values(before, values))
        if wrong := sorted(wrong_values(manifest.config, after)):
            lines = (f"{dotted((*table, *path))} {said}" for path, said in wrong)
            raise InvalidRequestError("\n".join(lines))

    def _write(self, settings: Settings, entry: str, manifest: Manifest, values: Mapping[str, Any]) -> None:
        if settings.origin.reread is None:
            raise SettingsError("the settings of this gateway are not from a file, so they cannot be changed")
        check = partial(self._read_back, manifest, _tables(entry, manifest), values)
        EditedFile(settings.file).put(("plugins", manifest.name), values, check)

    def _read_back(self, manifest: Manifest, names: tuple[str, ...], values: Mapping[str, Any]) -> None:
        """Raise SettingsError if another source of the settings overrides a value that was written."""
        entries = {each.path: each for each in self._started.reread().entries}
        for path, value in flat(values):
            key = next((at for name in reversed(names) if (at := ("plugins", name, *path)) in entries), None)
            found = entries[key] if key else None
            written = found and (found.value if found.written is None else found.written)
            if found is not None and written not in (value, str(value)):
                key_of_plugin = dotted(("plugins", manifest.name, *path))
                raise SettingsError(
                    f"{key_of_plugin} is also set in {found.place}, which overrides the settings file; "
                    "change it there"
                )

    def _manifest(self, settings: Settings, name: str) -> tuple[str, Manifest]:
        found = self._found(settings).get(name)
        if found is None:
            raise NotFoundError(f"there is no plugin {name!r} with a manifest")
        return found[0], checked(found[1])

    def _found(self, settings: Settings) -> Mapping[str, tuple[str, Found]]:
        """Return the plugins by name, each with the entry of ``plugins.enabled`` that denotes it."""
        admission = Admission(settings, home=self._home)
        plugins: dict[str, tuple[str, Found]] = {}
        for entry in settings.plugins.enabled:
            try:
                if admission.owns(entry):
                    found = admission.find(entry)
                    plugins.setdefault(found.name, (entry, found))
            except PluginError:
                continue  # not installed; the commands and the health of the gateway say so
        for found in admission.discover():
            plugins.setdefault(found.name, (found.name, found))
        return plugins


def settings_schema(base: Mapping[str, Any], settings: Settings, home: Path | None) -> dict[str, Any]:
    """Return the JSON Schema of the settings with the tables of the enabled plugins."""
    admission = Admission(settings, home=home)
    gateways: Mapping[str, Any] = base["$defs"]["PluginSettings"]["properties"]
    tables: dict[str, Any] = {}
    for entry in settings.plugins.enabled:
        if admission.owns(entry):
            manifest = checked(admission.find(entry))
            own = dict(manifest.config)
            # Its references are relative to itself.
            ident = {"$id": f"trunkline:plugin/{manifest.name}"} if "$ref" in str(own) else {}
            described = {"description": manifest.description} if manifest.description else {}
            properties = {**gateways, **own.get("properties", {})}
            tables[manifest.name] = {**ident, **described, **own, "type": "object", "properties": properties}
    plugins: dict[str, Any] = base["$defs"]["PluginsSettings"]
    plugins = {**plugins, "properties": {**plugins["properties"], **tables}}
    return {**base, "$defs": {**base["$defs"], "PluginsSettings": plugins}} if tables else dict(base)


def _tables(entry: str, manifest: Manifest) -> tuple[str, ...]:
    return tuple(dict.fromkeys((entry, manifest.name)))


def _check_rights(settings: Settings, manifest: Manifest, values: Mapping[str, Any]) -> None:
    """Raise InvalidRequestError for settings that say what the plugin may do."""
    for key in sorted(from_config(manifest.capabilities) & {*values}):
        raise InvalidRequestError(
            f"{dotted(('plugins', manifest.name, key))} says what the plugin may do; change it in "
            f"{settings.file}, or with: trunkline plugin config {manifest.name}"
        )


def _check_secrets(manifest: Manifest, secrets: Mapping[str, str | None]) -> None:
    """Raise InvalidRequestError for secrets that the manifest does not name, and empty ones."""
    for name, value in secrets.items():
        if name not in manifest.secrets:
            listed = ", ".join(manifest.secrets) or "none"
            raise InvalidRequestError(
                f"plugin {manifest.name!r} has no secret {name!r}; its manifest names {listed}"
            )
        if value is not None and not value.strip():
            raise InvalidRequestError(f"the value of {name} is empty; give null to delete it")


def _literal(value: Any) -> Any:
    """Return a value whose texts refer to no variable or file."""
    if isinstance(value, str):
        return _REFERENCE.sub(lambda found: found[0] * 2, value)
    if isinstance(value, list):
        return [_literal(each) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _literal(each) for key, each in cast("dict[str, Any]", value).items()}
    return value
