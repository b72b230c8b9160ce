"""``trunkline pair``: list users who wait for access, and allow or remove users.

Uses the running gateway; without one, changes the store. The settings may allow more users."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import quote

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from gateway.access import THE_OWNER, Access, UserRef
from gateway.channel import SenderRole
from gateway.cli.gateway_or_store import GatewayOrStore
from gateway.cli.options import AsJson, File, not_empty, settings_from, to_json
from gateway.cli.output import echo_json, moment, plain, print_table
from gateway.extensions.registry import ChannelRegistry
from gateway.server.access import AllowedUser, PairingList
from gateway.settings import Settings
from gateway.store import Store

T = TypeVar("T")


class PairingClient:
    """Client for waiting and allowed users. An error ends the command."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._access = GatewayOrStore(settings)

    def list(self) -> PairingList:
        """Return the waiting and the allowed users."""
        if self._access.running:
            return msgspec.convert(self._access.request("GET", "/api/pairs"), PairingList)
        return self._locally(PairingList.of)

    def approve(self, code: str, role: SenderRole) -> AllowedUser:
        """Allow the user with this code."""
        if self._access.running:
            return msgspec.convert(
                self._access.request("POST", "/api/pairs", {"code": code, "role": role}), AllowedUser
            )

        async def approved(access: Access) -> AllowedUser:
            return AllowedUser.of(await access.pairing.approve(code, THE_OWNER, "admin", role))

        return self._locally(approved)

    def revoke(self, channel: str, user: str) -> None:
        """Remove the access of a user."""
        if self._access.running:
            self._access.request("DELETE", f"/api/pairs/{quote(channel, safe='')}/{quote(user, safe='')}")
        else:
            self._locally(lambda access: access.revoke(UserRef(channel, user), THE_OWNER))

    def _locally(self, work: Callable[[Access], Awaitable[T]]) -> T:
        async def run(store: Store) -> T:
            access = Access(store, self._settings.rules, ChannelRegistry())
            await access.load()
            return await work(access)

        return self._access.run_in_store(run)


Code = Annotated[
    str,
    typer.Argument(
        metavar="CODE", help="Code that the bot sent to the user.", show_default=False, callback=not_empty
    ),
]
AsAdmin = Annotated[bool, typer.Option("--admin", help="Give the user the admin role.")]
Channel = Annotated[
    str,
    typer.Argument(metavar="CHANNEL", help="Id of the channel.", show_default=False, callback=not_empty),
]
User = Annotated[
    str,
    typer.Argument(
        metavar="USER", help="Id of the user on its platform.", show_default=False, callback=not_empty
    ),
]


def list_(as_json: AsJson = False, config: File = None) -> None:
    """List waiting users with their codes, and allowed users, newest first.

    \b
    Examples:
      trunkline pair list
      trunkline pair list --json
    """
    pairs = _client(config).list()
    if as_json:
        echo_json(pairs)
    elif pairs.waiting or pairs.members:
        _print(pairs)
    else:
        typer.echo("No user waits for access, and none was allowed.", err=True)


def approve(code: Code, admin: AsAdmin = False, as_json: AsJson = False, config: File = None) -> None:
    """Allow the user to whom the bot sent this code.

    \b
    Examples:
      trunkline pair approve 7KXM3QDR
      trunkline pair approve 7KXM3QDR --admin
    """
    let = _client(config).approve(code, "admin" if admin else "user")
    if as_json:
        echo_json(let)
        return

    name = f" ({let.name})" if let.name else ""
    typer.echo(plain(f"allowed on {let.channel} as {let.role}: {let.user}{name}"))


def revoke(channel: Channel, user: User, as_json: AsJson = False, config: File = None) -> None:
    """Remove the access of a user, with account links and moved chats.

    \b
    Examples:
      trunkline pair revoke telegram 123456789
    """
    _client(config).revoke(channel, user)
    typer.echo(to_json({"channel": channel, "user": user}) if as_json else f"removed from {channel}: {user}")


def _client(config: Path | None) -> PairingClient:
    return PairingClient(settings_from(config))


def _print(pairs: PairingList) -> None:
    table = Table(box=None, header_style="bold")
    for title in ("channel", "user", "name", "state", "until or since", "by"):
        table.add_column(title, overflow="fold")
    rows = [
        (x.channel, x.user, x.name, f"waiting with {x.code or 'a code'}", moment(x.expires_at), "")
        for x in pairs.waiting
    ]
    rows += [(x.channel, x.user, x.name, x.role, moment(x.at), x.approved_by) for x in pairs.members]
    for row in rows:
        table.add_row(*(Text(" ".join(plain(cell).split())) for cell in row))
    print_table(table)
