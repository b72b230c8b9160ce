"""Feedback buttons under answers: what is pressed is stored before Slack gets the response."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from channels.slack.fake import FakeSlack
from channels.slack.fake.people import ShownMessage
from channels.slack.render import Text, pages
from gateway import ErrorPart, ImagePart, Message, TextPart
from gateway.app import Gateway
from gateway.delivery.feedback import read_feedback
from gateway.testing.fake_models.script import Gate, Reply, Say
from gateway.testing.fake_models.server import FakeModels
from tests.channels.slack.gateways import gateway_at, settled

pytestmark = pytest.mark.slow

GOOD, BAD = "Good answer", "Bad answer"


def has_buttons(shown: ShownMessage) -> bool:
    return [block["type"] for block in shown.raw["blocks"]].count("context_actions") == 1


async def kept(gateway: Gateway) -> set[tuple[str, str]]:
    records = await gateway.parts.store.read(lambda c: read_feedback(c, 10))
    return {(one.user_id, one.value) for one in records}


@pytest.mark.parametrize("chat", ["@ada", "general"])
@pytest.mark.parametrize("mode", ["socket", "http"])
async def test_a_press_is_stored_when_slack_is_answered(tmp_path: Path, chat: str, mode: str) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path, mode=mode) as gateway:
        ada, ben = fake.user("ada").id, fake.user("ben").id
        fake.say(chat, "hello @trunkline")
        await settled(gateway, "done")
        answer = fake.messages(chat)[-1]
        assert has_buttons(answer)
        assert (await fake.press(chat, answer.ts, GOOD).settled()).acknowledged
        assert await kept(gateway) == {(ada, "up")}
        await fake.press(chat, answer.ts, BAD).settled()
        await fake.press(chat, answer.ts, GOOD, "ben").settled()
        assert await kept(gateway) == {(ada, "down"), (ben, "up")}
        assert gateway.counters.feedback == {("slack", "up"): 2, ("slack", "down"): 1}
    fake.transcript.check()


async def test_of_two_presses_at_once_the_later_one_counts(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        fake.say("@ada", "hello")
        await settled(gateway, "done")
        answer = fake.messages("@ada")[-1]
        for _ in range(10):
            pressed = [fake.press("@ada", answer.ts, label) for label in (GOOD, BAD)]
            for one in pressed:
                await one.settled()
            assert await kept(gateway) == {(fake.user("ada").id, "down")}
    fake.transcript.check()


async def test_presses_of_others_and_on_answers_that_are_gone_are_ignored(tmp_path: Path) -> None:
    async with FakeSlack() as fake:
        allowed = fake.user("ada").id
        async with gateway_at(fake, tmp_path, allow=[allowed]) as gateway:
            fake.say("general", "hello @trunkline")
            await settled(gateway, "done")
            answer = fake.messages("general")[-1]
            assert (await fake.press("general", answer.ts, GOOD, "eve").settled()).acknowledged
            late = fake.press("general", answer.ts, GOOD)
            await late.settled()
            assert await kept(gateway) == {(allowed, "up")}
            other = {**late.payload, "container": {**late.payload["container"], "message_ts": "1.000000"}}
            odd = {**late.payload, "actions": [{**late.payload["actions"][0], "value": "sideways"}]}
            for payload in (other, odd):
                delivered = fake.deliver_raw(payload)
                await fake.until(lambda delivered=delivered: delivered.acknowledged)
            assert await kept(gateway) == {(allowed, "up")}
    fake.transcript.check()


@pytest.mark.parametrize("chat", ["@ada", "general"])
async def test_buttons_cost_no_call(tmp_path: Path, chat: str) -> None:
    calls: list[list[str]] = []
    for feedback in (True, False):
        opened = asyncio.Event()
        directory = tmp_path / str(feedback)
        async with (
            FakeSlack() as fake,
            FakeModels() as models,
            gateway_at(fake, directory, models, feedback=feedback) as gateway,
        ):
            models.then(Reply((Say("One "), Gate(opened), Say("two."))))
            fake.say(chat, "count @trunkline")
            await fake.until(lambda: fake.answers(chat))
            assert not has_buttons(fake.messages(chat)[-1])
            opened.set()
            await settled(gateway, "done")
            assert has_buttons(fake.messages(chat)[-1]) == feedback
            assert fake.answers(chat) == ["One two."]
        fake.transcript.check()
        calls.append([call.method for call in fake.transcript.calls if call.method.startswith("chat.")])
    assert calls[0] == calls[1]


@pytest.mark.parametrize("chat", ["@ada", "general"])
async def test_where_slack_knows_no_such_buttons_the_answer_has_none(tmp_path: Path, chat: str) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        fake.switches.unknown_blocks = frozenset({"context_actions"})
        for number in range(2):
            fake.say(chat, "hello @trunkline")
            await settled(gateway, *["done"] * (number + 1))
        assert fake.answers(chat) == ["You said: hello"] * 2
        assert not any(said.streaming for said in fake.messages(chat))
        refused = [call for call in fake.transcript.calls if call.answer and not call.answer["ok"]]
        assert [call.answer["error"] for call in refused] == ["invalid_blocks"]
    fake.transcript.check()


async def test_replies_of_the_gateway_have_no_buttons(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        fake.command("@ada", "/bot-status")
        await settled(gateway, "done")
        (reply,) = fake.messages("@ada")
        assert not has_buttons(reply)
    fake.transcript.check()


def test_the_last_page_of_text_has_the_buttons_of_a_complete_answer() -> None:
    long, picture = TextPart("One. " * 2000), ImagePart("eA==", "image/png")

    def rated(
        *parts: TextPart | ImagePart | ErrorPart, final: bool = True, for_model: bool = True
    ) -> list[bool]:
        answer = Message(session_id="s", role="assistant", parts=parts, for_model=for_model)
        found = pages(answer, final=final, feedback=True)
        return [page.rated for page in found if isinstance(page, Text)]

    assert rated(long, picture) == [False, False, True]
    assert not any(rated(long, picture, final=False) + rated(long, for_model=False))
    assert rated(ErrorPart("Overloaded", "try again")) == [False]
    assert rated(picture) == []
