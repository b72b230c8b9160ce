"""Channels and plugins are found by name, and what is wrong with one is told with its name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway import PluginError, SettingsError
from gateway.extensions.loader import BUILTIN_PLUGINS, check_siblings, load_channel, load_plugin
from gateway.settings import Settings
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
        ("def create(:", "cannot be loaded: SyntaxError"),
        ("", "neither create"),
        ("plugin = 5", "neither create"),
        (PLUGIN + "plugin = Mine", "neither create"),
    ],
)
def test_a_file_that_is_no_plugin_is_told_with_its_name(tmp_path: Path, text: str | None, told: str) -> None:
    file = tmp_path / "odd.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(PluginError, match=told) as caught:
        load_plugin(str(file))
    assert "odd.py" in str(caught.value)


def test_a_plugin_that_is_nowhere_is_told_with_its_name() -> None:
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
            SettingsError, match=r"channels\.pigeon: there is no such channel; there are discord"
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
