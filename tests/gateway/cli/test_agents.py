"""``trunkline agents``: who there is."""

from __future__ import annotations

import json
from pathlib import Path

from tests.gateway.cli.processes import trunkline

SETTINGS = """
model = "openai/gpt-5"
fallback = ["anthropic"]

[agents.support]
description = "Answers customers"
provider = "groq"
model = "openai/gpt-oss-120b"
tools = ["stamp", "calculator"]
fallback = []

[channels.telegram.accounts.shop]
agent = "support"

[channels.telegram.accounts.desk]
"""


def test_agents_are_listed_with_what_holds_for_them(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(SETTINGS)
    told = trunkline("agents", "list", "--json", "--config", "own.toml", home=tmp_path)
    listed = json.loads(told.stdout)
    assert [each["name"] for each in listed[2:]] == ["general", "explore", "plan"]
    assert listed[:2] == [
        {
            "name": "main",
            "description": "The agent of the main settings",
            "model": "openai/gpt-5",
            "tools": None,
            "fallback": ["anthropic"],
            "channels": ["websocket", "telegram.desk"],
        },
        {
            "name": "support",
            "description": "Answers customers",
            "model": "groq/openai/gpt-oss-120b",
            "tools": ["calculator", "stamp"],
            "fallback": [],
            "channels": ["telegram.shop"],
        },
    ]
    shown = trunkline("agents", "list", "--config", "own.toml", home=tmp_path, COLUMNS="160")
    assert shown.returncode == 0, shown.stderr
    assert ["support", "groq/openai/gpt-oss-120b"] in [line.split()[:2] for line in shown.stdout.splitlines()]


def test_a_channel_with_an_agent_that_there_is_not_is_reported_by_line(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('[agents.support]\n[channels.telegram]\nagent = "suport"\n')
    done = trunkline("config", "check", "--config", "own.toml", home=tmp_path)
    assert done.returncode != 0
    assert (
        'own.toml:3: channels.telegram.agent = "suport" is not an agent; did you mean support?' in done.stderr
    )
