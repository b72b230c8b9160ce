"""The text after ``/agents new``: what is a place, what is an option, and what is the task."""

from __future__ import annotations

from typing import Any

import pytest

from plugins.coding_agents.tools.commands import Wanted, parse_new

URL = "https://github.com/acme/app"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("claude fix the login", {"task": "fix the login"}),
        ("claude", {}),
        (f"claude {URL} fix it\n\nand test it", {"repo": URL, "task": "fix it\n\nand test it"}),
        (
            "claude git@git.example.org:acme/app.git go",
            {"repo": "git@git.example.org:acme/app.git", "task": "go"},
        ),
        (
            f"claude {URL} branch=fix-1 base=stable model=opus go",
            {"repo": URL, "branch": "fix-1", "base": "stable", "model": "opus", "task": "go"},
        ),
        ("claude /srv/app go", {"workdir": "/srv/app", "task": "go"}),
        ("claude ~/app", {"workdir": "~/app"}),
        ("claude ws-1795000000000-0a1b2c3d go", {"workspace": "ws-1795000000000-0a1b2c3d", "task": "go"}),
        (f"3 claude {URL} go", {"count": 3, "repo": URL, "task": "go"}),
        (f"2x claude,codex {URL} go", {"count": 2, "agents": ("claude", "codex"), "repo": URL, "task": "go"}),
        (
            "claude-code see https://example.org",
            {"agents": ("claude-code",), "task": "see https://example.org"},
        ),
    ],
)
def test_a_request_is_read(text: str, wanted: dict[str, Any]) -> None:
    expected = Wanted(**{"agents": ("claude",), **wanted})
    assert parse_new(text) == expected


@pytest.mark.parametrize("text", ["", "   ", "0 claude go", ",", "/srv/app"])
def test_a_request_without_an_agent_is_none(text: str) -> None:
    assert parse_new(text) is None
