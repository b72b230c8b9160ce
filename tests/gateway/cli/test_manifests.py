"""``trunkline slack manifest``: what the platform's form takes."""

from __future__ import annotations

import json
from pathlib import Path

from tests.gateway.cli.processes import trunkline


def test_the_commands_of_the_plugins_are_in_it(tmp_path: Path) -> None:
    done = trunkline("slack", "manifest", home=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    commands = {one["command"] for one in told["features"]["slash_commands"]}
    assert {"/ask", "/bot-help", "/bot-status", "/model", "/new", "/stop", "/usage"} <= commands
    assert told["settings"]["socket_mode_enabled"]
    assert told["features"]["app_home"]["home_tab_enabled"]
    assert "app_home_opened" in told["settings"]["event_subscriptions"]["bot_events"]
    assert not list(tmp_path.rglob("*.db"))


def test_a_public_address_takes_the_place_of_sockets(tmp_path: Path) -> None:
    done = trunkline("slack", "manifest", "--url", "https://bot.example.org/", home=tmp_path)
    told = json.loads(done.stdout)
    address = "https://bot.example.org/slack/events"
    assert told["settings"]["event_subscriptions"]["request_url"] == address
    assert {one["url"] for one in told["features"]["slash_commands"]} == {address}
    assert not told["settings"]["socket_mode_enabled"]
