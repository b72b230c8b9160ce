"""Loads channels and plugins by name, so that the core imports none of them directly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel

from gateway.contract.channel import Channel
from gateway.contract.errors import PluginError, SettingsError
from gateway.contract.plugin import Plugin
from gateway.settings import Settings
from gateway.settings.validation import hint

BUILTIN_PLUGINS = ("providers", "tools")


def check_siblings() -> None:
    """Check that ``channels`` and ``plugins`` are Trunkline's: other distributions use these names too.

    Raises SettingsError otherwise.
    """
    home = Path(__file__).parent.parent.parent
    for name in ("channels", "plugins"):
        spec = find_spec(name)
        found = Path(spec.origin).parent.parent if spec is not None and spec.origin else None
        if found != home:
            raise SettingsError(
                f"the package {name!r} comes from {found or 'nowhere'} instead of {home}; "
                "install Trunkline into a separate environment"
            )


def load_plugin(name: str, base: Path = Path()) -> Plugin:
    """Load a plugin by name: built in, a module, or a file ending in ``.py``. Raises PluginError.

    A relative file name is relative to ``base``. The module (or file) has a function ``create()`` or a plugin
    named ``plugin``.
    """
    try:
        module = _module(name, base)
        made: object = module.create() if hasattr(module, "create") else getattr(module, "plugin", None)
    except Exception as error:
        raise PluginError(f"plugin {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(made, Plugin):
        raise PluginError(f"plugin {name!r} has neither create() nor a Plugin named plugin")
    return made


def _module(name: str, base: Path) -> ModuleType:
    if name.endswith(".py"):
        return _from_file(base / Path(name).expanduser())
    builtin = name.isidentifier() and find_spec(f"plugins.{name}") is not None
    return import_module(f"plugins.{name}" if builtin else name)


def _from_file(path: Path) -> ModuleType:
    spec = spec_from_file_location(f"plugins.{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def channel_options(settings: Settings, name: str, account: str | None = None) -> Any:
    """Read the settings of a channel, or of one of its accounts, without creating the channel.

    The package may have ``Options``, a pydantic model; otherwise the result is the mapping as written. A
    model may have ``check(channel_id)`` to validate fields together. Raises SettingsError for an unknown
    channel or an invalid setting.
    """
    if not name.isidentifier() or find_spec(f"channels.{name}") is None:
        home = Path(__file__).parent.parent.parent / "channels"
        names = sorted(path.parent.name for path in home.glob("*/channel.py"))
        raise SettingsError(f"channels.{name}: there is no such channel; {hint(name, names)}")
    model: type[BaseModel] | None = getattr(import_module(f"channels.{name}"), "Options", None)
    if model is None:
        return settings.channels[name].options
    options = settings.channel(name, model, account)
    check: Callable[[str], None] | None = getattr(options, "check", None)
    if check is not None:
        check(_channel_id(name, account))
    return options


def enabled_channels(settings: Settings) -> Iterator[tuple[str, str | None, str]]:
    """Yield the name, the account (or None) and the id of each channel to start."""
    for name, channel in settings.channels.items():
        for account in settings.accounts(name) if channel.enabled else ():
            yield name, account, _channel_id(name, account)


def _channel_id(name: str, account: str | None) -> str:
    return name if account is None else f"{name}.{account}"


def load_channel(host: object, settings: Settings, name: str, account: str | None = None) -> Channel:
    """Create a channel by name, or one of its accounts, with its settings.

    Calls ``create(host, channel_id, options)`` of the package; ``channel_options`` defines the options.
    Raises SettingsError for an unknown channel or an invalid setting.
    """
    options = channel_options(settings, name, account)
    return import_module(f"channels.{name}").create(host, _channel_id(name, account), options)
