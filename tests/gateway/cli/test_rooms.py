"""``trunkline channels rooms``, run as a program: on the store itself, and through a gateway that runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.access.rooms import SeenRooms
from gateway.channel import Address, InboundMessage, Sender
from gateway.store import Store
from tests.gateway.cli.processes import gateway, trunkline
from tests.gateway.cli.test_doctor import findings

SETTINGS = """
[channels.home]
enabled = false
allow = [1, 2]
[channels.home.rooms]
default = "deny"
"-1" = { groups = "always", allow = "*", agent = "cook" }
"-3" = {}
[channels.away]
enabled = false
accounts = { work = { agent = "cook" } }
[agents.cook]
description = "Cooks"
"""


def unexpected(error: BaseException) -> None:
    raise AssertionError from error


async def see(home: Path) -> None:
    """Store three chats, oldest first."""
    store, times = Store.open(f"sqlite:///{home}/data/trunkline.db", "full", unexpected), iter((1, 2, 3))
    rooms = SeenRooms(store, lambda: next(times))
    for channel, chat, title in (
        ("home", "-1", "Kit\x1bchen"),
        ("home", "-2", "Hall"),
        ("away.work", "5", ""),
    ):
        address = Address(channel, "bot", chat, group=bool(title), title=title)
        sender = Sender("ada", "Ada")
        rooms.note(channel, InboundMessage(session="s", dedup_key="k", address=address, sender=sender))
    await store.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "config").mkdir()
    (tmp_path / "config/trunkline.toml").write_text(SETTINGS)
    asyncio.run(see(tmp_path))
    return tmp_path


def listed(home: Path, *args: str, **environ: str) -> list[dict[str, Any]]:
    done = trunkline("channels", "rooms", *args, "--json", home=home, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def check(home: Path, **environ: str) -> None:
    """Check the list, with the settings that apply in each chat."""
    found = listed(home, **environ)
    keys = ("channel", "chat", "name", "kind", "enabled", "groups", "agent", "allow", "seen_at")
    assert [tuple(room[key] for key in keys) for room in found] == [
        ("away.work", "5", "Ada", "private", True, "mention", "cook", 0, 3),
        ("home", "-2", "Hall", "group", False, "mention", "main", 2, 2),
        ("home", "-1", "Kit\x1bchen", "group", True, "always", "cook", None, 1),
    ]
    assert [room["chat"] for room in listed(home, "home", **environ)] == ["-2", "-1"]
    assert [room["chat"] for room in listed(home, "away", **environ)] == ["5"]
    assert [room["chat"] for room in listed(home, "away.work", **environ)] == ["5"]
    done = trunkline("channels", "rooms", home=home, **environ)
    assert '"-1"' in done.stdout
    assert "\x1b" not in done.stdout
    assert trunkline("channels", "rooms", "none", home=home, **environ).stdout == ""


@pytest.mark.parametrize("running", [False, True])
def test_rooms_are_listed_with_what_applies_there(home: Path, running: bool) -> None:
    if not running:
        check(home)
        return
    with gateway(home, "--port", "0", "--model", "demo/demo") as process:
        check(home, TRUNKLINE_SERVER__PORT=process.port)


def test_doctor_names_rooms_of_the_settings_that_were_never_seen(home: Path) -> None:
    found = findings(home, SETTINGS)
    assert [name for name in found if name.startswith("rooms of")] == ["rooms of home"]
    assert '"-3"' in found["rooms of home"]["detail"]
    assert "trunkline channels rooms home" in found["rooms of home"]["advice"]


def test_rooms_of_a_channel_that_is_not_enabled_are_refused(tmp_path: Path) -> None:
    trunkline("db", "upgrade", home=tmp_path)
    done = trunkline("channels", "rooms", "telegrm", home=tmp_path)
    assert (done.returncode, "'telegrm' is not an enabled channel" in done.stderr) == (1, True)
