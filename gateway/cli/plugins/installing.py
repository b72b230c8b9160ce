"""``trunkline plugin install | update | approve | uninstall``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gateway.cli.options import AsJson, File
from gateway.cli.output import echo_json, plain
from gateway.cli.plugins.operator import Allow, Name, Operator, Yes, one_line_errors
from gateway.contract.errors import PluginError, TrunklineError
from gateway.extensions.admission.admission import IN_PLACE, checked
from gateway.extensions.admission.capabilities import Grant
from gateway.extensions.admission.consent import added, describe_grant
from gateway.extensions.admission.lock import granted
from gateway.extensions.admission.manifest import Manifest
from gateway.extensions.admission.packages.claude import ROOT
from gateway.extensions.admission.packages.index import notes
from gateway.extensions.admission.packages.installer import Prepared, kept_grants
from gateway.plugin_services import Decision

Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="NAME or NAME==VERSION of an index, git+https://HOST/PATH@REF, a folder or a wheel.",
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to", metavar="SOURCE", help="Another source or version; default: the newest.", show_default=False
    ),
]


def install(
    source: Source, allow: Allow = None, yes: Yes = False, as_json: AsJson = False, config: File = None
) -> None:
    """Install a plugin: show what it may do, ask, and record its content in the lock.

    Nothing of it runs. It is neither installed into the gateway's environment nor enabled.

    \b
    Examples:
      trunkline plugin install trunkline-plugin-weather
      trunkline plugin install git+https://example.org/weather.git@v1.2 --yes --allow network
      trunkline plugin install ./weather
    """
    with one_line_errors():
        operator = Operator(config)
        with operator.installer.prepare(source) as prepared:
            name = prepared.manifest.name
            if prepared.before is not None:
                origin = prepared.before.source
                raise PluginError(
                    f"plugin {name!r} is installed from {origin}; run `trunkline plugin update {name}`"
                )
            _note(operator, prepared)
            question = "Install it and grant this?"
            new = operator.consent(
                prepared.manifest,
                prepared.fetched.folder,
                tuple(prepared.manifest.capabilities.grants()),
                allow=allow or (),
                yes=yes,
                question=question,
            )
            operator.installer.place(prepared, granted(new, operator.name), operator.name)
            operator.note(_decision(operator, prepared, "install", new))
        _report(
            prepared.manifest, new, "installed", f'enable it with `trunkline plugin enable "{name}"`', as_json
        )


def update(
    name: Name,
    to: To = None,
    allow: Allow = None,
    yes: Yes = False,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Install the newest version of a plugin: show the difference, and ask for new capabilities.

    A running gateway replaces the plugin at once. If the new version does not start there, the one before
    stays.

    \b
    Examples:
      trunkline plugin update weather
      trunkline plugin update weather --to trunkline-plugin-weather==1.2
    """
    with one_line_errors():
        operator = Operator(config)
        locked = operator.admission.lock().get(name)
        if locked is None or locked.source.startswith(IN_PLACE):
            raise PluginError(
                f"plugin {name!r} is not installed; run `trunkline plugin install` with its source"
            )
        source = to or locked.requested.partition("==")[0]
        with operator.installer.prepare(source) as prepared:
            if prepared.manifest.name != name:
                raise PluginError(f"{source} has the plugin {prepared.manifest.name!r}, not {name!r}")
            before = {each.grant for each in locked.grants}
            if prepared.digest == locked.digest:
                _report(prepared.manifest, (), "is up to date", "nothing was changed", as_json)
                return
            _note(operator, prepared)
            _difference(prepared)
            question = "Update it and grant this?"
            wanted = added(prepared.manifest, before)
            new = operator.consent(
                prepared.manifest,
                prepared.fetched.folder,
                wanted,
                allow=allow or (),
                yes=yes,
                question=question,
            )
            grants = (*prepared.kept, *granted(new, operator.name))
            operator.installer.place(prepared, grants, operator.name)
            operator.note(_decision(operator, prepared, "update", new))
        try:
            then = operator.take_effect(name)
        except TrunklineError as error:
            operator.installer.put_back(name, locked)
            back = Decision(name, "update", operator.name, locked.version, locked.digest, "put back")
            operator.note(back)
            raise PluginError(f"{error}; {name} {locked.version} stays") from None
        _report(prepared.manifest, new, "updated", then, as_json)


