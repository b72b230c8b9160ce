"""A confined plugin that needs a grant: the admin decides in the chat, however long that takes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gateway import Answer, Plugin
from gateway.app import Gateway
from gateway.channel import Placed, Question
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.packages.installer import Installer
from gateway.settings import Settings, load_settings
from gateway.testing.chat import chatting
from gateway.testing.letterbox import Letterbox
from tests.small_plugins import Brings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="confinement needs Linux"),
]

MANIFEST = """\
api: 1
name: reader
version: 1.0.0
hooks: [transform_system_prompt]
capabilities:
  filesystem: {read: true, roots: [ROOT]}
"""
CODE = """\
from trunkline_plugin import CapabilityDenied, plugin


@plugin
async def reader(ctx):
    async def prompt(text, turn):
        try:
            return await ctx.fs.read("ROOT/rules.txt")
        except CapabilityDenied as denied:
            return f"DENIED {denied}"

    return {"hooks": {"transform_system_prompt": prompt}}
"""


class Room(Letterbox):
    """A platform that shows questions, registered by a plugin."""

    def __init__(self) -> None:
        super().__init__("room")
        self.asked: asyncio.Queue[Question] = asyncio.Queue()

    async def ask_question(self, question: Question) -> Placed:
        await self.asked.put(question)
        return Placed("m1", 50)

    async def question_closed(self, question: Question, answer: Answer, shown: Placed | None) -> None:
        pass


SETTINGS = """\
data_dir = "data"
model = "script/one"
[permissions]
"*" = "allow"
[channels.room]
allow = "*"
admins = ["ada"]
[plugins]
enabled = ["./reader"]
[plugins.reader]
hook_timeout_ms = 3_000
"""


@pytest.mark.parametrize(("decision", "again"), [("once", False), ("always", True), ("never", True)])
async def test_001_18_a_hook_waits_for_the_admin_beyond_its_own_time_limit(
    tmp_path: Path, decision: str, again: bool
) -> None:
    (tmp_path / "rules.txt").write_text("Be brief.")
    folder = tmp_path / "config/reader"
    folder.mkdir(parents=True)
    (folder / "plugin.yml").write_text(MANIFEST.replace("ROOT", str(tmp_path)))
    (folder / "main.py").write_text(CODE.replace("ROOT", str(tmp_path)))
    file = tmp_path / "config/trunkline.toml"
    file.write_text(SETTINGS.replace('"data"', f'"{tmp_path / "data"}"'))
    (tmp_path / "data").mkdir()
    settings = load_settings(file, environ={}, cwd=tmp_path)
    Installer(Admission(settings), {}).approve("./reader", (), "cli:test")
    room = Room()

    def gateway(_settings: Settings, plugins: Sequence[Plugin]) -> Gateway:
        return Gateway(settings, plugins=plugins)

    async with chatting(tmp_path / "data", Brings(room), kind=gateway) as chat:  # type: ignore[arg-type]
        first = await chat.accept("hello", channel="room")
        question = await room.asked.get()
        assert question.title == f"The plugin reader wants to read files in {tmp_path}. Allow it?"
        await asyncio.sleep(4)  # the limits of the hook and of its process have passed by now
        await chat.host.settle(question.id, decision, channel="room", user="ada")
        await chat.answer(first)
        prompt = chat.model.calls[0].options.system_prompt
        assert (prompt == "Be brief.") is (decision != "never")
        assert prompt == "Be brief." or prompt.startswith("DENIED filesystem.read")
        if again:
            await chat.say("again", channel="room")
            assert chat.model.calls[1].options.system_prompt[:9] == prompt[:9]
            assert room.asked.empty()
        actions = chat.gateway.parts.actions
        await actions.flush()
        done = [(one.action, one.allowed) for one in await actions.latest("reader")]
        assert ("process.started", True) in done
        assert ("filesystem.read", decision != "never") in done
