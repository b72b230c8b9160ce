"""Announcements: a plugin's messages stand in their chats once for each key, with their newest content."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace
from sqlalchemy import func, select

from gateway import Message, Plugin, PluginContext, TextPart, TurnContext, now_ms
from gateway.app import Gateway
from gateway.channel import Address, InvalidRequestError, OutboundMessage, OverloadedError, Placed
from gateway.contract.errors import ForbiddenError, InvalidStateError
from gateway.session.frames import MessageFrame, Replayed
from gateway.session.log import read_messages
from gateway.settings import ChannelRules
from gateway.store import schema as t
from gateway.store.inbox import CLAIM
from gateway.store.retention import Retention
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Gate, Reply, Say
from gateway.testing.fake_platform import Fault
from gateway.testing.polling_channel import PollingChannel, text_of
from gateway.testing.polling_platform import PollingPlatform
from gateway.trail import read as read_trail
from tests.e2e.test_placing import gateway_on, settled, states, until

KITCHEN = Address("line", "bot", "kitchen")


class Herald(Plugin):
    """A plugin that announces what the test tells it to."""

    name = "herald"
    ctx: PluginContext

    async def activate(self, ctx: PluginContext) -> None:
        self.ctx = ctx

    async def __call__(self, message: Message | str, key: str, address: Address = KITCHEN) -> None:
        assert self.ctx.announce is not None
        await self.ctx.announce(address, message, key)


class Editor(Plugin):
    """Gives the line the ability to edit; ``hold`` keeps an edit or a message waiting at the platform."""

    name = "editor"

    def __init__(self, url: str) -> None:
        self._url = url
        self.edits: list[str] = []

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.channels is not None
        self.line: Any = ctx.channels.get("line")
        self.line.__class__ = type("EditingLine", (PollingChannel,), {"edit": self.edit})

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        self.edits.append(text_of(outbound.message))
        change = {"chat": outbound.address.chat, "id": int(placed.platform_id), "text": self.edits[-1]}
        async with aiohttp.ClientSession() as http:
            await http.post(f"{self._url}/edit", json=change, raise_for_status=True)


async def test_004_t02_an_announcement_opens_a_chat_and_comes_once(tmp_path: Path) -> None:
    herald = Herald()
    async with PollingPlatform() as platform, gateway_on(tmp_path, platform.url, herald) as gateway:
        await herald("Good morning", "morning")
        await herald("Good morning", "morning")
        await settled(gateway, "done")
        await herald("Good morning", "morning")
        platform.say("kitchen", "hello")
        await settled(gateway, "done", "done")
        log = await gateway.parts.store.read(lambda c: read_messages(c, "line:bot:kitchen"))
    assert platform.answers("kitchen") == ["Good morning", "You said: hello"]
    assert [message.text for _, message in log] == ["Good morning", "hello", "You said: hello"]


@pytest.mark.parametrize("fault", ["slow_down", "fail_before", "fail_after", "drop_before", "drop_after"])
async def test_an_announcement_whose_delivery_goes_wrong_is_not_doubled(tmp_path: Path, fault: Fault) -> None:
    herald = Herald()
    async with PollingPlatform() as platform, gateway_on(tmp_path, platform.url, herald) as gateway:
        platform.then(fault, fault)
        await herald("Good morning", "morning")
        await settled(gateway, "done")
    assert platform.answers("kitchen") == ["Good morning"]


async def test_an_announcement_is_delivered_after_a_restart(tmp_path: Path) -> None:
    herald = Herald()
    async with PollingPlatform() as platform:
        async with gateway_on(tmp_path, platform.url, herald) as gateway:
            platform.then(*["slow_down"] * 3)
            for number in range(3):
                await herald(f"number {number}", str(number))
            await until(lambda: platform.sends > 0)
            gateway.parts.dispatcher.cancel()
        async with gateway_on(tmp_path, platform.url, herald) as gateway:
            await settled(gateway, "done", "done", "done")
            await herald("number 1", "1")
            log = await gateway.parts.store.read(lambda c: read_messages(c, "line:bot:kitchen"))
    assert platform.answers("kitchen") == ["number 0", "number 1", "number 2"]
    assert [message.text for _, message in log] == ["number 0", "number 1", "number 2"]


class Frozen(Editor):
    """The first edit never ends."""

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        self.edits.append(text_of(outbound.message))
        await asyncio.Event().wait()


async def test_the_path_of_a_changed_announcement_continues_where_it_ended(tmp_path: Path) -> None:
    """The new content resets the number of attempts, also in the next process."""

    async def entry(gateway: Gateway) -> str:
        return await gateway.parts.store.read(lambda c: c.execute(select(t.inbox.c.id)).scalar_one())

    async def path(gateway: Gateway) -> list[str]:
        steps = (await read_trail(gateway.parts.store, await entry(gateway))).steps
        return [step.kind for step in steps if step.kind in ("restart", "placement", "final")]

    herald = Herald()
    async with PollingPlatform() as platform:
        frozen, editor = Frozen(platform.url), Editor(platform.url)
        async with gateway_on(tmp_path, platform.url, herald, editor) as gateway:
            platform.then(*["slow_down"] * 3)
            await herald("one", "morning")
            await until(lambda: platform.sends > 0)
            gateway.parts.dispatcher.cancel()
            # As if two gateways had been killed since.
            await gateway.parts.store.write((CLAIM, (await entry(gateway), 2, 0)))
        async with gateway_on(tmp_path, platform.url, herald, frozen) as gateway:
            await settled(gateway, "done")
            first = await path(gateway)
            await herald("two", "morning")
            await until(lambda: frozen.edits == ["two"])
            gateway.parts.dispatcher.cancel()
        async with gateway_on(tmp_path, platform.url, herald, editor) as gateway:
            await settled(gateway, "done")
            assert await path(gateway) == [*first, "restart", "restart", "final"]
    assert platform.answers("kitchen") == ["two"]


async def test_announcements_and_answers_have_one_order_in_the_chat_and_the_log(tmp_path: Path) -> None:
    herald = Herald()

    class Remarking(Plugin):
        name = "remarking"

        async def before_llm_call(self, messages: Any, options: Any, ctx: TurnContext) -> None:
            await herald(f"about {messages[-1].text}", messages[-1].text, ctx.inbound.address)

    plugins = (herald, Remarking())
    async with PollingPlatform() as platform, gateway_on(tmp_path, platform.url, *plugins) as gateway:
        for text in ("one", "two", "three"):
            platform.say("kitchen", text)
        await settled(gateway, *["done"] * 6)
        log = await gateway.parts.store.read(lambda c: read_messages(c, "line:bot:kitchen"))
    said = [message.text for _, message in log if message.role == "assistant"]
    assert platform.answers("kitchen") == said
    assert sorted(said) == sorted(
        f"{how} {n}" for n in ("one", "two", "three") for how in ("You said:", "about")
    )
    assert all(said.index(f"You said: {n}") < said.index(f"about {n}") for n in ("one", "two", "three"))


class FarLine(Plugin):
    """Lets the line number its messages far higher than the gateway does."""

    name = "far_line"

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.channels is not None
        line: Any = ctx.channels.get("line")

        def inbound(self: Any, update: Any) -> Any:
            found = PollingChannel._inbound(self, update)  # pyright: ignore[reportPrivateUsage]
            return replace(found, order=found.order + (1 << 50))

        line.__class__ = type("FarLine", (PollingChannel,), {"_inbound": inbound})


class Remarking(Plugin):
    """Announces a remark in the middle of each turn. The first turn does not end."""

    name = "remarking"

    def __init__(self, herald: Herald) -> None:
        self._herald = herald
        self.announced = asyncio.Event()

    async def before_llm_call(self, messages: Any, options: Any, ctx: TurnContext) -> None:
        await self._herald("a remark", "remark", ctx.inbound.address)
        if not self.announced.is_set():
            self.announced.set()
            await asyncio.Event().wait()


async def test_an_announcement_of_a_repeated_turn_comes_after_its_answer(tmp_path: Path) -> None:
    herald = Herald()
    remarking = Remarking(herald)
    async with PollingPlatform() as platform:
        async with gateway_on(tmp_path, platform.url, FarLine(), herald, remarking) as gateway:
            platform.say("kitchen", "one")
            await until(remarking.announced.is_set)
            gateway.parts.dispatcher.cancel()
        async with gateway_on(tmp_path, platform.url, FarLine(), herald, remarking) as gateway:
            await settled(gateway, "done", "done")
    assert platform.answers("kitchen") == ["You said: one", "a remark"]


class Early(Herald):
    """Announces as soon as the gateway accepts that, before the worker of the chat's session has begun."""

    name = "early"

    async def activate(self, ctx: PluginContext) -> None:
        await super().activate(ctx)
        assert ctx.tasks is not None
        ctx.tasks.create_task(self._announce())

    async def _announce(self) -> None:
        while True:
            try:
                return await self("early", "early")
            except OverloadedError:
                await asyncio.sleep(0)


