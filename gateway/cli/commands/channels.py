"""Commands of channels: ``channels list``, ``rooms``, ``status``, ``<platform> manifest``, ``dev fake``."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
import typer
from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gateway.access import Access
from gateway.app import Gateway
from gateway.cli.command_group import channels_with
from gateway.cli.gateway_client import call
from gateway.cli.gateway_or_store import GatewayOrStore
from gateway.cli.options import REFUSED, AsJson, File, fail, fail_without_testing, settings_from, to_json
from gateway.cli.output import echo_json, moment, plain, print_table
from gateway.contract.errors import TrunklineError
from gateway.contract.plugin import SlashCommand
from gateway.extensions.loader import enabled_channels, known_channels
from gateway.extensions.registry import ChannelRegistry
from gateway.server.access import RoomInfo, RoomList
from gateway.settings import MAIN, Settings
from gateway.settings.sections import StoreSettings
from gateway.settings.validation import hint
from gateway.store import Store

Only = Annotated[
    str | None,
    typer.Argument(metavar="[CHANNEL]", help="Only this channel, or channel.account.", show_default=False),
]


def list_(as_json: AsJson = False, config: File = None) -> None:
    """List the channels that can be configured, and where they come from.

    A channel is built in, or a Python package that declares it.

    \b
    Examples:
      trunkline channels list
      trunkline channels list --json
    """
    configured = settings_from(config).channels
    found = [
        {"name": name, "source": source, "enabled": name in configured and configured[name].enabled}
        for name, source in sorted(known_channels().items())
    ]
    if as_json:
        typer.echo(to_json(found))
        return
    table = Table("channel", "enabled", "from", box=box.SIMPLE)
    for row in found:
        table.add_row(escape(str(row["name"])), "yes" if row["enabled"] else "no", escape(str(row["source"])))
    print_table(table)


def rooms(channel: Only = None, as_json: AsJson = False, config: File = None) -> None:
    """List the chats that channels have seen, the latest first, with ids for the settings.

    Asks the running gateway; without one, reads the store.

    \b
    Examples:
      trunkline channels rooms
      trunkline channels rooms telegram --json
    """
    settings = settings_from(config)
    names = [each for name, _, channel_id in enabled_channels(settings) for each in (name, channel_id)]
    found = [
        room for room in _rooms(settings) if channel in (None, room.channel, room.channel.partition(".")[0])
    ]
    if as_json:
        echo_json([_described(room, settings) for room in found])
    elif found:
        _print_rooms(found, settings)
    elif channel is not None and channel not in names:
        fail(f"{channel!r} is not an enabled channel; {hint(channel, dict.fromkeys(names))}")
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


def _print_rooms(found: list[RoomInfo], settings: Settings) -> None:
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


def status(as_json: AsJson = False, config: File = None) -> None:
    """Show the state of each channel of the running gateway; exit with 1 unless all work.

    \b
    Examples:
      trunkline channels status
      trunkline channels status --json
    """
    try:
        states: dict[str, dict[str, Any]] = call(settings_from(config), "GET", "/api/status")["channels"]
    except TrunklineError as error:
        fail(str(error))
    if as_json:
        typer.echo(to_json(states))
    else:
        _print(states)
    if not all(health["ok"] for health in states.values()):
        raise typer.Exit(1)


def _print(states: dict[str, dict[str, Any]]) -> None:
    table = Table("channel", "state", "detail", box=box.SIMPLE)
    for name, health in sorted(states.items()):
        state = "[green]works[/]" if health["ok"] else "[red]fails[/]"
        table.add_row(escape(name), state, escape(health.get("detail", "")))
    print_table(table)


Public = Annotated[
    str | None,
    typer.Option(
        help="Public URL for webhooks; omit to use an outgoing connection.",
        show_default=False,
    ),
]


def manifest(context: typer.Context, url: Public = None, config: File = None) -> None:
    """Print the registration of the app as JSON, with the commands of the configured plugins.

    \b
    Examples:
      trunkline slack manifest
      trunkline slack manifest --url https://bot.example.org
    """
    parts = urlsplit(url or "")
    if url is not None and not (parts.scheme == "https" and parts.hostname):
        text = f"--url: {url!r} is not a public https address; example: https://bot.example.org"
        fail(text, REFUSED)
    assert context.parent is not None, "the command is in the group of its platform"
    platform = str(context.parent.info_name)
    settings = settings_from(config)
    channel = settings.channels.get(platform)
    try:
        commands = asyncio.run(_commands(settings))
    except TrunklineError as error:
        fail(str(error), REFUSED)
    made = import_module(f"channels.{platform}.manifest").manifest(
        commands, {} if channel is None else channel.options, url
    )
    typer.echo(to_json(made))


async def _commands(settings: Settings) -> Sequence[SlashCommand]:
    """Return the commands of the configured plugins, from a gateway without channels and messages."""
    with TemporaryDirectory() as directory:
        alone: dict[str, Any] = {
            "data_dir": Path(directory),
            "store": StoreSettings(),
            "channels": {},
            "model": "none/none",
        }
        gateway = Gateway(settings.model_copy(update=alone))
        async with gateway.running() as host:
            return host.commands()


def fake(context: typer.Context, platform: str = typer.Argument(help="Platform.")) -> None:
    """Run a fake platform with a web page to send messages as its users.

    It prints its address and the settings that connect a gateway to it. Each platform has its own
    options: `trunkline dev fake telegram --help` lists them.

    \b
    Examples:
      trunkline dev fake telegram --port 8090
      trunkline dev fake slack --help
    """
    there = channels_with("fake/__main__")  # others are made for tests, without a page
    if platform in ("--help", "-h"):
        typer.echo(context.get_help())
        typer.echo(f"\nPlatforms: {', '.join(there)}")
        return
    if not there:
        fail_without_testing("The package with the fake platforms")
    if platform not in there:
        fail(f"unknown fake platform {platform!r}; choose from {', '.join(there)}", REFUSED)
    try:
        serve = import_module(f"channels.{platform}.fake").serve
    except ModuleNotFoundError as error:
        fail_without_testing(f"The Python package {error.name}, which the fake platforms need,")
    with contextlib.suppress(KeyboardInterrupt):
        try:
            asyncio.run(serve(context.args))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            fail(f"the fake platform cannot listen: {reason}; choose another --port")
