"""``trunkline dead``, run as a program: on the store itself, and through a gateway that runs."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.testing.chat import chatting
from tests.gateway.cli.processes import PATIENCE, Terminal, gateway, trunkline

TEXTS = ("first \x1b[31mred", "second")


async def bury(home: Path) -> None:
    """Have two messages die of a fault that was not foreseen."""
    async with chatting(home / "data") as chat:
        for text in TEXTS:
            chat.model.then(ZeroDivisionError("nobody foresaw this"))
            await chat.say(text)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    asyncio.run(bury(tmp_path))
    return tmp_path


def listed(home: Path, **environ: str) -> list[dict[str, Any]]:
    done = trunkline("dead", "list", "--json", home=home, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def answers(home: Path) -> list[str]:
    """The answers that are stored."""
    connection = sqlite3.connect(home / "data/trunkline.db")
    query = "SELECT content FROM parts JOIN messages m ON m.id = message_id WHERE role = 'assistant'"
    found = [content for (content,) in connection.execute(query)]
    connection.close()
    return found


def test_there_may_be_none(tmp_path: Path):
    trunkline("db", "upgrade", home=tmp_path)
    done = trunkline("dead", "list", home=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "There are no dead letters.\n")
    assert listed(tmp_path) == []


def test_the_table_shows_what_happened_and_cannot_steer_the_terminal(home: Path):
    done = trunkline("dead", "list", home=home)
    assert "ZeroDivisionError: nobody fores" in done.stdout
    assert all(letter["id"] in done.stdout for letter in listed(home))
    assert "second" in done.stdout
    assert "\x1b" not in done.stdout
    assert {letter["text"] for letter in listed(home)} == set(TEXTS)


def test_a_terminal_without_room_for_the_reasons_gets_them_below_each_other(home: Path):
    terminal = Terminal(home, "dead", "list")
    try:
        assert terminal.wait() == 0
    finally:
        terminal.close()
    reasons = [line for line in terminal.lines if line.startswith(" reason")]
    assert len(reasons) == len(TEXTS)
    assert all("ZeroDivisionError: nobody foresaw this" in line for line in reasons)


def test_show_prints_the_trace(home: Path):
    letter = listed(home)[0]
    done = trunkline("dead", "show", letter["id"], home=home)
    assert "Traceback" in done.stdout
    assert letter["id"] in done.stdout
    whole = json.loads(trunkline("dead", "show", letter["id"], "--json", home=home).stdout)
    assert "Traceback" in whole.pop("trace")
    assert whole == letter


def test_drop_removes_one_and_all_the_rest(home: Path):
    first, second = (letter["id"] for letter in listed(home))
    assert trunkline("dead", "drop", first, home=home).stdout == f"dropped: {first}\n"
    assert [letter["id"] for letter in listed(home)] == [second]
    done = trunkline("dead", "drop", "--all", home=home)
    assert (done.returncode, "add --yes" in done.stderr) == (2, True)
    done = trunkline("dead", "drop", "--all", "--yes", home=home)
    assert second in done.stdout
    assert done.stdout.endswith("1 would be dropped.\n1 dropped, 0 had changed and were skipped.\n")
    assert listed(home) == []


@pytest.mark.parametrize("command", ["show", "replay", "drop"])
def test_an_unknown_id_is_one_clear_line(home: Path, command: str):
    done = trunkline("dead", command, "nobody", home=home)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no dead letter 'nobody'" in done.stderr


@pytest.mark.parametrize("command", ["replay", "drop"])
def test_nothing_happens_to_all_of_them_by_accident(home: Path, command: str):
    done = trunkline("dead", command, home=home)
    assert (done.returncode, done.stderr) == (2, "give the ids of dead letters, --cause or --all\n")
    assert len(listed(home)) == 2


def test_what_is_replayed_in_the_store_is_answered_at_the_next_start(home: Path):
    first, second = (letter["id"] for letter in listed(home))
    done = trunkline("dead", "replay", first, home=home)
    assert done.stdout == f"replayed at the next start: {first}\n"
    done = trunkline("dead", "replay", "--all", "--yes", "--json", home=home)
    assert (json.loads(done.stdout)["replayed"], second in done.stdout) == (1, False)
    assert (listed(home), answers(home)) == ([], [])
    with gateway(home, "--port", "0", "--model", "demo/demo"):
        until_answered(home, 2)


def test_a_running_gateway_is_asked_and_answers_at_once(home: Path):
    with gateway(home, "--port", "0", "--model", "demo/demo") as running:
        port = {"TRUNKLINE_SERVER__PORT": running.port}
        first, second = (letter["id"] for letter in listed(home, **port))
        done = trunkline("dead", "replay", first, home=home, **port)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"replayed: {first}\n", "")
        until_answered(home, 1)
        assert trunkline("dead", "drop", second, home=home, **port).stdout == f"dropped: {second}\n"
        assert listed(home, **port) == []
        refused = trunkline("dead", "drop", second, home=home, **port)
        assert (refused.returncode, "no dead letter" in refused.stderr) == (1, True)


def test_a_group_is_listed_first_and_then_replayed_or_dropped(home: Path):
    key = "-:ZeroDivisionError:-"
    (group,) = json.loads(trunkline("dead", "causes", "--json", home=home).stdout)
    assert (group["key"], group["count"]) == (key, 2)
    assert key in trunkline("dead", "causes", home=home).stdout
    assert trunkline("dead", "list", "--cause=-:ValueError:-", home=home).stdout == ""
    offline = trunkline("dead", "replay", f"--cause={key}", "--dry-run", home=home)
    assert (offline.returncode, "2 would be answered" in offline.stdout) == (0, True)
    with gateway(home, "--port", "0", "--model", "demo/demo") as running:
        port = {"TRUNKLINE_SERVER__PORT": running.port}
        assert [json.loads(trunkline("dead", "causes", "--json", home=home, **port).stdout)] == [[group]]
        first, second = (letter["id"] for letter in listed(home, **port))
        one = trunkline("dead", "drop", first, "--dry-run", "--json", home=home, **port)
        assert [message["id"] for message in json.loads(one.stdout)["messages"]] == [first]
        listing = trunkline("dead", "replay", f"--cause={key}", "--dry-run", home=home, **port)
        assert "\x1b" not in listing.stdout
        assert len(listed(home, **port)) == 2
        assert trunkline("dead", "drop", first, home=home, **port).returncode == 0
        done = trunkline("dead", "replay", f"--cause={key}", "--yes", home=home, **port)
        assert second in done.stdout
        assert done.stdout.endswith("1 replayed, 0 had changed and were skipped.\n")
        until_answered(home, 1)
        assert listed(home, **port) == []
        assert json.loads(trunkline("dead", "causes", "--json", home=home, **port).stdout) == []


def test_a_gateway_that_cannot_be_found_is_named_as_what_holds_the_store(home: Path):
    with gateway(home):
        done = trunkline("dead", "list", home=home, TRUNKLINE_SERVER__PORT="1")
        assert done.returncode == 75
        assert done.stderr.startswith("another gateway already uses")


def until_answered(home: Path, count: int) -> None:
    give_up = time.monotonic() + PATIENCE
    while sum('"type":"text"' in answer for answer in answers(home)) < count:
        assert time.monotonic() < give_up, answers(home)
        time.sleep(0.05)
