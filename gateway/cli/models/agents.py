"""``trunkline agents``: the agents of the settings and of plugins."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

from gateway.cli.models.provider_info import idle_gateway, warn_of_failed_plugins
from gateway.cli.options import AsJson, File, settings_from, to_json
from gateway.cli.output import print_table
from gateway.models import MAIN, Profile
from gateway.settings import Settings


def list_(as_json: AsJson = False, config: File = None) -> None:
    """List the agents with their models, tools, fallbacks and channels.

    \b
    Examples:
      trunkline agents list
      trunkline agents list --json
    """
    found = _agents(settings_from(config))
    if as_json:
        typer.echo(to_json(found))
    else:
        _print(found)


def _agents(settings: Settings) -> list[dict[str, Any]]:
    """Return each agent with its values, set by itself or inherited from ``main``."""

    async def profiles_of_all() -> list[Profile]:
        async with idle_gateway(settings, os.environ) as gateway:
            warn_of_failed_plugins(gateway)
            return list(gateway.profiles.all.values())

    profiles = asyncio.run(profiles_of_all())
    here = {place: settings.agent_of(place) or MAIN for place in _places(settings)}
    return [
        {
            "name": profile.name,
            "description": profile.description,
            "model": profile.model or settings.model,
            "tools": None if profile.tools is None else sorted(profile.tools),
            "fallback": list(profile.fallback.chain),
            "channels": [place for place, name in here.items() if name == profile.name],
        }
        for profile in profiles
    ]


def _places(settings: Settings) -> list[str]:
    """Return the enabled channels, as channel.account for those with accounts."""
    return [
        name if account is None else f"{name}.{account}"
        for name, channel in settings.channels.items()
        if channel.enabled
        for account in settings.accounts(name)
    ]


def _print(found: list[dict[str, Any]]) -> None:
    table = Table("agent", "model", "tools", "fallback", "channels", "description", box=box.SIMPLE)
    for agent in found:
        table.add_row(
            f"[bold]{escape(agent['name'])}[/]",
            escape(agent["model"] or "") or "[dim]first available[/]",
            "[dim]all[/]" if agent["tools"] is None else escape(", ".join(agent["tools"])) or "none",
            escape(", ".join(agent["fallback"])),
            escape(", ".join(agent["channels"])),
            escape(agent["description"]),
        )
    print_table(table)