async def test_an_announcement_of_a_start_comes_after_one_that_waits(tmp_path: Path) -> None:
    herald = Herald()
    remarking = Remarking(herald)
    async with PollingPlatform() as platform:
        async with gateway_on(tmp_path, platform.url, FarLine(), herald, remarking) as gateway:
            platform.say("kitchen", "one")
            await until(remarking.announced.is_set)
            gateway.parts.dispatcher.cancel()
        async with gateway_on(tmp_path, platform.url, FarLine(), herald, remarking, Early()) as gateway:
            await settled(gateway, "done", "done", "done")
    assert platform.answers("kitchen") == ["You said: one", "a remark", "early"]


async def test_a_placed_announcement_does_not_stay_on_disk_at_a_restart(tmp_path: Path) -> None:
    herald = Herald()
    async with PollingPlatform() as platform:
        async with gateway_on(tmp_path, platform.url, herald) as gateway:
            platform.say("kitchen", "hello")
            await settled(gateway, "done")
            platform.then(*["slow_down"] * 3)
            await herald("a remark", "remark")
            await until(lambda: platform.sends > 1)
            for number in range(6):
                platform.say("kitchen", str(number))
            await settled(gateway, "done", *["new"] * 7)
            gateway.parts.dispatcher.cancel()
        async with gateway_on(tmp_path, platform.url, herald, limits={"session_inbox": 2}) as gateway:
            await settled(gateway, *["done"] * 8)
            log = await gateway.parts.store.read(lambda c: read_messages(c, "line:bot:kitchen"))
    said = [message.text for _, message in log if message.role == "assistant"]
    assert platform.answers("kitchen") == said
    assert said[:2] == ["You said: hello", "a remark"]


