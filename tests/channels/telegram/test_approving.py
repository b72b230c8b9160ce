"""Buttons: a tool waits for a person in the room."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from channels.telegram.fake import FakeTelegram, Message
from gateway import Plugin, Tool, tool_from
from gateway.testing.faults import FAULTS, Fault
from gateway.testing.script import Gate, Reply, Use
from tests.channels.telegram.lab import Lab, lab, until

ASK: dict[str, Any] = {"permissions": {"shell": "ask"}}


class Shell(Plugin):
    """A tool that runs nothing and remembers what it was asked to run."""

    name = "shell"

    def __init__(self) -> None:
        self.ran: list[str] = []

        async def shell(command: str) -> str:
            """Run a command."""
            self.ran.append(command)
            return f"ran {command}"

        self._tools = [tool_from(shell, match_key=lambda arguments: arguments["command"])]

    def tools(self) -> Sequence[Tool]:
        return self._tools


def prompts(fake: FakeTelegram, chat: int) -> list[Message]:
    """The messages with buttons in a room."""
    return [message for message in fake.messages(chat) if message.buttons]


async def asked(running: Lab, chat: int, user: str = "Ada") -> Message:
    """Let the model ask for a command, and wait for the buttons."""
    running.models.then(Reply((Use("shell", '{"command": "rm -r ```x```"}'),), "tools"))
    running.fake.say(chat, "go", user)
    await until(lambda: prompts(running.fake, chat))
    return prompts(running.fake, chat)[0]


@pytest.mark.parametrize(
    ("button", "ran", "shown"),
    [
        ("Allow once", 1, "✓ Allowed once: shell"),
        ("Always allow", 1, "✓ Always allowed: shell"),
        ("Deny", 0, "✗ Denied: shell"),
    ],
)
async def test_a_button_decides(
    tmp_path: Path, fake: FakeTelegram, button: str, ran: int, shown: str
) -> None:
    chat, shell = fake.private(), Shell()
    async with lab(tmp_path, fake, shell, settings=ASK) as running:
        prompt = await asked(running, chat)
        assert "rm -r ```x```" in prompt.text
        query = fake.press(chat, prompt.id, button)
        await until(lambda: len(fake.answers(chat)) == 2)
        await running.settled()
        await until(lambda: query.answer)
        assert fake.answers(chat)[0] == shown
        assert len(shell.ran) == ran
        assert prompts(fake, chat) == []
    fake.transcript.check()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_question_that_goes_wrong_may_be_answered_all_the_same(
    tmp_path: Path, fake: FakeTelegram, fault: Fault
) -> None:
    chat, shell = fake.private(), Shell()
    async with lab(tmp_path, fake, shell, settings=ASK, streaming=False) as running:
        fake.then(fault, method="sendMessage")
        running.models.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
        fake.say(chat, "go")
        await until(lambda: fake.transcript.of("sendMessage"))
        if fault in ("fail_before", "drop_before"):
            fake.say(chat, "yes")  # nobody saw a button
        else:
            await until(lambda: prompts(fake, chat))
            fake.press(chat, prompts(fake, chat)[0].id, "Allow once")
        await until(lambda: shell.ran)
        await running.settled()
        assert prompts(fake, chat) == []
    fake.transcript.check()


async def test_only_who_asked_may_decide(tmp_path: Path, fake: FakeTelegram) -> None:
    group, shell = fake.group("Lab", "Ada", "Bob", admin=True), Shell()
    async with lab(tmp_path, fake, shell, settings=ASK, groups="always") as running:
        prompt = await asked(running, group)
        query = fake.press(group, prompt.id, "Allow once", "Bob")
        await until(lambda: query.answer)
        assert query.answer is not None
        assert query.answer["show_alert"]
        assert "Only the person" in query.answer["text"]
        assert shell.ran == []
        assert prompts(fake, group)
        fake.press(group, prompt.id, "Deny", "Ada")
        await running.settled()
    fake.transcript.check()


async def test_what_was_decided_before_a_crash_is_not_taken_for_the_answer(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    chat, shell = fake.private(), Shell()
    async with lab(tmp_path, fake, shell, settings=ASK, streaming=False) as running:
        prompt = await asked(running, chat)
        running.models.then(Reply((Gate(asyncio.Event()),)))
        fake.press(chat, prompt.id, "Allow once")
        await until(lambda: len(running.models.requests) == 2)
        running.gateway.dispatcher.cancel()
    async with lab(tmp_path, fake, shell, settings=ASK, streaming=False) as running:
        fake.then("drop_after", method="sendMessage")
        await running.settled()
    decided, answer = [one for one in fake.messages(chat) if one.sender.is_bot]
    assert (decided.id, decided.text) == (prompt.id, "✓ Allowed once: shell")
    assert "ran rm" in answer.text or "You said" in answer.text
    assert (decided.buttons, answer.buttons) == ([], [])
    fake.transcript.check()


async def test_buttons_of_an_earlier_process_have_expired_and_new_ones_decide(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    chat, shell = fake.private(), Shell()
    async with lab(tmp_path, fake, shell, settings=ASK) as running:
        prompt = await asked(running, chat)
        running.gateway.dispatcher.cancel()
        await until(lambda: not prompts(fake, chat))  # it says that it is no longer asked
        fake.world.change(fake.chat(chat).messages[prompt.id], markup=prompt.markup)
    async with lab(tmp_path, fake, shell, settings=ASK, streaming=False) as running:
        await until(lambda: len(prompts(fake, chat)) == 2)
        query = fake.press(chat, prompt.id, "Allow once")
        await until(lambda: query.answer)
        assert query.answer is not None
        assert "expired" in query.answer["text"]
        assert shell.ran == []
        fake.press(chat, prompts(fake, chat)[-1].id, "Allow once")
        await running.settled()
    assert len(shell.ran) == 1
    fake.transcript.check()


async def test_foreign_button_data_is_answered_politely(tmp_path: Path, fake: FakeTelegram) -> None:
    chat, shell = fake.private(), Shell()
    async with lab(tmp_path, fake, shell, settings=ASK) as running:
        prompt = await asked(running, chat)
        markup = {"inline_keyboard": [[{"text": "Odd", "callback_data": "a:b:c:d"}]]}
        fake.world.change(fake.chat(chat).messages[prompt.id], markup=markup)
        query = fake.press(chat, prompt.id, "Odd")
        await until(lambda: query.answer)
        assert shell.ran == []
        fake.say(chat, "no")
        await running.settled()
    fake.transcript.check()
