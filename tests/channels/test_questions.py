"""General questions on each platform: asked, answered once by those who may, ended, also over a restart."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy import create_engine, select, update

from channels.discord.fake import Message as DiscordMessage
from gateway import Answer, Choice, CommandContext, Plugin, PluginContext, SlashCommand
from gateway.app import Gateway
from gateway.channel import Address, InvalidRequestError
from gateway.settings import Settings
from gateway.store import schema as t
from gateway.testing.contracts.channel_platform import Platform, settled, until
from gateway.testing.fake_models.script import ModelRequest, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from tests.channels.discord.test_contract import DiscordPlatform
from tests.channels.email.test_contract import EmailPlatform
from tests.channels.slack.test_contract import SlackPlatform
from tests.channels.telegram.test_contract import TelegramPlatform

pytestmark = pytest.mark.slow

COLOURS = [Choice("red", "Red", style="good"), Choice("blue", "Blue", "as the sky"), Choice("green", "Green")]


class Painter(Plugin):
    """``/paint`` tells it the chat and its user; it keeps the ends of its questions."""

    name = "painter"
    ctx: PluginContext

    def __init__(self) -> None:
        self.places: list[tuple[Address, str]] = []
        self.ended: list[Answer] = []

    async def activate(self, ctx: PluginContext) -> None:
        self.ctx = ctx
        assert ctx.questions is not None
        ctx.questions.on_answer(self._take)

    def commands(self) -> list[SlashCommand]:
        return [SlashCommand("paint", "Paint here", self._paint)]

    async def ask(self, place: tuple[Address, str], key: str = "colour", **given: Any) -> str:
        assert self.ctx.questions is not None
        address, user = place
        fields: dict[str, Any] = {"answerers": [user], "choices": COLOURS, **given}
        return await self.ctx.questions.ask(address, "Which <b>*colour*</b>?", key, **fields)

    async def withdraw(self, question_id: str) -> None:
        assert self.ctx.questions is not None
        assert await self.ctx.questions.withdraw(question_id)

    async def _paint(self, rest: str, command: CommandContext) -> str:
        self.places.append((command.inbound.address, command.sender.id))
        return "ready"

    async def _take(self, answer: Answer) -> None:
        self.ended.append(answer)


class Desk(ABC):
    """What people do with questions on a platform: in Ada's private chat, or in a room with others."""

    name: ClassVar[str]
    platform: Any

    @abstractmethod
    def say(self, text: str, *, room: bool = False, reply_to: Any = None) -> Any:
        """Write as Ada."""

    @abstractmethod
    def threads(self) -> list[Callable[[str], Any]]:
        """Open two threads of one room, which share a session. Each function writes in one of them as Ada."""

    @abstractmethod
    def prompts(self, *, room: bool = False) -> list[tuple[Any, list[str]]]:
        """Return the messages with buttons, and the labels of these."""

    @abstractmethod
    def texts(self, *, room: bool = False) -> list[str]:
        """Return all that the bot's messages show."""

    @abstractmethod
    def press(self, key: Any, label: str, *, room: bool = False, other: bool = False) -> Callable[[], str]:
        """Press a button, also one that is gone by now. The result returns what the bot told this person."""


class Telegram(Desk):
    name = "telegram"

    def __init__(self) -> None:
        self.platform = TelegramPlatform()
        self._buttons: dict[int, Mapping[str, Any]] = {}

    def _chat(self, room: bool) -> int:
        return self.platform.room if room else self.platform.chat

    def say(self, text: str, *, room: bool = False, reply_to: Any = None) -> Any:
        said = f"@fake_bot {text}" if room and not text.startswith("/") else text
        return self.platform.fake.say(self._chat(room), said, "Ada", reply_to=reply_to)

    def threads(self) -> list[Callable[[str], Any]]:
        fake = self.platform.fake
        forum = fake.group("Forum", "Ada", forum=True, admin=True)
        topics = [fake.topic(forum, name, "Ada") for name in ("News", "Talk")]
        return [lambda text, at=at: fake.say(forum, f"@fake_bot {text}", "Ada", thread=at) for at in topics]

    def prompts(self, *, room: bool = False) -> list[tuple[Any, list[str]]]:
        found = [one for one in self.platform.fake.messages(self._chat(room)) if one.buttons]
        self._buttons |= {one.id: one.markup or {} for one in found}
        return [(one.id, [button["text"] for button in one.buttons]) for one in found]

    def texts(self, *, room: bool = False) -> list[str]:
        return self.platform.fake.answers(self._chat(room))

    def press(self, key: Any, label: str, *, room: bool = False, other: bool = False) -> Callable[[], str]:
        fake, chat = self.platform.fake, self._chat(room)
        message, shown = fake.chat(chat).messages[key], fake.chat(chat).messages[key].markup
        fake.world.change(message, markup=self._buttons[key])
        query = fake.press(chat, key, label, "Ben" if other else "Ada")
        fake.world.change(fake.chat(chat).messages[key], markup=shown)
        return lambda: "" if query.answer is None else str(query.answer.get("text", ""))