def approve(
    name: Name, allow: Allow = None, yes: Yes = False, as_json: AsJson = False, config: File = None
) -> None:
    """Approve the present content of a plugin in a folder, and grant what it may do.

    The folder is in .trunkline/plugins, or NAME is the path of another one. A changed plugin is refused
    until it is approved again. A running gateway replaces the plugin at once.

    \b
    Examples:
      trunkline plugin approve weather
      trunkline plugin approve ./weather --yes --allow network:api.example.org
    """
    with one_line_errors():
        operator = Operator(config)
        entry = name if "/" not in name or name.startswith("@") else str(Path(name).expanduser().absolute())
        found = operator.admission.find(entry)
        shown = operator.installer.digest_of(found)
        manifest = checked(found)
        before = {each.grant for each in kept_grants(manifest, operator.admission.lock().get(manifest.name))}
        new = operator.consent(
            manifest,
            found.folder,
            added(manifest, before),
            allow=allow or (),
            yes=yes,
            question="Approve its content and grant this?",
        )
        operator.installer.approve(entry, new, operator.name, shown)
        locked = operator.admission.lock().get(manifest.name)
        digest = locked.digest if locked else ""
        place = str(found.folder.absolute())
        operator.note(Decision(manifest.name, "approve", operator.name, manifest.version, digest, place, new))
        try:
            then = operator.take_effect(manifest.name)
        except TrunklineError as error:
            raise PluginError(
                f"{manifest.name} is approved, but the running gateway did not load it: {error}"
            ) from None
        _report(manifest, new, "approved", then, as_json)


def uninstall(
    name: Name,
    purge: Annotated[
        bool, typer.Option("--purge", help="Also delete its secrets and what it stored.")
    ] = False,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Remove an installed plugin, its approval and its grants.

    A plugin in a folder of yours stays there, but is refused until it is approved again. What admins decided
    in chats for always goes, too; with --purge also its secrets, stored values and jobs.

    \b
    Examples:
      trunkline plugin uninstall weather
      trunkline plugin uninstall weather --purge
    """
    with one_line_errors():
        operator = Operator(config)
        plugins, entry = operator.settings.plugins, operator.admission.entry_of(name)
        if entry in plugins.enabled and not {entry, name} & {*plugins.disabled}:
            raise PluginError(f"plugin {name!r} is enabled; run `trunkline plugin disable {name}` first")
        if (locked := operator.admission.lock().get(name)) is not None:
            # First: what it stored cannot be purged later, when the plugin is not known any more.
            about = (locked.version, locked.digest, locked.source)
            operator.record(Decision(name, "uninstall", operator.name, *about, purge=purge))
        if not operator.installer.remove(name, purge=purge):
            raise PluginError(f"plugin {name!r} is not installed; `trunkline plugin list` shows the others")
        if as_json:
            echo_json({"name": name, "removed": True, "purged": purge})
        else:
            typer.echo(f"{name} is removed")


def _decision(
    operator: Operator, prepared: Prepared, action: Literal["install", "update"], grants: tuple[Grant, ...]
) -> Decision:
    manifest, source = prepared.manifest, prepared.fetched.source
    return Decision(manifest.name, action, operator.name, manifest.version, prepared.digest, source, grants)


def _note(operator: Operator, prepared: Prepared) -> None:
    """Print what the index says about a plugin that is from one, and what its conversion left out."""
    for line in notes(prepared.offer) if prepared.offer else ():
        typer.echo(f"  {plain(line)}", err=True)
    place = operator.admission.locations.folder(prepared.manifest.name, prepared.digest)
    for note in prepared.notes:
        text = plain(note).replace(ROOT, str(place))
        typer.echo("  " + text.replace("\n", "\n    "), err=True)


def _difference(prepared: Prepared) -> None:
    """Print what an update changes."""
    assert prepared.before is not None
    manifest = prepared.manifest
    typer.echo(f"{manifest.name}: {prepared.before.version} → {manifest.version}", err=True)
    declared = {*manifest.capabilities.grants()}
    for each in prepared.before.grants:
        if each.grant not in declared:
            typer.echo(f"  no longer needed: {each.grant}", err=True)


def _report(manifest: Manifest, new: tuple[Grant, ...], what: str, then: str, as_json: bool) -> None:
    if as_json:
        report: dict[str, Any] = {"name": manifest.name, "version": manifest.version, "granted": list(new)}
        echo_json({**report, "outcome": what, "next": then})
        return
    typer.echo(f"{manifest.name} {manifest.version} {what}; {then}")
    for grant in new:
        typer.echo(f"  granted {grant}: {describe_grant(manifest, grant)}")
