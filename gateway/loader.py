"""Finding channels and plugins by name. They lie beside the core, which imports none of them."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from pydantic import BaseModel

from gateway.channel import Channel
from gateway.errors import PluginError, SettingsError
from gateway.host import Host
from gateway.plugin import Plugin
from gateway.settings import Settings

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
    """A plugin by name: built in, a module, or a file ending in ``.py``. Raises PluginError.

    The module (or file) has a function ``create()`` or a plugin named ``plugin``.
    """
    try:
        module = _module(name)
        made: object = module.create() if hasattr(module, "create") else getattr(module, "plugin", None)
    except Exception as error:
        raise PluginError(f"plugin {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(made, Plugin):
        raise PluginError(f"plugin {name!r} has neither create() nor a Plugin named plugin")
    return made


def _module(name: str) -> ModuleType:
    if name.endswith(".py"):
        return _from_file(Path(name).expanduser())
    builtin = name.isidentifier() and find_spec(f"plugins.{name}") is not None
    return import_module(f"plugins.{name}" if builtin else name)


def _from_file(path: Path) -> ModuleType:
    spec = spec_from_file_location(f"plugins.{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_channel(host: Host, settings: Settings, name: str, account: str | None = None) -> Channel:
    """A channel by name, or one of its accounts, with its settings.

    The package has ``create(host, channel_id, options)``. If it also has ``Options``, a pydantic model,
    ``options`` is one, read from the settings; otherwise it is the mapping as written. Raises
    SettingsError when there is no such channel, or a setting of it is wrong.
    """
    if find_spec(f"channels.{name}") is None:
        raise SettingsError(f"channels.{name}: there is no such channel")
    package = import_module(f"channels.{name}")
    channel_id = name if account is None else f"{name}.{account}"
    model: type[BaseModel] | None = getattr(package, "Options", None)
    options = settings.channels[name].options if model is None else settings.channel(name, model, account)
    return package.create(host, channel_id, options)
