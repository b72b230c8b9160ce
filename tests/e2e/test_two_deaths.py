"""Two providers die in the middle of an answer, one after the other: the chat sees one line, one answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from channels.telegram.fake import FakeTelegram
from gateway.testing.fake_models.script import Reply, Say, Stall
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.fake_program import fake_program
from gateway.testing.served import until
from tests.e2e.gateway_process import GatewayProcess

NOTICE = "Answering with"
LINE = "anthropic failed. Answering with {} instead."


class Chain:
    """Three model servers, of which the first two begin an answer and can be made to die."""

    def __init__(self) -> None:
        self.first, self.second, self.third = FakeModels(), FakeModels(), FakeModels()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Chain]:
        async with self.first, self.second, self.third:
            self.first.then(Reply((Say("The first begins"), Stall())))
            self.second.then(Reply((Say("The second begins"), Stall())))
            yield self

    def settings(self, more: str = "") -> str:
        """The second and the third; the first is the gateway's own provider."""
        return (
            'fallback = ["anthropic/fake-small", "mistral/fake-small"]\n'
            f'{more}[providers.anthropic]\nbase_url = "{self.second.anthropic_url}"\napi_key = "k"\n'
            f'max_retries = 0\n[providers.mistral]\nbase_url = "{self.third.at("mistral")}"\napi_key = "k"\n'
        )


def told(texts: Iterable[str]) -> int:
    """How many lines about a provider that failed there are."""
    return "\n".join(texts).count(NOTICE)


class Screen:
    """What a websocket client shows of an answer, and the most notices it ever showed at once."""

    def __init__(self) -> None:
        self.parts: dict[int, str] = {}
        self.most = 0

    def show(self, frame: dict[str, Any]) -> None:
        match frame:
            case {"type": "text_delta", "part_index": int(index), "content": str(content)}:
                self.parts[index] = self.parts.get(index, "") + content
            case {"type": "part", "part_index": int(index), "part": dict(part)}:
                self.parts[index] = part.get("content", "")
                assert part["type"] == "text"
            case _:
                assert frame["type"] != "error"
        self.most = max(self.most, told(self.parts.values()))

    @property
    def shown(self) -> list[str]:
        return [text for _, text in sorted(self.parts.items()) if text]


async def test_a_websocket_sees_one_line_and_one_answer(tmp_path: Path) -> None:
    async with Chain().running() as chain:
        gateway = GatewayProcess(
            tmp_path, chain.first.openai_url, chain.settings(), provider="max_retries = 0"
        )
        async with gateway:
            assert await gateway.start()
            async with gateway.client() as client:
                screen = Screen()
                await client.say("Hi")
                for dying, says in ((chain.first, "The first"), (chain.second, "The second")):
                    while not any(says in text for text in screen.shown):
                        screen.show(await client.read())
                    await dying.close()
                while (frame := await client.read())["type"] != "complete":
                    screen.show(frame)
        assert screen.shown == [LINE.format("mistral"), "You said: Hi"]
        assert screen.most == 1
        assert frame["final_metadata"]["provider"] == "mistral"


async def test_a_room_sees_one_line_and_one_answer(tmp_path: Path) -> None:
    async with FakeTelegram() as telegram, Chain().running() as chain:
        room = (
            f'[channels.telegram]\ntoken = "{telegram.token}"\napi_base_url = "{telegram.url}"\nallow = "*"\n'
        )
        gateway = GatewayProcess(
            tmp_path, chain.first.openai_url, chain.settings(room), provider="max_retries = 0"
        )
        chat = telegram.private("Ada")
        async with gateway:
            assert await gateway.start()
            telegram.say(chat, "Hi")
            await until(lambda: chain.first.requests)
            await chain.first.close()
            await until(lambda: chain.second.requests)
            await chain.second.close()
            await until(lambda: any("You said" in text for text in telegram.answers(chat)))
            assert await gateway.stop() == 0
        [answer] = telegram.answers(chat)
        assert answer == f"{LINE.format('mistral')}\n\nYou said: Hi"
        for call in telegram.transcript.calls:
            assert str(call.arguments).count(NOTICE) <= 1, call
        telegram.transcript.check()


async def test_a_coding_program_may_be_the_first_that_dies(tmp_path: Path) -> None:
    binary, arguments = fake_program(tmp_path, "claude-code", "die")
    async with FakeModels() as second, FakeModels() as third:
        second.then(Reply((Say("The second begins"), Stall())))
        settings = (
            'fallback = ["anthropic/fake-small", "openai/fake-small"]\n'
            f'[providers.anthropic]\nbase_url = "{second.anthropic_url}"\napi_key = "k"\nmax_retries = 0\n'
            '[plugins]\nenabled = ["cli_backends"]\n'
            f'[plugins.cli_backends.plugins.claude-code]\nbinary = "{binary}"\nextra_args = {arguments}\n'
        )
        gateway = GatewayProcess(tmp_path, third.openai_url, settings, model="claude-code/default")
        async with gateway:
            assert await gateway.start()
            async with gateway.client() as client:
                screen = Screen()
                await client.say("Hi")
                while not any("The second" in text for text in screen.shown):
                    screen.show(await client.read())
                await second.close()
                while (frame := await client.read())["type"] != "complete":
                    screen.show(frame)
        assert screen.shown == [LINE.format("openai"), "You said: Hi"]
        assert screen.most == 1
        assert frame["final_metadata"]["provider"] == "openai"
