"""Requests of a server while its tool runs: questions to the user, the granted folders, and model calls."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway import Answer
from gateway.extensions.deadlines import Limit, paused
from gateway.testing.chat import Chat
from gateway.testing.fake_models.script import Reply, Say, Tokens, Use

from .conftest import Servers, result, server, use

pytestmark = pytest.mark.slow


async def asked(chat: Chat, answer: str) -> Any:
    """Let the server ask the user of a call, and return what it was told."""
    chat.model.then(Reply((Use("demo_run", '{"what": "ask"}'),), "tools"), Reply((Say("Done."),)))
    answer_id = await chat.accept("go")
    question = await chat.decide(answer)
    assert question.title == "The MCP server demo asks: Who are you?"
    return json.loads(result(await chat.answer(answer_id)).output)


async def test_a_server_asks_the_user_of_a_call(servers: Servers) -> None:
    async with servers.chat() as chat:
        assert await asked(chat, "42") == {"action": "accept", "content": {"age": 42}}


@pytest.mark.parametrize("answer", ["decline", "none of your business"])
async def test_a_user_declines(servers: Servers, answer: str) -> None:
    async with servers.chat() as chat:
        assert await asked(chat, answer) == {"action": "decline"}


async def test_the_clock_of_a_call_stops_while_the_user_is_asked(servers: Servers) -> None:
    async def ask(title: str, **_: object) -> Answer:
        with paused():
            await asyncio.sleep(6)  # longer than the call may take
        return Answer(question_id="1", key="1", state="answered", values=("42",))

    async with servers.chat() as chat:
        await server(chat).connect()
        limit = Limit("mcp", "run", 5)
        output = await limit.call(server(chat).call, "run", {"what": "ask"}, print, ("s", ask))
        assert json.loads(output.content)["content"] == {"age": 42}


async def test_without_a_user_a_server_is_declined(servers: Servers) -> None:
    async with servers.chat() as chat:
        output = await server(chat).call("run", {"what": "ask"}, print)
        assert json.loads(output.content) == {"action": "decline"}


async def test_a_server_is_told_the_granted_folders(servers: Servers) -> None:
    async with servers.chat() as chat:
        told = json.loads((await use(chat, "demo_run", what="roots")).output)
        assert [root["uri"] for root in told["roots"]] == [servers.folder.as_uri()]


async def test_a_server_gets_a_model_only_if_that_is_granted(servers: Servers) -> None:
    async with servers.chat() as chat:
        assert "not supported" in (await use(chat, "demo_run", what="sample")).output
    files = {"filesystem": {"roots": [str(servers.folder)], "write": True}}
    async with servers.chat(capabilities={**files, "llm": {"enabled": True, "budget": 1.0}}) as chat:
        chat.model.then(
            Reply((Use("demo_run", '{"what": "sample"}'),), "tools"),
            Reply((Say("Something."),), tokens=Tokens(3, 4)),
            Reply((Say("Done."),)),
        )
        told = json.loads(result(await chat.say("go")).output)
        assert (told["role"], told["content"]["text"]) == ("assistant", "Something.")
        assert [message.text for message in chat.model.calls[1].messages] == ["Say something."]
    async with servers.chat(capabilities={**files, "llm": {"enabled": True, "budget": 0.0}}) as chat:
        assert "of this plugin's budget is spent" in (await use(chat, "demo_run", what="sample")).output
        assert [message.text for message in chat.model.calls[-1].messages] != ["Say something."]
