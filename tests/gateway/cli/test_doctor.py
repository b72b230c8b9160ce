"""``trunkline doctor``: all is well, or what is wrong and what to do about it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sqlite3
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.cli.doctor.machine import clock
from gateway.cli.doctor.plugins import OWN_COMMANDS
from gateway.cli.doctor.store import durability, schema, sqlite
from gateway.contract.messages import now_ms
from gateway.extensions.process.attacks import ATTACKS, CONTROLS
from gateway.settings import Settings
from gateway.store import Store
from gateway.tables.clock import TrustedClock
from gateway.testing.chat import chatting
from gateway.testing.fake_models.server import FakeModels
from tests.gateway.cli.processes import Terminal, gateway, trunkline

SECRET = "sk-very-secret-indeed-0123456789-abcdef"


def findings(home: Path, settings: str = "", **environ: str) -> dict[str, dict[str, str]]:
    """What the doctor says of a home with these settings, by the name of each check."""
    (home / "own.toml").write_text(settings)
    keys: dict[str, str | None] = dict.fromkeys(name for name in os.environ if name.endswith("_API_KEY"))
    runner = CliRunner(env={**keys, "TRUNKLINE_DATA_DIR": str(home / "data"), **environ})
    done = runner.invoke(app, ["doctor", "--json", "--config", str(home / "own.toml")])
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    failed = any(finding["status"] == "fail" for finding in found.values())
    assert done.exit_code == int(failed)
    assert all(finding["advice"] for finding in found.values() if finding["status"] != "ok")
    return found


def test_a_fresh_home_is_well_but_for_the_demo(tmp_path: Path) -> None:
    done = trunkline("doctor", home=tmp_path, TRUNKLINE_SERVER__PORT="0")
    assert done.returncode == 0, done.stdout
    assert "the built-in demo answers" in done.stdout
    assert "→ set ANTHROPIC_API_KEY or OPENAI_API_KEY" in done.stdout
    counts = r"\d+ ok, (1 warning|(?!1 )\d+ warnings), \d+ failed"
    assert re.fullmatch(counts, done.stdout.splitlines()[-1])
    assert not (tmp_path / "data").exists(), "it changes nothing"


@pytest.mark.parametrize("command", [["doctor"], ["plugin", "doctor"]])
@pytest.mark.skipif(sys.platform != "linux", reason="confinement needs Linux")
def test_a_terminal_and_json_show_each_attack(tmp_path: Path, command: list[str]) -> None:
    terminal = Terminal(tmp_path, *command, TRUNKLINE_SERVER__PORT="0")
    try:
        terminal.wait()
    finally:
        terminal.close()
    shown = dict(line.split("  ", 1) for line in terminal.lines if "  " in line)
    report = json.loads(trunkline(*command, "--json", home=tmp_path, TRUNKLINE_SERVER__PORT="0").stdout)
    (confinement,) = (each for each in report if each["name"] == "confinement")
    outcomes = {each["name"]: each["refused"] for each in confinement["attacks"]}
    assert outcomes.keys() == {*ATTACKS, *CONTROLS}
    for name, refused in outcomes.items():
        if name in ATTACKS:
            assert shown[f" {name}"].split()[0] == ("refused" if refused else "possible")
        else:
            assert shown[f" {name} (needed)"].split()[0] == ("fails" if refused else "works")
    assert "null pointer" not in trunkline(*command, home=tmp_path, TRUNKLINE_SERVER__PORT="0").stdout


PLUGIN = """
from gateway import Plugin, SlashCommand

class Named(Plugin):
    name = "{name}"

    def commands(self):
        return [SlashCommand(name, name, None) for name in {commands}]

