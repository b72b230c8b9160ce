"""The doctor's look at what the gateway listens on and speaks to: port, channels, plugins, model."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncGenerator, Iterator
from importlib.util import find_spec
from typing import Any

from gateway.app import Gateway
from gateway.cli.finding import Finding, fail, ok, warn
from gateway.cli.providing import plugin_of
from gateway.cli.remote import call, running_gateway
from gateway.errors import PluginError, ProviderError, SettingsError, TrunklineError
from gateway.provider import TriesKey
from gateway.settings import Settings
from gateway.settings.masking import without_passwords

_PROVIDER_SECONDS = 5.0
_DEMO = "set ANTHROPIC_API_KEY or OPENAI_API_KEY, or `model` and [providers.…] in the settings"


def listener(settings: Settings) -> Iterator[Finding]:
    """The port, and the channels; of a gateway that runs, as it sees them itself."""
    server = settings.server
    url = running_gateway(settings)
    if url is None:
        yield _port(server.host, server.port)
        yield from _channels(settings)
        return
    yield ok("port", f"a gateway runs at {url}")
    try:
        status: dict[str, Any] = call(settings, "GET", "/api/status")
    except TrunklineError as error:
        yield warn("channels", f"the gateway does not tell: {error}", "see server.token in the settings")
        return
    channels: dict[str, dict[str, Any]] = status.get("channels", {})
    for name, state in channels.items():
        detail = str(state.get("detail") or "works")
        advice = "see the gateway's log"
        yield ok(f"channel {name}", detail) if state.get("ok") else fail(f"channel {name}", detail, advice)


def plugins(gateway: Gateway) -> Iterator[Finding]:
    """Whether the plugins that the settings name could be loaded, and what they brought."""
    brought = gateway.enabling.brought
    for name in gateway.settings.plugins.enabled:
        if name in gateway.enabling.left_out:
            advice = "correct it, or take it out of plugins.enabled"
            yield fail(f"plugin {name}", gateway.enabling.left_out[name], advice)
        else:
            providers = ", ".join(provider for provider, plugin in brought.items() if plugin == name)
            yield ok(f"plugin {name}", f"loads, and brings {providers}" if providers else "loads")


async def providers(gateway: Gateway) -> AsyncGenerator[Finding]:
    """Whether the providers that are set up can be made; nobody is asked."""
    for name in gateway.models.set_up():
        plugin = plugin_of(gateway, name)
        try:
            made = await gateway.providers.ready(name)
            where = f"{made.name}, {without_passwords(made.api_endpoint)}"
        except (ProviderError, PluginError, SettingsError) as error:
            yield warn(f"provider {name}", without_passwords(str(error)), f"see [providers.{name}]")
        else:
            yield ok(f"provider {name}", f"{where}, by the plugin {plugin}" if plugin else where)


async def model(gateway: Gateway) -> Finding:
    """Whether the model's provider answers, and knows the model."""
    model = gateway.model
    try:
        if model.startswith("demo/"):
            return warn("model", "demo/demo: the built-in demo answers, no model is connected", _DEMO)
        async with asyncio.timeout(_PROVIDER_SECONDS):
            route = await gateway.models.resolve(model)
            if isinstance(route.provider, TriesKey):
                await route.provider.try_key()
            known = [info.id for info in await route.provider.list_models()]
    except TimeoutError:
        return fail(
            "model", f"no answer within {_PROVIDER_SECONDS:.0f} s", "is the network up, is base_url right?"
        )
    except (ProviderError, SettingsError) as error:
        return fail("model", f"{error.name}: {error}", "see `model`, [providers.…] and the key")
    if known and route.model not in known:
        return warn(
            "model", f"{model} is not among the {len(known)} that its provider lists", "is the name right?"
        )
    return ok("model", f"{model} at {route.provider.api_endpoint}")


def _port(host: str, port: int) -> Finding:
    if port == 0:
        return ok("port", "any free one")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host.strip("[]"), port))
        except OSError as error:
            return _taken(host, port, error)
    return ok("port", f"{host}:{port} is free")


def _taken(host: str, port: int, error: OSError) -> Finding:
    if error.errno == errno.EADDRINUSE:
        return fail("port", f"{host}:{port} is taken by another program", "choose another server.port")
    if error.errno == errno.EACCES:
        return fail("port", f"{host}:{port} is not for this user", "choose a server.port above 1023")
    return fail("port", f"{host}:{port}: {error.strerror}", "see server.host in the settings")


def _channels(settings: Settings) -> Iterator[Finding]:
    for name, channel in settings.channels.items():
        if not channel.enabled:
            continue
        if find_spec(f"channels.{name}") is None:
            yield fail(f"channel {name}", "there is no such channel", f"take [channels.{name}] out")
        else:
            yield ok(f"channel {name}", "is there; it connects when the gateway runs")
