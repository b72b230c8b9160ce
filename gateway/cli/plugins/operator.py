"""The operator at the command line: the plugins of the settings, errors in one line, and questions."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.gateway_client import running_gateway
from gateway.cli.options import fail, settings_from
from gateway.cli.output import plain
from gateway.contract.errors import TrunklineError
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.capabilities import Grant
from gateway.extensions.admission.consent import chosen, describe, describe_rest
from gateway.extensions.admission.manifest import Manifest
from gateway.extensions.admission.packages.installer import Installer
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
        self, manifest: Manifest, new: Sequence[Grant], *, allow: Sequence[str], yes: bool, question: str
    ) -> tuple[Grant, ...]:
        """Describe a plugin and ask. Return the grants that are given, of those in ``new``.

        Ends the command if the answer is no, or if there is no terminal for a question.
        """
        allowed = chosen(manifest, allow)
        given = tuple(grant for grant in new if grant in allowed or not (allow or yes))
        typer.echo(f"{manifest.name} {manifest.version}: {plain(manifest.description)}", err=True)
        for line in describe_rest(manifest):
            typer.echo(f"  {plain(line)}", err=True)
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

    def effect(self) -> str:
        """Return when a change of the plugins takes effect."""
        if running_gateway(self.settings) is None:
            return "it takes effect at the next start"
        return "it takes effect at the next start; restart the running gateway"


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
        typer.echo(f"  - {plain(line)}", err=True)


def _home() -> Path | None:
    home = os.environ.get("HOME")
    return Path(home) if home else None
