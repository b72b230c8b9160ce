"""One configuration, four channels, four platforms: each is answered once, also over a restart."""

from __future__ import annotations

from pathlib import Path

import aiohttp

from gateway.app import Gateway
from gateway.server import Server
from gateway.testing.models import FakeModels
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
            await until(lambda: gateway.dispatcher.waiting, 0)
        platforms.say("while you were away")
        async with Gateway(settings).running():
            wanted = ["You said: hello", "You said: while you were away"]
            await until(platforms.answers, [wanted] * 3)
        platforms.check()
