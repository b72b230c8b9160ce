"""The check of an installed coding program, with fake model services."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gateway import ChatOptions, Complete, Delta, Message, TextDelta, TextPart
from gateway.provider_http import ToolCallStart, ToolResultEnd
from gateway.testing.fake_models.coding_wire import DIALECTS
from gateway.testing.fake_models.script import ModelRequest, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from plugins.cli_backends.adapters.cli import Cli
from plugins.cli_backends.backend import SpawnedBackend
from plugins.cli_backends.dispatcher import Dispatcher
from plugins.cli_backends.provider import DEFAULT, CliProvider
from plugins.cli_backends.settings import CliSettings, SettingsSource
from plugins.cli_backends.state import Memory, SessionFile

TOOL_CALLS = {
    "claude-code": Use("Bash", '{"command": "touch made.txt", "description": "Make a file"}', "toolu_1"),
    "codex": Use(
        "exec_command",
        '{"cmd": "touch made.txt", "justification": "to see", "sandbox_permissions": "require_escalated"}',
    ),
    "gemini": Use("run_shell_command", '{"command": "touch made.txt"}'),
    "opencode": Use("bash", '{"command": "touch made.txt", "description": "Make a file"}'),
}
"""The tool call of each program that makes a file and needs permission."""
PROMPT = "Make a file."
KEY = "sk-only-for-tests"
PATHS = {"claude-code": "/claude", "codex": "/codex/v1", "gemini": "/gemini", "opencode": "/opencode/v1"}
MODELS = {"claude-code": "claude-sonnet-5-5", "codex": "gpt-5.3-codex", "gemini": "gemini-3.8-flash"}


def fake_settings(name: str, url: str, home: Path, path: str) -> dict[str, Any]:
    """Return the settings with which a program uses the fake model service and an empty home folder."""
    base_url = url + PATHS[name]
    given: dict[str, Any] = {"api_key": KEY, "env": {"HOME": str(home), "PATH": path}}
    if name == "opencode":
        given["env"]["OPENCODE_CONFIG_CONTENT"] = _opencode(base_url)
        return {**given, "model": "fake/fake-small"}
    return {**given, "api_url": base_url, "model": MODELS[name]}


def scripted_answer(name: str) -> Any:
    """Return a model that calls the tool when it is asked to make a file, and then reports success."""

    def answer(asked: ModelRequest) -> Reply:
        last = asked.user_text.strip().splitlines()[-1] if asked.user_text.strip() else ""
        if asked.results:
            return Reply((Say("It is "), Say("done.")))
        # Programs also send small requests themselves, without tools. Codex has its tools elsewhere in the
        # request and sends no such requests.
        if last == PROMPT and (asked.body.get("tools") or "input" in asked.body):
            return Reply((Say("I will. "), TOOL_CALLS[name]), "tools")
        return Reply((Say("You said: "), Say(last)))

    return answer


async def check_installed_program(cli: Cli, environ: Mapping[str, str]) -> None:
    """Check that the program asks for permission, makes the file, and says so."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        home, workspace = folder / "home", folder / "workspace"
        await asyncio.to_thread(_make_folders, home, workspace)
        async with FakeModels(scripted_answer(cli.name), dialects=DIALECTS) as models:
            table = fake_settings(cli.name, models.url, home, environ.get("PATH", ""))
            deltas, questions = await _dispatch(cli, table, folder, workspace)
        text = "".join(delta.content for delta in deltas if isinstance(delta, TextDelta))
        results = [delta for delta in deltas if isinstance(delta, ToolResultEnd)]
        assert isinstance(deltas[-1], Complete)
        assert "It is done." in text
        assert questions, "the program asked for no permission"
        assert [delta for delta in deltas if isinstance(delta, ToolCallStart)]
        assert results
        assert not any(result.is_error for result in results)
        assert await asyncio.to_thread((workspace / "made.txt").exists)


async def _dispatch(
    cli: Cli, table: Mapping[str, Any], folder: Path, workspace: Path
) -> tuple[list[Delta], list[str]]:
    """Run one dispatch. Return its deltas and the tools that needed permission."""
    questions: list[str] = []

    async def ask(tool: str, arguments: Mapping[str, Any]) -> bool:
        questions.append(tool)
        return True

    backend = SpawnedBackend(cli, {}, SessionFile())
    source = SettingsSource(CliSettings.model_validate({"plugins": {cli.name: table}}), "")
    dispatcher = Dispatcher([backend], source, Memory(folder / "memory.json"), workspace, {})
    provider = CliProvider(cli.name, cli.program.title, lambda: dispatcher)
    message = Message(session_id="s", role="user", parts=(TextPart(PROMPT),))
    options = ChatOptions(model=DEFAULT, message_id="answer", ask=ask)
    try:
        return [delta async for delta in provider.stream([message], options)], questions
    finally:
        await backend.shutdown()


def _make_folders(*folders: Path) -> None:
    for folder in folders:
        folder.mkdir()


def _opencode(base_url: str) -> str:
    modalities = {"input": ["text", "image"], "output": ["text"]}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Fake",
        "options": {"baseURL": base_url, "apiKey": KEY},
        "models": {"fake-small": {"name": "Fake", "attachment": True, "modalities": modalities}},
    }
    return json.dumps({"provider": {"fake": provider}, "small_model": "fake/fake-small"})
