"""Channels and plugins are found by name, and what is wrong with one is told with its name."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway import PluginError, SettingsError
from gateway.extensions.loader import (
    BUILTIN_PLUGINS,
    check_siblings,
    known_channels,
    load_channel,
    load_plugin,
)
from gateway.server.app import Api, make_app
from gateway.settings import Settings, load_settings
from gateway.testing.chat import chatting

ROOT = Path(__file__).parents[3]
PLUGIN = "from gateway import Plugin\nclass Mine(Plugin):\n    name = 'mine'\n"


@pytest.mark.parametrize("name", BUILTIN_PLUGINS)
def test_built_in_plugins_are_found_by_their_names(name: str) -> None:
    assert load_plugin(name).name == name
    assert load_plugin(name) is not load_plugin(name), "each gateway gets its own"


@pytest.mark.parametrize("way", ["plugin = Mine()\n", "def create():\n    return Mine()\n"])
def test_a_plugin_may_be_a_file(tmp_path: Path, way: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN + way)
    assert load_plugin(str(file)).name == "mine"


ANNOTATED = """
from __future__ import annotations
from dataclasses import KW_ONLY, dataclass
import msgspec
from gateway import Plugin

@dataclass
class Note:
    text: str
    _: KW_ONLY
    later: Note | None = None

class Tree(msgspec.Struct):
    leaf: Leaf

class Leaf(msgspec.Struct):
    name: str

class Mine(Plugin):
    name = "mine"
    note = Note("a", later=Note("b"))
    tree = msgspec.json.decode('{"leaf": {"name": "x"}}', type=Tree)

