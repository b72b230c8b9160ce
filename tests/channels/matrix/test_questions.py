"""Questions in rooms without buttons: answered with words, numbers and texts, by those who were asked."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.testing.contracts.channel_platform import settled, until
from gateway.testing.fake_models.script import ModelRequest, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from tests.channels.matrix.test_contract import BOT, MatrixPlatform
from tests.channels.test_questions import QUESTIONS, Desk, Painter, opened, place, running
from tests.small_plugins import Shell

pytestmark = pytest.mark.slow


class Open(MatrixPlatform):
    """All may use the bot."""

    def settings(self) -> Any:
        return {**super().settings(), "allow": "*"}


class Matrix(Desk):
    name = "matrix"

    def __init__(self) -> None:
        self.platform = Open()

    def say(self, text: str, *, room: bool = False, reply_to: Any = None, user: str = "ada") -> Any:
        fake = self.platform.fake
        content: dict[str, Any] = {"m.mentions": {"user_ids": [BOT]} if room and reply_to is None else {}}
        if reply_to is not None:
            content["m.relates_to"] = {"m.in_reply_to": {"event_id": reply_to}}
        return fake.say(text, user=user, room=fake.room if room else fake.direct, **content)

    def threads(self) -> list[Callable[[str], Any]]:
        raise AssertionError("threads of Matrix have sessions of their own")

    def prompts(self, *, room: bool = False) -> list[tuple[Any, list[str]]]:
        return []

    def texts(self, *, room: bool = False) -> list[str]:
        return [*(self.platform.shown_in_room() if room else self.platform.shown())]

    def press(self, key: Any, label: str, *, room: bool = False, other: bool = False) -> Callable[[], str]:
        raise AssertionError("Matrix has no buttons")


async def test_a_word_number_or_text_answers_and_the_message_shows_the_outcome(tmp_path: Path) -> None:
    desk, painter = Matrix(), Painter()
    async with opened(desk) as models, running(desk, models, tmp_path, painter) as gateway:
        there = await place(desk, painter)
        await settled(gateway)
        cases: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
            ({}, "2", ("blue",)),
            ({}, "Red!", ("red",)),
            ({"multiple": True}, "1, Green", ("red", "green")),
            ({"choices": ()}, "ochre & <i>gold</i>", ("ochre & <i>gold</i>",)),
        ]
        for number, (given, text, values) in enumerate(cases, 1):
            asked = await painter.ask(there, f"{number}", **given)
            await until(lambda asked=asked: gateway.parts.questions._held[asked].shown)
            assert desk.texts()[-1].startswith("Which <b>*colour*</b>?\n\n")
            assert ("2. Blue: as the sky" in desk.texts()[-1]) == (given.get("choices") is None)
            desk.say(text)
            await until(lambda number=number: len(painter.ended) == number)
            assert painter.ended[-1].values == values
            shown = f"Which <b>*colour*</b>?\n\n✅ {'Red, Green' if len(values) > 1 else ''}".rstrip()
            await until(lambda shown=shown: desk.texts()[-1].startswith(shown))
        assert not models.requests
        html = desk.platform.fake.direct.shown(BOT)[-1]["formatted_body"]
        assert html == (
            "<p><strong>Which &lt;b&gt;*colour*&lt;/b&gt;?</strong></p>"
            "<p>✅ ochre &amp; &lt;i&gt;gold&lt;/i&gt;</p>"
        )


async def test_in_a_room_only_a_reply_or_mention_of_the_user_who_was_asked_answers(tmp_path: Path) -> None:
    desk, painter = Matrix(), Painter()
    async with opened(desk) as models, running(desk, models, tmp_path, painter) as gateway:
        there = await place(desk, painter, room=True)
        await settled(gateway)
        asked = await painter.ask(there)
        questions = gateway.parts.questions
        await until(lambda: questions._held[asked].shown)
        shown = questions._held[asked].shown
        assert shown is not None
        desk.say("1", room=True, reply_to=shown.platform_id, user="ben")
        await until(lambda: models.requests)
        await settled(gateway)
        assert painter.ended == []
        desk.say("3", room=True, reply_to=shown.platform_id)
        await until(lambda: painter.ended)
        assert painter.ended[0].values == ("green",)
        assert len(models.requests) == 1


@pytest.mark.parametrize("end", ["expires", "is withdrawn"])
async def test_a_question_that_ended_takes_no_answer(tmp_path: Path, end: str) -> None:
    desk, painter = Matrix(), Painter()
    async with opened(desk) as models, running(desk, models, tmp_path, painter) as gateway:
        there = await place(desk, painter)
        await settled(gateway)
        asked = await painter.ask(there, timeout_ms=3_000 if end == "expires" else 600_000)
        await until(lambda: len(desk.texts()) == 2)
        if end == "expires":
            await until(lambda: painter.ended)
        else:
            await painter.withdraw(asked)
        outcome = "⌛ No answer in time" if end == "expires" else "⏹ No longer needed"
        await until(lambda: desk.texts()[-1].endswith(outcome))
        desk.say("1")
        await until(lambda: desk.texts()[-1] == "You said: 1")
    assert [answer.state for answer in painter.ended] == (["expired"] if end == "expires" else [])


async def test_a_question_is_answered_after_a_restart_and_sent_once(tmp_path: Path) -> None:
    desk, first, second = Matrix(), Painter(), Painter()
    async with opened(desk) as models:
        async with running(desk, models, tmp_path, first) as gateway:
            there = await place(desk, first)
            await settled(gateway)
            desk.platform.fail("drop_after")
            asked = await first.ask(there)
            await until(lambda: gateway.parts.questions._held[asked].shown)
        async with running(desk, models, tmp_path, second):
            assert len(desk.texts()) == 2
            desk.say("blue")
            await until(lambda: second.ended)
    assert [(answer.question_id, answer.values) for answer in second.ended] == [(asked, ("blue",))]


async def test_a_question_whose_place_a_crash_lost_is_answered_by_a_text(tmp_path: Path) -> None:
    """The position of /sync is behind the question, so no answer of the homeserver has it any more."""
    desk, first, second = Matrix(), Painter(), Painter()

    def run(statement: str) -> list[Any]:
        with sqlite3.connect(tmp_path / "trunkline.db") as database:
            rows = database.execute(statement).fetchall()
        database.close()
        return rows

    async with opened(desk) as models:
        async with running(desk, models, tmp_path, first) as gateway:
            there = await place(desk, first)
            asked = await first.ask(there)
            await until(lambda: gateway.parts.questions._held[asked].shown)
            behind = f"s{desk.platform.fake.position}"
            await until(lambda: behind in run("select value from cursor where channel = 'matrix'")[0][0])
        run("update question set shown = ''")
        sent = len(desk.platform.fake.transcript.of("send"))
        async with running(desk, models, tmp_path, second) as gateway:
            await until(lambda: len(desk.platform.fake.transcript.of("send")) > sent)
            await settled(gateway)
            desk.say("blue")
            await until(lambda: second.ended)
    assert [(answer.question_id, answer.values) for answer in second.ended] == [(asked, ("blue",))]


@pytest.mark.parametrize(
    ("word", "ran", "outcome"),
    [("yes", 1, "✅ Allowed once"), ("no", 0, "❌ Denied"), ("always", 1, "✅ Always allowed")],
)
async def test_a_word_decides_about_a_tool(tmp_path: Path, word: str, ran: int, outcome: str) -> None:
    desk, shell = Matrix(), Shell()
    settings = {"permissions": {"shell": "ask"}}
    async with opened(desk) as models, running(desk, models, tmp_path, shell, **settings) as gateway:
        models.then(Reply((Use("shell", '{"command": "ls <x>"}'),), "tools"))
        desk.say("go")
        questions = gateway.parts.questions
        await until(lambda: [one for one in questions._held.values() if one.shown])
        asked = next(text for text in desk.texts() if "May I run shell?" in text)
        assert '"command": "ls <x>"' in asked
        assert asked.endswith("Reply with one of these words.")
        desk.say(word)
        await until(lambda: any(text.endswith(outcome) for text in desk.texts()))
        await settled(gateway)
    assert len(shell.ran) == ran


async def test_the_model_asks_four_questions(tmp_path: Path) -> None:
    def answer(request: ModelRequest) -> Reply:
        if request.results:
            return Reply((Say("Thank you."),))
        return Reply((Use("question", json.dumps({"questions": QUESTIONS})),), "tools")

    desk = Matrix()
    async with opened(desk, FakeModels(answer)) as models, running(desk, models, tmp_path) as gateway:
        desk.say("go")
        for number, typed in enumerate(("blue", "1, 3", "Ada", "10"), 1):
            await until(lambda number=number: len(gateway.parts.questions._held) == number)
            held = [*gateway.parts.questions._held.values()][-1]
            await until(lambda held=held: held.shown)
            desk.say(typed)
        await until(lambda: any("Thank you." in text for text in desk.texts()))
        await settled(gateway)
        expected = ["Colour: Blue", "Rooms: Hall, Bath", "Name: Ada", f"Long: 9 {'x' * 57}"]
        assert models.requests[-1].results[-1] == "\n".join(expected)
