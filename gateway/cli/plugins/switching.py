"""``trunkline plugin enable | disable`` and ``trunkline plugin secret``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.doctor.settings import OWN_PLUGINS
from gateway.cli.options import AsJson, File
from gateway.cli.output import echo_json
from gateway.cli.plugins.operator import Name, Operator, one_line_errors
from gateway.contract.errors import PluginError, TrunklineError
from gateway.extensions.activation import missing_required
from gateway.extensions.admission.admission import checked, is_installed, is_path
from gateway.extensions.admission.secrets import PluginSecrets
from gateway.extensions.loader import BUILTIN_PLUGINS
from gateway.settings import Settings, load_settings
from gateway.settings.layers.editing import EditedFile

Secret = Annotated[str, typer.Argument(metavar="SECRET", help="Name of the secret, as the manifest has it.")]


def enable(name: Name, as_json: AsJson = False, config: File = None) -> None:
    """Enable a plugin in the settings file; a running gateway starts it at once.

    Comments in the file stay. If the running gateway cannot start the plugin, the file stays as it was. A
    plugin that is enabled, but was stopped or is in quarantine, is started again.

    NAME is the name of a plugin with a manifest or of a module, or the path of a folder or Python file.

    \b
    Examples:
      trunkline plugin enable weather
      trunkline plugin enable ./plugins/weather
      trunkline plugin enable web
    """
    with one_line_errors():
        operator = Operator(config)
        settings, file = operator.settings, EditedFile(operator.settings.file)
        entry = operator.admission.entry_of(_entry(name, settings))
        names = {entry}
        if operator.admission.owns(entry):
            names.add(operator.admission.admit(entry).manifest.name)
        elif not is_installed(entry, settings.plugin_base(entry)):
            advice = f"write ./{name}" if name and Path(name).exists() else "correct the name, or install it"
            raise PluginError(f"plugin {name!r} is not found; {advice}")
        operator.admission.check_team(entry, Path(entry).stem)
        changed = False
        for each in names:
            changed |= file.change_plugins("disabled", remove=each)
        if entry not in settings.plugins.enabled:
            changed |= file.change_plugins("enabled", add=entry)
        try:
            then = operator.take_effect(entry, changed=changed)
        except TrunklineError:
            file.restore()
            raise
        _report(entry, then, enabled=True, changed=changed, as_json=as_json)


def disable(name: Name, as_json: AsJson = False, config: File = None) -> None:
    """Disable a plugin in the settings file; a running gateway stops it at once.

    Its approval, grants and data stay.

    \b
    Examples:
      trunkline plugin disable weather
      trunkline plugin disable spending
    """
    with one_line_errors():
        operator = Operator(config)
        if name in operator.settings.teams.plugins.required:
            raise PluginError(missing_required(name, (name,)))
        file = EditedFile(operator.settings.file)
        entry = _entry(name, operator.settings)
        known = (*operator.settings.plugins.enabled, *BUILTIN_PLUGINS, *OWN_PLUGINS)
        if entry not in known and not is_installed(entry, operator.settings.plugin_base(entry)):
            operator.admission.find(entry)
        changed = file.change_plugins("enabled", remove=entry)
        # Another layer may enable it, and built-in plugins are enabled without being listed.
        now = load_settings(config).plugins
        if (entry in now.enabled or not changed) and entry not in now.disabled:
            changed |= file.change_plugins("disabled", add=entry)
        then = operator.take_effect(entry, changed=changed)
        _report(entry, then, enabled=False, changed=changed, as_json=as_json)


def set_secret(name: Name, secret: Secret, as_json: AsJson = False, config: File = None) -> None:
    """Store a secret of a plugin; the value is read from the terminal or from stdin.

    \b
    Examples:
      trunkline plugin secret set weather API_TOKEN
      trunkline plugin secret set weather API_TOKEN < token.txt
    """
    with one_line_errors():
        operator = Operator(config)
        manifest = checked(operator.admission.find(name))
        if secret not in manifest.secrets:
            listed = ", ".join(manifest.secrets) or "none"
            raise PluginError(
                f"plugin {manifest.name!r} has no secret {secret!r}; its manifest names {listed}"
            )
        asks = sys.stdin.isatty()
        value = typer.prompt(secret, hide_input=True, err=True) if asks else sys.stdin.read()
        if not value.strip():
            raise PluginError(f"the value of {secret} is empty; nothing was changed")
        PluginSecrets(operator.settings.data_dir).put(manifest.name, secret, value.strip())
        _tell_secret(manifest.name, secret, "set", as_json)


def unset_secret(name: Name, secret: Secret, as_json: AsJson = False, config: File = None) -> None:
    """Delete a stored secret of a plugin.

    \b
    Examples:
      trunkline plugin secret unset weather API_TOKEN
    """
    with one_line_errors():
        operator = Operator(config)
        if not PluginSecrets(operator.settings.data_dir).drop(name, secret):
            raise PluginError(f"plugin {name!r} has no stored secret {secret!r}")
        _tell_secret(name, secret, "deleted", as_json)


def _entry(name: str, settings: Settings) -> str:
    """Return a name as the settings list it. A path at the command line begins in the working directory."""
    if name.startswith("@") or not is_path(name):
        return name
    path = Path(os.path.normpath(Path(name).expanduser().absolute()))
    for entry in settings.plugins.enabled:
        listed = settings.plugin_base(entry) / Path(entry).expanduser()
        if "/" in entry and Path(os.path.normpath(listed.absolute())) == path:
            return entry
    return str(path)


def _report(entry: str, then: str, *, enabled: bool, changed: bool, as_json: bool) -> None:
    if as_json:
        echo_json({"name": entry, "enabled": enabled, "changed": changed, "next": then})
    else:
        typer.echo(f"{entry} is {'enabled' if enabled else 'disabled'}; {then}")


def _tell_secret(name: str, secret: str, outcome: str, as_json: bool) -> None:
    if as_json:
        echo_json({"name": name, "secret": secret, "outcome": outcome})
    else:
        typer.echo(f"{secret} of {name} is {outcome}")
