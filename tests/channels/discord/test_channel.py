"""The Discord channel from end to end: a gateway, a model and the platform, over real sockets."""

from __future__ import annotations

from pathlib import Path

from channels.discord.fake import FakeDiscord
from tests.channels.discord.talking import gateway_at, settled


async def test_a_direct_message_is_answered(fake: FakeDiscord, tmp_path: Path) -> None:
    async with gateway_at(fake, tmp_path) as gateway:
        dm = fake.dm("ada")
        fake.say(dm, "hello")
        await settled(gateway, 1)
    assert fake.answers(dm) == ["You said: hello"]
    fake.transcript.check()


async def test_a_mention_in_a_channel_is_answered_with_a_reply(fake: FakeDiscord, tmp_path: Path) -> None:
    async with gateway_at(fake, tmp_path) as gateway:
        fake.say("general", "not for the bot")
        asked = fake.say("general", f"{fake.mention} hello")
        await settled(gateway, 1)
    answer = fake.messages("general")[-1]
    assert answer.content == "You said: hello"
    assert answer.reference is not None
    assert answer.reference.message == asked
    fake.transcript.check()
