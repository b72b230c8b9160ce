"""``trunkline pair``, run as a program: on the store itself, and through a gateway that runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.access import Access
from gateway.channel import Sender
from gateway.cli import app
from gateway.extensions.registry import ChannelRegistry
from gateway.store import Store
from tests.gateway.cli.processes import gateway, trunkline

STRANGERS = (Sender("666", "Eve \x1b[31mred"), Sender("667"))


async def greet(home: Path) -> dict[str, str]:
    """Have two strangers knock. Returns the codes that they were told."""
    told: dict[str, str] = {}
    store = Store.open(f"sqlite:///{home}/data/trunkline.db", "full", unexpected)
    access = Access(store, lambda _channel: None, ChannelRegistry())
    for stranger in STRANGERS:
        greeting = await access.pairing.greet("telegram", stranger)
        assert greeting is not None
        told[stranger.id] = greeting.split("**")[1]
    await store.close()
    return told


def unexpected(error: BaseException) -> None:
    raise AssertionError from error


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "told.json").write_text(json.dumps(asyncio.run(greet(tmp_path))))
    return tmp_path


def listed(home: Path, **environ: str) -> dict[str, list[dict[str, Any]]]:
    done = trunkline("pair", "list", "--json", home=home, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def codes(home: Path, **environ: str) -> dict[str, str]:
    """The codes that are open, by user, as the strangers were told them: the store has only their hashes."""
    waiting = listed(home, **environ)["waiting"]
    assert all(each["code"] == "" for each in waiting)
    told: dict[str, str] = json.loads((home / "told.json").read_text())
    return {each["user"]: told[each["user"]] for each in waiting}


def test_the_list_of_pairings_may_be_empty(tmp_path: Path) -> None:
    trunkline("db", "upgrade", home=tmp_path)
    done = trunkline("pair", "list", home=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "No user waits for access, and none was allowed.\n"
    assert listed(tmp_path) == {"waiting": [], "members": []}


def test_the_table_shows_who_waits_and_cannot_steer_the_terminal(home: Path) -> None:
    done = trunkline("pair", "list", home=home, COLUMNS="200")
    assert done.stdout.count("waiting with a code") == 2
    assert "Eve [31mred" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("running", [False, True])
def test_a_stranger_is_let_in_and_out_again(home: Path, running: bool) -> None:
    if not running:
        approve_and_revoke(home)
        return
    with gateway(home, "--port", "0", "--model", "demo/demo") as process:
        approve_and_revoke(home, TRUNKLINE_SERVER__PORT=process.port)


def approve_and_revoke(home: Path, **environ: str) -> None:
    open_codes = codes(home, **environ)
    done = trunkline("pair", "approve", open_codes["667"].lower(), home=home, **environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "allowed on telegram as user: 667\n", "")
    done = trunkline("pair", "approve", open_codes["666"], "--admin", "--json", home=home, **environ)
    let = json.loads(done.stdout)
    assert (let["channel"], let["user"], let["role"], let["approved_by"]) == (
        "telegram",
        "666",
        "admin",
        "owner",
    )
    assert {m["user"]: m["role"] for m in listed(home, **environ)["members"]} == {
        "666": "admin",
        "667": "user",
    }
    assert codes(home, **environ) == {}
    done = trunkline("pair", "revoke", "telegram", "667", home=home, **environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "removed from telegram: 667\n", "")
    done = trunkline("pair", "revoke", "telegram", "666", "--json", home=home, **environ)
    assert json.loads(done.stdout) == {"channel": "telegram", "user": "666"}
    assert listed(home, **environ) == {"waiting": [], "members": []}
    refused = trunkline("pair", "revoke", "telegram", "666", home=home, **environ)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "no paired user '666'" in refused.stderr


def test_a_wrong_code_is_one_clear_line(home: Path) -> None:
    done = trunkline("pair", "approve", "nonsense", home=home)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "this code is not valid: it may be mistyped, used already or expired\n"
    assert listed(home)["members"] == []


def test_a_running_gateway_asks_for_its_token(home: Path) -> None:
    token = {"TRUNKLINE_SERVER__TOKEN": "t" * 32}
    with gateway(home, "--port", "0", "--model", "demo/demo", **token) as process:
        port = {"TRUNKLINE_SERVER__PORT": process.port}
        code = codes(home, **token, **port)["667"]
        for wrong in ({}, {"TRUNKLINE_SERVER__TOKEN": "w" * 32}):
            done = trunkline("pair", "approve", code, home=home, **port, **wrong)
            assert (done.returncode, "token" in done.stderr) == (1, True)
        assert codes(home, **token, **port)["667"] == code


@pytest.mark.parametrize("command", ["list", "approve", "revoke"])
def test_each_has_help_with_examples(command: str) -> None:
    told = CliRunner().invoke(app, ["pair", command, "--help"])
    assert f"  trunkline pair {command}" in told.stdout.partition("Examples:")[2]
