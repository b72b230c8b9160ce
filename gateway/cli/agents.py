"""``trunkline agents``: the agents of the settings and of plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from gateway.cli.options import AsJson, File, settings_from, to_json

if TYPE_CHECKING:
    from gateway.routing import Profile
    from gateway.settings import Settings

app = typer.Typer(no_args_is_help=True, help="See the agents there are.")


@app.command("list")
def list_(as_json: AsJson = False, config: File = None) -> None:
    """List the agents: their models, what they may use, who answers in their place, and where they answer.

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
    """Each agent with what holds for it, whether it says so itself or takes it from ``main``."""
    import asyncio
    import os

    from gateway.cli.providing import gateway_of, say_who_is_left_out
    from gateway.routing import MAIN

    async def profiles_of_all() -> list[Profile]:
        async with gateway_of(settings, os.environ) as gateway:
            say_who_is_left_out(gateway)
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
    """The channels that are enabled, and the accounts of those that have some."""
    return [
        name if account is None else f"{name}.{account}"
        for name, channel in settings.channels.items()
        if channel.enabled
        for account in settings.accounts(name)
    ]


def _print(found: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("agent", "model", "tools", "fallback", "channels", "description", box=box.SIMPLE)
    for agent in found:
        table.add_row(
            f"[bold]{escape(agent['name'])}[/]",
            escape(agent["model"] or "") or "[dim]the first found[/]",
            "[dim]all[/]" if agent["tools"] is None else escape(", ".join(agent["tools"])) or "none",
            escape(", ".join(agent["fallback"])),
            escape(", ".join(agent["channels"])),
            escape(agent["description"]),
        )
    Console().print(table)