class Discord(Desk):
    name = "discord"

    def __init__(self) -> None:
        self.platform = DiscordPlatform()
        self._shown: dict[int, DiscordMessage] = {}

    def _chat(self, room: bool) -> Any:
        return "general" if room else self.platform.chat

    def say(self, text: str, *, room: bool = False, reply_to: Any = None) -> Any:
        said = f"{self.platform.fake.mention} {text}" if room else text
        return self.platform.fake.say(self._chat(room), said, reply_to=reply_to)

    def threads(self) -> list[Callable[[str], Any]]:
        fake = self.platform.fake
        keys = [fake.start_thread("general", name) for name in ("news", "talk")]
        return [lambda text, at=at: fake.say(at, f"{fake.mention} {text}") for at in keys]

    def _messages(self, room: bool) -> list[DiscordMessage]:
        fake = self.platform.fake
        return [one for one in fake.messages(self._chat(room)) if one.author == fake.bot_id]

    def prompts(self, *, room: bool = False) -> list[tuple[Any, list[str]]]:
        found = [one for one in self._messages(room) if one.components]
        self._shown |= {one.id: one for one in found}
        return [(one.id, [*_labels(one)]) for one in found]

    def texts(self, *, room: bool = False) -> list[str]:
        return [one.content for one in self._messages(room) if not one.ephemeral]

    def press(self, key: Any, label: str, *, room: bool = False, other: bool = False) -> Callable[[], str]:
        fake = self.platform.fake
        before = {one.id for one in self._messages(room) if one.ephemeral}
        history = fake._world.messages[fake.channel(self._chat(room)).id]
        now, history[key] = history[key], self._shown[key]
        fake.press(self._chat(room), key, _labels(self._shown[key])[label], "bob" if other else "ada")
        history[key] = now

        def told() -> str:
            found = [one.content for one in self._messages(room) if one.ephemeral and one.id not in before]
            return next(iter(found), "")

        return told


def _labels(message: DiscordMessage) -> dict[str, str]:
    buttons = [button for row in message.components for button in row["components"]]
    return {button["label"]: button["custom_id"] for button in buttons}


class Slack(Desk):
    name = "slack"

    def __init__(self) -> None:
        self.platform = SlackPlatform()
        self._raw: dict[str, Any] = {}

    def _chat(self, room: bool) -> str:
        return "general" if room else "@ada"

    def say(self, text: str, *, room: bool = False, reply_to: Any = None) -> Any:
        said = f"@trunkline {text}" if room else text
        return self.platform.fake.say(self._chat(room), said, thread=reply_to)

    def threads(self) -> list[Callable[[str], Any]]:
        fake = self.platform.fake
        roots = [fake.say("general", name) for name in ("news", "talk")]
        return [lambda text, at=at: fake.say("general", f"@trunkline {text}", thread=at) for at in roots]

    def prompts(self, *, room: bool = False) -> list[tuple[Any, list[str]]]:
        found: list[tuple[Any, list[str]]] = []
        for one in self.platform.fake.messages(self._chat(room)):
            rows = [block for block in one.raw.get("blocks", ()) if block["type"] == "actions"]
            if rows:
                found.append((one.ts, [button["text"]["text"] for button in rows[0]["elements"]]))
                self._raw[one.ts] = one.raw
        return found

    def texts(self, *, room: bool = False) -> list[str]:
        shown = [one.raw for one in self.platform.fake.messages(self._chat(room)) if one.bot]
        return [json.dumps(one, ensure_ascii=False) for one in shown]

    def press(self, key: Any, label: str, *, room: bool = False, other: bool = False) -> Callable[[], str]:
        fake, chat, user = self.platform.fake, self._chat(room), "bob" if other else "ada"
        known = len(fake.hidden(chat, user))
        messages = fake.chat(chat).messages
        now, messages[key] = messages[key], self._raw[key]
        fake.press(chat, key, label, user)
        messages[key] = now
        return lambda: next((said.text for said in fake.hidden(chat, user)[known:]), "")


