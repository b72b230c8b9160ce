"""Approvals by buttons, from end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from channels.discord.fake import FakeDiscord
from gateway.testing.fake_models.script import Reply, Use
from gateway.testing.fake_models.server import FakeModels
from tests.channels.discord.talking import (
    Measuring,
    bots,
    gateway_at,
    settled,
)

ASK: dict[str, Any] = {"permissions": {"measure": "ask"}}


async def test_a_person_allows_a_tool_with_a_button(fake: FakeDiscord, tmp_path: Path) -> None:
    async with (
        FakeModels() as models,
        gateway_at(fake, tmp_path, models=models, plugins=[Measuring()], more=ASK) as gateway,
    ):
        models.then(Reply((Use("measure", '{"what": "the table"}'),), "tools"))
        fake.say("general", f"{fake.mention} go")
        await fake.until(lambda: any(m.components for m in bots(fake, "general")))
        (prompt,) = [m for m in bots(fake, "general") if m.components]
        assert "measure" in prompt.content
        assert "the table" in prompt.content
        buttons = [b["custom_id"] for b in prompt.components[0]["components"]]
        stranger = fake.press("general", prompt.id, buttons[0], "bob")
        await fake.until(lambda: fake.interaction(stranger).state == "answered")
        fake.press("general", prompt.id, buttons[0])
        await settled(gateway, 1)
        await fake.until(lambda: "Allowed once" in fake.message("general", prompt.id).content)
        assert "the table is 5 long" in str(models.requests[-1].body)
    whispered = [m for m in bots(fake, "general") if m.ephemeral]
    assert ["Only the person" in m.content for m in whispered] == [True]
    assert fake.message("general", prompt.id).components == ()
    fake.transcript.check()


async def test_a_button_of_before_a_restart_decides_and_a_second_press_removes_it(
    fake: FakeDiscord, tmp_path: Path
) -> None:
    async with FakeModels() as models:
        models.then(Reply((Use("measure", '{"what": "the table"}'),), "tools"))
        async with gateway_at(fake, tmp_path, models=models, plugins=[Measuring()], more=ASK):
            fake.say("general", f"{fake.mention} go")
            await fake.until(lambda: any(m.components for m in bots(fake, "general")))
            (prompt,) = [m for m in bots(fake, "general") if m.components]
        async with gateway_at(fake, tmp_path, models=models, plugins=[Measuring()], more=ASK) as gateway:
            assert [m.id for m in bots(fake, "general") if m.components] == [prompt.id]
            button = prompt.components[0]["components"][0]["custom_id"]
            fake.press("general", prompt.id, button)
            await settled(gateway, 1)
            await fake.until(lambda: "Allowed once" in fake.message("general", prompt.id).content)
            assert sum("🔐" in m.content for m in bots(fake, "general")) == 1
    assert fake.message("general", prompt.id).components == ()
    fake.transcript.check()
