"""The gateway is killed while a user of each channel takes tasks to a pull request.

A kill comes at a random moment after each step: a start, a question that is about to be asked, a button, a
text, and ``/pr``. There is one session, each text is typed once, each question is asked and answered once,
there are one commit and one pull request, and each notice is one message.

``TRUNKLINE_TEST_KILLS`` is the number of kills on each channel, by default 5; ``TRUNKLINE_TEST_SEED`` is the
seed of the first run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.testing.fake_models.server import FakeModels
from tests.e2e.gateway_process import GatewayProcess
from tests.e2e.phones import CHANNELS, Phone, phone_on
from tests.plugins.coding_agents.forges.fakes import TOKEN, FakeForge, Scripted, fake_forge
from tests.plugins.coding_agents.rig import end_all
from tests.plugins.coding_agents.workspaces import forge as hosts

pytestmark = pytest.mark.slow

PRETEND = Path(__file__).with_name("pretend_claude.py")
STEPS = 5
RUNS = -(-int(os.environ.get("TRUNKLINE_TEST_KILLS", "5")) // STEPS)
FIRST = int(os.environ.get("TRUNKLINE_TEST_SEED", "0"))
SECONDS = 60
PRESS_SECONDS = 4.0
"""The time after which a user presses a button again that had no effect."""
NOTICES = {
    "Claude Code.* works in": 1,
    "has finished": 2,
    r"Claude Code\W+[0-9a-f]{8}\W+(running|working|blocked|completed)": 1,
    "There is no sandbox": 1,
    "^Sent": 1,
    "PR #5: <?http": 1,
    "Stopped": 1,
    "no longer on the screen|was lost|failed|Not sent": 0,
}
"""The notices, with the number of their messages."""
ASKED = r"Claude Code [0-9a-f]{8}: (Bash|Do you)"
FIX, MORE = "echo fixed > src/auth.py", "echo more >> src/auth.py"


PLUGIN = """
[plugins]
enabled = ["coding_agents"]

[plugins.coding_agents]
sandbox = "off"
min_free_memory_mb = 0
orphan_ms = 300_000
"""


def settings(hub: hosts.Hub, forge: FakeForge, binary: Path) -> str:
    return f"""{PLUGIN}
[plugins.coding_agents.agents.claude]
binary = "{binary}"

[plugins.coding_agents.workspaces]
hosts = ["{hub.url}"]