async def test_the_same_key_with_new_content_edits_the_message(tmp_path: Path) -> None:
    herald = Herald()
    async with PollingPlatform() as platform:
        editor = Editor(platform.url)
        async with gateway_on(tmp_path, platform.url, editor, herald) as gateway:
            await herald("Oven: 100 °C", "oven")
            await herald("other", "other")
            await settled(gateway, "done", "done")
            await herald("Oven: 200 °C", "oven")
            await until(lambda: editor.edits == ["Oven: 200 °C"])
            await settled(gateway, "done", "done")
            await herald("Oven: 200 °C", "oven")
            log = await gateway.parts.store.read(lambda c: read_messages(c, "line:bot:kitchen"))
            held = (await gateway.parts.sessions.find("line:bot:kitchen")).messages()
    assert platform.answers("kitchen") == ["Oven: 200 °C", "other"]
    assert (
        [message.text for _, message in log]
        == [message.text for message in held]
        == ["Oven: 200 °C", "other"]
    )
    assert editor.edits == ["Oven: 200 °C"]


async def test_new_content_reaches_an_announcement_that_is_being_delivered_or_waits(tmp_path: Path) -> None:
    herald = Herald()
    async with PollingPlatform() as platform:
        editor = Editor(platform.url)
        async with gateway_on(tmp_path, platform.url, editor, herald) as gateway:
            platform.then("slow_down")
            await herald("running 1", "running")
            await herald("waiting 1", "waiting")
            await until(lambda: platform.sends > 0)
            await herald("waiting 2", "waiting")
            await herald("running 2", "running")
            await herald("running 3", "running")
            await settled(gateway, "done", "done")
            outbox = await gateway.parts.store.read(
                lambda c: c.execute(select(t.outbox.c.body)).scalars().all()
            )
    assert platform.answers("kitchen") == ["running 3", "waiting 2"]
    assert "waiting 2" not in editor.edits
    assert [("running 3" in body or "waiting 2" in body) for body in outbox] == [True, True]


