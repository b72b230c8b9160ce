"""``trunkline channels rooms``: list the chats that channels have seen.

Asks the running gateway; without one, reads the store."""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from gateway.access import Access
from gateway.cli.gateway_or_store import GatewayOrStore
from gateway.cli.options import AsJson, File, settings_from
from gateway.cli.output import echo_json, moment, plain, print_table
from gateway.extensions.registry import ChannelRegistry
from gateway.server.access import RoomInfo, RoomList
from gateway.settings import MAIN, Settings
from gateway.store import Store

Only = Annotated[
    str | None,
    typer.Argument(metavar="[CHANNEL]", help="Only this channel, or channel.account.", show_default=False),
]


def list_(channel: Only = None, as_json: AsJson = False, config: File = None) -> None:
    """List the chats that channels have seen, the latest first, with ids for the settings.

    \b
    Examples:
      trunkline channels rooms
      trunkline channels rooms telegram --json
    """
    settings = settings_from(config)
    found = [
        room for room in _rooms(settings) if channel in (None, room.channel, room.channel.partition(".")[0])
    ]
    if as_json:
        echo_json([_described(room, settings) for room in found])
    elif found:
        _print(found, settings)
    else:
        typer.echo("No chat has been seen yet.", err=True)


def _rooms(settings: Settings) -> list[RoomInfo]:
    access = GatewayOrStore(settings)
    if access.running:
        return msgspec.convert(access.request("GET", "/api/rooms"), RoomList).rooms

    async def read(store: Store) -> list[RoomInfo]:
        return (await RoomList.of(Access(store, settings.rules, ChannelRegistry()))).rooms

    return access.run_in_store(read)


def _described(room: RoomInfo, settings: Settings) -> dict[str, Any]:
    return {**msgspec.structs.asdict(room), "agent": _agent(room, settings)}


def _agent(room: RoomInfo, settings: Settings) -> str:
    return settings.agent_of(room.channel, room.chat) or MAIN


def _print(found: list[RoomInfo], settings: Settings) -> None:
    table = Table(box=None, header_style="bold")
    table.add_column("channel")
    table.add_column("id", no_wrap=True)
    table.add_column("name", overflow="fold")
    for title in ("kind", "enabled", "groups", "agent", "allow", "last seen"):
        table.add_column(title)
    for room in found:
        # Quoted as a key of TOML, to paste into the settings.
        cells = (
            room.channel,
            json.dumps(room.chat),
            room.name,
            room.kind,
            "yes" if room.enabled else "no",
            room.groups if room.kind == "group" else "",
            _agent(room, settings),
            "*" if room.allow is None else str(room.allow),
            moment(room.seen_at),
        )
        table.add_row(*(Text(" ".join(plain(cell).split())) for cell in cells))
    print_table(table, width=200)
