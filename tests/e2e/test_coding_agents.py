"""A user with only a phone takes a task to a merged pull request, while the gateway is killed three times."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from channels.telegram.fake import FakeTelegram, Message
from gateway.testing.fake_models.server import FakeModels
from tests.channels.telegram.lab import until
from tests.e2e.gateway_process import GatewayProcess
from tests.plugins.coding_agents.forges.fakes import TOKEN, FakeForge, Scripted, fake_forge
from tests.plugins.coding_agents.workspaces import forge as hosts

TASK = "echo fixed > src/auth.py"
PRETEND = Path(__file__).with_name("pretend_claude.py")


def settings(telegram: FakeTelegram, hub: hosts.Hub, forge: FakeForge, binary: Path) -> str:
    return f"""
[channels.telegram]
allow = "*"
envelope = "off"
token = "{telegram.token}"
api_base_url = "{telegram.url}"

[plugins]
enabled = ["coding_agents"]

[plugins.coding_agents]
orphan_ms = 300_000

[plugins.coding_agents.agents.claude]
binary = "{binary}"

[plugins.coding_agents.workspaces]
hosts = ["{hub.url}"]

[plugins.coding_agents.forges."{hub.host}"]
kind = "github"
base_url = "{forge.address}"
token = "{TOKEN}"
"""


class Phone:
    """Ada's phone."""

    def __init__(self, telegram: FakeTelegram) -> None:
        self._telegram = telegram
        self.chat = telegram.private("Ada")

    def say(self, text: str) -> None:
        self._telegram.say(self.chat, text, "Ada")

    def count(self, text: str) -> int:
        """Return the number of messages of the bot that show a text."""
        return sum(text in one for one in self._telegram.answers(self.chat))

    async def sees(self, text: str) -> None:
        try:
            await until(lambda: self.count(text))
        except TimeoutError:
            raise AssertionError(f"no {text!r} in {self._telegram.answers(self.chat)}") from None

    def questions(self, button: str) -> list[Message]:
        return [one for one in self._telegram.messages(self.chat) if button in str(one.buttons)]

    async def press(self, button: str) -> None:
        await until(lambda: self.questions(button))
        self._telegram.press(self.chat, self.questions(button)[-1].id, button, "Ada")


async def again(gateway: GatewayProcess) -> None:
    """Kill the gateway, and start it again."""
    await gateway.stop(signal.SIGKILL)
    assert await gateway.start()


@pytest.mark.timeout(600)
async def test_a_task_becomes_a_merged_pull_request_although_the_gateway_is_killed_three_times(
    tmp_path: Path,
) -> None:
    binary = tmp_path / "bin" / "claude"
    binary.parent.mkdir()
    # The program drops what is typed first.
    binary.write_text(PRETEND.read_text().replace("DROPS = 0", "DROPS = 1"))
    binary.chmod(0o755)
    async with (
        hosts.serving(tmp_path / "hub") as hub,
        fake_forge("github", "acme/app") as forge,
        FakeTelegram() as telegram,
        FakeModels() as models,
        GatewayProcess(tmp_path, models.openai_url, settings(telegram, hub, forge, binary)) as gateway,
    ):
        hub.make()
        hub.tokens[TOKEN] = "write"
        phone = Phone(telegram)
        assert await gateway.start()

        phone.say(f"/agents new claude {hub.url}/acme/app branch=fix {TASK}")
        await phone.sees("Claude Code works in")
        await until(lambda: phone.questions("Once"))
        await again(gateway)
        await phone.press("Once")
        await again(gateway)
        await phone.sees("has finished")

        phone.say("/diff 1")
        await until(lambda: any("document" in one.media for one in telegram.messages(phone.chat)))
        # The kill comes within the first look at the pull request: the next one is not a minute away then.
        forge.then(Scripted(200, hold=True, method="GET", path="/pulls/5"))
        phone.say("/pr 1 Fix the login")
        await phone.sees(f"PR #5: {forge.url}/pull/5")
        await until(forge.scripted.is_set)
        await gateway.stop(signal.SIGKILL)
        forge.pulls[0].state = "merged"
        assert await gateway.start()
        await phone.sees("was merged")
        phone.say("/agents 1 stop")
        await phone.sees("Stopped")

    (home,) = (gateway.data / "coding-agents" / "homes").glob("*/claude")
    assert (home / "pretend.log").read_text().splitlines() == [f"task {TASK}", "key '1'"]
    assert hub.log("fix") == ["Fix the login", "First"]
    assert [(one.head, one.base) for one in forge.pulls] == [("fix", "main")]
    for text in ("Claude Code works in", "has finished", "PR #5: http", "was merged", "Stopped"):
        assert phone.count(text) == 1, (text, telegram.answers(phone.chat))
