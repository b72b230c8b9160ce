"""The settings of a plugin, which the JSON Schema (2020-12) in its manifest describes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from gateway.contract.errors import PluginError
from gateway.settings import PluginSettings, Settings
from gateway.settings.entries import dotted
from gateway.settings.secrets import sounds_secret
from gateway.settings.validation import settings_error

_RESERVED = tuple(PluginSettings.model_fields)


def check_schema(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the schema of a manifest. It must not refer to other documents."""
    if schema.get("type", "object") != "object":
        yield 'must have type: object, because it describes the table [plugins."NAME"]'
    properties: object = schema.get("properties", {})
    for name in cast("dict[str, Any]", properties) if isinstance(properties, dict) else ():
        if name in _RESERVED:
            yield f"properties.{name}: the gateway uses this name itself; choose another one"
    try:
        _validator(schema)
    except Exception as error:  # noqa: BLE001 - the library has several classes without a common one
        yield f"is not a JSON Schema: {str(error).splitlines()[0]}"


def plugin_config(settings: Settings, names: Sequence[str], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of a plugin with the schema's defaults; later tables override earlier ones.

    Raises PluginError with file, line and key of every wrong value.
    """
    places = {entry.path: entry.place for entry in settings.entries}
    found = dict(settings.plugins.of(*names).options)
    if not schema:
        return found
    complaints: list[str] = []
    with_defaults = _completed(schema, found)
    for error in _validator(schema).iter_errors(with_defaults):
        path = tuple(str(part) for part in error.instance_path)
        keys = [("plugins", name, *path) for name in reversed(names)]
        written = next((key for key in keys if any(at[: len(key)] == key for at in places)), keys[-1])
        place = next((places[at] for at in places if at[: len(written)] == written), "settings")
        secret = any(sounds_secret(part) for part in path)
        complaints.append(f"{place}: {dotted(written)} {'is wrong' if secret else _reason(error)}")
    if complaints:
        raise PluginError(str(settings_error(sorted(complaints))))
    return with_defaults


def _reason(error: Any) -> str:
    said = str(error.message).splitlines()[0]
    return f"is wrong: {said}"


def _validator(schema: Mapping[str, Any]) -> Any:
    # At first use. Without network, and with patterns that are matched in linear time.
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(
        dict(schema), offline=True, pattern_options=jsonschema_rs.RegexOptions(), validate_formats=True
    )


def _completed(schema: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with the defaults of missing ones, also in the tables inside."""
    found = dict(values)
    properties: object = schema.get("properties", {})
    if not isinstance(properties, dict):
        return found
    for name, below in cast("dict[str, object]", properties).items():
        if not isinstance(below, dict):
            continue
        inner = cast("dict[str, Any]", below)
        if name not in found and "default" in inner:
            # A copy, because the defaults are those of every later start, too.
            found[name] = json.loads(json.dumps(inner["default"]))
        if isinstance(found.get(name), dict):
            found[name] = _completed(inner, found[name])
        elif name not in found and (nested := _completed(inner, {})):
            found[name] = nested
    return found
