"""A coding program as a client of ours: OpenCode, with the gateway's ``/v1`` as its model service."""

from __future__ import annotations

import asyncio
import json
import os
import platform
from pathlib import Path

import pytest

from gateway.testing.fake_models.script import ModelRequest, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import serving

_MACHINE = f"linux-{'arm64' if platform.machine() == 'aarch64' else 'x64'}"


def coder(asked: ModelRequest) -> Reply:
    """Makes a file with the client's tool; what comes without tools is a title to be found."""
    if asked.results:
        return Reply((Say("It is "), Say("done.")))
    if "bash" not in asked.tools:
        return Reply((Say("A title"),))
    command = '{"command": "touch made.txt", "description": "Make a file"}'
    return Reply((Say("I will. "), Use("bash", command, "call_a")), "tools")


@pytest.mark.timeout(120)
async def test_opencode_works_with_its_own_tools_through_the_gateway(tmp_path: Path, foreign: Path) -> None:
    home, workspace = tmp_path / "home", tmp_path / "workspace"
    home.mkdir()
    workspace.mkdir()
    async with FakeModels(coder) as fake, serving(tmp_path / "data", fake=fake) as served:
        model = "openai/fake-small"
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Gateway",
            "options": {"baseURL": f"{served.url}/v1", "apiKey": "none"},
            "models": {model: {"name": "Fake"}},
        }
        config = {
            "provider": {"gateway": provider},
            "small_model": f"gateway/{model}",
            "permission": {"*": "allow"},
            "autoupdate": False,
        }
        process = await asyncio.create_subprocess_exec(
            str(foreign / "node_modules" / f"opencode-{_MACHINE}/bin/opencode"),
            *("run", "--model", f"gateway/{model}", "Make a file."),
            cwd=workspace,
            env={
                "HOME": str(home),
                "PATH": os.environ["PATH"],
                "OPENCODE_CONFIG_CONTENT": json.dumps(config),
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, failed = await process.communicate()
        assert process.returncode == 0, failed.decode()
        assert "It is done." in said.decode()
        assert (workspace / "made.txt").exists(), "the client ran its tool"
        assert any(asked.results for asked in fake.requests)
