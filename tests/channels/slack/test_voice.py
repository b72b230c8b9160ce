"""Voice messages to and from the bot."""

from __future__ import annotations

from pathlib import Path

from channels.slack.fake import FakeSlack
from gateway.testing.fake_models.script import Reply, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.fake_platform import FAULTS
from tests.channels.slack.gateways import gateway_at, settled
from tests.recordings import MP3, Hearing, Speaking, ogg_opus

CLIP = ("audio_message.m4a", b"\0\0\0 ftypM4A spoken")


async def test_what_is_spoken_is_heard(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path, plugins=(Hearing(),)) as gateway:
        fake.say("@ada", "", files=[CLIP], spoken=True)
        await settled(gateway, "done")
        fake.say("@ada", "both:", files=[("a.mp3", MP3), ("b.ogg", ogg_opus())])
        await settled(gateway, "done", "done")
        assert fake.answers("@ada") == [
            f"You said: audio data:audio/mp4 {len(CLIP[1])}",
            f"You said: both: audio data:audio/mpeg {len(MP3)}\n\nFile b.ogg",
        ]
    fake.transcript.check()


async def test_an_unheard_voice_message_is_named_to_the_model(tmp_path: Path) -> None:
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        fake.say("@ada", "", files=[CLIP], spoken=True)
        await settled(gateway, "done")
        assert "cannot listen" in fake.answers("@ada")[0]
        fake.say("@ada", "Please write it down", files=[CLIP, CLIP], spoken=True)
        await settled(gateway, "done", "done")
        asked = str(models.requests[-1].body["messages"][-1])
        assert "Please write it down\\n\\n[voice message, not heard]" in asked
        assert "File audio_message.m4a" in asked
    fake.transcript.check()


async def test_what_is_spoken_comes_as_a_recording_that_can_be_played(tmp_path: Path) -> None:
    spoken = Speaking(("audio/ogg", ogg_opus(), "said.ogg"), ("audio/mpeg", MP3, "sung"))
    async with (
        FakeSlack() as fake,
        FakeModels() as models,
        gateway_at(fake, tmp_path, models, plugins=(spoken,)) as gateway,
    ):
        fake.then("none", *FAULTS, method="files.completeUploadExternal")
        models.then(Reply((Use("speak"),), "tools"))
        fake.say("@ada", "say it aloud")
        await settled(gateway, "done")
        files = [file for file in fake.state.files.values() if file.shared]
        assert [(file.title, file.mimetype) for file in files] == [
            ("said.ogg", "audio/ogg"),
            ("sung.mp3", "audio/mpeg"),
        ]
        assert [file.content for file in files] == [ogg_opus(), MP3]
        assert [name for said in fake.messages("@ada") for name in said.files] == [
            file.name for file in files
        ]
    fake.transcript.check()
