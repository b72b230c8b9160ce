"""The Slack channel in a whole gateway, against the fake Slack over real sockets."""

from __future__ import annotations

from pathlib import Path

from channels.slack.fake import FakeSlack
from tests.channels.slack.gateways import gateway_at, settled


async def test_a_direct_message_is_answered(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        fake.say("@ada", "hello")
        await settled(gateway, "done")
        assert fake.answers("@ada") == ["You said: hello"]
    fake.transcript.check()


async def test_a_mention_is_answered_once_in_its_thread(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        ts = fake.say("general", "hello @trunkline")
        fake.say("general", "nobody asked")
        await settled(gateway, "done")
        assert [said.text for said in fake.messages("general", thread=ts) if said.bot] == ["You said: hello"]
        assert len(fake.answers("general")) == 1
    fake.transcript.check()