DESKS: list[type[Desk]] = [Telegram, Discord, Slack]


@pytest.fixture(params=DESKS, ids=lambda desk: desk.name)
def desk(request: pytest.FixtureRequest) -> Desk:
    return request.param()


@asynccontextmanager
async def opened(desk: Desk, models: FakeModels | None = None) -> AsyncGenerator[FakeModels]:
    """Start the platform and a model server, and check the rules of the platform at the end."""
    async with desk.platform, models or FakeModels() as answering:
        yield answering
        desk.platform.check()


@asynccontextmanager
async def running(
    desk: Desk | Platform, models: FakeModels, directory: Path, *plugins: Plugin, **more: Any
) -> AsyncGenerator[Gateway]:
    platform = desk if isinstance(desk, Platform) else desk.platform
    given = {
        "data_dir": directory,
        "model": "openai/fake-small",
        "providers": {"openai": {"base_url": models.openai_url, "api_key": "k", "max_retries": 0}},
        "channels": {desk.name: {**platform.settings(), "envelope": "off"}},
        "permissions": {"*": "allow"},
        **more,
    }
    gateway = Gateway(Settings.model_validate(given), plugins=plugins)
    async with gateway.running():
        async with asyncio.timeout(60):
            await platform.connected(gateway, "")
        yield gateway


async def place(desk: Desk, painter: Painter, *, room: bool = False) -> tuple[Address, str]:
    """Return the address of a chat, and Ada's id, as her command has them."""
    desk.say("/paint", room=room)
    await until(lambda: painter.places)
    await until(lambda: any("ready" in text for text in desk.texts(room=room)) or room)
    return painter.places[-1]


async def prompt(desk: Desk, *, room: bool = False) -> tuple[Any, list[str]]:
    await until(lambda: desk.prompts(room=room))
    return desk.prompts(room=room)[-1]


async def test_a_button_answers_once_and_only_for_the_user_who_was_asked(desk: Desk, tmp_path: Path) -> None:
    """In a room: another person, Ada, and then her second device that still shows the buttons."""
    painter = Painter()
    async with opened(desk) as models, running(desk, models, tmp_path, painter) as gateway:
        there = await place(desk, painter, room=True)
        await settled(gateway)
        await painter.ask(there)
        key, labels = await prompt(desk, room=True)
        assert labels == ["Red", "Blue", "Green"]
        assert any("as the sky" in text for text in desk.texts(room=True))
        told = desk.press(key, "Blue", room=True, other=True)
        await until(told)
        assert "was asked" in told()
        assert painter.ended == []
        desk.press(key, "Red", room=True)
        await until(lambda: painter.ended)
        await until(lambda: not desk.prompts(room=True))
        again = desk.press(key, "Green", room=True)
        await until(again)
        assert again() == "This question was answered already."
        assert [answer.values for answer in painter.ended] == [("red",)]
        assert painter.ended[0].by == f"{desk.name}:{there[1]}"
        shown = [text for text in desk.texts(room=True) if "*colour*" in text or "\\*colour" in text]
        assert len(shown) == 1
        assert "Red" in shown[0]


@pytest.mark.parametrize("end", ["expires", "is withdrawn"])
async def test_a_question_that_ended_shows_it_and_takes_no_answer(
    desk: Desk, tmp_path: Path, end: str
) -> None:
    painter = Painter()
    async with opened(desk) as models, running(desk, models, tmp_path, painter):
        there = await place(desk, painter)
        asked = await painter.ask(there, timeout_ms=3_000 if end == "expires" else 600_000)
        key, _ = await prompt(desk)
        if end == "expires":
            await until(lambda: painter.ended)
            assert painter.ended[0].state == "expired"
        else:
            await painter.withdraw(asked)
        await until(lambda: not desk.prompts())
        late = desk.press(key, "Red")
        await until(late)
        expected = {"expires": "This question has expired.", "is withdrawn": "This question was withdrawn."}
        assert late() == expected[end]
        desk.say("Red")
        await until(lambda: models.requests)
    assert [answer.state for answer in painter.ended] == (["expired"] if end == "expires" else [])


