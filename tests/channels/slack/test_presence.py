"""Signs of thinking are shown as often as Slack takes them, and do not stay behind."""

from __future__ import annotations

from channels.slack.api import Api
from channels.slack.fake import FakeSlack
from channels.slack.presence import Presence
from gateway.channel import Address


class Hands:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_status_is_set_anew_before_it_goes_by_itself() -> None:
    async with FakeSlack() as fake:
        clock, api = Hands(), Api(fake.bot_token, fake.api_url)
        presence = Presence(api, "eyes", clock)
        ts = fake.say("general", "hello")
        address = Address("slack", "T", fake.room("general").id, ts, ts)
        for now in range(0, 100, 4):
            clock.now = float(now)
            await presence.thinking(address)
        assert fake.status("general", ts) == "is thinking…"
        assert len(fake.transcript.of("assistant.threads.setStatus")) == 2
        assert len(fake.transcript.of("agents.sessions.setStatus")) == 2
    fake.transcript.check()


async def test_what_nobody_asks_for_any_more_is_taken_back() -> None:
    async with FakeSlack() as fake:
        clock, api = Hands(), Api(fake.bot_token, fake.api_url)
        presence = Presence(api, "eyes", clock)
        root, other = fake.say("general", "hello"), fake.say("@ada", "hello")
        thread = Address("slack", "T", fake.room("general").id, root, root)
        direct = Address("slack", "T", fake.room("@ada").id, None, other)
        await presence.thinking(thread)
        await presence.thinking(direct)
        clock.now = 10
        await presence.sweep()
        assert fake.messages("@ada")[0].reactions
        clock.now = 16
        await presence.sweep()
        assert not fake.messages("@ada")[0].reactions
        assert fake.state.sessions[thread.chat, root].status == "active"
    fake.transcript.check()


async def test_what_the_app_may_not_do_it_is_not_asked_again() -> None:
    async with FakeSlack(installed=False) as fake:
        fake.install(scopes=["chat:write"])
        api = Api(fake.bot_token, fake.api_url)
        presence = Presence(api, "eyes")
        for text in ("one", "two"):
            ts = fake.say("@ada", text)
            address = Address("slack", "T", fake.room("@ada").id, None, ts)
            await presence.thinking(address)
            await presence.done(address)
        assert len(fake.transcript.of("reactions.add")) == 1
    fake.transcript.check()
