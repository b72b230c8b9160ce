"""The contract suite for channels, with the channel of ``channels/README.md``, installed as a package."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway import Message, Plugin, PluginContext, TextPart
from gateway.app import Gateway
from gateway.channel import Address, InboundMessage, OutboundMessage, Placed, Sender, UnauthorizedError
from gateway.contract import channel as contract
from gateway.contract import questions
from gateway.session.frames import ApprovalAsked
from gateway.testing.chat import chatting, written
from gateway.testing.contracts.channel_contract import ChannelCheck, checks_for
from gateway.testing.contracts.channel_platform import Platform, until
from gateway.testing.fake_models.script import Reply, Use
from gateway.testing.fake_platform import Fault
from gateway.testing.polling_platform import PollingPlatform

pytestmark = pytest.mark.slow

README = Path(__file__).parents[2] / "channels/README.md"
CHAT, ROOM = "ada", "#lab"
MODULE = "trunkline_pigeon"
OF_RESPONDERS = ("SendsVoice", "SendsAck", "SendsError")


class PigeonPlatform(Platform):
    """Ada's chat with the bot, and a room."""

    name = "pigeon"
    longest = 4000
    lacks = {"files": "the example takes text only"}

    def __init__(self) -> None:
        self.fake = PollingPlatform(longest=self.longest)

    async def __aenter__(self) -> PigeonPlatform:
        await self.fake.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self.fake.__aexit__(*failure)

    def settings(self) -> Mapping[str, Any]:
        return {"url": self.fake.url, "allow": "*"}

    async def connected(self, gateway: Gateway, url: str) -> None:
        await until(lambda: gateway.health()["pigeon"][0])

    def write(self, text: str) -> int:
        return self.fake.say(CHAT, text)

    def shown(self) -> Sequence[str]:
        return self.fake.answers(CHAT)

    def check(self) -> None:
        assert self.fake.impatient == 0, "the bot did not wait as the platform asked"

    def fail(self, fault: Fault) -> None:
        self.fake.then(fault)

    def malformed(self) -> None:
        self.fake.malformed()

    def repeat(self) -> None:
        self.fake.repeat()

    @contextmanager
    def reordered(self) -> Generator[None]:
        self.fake.reorder()
        yield

    def edit(self, key: int, text: str) -> None:
        self.fake.edit(CHAT, key, text)

    def delete(self, key: int) -> None:
        self.fake.delete(CHAT, key)

    def write_in_room(self, text: str, *, addressed: bool, file: bytes | None = None) -> int:
        return self.fake.say(ROOM, f"@bot {text}" if addressed else text)

    def shown_in_room(self) -> Sequence[str]:
        return self.fake.answers(ROOM)


class Registers(Plugin):
    """A plugin with a channel."""

    name = "registers"

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.channels is not None
        ctx.channels.register(self._channel)


@pytest.fixture
def example(tmp_path: Path) -> Iterator[ModuleType]:
    """Install the code of the README as a package with an entry point."""
    site = tmp_path / "site"
    info = site / f"{MODULE}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {MODULE}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[trunkline.channels]\npigeon = {MODULE}\n")
    code = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (site / f"{MODULE}.py").write_text("\n\n".join(code), encoding="utf-8")
    sys.path.insert(0, str(site))
    importlib.invalidate_caches()
    yield importlib.import_module(MODULE)
    sys.path.remove(str(site))
    del sys.modules[MODULE]


@pytest.mark.parametrize("check", checks_for(PigeonPlatform), ids=str)
async def test_the_contract(check: ChannelCheck, tmp_path: Path, example: ModuleType) -> None:
    await check(PigeonPlatform(), tmp_path)


