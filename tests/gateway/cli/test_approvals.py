"""``trunkline approvals``, run as a program: on the store itself, and through a gateway that runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.access import THE_OWNER, Access, UserRef, grant
from gateway.extensions.registry import ChannelRegistry
from gateway.store import Store
from gateway.testing.chat import chatting
from tests.gateway.cli.processes import gateway, trunkline


async def allow(home: Path) -> None:
    """Let two commands run for always, in a session that exists."""
    async with chatting(home / "data") as chat:
        await chat.say("hello", "s")
    store = Store.open(f"sqlite:///{home}/data/trunkline.db", "full", unexpected)
    ada = UserRef("telegram", "ada")
    await store.write(
        grant("s", ada, "shell", "ls \x1b[31m", ada).put(),
        grant("s", THE_OWNER, "shell", "git status", THE_OWNER).put(),
    )
    assert len(await Access(store, lambda _channel: None, ChannelRegistry()).grants.all()) == 2
    await store.close()


def unexpected(error: BaseException) -> None:
    raise AssertionError from error


@pytest.fixture
def home(tmp_path: Path) -> Path:
    asyncio.run(allow(tmp_path))
    return tmp_path


def listed(home: Path, **environ: str) -> list[dict[str, Any]]:
    done = trunkline("approvals", "list", "--json", home=home, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_the_table_shows_all_and_cannot_steer_the_terminal(home: Path) -> None:
    done = trunkline("approvals", "list", home=home, COLUMNS="200")
    assert all(each["id"] in done.stdout for each in listed(home))
    assert "telegram:ada" in done.stdout
    assert "ls [31m" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("running", [False, True])
def test_approvals_are_listed_and_revoked(home: Path, running: bool) -> None:
    if not running:
        revoke(home)
        return
    with gateway(home, "--port", "0", "--model", "demo/demo") as process:
        revoke(home, TRUNKLINE_SERVER__PORT=process.port)


def revoke(home: Path, **environ: str) -> None:
    found = {each["matches"]: each for each in listed(home, **environ)}
    assert set(found) == {"ls \x1b[31m", "git status"}
    first = found["ls \x1b[31m"]
    assert (first["channel"], first["user"], first["session"], first["tool"], first["approved_by"]) == (
        "telegram",
        "ada",
        "s",
        "shell",
        "telegram:ada",
    )
    done = trunkline("approvals", "revoke", first["id"], home=home, **environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"revoked: {first['id']}\n", "")
    refused = trunkline("approvals", "revoke", first["id"], home=home, **environ)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "no approval" in refused.stderr
    assert trunkline("approvals", "revoke", home=home, **environ).returncode == 2
    assert trunkline("approvals", "revoke", "--all", home=home, **environ).returncode == 0
    assert listed(home, **environ) == []
    done = trunkline("approvals", "list", home=home, **environ)
    assert (done.returncode, done.stdout) == (0, "")
    assert 'There are no "always" approvals' in done.stderr
