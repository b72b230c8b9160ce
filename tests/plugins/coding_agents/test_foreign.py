"""The real programs in real keepers and in the sandbox, at fake model services on this machine."""

from __future__ import annotations

import asyncio
import hashlib
import json
import platform
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import NotFoundError
from gateway.extensions.process import kernel
from gateway.testing.fake_models.coding_wire import DIALECTS
from gateway.testing.fake_models.script import ModelRequest, Reply, Say
from gateway.testing.fake_models.server import FakeModels
from plugins.cli_backends.candidates.installed import KEY, MODELS, PATHS, TOOL_CALLS
from plugins.coding_agents.adapters import find_adapter
from plugins.coding_agents.adapters.preflight import is_known
from plugins.coding_agents.records import SessionRecord
from plugins.coding_agents.session import Session
from plugins.programs.process import kill_marked
from tests.plugins.coding_agents.rig import processes, until
from tests.plugins.coding_agents.test_chat import Place, place

pytestmark = pytest.mark.slow

FOREIGN = Path(__file__).parents[1] / "cli_backends" / "foreign"
SECONDS = 120
"""The limit of a wait: two loaded cores start a program in half a minute."""
_MACHINE = f"linux-{'arm64' if platform.machine() == 'aarch64' else 'x64'}"
PROGRAMS = {
    "claude": f"@anthropic-ai/claude-code-{_MACHINE}/claude",
    "codex": "@openai/codex/bin/codex.js",
    "gemini": "@google/gemini-cli/bundle/gemini.js",
    "opencode": f"opencode-{_MACHINE}/bin/opencode",
}
BACKENDS = {"claude": "claude-code"}
"""Names of the programs in ``cli_backends``, where they differ."""
PLANTED = {
    "claude": {".claude/settings.json": '{"permissions": {"allow": ["Bash", "Write"]}}'},
    "codex": {
        ".codex/rules/default.rules": 'prefix_rule(pattern=["touch"], decision="allow")\n',
        ".codex/config.toml": '[mcp_servers.x]\ncommand = "sh"\nargs = ["-c", "touch $HOME/ran"]\n',
    },
    "gemini": {
        ".gemini/settings.json": '{"tools": {"allowed": ["run_shell_command"]}}',
        ".gemini/policies/all.toml": '[[rule]]\ntoolName = "run_shell_command"\ndecision = "allow"\n'
        "priority = 900\n",
        ".gemini/extensions/theirs/gemini-extension.json": '{"name": "theirs", "version": "1.0.0"}',
        ".gemini/extensions/theirs/hooks/hooks.json": json.dumps(
            {"hooks": {"SessionStart": [{"hooks": [{"type": "command", "command": "touch $HOME/ran"}]}]}}
        ),
    },
    "opencode": {".config/opencode/opencode.json": '{"permission": {"*": "ask", "bash": "allow"}}'},
}
"""Permissions and programs that a command of an earlier session could have written: the programs must ask all
the same, and run nothing before.
"""
HOOKED = ("claude", "gemini")
"""Programs whose hooks tell the exact command."""
FIRST, SECOND, THIRD = "Make a file.", "Make it now.", "What did you make?"


class Script:
    """A model that calls the tool once for each of two tasks, and then reports success.

    After a refusal a program may send the result with the next task, so the tasks count and not the results.
    """

    def __init__(self, name: str) -> None:
        self._call = TOOL_CALLS[BACKENDS.get(name, name)]
        self._open = [FIRST, SECOND]
        self.tasks: list[str] = []
        """The tasks that were received, in order."""
        self.heard: list[str] = []
        """The requests, as JSON."""

    def __call__(self, asked: ModelRequest) -> Reply:
        self.heard.append(json.dumps(asked.body))
        # Programs also send small requests themselves, without tools, such as for a title.
        if not asked.body.get("tools"):
            return Reply((Say("A title"),))
        last = asked.user_text.strip().splitlines()[-1] if asked.user_text.strip() else ""
        if last in self._open:
            self._open.remove(last)
            self.tasks.append(last)
            return Reply((Say("I will. "), self._call), "tools")
        if not asked.results:
            self.tasks.append(last)
        return Reply((Say("It is "), Say("done.")))


def agent_settings(name: str, url: str, foreign: Path, *, key: str = KEY) -> dict[str, Any]:
    """Return the settings with which a program uses the fake model service."""
    base = url + PATHS[BACKENDS.get(name, name)]
    settings: dict[str, Any] = {"binary": str(foreign / "node_modules" / PROGRAMS[name])}
    if name == "opencode":
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "Fake",
            "options": {"baseURL": base, "apiKey": key},
            "models": {"fake-small": {"name": "Fake"}},
        }
        config = {"provider": {"fake": provider}, "small_model": "fake/fake-small"}
        return {
            **settings,
            "model": "fake/fake-small",
            "env": {"OPENCODE_CONFIG_CONTENT": json.dumps(config)},
        }
    urls = {"claude": "ANTHROPIC_BASE_URL", "codex": "OPENAI_BASE_URL", "gemini": "GOOGLE_GEMINI_BASE_URL"}
    env = {urls[name]: base, **({find_adapter(name).key: key} if key else {})}
    return {**settings, "model": MODELS[BACKENDS.get(name, name)], "env": env}


