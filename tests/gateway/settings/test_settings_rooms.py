"""Settings of rooms: one table for each chat, by its id."""

from __future__ import annotations

import json
import zoneinfo
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from gateway.app import Gateway
from gateway.contract.errors import SettingsError
from gateway.settings import Settings, load_settings
from gateway.testing.chat import chatting

SCHEMA = Path(__file__).parents[3] / "config/schema.json"


def loaded(tmp_path: Path, text: str, **environ: str) -> Settings:
    """Return the settings of a file with this text."""
    (tmp_path / "bot.toml").write_text(text, encoding="utf-8")
    return load_settings(tmp_path / "bot.toml", environ=environ, cwd=tmp_path)


def refused(tmp_path: Path, text: str) -> str:
    """Return the message about a file with wrong settings."""
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, text)
    return str(caught.value)


@pytest.mark.parametrize("chat", ["-1001234", "C0123", "123456789", "someRoom", "!abc:example.org", "T1:C2"])
def test_any_chat_id_names_a_room(tmp_path: Path, chat: str) -> None:
    settings = loaded(tmp_path, f'[channels.x.rooms."{chat}"]\nsystemPrompt = "Be brief."\nallow = [12]\n')
    [(name, room)] = settings.channels["x"].rooms.named.items()
    assert (name, room.system_prompt, room.allow) == (chat, "Be brief.", ("12",))


def test_a_room_may_come_from_a_variable_as_json(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "", TRUNKLINE_CHANNELS__SLACK__ROOMS='{"C0AB": {"groups": "always"}}')
    assert settings.channels["slack"].rooms.named["C0AB"].groups == "always"


ROOM = '[channels.x.rooms."-10"]\n'
ACCOUNT = '[channels.x.accounts.work.rooms."-10"]\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            ROOM + 'gropus = "always"',
            "bot.toml:2: channels.x.rooms.-10.gropus is not a setting; did you mean",
        ),
        (ACCOUNT + 'gropus = "always"', "channels.x.accounts.work.rooms.-10.gropus is not a setting"),
        (ROOM + "admins = [1]", "admins are the same in all rooms; list them for the channel"),
        (ACCOUNT + "admins = [1]", "admins are the same in all rooms; list them for the channel"),
        (ROOM + 'groups = "all"', "groups = \"all\" must be 'command', 'reply', 'mention' or 'always'"),
        (ROOM + "context_messages = 101", "context_messages = 101 must be less than or equal to 100"),
        (ROOM + 'enabled = "perhaps"', 'enabled = "perhaps" must be true or false'),
        (ROOM + 'allow = ["@eve"]', "must hold ids"),
        (ROOM + 'tools = "shell"', 'tools = "shell" must be a list'),
        ('[channels.x.rooms]\ndefault = "no"', "channels.x.rooms.default = \"no\" must be 'allow' or 'deny'"),
        ('[channels.x.rooms]\n"-10" = true', "others are tables, like [channels.x.rooms.-10]"),
        ('[channels.x.rooms]\ngroups = "always"', "did you mean channels.<name>.groups?"),
        ('[channels.x]\nrooms = "deny"', 'channels.x.rooms = "deny" must be a table'),
    ],
)
def test_a_mistake_is_reported_with_its_key_its_value_and_what_to_do(
    tmp_path: Path, text: str, said: str
) -> None:
    assert said in refused(tmp_path, text)


def test_rooms_of_an_account_override_those_of_its_channel_by_id(tmp_path: Path) -> None:
    text = """
        [channels.x]
        groups = "command"
        rooms = { default = "deny", a = { groups = "always", tools = ["t"] }, b = { envelope = "off" } }
        [channels.x.accounts.work.rooms]
        a = { envelope = "name" }
        c = {}
        [channels.x.accounts.home.rooms]
        default = "allow"
        [channels.x.accounts.plain]
    """
    settings = loaded(tmp_path, text)
    rules = {name: settings.rules(f"x.{name}") for name in ("work", "home", "plain")}
    rooms = {name: one.rooms for name, one in rules.items() if one is not None}
    assert {name: one.default for name, one in rooms.items()} == {
        "work": "deny",
        "home": "allow",
        "plain": "deny",
    }
    assert rooms["work"].named.keys() == {"a", "b", "c"}
    assert (rooms["work"].named["a"].groups, rooms["work"].named["a"].tools) == (None, None), "as a whole"
    assert rooms["home"].named == rooms["plain"].named == settings.channels["x"].rooms.named


def test_the_agent_of_a_room_comes_before_that_of_its_account_and_channel(tmp_path: Path) -> None:
    text = """
        [channels.x]
        agent = "a"
        rooms = { one = { agent = "b" }, two = {} }
        [channels.x.accounts.work]
        agent = "c"
        rooms = { three = { agent = "d" } }
    """
    settings = loaded(tmp_path, text)
    chats = ("one", "two", "three", "four")
    assert [settings.agent_of("x", chat) for chat in chats] == ["b", "a", "a", "a"]
    assert [settings.agent_of("x.work", chat) for chat in chats] == ["b", "c", "d", "c"]


def test_an_unknown_agent_of_a_room_is_reported_with_its_place(tmp_path: Path) -> None:
    settings = loaded(tmp_path, f'{ROOM}agent = "cok"\n{ACCOUNT}agent = "main"\n')
    assert settings.unknown_agents(["main", "cook"]) == [
        'bot.toml:2: channels.x.rooms.-10.agent = "cok" is not an agent; did you mean cook? known: main, cook'
    ]


async def test_an_unknown_tool_of_a_room_is_logged_and_an_unknown_agent_ends_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with chatting(tmp_path, channels={"x": {"enabled": False, "rooms": {"-10": {"tools": ["shel"]}}}}):
        assert "an unknown tool is listed" in capsys.readouterr().out
    wrong: dict[str, Any] = {"x": {"enabled": False, "rooms": {"-10": {"agent": "cok"}}}}
    with pytest.raises(SettingsError, match=r"rooms\.-10\.agent"):
        async with Gateway(Settings(data_dir=tmp_path, channels=wrong)).running():
            raise AssertionError("it must not start")


def test_the_schema_accepts_rooms_and_refuses_unknown_keys() -> None:
    schema = jsonschema_rs.validator_for(json.loads(SCHEMA.read_text(encoding="utf-8")))
    rooms: dict[str, Any] = {"default": "deny", "-10": {"groups": "always", "allow": "*"}}
    assert schema.is_valid({"channels": {"x": {"rooms": rooms}}})
    assert not schema.is_valid({"channels": {"x": {"rooms": {"-10": {"admins": ["1"]}}}}})
    assert not schema.is_valid({"channels": {"x": {"rooms": {"-10": True}}}})


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "/etc/passwd", "../x", "Europe\u0000"])
def test_a_time_zone_has_to_exist(tmp_path: Path, name: str) -> None:
    assert "must be the name of a time zone" in refused(tmp_path, f"timezone = {json.dumps(name)}")


def test_a_time_zone_is_known_by_its_name(tmp_path: Path) -> None:
    assert loaded(tmp_path, 'timezone = "Europe/Berlin"').timezone == "Europe/Berlin"


def test_a_time_zone_is_known_on_a_system_without_any(tmp_path: Path) -> None:
    zoneinfo.reset_tzpath(to=())
    zoneinfo.ZoneInfo.clear_cache()
    try:
        assert loaded(tmp_path, 'timezone = "Asia/Tokyo"').timezone == "Asia/Tokyo"
    finally:
        zoneinfo.reset_tzpath()
