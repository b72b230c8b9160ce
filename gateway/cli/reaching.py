"""The doctor's look at what the gateway listens on and speaks to: port, channels, plugins, model."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from gateway.app import Gateway
from gateway.cli.finding import Finding, fail, ok, warn
from gateway.cli.remote import call, running_gateway
from gateway.errors import PluginError, ProviderError, SettingsError, TrunklineError
from gateway.loader import load_plugin
from gateway.routing import first_model
from gateway.settings import Settings

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


def plugins(settings: Settings) -> Iterator[Finding]:
    """Whether the plugins that the settings name can be loaded."""
    for name in settings.plugins.enabled:
        try:
            load_plugin(name)
        except PluginError as error:
            yield fail(f"plugin {name}", str(error), "correct it, or take it out of plugins.enabled")
        else:
            yield ok(f"plugin {name}", "loads")


def provider(settings: Settings, environ: Mapping[str, str] = os.environ) -> Finding:
    """Whether the model's provider answers, and knows the model."""
    return asyncio.run(_provider(settings, environ))


async def _provider(settings: Settings, environ: Mapping[str, str]) -> Finding:
    gateway = Gateway(settings, environ=environ)
    await gateway.registry.register(load_plugin("providers"))
    try:
        model = settings.model or await first_model(environ, gateway.providers)
        if model.startswith("demo/"):
            return warn("model", "demo/demo: the built-in demo answers, no model is connected", _DEMO)
        async with asyncio.timeout(_PROVIDER_SECONDS):
            route = await gateway.models.resolve(model)
            known = [info.id for info in await route.provider.list_models()]
    except TimeoutError:
        return fail(
            "model", f"no answer within {_PROVIDER_SECONDS:.0f} s", "is the network up, is base_url right?"
        )
    except (ProviderError, SettingsError) as error:
        return fail("model", f"{error.name}: {error}", "see `model`, [providers.…] and the key")
    finally:
        await gateway.providers.close()
        await gateway.registry.shutdown()
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
