"""``trunkline plugin config``: shows and sets the settings that a manifest describes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from gateway.cli.options import AsJson, File
from gateway.cli.output import echo_json, plain, print_table
from gateway.cli.plugins.operator import Name, Operator, one_line_errors
from gateway.contract.errors import PluginError
from gateway.plugin_services.configuration import ConfigChange, PluginConfig, PluginConfigs
from gateway.settings.entries import flat
from gateway.settings.secrets import MASK

Changes = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Values to set; KEY may be TABLE.KEY.", show_default=False),
]
Unset = Annotated[
    list[str] | None,
    typer.Option("--unset", metavar="KEY", help="Remove a value, so that its default applies; repeatable."),
]


def config_(
    name: Name, changes: Changes = None, unset: Unset = None, as_json: AsJson = False, config: File = None
) -> None:
    """Show the settings of a plugin with their defaults, or set some in the settings file.

    Values are checked by the schema in the plugin's manifest. A value may be JSON, such as true, 5 or
    ["a", "b"]; what the schema declares as text is taken as it is.

    \b
    Examples:
      trunkline plugin config weather
      trunkline plugin config weather days=5 place.city=Berlin
      trunkline plugin config weather --unset days --json
    """
    with one_line_errors():
        operator = Operator(config)
        configs = PluginConfigs(operator.settings, operator.home)
        found = configs.read(name)
        if changes or unset:
            values = _values(found.schema, changes or (), unset or ())
            found = configs.change(name, ConfigChange(values=values))
            if not as_json:
                typer.echo(f"{name} is changed; {operator.take_effect(name)}", err=True)
        elif found.problem:
            raise PluginError(f"{name}: {found.problem}")
    if as_json:
        echo_json(found)
    else:
        _print(found)


def _values(schema: Mapping[str, Any], changes: Sequence[str], unset: Sequence[str]) -> dict[str, Any]:
    """Return the changes as a patch."""
    patch: dict[str, Any] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not key or not equals:
            raise PluginError(f"{change!r} must be KEY=VALUE, like days=5")
        _put(patch, key, _value(_schema_of(schema, key), text))
    for key in unset:
        _put(patch, key, None)
    return patch


def _put(patch: dict[str, Any], key: str, value: object) -> None:
    *tables, last = key.split(".")
    for name in tables:
        patch = patch.setdefault(name, {})
    patch[last] = value


def _schema_of(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    for name in key.split("."):
        below: object = schema.get("properties", {})
        found: object = cast("dict[str, Any]", below).get(name) if isinstance(below, dict) else None
        schema = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    return schema


def _value(schema: Mapping[str, Any], text: str) -> object:
    if schema.get("type") == "string":
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _print(found: PluginConfig) -> None:
    table = Table(box=None, header_style="bold")
    for title in ("setting", "value", "from", "description"):
        table.add_column(title, overflow="fold")
    rows: dict[str, Any] = {".".join(path): value for path, value in flat(found.values)}
    rows |= dict.fromkeys(found.hidden, MASK)
    begun = {key.partition(".")[0] for key in rows}
    rows |= {key: "" for key in found.schema.get("properties", {}) if key not in begun}
    for key, value in sorted(rows.items()):
        source = "settings" if key in found.given else "not set" if value == "" else "default"
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        about = str(_schema_of(found.schema, key).get("description", ""))
        table.add_row(*(Text(plain(cell)) for cell in (key, text, source, about)))
    for secret, is_set in found.secrets.items():
        how = f"trunkline plugin secret set {found.name} {secret}"
        table.add_row(*(Text(cell) for cell in (secret, MASK if is_set else "", "secret", how)))
    if table.row_count:
        print_table(table)
    else:
        typer.echo(f"{found.name} has no settings", err=True)