[plugins.coding_agents.forges."{hub.host}"]
kind = "github"
base_url = "{forge.address}"
token = "{TOKEN}"
"""


class Story:
    """A user who takes two tasks to a pull request, and the kills on the way."""

    def __init__(
        self,
        phone: Phone,
        gateway: GatewayProcess,
        repo: str,
        moments: random.Random,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self.phone = phone
        self.gateway = gateway
        self.asked: set[object] = set()
        """The questions that the user saw."""
        self.kills: list[float] = []
        """The pauses between a step and its kill."""
        self._repo = repo
        self._moments = moments
        self._tasks = tasks
        self._killing: asyncio.Task[None] | None = None

    async def act(self) -> None:
        """Take the tasks to a pull request, with a kill in each step."""
        await self._meet()
        await self._step(2.0)
        await self.phone.say(f"/agents new claude {self._repo} branch=fix {FIX}", "m1")
        await self.until(lambda: f"task {FIX}" in self.log)
        await self._step(1.0)
        await self._until_asked()
        await self._step(0.8)
        await self._press(1)
        await self.until_count("has finished", 1)
        await self._step(1.0)
        await self.phone.say(f"/agents 1 {MORE}", "m2")
        await self._press(2)
        await self.until_count("has finished", 2)
        await self._step(1.5)
        await self.phone.say("/pr 1 Fix the login", "m3")
        await self.until_count("PR #5: <?http", 1)
        await self._killed()
        await self.phone.say("/agents 1 stop", "m4")
        await self.until_count("Stopped", 1)

    @property
    def log(self) -> list[str]:
        """What the program was told."""
        found = (self.gateway.data / "coding-agents" / "homes").glob("*/claude/pretend.log")
        return [line for path in found for line in path.read_text().splitlines()]

    @property
    def answers(self) -> int:
        """The number of answers that the program got."""
        return sum(line.startswith("key") for line in self.log)

    async def count(self, pattern: str) -> int:
        """Return the number of messages in which a pattern is found."""
        return sum(bool(re.search(pattern, one)) for one in await self.phone.texts())

    async def _meet(self) -> None:
        """Write until the bot answers: platforms repeat nothing from before its first connection."""
        async with asyncio.timeout(SECONDS):
            while not await self.count("You said: Hello"):
                await self.phone.say("Hello", "m0")
                with contextlib.suppress(AssertionError):
                    await self.until_count("You said: Hello", 1, 1.0)

    async def _step(self, most: float) -> None:
        """Kill the gateway at a moment of the step that begins now. Early moments are more likely."""
        await self._killed()
        self._killing = self._tasks.create_task(self._kill(self._moments.random() ** 2 * most))

    async def _killed(self) -> None:
        if self._killing is not None:
            await self._killing

    async def _kill(self, pause: float) -> None:
        await asyncio.sleep(pause)
        await self.gateway.stop(signal.SIGKILL)
        self.kills.append(round(pause, 3))
        assert await self.gateway.start(), self.gateway.errors

    async def _until_asked(self) -> None:
        async with asyncio.timeout(SECONDS):
            while not (found := await self.phone.questions()):
                await asyncio.sleep(0.02)
        self.asked.update(found)

    async def _press(self, answers: int) -> None:
        """Press "Once" until the program has this many answers."""
        async with asyncio.timeout(SECONDS):
            while self.answers < answers:
                found = await self.phone.questions()
                self.asked.update(found)
                for question in found[-1:]:
                    # The buttons may go at this moment.
                    with contextlib.suppress(LookupError, ValueError):
                        await self.phone.press(question, "Once", "once")
                    with contextlib.suppress(AssertionError):
                        await self.until(lambda: self.answers >= answers, PRESS_SECONDS)
                await asyncio.sleep(0.02)

    async def until(self, holds: Callable[[], bool], seconds: float = SECONDS) -> None:
        """Wait until something holds."""
        try:
            async with asyncio.timeout(seconds):
                while not holds():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{self.log}, {await self.phone.texts()}") from None

    async def until_count(self, text: str, number: int, seconds: float = SECONDS) -> None:
        """Wait until this many messages have a text."""
        try:
            async with asyncio.timeout(seconds):
                while await self.count(text) < number:
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"no {text!r}: {await self.phone.texts()}") from None


async def test_a_gateway_that_is_killed_within_a_pull_request_opens_one(home: Path) -> None:
    """It is killed when a push begins, when the push is done, and when the pull request is open."""
    async with (
        hosts.serving(home / "hub") as hub,
        fake_forge("github", "acme/app") as forge,
        phone_on("websocket") as phone,
        FakeModels() as models,
        GatewayProcess(home, models.openai_url, settings(hub, forge, PRETEND)) as gateway,
        asyncio.TaskGroup() as tasks,
    ):
        hub.make()
        hub.tokens[TOKEN] = "write"
        phone.gateway = gateway
        assert await gateway.start(), gateway.errors
        story = Story(phone, gateway, f"{hub.url}/acme/app", random.Random(0), tasks)
        await phone.say(f"/agents new shell {hub.url}/acme/app branch=fix {FIX}", "m1")
        await story.until_count("has finished", 1)

        hub.holds += ["before", "after"]
        forge.then(Scripted(201, hold=True, carry_out=True, method="POST"))
        await phone.say("/pr 1 Fix the login", "m2")
        for reached in (hub.held, hub.held, forge.scripted):
            async with asyncio.timeout(SECONDS):
                await reached.wait()
            reached.clear()
            await gateway.stop(signal.SIGKILL)
            assert await gateway.start(), gateway.errors
        await story.until_count("PR #5: <?http", 1)
        await phone.say("/agents 1 stop", "m3")
        await story.until_count("Stopped", 1)
        texts = await phone.texts()
    assert hub.holds == []
    assert hub.log("fix") == ["Fix the login", "First"], texts
    assert [(one.head, one.base) for one in forge.pulls] == [("fix", "main")], texts
    assert sum("PR #5" in one for one in texts) == 1, texts


async def test_a_suspended_gateway_delays_no_program_and_continues_with_it(home: Path) -> None:
    shown = home / "shown"
    async with (
        phone_on("websocket") as phone,
        FakeModels() as models,
        GatewayProcess(home, models.openai_url, PLUGIN) as gateway,
        asyncio.TaskGroup() as tasks,
    ):
        phone.gateway = gateway
        assert await gateway.start(), gateway.errors
        story = Story(phone, gateway, "", random.Random(0), tasks)
        await phone.say(f"/agents new shell touch {shown}.1; sleep 1; seq 400000; touch {shown}.2", "m1")
        await story.until(home.joinpath("shown.1").exists)
        gateway.send_signal(signal.SIGSTOP)
        # More output than the keeper holds back for a reader that is behind.
        await story.until(home.joinpath("shown.2").exists)
        gateway.send_signal(signal.SIGCONT)
        await story.until_count("has finished", 1)
        await phone.say("/agents 1 echo again", "m2")
        await story.until_count("has finished", 2)
        await phone.say("/agents 1 stop", "m3")
        await story.until_count("Stopped", 1)
        assert await story.count("has finished|was lost|failed") == 2, await phone.texts()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder for gateways, whose sessions end with the test."""
    yield tmp_path
    for data in (tmp_path / "data", *tmp_path.glob("*/data")):
        end_all(data)


