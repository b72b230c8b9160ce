"""Loads channels and plugins by name, so that the core imports none of them directly."""

from __future__ import annotations

import hashlib
import itertools
import sys
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from pydantic import BaseModel

from gateway.contract.channel import Channel, Health
from gateway.contract.errors import CATCHABLE, PluginError, SettingsError
from gateway.contract.plugin import Plugin
from gateway.settings import Settings, table_of
from gateway.settings.validation import hint

BUILTIN_PLUGINS = ("providers", "tools")
SHIPPED_PLUGINS = ("files",)
"""Plugins that come with Trunkline and are enabled by the settings. Their tools are trusted as built in."""
CHANNELS = "trunkline.channels"
"""The group of entry points by which distributions add channels."""
BUILT_IN = "built in"


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
    """Load a plugin by name: built in, a module, a file ending in ``.py``, or a folder. Raises PluginError.

    A name with a slash is a folder, whose ``main.py`` is imported as a package. A relative path is relative
    to ``base``. The module (or file) has a function ``create()`` or a plugin named ``plugin``.
    """
    try:
        module = _module(name, base)
        made: object = module.create() if hasattr(module, "create") else getattr(module, "plugin", None)
    except CATCHABLE as error:
        raise PluginError(f"plugin {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(made, Plugin):
        raise PluginError(f"plugin {name!r} has neither create() nor a Plugin named plugin")
    return made


def check_plugin_settings(settings: Settings, name: str, plugin: Plugin) -> None:
    """Validate a plugin's own settings with its model, if it has one. ``name`` is the one that enabled it.

    Raises PluginError.
    """
    if plugin.settings_model is None:
        return
    try:
        settings.plugin(tuple(dict.fromkeys((name, plugin.name))), plugin.settings_model)
    except SettingsError as error:
        raise PluginError(str(error)) from error
    except CATCHABLE as error:  # of a validator
        raise PluginError(
            f"plugin {name!r} cannot validate its settings: {type(error).__name__}: {error}"
        ) from error


def _module(name: str, base: Path) -> ModuleType:
    path = base / Path(name).expanduser()
    if name.endswith(".py"):
        return _from_file(path, path.stem)
    if "/" in name:
        return _from_file(path / "main.py", path.name, [str(path)])
    builtin = name.isidentifier() and find_spec(f"plugins.{name}") is not None
    return import_module(f"plugins.{name}" if builtin else name)


def _from_file(path: Path, stem: str, folder: list[str] | None = None) -> ModuleType:
    """Import a file as its own module, under a name that no other load has.

    With ``folder`` the module is a package, whose submodules are there.
    """
    spec = spec_from_file_location(_free_name(path, stem), path, submodule_search_locations=folder)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = module_from_spec(spec)
    # Before the import: dataclasses and annotations look up the module of a class by its name.
    sys.modules[spec.name] = module
    try:
        with _no_bytecode():
            spec.loader.exec_module(module)
    except BaseException:
        _forget(spec.name)
        raise
    return module


@contextmanager
def _no_bytecode() -> Generator[None]:
    """Write no compiled code into the folder of a plugin: with some, it could not be confined later."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _free_name(path: Path, stem: str) -> str:
    """Return an unused module name for a file: equal stems stay separate, and so do two loads of one file."""
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    names = (f"trunkline_plugin_{stem}_{digest}_{number}" for number in itertools.count(1))
    return next(name for name in names if name not in sys.modules)


def _forget(name: str) -> None:
    """Remove a module and its submodules."""
    for each in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
        del sys.modules[each]


def channel_options(settings: Settings, name: str, account: str | None = None) -> Any:
    """Read the settings of a channel, or of one of its accounts, without creating the channel.

    The module may have ``Options``, a pydantic model, which may have ``check(table)`` to validate fields
    together (``table`` is the name of their table, for its errors), and ``check_id(id, room=…)``, which
    raises ValueError for what cannot be an id of a user or a room, and ``posted_path(channel_id)``, the path
    to which the platform posts, or None, and ``logins()``, see ``check_logins``. Otherwise the result is a
    mapping, with the account's values over the shared ones; ``OPTIONS`` of the module then names the keys.
    Raises SettingsError for an unknown or broken channel, an unknown key or an invalid setting.
    """
    module = _channel_module(name)
    model: type[BaseModel] | None = getattr(module, "Options", None)
    if model is None:
        return settings.channel_table(name, account, getattr(module, "OPTIONS", None))
    options = settings.channel(name, model, account)
    check: Callable[[str], None] | None = getattr(options, "check", None)
    if check is not None:
        check(table_of(_channel_id(name, account)))
    _check_ids(settings, _channel_id(name, account), getattr(options, "check_id", None))
    return options


def check_logins(settings: Settings, name: str, account: str | None) -> None:
    """Raise SettingsError if an earlier account of the channel has the same login.

    Both would get its messages. ``logins()`` of the options has, by key, what identifies a login, and how it
    may be shown.
    """
    own = _logins(settings, name, account)
    earlier = takewhile(lambda other: other != account, settings.accounts(name))
    for other in earlier if own else ():
        theirs: Mapping[str, tuple[str, str]] = {}
        with suppress(SettingsError):  # an error of the other account is its own
            theirs = _logins(settings, name, other)
        for key, (login, shown) in own.items():
            if theirs.get(key, ("", ""))[0] == login:
                raise SettingsError(
                    f"{table_of(_channel_id(name, account))}.{key}: {shown} is also that of "
                    f"[{table_of(_channel_id(name, other))}], and both would get its messages; set another "
                    "one, or remove one of the two accounts"
                )


def _logins(settings: Settings, name: str, account: str | None) -> Mapping[str, tuple[str, str]]:
    """Return identity and masked form of each login of a channel, by its key."""
    logins = getattr(channel_options(settings, name, account), "logins", None)
    return {} if logins is None else logins()


def _check_ids(settings: Settings, channel_id: str, check: Callable[..., None] | None) -> None:
    """Raise SettingsError for an id in the rules of a channel that its platform cannot have."""
    rules = settings.rules(channel_id)
    if check is None or rules is None:
        return
    for key, given, is_room in rules.ids():
        try:
            check(given, room=is_room)
        except ValueError as error:
            raise SettingsError(f"{table_of(channel_id)}.{key}: {given!r} {error}") from None


async def probe_channel(settings: Settings, name: str, account: str | None = None) -> Sequence[Health]:
    """Ask the platform of a channel whether its settings work; nothing if the module has no ``probe``.

    Raises SettingsError as ``channel_options`` does, and what the ``probe`` of another package raises.
    """
    options = channel_options(settings, name, account)
    probe: Callable[[Any], Awaitable[Sequence[Health]]] | None = getattr(_channel_module(name), "probe", None)
    return () if probe is None else await probe(options)


def known_channels() -> dict[str, str]:
    """Return the names of all channels with their sources: built in, or a distribution and its version."""
    home = Path(__file__).parent.parent.parent / "channels"
    found = {entry.name: _source(entry) for entry in entry_points(group=CHANNELS) if _is_name(entry.name)}
    return found | {path.parent.name: BUILT_IN for path in sorted(home.glob("*/channel.py"))}


def _is_built_in(name: str) -> bool:
    return name.isidentifier() and find_spec(f"channels.{name}") is not None


def _is_name(name: str) -> bool:
    # A dot separates the channel from the account in a channel's id.
    return "." not in name


def _source(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value


def _channel_module(name: str) -> ModuleType:
    """Import the module of a channel: a built-in one, or the entry point with its name."""
    if _is_built_in(name):
        return import_module(f"channels.{name}")
    # Only here, because it reads the metadata of every installed distribution.
    entries = [entry for entry in entry_points(group=CHANNELS) if entry.name == name and _is_name(name)]
    if not entries:
        names = sorted(known_channels())
        raise SettingsError(f"channels.{name}: there is no such channel; {hint(name, names)}")
    source = _source(entries[0])
    if len({(entry.value, _source(entry)) for entry in entries}) > 1:
        sources = " and ".join(sorted(map(_source, entries)))
        raise SettingsError(f"channels.{name}: {sources} both have a channel of this name; uninstall one")
    try:
        module: object = entries[0].load()
    except CATCHABLE as error:
        text = f"the entry point {entries[0].value!r} of {source} cannot be loaded"
        raise SettingsError(f"channels.{name}: {text}: {type(error).__name__}: {error}") from error
    if not callable(getattr(module, "create", None)):
        raise SettingsError(f"channels.{name}: {entries[0].value!r} of {source} has no function create()")
    return cast("ModuleType", module)


def enabled_channels(settings: Settings) -> Iterator[tuple[str, str | None, str]]:
    """Yield the name, the account (or None) and the id of each channel to start."""
    for name, channel in settings.channels.items():
        for account in settings.accounts(name) if channel.enabled else ():
            yield name, account, _channel_id(name, account)


def _channel_id(name: str, account: str | None) -> str:
    return name if account is None else f"{name}.{account}"


def load_channel(host: object, settings: Settings, name: str, account: str | None = None) -> Channel:
    """Create a channel by name, or one of its accounts, with its settings.

    Calls ``create(host, channel_id, options)`` of the module; ``channel_options`` defines the options.
    Raises SettingsError for an unknown or broken channel, or an invalid setting.
    """
    options = channel_options(settings, name, account)
    check_logins(settings, name, account)
    module, channel_id = _channel_module(name), _channel_id(name, account)
    table = table_of(channel_id)
    if _is_built_in(name):
        return module.create(host, channel_id, options)
    try:
        made: object = module.create(host, channel_id, options)
    except SettingsError:
        raise
    except CATCHABLE as error:
        key = error.args[0] if isinstance(error, KeyError) else None
        if key in getattr(module, "OPTIONS", ()) and key not in options:
            raise SettingsError(f"{table}.{key}: is missing; the channel needs it") from None
        raise SettingsError(f"{table}: create() failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, Channel) or made.id != channel_id:
        raise SettingsError(f"{table}: create() has not returned a Channel with this id")
    return made
