"""LangChain and the Vercel AI SDK, as their makers publish them, with their own tools at ``/v1``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gateway.testing.fake_models.script import ModelRequest, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import serving

CALL = {"name": "weather", "args": {"city": "Rome"}}


def forecaster(asked: ModelRequest) -> Reply:
    """Calls the client's tool, then repeats its result."""
    if asked.results:
        return Reply((Say("It is "), Say(asked.results[-1])))
    return Reply((Use("weather", '{"city": "Rome"}', "call_a"),), "tools")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("library", "finish"), [("langchain", "tool_calls"), ("vercel", "tool-calls")])
async def test_a_library_calls_its_own_tools_whole_and_streaming(
    tmp_path: Path, foreign: Path, library: str, finish: str
) -> None:
    async with FakeModels(forecaster) as fake, serving(tmp_path, fake=fake) as served:
        process = await asyncio.create_subprocess_exec(
            "node",
            str(foreign / "client.mjs"),
            library,
            f"{served.url}/v1",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, failed = await process.communicate()
        assert process.returncode == 0, failed.decode()
        told = json.loads(said)
        assert (told["calls"], told["streamed"], told["finish"]) == ([CALL], [CALL], finish)
        assert told["text"] == "It is 20 degrees in Rome"
        assert told.get("streamedText", told["text"]) == told["text"]
        assert {asked.tools for asked in fake.requests} == {("weather",)}
