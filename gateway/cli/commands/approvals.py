"""``trunkline approvals`` and ``trunkline audit``: what is approved for "always", and who decided what.

``approvals`` lists and revokes decisions about tool calls and plugins' capabilities. Both commands use the
running gateway; without one, the store.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import quote, urlencode

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from gateway.access import THE_OWNER, Access
from gateway.cli.gateway_or_store import GatewayOrStore
from gateway.cli.options import REFUSED, AsJson, File, fail, not_empty, settings_from
from gateway.cli.output import echo_json, moment, plain, print_table
from gateway.extensions.registry import ChannelRegistry
from gateway.server.access import ToolApproval, ToolApprovalList
from gateway.settings import Settings
from gateway.store import Store
from gateway.tables.audit import PAGE, AuditLog, AuditPage, AuditRow

T = TypeVar("T")

_MOST_ACTIONS = 10_000


class ApprovalClient:
    """Client for stored "always" approvals. An error ends the command."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._access = GatewayOrStore(settings)

    def list(self) -> list[ToolApproval]:
        """Return all approvals, newest first."""
        if self._access.running:
            return msgspec.convert(self._access.request("GET", "/api/approvals"), ToolApprovalList).approvals
        return self._locally(ToolApprovalList.of).approvals

    def revoke(self, approval_id: str) -> None:
        """Revoke one approval."""
        if self._access.running:
            self._access.request("DELETE", f"/api/approvals/{quote(approval_id, safe='')}")
        else:
            self._locally(lambda access: access.revoke_approval(approval_id, THE_OWNER))

    def _locally(self, work: Callable[[Access], Awaitable[T]]) -> T:
        async def run(store: Store) -> T:
            return await work(Access(store, self._settings.rules, ChannelRegistry()))

        return self._access.run_in_store(run)


Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID...", help="Ids from the list.", show_default=False, callback=not_empty),
]
All = Annotated[bool, typer.Option("--all", help="All approvals.")]


def list_(as_json: AsJson = False, config: File = None) -> None:
    """List the "always" approvals of tool calls and plugin capabilities, newest first.

    \b
    Examples:
      trunkline approvals list
      trunkline approvals list --json
    """
    allowed = _client(config).list()
    if as_json:
        echo_json(allowed)
    elif allowed:
        _print(allowed)
    else:
        typer.echo('There are no "always" approvals.', err=True)


def revoke(ids: Ids = None, everything: All = False, config: File = None) -> None:
    """Revoke approvals; the next such call, or use of a capability, asks again.

    \b
    Examples:
      trunkline approvals revoke 6f1c0d52-6b1e-4a53-9d6a-0f0f3e0a7c11
      trunkline approvals revoke plugin:weather:network:api.example.org
      trunkline approvals revoke --all
    """
    if not (ids or everything):
        fail("give the ids of approvals, or --all", REFUSED)
    stored = _client(config)
    for approval_id in [each.id for each in stored.list()] if everything else ids or []:
        stored.revoke(approval_id)
        typer.echo(f"revoked: {approval_id}")


def _client(config: Path | None) -> ApprovalClient:
    return ApprovalClient(settings_from(config))


def _print(allowed: list[ToolApproval]) -> None:
    table = Table(box=None, header_style="bold")
    table.add_column("id", no_wrap=True, min_width=36)
    for title in ("user", "session", "tool", "matches", "since", "by"):
        table.add_column(title, overflow="fold")
    for each in allowed:
        user = f"{each.channel}:{each.user}" if each.channel else each.user
        cells = (each.id, user, each.session, each.tool, each.matches, moment(each.at), each.approved_by)
        table.add_row(*(Text(" ".join(plain(cell).split())) for cell in cells))
    print_table(table, width=200)


def audit(
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=_MOST_ACTIONS, help="Number of latest actions.")
    ] = 50,
    actor: Annotated[
        str | None, typer.Option(help="Only of this user, such as telegram:42.", show_default=False)
    ] = None,
    action: Annotated[
        str | None,
        typer.Option(
            help="Only this action, or all actions with this prefix, such as approval.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Show who decided what: approvals, answers, pairing, shares. Also actions of the console; newest first.

    \b
    Examples:
      trunkline audit
      trunkline audit --action approval
      trunkline audit --actor telegram:42 --json
    """
    access = GatewayOrStore(settings_from(config))
    given = {name: value for name, value in (("actor", actor), ("action", action)) if value is not None}
    rows: list[AuditRow] = []
    cursor: str | None = None
    while len(rows) < lines:
        page = _page(access, given, cursor, min(PAGE, lines - len(rows)))
        rows += page.rows
        if (cursor := page.next) is None:
            break
    if as_json:
        echo_json(rows)
    elif rows:
        _print_actions(rows)
    else:
        is_empty = not (actor or action)
        typer.echo(f"The audit log {'is empty' if is_empty else 'has no such action'}.", err=True)


def _page(access: GatewayOrStore, given: dict[str, str], cursor: str | None, most: int) -> AuditPage:
    if access.running:
        query = urlencode({**given, "limit": most, **({} if cursor is None else {"cursor": cursor})})
        return msgspec.convert(access.request("GET", f"/api/audit?{query}"), AuditPage)
    return access.run_in_store(lambda store: AuditLog(store).page(cursor, **given, most=most))


def _print_actions(rows: list[AuditRow]) -> None:
    table = Table(box=None, header_style="bold")
    for title in ("time", "by", "action", "subject", "detail"):
        table.add_column(title, overflow="fold")
    for row in rows:
        cells = (moment(row.at), row.actor, row.action, row.subject, row.detail)
        table.add_row(*(Text(" ".join(plain(cell).split())) for cell in cells))
    print_table(table, width=200)
