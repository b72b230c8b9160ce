"""``ctx.questions``: asked once, answered once by those who may, and delivered until the handler returns."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from channels.telegram.fake import FakeTelegram
from gateway import Answer, Choice, NotFoundError, Plugin, PluginContext
from gateway.channel import Address, InvalidRequestError, Placed, SessionKey, UnauthorizedError
from gateway.contract.errors import ForbiddenError, InvalidStateError, OverloadedError, PluginError
from gateway.session.frames import ApprovalAsked, ApprovalResolved
from gateway.settings import ChannelRules
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.fake_models.server import FakeModels
from tests.e2e.gateway_process import GatewayProcess
from tests.gateway.access.test_questions import Brings, Room, rows

COLOURS = (Choice("red", "Red"), Choice("blue", "Blue"))
KITCHEN = written("x", channel="letters").address


LETTERS: dict[str, Any] = {"channels": {"letters": {"allow": "*"}}}


class Painter(Plugin):
    """Asks for colours, and keeps the ends of its questions. It fails as often as ``failures`` says."""

    name = "painter"
    ctx: PluginContext

    def __init__(self, name: str = "painter", failures: int = 0, listens: bool = True) -> None:
        self.name = name
        self.ended: list[Answer] = []
        self._failures = failures
        self._listens = listens
        self._news = asyncio.Condition()

    async def activate(self, ctx: PluginContext) -> None:
        self.ctx = ctx
        if self._listens:
            self.listen()

    def listen(self) -> None:
        assert self.ctx.questions is not None
        self.ctx.questions.on_answer(self._take)

    async def ask(self, key: str = "colour", **given: Any) -> str:
        assert self.ctx.questions is not None
        address = given.pop("address", KITCHEN)
        title = given.pop("title", "Which colour?")
        fields: dict[str, Any] = {"answerers": ["ada"], "choices": COLOURS, **given}
        return await self.ctx.questions.ask(address, title, key, **fields)

    async def withdraw(self, question_id: str) -> bool:
        assert self.ctx.questions is not None
        return await self.ctx.questions.withdraw(question_id)

    async def until_ended(self, number: int = 1) -> list[Answer]:
        async with asyncio.timeout(60), self._news:
            await self._news.wait_for(lambda: len(self.ended) >= number)
        return self.ended

    async def _take(self, answer: Answer) -> None:
        async with self._news:
            self.ended.append(answer)
            self._news.notify_all()
        if len(self.ended) <= self._failures:
            raise ConnectionError("the painter is not ready")


async def answered(chat: Chat, question_id: str, value: str = "red", user: str = "ada") -> None:
    await chat.host.settle(question_id, value, channel="letters", user=user)


async def test_who_is_an_admin_when_they_answer_may_answer_where_admins_may(tmp_path: Path) -> None:
    def letters(admin: str) -> dict[str, Any]:
        return {"channels": {"letters": {"allow": "*", "admins": [admin]}}}

    first, painter = Room(), Painter()
    async with chatting(tmp_path, Brings(first), painter, **letters("ada")) as chat:
        asked = [await painter.ask(key, answerers=[], admins=True) for key in ("one", "two")]
        await first.until_asked()
        await answered(chat, asked[0])
    async with chatting(tmp_path, Brings(Room()), Painter(), **letters("bob")) as chat:
        with pytest.raises(UnauthorizedError, match="only the user who was asked"):
            await answered(chat, asked[1])
        await answered(chat, asked[1], user="bob")


async def acknowledged(chat: Chat, number: int = 1) -> None:
    async with asyncio.timeout(60):
        while sum(bool(row["acknowledged"]) for row in await rows(chat)) < number:
            await asyncio.sleep(0.01)


async def test_an_answer_is_delivered_once_and_the_key_asks_once(tmp_path: Path) -> None:
    room, painter = Room(), Painter()
    async with chatting(tmp_path, Brings(room), painter, **LETTERS) as chat:
        asked = await painter.ask()
        shown = await room.until_asked()
        assert (shown.id, shown.title, shown.choices, shown.answerers) == (
            asked,
            "Which colour?",
            COLOURS,
            ("ada",),
        )
        assert await painter.ask(title="And now?") == asked
        with pytest.raises(UnauthorizedError, match="only the user who was asked"):
            await answered(chat, asked, user="eve")
        await answered(chat, asked)
        with pytest.raises(NotFoundError, match="answered already"):
            await answered(chat, asked, "blue")
        [answer] = await painter.until_ended()
        assert (answer.question_id, answer.key, answer.state) == (asked, "colour", "answered")
        assert (answer.values, answer.by) == (("red",), "letters:ada")
        assert await room.until_closed() == (asked, "red", Placed("m1", 50))
        await acknowledged(chat)
        assert await painter.ask() == asked
    again = Painter()
    async with chatting(tmp_path, Brings(Room()), again, **LETTERS) as chat:
        assert await again.ask() == asked
        assert await again.ask("other") != asked
        assert len(room.asked) == 1
    assert (len(painter.ended), again.ended) == (1, [])


async def test_a_question_with_its_own_id_as_plain_data_of_a_table(tmp_path: Path) -> None:
    room, painter = Room(), Painter()
    async with chatting(tmp_path, Brings(room), painter, **LETTERS) as chat:
        asked = await painter.ask(
            address={"channel": "letters", "chat": KITCHEN.chat, "reply_to": "m7"},
            choices=(),
            detail="of the door",
            multiple=False,
        )
        shown = await room.until_asked()
        assert (shown.detail, shown.takes_text, shown.address.reply_to) == ("of the door", True, None)
        await answered(chat, asked, "dark green")
        assert (await painter.until_ended())[0].values == ("dark green",)


async def test_a_handler_is_called_until_it_returns_also_after_a_restart(tmp_path: Path) -> None:
    room, first = Room(), Painter(failures=1_000_000)
    async with chatting(tmp_path, Brings(room), first, **LETTERS) as chat:
        asked = await first.ask()
        await room.until_asked()
        await answered(chat, asked)
        await first.until_ended(2)
    second = Painter(failures=1)
    async with chatting(tmp_path, Brings(Room()), second, **LETTERS) as chat:
        await second.until_ended(2)
        await acknowledged(chat)
    third = Painter()
    async with chatting(tmp_path, Brings(Room()), third, **LETTERS) as chat:
        later = await third.ask("later")
        await answered(chat, later)
        await third.until_ended()
    assert {answer.question_id for answer in first.ended + second.ended} == {asked}
    assert first.ended[0] == second.ended[-1]
    assert len(second.ended) == 2
    assert [answer.question_id for answer in third.ended] == [later]


async def test_an_answer_waits_for_a_plugin_without_a_handler(tmp_path: Path) -> None:
    room, silent = Room(), Painter(listens=False)
    async with chatting(tmp_path, Brings(room), silent, **LETTERS) as chat:
        asked = await silent.ask()
        await answered(chat, asked)
        await room.until_closed()
        silent.listen()
        assert (await silent.until_ended())[0].question_id == asked
        with pytest.raises(PluginError, match="has a handler of answers already"):
            silent.listen()


async def test_the_questions_of_two_plugins_are_apart(tmp_path: Path) -> None:
    room, one, two = Room(), Painter("one"), Painter("two")
    async with chatting(tmp_path, Brings(room), one, two, **LETTERS) as chat:
        first, second = await one.ask(), await two.ask()
        assert first != second
        assert not await two.withdraw(first)
        await answered(chat, first, "red")
        await answered(chat, second, "blue")
        assert [(await plugin.until_ended())[0].value for plugin in (one, two)] == ["red", "blue"]
        await acknowledged(chat, 2)
    assert (len(one.ended), len(two.ended)) == (1, 1)


async def test_a_withdrawn_question_takes_no_answer_and_its_handler_is_not_called(tmp_path: Path) -> None:
    room, painter = Room(), Painter()
    async with chatting(tmp_path, Brings(room), painter, **LETTERS) as chat:
        asked = await painter.ask()
        await room.until_asked()
        assert await painter.withdraw(asked)
        assert await room.until_closed() == (asked, "cancelled", Placed("m1", 50))
        with pytest.raises(NotFoundError, match="this question was withdrawn"):
            await answered(chat, asked)
        assert not await painter.withdraw(asked)
        assert not await painter.withdraw("unknown")
    again = Painter()
    async with chatting(tmp_path, Brings(Room()), again, **LETTERS) as chat:
        with pytest.raises(NotFoundError, match="this question was withdrawn"):
            await answered(chat, asked)
        other = await again.ask("other")
        await answered(chat, other)
        await again.until_ended()
    assert painter.ended == []
    assert [answer.question_id for answer in again.ended] == [other]


async def test_an_expired_question_is_an_outcome(tmp_path: Path) -> None:
    room, painter = Room(), Painter()
    async with chatting(tmp_path, Brings(room), painter, **LETTERS) as chat:
        asked = await painter.ask(timeout_ms=2_000)
        [ended] = await painter.until_ended()
        assert (ended.question_id, ended.state, ended.values, ended.outcome) == (
            asked,
            "expired",
            (),
            "timeout",
        )
        with pytest.raises(NotFoundError, match="this question has expired"):
            await answered(chat, asked)


async def test_a_question_that_the_channel_refuses_ends_withdrawn(tmp_path: Path) -> None:
    from gateway.channel import PlacementRefused

    class Refusing(Room):
        async def ask_question(self, question: Any) -> Placed:
            raise PlacementRefused("the bot may not write in this chat")

    painter = Painter()
    async with chatting(tmp_path, Brings(Refusing()), painter, **LETTERS) as chat:
        asked = await painter.ask()
        [ended] = await painter.until_ended()
        assert (ended.question_id, ended.state, ended.outcome) == (asked, "withdrawn", "cancelled")
        await acknowledged(chat)


async def test_a_question_comes_after_the_announcements_of_its_chat(tmp_path: Path) -> None:
    class Slow(Room):
        """Holds the message that it has to place first."""

        def __init__(self) -> None:
            super().__init__()
            self.order: list[str] = []
            self.opened = asyncio.Event()

        async def send(self, outbound: Any) -> Placed:
            await self.opened.wait()
            self.order.append(outbound.message.text)
            return await super().send(outbound)

        async def ask_question(self, question: Any) -> Placed:
            self.order.append(question.title)
            return await super().ask_question(question)

    room, painter = Slow(), Painter()
    async with chatting(tmp_path, Brings(room), painter, **LETTERS):
        assert painter.ctx.announce is not None
        await painter.ctx.announce(KITCHEN, "The wall is dry.", "dry")
        await painter.ask()
        room.opened.set()
        await room.until_asked()
    assert room.order == ["The wall is dry.", "Which colour?"]


async def test_the_page_shows_a_question_in_a_new_session(tmp_path: Path) -> None:
    painter = Painter()
    async with chatting(tmp_path, painter, channels={"websocket": {}}) as chat:
        asked = await painter.ask(address=Address("websocket", "", "home"))
        assert [row.id for row in await chat.gateway.parts.sessions.list()] == ["home"]
        watcher = await chat.watch("home")
        shown = await watcher.until(lambda frame: isinstance(frame, ApprovalAsked))
        assert (shown.approval_id, shown.title) == (asked, "Which colour?")
        await chat.host.settle(asked, "blue", session="home")
        ended = await watcher.until(lambda frame: isinstance(frame, ApprovalResolved))
        assert ended == ApprovalResolved(asked, "Blue")
        assert [(answer.value, answer.by) for answer in await painter.until_ended()] == [("blue", "owner")]


LONG = "x" * 2_000


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"address": Address("nowhere", "", "x")}, "there is no channel 'nowhere'"),
        ({"address": Address("test", "", "")}, "names no chat"),
        ({"address": {"channel": "letters", "chat": 5}}, "Expected `str`, got `int`"),
        ({"address": Address("mute", "", "x")}, "the channel 'mute' cannot show questions"),
        ({"key": ""}, "a key needs 1 to 512 characters"),
        ({"title": " "}, "a title needs 1 to 500 characters"),
        ({"title": LONG}, "a title needs 1 to 500 characters"),
        ({"detail": LONG}, "a detail has at most 1,000 characters"),
        ({"answerers": []}, "answerers names at least one id of a user"),
        ({"choices": [Choice(str(n)) for n in range(26)]}, "at most 25 choices"),
        ({"choices": [Choice("a"), Choice("a", "B")]}, "two choices have the same value"),
        ({"choices": [Choice("a", LONG)]}, "a label of at most 60"),
        ({"choices": [Choice(" ")]}, "a label of at most 60"),
        ({"choices": (), "multiple": True}, "multiple needs choices"),
        ({"timeout_ms": 0}, "between one second and five years"),
    ],
)
async def test_what_cannot_be_asked_is_refused_and_nothing_stored(
    tmp_path: Path, given: dict[str, Any], complaint: str
) -> None:
    from gateway.testing.letterbox import Letterbox

    mute, painter = Letterbox(), Painter()
    mute.id = "mute"
    async with chatting(tmp_path, Brings(Room()), painter, **LETTERS) as chat:
        chat.gateway.channels.register(mute)
        with pytest.raises(InvalidRequestError, match=complaint):
            await painter.ask(**given)
        assert await rows(chat) == []


async def test_a_user_without_access_is_asked_nothing(tmp_path: Path) -> None:
    painter = Painter()
    async with chatting(tmp_path, Brings(Room()), painter, **LETTERS) as chat:
        own = str(SessionKey("letters", KITCHEN.account, KITCHEN.chat))
        await chat.say("hello", channel="letters", session=own)
        asked = await painter.ask()
        chat.gateway.parts.access.policy._rules = lambda _channel: ChannelRules(allow=())  # type: ignore[assignment]
        with pytest.raises(UnauthorizedError, match="may not use the bot any more"):
            await answered(chat, asked)
        with pytest.raises(ForbiddenError, match="may not use the bot on letters"):
            await painter.ask("other")


async def test_a_plugin_has_a_limited_number_of_open_questions(tmp_path: Path) -> None:
    painter = Painter()
    async with chatting(tmp_path, Brings(Room()), painter, **LETTERS) as chat:
        first, *_ = await asyncio.gather(*(painter.ask(f"{number}") for number in range(1_000)))
        with pytest.raises(OverloadedError, match="1,000 questions of the plugin 'painter' are open"):
            await painter.ask("more")
        await answered(chat, first)
        await acknowledged(chat)
        await painter.ask("more")


async def test_a_question_during_activation_is_refused_and_one_of_a_task_waits(tmp_path: Path) -> None:
    class Early(Painter):
        async def activate(self, ctx: PluginContext) -> None:
            await super().activate(ctx)
            assert ctx.tasks is not None
            ctx.tasks.create_task(self.ask("task"))
            with pytest.raises(InvalidStateError, match="ask from a task of"):
                await self.ask("activate")

    room = Room()
    async with chatting(tmp_path, Brings(room), Early(), **LETTERS):
        assert (await room.until_asked()).key == "task"


PLUGIN = '''
import asyncio, os, pathlib
from gateway import Choice, Plugin

class Painter(Plugin):
    """Asks at the command, and does not return from its first answer in a process with the file."""
    name = "painter"

    async def activate(self, ctx):
        self.ctx = ctx
        ctx.questions.on_answer(self._take)

    def commands(self):
        from gateway import SlashCommand
        return [SlashCommand("paint", "Ask for a colour", self._paint)]

    async def _paint(self, rest, command):
        choices = [Choice("red", "Red"), Choice("blue", "Blue")]
        given = {"answerers": [command.sender.id], "choices": choices}
        await self.ctx.questions.ask(command.inbound.address, "Which colour?", rest, **given)
        return "asked"

    async def _take(self, answer):
        with open("answers", "a") as file:
            file.write(f"{answer.key} {answer.value} {answer.by}\\n")
        while os.path.exists("busy"):
            await asyncio.sleep(0.01)
'''


@pytest.mark.slow
async def test_a_killed_gateway_delivers_an_answer_until_its_handler_has_returned(tmp_path: Path) -> None:
    answers = tmp_path / "answers"

    def lines() -> list[str]:
        return answers.read_text().splitlines() if answers.exists() else []

    async def until(true: Any) -> None:
        async with asyncio.timeout(60):
            while not true():
                await asyncio.sleep(0.02)

    (tmp_path / "painter.py").write_text(PLUGIN + "\nplugin = Painter()\n")
    (tmp_path / "busy").touch()
    async with FakeTelegram() as telegram, FakeModels() as models:
        chat = telegram.private("Ada")

        def buttons() -> list[int]:
            return [message.id for message in telegram.messages(chat) if message.buttons]

        settings = (
            '[plugins]\nenabled = ["painter"]\n'
            f'[channels.telegram]\ntoken = "{telegram.token}"\napi_base_url = "{telegram.url}"\nallow = "*"\n'
        )
        async with GatewayProcess(tmp_path, models.openai_url, settings) as gateway:
            assert await gateway.start()
            telegram.say(chat, "/paint wall")
            await until(lambda: buttons() and "asked" in telegram.answers(chat))
            # Answered, and killed while the handler has the answer; twice.
            telegram.press(chat, buttons()[0], "Blue")
            await until(lambda: len(lines()) == 1)
            for number in (2, 3):
                await gateway.stop(signal.SIGKILL)
                if number == 3:
                    (tmp_path / "busy").unlink()
                assert await gateway.start()
                await until(lambda number=number: len(lines()) == number)
            # The handler has returned: no later process calls it with this answer.
            telegram.say(chat, "/paint door")
            await until(buttons)
            telegram.press(chat, buttons()[0], "Red")
            await until(lambda: len(lines()) == 4)
            assert await gateway.stop() == 0
            assert await gateway.start()
            telegram.say(chat, "/paint roof")
            await until(buttons)
            telegram.press(chat, buttons()[0], "Red")
            await until(lambda: len(lines()) == 5)
            assert await gateway.stop() == 0
        user = lines()[0].rpartition(" ")[2]
        assert lines() == [f"wall blue {user}"] * 3 + [f"door red {user}", f"roof red {user}"]
        telegram.transcript.check()
