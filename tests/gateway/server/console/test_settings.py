"""Settings in the console: values with their sources, and changes that are shown before they are written."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli.commands import config
from gateway.contract.errors import InvalidStateError, SettingsError
from gateway.contract.messages import now_ms
from gateway.server.console.sessions import ConsoleSessions
from gateway.settings import load_settings
from gateway.settings.layers.changing import SettingsFile, needs_proof, only_in_terminal, path_of
from gateway.tables.audit import AuditLog, AuditRow
from gateway.testing.served import Served, serving
from tests.gateway.server.console.test_login import OWNER, Browser, audited, browsing

FILE = f"""\
# Our gateway
history_window = 20000  # enough for us

[server]
token = "{OWNER}"

[permissions]
calculator = "allow"

[providers.groq]
api_key = "gsk-not-for-eyes-0123456789"
"""


def written(folder: Path, text: str = FILE) -> Path:
    """Return a settings file with a text."""
    file = folder / "trunkline.toml"
    file.write_text(text, encoding="utf-8")
    return file


async def plan(browser: Browser, key: str, value: Any) -> dict[str, Any]:
    """Return what a change would do."""
    status, found = await browser.ask("POST", "/api/settings/plan", {"path": [*path_of(key)], "value": value})
    assert status == 200, found
    return found


async def save(browser: Browser, key: str, value: Any, digest: str) -> tuple[int, Any]:
    """Save a change whose plan has this digest."""
    body = {"path": [*path_of(key)], "value": value, "digest": digest}
    return await browser.ask("POST", "/api/settings", body)


async def forget_proof(served: Served) -> None:
    """Let the proofs of all logins be six minutes old."""
    parts = served.gateway.parts
    old = ConsoleSessions(parts.store, parts.host.auth, parts.access, lambda: now_ms() - 360_000)
    for login in await old.of("owner"):
        await old.confirm(login.id)


async def test_a_change_is_shown_saved_and_audited(tmp_path: Path) -> None:
    file = written(tmp_path)
    async with serving(tmp_path, file=file) as served, browsing(served) as browser:
        await browser.sign_in(token=OWNER)
        _, found = await browser.ask("GET", "/api/settings")
        rows = {row["key"]: row for row in found["settings"]}
        assert (found["file"], found["can_change"]) == (str(file), True)
        assert (rows["history_window"]["value"], rows["history_window"]["source"]) == (
            20000,
            "trunkline.toml:2",
        )
        assert rows["durability"]["choices"] == ["full", "relaxed"]
        assert rows["server.port"]["source"] == "command line"
        assert "TCP port" in rows["server.port"]["description"]
        assert (rows["providers.groq.api_key"]["value"], rows["providers.groq.api_key"]["is_set"]) == (
            "**********",
            True,
        )
        assert "gsk-not" not in str(found)
        planned = await plan(browser, "history_window", 30000)
        assert planned["difference"] == [
            " # Our gateway",
            "-history_window = 20000  # enough for us",
            "+history_window = 30000  # enough for us",
            " ",
        ]
        assert planned["command"] == "trunkline config set history_window 30000"
        assert file.read_text() == FILE
        assert await save(browser, "history_window", 30000, planned["digest"]) == (
            200,
            {"needs_restart": True, "problem": ""},
        )
        assert file.read_text() == FILE.replace("20000", "30000")
        # The digest was that of the file before, so a second click changes nothing.
        assert (await save(browser, "history_window", 40000, planned["digest"]))[0] == 409
        _, found = await browser.ask("GET", "/api/settings")
        row = next(row for row in found["settings"] if row["key"] == "history_window")
        assert (row["value"], row["running"], row["needs_restart"]) == (30000, 20000, True)
        assert [action for _, action in await audited(served) if action.startswith("settings")] == [
            "settings.change",
            "settings.change.done",
            "settings.change",
            "settings.change.failed",
        ]


async def test_a_change_is_in_the_audit_log_before_it_is_in_the_file(tmp_path: Path) -> None:
    file = written(tmp_path)
    async with serving(tmp_path, file=file) as served, browsing(served) as browser:
        await browser.sign_in(token=OWNER)
        digest = (await plan(browser, "history_window", 30000))["digest"]
        draft = tmp_path / ".trunkline.toml.part"
        # A pipe without a reader holds the writer of the file, as a machine that dies at this point would.
        os.mkfifo(draft)
        log = AuditLog(served.gateway.parts.store)

        async def rows_of(action: str) -> list[AuditRow]:
            async with asyncio.timeout(60):
                while not (rows := (await log.page(action=action)).rows):
                    await asyncio.sleep(0.01)
            return rows

        saving = asyncio.create_task(save(browser, "history_window", 30000, digest))
        try:
            (row,) = await rows_of("settings.change")
            assert (row.action, row.subject) == ("settings.change", "history_window")
            assert "+history_window = 30000" in row.detail
            assert file.read_text() == FILE
            key = {"key": "gsk-other-9876543210", "check": False}
            path = "/api/models/providers/groq/keys/1"
            replacing = asyncio.create_task(browser.ask("POST", path, key))
            await rows_of("models.key")
        finally:
            # Under another name, so that the second writer gets its own file.
            reader = os.open(draft.rename(tmp_path / "pipe"), os.O_RDONLY | os.O_NONBLOCK)
        status, refusal = await saving
        os.close(reader)
        assert (status, "cannot be written" in refusal["message"]) == (409, True), refusal
        assert (await replacing)[0] == 200
        assert "gsk-other-9876543210" in file.read_text()
        assert "history_window = 20000" in file.read_text()
        actions = {row.action: row.detail for row in (await log.page()).rows}
        assert "cannot be written" in actions["settings.change.failed"]
        assert actions["models.key.done"] == "settings: "
        assert "gsk-" not in str(actions)


async def test_what_gives_rights_needs_proof_and_the_worst_a_terminal(tmp_path: Path) -> None:
    file = written(tmp_path)
    async with serving(tmp_path, file=file) as served, browsing(served) as browser:
        await browser.sign_in(token=OWNER)
        await forget_proof(served)
        planned = await plan(browser, "permissions.utc_time", "allow")
        assert planned["needs_proof"] is True
        status, refusal = await save(browser, "permissions.utc_time", "allow", planned["digest"])
        assert (status, refusal["error_name"]) == (403, "ConfirmIdentityError")
        await browser.ask("POST", "/api/console/confirm", {"token": OWNER})
        assert (await save(browser, "permissions.utc_time", "allow", planned["digest"]))[0] == 200
        secret = await plan(browser, "providers.groq.api_key", "gsk-new-0123456789")
        assert "gsk-" not in str(secret)
        assert secret["command"] == "trunkline config set providers.groq.api_key"
        table = await plan(browser, "providers.xai", {"api_key": "gsk-new-0123456789"})
        assert table["command"] == "trunkline config set providers.xai"
        assert "[providers.xai]" in str(table["difference"])
        assert "gsk-" not in str(table)
        assert (await save(browser, "providers.groq.api_key", "gsk-new-0123456789", secret["digest"]))[
            0
        ] == 200
        assert "gsk-new-0123456789" in file.read_text()
        text = file.read_text()
        for key, value, command in (
            ("plugins.x.trust", "full", "trunkline config set plugins.x.trust full"),
            ("permissions.shell", "allow", "trunkline config set permissions.shell allow"),
            ("plugins.enabled", ["shell"], "trunkline config set plugins.enabled '[\"shell\"]'"),
            ("system_prompt", "${HOME}", "trunkline config set system_prompt '${HOME}'"),
        ):
            planned = await plan(browser, key, value)
            assert planned["command"] == command
            status, refusal = await save(browser, key, value, planned["digest"])
            assert (status, command in refusal["message"]) == (403, True), key
        status, refusal = await browser.ask(
            "POST", "/api/settings/plan", {"path": ["limits", "max_attempts"], "value": "many"}
        )
        assert status == 409
        assert "limits.max_attempts" in refusal["message"]
        overridden = {"path": ["server", "port"], "value": 9}
        status, refusal = await browser.ask("POST", "/api/settings/plan", overridden)
        assert (status, "command line" in refusal["message"]) == (409, True)
        assert (await browser.ask("POST", "/api/settings/plan", {"path": ["nonsense"], "value": 1}))[0] == 400
        assert file.read_text() == text


@pytest.mark.parametrize(
    ("key", "value", "wants_proof"),
    [
        ("history_window", 30000, False),
        ("agents.clerk", {"system_prompt": "Be short"}, False),
        ("providers.groq.base_url", "https://other.example.org", True),
        ("providers.groq.baseUrl", "https://other.example.org", True),
        ("providers.groq", {"base_url": "https://other.example.org"}, True),
        ("providers", {"groq": {"baseUrl": "https://other.example.org"}}, True),
        ("providers.other", {"api_key": "gsk-other-0123456789"}, True),
        ("channels.telegram", {"token": "1:a", "admins": ["7"]}, True),
        ("channels", {"telegram": {"rooms": {"-1": {"allow": ["7"]}}}}, True),
        ("trustedProjects", ["/srv/work"], True),
    ],
)
def test_a_change_of_rights_needs_proof_in_every_form(key: str, value: Any, wants_proof: bool) -> None:
    assert needs_proof(path_of(key), value) is wants_proof


async def test_a_difference_shows_no_secret_of_another_key(tmp_path: Path) -> None:
    text = f"""\
