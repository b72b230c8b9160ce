"""One configuration, four channels, four platforms: each is answered once, also over a restart."""

from __future__ import annotations

from pathlib import Path

import aiohttp

from gateway.app import Gateway
from gateway.contract.messages import Message, TextPart
from gateway.server import Server
from gateway.testing.fake_models.script import ModelRequest, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from tests.e2e.town import town, until


async def test_one_configuration_runs_all_four_and_each_is_answered_once(tmp_path: Path) -> None:
    async with town() as platforms, FakeModels() as models:
        settings = platforms.settings(tmp_path, models)
        gateway = Gateway(settings)
        async with gateway.running(), Server(gateway) as server:
            await until(lambda: [name for name, (ok, _) in gateway.health().items() if not ok], [])
            platforms.say("hello")
            await until(platforms.answers, [["You said: hello"]] * 3)
            async with aiohttp.ClientSession() as http, http.ws_connect(f"{server.url}/ws") as socket:
                await socket.send_json({"type": "message", "client_msg_id": "1", "text": "hello"})
                while (frame := await socket.receive_json())["type"] != "complete":
                    assert frame["type"] != "error"
            await until(lambda: gateway.parts.dispatcher.waiting, 0)
        platforms.say("while you were away")
        async with Gateway(settings).running():
            wanted = ["You said: hello", "You said: while you were away"]
            await until(platforms.answers, [wanted] * 3)
        platforms.check()


async def test_002_20_what_a_plugin_appends_is_in_the_chat_of_each_platform(tmp_path: Path) -> None:
    async with town() as platforms, FakeModels() as models:
        gateway = Gateway(platforms.settings(tmp_path, models))
        async with gateway.running():
            await until(lambda: [name for name, (ok, _) in gateway.health().items() if not ok], [])
            platforms.say("hello")
            await until(platforms.answers, [["You said: hello"]] * 3)
            for row in await gateway.parts.sessions.list():
                session = await gateway.parts.sessions.find(row.id)
                said = TextPart(f"Your build on {row.channel} is done.")
                session.bus.append(Message(session_id="", role="assistant", parts=(said,)))
            names = ("telegram", "discord", "slack")
            wanted = [["You said: hello", f"Your build on {name} is done."] for name in names]
            await until(platforms.answers, wanted)
            await until(lambda: gateway.parts.dispatcher.waiting, 0)
        platforms.check()


async def test_002_13_platforms_tell_what_a_tool_does_by_its_verb(tmp_path: Path) -> None:
    def answer(request: ModelRequest) -> Reply:
        # By the request, because the turns of the channels overlap.
        if request.results:
            return Reply((Say("42."),))
        return Reply((Use("calculator", '{"expression": "6 * 7"}'),), "tools")

    async with town() as platforms, FakeModels(answer) as models:
        gateway = Gateway(platforms.settings(tmp_path, models))
        async with gateway.running():
            await until(lambda: [name for name, (ok, _) in gateway.health().items() if not ok], [])
            platforms.say("6 * 7?")
            await until(lambda: [answers[-1:] != [] for answers in platforms.answers()], [True] * 3)
            await until(lambda: gateway.parts.dispatcher.waiting, 0)
        told = ["\n".join(answers) for answers in platforms.answers()]
        assert [("calculating" in text, "calculator" in text, "6 * 7" in text) for text in told] == [
            (True, False, True)
        ] * 3