def test_every_ability_has_an_example(example: ModuleType) -> None:
    abilities = {
        name: found
        for module in (contract, questions)
        for name, found in inspect.getmembers(module, inspect.isclass)
        if getattr(found, "_is_runtime_protocol", False) and name not in OF_RESPONDERS
    }
    classes: list[tuple[str, Any]] = inspect.getmembers(example, inspect.isclass)
    channels = [
        found(None, "pigeon", "http://127.0.0.1")
        for _, found in classes
        if issubclass(found, example.PigeonChannel)
    ]
    assert len(abilities) > 15
    assert [n for n, found in abilities.items() if not any(isinstance(c, found) for c in channels)] == []
    assert [name for name in abilities if f"`{name}`" not in README.read_text()] == ["Channel"]


async def test_the_examples_of_abilities_work(example: ModuleType) -> None:
    address = Address("pigeon", "bot", CHAT)
    message = Message(session_id="s", role="assistant", parts=(TextPart("**Hi**"),))
    async with PollingPlatform() as fake:
        showing = example.StreamingChannel(None, "pigeon", fake.url)
        pages = [*showing.pages(message, final=True)]
        outbound = OutboundMessage(address=address, message=message, page=pages[0], nonce="n")
        placed = await showing.send(outbound)
        await showing.edit(placed, OutboundMessage(address=address, message=message, page="Ho", nonce="n"))
        await showing.typing(address)
        assert (pages, fake.answers(CHAT), fake.typing) == (["Hi"], ["Ho"], [CHAT])
        newest = fake.say(CHAT, "bye")
        recalling = example.RememberingChannel(None, "pigeon", fake.url)
        asked = InboundMessage(
            session="s", dedup_key="k", address=address, sender=Sender("ada"), order=newest
        )
        (earlier,) = await recalling.history(asked, 5)
        assert (earlier.key, earlier.text, earlier.own) == (f"{CHAT}:{placed.platform_id}", "Ho", True)
        await showing.delete(Placed(placed.platform_id), address)
        assert fake.answers(CHAT) == []
        assert recalling.groups_of("ada") == set()
        await recalling.refresh_groups("ada", address)
        assert recalling.groups_of("ada") == {"role:42"}
        asking = example.AskingChannel(None, "pigeon", fake.url)
        request = questions.ApprovalRequest(
            id="q", key="q", session="s", address=address, answerers=("ada",), title="May shell run?",
            tool_name="shell", arguments={"command": "ls"}, created_at=0, expires_at=1,
        )  # fmt: skip
        await asking.ask_question(request)
        answer = questions.Answer(question_id="q", key="q", state="answered", values=("once",))
        await asking.question_closed(request, answer, None)
        question, outcome = fake.answers(CHAT)
        assert ("ls" in question, outcome) == (True, "May shell run? once")


async def test_a_press_answers_a_question_for_its_user_alone(tmp_path: Path, example: ModuleType) -> None:
    async with PollingPlatform() as fake:
        asking = example.AskingChannel(None, "pigeon", fake.url)
        rules = {"pigeon": {"allow": ["ada", "eve"]}}
        async with chatting(tmp_path, Registers(asking), channels=rules, permissions={"*": "ask"}) as chat:
            asking.host = chat.host
            app = web.Application()
            app.add_routes(asking.routes())
            async with TestClient(TestServer(app)) as client:
                chat.model.then(Reply((Use("calculator", '{"expression": "1+1"}'),), "tools"))
                await chat.host.accept("pigeon", written("go", channel="pigeon", role=None))
                asked = await (await chat.watch()).until(lambda frame: isinstance(frame, ApprovalAsked))

                async def press(user: str, secret: str = example.SECRET) -> tuple[int, str]:
                    body = {"question": asked.approval_id, "value": "once", "user": user}
                    headers = {"X-Pigeon-Secret": secret}
                    response = await client.post("/pigeon/webhook", json=body, headers=headers)
                    return response.status, await response.text()

                assert await press("ada", "guessed") == (401, "")
                assert "may decide" in (await press("eve"))[1]
                with pytest.raises(UnauthorizedError, match="name the user"):
                    await chat.host.settle(asked.approval_id, "once", channel="pigeon")
                assert await press("ada") == (200, "")
                assert "already" in (await press("ada"))[1]