async def test_a_question_keeps_its_buttons_over_a_restart(desk: Desk, tmp_path: Path) -> None:
    first, second = Painter(), Painter()
    async with opened(desk) as models:
        async with running(desk, models, tmp_path, first) as gateway:
            asked = await first.ask(await place(desk, first))
            key, _ = await prompt(desk)
            questions = gateway.parts.questions
            await until(lambda: questions._held[asked].shown)
        assert [one for one, _ in desk.prompts()] == [key]
        async with running(desk, models, tmp_path, second):
            assert [one for one, _ in desk.prompts()] == [key]
            desk.press(key, "Blue")
            await until(lambda: second.ended)
            await until(lambda: not desk.prompts())
    assert [(answer.question_id, answer.values) for answer in second.ended] == [(asked, ("blue",))]


async def test_the_buttons_of_a_question_that_is_not_stored_go_at_the_first_press(
    desk: Desk, tmp_path: Path
) -> None:
    first, second = Painter(), Painter()
    async with opened(desk) as models:
        async with running(desk, models, tmp_path / "lost", first) as gateway:
            asked = await first.ask(await place(desk, first))
            key, _ = await prompt(desk)
            await until(lambda: gateway.parts.questions._held[asked].shown)
        async with running(desk, models, tmp_path / "new", second):
            desk.press(key, "Blue")
            await until(lambda: not desk.prompts())
            assert any("colour" in text for text in desk.texts())
    assert second.ended == []


@pytest.mark.parametrize("restart", [False, True])
async def test_slack_has_a_question_once_though_its_response_was_lost(tmp_path: Path, restart: bool) -> None:
    """Also if the process that posted it had a clock that was an hour ahead."""
    desk, painter, second = Slack(), Painter(), Painter()
    async with opened(desk) as models:
        async with running(desk, models, tmp_path, painter) as gateway:
            there = await place(desk, painter)
            await settled(gateway)
            desk.platform.fake.then("drop_after", method="chat.postMessage")
            asked = await painter.ask(there)
            key, _ = await prompt(desk)
            questions = gateway.parts.questions
            await until(lambda: restart or questions._held[asked].shown)
        created_at = questions._held[asked].question.created_at
        with create_engine(f"sqlite:///{tmp_path}/trunkline.db").begin() as connection:
            body = connection.execute(select(t.question.c.body).where(t.question.c.id == asked)).scalar_one()
            body = body.replace(str(created_at), str(created_at + 3_600_000))
            connection.execute(update(t.question).where(t.question.c.id == asked).values(body=body))
        async with running(desk, models, tmp_path, second) as gateway:
            held = gateway.parts.questions._held[asked]
            await until(lambda: held.shown)
            assert [one for one, _ in desk.prompts()] == [key]
            desk.press(key, "Blue")
            await until(lambda: second.ended)
            await until(lambda: not desk.prompts())


async def test_several_choices_and_free_texts_are_typed(desk: Desk, tmp_path: Path) -> None:
    painter = Painter()
    async with opened(desk) as models, running(desk, models, tmp_path, painter) as gateway:
        there = await place(desk, painter)
        await settled(gateway)
        cases: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
            ({"multiple": True}, "1, Green", ("red", "green")),
            ({"free_text": True}, "dark grey", ("dark grey",)),
            ({"choices": ()}, "ochre & <i>gold</i>", ("ochre & <i>gold</i>",)),
            ({}, "blue", ("blue",)),
        ]
        for number, (given, text, values) in enumerate(cases, 1):
            asked = await painter.ask(there, f"{number}", **given)
            await until(lambda asked=asked: gateway.parts.questions._held[asked].shown)
            assert bool(desk.prompts()) == (given.get("choices") is None and "multiple" not in given)
            desk.say(text)
            await until(lambda number=number: len(painter.ended) == number)
            assert painter.ended[-1].values == values
            await until(lambda: not desk.prompts())
        assert not models.requests, "an answer is not a message to the model"


