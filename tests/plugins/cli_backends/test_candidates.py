"""Every program's backend against a stand-in that misbehaves in every way that is known of."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gateway import ErrorPart
from gateway.testing.chat import chatting
from gateway.testing.contracts.provider_setup import named
from gateway.testing.fake_program import fake_program
from plugins.cli_backends import CLIS, CliBackends
from plugins.cli_backends.adapters.cli import Cli
from plugins.cli_backends.candidates.scenes import CHECKS

Check = Callable[[Cli], Awaitable[None]]
ALL = [check for checks in CHECKS.values() for check in checks]


@pytest.mark.parametrize("cli", CLIS, ids=lambda cli: cli.name)
@pytest.mark.parametrize("check", ALL, ids=named)
async def test_a_program_is_borne_however_it_behaves(check: Check, cli: Cli) -> None:
    before = children()
    async with asyncio.timeout(60):
        await check(cli)
    assert children() <= before, "nobody is left, be it as a zombie"


def children() -> set[str]:
    """The processes that this one has begun and not seen the end of."""
    return {pid for tasks in Path("/proc/self/task").glob("*/children") for pid in tasks.read_text().split()}


SCENES = {
    "die": "PROCESS_EXIT",
    "die at once": "PROCESS_EXIT",
    "leave": "PROCESS_EXIT",
    "half a line": "PROCESS_EXIT",
    "orphan": "PROCESS_EXIT",
    "question": "PROCESS_EXIT",
    "stubborn": "TIMEOUT",
    "oversize": "BUFFER_OVERFLOW",
    "chatter": "BUFFER_OVERFLOW",
    "complaint": "BUFFER_OVERFLOW",
    "fail": "PROVIDER_ERROR",
    "banner": "",
    "crumbs": "",
}


@pytest.mark.parametrize("scene", SCENES)
async def test_the_chat_gets_one_clear_answer(scene: str, tmp_path: Path) -> None:
    binary, arguments = fake_program(tmp_path, "claude-code", scene)
    stall = 1000 if SCENES[scene] == "TIMEOUT" else 60_000
    own = {"binary": binary, "extra_args": arguments, "stall_timeout_ms": stall, "api_key": "sk-very-secret"}
    plugins, before = {"cli_backends": {"plugins": {"claude-code": own}}}, children()
    async with chatting(
        tmp_path / "data", CliBackends(), model="claude-code/default", plugins=plugins
    ) as chat:
        answer = await chat.say("hello")
        [_, said] = (await chat.gateway.parts.sessions.find("s")).messages()
    assert said == answer
    errors = [part for part in answer.parts if isinstance(part, ErrorPart)]
    assert [error.error_name for error in errors] == ([SCENES[scene]] if SCENES[scene] else [])
    assert "sk-very-secret" not in str(answer)
    assert errors or answer.text == "You said: hello"
    assert children() <= before
