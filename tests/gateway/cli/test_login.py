"""``trunkline login``: a key that a person gets by signing in, kept for the gateway."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from subprocess import CompletedProcess

from gateway.testing.tokens import RIGHT, FakeTokens
from tests.gateway.cli.processes import trunkline


async def login(home: Path, provider: str, url: str) -> CompletedProcess[str]:
    """Run the command while the event loop serves."""
    (home / "own.toml").write_text(
        f'[providers.copilot]\ncredentials = {{ api_url = "{url}", login_url = "{url}" }}\n'
    )
    return await asyncio.to_thread(trunkline, "login", provider, "--config", "own.toml", home=home)


async def test_the_key_is_kept_for_this_user_alone(tmp_path: Path) -> None:
    async with FakeTokens(waits=1) as tokens:
        done = await login(tmp_path, "copilot", tokens.url)
    assert done.returncode == 0, done.stderr
    file = tmp_path / "data" / "keys.json"
    told, kept = done.stdout.splitlines()
    assert told.endswith("and enter the code ABCD-1234")
    assert kept == f"Signed in; the key is kept in {file}"
    assert json.loads(file.read_text()) == {"copilot": RIGHT}
    assert file.stat().st_mode & 0o777 == 0o600
    assert RIGHT not in told


async def test_a_login_that_is_refused_keeps_nothing(tmp_path: Path) -> None:
    async with FakeTokens(denied="access_denied") as tokens:
        done = await login(tmp_path, "copilot", tokens.url)
    assert done.returncode == 1
    assert done.stderr.startswith("AuthFailedError: GitHub refused the login: access_denied")
    assert not (tmp_path / "data" / "keys.json").exists()


async def test_a_provider_without_a_login_says_what_it_wants(tmp_path: Path) -> None:
    done = await login(tmp_path, "openai", "http://127.0.0.1:9")
    assert done.returncode == 2
    assert done.stderr.strip() == "openai has no login: set OPENAI_API_KEY, or see [providers.openai]"
    unknown = await login(tmp_path, "opnai", "http://127.0.0.1:9")
    assert unknown.returncode == 1
    assert "no provider 'opnai'" in unknown.stderr