async def test_a_text_of_another_thread_is_not_an_answer(desk: Desk, tmp_path: Path) -> None:
    """Though both threads continue one session."""
    asking = Reply((Use("question", json.dumps({"questions": QUESTIONS[:1]})),), "tools")
    async with opened(desk) as models:
        settings = {**desk.platform.settings(), "envelope": "off", "session_strategy": "chat"}
        async with running(desk, models, tmp_path, channels={desk.name: settings}) as gateway:
            here, there = desk.threads()
            models.then(asking, Reply((Say("Blue, then."),)), Reply((Say("A message, too."),)))
            here("go")
            await until(lambda: any(held.shown for held in gateway.parts.questions._held.values()))
            [held] = gateway.parts.questions._held.values()
            there("blue")
            await until(lambda: gateway.counters.accepted.total() == 2)
            assert held.is_open
            here("blue")
            await until(lambda: len(models.requests) == 3)
            assert held.answer is not None
            assert held.answer.values == ("2",)


@pytest.mark.usefixtures("dovecot_path")
async def test_a_mail_cannot_ask_and_the_model_gets_an_error(tmp_path: Path) -> None:
    painter, mails = Painter(), EmailPlatform()
    used = Use("question", json.dumps({"questions": [{"header": "Name", "question": "Which name?"}]}))
    async with mails, FakeModels() as models, running(mails, models, tmp_path, painter) as gateway:
        mails.write("/paint")
        await until(lambda: painter.places)
        with pytest.raises(InvalidRequestError, match="the channel 'email' cannot show questions"):
            await painter.ask(painter.places[0])
        models.then(Reply((used,), "tools"), Reply((Say("Then I choose."),)))
        mails.write("go")
        await until(lambda: any("Then I choose." in text for text in mails.shown()))
        await settled(gateway)
        assert "the user cannot be asked here" in models.requests[-1].results[-1]
        mails.check()


QUESTIONS: list[dict[str, Any]] = [
    {"header": "Colour", "question": "Which colour?", "options": [{"label": "Red"}, {"label": "Blue"}]},
    {
        "header": "Rooms",
        "question": "Which rooms?",
        "options": [
            {"label": "Hall"},
            {"label": "Attic", "description": "under the roof"},
            {"label": "Bath"},
        ],
        "multiple": True,
    },
    {"header": "Name", "question": "Which name?"},
    {
        "header": "Long",
        "question": "Which of these? " + "Think! " * 65,
        "options": [{"label": f"{number} {'x' * 57}", "description": "*why* " * 33} for number in range(10)],
        "custom": False,
    },
]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
async def test_the_model_asks_one_to_four_questions(desk: Desk, tmp_path: Path, count: int) -> None:
    """By buttons and typed texts. The last one is as long as the tool allows."""

    def answer(request: ModelRequest) -> Reply:
        if request.results:
            return Reply((Say("Thank you."),))
        return Reply((Use("question", json.dumps({"questions": QUESTIONS[:count]})),), "tools")

    async with opened(desk, FakeModels(answer)) as models, running(desk, models, tmp_path) as gateway:
        desk.say("go")
        key, labels = await prompt(desk)
        assert labels == ["Red", "Blue", "Decline"]
        desk.press(key, "Blue")
        for number, typed in enumerate(("1, 3", "Ada", "")[: count - 1], 2):
            await until(lambda number=number: len(gateway.parts.questions._held) == number)
            held = [*gateway.parts.questions._held.values()][-1]
            await until(lambda held=held: held.shown or held.answer)
            if typed:
                desk.say(typed)
            else:
                key, labels = await prompt(desk)
                assert len(labels) == 11
                desk.press(key, labels[9])
        await until(lambda: any("Thank you." in text for text in desk.texts()))
        await settled(gateway)
        assert not desk.prompts()
        expected = ["Colour: Blue", "Rooms: Hall, Bath", "Name: Ada", f"Long: 9 {'x' * 57}"]
        assert models.requests[-1].results[-1] == "\n".join(expected[:count])
