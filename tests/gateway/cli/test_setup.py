"""``trunkline setup``: at a terminal and by flags, against a fake provider and a fake Telegram."""

from __future__ import annotations

import asyncio
import json
import os
import re
import tomllib
from pathlib import Path
from subprocess import CompletedProcess

from channels.telegram.fake import FakeTelegram
from gateway.testing.fake_models.server import FakeModels
from tests.gateway.cli.processes import Terminal, trunkline

KEY = "sk-0123456789-very-secret"
CONFIG = ("--config", "own.toml")


async def setup(home: Path, *args: str, stdin: str = "", **environ: str) -> CompletedProcess[str]:
    """Run the command while the event loop serves."""
    return await asyncio.to_thread(
        trunkline, "setup", *args, *CONFIG, home=home, stdin=stdin, **{"PATH": os.environ["PATH"], **environ}
    )


def telegram(fake: FakeTelegram) -> list[str]:
    return ["--channel", "telegram", "--set", f"api_base_url={fake.url}", "--no-service"]


async def test_flags_set_up_a_provider_and_a_model_and_keep_the_comments(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    async with FakeModels(key=KEY) as fake:
        file.write_text(f'# my bot\n[providers.openai]\nbase_url = "{fake.openai_url}"  # here\n')
        chosen = ("--provider", "openai", "--key-stdin", "--model", "openai/fake-large")
        done = await setup(tmp_path, *chosen, "--no-service", stdin=f"{KEY}\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert "openai accepted it and lists 2 models" in done.stdout
    assert tomllib.loads(file.read_text())["model"] == "openai/fake-large"
    assert "# my bot" in file.read_text()
    assert "# here" in file.read_text()
    assert json.loads((tmp_path / "data/keys.json").read_text()) == {"openai": {"type": "api", "key": KEY}}


async def test_a_model_that_the_provider_does_not_list_is_refused(tmp_path: Path) -> None:
    async with FakeModels(key=KEY) as fake:
        text = f'[providers.openai]\nbase_url = "{fake.openai_url}"\napi_key = "{KEY}"\n'
        (tmp_path / "own.toml").write_text(text)
        done = await setup(tmp_path, "--model", "openai/fake-smal", "--no-service")
    assert done.returncode == 1
    assert "openai/fake-smal is not one of the 2 models" in done.stderr
    assert (tmp_path / "own.toml").read_text() == text


async def test_flags_connect_a_channel_and_keep_its_token_out_of_the_settings(tmp_path: Path) -> None:
    async with FakeTelegram() as fake:
        done = await setup(tmp_path, *telegram(fake), "--set", f"token={fake.token}", "--admin-id", "77")
    assert (done.returncode, done.stderr) == (0, "")
    assert "telegram is connected." in done.stdout
    written = (tmp_path / "own.toml").read_text()
    table = tomllib.loads(written)["channels"]["telegram"]
    secret = tmp_path / "data/secret-telegram-token"
    assert fake.token not in written + done.stdout
    assert (table["token"], secret.read_text()) == (f"{{file:{secret}}}", f"{fake.token}\n")
    assert secret.stat().st_mode & 0o777 == 0o600
    assert (table["allow"], table["admins"]) == (["77"], ["77"])
    assert (await asyncio.to_thread(trunkline, "config", "check", *CONFIG, home=tmp_path)).returncode == 0


async def test_a_token_that_the_platform_refuses_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("# untouched\n")
    async with FakeTelegram() as fake:
        done = await setup(tmp_path, *telegram(fake), "--set", "token=1:wrong")
    assert done.returncode == 1
    assert "telegram does not connect with these settings, so they were not stored" in done.stderr
    assert tomllib.loads((tmp_path / "own.toml").read_text()) == {}
    assert not (tmp_path / "data/secret-telegram-token").exists()


async def test_ctrl_c_ends_the_setup_while_it_waits_for_the_code_of_the_bot(tmp_path: Path) -> None:
    async with FakeTelegram() as fake:
        given = ("--channel", "telegram", "--set", f"token={fake.token}", "--set", f"api_base_url={fake.url}")
        terminal = Terminal(tmp_path, "setup", *given, *CONFIG, "--no-service")
        try:
            await asyncio.to_thread(terminal.expect, "Model provider")
            terminal.type("\n")
            await asyncio.to_thread(terminal.expect, "Code")
            terminal.type("\x03")
            await asyncio.to_thread(terminal.expect, "Aborted!")
            assert await asyncio.to_thread(terminal.wait) == 1
        finally:
            terminal.close()
    assert tomllib.loads((tmp_path / "own.toml").read_text()) == {}


async def test_settings_that_config_check_refuses_are_not_written_unchecked_either(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("# untouched\n")
    flags = ("--channel", "telegram", "--no-service", "--no-check")
    for given, complaint in {
        "token=abc": "channels.telegram.token must be a bot's token",
        "colour=red": "channels.telegram.colour is not a setting",
    }.items():
        done = await setup(tmp_path, *flags, "--set", "token=1:AAAA", "--set", given)
        assert (done.returncode, complaint in done.stderr) == (2, True), done.stderr
        assert tomllib.loads((tmp_path / "own.toml").read_text()) == {}


async def test_a_person_is_asked_step_by_step_and_pairs_with_the_bot(tmp_path: Path) -> None:
    async with FakeTelegram() as fake:
        terminal = Terminal(tmp_path, "setup", "--set", f"api_base_url={fake.url}", *CONFIG, "--no-service")

        async def asked(pattern: str, answer: str) -> None:
            await asyncio.to_thread(terminal.expect, pattern)
            terminal.type(f"{answer}\n")

        try:
            await asked("Model provider", "")
            await asked("Chat platform", "telegram")
            await asyncio.to_thread(terminal.expect, "token:")
            await asyncio.to_thread(terminal.expect_no_echo)
            terminal.type(f"{fake.token}\n")
            await asyncio.to_thread(terminal.expect, "telegram is connected")
            chat = fake.private("Ada")
            fake.say(chat, "Hello?")
            async with asyncio.timeout(60):
                while not (
                    code := re.search(r"\b[34679CDFGHJKMNPQRTVWXY]{8}\b", " ".join(fake.answers(chat)))
                ):
                    await asyncio.sleep(0.02)
            await asked("Code", "34679CDF")
            await asked("No such code.*Code|Code", code[0])
            await asyncio.to_thread(terminal.expect, "You are an admin on telegram")
            assert await asyncio.to_thread(terminal.wait) == 0
        finally:
            terminal.close()
    listed = await asyncio.to_thread(trunkline, "pair", "list", "--json", *CONFIG, home=tmp_path)
    (member,) = json.loads(listed.stdout)["members"]
    assert (member["channel"], member["role"], member["name"]) == ("telegram", "admin", "Ada")


async def test_a_service_is_written_and_started(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    systemctl = tmp_path / "bin/systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n')
    systemctl.chmod(0o755)
    done = await setup(tmp_path, "--service", PATH=f"{tmp_path}/bin:{os.environ['PATH']}")
    assert (done.returncode, done.stderr) == (0, "")
    unit = (tmp_path / "xdg/systemd/user/trunkline.service").read_text()
    assert f'"-m" "gateway" "run" "--config" "{tmp_path}/own.toml"' in unit
    assert "RestartPreventExitStatus=2" in unit
    assert "KillMode=process\nOOMPolicy=continue\n" in unit, "coding agents go on"
    assert "Delegate=yes\nDelegateSubgroup=gateway\n" in unit, "and have cgroups of their own"
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == ["--user daemon-reload", "--user enable --now trunkline.service"]


async def test_what_is_missing_or_wrong_is_named(tmp_path: Path) -> None:
    cases = {
        (): "stdin is not a terminal",
        (
            "--channel",
            "pigeon",
        ): "channel 'pigeon' does not exist; choose one of discord, email, matrix, slack, telegram",
        ("--channel", "slack", "--set", "bot_token=x"): "--channel slack needs --set app_token=",
        ("--channel", "slack", "--set", "mode=http", "--set", "bot_token=x"): "needs --set signing_secret=",
        ("--channel", "telegram", "--set", "token"): "--set takes KEY=VALUE",
        ("--model", "demo/demo", "--admin-id", "7"): "--set and --admin-id need --channel",
    }
    for flags, complaint in cases.items():
        done = await setup(tmp_path, *flags)
        assert done.returncode == 2, flags
        assert complaint in done.stderr
        assert "Traceback" not in done.stderr