async def test_a_channel_that_cannot_edit_keeps_the_old_message(tmp_path: Path) -> None:
    herald = Herald()
    async with PollingPlatform() as platform, gateway_on(tmp_path, platform.url, herald) as gateway:
        await herald("old", "key")
        await settled(gateway, "done")
        await herald("new", "key")
        await herald("next", "other")
        await settled(gateway, "done", "done")
        log = await gateway.parts.store.read(lambda c: read_messages(c, "line:bot:kitchen"))
    assert platform.answers("kitchen") == ["old", "next"]
    assert [message.text for _, message in log] == ["new", "next"]


async def test_new_content_for_a_forgotten_delivery_changes_the_log_only(tmp_path: Path) -> None:
    herald = Herald()
    async with PollingPlatform() as platform:
        editor = Editor(platform.url)
        async with gateway_on(tmp_path, platform.url, editor, herald) as gateway:
            await herald("old", "key")
            await settled(gateway, "done")
            assert await Retention(gateway.parts.store, 7).clean(now_ms() + 8 * 86_400_000) == 2
            await herald("new", "key")
            log = await gateway.parts.store.read(lambda c: read_messages(c, "line:bot:kitchen"))
            assert await states(gateway) == ([], [])
    assert (platform.answers("kitchen"), editor.edits) == (["old"], [])
    assert [message.text for _, message in log] == ["new"]


async def test_a_refused_announcement_becomes_a_dead_letter_that_can_be_replayed(tmp_path: Path) -> None:
    herald = Herald()
    async with PollingPlatform() as platform, gateway_on(tmp_path, platform.url, herald) as gateway:
        platform.closed.add("kitchen")
        await herald("hello", "key")
        await settled(gateway, "dead")
        await herald("hello again", "key")
        [letter] = await gateway.parts.dead_letters.list()
        assert "herald: key" in letter.text
        platform.closed.clear()
        await gateway.parts.dead_letters.replay(letter.id)
        await settled(gateway, "done")
    assert platform.answers("kitchen") == ["hello again"]