@asynccontextmanager
async def running(
    name: str, foreign: Path, tmp_path: Path, models: FakeModels, *, key: str = KEY
) -> AsyncGenerator[tuple[Place, Session, Path]]:
    """Run a gateway with a chat and one session; whatever happens, its program ends."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    home = tmp_path / "data/coding-agents/homes" / hashlib.sha256(b"letters:ada").hexdigest()[:16] / name
    for path, text in PLANTED[name].items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    settings = {name: agent_settings(name, models.url, foreign, key=key)}
    sandbox: dict[str, Any] = {"sandbox": "off" if kernel.missing(kernel.layers(), strict=True) else "on"}
    if name == "opencode":
        # Its address is in its own settings, so it needs the network of this machine.
        sandbox |= {"network": "open"}
    async with place(tmp_path / "data", allowed_roots=[str(tmp_path)], agents=settings, **sandbox) as chat:
        session = await chat.spawn(FIRST, agent=name, workdir=str(workspace))
        try:
            yield chat, session, workspace
        finally:
            await session.stop(force=True)


async def press(chat: Place, value: str, number: int) -> int:
    """Press a button of the question with this number in the chat; return the number of the next one."""
    while True:
        async with asyncio.timeout(SECONDS):
            question = await chat.room.until_asked(number)
        told = [one.record.workdir for one in chat.rig.sessions.running() if one.adapter.name in HOOKED]
        assert "touch made.txt" in question.detail
        assert not told or question.detail == f"touch made.txt\nin {told[0]}", "without the description"
        try:
            await chat.press(question.id, value)
            return number + 1
        except NotFoundError:
            number += 1  # it was withdrawn: a slow program had painted its question in parts


async def until_nothing_is_left(session: Session) -> None:
    """Wait until no process, no daemon and no socket of a session is left."""
    try:
        async with asyncio.timeout(SECONDS):
            while processes(session.record.id) or session.folder.exists():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"left: {processes(session.record.id)}, {session.folder}") from None


TOLD = ("claude", "codex", "gemini")
"""Programs of which the id of their own session is known."""


def is_kept(record: SessionRecord) -> bool:
    """Return whether the program has a file of its session with the second task."""
    named = f"*{record.program_session[:8]}*"
    return any(
        SECOND in path.read_text(errors="replace")
        for path in Path(record.home).rglob(named)
        if path.is_file()
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PROGRAMS)
async def test_003_the_real_program_gets_its_task_once_asks_continues_and_leaves_nothing_behind(
    name: str, foreign: Path, tmp_path: Path
) -> None:
    script = Script(name)
    async with FakeModels(script, dialects=DIALECTS) as models:
        async with running(name, foreign, tmp_path, models) as (chat, session, workspace):
            assert is_known(find_adapter(name), session.record.version), "its screens are recorded"
            following = await press(chat, "deny", 1)
            assert not (Path(session.record.home) / "ran").exists()
            await until(
                session, lambda: session.record.status == "ready" and session.record.task_done, SECONDS
            )
            assert not (workspace / "made.txt").exists()
            assert script.tasks == [FIRST], "the task was delivered once"
            await session.send_text(SECOND)
            await press(chat, "once", following)
            await until(session, (workspace / "made.txt").exists, SECONDS)
            await until(
                session, lambda: session.record.status == "ready" and session.record.task_done, SECONDS
            )
            assert "It is done." in "\n".join(session.tail(40))
            assert (session.record.cost_usd or 0) > 0 or name != "claude"
            assert script.tasks == [FIRST, SECOND]
            # Not Codex: it tells the id of a session before it has a file of it, and may never write one.
            if name != "codex":
                # Here, because a program may take ten seconds of processor time to start.
                session = await continued_after_a_kill(name, chat, session, script.heard)
            await session.stop()
            await until_nothing_is_left(session)
        assert session.record.public_status == "completed"
        assert [path.name for path in workspace.iterdir()] == ["made.txt"], "no file outside of the home"


async def continued_after_a_kill(name: str, chat: Place, session: Session, heard: Sequence[str]) -> Session:
    """Kill the keeper and resume the program's session; ``heard`` has the requests to the model.

    Returns the new session once the model was asked with what the old one had said.
    """
    if name in TOLD:
        await until(session, lambda: bool(session.record.program_session), SECONDS)
    if name == "claude":
        # It writes a little later than it shows.
        await until(session, lambda: is_kept(session.record), SECONDS)
    await asyncio.to_thread(kill_marked, session.record.id)
    await until(session, lambda: session.record.status == "lost", SECONDS)
    sessions = chat.rig.sessions
    record = await sessions.resume(session.record.id, session.record.owner)
    assert record.program_session == session.record.program_session
    again = sessions.session(record.id, record.owner)
    try:
        await until(again, lambda: again.record.status == "ready", SECONDS)
        await again.send_text(THIRD)
        # One request has both: it knows what was said. Gemini forgets the first task, whose call was denied.
        await until(again, lambda: any(SECOND in one and THIRD in one for one in heard), SECONDS)
    except BaseException:
        await again.stop(force=True)
        raise
    return again


LOGINS = {"claude": "cli_auth", "codex": "cli_auth", "gemini": "api_key"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", LOGINS)
async def test_the_real_program_without_a_key_asks_for_a_login(
    name: str, foreign: Path, tmp_path: Path
) -> None:
    async with FakeModels(dialects=DIALECTS) as models:
        async with running(name, foreign, tmp_path, models, key="") as (_, session, _):
            await until(session, lambda: session.state.login is not None, SECONDS)
            assert session.state.login is not None
            assert session.state.login.method == LOGINS[name]
            assert session.record.public_status == "blocked"
        assert models.requests == [], "the task was not typed into the login"
