"""The operator at the command line: the plugins of the settings, errors in one line, and questions."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import to_builtins

from gateway.cli.gateway_client import call, running_gateway
from gateway.cli.gateway_or_store import work_in_store
from gateway.cli.options import fail, settings_from
from gateway.cli.output import one_line, plain
from gateway.contract.errors import TrunklineError
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.capabilities import Grant
from gateway.extensions.admission.consent import chosen, describe, describe_rest
from gateway.extensions.admission.manifest import Manifest
from gateway.extensions.admission.packages.installer import Installer
from gateway.plugin_services import Decision, PluginActions, check_servers, read_parts
from gateway.settings import Settings

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the plugin, as `plugin list` shows it.")]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="CAPABILITY",
        help="Grant only this, such as network or network:api.example.org; repeatable.",
        show_default=False,
    ),
]
Yes = Annotated[
    bool, typer.Option("--yes", help="Do not ask; grant only what --allow names, and nothing without it.")
]


_APPLY_SECONDS = 60.0
"""More than the gateway takes to start a plugin and to end the one before."""
_EFFECTS = {
    "started": "the running gateway has started it",
    "replaced": "the running gateway has replaced it; running turns finish with the old one",
    "stopped": "the running gateway has stopped it",
    "unchanged": "it runs",
    "disabled": "it is not enabled",
}


class Operator:
    """The settings, their plugins, and who runs the command."""

    def __init__(self, config: Path | None) -> None:
        self.settings: Settings = settings_from(config)
        self.home = _home()
        self.admission = Admission(self.settings, home=self.home)
        self.installer = Installer(self.admission, os.environ)

    @property
    def name(self) -> str:
        """The user, as grants and approvals record it."""
        try:
            return f"cli:{pwd.getpwuid(os.getuid()).pw_name}"
        except KeyError:  # a container often has no entry for its user
            return f"cli:{os.getuid()}"

    def consent(
        self,
        manifest: Manifest,
        folder: Path,
        new: Sequence[Grant],
        *,
        allow: Sequence[str],
        yes: bool,
        question: str,
    ) -> tuple[Grant, ...]:
        """Describe the plugin in a folder and ask. Return the grants that are given, of those in ``new``.

        Ends the command if the answer is no, or if there is no terminal for a question.
        """
        allowed = chosen(manifest, allow)
        given = tuple(grant for grant in new if grant in allowed or not (allow or yes))
        about = f": {one_line(manifest.description)}" if manifest.description else ""
        typer.echo(f"{manifest.name} {manifest.version}{about}", err=True)
        parts = read_parts(folder)
        check_servers(manifest, parts.servers)
        for line in (*describe_rest(manifest), *parts.describe()):
            typer.echo(f"  {one_line(line)}", err=True)
        _list("It may, once granted:", describe(manifest, new))
        if given != tuple(new):
            _list("Granted now; it asks in the chat for the others:", describe(manifest, given))
        if yes:
            return given
        if not sys.stdin.isatty():
            fail("stdin is not a terminal: give --yes, and --allow for each capability to grant")
        if not typer.confirm(question, err=True):
            fail("nothing was changed")
        return given

    def take_effect(self, name: str, *, changed: bool = True) -> str:
        """Let a running gateway apply the change of a plugin. Return when it takes effect.

        Raises the error with which the gateway refused it; what ran before continues.
        """
        url = running_gateway(self.settings)
        if url is None:
            return "it takes effect at the next start" if changed else "nothing was changed"
        answer = call(self.settings, "POST", "/api/plugins/apply", {"name": name}, _APPLY_SECONDS)
        if not self.is_own(answer["settings"]):
            return f"it takes effect at the next start; the gateway at {url} has other settings"
        return _EFFECTS[answer["change"]["outcome"]]

    def record(self, decision: Decision) -> None:
        """Write a decision to the audit log of the running gateway or, without one, of the store.

        A plugin that is removed loses its later grants with that, and purged all that it stored. Raises
        TrunklineError.
        """
        if self.running_plugins() is not None:
            call(self.settings, "POST", "/api/plugins/decisions", to_builtins(decision))
        else:
            work_in_store(self.settings, lambda store: PluginActions(store).decide(decision))

    def note(self, decision: Decision) -> None:
        """Write a decision to the audit log, or warn: it counts also where the store cannot be reached."""
        try:
            self.record(decision)
        except TrunklineError as error:
            typer.echo(plain(f"warning: this is not in the audit log: {error}"), err=True)

    def running_plugins(self) -> list[dict[str, Any]] | None:
        """Return the plugins of the running gateway, or None if there is none with these settings."""
        if running_gateway(self.settings) is None:
            return None
        answer = call(self.settings, "GET", "/api/plugins/running")
        return answer["plugins"] if self.is_own(answer["settings"]) else None

    def is_own(self, file: str) -> bool:
        """Return whether a gateway that reads this settings file is the one of these settings."""
        return Path(file) == self.settings.file.absolute()


@contextmanager
def one_line_errors() -> Generator[None]:
    """End the command with status 1 and the error, if the block raises one."""
    try:
        yield
    except TrunklineError as error:
        fail(plain(str(error)))


def _list(title: str, lines: Sequence[str]) -> None:
    typer.echo(title if lines else f"{title} nothing", err=True)
    for line in lines:
        typer.echo(f"  - {one_line(line)}", err=True)


def _home() -> Path | None:
    home = os.environ.get("HOME")
    return Path(home) if home else None