@pytest.mark.parametrize("seed", range(FIRST, FIRST + RUNS))
async def test_a_gateway_that_is_killed_in_each_step_loses_and_repeats_nothing(home: Path, seed: int) -> None:
    async with asyncio.TaskGroup() as gateways:
        for channel in CHANNELS:
            gateways.create_task(told_on(home / channel, channel, seed), name=channel)


async def told_on(home: Path, channel: str, seed: int) -> None:
    """Tell the story on a channel, and look at what is left of it."""
    binary = home / "bin" / "claude"
    binary.parent.mkdir(parents=True)
    shutil.copy(PRETEND, binary)
    binary.chmod(0o755)
    async with (
        hosts.serving(home / "hub") as hub,
        fake_forge("github", "acme/app") as forge,
        phone_on(channel) as phone,
        FakeModels() as models,
        GatewayProcess(home, models.openai_url, phone.settings + settings(hub, forge, binary)) as gateway,
    ):
        hub.make()
        hub.tokens[TOKEN] = "write"
        phone.gateway = gateway
        assert await gateway.start(), gateway.errors
        async with asyncio.TaskGroup() as tasks:
            moments = random.Random(f"{channel} {seed}")
            story = Story(phone, gateway, f"{hub.url}/acme/app", moments, tasks)
            await story.act()
        texts = await phone.texts()

    told = (channel, story.kills, texts)
    assert story.log == [f"task {FIX}", "key '1'", f"task {MORE}", "key '1'"], told
    assert hub.log("fix") == ["Fix the login", "First"], told
    assert [(one.head, one.base) for one in forge.pulls] == [("fix", "main")], told
    assert len(list((gateway.data / "coding-workspaces" / "workspaces").glob("ws-*"))) <= 1, told
    for pattern, number in NOTICES.items():
        assert sum(bool(re.search(pattern, one)) for one in texts) == number, (pattern, *told)
    if channel == "websocket":
        assert len(story.asked) == 2, told
    else:
        assert sum(bool(re.search(ASKED, one)) for one in texts) == 2, told
