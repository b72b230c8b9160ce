"""Finding channels and plugins by name. They lie beside the core, which imports none of them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gateway.channel import Channel
from gateway.errors import PluginError, SettingsError
from gateway.host import Host
from gateway.plugin import Plugin

BUILTIN_PLUGINS = ("providers", "tools")


def check_siblings() -> None:
    """Make sure that ``channels`` and ``plugins`` are ours: other distributions use these names too.

    Raises SettingsError otherwise.
    """
    home = Path(__file__).parent.parent
    for name in ("channels", "plugins"):
        spec = find_spec(name)
        found = Path(spec.origin).parent.parent if spec is not None and spec.origin else None
        if found != home:
            raise SettingsError(
                f"the package {name!r} comes from {found or 'nowhere'} instead of {home}; "
                "install Trunkline into an environment of its own"
            )


def load_plugin(name: str) -> Plugin:
    """A plugin by name: built in, or the ``plugin`` or ``create()`` of a module. Raises PluginError."""
    module_name = f"plugins.{name}" if find_spec(f"plugins.{name}") is not None else name
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise PluginError(f"plugin {name!r} cannot be loaded: {error}") from error
    made: object = module.create() if hasattr(module, "create") else getattr(module, "plugin", None)
    if not isinstance(made, Plugin):
        raise PluginError(f"plugin {name!r}: {module_name} has neither create() nor a Plugin named plugin")
    return made


def load_channel(host: Host, channel_id: str, options: Mapping[str, Any]) -> Channel:
    """A channel by name. Raises SettingsError when there is no such channel or a setting of it is wrong."""
    if find_spec(f"channels.{channel_id}") is None:
        raise SettingsError(f"channels.{channel_id}: there is no such channel")
    return import_module(f"channels.{channel_id}").create(host, channel_id, options)
