"""Checks of the port, channels, plugins, providers, and the models that names resolve to."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from gateway.app import Gateway
from gateway.cli.doctor import plugins as plugin_checks
from gateway.cli.doctor import settings as settings_checks
from gateway.cli.doctor.finding import Finding, fail, ok, warn
from gateway.cli.doctor.startup import check_model
from gateway.cli.gateway_client import call, running_gateway
from gateway.cli.models.provider_info import idle_gateway, plugin_of
from gateway.cli.store_reader import is_locked, store_file
from gateway.contract.errors import (
    CATCHABLE,
    PluginError,
    ProviderError,
    ProviderResolutionError,
    SettingsError,
    StoreError,
    TrunklineError,
    is_cancellation_requested,
)
from gateway.extensions.loader import channel_options, enabled_channels, probe_channel
from gateway.models import MAIN, Profile, Route, default_model, unknown_tools
from gateway.settings import Settings, table_of
from gateway.settings.secrets import without_passwords


def listener(settings: Settings) -> Iterator[Finding]:
    """Check the port and the channels; a running gateway reports its own."""
    server = settings.server
    if server.trusted_proxies and not (server.token or server.tokens):
        text = "server.token is not set, although trusted_proxies lets others connect"
        yield warn("token", text, "set server.token, or everyone who reaches the gateway is its admin")
    url = running_gateway(settings)
    if url is None or not is_locked(settings):
        yield _port(server.host, server.port) if url is None else _used_by_another(settings)
        for finding in settings_checks.channels(settings):
            if finding.status != "ok":
                yield finding
        yield from asyncio.run(_probe_all(settings))
        return
    yield ok("port", f"a gateway runs at {url}")
    try:
        status: dict[str, Any] = call(settings, "GET", "/api/status")
    except TrunklineError as error:
        yield warn(
            "channels",
            f"cannot read the status of the gateway: {error}",
            "check server.token in the settings",
        )
        return
    channels: dict[str, dict[str, Any]] = status.get("channels", {})
    for name, state in channels.items():
        detail = str(state.get("detail") or "works")
        advice = "see the log: trunkline logs"
        yield ok(f"channel {name}", detail) if state.get("ok") else fail(f"channel {name}", detail, advice)


async def providers(gateway: Gateway) -> AsyncGenerator[Finding]:
    """Check that the configured providers can be created; makes no request."""
    for name in gateway.models.available_providers():
        plugin = plugin_of(gateway, name)
        try:
            made = await gateway.providers.ready(name)
            where = f"{made.name}, {without_passwords(made.api_endpoint)}"
        except (ProviderError, PluginError, SettingsError) as error:
            yield warn(f"provider {name}", without_passwords(str(error)), f"see [providers.{name}]")
        else:
            yield ok(f"provider {name}", f"{where}, from the plugin {plugin}" if plugin else where)


def _used_by_another(settings: Settings) -> Finding:
    try:
        store = str(store_file(settings))
    except StoreError:
        store = "the database of these settings"
    text = f"{settings.server.host}:{settings.server.port} is in use by a gateway that does not use {store}"
    return fail("port", text, "choose another server.port, or set data_dir to that of the gateway")


async def _probe_all(settings: Settings) -> list[Finding]:
    """Ask the platforms of all channels with valid settings at the same time."""
    valid = [
        each for each in enabled_channels(settings) if settings_checks.channel(settings, *each).status == "ok"
    ]
    found = await asyncio.gather(*(_probe(settings, *each) for each in valid))
    return [finding for findings in found for finding in findings]


async def _probe(settings: Settings, name: str, account: str | None, channel_id: str) -> list[Finding]:
    title = f"channel {channel_id}"
    try:
        async with asyncio.timeout(_PROBE_SECONDS):
            found = await probe_channel(settings, name, account)
    except TimeoutError:
        return [fail(title, f"no answer within {_PROBE_SECONDS:.0f} s", "check the network")]
    except CATCHABLE as error:
        if is_cancellation_requested(error):
            raise
        return [fail(title, f"cannot be checked: {type(error).__name__}: {error}", "report it to its author")]
    if not found:
        return [settings_checks.channel(settings, name, account, channel_id)]
    advice = (
        f"check the network and [{table_of(channel_id)}]; channels/README.md has the steps at the platform"
    )
    findings = [ok(title, each.detail) if each.ok else fail(title, each.detail, advice) for each in found]
    unheard = [
        warn(title, f'groups = "always" of {place} has no effect', each.addressed_only)
        for each in found
        if each.addressed_only
        for place in _hears_all(settings, channel_id)
    ]
    return [*findings, *unheard, *_unencrypted(channel_options(settings, name, account), channel_id)]


def _hears_all(settings: Settings, channel_id: str) -> Iterator[str]:
    """Yield the tables in which a channel is to answer every message of a room."""
    rules, table = settings.rules(channel_id), table_of(channel_id)
    if rules is not None and rules.groups == "always":
        yield f"[{table}]"
    for name, room in rules.rooms.named.items() if rules is not None else ():
        if room.groups == "always":
            yield f'[{table}.rooms."{name}"]'


_ADDRESSES = ("api_base_url", "homeserver", "gateway_url")
"""Settings of channels with an address to which they send their token."""


def _unencrypted(options: object, channel_id: str) -> Iterator[Finding]:
    """Find addresses of public hosts without TLS."""
    for key in _ADDRESSES:
        url = urlsplit(str(getattr(options, key, None) or ""))
        if url.scheme in ("http", "ws") and _is_public(url.hostname or ""):
            place, text = f"{table_of(channel_id)}.{key}", f"{url.scheme}://{url.hostname} is without TLS"
            advice = f"begin {place} with {url.scheme}s://: else the token can be read on the way"
            yield warn(f"channel {channel_id}", f"{place}: {text}", advice)


def _is_public(host: str) -> bool:
    """Return whether the name of a host denotes one outside of this machine and its network."""
    try:
        return ip_address(host).is_global
    except ValueError:
        return "." in host and not host.endswith((".local", ".localhost", ".internal"))


def _port(host: str, port: int) -> Finding:
    if port == 0:
        return ok("port", "any free port")
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
        return fail("port", f"{host}:{port} is in use by another program", "choose another server.port")
    if error.errno == errno.EACCES:
        return fail(
            "port", f"{host}:{port} is not permitted for this user", "choose a server.port above 1023"
        )
    return fail("port", f"{host}:{port}: {error.strerror}", "check server.host in the settings")


_SECONDS = 15.0
_PROBE_SECONDS = 10.0
_ADVICE = "correct the name, unless a plugin adds it; `trunkline models list` shows all"


def routes(settings: Settings, environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """Check plugins, providers, and the model of each name. May ask providers for lists of models."""
    return asyncio.run(_routes(settings, environ))


async def _routes(settings: Settings, environ: Mapping[str, str]) -> list[Finding]:
    async with idle_gateway(settings, environ) as gateway:
        gateway.model = settings.model or await default_model(environ, gateway.providers)
        findings = [finding async for finding in plugin_checks.plugins(gateway)]
        findings += [*_channels(gateway), *_permissions(gateway), *await plugin_checks.indexes(settings)]
        findings += [*settings_checks.plugin_tables(settings), *settings_checks.durations(settings)]
        findings += [finding async for finding in providers(gateway)]
        findings.append(await check_model(gateway))
        used: dict[str, str] = {}
        findings += [finding async for finding in _found(gateway, used)]
        return [*findings, *_retiring(gateway, used)]


def _channels(gateway: Gateway) -> Iterator[Finding]:
    for complaint in gateway.settings.unknown_agents(gateway.profiles.all):
        yield fail("agents of channels", complaint, "correct the name; `trunkline agents list` shows all")


def _permissions(gateway: Gateway) -> Iterator[Finding]:
    try:
        gateway.check_permissions()
    except SettingsError as error:
        yield fail("permissions", str(error), "correct the name of the tool, or remove the rule")
    known = [tool.name for tool in gateway.registry.get_tools()]
    for key, tool, near in unknown_tools(gateway.settings, known):
        text = f"{key} lists the unknown tool {tool!r}" + (f"; did you mean {near}?" if near else "")
        yield warn("tools", text, "correct the name, unless an MCP server adds the tool later")


async def _found(gateway: Gateway, used: dict[str, str]) -> AsyncGenerator[Finding]:
    """Resolve each alias, agent and fallback. ``used`` receives each model and the setting that names it."""
    models = gateway.models
    for profile in gateway.profiles.all.values():
        if profile.small_model and (
            profile.name == MAIN or profile.small_model != gateway.settings.small_model
        ):
            whose = "small_model" if profile.name == MAIN else f"small_model of {profile.name}"
            finding, route = await _led(whose, models.resolve(profile.small_model))
            _note(used, route, whose)
            yield finding
    for alias in models.configured.aliases:
        finding, route = await _led(f"alias {alias}", models.resolve(alias))
        _note(used, route, finding.name)
        yield finding
    for profile in gateway.profiles.all.values():
        finding, route = await _led(f"agent {profile.name}", models.resolve(profile.model or gateway.model))
        _note(used, route, "model" if profile.name == MAIN else finding.name)
        if profile.name != MAIN:
            yield finding
        if route is not None:
            async for each in _chain(gateway, profile, route, used):
                yield each


async def _chain(
    gateway: Gateway, profile: Profile, first: Route, used: dict[str, str]
) -> AsyncGenerator[Finding]:
    """Check the fallback chain of an agent."""
    whose = "fallback" if profile.name == MAIN else f"fallback of {profile.name}"
    for name in profile.fallback.chain:
        finding, route = await _led(f"{whose} {name}", gateway.models.substitute(first, name))
        _note(used, route, finding.name)
        yield finding


def _note(used: dict[str, str], route: Route | None, name: str) -> None:
    if route is not None:
        used.setdefault(route.name, name)


def _retiring(gateway: Gateway, used: Mapping[str, str]) -> Iterator[Finding]:
    """Warn of each model that is used, listed or a default and that has a retirement date."""
    named = dict(used)
    for provider_id in gateway.models.available_providers():
        listed = gateway.providers.configured(provider_id).models
        default = dict(gateway.providers.first_models()).get(provider_id)
        places = dict.fromkeys(listed, f"providers.{provider_id}.models")
        if default and not listed:
            places[default] = f"default of {provider_id}"
        for model, place in places.items():
            named.setdefault(f"{provider_id}/{model}", place)
    for name, place in named.items():
        provider_id, _, model = name.partition("/")
        day = gateway.models.retirement(provider_id, model)
        if day is not None:
            detail = f"{name} ({place}) will be retired by its provider on {day.isoformat()}"
            advice = f"choose a current model: `trunkline models list --provider {provider_id}`"
            yield warn(f"retirement of {name}", detail, advice)


async def _led(name: str, finding: Awaitable[Route]) -> tuple[Finding, Route | None]:
    try:
        async with asyncio.timeout(_SECONDS):
            route = await finding
    except ProviderResolutionError as error:
        return warn(name, str(error), _ADVICE), None
    except TimeoutError:
        return warn(name, f"not resolved within {_SECONDS:.0f} s", "add the provider: provider/model"), None
    except (ProviderError, SettingsError) as error:
        return warn(name, without_passwords(str(error)), "check [providers.…] in the settings"), None
    return ok(name, route.name), route