plugin = Mine()
"""


def modules_of_files() -> set[str]:
    """The names of the modules that plugin files have now."""
    return {name for name in sys.modules if name.startswith("trunkline_plugin_")}


def test_a_file_may_have_dataclasses_and_forward_references(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ANNOTATED)
    plugin: Any = load_plugin("mine.py", tmp_path)
    assert (plugin.note.later.text, plugin.tree.leaf.name) == ("b", "x")
    assert sys.modules[type(plugin).__module__].plugin is plugin


def test_two_files_with_one_name_are_two_modules(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(f"{PLUGIN}    place = {folder!r}\nplugin = Mine()\n")
    one: Any = load_plugin("a/mine.py", tmp_path)
    other: Any = load_plugin("b/mine.py", tmp_path)
    again: Any = load_plugin("a/mine.py", tmp_path)
    assert (one.place, other.place, again.place) == ("a", "b", "a")
    assert len({type(each).__module__ for each in (one, other, again)}) == 3


@pytest.mark.parametrize("text", ["raise KeyboardInterrupt", "def create(): raise KeyboardInterrupt"])
def test_an_interrupt_during_an_import_ends_the_gateway(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.py").write_text(text)
    with pytest.raises(KeyboardInterrupt):
        load_plugin("odd.py", tmp_path)


def folder_plugin(folder: Path, place: str) -> None:
    """Write a plugin that is a folder with submodules."""
    (folder / "parts").mkdir(parents=True)
    (folder / "main.py").write_text(
        "from . import place\nfrom .parts.words import WORD\n" + PLUGIN + "    found = (place.PLACE, WORD)\n"
        "    def late(self):\n        from . import late\n        return late.PLACE\n\nplugin = Mine()\n"
    )
    (folder / "place.py").write_text(f"PLACE = {place!r}\n")
    (folder / "late.py").write_text(f"PLACE = {place!r}\n")
    (folder / "parts/words.py").write_text("from ..place import PLACE\nWORD = PLACE.upper()\n")


def test_a_plugin_may_be_a_folder_whose_modules_import_one_another(tmp_path: Path) -> None:
    folder_plugin(tmp_path / "a/mine", "here")
    folder_plugin(tmp_path / "b/mine", "there")
    (tmp_path / "a/mine.py").write_text(PLUGIN + "plugin = Mine()\n")
    one: Any = load_plugin("a/mine", tmp_path)
    other: Any = load_plugin("b/mine/", tmp_path)
    assert (one.found, one.late()) == (("here", "HERE"), "here")
    assert (other.found, other.late()) == (("there", "THERE"), "there")
    assert not hasattr(load_plugin("a/mine.py", tmp_path), "found")


def test_loading_leaves_no_compiled_code_which_would_keep_a_plugin_from_being_confined(
    tmp_path: Path,
) -> None:
    folder_plugin(tmp_path / "mine", "here")
    code = "import sys\nfrom pathlib import Path\nfrom gateway.extensions.loader import load_plugin\n"
    code += "load_plugin('./mine', Path(sys.argv[1]))\nassert not sys.dont_write_bytecode"
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environ, check=True)
    assert not [*tmp_path.rglob("__pycache__")]


def test_a_folder_that_fails_to_load_leaves_no_module(tmp_path: Path) -> None:
    before = modules_of_files()
    folder_plugin(tmp_path / "mine", "here")
    (tmp_path / "mine/parts/words.py").write_text("from ..place import PLACE\n1 / 0\n")
    with pytest.raises(PluginError, match=r"'\./mine' cannot be loaded: ZeroDivisionError"):
        load_plugin("./mine", tmp_path)
    with pytest.raises(PluginError, match=r"FileNotFoundError.*nothing.main\.py"):
        load_plugin("./nothing", tmp_path)
    assert modules_of_files() == before


def test_a_folder_is_relative_to_the_settings_that_list_it_and_has_a_table(tmp_path: Path) -> None:
    folder_plugin(tmp_path / "mine", "here")
    (tmp_path / "own.toml").write_text("plugins.enabled = ['./mine']\n[plugins.mine]\noptional = true\n")
    settings = load_settings(tmp_path / "own.toml", environ={})
    plugin: Any = load_plugin("./mine", settings.plugin_base("./mine"))
    assert plugin.found == ("here", "HERE")
    assert settings.plugins.tables_of_others(settings.plugins.enabled) == []
    assert settings.plugins.tables_of_others(["./mine/"]) == []


def test_a_file_that_fails_to_load_leaves_no_module(tmp_path: Path) -> None:
    before = modules_of_files()
    (tmp_path / "odd.py").write_text("1 / 0")
    with pytest.raises(PluginError, match="ZeroDivisionError"):
        load_plugin("odd.py", tmp_path)
    assert modules_of_files() == before


def test_a_plugin_may_be_any_module_that_python_finds(tmp_path: Path) -> None:
    (tmp_path / "my_plugins").mkdir()
    (tmp_path / "my_plugins/mine.py").write_text(PLUGIN + "plugin = Mine()\n")
    code = "from gateway.extensions.loader import load_plugin; print(load_plugin('my_plugins.mine').name)"
    path = os.pathsep.join((str(ROOT), str(tmp_path)))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "mine\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "cannot be loaded: FileNotFoundError"),
        ("1 / 0", "cannot be loaded: ZeroDivisionError"),
        ("import sys; sys.exit(3)", "cannot be loaded: SystemExit: 3"),
        ("def create(): raise SystemExit('no key')", "cannot be loaded: SystemExit: no key"),
        ("def create(:", "cannot be loaded: SyntaxError"),
        ("", "neither create"),
        ("plugin = 5", "neither create"),
        (PLUGIN + "plugin = Mine", "neither create"),
    ],
)
def test_a_file_that_is_not_a_plugin_is_reported_with_its_name(
    tmp_path: Path, text: str | None, told: str
) -> None:
    file = tmp_path / "odd.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(PluginError, match=told) as caught:
        load_plugin(str(file))
    assert "odd.py" in str(caught.value)


def test_a_plugin_that_is_nowhere_is_reported_with_its_name() -> None:
    with pytest.raises(PluginError, match="'no_such_plugin' cannot be loaded: ModuleNotFoundError"):
        load_plugin("no_such_plugin")


async def test_a_channel_is_found_by_its_name(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        settings = Settings.model_validate(
            {"channels": {"websocket": {"accounts": {"second": {}}}, "pigeon": {}}}
        )
        assert load_channel(chat.host, settings, "websocket").id == "websocket"
        assert load_channel(chat.host, settings, "websocket", "second").id == "websocket.second"
        with pytest.raises(
            SettingsError, match=r"channels\.pigeon: there is no such channel; known: discord"
        ):
            load_channel(chat.host, settings, "pigeon")


async def test_a_channel_with_wrong_settings_is_left_out_and_the_others_run(tmp_path: Path) -> None:
    channels = {"websocket": {"colour": "red"}, "pigeon": {"enabled": False}}
    async with chatting(tmp_path, channels=channels) as chat:
        answer = await chat.say("hello")
        health = chat.gateway.health()
    assert answer.text == "You said: hello"
    assert health["websocket"][0] is False
    assert "channels.websocket.colour is not a setting" in health["websocket"][1]
    assert "pigeon" not in health


async def test_a_channel_with_the_path_of_another_one_is_left_out(tmp_path: Path) -> None:
    channels = {"websocket": {"accounts": {"one": {}, "two": {}}}}
    async with chatting(tmp_path, channels=channels) as chat:
        make_app(chat.gateway, Api(chat.gateway))
        assert chat.gateway.left_out == {
            "websocket.two": "channels.websocket.accounts.two: the path /ws is also that of "
            "[channels.websocket.accounts.one]; set another one here"
        }


def test_the_packages_beside_the_core_are_ours() -> None:
    check_siblings()


def test_a_foreign_package_of_the_same_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "channels").mkdir()
    (tmp_path / "channels/__init__.py").write_text("")
    code = "from gateway.extensions.loader import check_siblings; check_siblings()"
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"the package 'channels' comes from {tmp_path} instead of {ROOT}" in done.stderr


class Pigeons:
    """A folder on the path with distributions that declare channels."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, name: str, channels: str, code: str | None = None, version: str = "1.2") -> None:
        """Add a distribution as an installer would; its module has the same name."""
        info = self.folder / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[trunkline.channels]\n{channels}\n")
        if code is not None:
            (self.folder / f"{name}.py").write_text(code)
        importlib.invalidate_caches()