async def test_deleting_a_session_deletes_its_announcements(tmp_path: Path) -> None:
    herald = Herald()
    async with PollingPlatform() as platform, gateway_on(tmp_path, platform.url, herald) as gateway:
        await herald("hello", "key")
        await settled(gateway, "done")
        sessions, store = gateway.parts.sessions, gateway.parts.store
        await until(lambda: sessions.get("line:bot:kitchen").idle)  # type: ignore[union-attr]
        await sessions.delete("line:bot:kitchen")
        count = select(func.count()).select_from(t.announcement)
        assert await store.read(lambda c: c.execute(count).scalar()) == 0
        await herald("hello", "key")
        await settled(gateway, "done", "done")
    assert platform.answers("kitchen") == ["hello", "hello"]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (
            {"address": Address("nowhere", "bot", "x")},
            "there is no channel 'nowhere'; the channels are: line",
        ),
        ({"address": Address("line", "bot")}, "names no chat"),
        ({"address": {"channel": "line", "chat": 5}}, r"Expected `str`, got `int` - at `\$.chat`"),
        ({"key": ""}, "needs 1 to 512 characters"),
        ({"key": "k" * 513}, "needs 1 to 512 characters"),
        ({"message": "  "}, "must show something"),
        ({"message": Message(session_id="", role="assistant")}, "must show something"),
        ({"message": Message(session_id="", role="user", parts=(TextPart("x"),))}, "the role 'assistant'"),
        (
            {"message": Message(session_id="", role="assistant", parts=(TextPart(5),))},  # type: ignore[arg-type]
            "Expected `str`",
        ),
        (
            {
                "message": Message(
                    session_id="", role="assistant", parts=(TextPart("x"),), meta={"a": object()}
                )
            },
            "cannot be encoded as JSON",
        ),
    ],
)
async def test_what_cannot_be_announced_is_refused_and_nothing_stored(
    tmp_path: Path, given: dict[str, Any], complaint: str
) -> None:
    herald = Herald()
    async with PollingPlatform() as platform, gateway_on(tmp_path, platform.url, herald) as gateway:
        with pytest.raises(InvalidRequestError, match=complaint):
            await herald(**{"message": "hello", "key": "key", **given})
        count = select(func.count()).select_from(t.sessions)
        assert await gateway.parts.store.read(lambda c: c.execute(count).scalar()) == 0
        assert await states(gateway) == ([], [])


async def test_a_key_stays_in_its_chat(tmp_path: Path) -> None:
    herald = Herald()
    async with PollingPlatform() as platform, gateway_on(tmp_path, platform.url, herald) as gateway:
        await herald("hello", "key")
        with pytest.raises(InvalidRequestError, match="cannot be moved to 'line:bot:hall'; use another key"):
            await herald("hello", "key", Address("line", "bot", "hall"))
        await settled(gateway, "done")
    assert set(platform.rooms) == {"kitchen"}


async def test_keys_of_two_plugins_are_apart(tmp_path: Path) -> None:
    first, second = Herald(), Herald()
    second.name = "other"
    async with PollingPlatform() as platform, gateway_on(tmp_path, platform.url, first, second) as gateway:
        await first("one", "key")
        await second("two", "key")
        await settled(gateway, "done", "done")
    assert platform.answers("kitchen") == ["one", "two"]


async def test_a_user_without_access_gets_no_further_message(tmp_path: Path) -> None:
    herald = Herald()
    async with PollingPlatform() as platform, gateway_on(tmp_path, platform.url, herald) as gateway:
        platform.say("kitchen", "hello")
        await settled(gateway, "done")
        gateway.parts.access.policy._rules = lambda _channel: ChannelRules(allow=())  # type: ignore[assignment]
        with pytest.raises(ForbiddenError, match="the user 'ada' of the chat 'kitchen' may not use the bot"):
            await herald("psst", "key")
    assert platform.answers("kitchen") == ["You said: hello"]


async def test_an_announcement_during_activation_is_refused_and_one_of_a_task_waits(tmp_path: Path) -> None:
    class Early(Herald):
        async def activate(self, ctx: PluginContext) -> None:
            await super().activate(ctx)
            assert ctx.tasks is not None
            ctx.tasks.create_task(self("from a task", "task"))
            with pytest.raises(InvalidStateError, match="announce from a task of"):
                await self("from activate", "activate")

    async with PollingPlatform() as platform, gateway_on(tmp_path, platform.url, Early()) as gateway:
        await settled(gateway, "done")
    assert platform.answers("kitchen") == ["from a task"]


async def test_a_gateway_that_stops_accepts_no_announcement(tmp_path: Path) -> None:
    refused: list[str] = []

    class Late(Herald):
        async def deactivate(self) -> None:
            with pytest.raises(OverloadedError, match="shutting down"):
                await self("too late", "late")
            refused.append("late")

    async with PollingPlatform() as platform, gateway_on(tmp_path, platform.url, Late()):
        pass
    assert refused == ["late"]


