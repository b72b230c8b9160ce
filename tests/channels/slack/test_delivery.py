"""Indicators and messages within the rate limits, and before the account is known."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from channels.slack.api import Api
from channels.slack.delivery import Delivery, Indicators
from channels.slack.fake import FakeSlack
from channels.slack.render import Text
from gateway import Message
from gateway.channel import Address, OutboundMessage, Placed, PlacementDeferred


class Hands:
    """Clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_status_is_refreshed_before_it_expires() -> None:
    async with FakeSlack() as fake:
        clock, api = Hands(), Api(fake.bot_token, fake.api_url)
        indicators = Indicators(api, "eyes", clock)
        ts = fake.say("general", "hello")
        address = Address("slack", "T", fake.chat("general").id, ts, ts)
        for now in range(0, 100, 4):
            clock.now = float(now)
            await indicators.show(address)
        assert fake.status("general", ts) == "is thinking…"
        assert len(fake.transcript.of("assistant.threads.setStatus")) == 2
        assert len(fake.transcript.of("agents.sessions.setStatus")) == 2
    fake.transcript.check()


async def test_an_unused_indicator_is_removed() -> None:
    async with FakeSlack() as fake:
        clock, api = Hands(), Api(fake.bot_token, fake.api_url)
        indicators = Indicators(api, "eyes", clock)
        root, other = fake.say("general", "hello"), fake.say("@ada", "hello")
        thread = Address("slack", "T", fake.chat("general").id, root, root)
        direct = Address("slack", "T", fake.chat("@ada").id, None, other)
        await indicators.show(thread)
        await indicators.show(direct)
        clock.now = 10
        await indicators.clear_stale()
        assert fake.messages("@ada")[0].reactions
        clock.now = 16
        await indicators.clear_stale()
        assert not fake.messages("@ada")[0].reactions
        assert fake.state.sessions[thread.chat, root].status == "active"
    fake.transcript.check()


async def test_what_the_app_may_not_do_it_is_not_asked_again() -> None:
    async with FakeSlack(installed=False) as fake:
        fake.install(scopes=["chat:write"])
        api = Api(fake.bot_token, fake.api_url)
        indicators = Indicators(api, "eyes")
        for text in ("one", "two"):
            ts = fake.say("@ada", text)
            address = Address("slack", "T", fake.chat("@ada").id, None, ts)
            await indicators.show(address)
            await indicators.clear(address)
        assert len(fake.transcript.of("reactions.add")) == 1
    fake.transcript.check()


def outbound_to(chat: str, nonce: str) -> OutboundMessage:
    return OutboundMessage(
        address=Address("slack", "T1", chat),
        message=Message(id="m1", session_id="s1", role="assistant", parts=(), created_at=0),
        nonce=nonce,
        watermark="0",
    )


async def test_before_it_is_signed_in_it_cannot_say_that_a_message_does_not_stand() -> None:
    async with FakeSlack() as fake:
        delivery = Delivery(Api(fake.bot_token, fake.api_url), streams=True)
        chat = fake.chat("@ada").id
        with pytest.raises(PlacementDeferred):
            await delivery.find(outbound_to(chat, "n1"))
        assert not fake.transcript.of("conversations.history")
        delivery.bot_user = "U1"
        assert await delivery.find(outbound_to(chat, "n1")) is None


async def test_answers_that_are_begun_can_all_be_finished_though_slack_takes_few_changes() -> None:
    async with FakeSlack() as fake:
        fake.switches.limited = True
        delivery = Delivery(Api(fake.bot_token, fake.api_url), streams=False)
        begun: list[tuple[Placed, OutboundMessage]] = []
        for number in range(50):
            asked = outbound_to(fake.chat(f"@user{number}").id, f"n{number}")
            try:
                shown = replace(asked, page=Text("so far", "so far"), final=False)
                begun.append((await delivery.send(shown), asked))
            except PlacementDeferred:
                whole = replace(asked, page=Text("the answer", "the answer"))
                await delivery.send(whole)
        assert 20 <= len(begun) <= 40
        for placed, asked in begun:
            await delivery.edit(placed, replace(asked, page=Text("the answer", "the answer")))
        assert [fake.answers(f"@user{number}") for number in range(50)] == [["the answer"]] * 50
    fake.transcript.check()


async def test_signs_of_thinking_that_could_not_be_taken_back_are_left_out() -> None:
    async with FakeSlack() as fake:
        indicators = Indicators(Api(fake.bot_token, fake.api_url), "eyes")
        room = fake.chat("@ada")
        asked = [Address("slack", "T1", room.id, reply_to=fake.say("@ada", "hello")) for _ in range(30)]
        for address in asked:
            await indicators.show(address)
        for address in asked:
            await indicators.clear(address)
        added, removed = fake.transcript.of("reactions.add"), fake.transcript.of("reactions.remove")
        assert 0 < len(added) == len(removed) < len(asked)
        assert not any(said.reactions for said in fake.messages("@ada"))
    fake.transcript.check()