PIGEON = """
class Pigeon:
    def __init__(self, channel_id, options):
        self.id, self.options = channel_id, options
    async def run(self, receive): ...
    async def send(self, outbound): ...
def create(host, channel_id, options):
    return Pigeon(channel_id, options)
"""


@pytest.fixture
def pigeons(tmp_path: Path) -> Iterator[Pigeons]:
    site = tmp_path / "site"
    site.mkdir()
    sys.path.insert(0, str(site))
    yield Pigeons(site)
    sys.path.remove(str(site))
    for file in site.glob("*.py"):
        sys.modules.pop(file.stem, None)


def settings_of(channels: dict[str, Any]) -> Settings:
    return load_settings(flags={"channels": channels}, environ={})


def pigeon_at(settings: Settings, account: str | None = None, name: str = "pigeon") -> Any:
    return load_channel(None, settings, name, account)


def test_a_channel_of_an_installed_package_is_found_by_its_name(pigeons: Pigeons) -> None:
    pigeons.install("loft", "pigeon = loft", PIGEON)
    settings = settings_of({"pigeon": {"roof": "red"}})
    assert (pigeon_at(settings).id, pigeon_at(settings).options) == ("pigeon", {"roof": "red"})
    assert known_channels()["pigeon"] == "loft 1.2"
    assert known_channels()["telegram"] == "built in"


async def test_an_account_has_the_settings_of_its_channel_and_its_own(pigeons: Pigeons) -> None:
    pigeons.install("loft", "pigeon = loft", PIGEON)
    accounts = {"north": {"nick": "nord", "tls": {"ca": "own"}}, "south": {"enabled": True}}
    shared = {"nick": "bot", "server": "irc", "tls": {"ca": "all", "verify": True}}
    settings = settings_of({"pigeon": {**shared, "allow": "*", "accounts": accounts}})
    north, south = (pigeon_at(settings, account) for account in accounts)
    assert (north.id, south.id) == ("pigeon.north", "pigeon.south")
    assert north.options == {"nick": "nord", "server": "irc", "tls": {"ca": "own", "verify": True}}
    assert south.options == shared