async def test_readers_of_a_session_see_an_announcement_and_its_change(tmp_path: Path) -> None:
    herald, web = Herald(), Address("websocket", "", "s")
    async with chatting(tmp_path, herald, channels={"websocket": {}}) as chat:
        await chat.say("hi")
        watcher = await chat.watch()
        gate = Gate(asyncio.Event())
        chat.model.then(Reply((Say("slow "), gate, Say("answer"))))
        answer = await chat.accept("go")
        await herald("done 1", "key", Address("websocket", "", "s"))
        await herald("done 2", "key", web)
        gate.opened.set()
        await chat.answer(answer)
        await watcher.until(lambda f: isinstance(f, MessageFrame) and f.message.text == "done 2")
        await herald("done 3", "key", web)
        shown = await watcher.until(lambda f: isinstance(f, MessageFrame) and f.message.text == "done 3")
        await chat.say("what was that?")
        log = [message for _, message in await chat.gateway.parts.sessions.read("s")]
        assert [one.text for one in log][2:-2] == ["go", "slow answer", "done 3"]
        assert shown.message.id == log[-3].id
        assert "done 3" in [message.text for message in chat.model.calls[-1].messages]
    async with chatting(tmp_path, herald, channels={"websocket": {}}) as chat:
        await herald("done 3", "key", web)
        await herald("done 4", "key", web)
        watcher = await chat.watch()
        await watcher.until(lambda f: isinstance(f, MessageFrame) and f.message.text == "done 4")


async def test_a_reader_that_was_away_gets_new_content_when_it_resumes(tmp_path: Path) -> None:
    herald, web = Herald(), Address("websocket", "", "s")
    async with chatting(tmp_path, herald, channels={"websocket": {}}) as chat:
        await chat.say("hi")
        await herald("done 1", "key", web)
        await herald("other", "other", web)
        await settled(chat.gateway, "done", "done", "done")
        await chat.say("thanks")
        seen = (await chat.gateway.parts.sessions.find("s")).seq
        await herald("done 2", "key", web)
        await settled(chat.gateway, *["done"] * 4)
        assert await texts_after(chat, seen) == ["done 2"]
        seen_again = (await chat.gateway.parts.sessions.find("s")).seq
    async with chatting(tmp_path, herald, channels={"websocket": {}}) as chat:
        assert await texts_after(chat, seen) == ["done 2"]
        assert await texts_after(chat, seen_again) == []
        assert await texts_after(chat, 0) == [
            "hi",
            "You said: hi",
            "done 2",
            "other",
            "thanks",
            "You said: thanks",
        ]
        await herald("done 3", "key", web)
        await settled(chat.gateway, *["done"] * 4)
        await chat.say("bye")
        assert await texts_after(chat, seen) == ["done 3", "bye", "You said: bye"]


async def texts_after(chat: Chat, after: int) -> list[str]:
    """Return the texts that a reader gets that resumes after a number. Their numbers grow."""
    watcher = await chat.watch(after=after)
    await watcher.until(lambda frame: isinstance(frame, Replayed))
    numbers = [event.seq for event in watcher.events]
    assert numbers == sorted(numbers)
    return [frame.message.text for frame in watcher.frames if isinstance(frame, MessageFrame)]


async def test_a_moved_chat_is_announced_to_in_its_session(tmp_path: Path) -> None:
    herald = Herald()
    async with PollingPlatform() as platform, gateway_on(tmp_path, platform.url, herald) as gateway:
        platform.say("hall", "hi")
        await settled(gateway, "done")
        gateway.parts.access.moved_chats._set("line:bot:kitchen", "line:bot:hall")
        await herald("hello", "key")
        await settled(gateway, "done", "done")
        log = await gateway.parts.store.read(lambda c: read_messages(c, "line:bot:hall"))
    assert platform.answers("kitchen") == ["hello"]
    assert [message.text for _, message in log] == ["hi", "You said: hi", "hello"]