plugin = Named()
"""


@pytest.mark.parametrize("command", [["doctor"], ["plugin", "doctor"]])
def test_commands_that_two_plugins_have_are_found(tmp_path: Path, command: list[str]) -> None:
    for name, commands in {"one": ["same", "own"], "two": ["same", "help"]}.items():
        (tmp_path / f"{name}.py").write_text(PLUGIN.format(name=name, commands=commands))
    config = tmp_path / "own.toml"
    config.write_text('plugins.enabled = ["one.py", "two.py", "./nothing"]\n')
    runner = CliRunner(env={"TRUNKLINE_DATA_DIR": str(tmp_path / "data"), "TRUNKLINE_SERVER__PORT": "0"})
    done = runner.invoke(app, [*command, "--json", "--config", str(config)])
    found = [(each["name"], each["status"], each["detail"]) for each in json.loads(done.stdout)]
    assert ("plugin one.py", "ok", "loads") in found
    assert ("plugin two", "warn", "/same is taken by the plugin one, loaded earlier") in found
    assert ("plugin two", "warn", "/help is taken by the gateway itself") in found
    assert [name for name, status, _ in found if status == "fail"] == ["plugin ./nothing"]
    assert done.exit_code == 1


async def test_the_doctor_knows_the_commands_of_the_gateway(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        assert sorted(command.name for command in chat.host.commands()) == sorted(OWN_COMMANDS)


def test_a_running_gateway_is_asked_for_its_channels(tmp_path: Path) -> None:
    with gateway(tmp_path) as running:
        done = trunkline("doctor", "--json", home=tmp_path, TRUNKLINE_SERVER__PORT=running.port)
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert done.returncode == 0, done.stdout
    assert found["port"]["detail"] == f"a gateway runs at {running.url}"
    assert found["channel websocket"]["status"] == "ok"
    assert found["schema"]["detail"].endswith("the newest")


def test_the_gateway_of_another_directory_does_not_make_the_port_ok(tmp_path: Path) -> None:
    wrong = "[store]\nurl = 'nonsense'\n[channels.pigeon]\n"
    with gateway(tmp_path) as running:
        found = findings(tmp_path / "data", TRUNKLINE_SERVER__PORT=running.port)
        mistaken = findings(tmp_path / "data", wrong, TRUNKLINE_SERVER__PORT=running.port)
    assert found["port"]["status"] == "fail"
    assert "is in use by a gateway that does not use " in found["port"]["detail"]
    for name in ("port", "store", "channel pigeon"):
        assert mistaken[name]["status"] == "fail"


def test_wrong_settings_are_reported_and_the_machine_is_looked_at(tmp_path: Path) -> None:
    found = findings(tmp_path, "modle = 'x/y'\n")
    assert "did you mean model" in found["settings"]["detail"]
    machine = {"python", "documents", "confinement", "agents", "kernel", "open files", "clock"}
    assert set(found) == {"settings", *machine}
    assert found["agents"]["detail"].startswith("coding agents ")
    assert found["documents"]["detail"] == "PDF and Word documents that users send are read"


def test_a_name_that_nothing_has_is_a_warning(tmp_path: Path) -> None:
    settings = 'small_model = "nope/x"\n[agents.clerk]\ntools = ["calculater"]\n[server]\nport = 0\n'
    found = findings(tmp_path, f'{settings}trusted_proxies = ["127.0.0.1"]\n')
    assert found["tools"]["status"] == found["small_model"]["status"] == found["token"]["status"] == "warn"
    assert found["tools"]["detail"] == (
        "agents.clerk.tools lists the unknown tool 'calculater'; did you mean calculator?"
    )


def test_a_port_of_another_program_is_a_failure(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        # It accepts and says nothing, as a program does that speaks something else.
        found = findings(tmp_path, f"[server]\nport = {port}\n")
    assert (found["port"]["status"], "another program" in found["port"]["detail"]) == ("fail", True)


def test_a_file_that_is_not_a_database_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/trunkline.db").write_text("this is not a database, whatever its name says" * 100)
    found = findings(tmp_path)
    assert (found["store"]["status"], "not a database" in found["store"]["detail"]) == ("fail", True)
    assert "restore a backup" in found["store"]["advice"]


def test_an_old_schema_is_reported_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    sqlite3.connect(tmp_path / "data/trunkline.db").execute("CREATE TABLE x (y)").connection.close()
    found = findings(tmp_path)
    assert (found["store"]["status"], found["schema"]["status"]) == ("ok", "warn")
    assert "trunkline db upgrade" in found["schema"]["advice"]


def test_a_schema_of_a_newer_version_is_a_failure() -> None:
    assert schema("9999").status == "fail"


def test_a_store_address_that_is_none_is_a_failure(tmp_path: Path) -> None:
    found = findings(tmp_path, "[store]\nurl = 'nonsense'\n")
    assert found["store"]["status"] == "fail"


def test_relaxed_durability_is_reported() -> None:
    assert durability(Settings(durability="relaxed")).status == "warn"
    assert durability(Settings()).status == "ok"


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="needs a tmpfs")
def test_a_database_in_memory_is_a_warning() -> None:
    in_memory = durability(Settings(data_dir=Path("/dev/shm/trunkline/data")))
    assert (in_memory.status, "is in memory (tmpfs)" in in_memory.detail) == ("warn", True)


def test_a_sqlite_that_is_too_old_is_a_failure() -> None:
    (found,) = sqlite((3, 34, 1))
    assert (found.status, "SQLite 3.34.1; the gateway needs 3.35" in found.detail) == ("fail", True)
    assert list(sqlite((3, 35, 0))) == []


def test_a_directory_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    found = findings(tmp_path, TRUNKLINE_DATA_DIR="/proc/trunkline")
    assert (found["writable"]["status"], found["disk"]["status"]) == ("fail", "fail")


def test_an_unknown_channel_or_plugin_is_a_failure(tmp_path: Path) -> None:
    found = findings(tmp_path, "[channels.pigeon]\n\n[plugins]\nenabled = ['nothing_there']\n")
    assert found["channel pigeon"]["status"] == "fail"
    assert found["plugin nothing_there"]["status"] == "fail"


def test_problems_that_plugins_find_are_failures(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "notes").mkdir()
    web = f"[plugins.web]\nengine = 'brave'\nurl = 'http://127.0.0.1:{port}'\napi_key = 'brave-key-012345'\n"
    enabled = "[plugins]\nenabled = ['web', 'files']\n"
    found = findings(tmp_path, f"{enabled}{web}[plugins.files]\nroots = ['{tmp_path}/notes']\n")
    assert found["plugin files"]["status"] == "ok"
    assert found["plugin web"]["status"] == "fail"
    assert "Brave Search cannot be reached" in found["plugin web"]["detail"]
    assert "brave-key" not in str(found)
    found = findings(
        tmp_path, f"[plugins]\nenabled = ['files']\n[plugins.files]\nroots = ['{tmp_path}/gone']\n"
    )
    assert found["plugin files"]["status"] == "fail"
    assert "which is not a folder" in found["plugin files"]["detail"]


def test_where_aliases_agents_and_chains_lead_is_reported(tmp_path: Path) -> None:
    desk = 'base_url = "http://127.0.0.1:9/v1"\nmodels = ["small", "gpt-4o"]\n'
    found = findings(
        tmp_path,
        'model = "fast"\nfallback = ["desk/small", "nobody/big"]\n'
        f'[aliases]\nfast = "desk/gpt-4o"\nslow = "no-such-model"\n[providers.desk]\n{desk}'
        f"[providers.other]\n{desk}"
        '[agents.clerk]\nmodel = "small"\nfallback = ["other"]\n',
    )
    told = {name: (found[name]["status"], found[name]["detail"]) for name in found if " " in name}
    assert told["alias fast"] == ("ok", "desk/gpt-4o")
    assert told["alias slow"][0] == "warn"
    assert told["alias slow"][1].startswith("no configured provider offers a model 'no-such-model'")
    assert told["fallback desk/small"] == ("ok", "desk/small")
    assert told["fallback nobody/big"][0] == "warn"
    assert told["agent clerk"] == ("ok", "desk/small")
    assert told["fallback of clerk other"] == ("ok", "other/small")


def test_models_with_a_retirement_date_are_a_warning(tmp_path: Path) -> None:
    there = 'base_url = "http://127.0.0.1:9/v1"\n'
    found = findings(
        tmp_path,
        'model = "google/gemini-2.5-pro"\nfallback = ["anthropic/claude-sonnet-4-5-20250929"]\n'
        f'[aliases]\nold = "openai/gpt-5-mini"\n[providers.openai]\n{there}'
        'models = ["gpt-5.4-mini", "gpt-4o"]\n'
        f'[providers.google]\napi_key = "k"\n{there}[providers.anthropic]\napi_key = "k"\n{there}',
    )
    told = {name: found[name] for name in found if name.startswith("retirement of ")}
    assert {finding["status"] for finding in told.values()} == {"warn"}
    assert {name.removeprefix("retirement of "): finding["detail"] for name, finding in told.items()} == {
        name: f"{name} ({place}) will be retired by its provider on {day}"
        for name, place, day in (
            ("openai/gpt-5-mini", "alias old", "2026-12-11"),
            ("google/gemini-2.5-pro", "model", "2026-12-01"),
            (
                "anthropic/claude-sonnet-4-5-20250929",
                "fallback anthropic/claude-sonnet-4-5-20250929",
                "2026-11-30",
            ),
            ("openai/gpt-4o", "providers.openai.models", "2027-01-14"),
        )
    }
    assert "trunkline models list --provider google" in told["retirement of google/gemini-2.5-pro"]["advice"]


async def test_a_provider_that_answers_is_well(tmp_path: Path) -> None:
    async with FakeModels(key=SECRET) as fake:
        found = await in_a_process(tmp_path, "openai/fake-small", fake.openai_url, SECRET)
    assert found["status"] == "ok"


async def test_a_wrong_key_is_a_failure_and_no_key_is_shown(tmp_path: Path) -> None:
    async with FakeModels(key="another-key") as fake:
        found = await in_a_process(tmp_path, "openai/fake-small", fake.openai_url, SECRET)
    assert (found["status"], "401" in found["detail"]) == ("fail", True)


async def test_a_model_that_its_provider_does_not_list_is_reported(tmp_path: Path) -> None:
    async with FakeModels() as fake:
        found = await in_a_process(tmp_path, "openai/nothing", fake.openai_url, SECRET)
    assert (found["status"], "not one of" in found["detail"]) == ("warn", True)


async def test_a_provider_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    found = await in_a_process(tmp_path, "openai/fake-small", "http://127.0.0.1:9/v1", SECRET)
    assert (found["status"], found["detail"].partition(":")[0]) == ("fail", "cannot reach 127.0.0.1")


async def in_a_process(home: Path, model: str, base_url: str, key: str) -> dict[str, str]:
    """What the doctor says of a model; nothing of what it says may hold the key."""
    done = await asyncio.to_thread(
        trunkline,
        "doctor",
        "--json",
        home=home,
        TRUNKLINE_SERVER__PORT="0",
        TRUNKLINE_MODEL=model,
        TRUNKLINE_PROVIDERS__OPENAI__BASE_URL=base_url,
        TRUNKLINE_PROVIDERS__OPENAI__API_KEY=key,
    )
    assert key not in done.stdout + done.stderr
    return next(finding for finding in json.loads(done.stdout) if finding["name"] == "model")


def test_a_clock_from_before_the_installation_is_reported() -> None:
    assert clock(now=0.0).status == "warn"
    assert clock().status == "ok"


def test_a_provider_whose_settings_lack_something_is_a_failure(tmp_path: Path) -> None:
    found = findings(tmp_path, 'model = "azure/ours"\n', AZURE_OPENAI_ENDPOINT="")
    assert found["model"]["status"] == "fail"
    assert "providers.azure.base_url is missing" in found["model"]["detail"]


def test_a_clock_that_jumped_ahead_is_a_warning(tmp_path: Path) -> None:
    async def read_at(*times: int) -> None:
        store = Store.open(f"sqlite:///{tmp_path}/data/trunkline.db", "full", lambda _: None)
        for at in times:
            await TrustedClock(store).read_at(at)
        await store.close()

    (tmp_path / "data").mkdir()
    before = now_ms() - 10 * 86_400_000
    asyncio.run(read_at(before))
    assert "retention" not in findings(tmp_path)
    asyncio.run(read_at(before, now_ms()))
    found = findings(tmp_path)["retention"]
    assert (found["status"], "(10 days), so old rows are not removed" in found["detail"]) == ("warn", True)
