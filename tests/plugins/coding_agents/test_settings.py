"""The settings, the named errors, and the statuses of coding agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway import TrunklineError
from gateway.testing.chat import chatting
from plugins.coding_agents import CodingAgents, errors
from plugins.coding_agents.records import Status, public_status
from plugins.coding_agents.settings import CodingAgentSettings

CODES = [
    "SERVICE_UNAVAILABLE",
    "NO_SESSION",
    "SESSION_NOT_FOUND",
    "NO_INPUT",
    "NO_WORKSPACE",
    "WORKDIR_OUTSIDE_ALLOWED",
    "AGENT_NOT_INSTALLED",
    "FOLDER_NOT_TRUSTED",
    "UNKNOWN_AGENT",
    "MISSING_REPO",
    "INVALID_REPO_DOMAIN",
    "MISSING_PARENT",
    "WORKSPACE_NOT_FOUND",
    "FINALIZE_FAILED",
    "SESSION_LIMIT",
    "DISK_QUOTA",
    "SANDBOX_UNAVAILABLE",
    "NOT_READY",
    "STALE_QUESTION",
    "INVALID_REF",
    "FORGE_REFUSED",
    "CREDENTIAL_DENIED",
    "KEEPER_LOST",
]


def known() -> dict[str, type[errors.CodingAgentError]]:
    return {one.code: one for one in errors.CodingAgentError.__subclasses__()}


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_an_error_of_the_tree(code: str) -> None:
    found = known()[code]
    assert issubclass(found, TrunklineError)
    assert found.status >= 400


def test_an_error_has_its_code_as_its_name() -> None:
    assert errors.FinalizeError("the push failed", step="push").name == "FINALIZE_FAILED"
    assert errors.SessionLimitError("five run").retryable


@pytest.mark.parametrize(
    "table",
    [
        {"max_sessions": 5, "idle_timeout_ms": 1_800_000, "debug": True, "base_dir": "/srv/work"},
        {"maxSessions": 5, "idleTimeoutMs": 1_800_000, "debug": True, "baseDir": "/srv/work"},
    ],
)
def test_keys_have_two_spellings(table: dict[str, Any]) -> None:
    settings = CodingAgentSettings.model_validate(
        {**table, "credentials": {"github": {"token": "not-shown"}}}
    )
    assert (settings.max_sessions, settings.idle_timeout_ms) == (5, 1_800_000)
    assert settings.base_dir == Path("/srv/work")
    assert "not-shown" not in repr(settings)


@pytest.mark.parametrize(
    ("status", "done", "expected"),
    [
        ("starting", False, "running"),
        ("ready", False, "running"),
        ("ready", True, "completed"),
        ("busy", False, "running"),
        ("authenticating", False, "blocked"),
        ("blocked", False, "blocked"),
        ("stopped", False, "completed"),
        ("error", False, "error"),
        ("lost", False, "error"),
    ],
)
def test_users_see_four_statuses(status: Status, done: bool, expected: str) -> None:
    assert public_status(status, done) == expected


async def test_the_plugin_is_activated_with_its_settings(tmp_path: Path) -> None:
    async with chatting(tmp_path, CodingAgents(), plugins={"coding_agents": {"maxSessions": 2}}) as chat:
        assert chat.model is not None