@pytest.mark.parametrize(
    ("declared", "table", "told"),
    [
        ("", {"allwo": "*"}, r"pigeon\.allwo is not a setting; did you mean channels\.pigeon\.allow"),
        ("", {"accounts": {"a": {"admin": ["1"]}}}, r"did you mean channels\.pigeon\.accounts\.a\.admins\?"),
        ("OPTIONS = ('nick',)", {"nikc": "x"}, r"nikc is not a setting; did you mean channels\.pigeon\.nick"),
        ("OPTIONS = ('nick',)", {"accounts": {"a": {"colour": 1}}}, r"a\.colour is not .*; known: nick"),
    ],
)  # fmt: skip
def test_an_unknown_key_of_a_channel_without_a_model_is_an_error(
    pigeons: Pigeons, declared: str, table: dict[str, Any], told: str
) -> None:
    pigeons.install("loft", "pigeon = loft", PIGEON + declared)
    settings = settings_of({"pigeon": table})
    with pytest.raises(SettingsError, match=told):
        pigeon_at(settings, settings.accounts("pigeon")[0])


def test_a_key_that_the_channel_needs_is_named(pigeons: Pigeons) -> None:
    needs = "OPTIONS = ('nick',)\ndef create(host, channel_id, options): return options['nick']"
    pigeons.install("loft", "pigeon = loft", PIGEON + needs)
    with pytest.raises(SettingsError, match=r"^channels\.pigeon\.nick: is missing; the channel needs it$"):
        pigeon_at(settings_of({"pigeon": {}}))


def test_a_declared_key_may_be_similar_to_one_of_the_gateway(pigeons: Pigeons) -> None:
    pigeons.install("loft", "pigeon = loft", PIGEON + "OPTIONS = ('room',)")
    assert pigeon_at(settings_of({"pigeon": {"room": "x"}})).options == {"room": "x"}


@pytest.mark.parametrize(
    ("entry", "code", "told"),
    [
        ("pigeon = loft", "1 / 0", "the entry point 'loft' of loft 1.2 cannot be loaded: ZeroDivisionError"),
        ("pigeon = loft", None, "cannot be loaded: ModuleNotFoundError"),
        ("pigeon = loft:Missing", "", "cannot be loaded: AttributeError"),
        ("pigeon = loft", "", r"'loft' of loft 1.2 has no function create\(\)"),
        ("pigeon = loft", "raise SystemExit(1)", "cannot be loaded: SystemExit: 1"),
        ("pigeon = loft", "def create(*given): raise SystemExit(1)", r"create\(\) failed: SystemExit: 1"),
        ("pigeon = loft", "def create(*given): return {}['x']", r"create\(\) failed: KeyError: 'x'"),
        ("pigeon = loft", "def create(*given): return 5", r"create\(\) has not returned a Channel"),
    ],
)  # fmt: skip
async def test_a_broken_channel_of_a_package_is_left_out_and_the_others_run(
    pigeons: Pigeons, tmp_path: Path, entry: str, code: str | None, told: str
) -> None:
    pigeons.install("loft", entry, code)
    async with chatting(tmp_path, channels={"websocket": {}, "pigeon": {}}) as chat:
        answer = await chat.say("hello")
        health = chat.gateway.health()
    assert answer.text == "You said: hello"
    assert re.search(rf"^channels\.pigeon: .*{told}", health["pigeon"][1])


def test_a_package_cannot_replace_a_built_in_channel(pigeons: Pigeons) -> None:
    pigeons.install("loft", "websocket = loft\nodd.name = loft", PIGEON)
    settings = settings_of({"websocket": {}, "odd.name": {}})
    assert type(load_channel(None, settings, "websocket")).__module__ == "channels.websocket.channel"
    assert known_channels()["websocket"] == "built in"
    with pytest.raises(SettingsError, match="there is no such channel"):
        pigeon_at(settings, name="odd.name")


def test_two_packages_with_one_name_are_reported(pigeons: Pigeons) -> None:
    pigeons.install("loft", "pigeon = loft", PIGEON)
    pigeons.install("barn", "pigeon = barn", PIGEON)
    with pytest.raises(SettingsError, match=r"barn 1\.2 and loft 1\.2 both have a channel of this name"):
        pigeon_at(settings_of({"pigeon": {}}))
