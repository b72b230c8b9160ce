"""Invalid settings are reported in one line, without secrets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from telegram.constants import ReactionEmoji

import channels.telegram
from channels.telegram.options import REACTIONS
from gateway.contract.errors import SettingsError
from gateway.settings import Settings

ROOT = Path(channels.telegram.__file__).parent.parent.parent
TOKEN = "123456789:AAabcdefghijklmnopqrstuvwxyz-012345"


def options(**given: Any) -> Any:
    settings = Settings.model_validate({"channels": {"telegram": given}})
    return settings.channel("telegram", channels.telegram.Options)


def test_the_library_is_loaded_when_a_bot_is_made_and_not_before() -> None:
    loaded = (
        "import sys, channels.telegram as t, channels.telegram.parse, channels.telegram.render; t.Options;"
        "sys.exit(any(name.split('.')[0] in ('telegram', 'httpx', 'aiohttp') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", loaded], cwd=ROOT, check=False).returncode == 0


def test_a_token_is_enough() -> None:
    found = options(token=TOKEN)
    assert (found.mode, found.session_strategy, found.streaming) == ("polling", "thread", True)
    assert TOKEN not in repr(found)


def test_the_reactions_are_those_of_the_platform() -> None:
    assert frozenset(one.value.replace("\ufe0f", "") for one in ReactionEmoji) == REACTIONS
    assert options(token=TOKEN, thinking="❤\ufe0f").thinking == "❤"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://127.0.0.1:1/", "http://127.0.0.1:1/bot"])
def test_the_address_of_another_server_may_be_written_in_any_way(url: str) -> None:
    assert options(token=TOKEN, api_base_url=url).api_base_url == "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, "token"),
        ({"token": ""}, "must not be blank"),
        ({"token": "  \t"}, "must not be blank"),
        ({"token": "AAabcdefghijklmnopqrstuvwxyz"}, "bot's token"),
        ({"token": TOKEN + "\n"}, "bot's token"),
        ({"token": TOKEN, "api_base_url": "ftp://x"}, "http://"),
        ({"token": TOKEN, "mode": "webhook"}, "webhook_url"),
        ({"token": TOKEN, "mode": "webhook", "webhook_url": "https://a.example/"}, "webhook_secret"),
        ({"token": TOKEN, "mode": "push"}, "polling"),
        ({"token": TOKEN, "tokn": "x"}, "tokn"),
        ({"token": TOKEN, "file_bytes": 10**9}, "file_bytes"),
        ({"token": TOKEN, "stop_reaction": "🛑"}, "allows as reactions"),
        ({"token": TOKEN, "thinking": "eyes"}, "allows as reactions"),
    ],
)
def test_an_invalid_setting_is_reported_in_one_line(given: dict[str, Any], word: str) -> None:
    with pytest.raises(SettingsError) as caught:
        options(**given)
    said = str(caught.value)
    assert word in said
    assert "\n" not in said
    assert "AAabc" not in said