[server]
token = "{OWNER}"
port = 0

[providers.groq]
api_keys = [
    "gsk-first-0123456789",
    "gsk-second-0123456789",
]
max_retries = 2
[plugins]
weather = {{ token = "7:short", days = 3 }}
"""
    file = written(tmp_path, text)
    async with serving(tmp_path, file=file) as served, browsing(served) as browser:
        await browser.sign_in(token=OWNER)
        shown = [
            await plan(browser, "providers.groq.max_retries", 3),
            await plan(browser, "plugins.weather.days", 4),
            await plan(browser, "providers.groq", None),
            await plan(browser, "server.viewer_reads", "messages"),
        ]
        assert "+max_retries = 3" in shown[0]["difference"]
        lines = [line for each in shown for line in each["difference"]]
        assert any("token = **********, days" in line for line in lines)
        for secret in (OWNER, "gsk-first", "gsk-second", "7:short"):
            assert secret not in str(lines)
        await browser.ask("POST", "/api/console/confirm", {"token": OWNER})
        assert (await save(browser, "providers.groq.max_retries", 3, shown[0]["digest"]))[0] == 200
        details = str([row.detail for row in (await AuditLog(served.gateway.parts.store).page()).rows])
        assert "+max_retries = 3" in details
        assert "gsk-" not in details


@pytest.mark.parametrize(
    ("key", "value", "is_refused"),
    [
        ("plugins.x.trust", "full", True),
        ("plugins.x.trust", "confined", False),
        ("plugins.sandbox", "off", True),
        ("plugins", {"x": {"trust": "full"}}, True),
        ('permissions."shell@admin"', {"*": "allow"}, True),
        ("permissions", {"shell": "allow"}, True),
        ("plugins.enabled", ["web"], False),
        ("system_prompt", "Use a shell script", False),
    ],
)
def test_the_worst_changes_are_found_in_every_form(key: str, value: Any, is_refused: bool) -> None:
    assert (only_in_terminal(path_of(key), value) != "") == is_refused


def test_the_command_changes_the_file_or_nothing(tmp_path: Path) -> None:
    import typer

    file = written(tmp_path)
    app = typer.Typer()
    app.command("set")(config.set_)
    app.command("unset")(config.unset)

    def run(*words: str, typed: str = "") -> tuple[int, str]:
        done = CliRunner().invoke(app, [*words, "--config", str(file)], input=typed)
        return done.exit_code, done.output

    assert run("set", "history_window", "30000")[0] == 0
    assert run("set", "providers.groq.api_key", typed="gsk-typed\n")[0] == 0
    assert run("set", "aliases", '{"fast": "groq/x"}')[0] == 0
    assert run("unset", "permissions.calculator")[0] == 0
    now = load_settings(file, environ={}, cwd=tmp_path)
    assert (now.history_window, now.aliases, now.permissions) == (30000, {"fast": "groq/x"}, {})
    assert "# enough for us" in file.read_text()
    text = file.read_text()
    for words, said in (
        (("set", "history_window", "much"), "history_window"),
        (("set", "server.pot", "1"), "there is no setting server.pot"),
        (("set", "a b", "1"), "is not a key"),
    ):
        status, output = run(*words)
        assert (status, said in output) == (2, True), output
    assert file.read_text() == text


def test_a_file_that_changed_meanwhile_is_not_written(tmp_path: Path) -> None:
    file = written(tmp_path)
    changes = SettingsFile(load_settings(file, environ={}, cwd=tmp_path))
    digest = changes.plan(("steer",), True).digest
    file.write_text(FILE + "\n# edited\n")
    with pytest.raises(InvalidStateError, match="changed meanwhile"):
        changes.save(("steer",), True, digest)
    assert file.read_text() == FILE + "\n# edited\n"
    file.unlink()
    with pytest.raises(SettingsError):
        changes.plan(("steer",), True)


def test_plans_at_the_same_time_do_not_see_each_others_drafts(tmp_path: Path) -> None:
    file = SettingsFile(load_settings(written(tmp_path)))
    with ThreadPoolExecutor(8) as threads:
        plans = [*threads.map(lambda n: file.plan(("history_window",), 21_000 + n), range(64))]
    assert [plan.command for plan in plans] == [
        f"trunkline config set history_window {21_000 + n}" for n in range(64)
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"trunkline.toml"}
