"""``trunkline sessions``: read beside a running gateway, or without one."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.gateway.cli.processes import Terminal, gateway, trunkline

TALK = "talk"
LONG = "a-long-id-" + "0123456789" * 3 + "-"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a gateway that answered twice and ended."""
    home = tmp_path_factory.mktemp("kept")
    with gateway(home) as running:
        asked = "what is 12 * 34?\nand what time is it?\n"
        trunkline("chat", TALK, "--url", running.url, home=home, stdin=asked)
    return home


def sessions(home: Path, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return trunkline("sessions", *args, home=home, **environ)


def test_list_tells_what_there_is(kept: Path) -> None:
    lines = sessions(kept, "list").stdout.splitlines()
    assert lines[0].split() == ["session", "title", "channel", "messages", "cost", "updated"]
    assert lines[1].startswith(" talk")
    assert " what is 12 * 34? " in lines[1]
    assert " websocket " in lines[1]
    assert " 4 " in lines[1]


def test_list_speaks_json(kept: Path) -> None:
    (row,) = json.loads(sessions(kept, "list", "--json").stdout)
    assert (row["id"], row["channel"], row["messages"], row["cost"]) == (TALK, "websocket", 4, 0.0)


def test_show_prints_the_messages_as_they_looked(kept: Path) -> None:
    shown = sessions(kept, "show", TALK).stdout
    order = ["> what is 12 * 34?", "✓ calculating  12 * 34", "The tool says: 408", "> and what time"]
    assert sorted(order, key=shown.index) == order


def test_search_finds_messages_and_titles_beside_a_running_gateway(tmp_path: Path) -> None:
    with gateway(tmp_path) as running:
        trunkline("send", "A pelican nests", "--session", TALK, "--url", running.url, home=tmp_path)
        hits: list[dict[str, object]] = []
        # The index is written behind the commit.
        for _ in range(20):
            hits = json.loads(trunkline("search", "nests", "pelic", "--json", home=tmp_path).stdout)
            if len(hits) == 3:
                break
        assert {(hit["session"], hit["role"]) for hit in hits} == {
            (TALK, "user"),
            (TALK, "assistant"),
            (TALK, None),
        }
        table = trunkline("search", "pelican", home=tmp_path).stdout
        assert "A pelican nests" in table
        assert table.split()[:4] == ["time", "session", "author", "text"]
        nothing = trunkline("search", "NEAR", "(", '"', home=tmp_path)
        assert (nothing.stdout, nothing.stderr.strip()) == ("", "No message contains these words.")


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a gateway with sessions whose long ids begin alike."""
    home = tmp_path_factory.mktemp("crowded")
    with gateway(home) as running:
        for end in ("left", "right"):
            trunkline("send", f"hello {end}", "--session", LONG + end, "--url", running.url, home=home)
    return home


def test_an_id_that_a_terminal_cannot_hold_is_marked_and_can_be_pasted(crowded: Path) -> None:
    terminal = Terminal(crowded, "sessions", "list")
    try:
        assert terminal.wait() == 0
    finally:
        terminal.close()
    shown = [word for line in terminal.lines for word in line.split() if word.startswith("a-long-id")]
    assert [name.endswith("…") for name in shown] == [True, True]
    for name in shown:
        assert "> hello " in sessions(crowded, "show", name).stdout


def test_a_narrow_terminal_cuts_titles_alone(kept: Path) -> None:
    terminal = Terminal(kept, "sessions", "list", COLUMNS="72")
    try:
        assert terminal.wait() == 0
    finally:
        terminal.close()
    [line] = [line for line in terminal.lines if line.startswith(" talk")]
    assert re.fullmatch(r" talk +what[^…]+… +websocket +4 +\$0\.0000 +[\d-]{10} \d\d:\d\d *", line)


def test_a_pipe_gets_whole_ids_and_titles_however_narrow_the_terminal_is(crowded: Path) -> None:
    listed = sessions(crowded, "list", COLUMNS="60").stdout
    assert {LONG + "left", LONG + "right"} <= set(listed.split())
    assert "hello right" in listed


def test_a_prefix_of_one_session_names_it(crowded: Path) -> None:
    assert "> hello left" in sessions(crowded, "show", LONG + "l").stdout


def test_a_prefix_of_several_sessions_is_refused_with_their_ids(crowded: Path) -> None:
    done = sessions(crowded, "show", "a-long")
    assert done.returncode == 1
    assert LONG + "left" in done.stderr
    assert LONG + "right" in done.stderr


def test_characters_of_patterns_are_plain_in_a_prefix(crowded: Path) -> None:
    assert sessions(crowded, "show", "%").returncode == 1


@pytest.mark.parametrize("verb", ["show", "replay", "export", "undo", "redo", "delete"])
def test_an_unknown_session_is_named(kept: Path, verb: str) -> None:
    done = sessions(kept, verb, "nobody")
    assert done.returncode == 1
    assert "session 'nobody' does not exist" in done.stderr
    assert "trunkline sessions list" in done.stderr


def test_without_a_store_it_says_so(tmp_path: Path) -> None:
    done = sessions(tmp_path, "list")
    assert done.returncode == 2
    assert "trunkline run" in done.stderr
    assert not (tmp_path / "data").exists()


def test_replay_ends_with_what_show_shows(kept: Path) -> None:
    replayed = sessions(kept, "replay", TALK, "--speed", "1000").stdout
    assert replayed == sessions(kept, "show", TALK).stdout


def test_replay_at_a_terminal_grows_as_it_did(kept: Path) -> None:
    terminal = Terminal(kept, "sessions", "replay", TALK, "--speed", "2")
    try:
        assert terminal.wait() == 0
    finally:
        terminal.close()
    assert "\x1b[2K" in terminal.screen, "something was drawn over"
    assert terminal.lines.count(" • The tool says: 408") == 1


def test_export_as_markdown_goes_to_standard_output(kept: Path) -> None:
    written = sessions(kept, "export", TALK).stdout
    assert written.startswith("# what is 12 * 34?\n")
    assert written.count("## User, ") == written.count("## Assistant, ") == 2
    assert '```json\n{"expression":"12 * 34"}\n```' in written


def test_export_as_json_goes_to_a_file_that_is_not_replaced_unasked(kept: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    command = ("export", TALK, str(file), "--format", "json")
    assert sessions(kept, *command).returncode == 0
    whole = json.loads(file.read_text(encoding="utf-8"))
    assert [message["role"] for message in whole["messages"]] == ["user", "assistant"] * 2
    again = sessions(kept, *command)
    assert (again.returncode, "--force" in again.stderr) == (1, True)
    assert sessions(kept, *command, "--force").returncode == 0
    assert list(tmp_path.iterdir()) == [file]


def test_export_shows_how_far_it_is_when_a_person_watches(kept: Path, tmp_path: Path) -> None:
    terminal = Terminal(kept, "sessions", "export", TALK, str(tmp_path / "talk.md"))
    try:
        assert terminal.wait() == 0
    finally:
        terminal.close()
    assert "exporting" in terminal.screen
    assert "4 messages written" in terminal.screen


def test_delete_asks_and_then_it_is_gone(tmp_path: Path) -> None:
    with gateway(tmp_path) as running:
        trunkline("send", "hello", "--session", "gone", "--url", running.url, home=tmp_path)
    assert trunkline("sessions", "delete", "gone", home=tmp_path, stdin="n\n").returncode == 1
    assert sessions(tmp_path, "show", "gone").returncode == 0
    assert trunkline("sessions", "delete", "gone", home=tmp_path, stdin="y\n").returncode == 0
    assert sessions(tmp_path, "list", "--json").stdout == "[]\n"


def test_delete_asks_a_gateway_that_runs(tmp_path: Path) -> None:
    with gateway(tmp_path) as running:
        trunkline("send", "hello", "--session", "gone", "--url", running.url, home=tmp_path)
        deleted = sessions(tmp_path, "delete", "gone", "--yes", TRUNKLINE_SERVER__PORT=running.port)
        assert (deleted.returncode, deleted.stderr) == (0, "deleted gone\n")
        assert sessions(tmp_path, "show", "gone").returncode == 1


def test_a_session_is_shared_listed_and_revoked_beside_a_gateway_and_without_one(tmp_path: Path) -> None:
    shared = {"TRUNKLINE_SHARE__BASE_URL": "https://bot.example.org", "TRUNKLINE_SHARE__ENABLED": "true"}
    with gateway(tmp_path, **shared) as running:
        trunkline("send", "hello", "--session", TALK, "--url", running.url, home=tmp_path)
        beside = {**shared, "TRUNKLINE_SERVER__PORT": running.url.rstrip("/").rpartition(":")[2]}
        made = sessions(tmp_path, "share", TALK, "--days", "3", **beside)
        assert made.stdout.startswith("https://bot.example.org/share/"), made.stderr
        (one,) = json.loads(sessions(tmp_path, "shares", TALK, "--json", **beside).stdout)
        assert (one["session"], one["views"], one["expires_at"] - one["created_at"]) == (
            TALK,
            0,
            3 * 86_400_000,
        )
        assert sessions(tmp_path, "unshare", one["id"], **beside).stderr.strip() == "revoked: 1"
        assert sessions(tmp_path, "unshare", one["id"], **beside).returncode != 0
    refused = sessions(tmp_path, "share", TALK)
    assert "share.enabled" in refused.stderr
    assert refused.returncode != 0
    for _ in range(2):
        sessions(tmp_path, "share", TALK, **shared)
    assert sessions(tmp_path, "shares", **shared).stdout.count(TALK) == 2
    assert sessions(tmp_path, "unshare", TALK, **shared).stderr.strip() == "revoked: 2"
    assert sessions(tmp_path, "shares", **shared).stderr.strip() == "Nothing is shared."


def test_undo_and_redo_ask_the_gateway_that_runs(tmp_path: Path) -> None:
    with gateway(tmp_path) as running:
        trunkline("send", "hello", "--session", "talk", "--url", running.url, home=tmp_path)
        for verb, shown in (("undo", False), ("redo", True)):
            changed = sessions(tmp_path, verb, "tal", TRUNKLINE_SERVER__PORT=running.port)
            assert (changed.returncode, changed.stderr) == (0, f"{verb}: 2 messages of talk\n")
            assert ("hello" in sessions(tmp_path, "show", "talk").stdout) is shown
            assert ("hello" in sessions(tmp_path, "export", "talk").stdout) is shown
        refused = sessions(tmp_path, "redo", "talk", TRUNKLINE_SERVER__PORT=running.port)
        assert (refused.returncode, "nothing was undone" in refused.stderr) == (1, True)
    stopped = sessions(tmp_path, "undo", "talk")
    assert (stopped.returncode, "needs the running gateway" in stopped.stderr) == (1, True)
