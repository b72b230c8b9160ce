"""A user with only a phone: from a task to a pull request, and the button under its review, on Telegram."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from channels.telegram.fake import FakeTelegram, Message
from gateway.testing.fake_models.script import Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from plugins.coding_agents import CodingAgents
from tests.channels.telegram.lab import lab, until
from tests.plugins.coding_agents.forges.fakes import TOKEN, fake_forge
from tests.plugins.coding_agents.tools.room import ALLOWED
from tests.plugins.coding_agents.workspaces import forge as hosts

pytestmark = pytest.mark.slow


def buttons(fake: FakeTelegram, chat: int, label: str) -> list[Message]:
    return [one for one in fake.messages(chat) if label in str(one.buttons)]


async def test_a_task_becomes_a_pull_request_and_a_button_lets_the_agent_fix_its_review(
    tmp_path: Path,
) -> None:
    agents = CodingAgents()
    async with (
        hosts.serving(tmp_path / "hub") as hub,
        fake_forge("github", "acme/app") as forge,
        FakeTelegram() as fake,
    ):
        hub.make()
        hub.tokens[TOKEN] = "write"
        own: dict[str, Any] = {
            "sandbox": "off",
            "min_free_memory_mb": 0,
            "forges": {hub.host: {"kind": "github", "base_url": forge.address, "token": TOKEN}},
            "workspaces": {"hosts": [hub.url]},
        }
        chat, other = fake.private("Ada"), fake.private("Eve")
        settings = {"plugins": {"coding_agents": own}, "permissions": ALLOWED}
        async with lab(tmp_path / "data", fake, agents, settings=settings):
            try:
                fake.say(chat, f"/agents new shell {hub.url}/acme/app echo wrong > src/auth.py", "Ada")
                await until(lambda: "Shell works in" in "\n".join(fake.answers(chat)))
                sessions = await agents.service()
                (record,) = sessions.list(f"telegram:{chat}")
                await until(lambda: sessions.list(record.owner)[0].public_status == "completed")
                fake.say(other, "/agents", "Eve")
                await until(lambda: "No coding agents are running" in "\n".join(fake.answers(other)))
                fake.say(chat, "/diff", "Ada")
                await until(lambda: any("document" in one.media for one in fake.messages(chat)))
                forge.add_comment("Wrong variable", author="eve")
                fake.say(chat, "/pr Fix the login", "Ada")
                await until(lambda: f"PR #5: {forge.url}/pull/5" in "\n".join(fake.answers(chat)))
                await until(lambda: buttons(fake, chat, "Let the agent fix it"))
                prompt = buttons(fake, chat, "Let the agent fix it")[0]
                fake.press(chat, prompt.id, "Let the agent fix it", "Ada")
                await until(lambda: 'Sent "Pull request #5' in "\n".join(fake.answers(chat)))
                await until(lambda: not buttons(fake, chat, "Let the agent fix it"))
                assert [one.id for one in sessions.list(record.owner)] == [record.id]
            finally:
                for session in (await agents.service()).running():
                    await session.stop(force=True)


async def test_with_admins_only_neither_a_command_nor_a_model_starts_an_agent_for_others(
    tmp_path: Path,
) -> None:
    agents = CodingAgents()
    async with FakeTelegram() as fake, FakeModels() as models:
        chat = fake.private("Ada")
        settings = {"plugins": {"coding_agents": {"users": "admins"}}, "permissions": ALLOWED}
        async with lab(tmp_path, fake, agents, models=models, settings=settings):
            call = Use("spawn_coding_agent", json.dumps({"agent": "shell"}))
            models.then(Reply((call,), "tools"), Reply((Say("It was refused."),)))
            fake.say(chat, "start a shell", "Ada")
            await until(lambda: "It was refused." in "\n".join(fake.answers(chat)))
            assert "only admins may use coding agents here" in str(models.requests[-1].body)
            models.then(Reply((Say("No such command."),)))
            fake.say(chat, "/agents new shell", "Ada")
            await until(lambda: len(fake.answers(chat)) == 2)
            assert "works in" not in "\n".join(fake.answers(chat))
            assert (await agents.service()).running() == []
