"""The settings of a plugin, which the JSON Schema (2020-12) in its manifest describes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast

from gateway.contract.errors import PluginError, ToolError
from gateway.settings import PluginSettings, Settings
from gateway.settings.entries import KeyPath, dotted
from gateway.settings.secrets import sounds_secret
from gateway.settings.validation import settings_error

_RESERVED = tuple(PluginSettings.model_fields)
_MOST_REFERENCES = 8


class PluginConfigError(PluginError):
    """The settings of a plugin are missing or wrong."""


def check_schema(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the schema of a manifest. It must not refer to other documents."""
    if schema.get("type", "object") != "object":
        yield 'must have type: object, because it describes the table [plugins."NAME"]'
    for name in _table(schema, "properties"):
        if name in _RESERVED:
            yield f"properties.{name}: the gateway uses this name itself; choose another one"
    if problem := validator_problem(schema):
        yield problem


def schema_problem(schema: Mapping[str, Any]) -> str:
    """Return why something is not a JSON Schema (2020-12), without its subject; "" if it is one.

    Patterns and references are not read: those of other dialects are no problem for what only models get.
    """
    import jsonschema_rs

    try:
        # Without the dialect: the library would fetch an unknown one.
        jsonschema_rs.meta.validate({name: value for name, value in schema.items() if name != "$schema"})
    except jsonschema_rs.ValidationError as error:
        return f"is not a JSON Schema: {error.message.splitlines()[0]}"
    return ""


def validator_problem(schema: Mapping[str, Any]) -> str:
    """Return why values cannot be checked with a schema, without its subject; "" if they can."""
    try:
        validator(schema)
    except Exception as error:  # noqa: BLE001 - the library has several classes without a common one
        return f"is not a JSON Schema: {str(error).splitlines()[0]}"
    return ""


def check_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Raise ToolError for arguments of a call that the schema of the tool does not allow."""
    for error in validator(schema).iter_errors(dict(arguments)):
        raise ToolError(f"wrong arguments: {str(error.message).splitlines()[0]}")


def plugin_config(settings: Settings, names: Sequence[str], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of a plugin with the schema's defaults; later tables override earlier ones.

    Raises PluginConfigError with file, line and key of every wrong value.
    """
    places = {entry.path: entry.place for entry in settings.entries}
    found = dict(settings.plugins.of(*names).options)
    if not schema:
        return found
    complaints: list[str] = []
    completed = with_defaults(schema, found)
    for path, said in wrong_values(schema, completed):
        keys = [("plugins", name, *path) for name in reversed(names)]
        written = next((key for key in keys if any(at[: len(key)] == key for at in places)), keys[-1])
        place = next((places[at] for at in places if at[: len(written)] == written), "settings")
        complaints.append(f"{place}: {dotted(written)} {said}")
    if complaints:
        raise PluginConfigError(str(settings_error(sorted(complaints))))
    return completed


def wrong_values(schema: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Yield the key of each wrong value, and a sentence about it without its subject."""
    for error in validator(schema).iter_errors(dict(values)):
        path = tuple(str(part) for part in error.instance_path)
        secret = any(sounds_secret(part) for part in path) or _is_marked(schema, path)
        text = str(error.message).splitlines()[0]
        yield path, "is wrong" if secret else f"is wrong: {text}"


def with_defaults(schema: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with the defaults of missing ones, also in the tables inside."""
    found = dict(values)
    for name, below in _table(schema, "properties").items():
        if not isinstance(below, dict):
            continue
        inner = cast("dict[str, Any]", below)
        if name not in found and "default" in inner:
            # A copy, because the defaults are those of every later start, too.
            found[name] = json.loads(json.dumps(inner["default"]))
        if isinstance(found.get(name), dict):
            found[name] = with_defaults(inner, found[name])
        elif name not in found and (nested := with_defaults(inner, {})):
            found[name] = nested
    return found


def without_secrets(
    schema: Mapping[str, Any], values: Mapping[str, Any], secret: Collection[KeyPath] = ()
) -> tuple[dict[str, Any], list[KeyPath]]:
    """Return the values that may be shown, and the keys of the others.

    A value is secret by its name, by ``writeOnly: true`` or ``format: password`` in the schema, or because
    ``secret`` has its key. A list with a secret inside is left out as a whole.
    """
    hidden: list[KeyPath] = []

    def shown(value: Any, path: KeyPath) -> Any:
        if path and (sounds_secret(path[-1]) or path in secret or _is_marked(schema, path)):
            hidden.append(path)
            return None
        if isinstance(value, dict):
            table = cast("dict[str, Any]", value)
            inner = {name: shown(each, (*path, name)) for name, each in table.items()}
            return {name: each for name, each in inner.items() if (*path, name) not in hidden}
        if isinstance(value, list):
            before = len(hidden)
            items = [shown(each, (*path, "items")) for each in cast("list[Any]", value)]
            if len(hidden) > before:
                hidden[before:] = [path]
            return items
        return value

    found = shown(dict(values), ())
    return found, hidden


def _is_marked(schema: Mapping[str, Any], path: KeyPath) -> bool:
    """Return whether the schema marks the value at a key, or a table above it, as secret."""
    at: list[Mapping[str, Any]] = _alternatives(schema, schema)
    for name in path:
        below = [each for one in at for each in _below(one, name)]
        at = [each for one in below for each in _alternatives(one, schema)]
        if any(one.get("writeOnly") is True or one.get("format") == "password" for one in at):
            return True
    return False


def _below(schema: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas that may describe a key, or the items of a list."""
    named = _table(schema, "properties").get(name)
    others = (*_table(schema, "patternProperties").values(), schema.get("additionalProperties"))
    for each in (schema.get("items"), *(others if named is None else (named,))):
        if isinstance(each, dict):
            yield cast("dict[str, Any]", each)


def _alternatives(
    schema: Mapping[str, Any], root: Mapping[str, Any], left: int = _MOST_REFERENCES
) -> list[Mapping[str, Any]]:
    """Return a schema with those that it refers to or combines."""
    found = [schema]
    parts: list[Any] = [
        part for key in ("allOf", "anyOf", "oneOf") for part in cast("list[Any]", schema.get(key, ()))
    ]
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target: Any = root
        for part in reference[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            target = cast("dict[str, Any]", target).get(name) if isinstance(target, dict) else None
        parts.append(target)
    for part in parts if left else ():
        if isinstance(part, dict):
            found += _alternatives(cast("dict[str, Any]", part), root, left - 1)
    return found


def _table(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    found: object = schema.get(key)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def validator(schema: Mapping[str, Any]) -> Any:
    """Return the validator of a JSON Schema. Raises the errors of the library for one that is none."""
    # At first use. Without network, and with patterns that are matched in linear time.
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(
        dict(schema), offline=True, pattern_options=jsonschema_rs.RegexOptions(), validate_formats=True
    )
