"""Checks of the enabled plugins: that they load, find no problem, and have their own commands."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

from gateway.app import Gateway
from gateway.cli.doctor.finding import Finding, fail, ok, warn
from gateway.cli.models.provider_info import idle_gateway
from gateway.contract.plugin import Plugin
from gateway.extensions.admission.packages.index import PluginIndexes
from gateway.settings import Settings

OWN_COMMANDS = (
    *("agent", "compact", "console", "fork", "help", "link", "model", "move", "new", "pair", "plan", "redo"),
    *("share", "status", "stop", "title", "undo", "unshare", "usage", "why"),
)
"""Commands of the gateway itself. Only a running gateway can list them."""
_SECONDS = 15.0
_ADVICE = "rename the command, or disable one of the plugins"


def check_plugins(settings: Settings) -> list[Finding]:
    """Activate the enabled plugins and check them. Channels and turns do not run."""

    async def check() -> list[Finding]:
        async with idle_gateway(settings, os.environ) as gateway:
            return [*[finding async for finding in plugins(gateway)], *await indexes(settings)]

    return asyncio.run(check())


async def plugins(gateway: Gateway) -> AsyncGenerator[Finding]:
    """Check that the enabled plugins load and find no problem, and list their providers."""
    provider_owner = gateway.activator.provider_owner
    for name in gateway.settings.plugins.enabled:
        if name in gateway.activator.failed:
            advice = "correct it, or remove it from plugins.enabled"
            yield fail(f"plugin {name}", gateway.activator.failed[name], advice)
        elif problem := await _problem(gateway.registry.get(Path(name).stem)):
            yield fail(f"plugin {name}", problem, f"correct [plugins.{Path(name).stem}] or what it names")
        else:
            providers = ", ".join(provider for provider, plugin in provider_owner.items() if plugin == name)
            yield ok(f"plugin {name}", f"loads, with providers {providers}" if providers else "loads")
    for finding in _commands(gateway):
        yield finding


async def indexes(settings: Settings) -> list[Finding]:
    """Check that the indexes can be fetched, and are those of their hash or key. Nothing is kept."""
    known, found = PluginIndexes(settings), list[Finding]()
    copies = {url for url, _ in known.copies()}
    for index, problem in await known.check():
        name = f"index {index.url}"
        if not problem:
            found.append(ok(name, "can be fetched"))
        elif index.url in copies:
            advice = "correct plugins.indexes; until then withdrawn versions are not noticed"
            found.append(warn(name, f"{problem}; the last good copy is used", advice))
        else:
            found.append(fail(name, problem, "correct plugins.indexes, or ask the publisher of the index"))
    return found


def _commands(gateway: Gateway) -> Iterator[Finding]:
    """Find the commands of plugins that are never used, because another plugin has the name."""
    for name, plugin, used in gateway.registry.current.unused_commands():
        yield warn(f"plugin {plugin}", f"/{name} is taken by the plugin {used}, loaded earlier", _ADVICE)
    for name, (_, owner) in gateway.registry.current.commands().items():
        if name in OWN_COMMANDS:
            yield warn(f"plugin {owner.name}", f"/{name} is taken by the gateway itself", _ADVICE)


async def _problem(plugin: Plugin | None) -> str:
    if plugin is None:
        return ""
    try:
        async with asyncio.timeout(_SECONDS):
            return await plugin.find_problem()
    except TimeoutError:
        return f"its check took more than {_SECONDS:g} s"
    except Exception as error:  # noqa: BLE001 - code of plugins may raise anything
        return f"its check failed: {type(error).__name__}: {error}"
