"""``trunkline plugin list | info``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime

import typer
from msgspec import Struct
from rich.table import Table
from rich.text import Text

from gateway.cli.options import AsJson, File
from gateway.cli.output import echo_json, plain, print_table
from gateway.cli.plugins.operator import Name, Operator, one_line_errors
from gateway.contract.errors import PluginError
from gateway.extensions.admission.admission import checked, is_installed, rights
from gateway.extensions.admission.config_schema import PluginConfigError, plugin_config
from gateway.extensions.admission.consent import describe_grant, describe_rest
from gateway.extensions.admission.locations import Found
from gateway.extensions.admission.manifest import Manifest, Schedule
from gateway.extensions.admission.secrets import PluginSecrets
from gateway.plugin_services import read_parts
from gateway.plugin_services.jobs import zone_of


class Row(Struct, frozen=True):
    """A plugin in the list. ``state`` is ok, or what keeps it from being started.

    Of a plugin that is not enabled it says that settings are needed, and not that they are wrong.
    """

    name: str
    version: str
    enabled: bool
    rights: str
    state: str
    location: str
    folder: str


def list_(as_json: AsJson = False, config: File = None) -> None:
    """List the plugins: those that are enabled, and all with a manifest that are found.

    A plugin is confined to its own process, or has all rights of the gateway.

    \b
    Examples:
      trunkline plugin list
      trunkline plugin list --json
    """
    with one_line_errors():
        operator = Operator(config)
        rows = [*_modules(operator), *_found(operator)]
    if as_json:
        echo_json(rows)
    elif rows:
        _print(rows)
    else:
        typer.echo("No plugin is enabled or found.", err=True)


def info(name: Name, as_json: AsJson = False, config: File = None) -> None:
    """Show a plugin: its origin, what it may do, what was granted by whom, and what it offers.

    If a gateway runs with these settings, also the state there: deaths, cost, and the median and the 99th
    percentile of the time of each hook, event, tool and command.

    \b
    Examples:
      trunkline plugin info weather
      trunkline plugin info @example/weather --json
    """
    with one_line_errors():
        operator = Operator(config)
        found = operator.admission.find(name)
        shown = _about(operator, found, name)
    if as_json:
        echo_json(shown)
        return
    for key, value in shown.items():
        for at, line in enumerate(([value] if isinstance(value, str) else value) or ["none"]):
            typer.echo(f"{key if at == 0 else '':<14}{plain(line)}")


def _about(operator: Operator, found: Found, entry: str) -> Mapping[str, str | list[str]]:
    manifest = checked(found)
    locked = operator.admission.lock().get(manifest.name)
    given = {each.grant: each for each in locked.grants} if locked else {}
    secrets = PluginSecrets(operator.settings.data_dir).of(manifest.name)
    shipped = found.location == "shipped"
    unapproved = "not needed" if shipped else "no"
    otherwise = "granted when it is enabled" if shipped else "not granted yet"
    capabilities = [
        f"{grant}: {describe_grant(manifest, grant)} - "
        + (f"granted by {given[grant].by} at {given[grant].at}" if grant in given else otherwise)
        for grant in manifest.capabilities.grants()
    ]
    return {
        "name": manifest.name,
        "version": manifest.version,
        "description": manifest.description,
        "author": manifest.author,
        "license": manifest.license,
        "state": _state(operator, entry),
        "rights": rights(operator.settings.plugins.of(entry, manifest.name).trust),
        "folder": str(found.folder),
        "source": locked.source if locked else "shipped with the gateway" if shipped else "",
        "hash": locked.digest if locked else "",
        "approved": f"by {locked.approved_by} at {locked.approved_at}" if locked else unapproved,
        "capabilities": capabilities,
        "receives": [*describe_rest(manifest)],
        "adds": read_parts(found.folder).describe(),
        "hooks": list(manifest.hooks),
        "secrets": [f"{each}: {'set' if each in secrets else 'not set'}" for each in manifest.secrets],
        "schedule": [_scheduled(operator, manifest, entry, job) for job in manifest.schedule],
        **_running(operator, manifest.name),
    }


def _running(operator: Operator, name: str) -> Mapping[str, str | list[str]]:
    """Return what the running gateway knows about a plugin."""
    plugins = operator.running_plugins()
    if plugins is None:
        return {"running": "no gateway runs with these settings"}
    found = next((each for each in plugins if each["name"] == name), None)
    if found is None:
        return {"running": "no"}
    reason = f": {found['reason']}" if found["reason"] else ""
    return {
        "running": f"{found['version']}, {found['state']}{reason}",
        "deaths": str(found["deaths"]),
        "cost": f"${found['cost']:.4f}",
        "times": [
            f"{each['name']}: p50 {each['p50_ms']:g} ms, p99 {each['p99_ms']:g} ms of {each['calls']} calls"
            for each in found["calls"]
        ],
    }


def _scheduled(operator: Operator, manifest: Manifest, entry: str, job: Schedule) -> str:
    """Return when a job runs: its cron fields, their zone, and the next time."""
    settings = operator.settings
    try:
        config = plugin_config(settings, (entry, manifest.name), manifest.config)
        zone = zone_of(manifest.name, job, config, settings.timezone)
    except PluginError as error:
        return f"{job.name}: {job.cron}; {error}"
    coming = datetime.fromtimestamp(job.next_after(time.time(), zone), zone)
    return f"{job.name}: {job.cron} ({zone.key}), next {coming:%Y-%m-%d %H:%M %Z}"


def _modules(operator: Operator) -> list[Row]:
    """Return the enabled plugins that are modules; they are not imported."""
    settings = operator.settings
    plugins, team = settings.plugins, settings.teams.plugins
    missing = "it is not installed: no file, folder or module has this name"
    return [
        Row(
            name=entry,
            version="",
            enabled=entry not in plugins.disabled,
            rights=rights("full"),
            state=team.refusal(entry)
            or ("ok" if is_installed(entry, settings.plugin_base(entry)) else missing),
            location="module",
            folder="",
        )
        for entry in plugins.enabled
        if not operator.admission.owns(entry)
    ]


def _found(operator: Operator) -> list[Row]:
    plugins = operator.settings.plugins
    owned = [entry for entry in plugins.enabled if operator.admission.owns(entry)]
    entries: dict[str, Found | None] = {}
    for entry in owned:
        try:
            entries[entry] = operator.admission.find(entry)
        except PluginError:
            entries[entry] = None
    folders = {found.folder for found in entries.values() if found}
    names = {found.name for found in entries.values() if found}
    rows = [_row(operator, entry, found, enabled=True) for entry, found in entries.items()]
    for found in operator.admission.discover():
        if found.folder not in folders and found.name not in names:
            names.add(found.name)
            rows.append(_row(operator, found.name, found, enabled=False))
    return rows


def _row(operator: Operator, entry: str, found: Found | None, *, enabled: bool) -> Row:
    manifest = found.manifest if found else None
    name = found.name if found else entry
    plugins = operator.settings.plugins
    enabled = enabled and not {entry, name} & {*plugins.disabled}
    return Row(
        name=name,
        version=manifest.version if manifest else "",
        enabled=enabled,
        rights=rights(plugins.of(entry, name).trust),
        state=_state(operator, entry, enabled=enabled),
        location=found.location if found else "",
        folder=str(found.folder) if found else "",
    )


def _state(operator: Operator, entry: str, *, enabled: bool = True) -> str:
    try:
        operator.admission.admit(entry)
    except PluginConfigError as error:
        return str(error) if enabled else "needs settings"
    except PluginError as error:
        return str(error)
    return "ok"


def _print(rows: list[Row]) -> None:
    table = Table(box=None, header_style="bold")
    for title in ("plugin", "version", "enabled", "rights", "from", "state"):
        table.add_column(title, overflow="fold")
    for row in rows:
        enabled = "yes" if row.enabled else "no"
        cells = (row.name, row.version, enabled, row.rights, row.location, row.state)
        table.add_row(*(Text(" ".join(plain(cell).split())) for cell in cells))
    print_table(table)
