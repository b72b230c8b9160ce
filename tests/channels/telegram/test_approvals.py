"""Approval buttons: a tool waits for the decision of a user in the chat."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from channels.telegram.fake import FakeTelegram, Message
from gateway.channel import Address, Watermarks
from gateway.store import schema as t
from gateway.testing.fake_models.script import Gate, Reply, Use
from gateway.testing.fake_platform import FAULTS, Fault
from tests.channels.telegram.lab import Lab, lab, until
from tests.small_plugins import Shell

pytestmark = pytest.mark.slow

ASK: dict[str, Any] = {"permissions": {"shell": "ask"}}
SHORT = "rm -r ```x```"
LONG = f"ls\u202e{' ' * 3000}; rm -rf /"
"""A command that is too long for a message, with an invisible character, and another command at its end."""


def prompts(fake: FakeTelegram, chat: int) -> list[Message]:
    """Return the messages with buttons in a chat."""
    return [message for message in fake.messages(chat) if message.buttons]


async def asked(running: Lab, chat: int, command: str = SHORT) -> Message:
    """Let the model call the tool, and wait until the bot knows the message id of its question."""
    running.models.then(Reply((Use("shell", json.dumps({"command": command})),), "tools"))
    running.fake.say(chat, "go", "Ada")
    await until(lambda: prompts(running.fake, chat))
    prompt = prompts(running.fake, chat)[0]
    channel = running.gateway.channels.get("telegram")
    assert isinstance(channel, Watermarks)
    room = Address("telegram", running.fake.token.partition(":")[0], str(chat))
    await until(lambda: int(channel.watermark(room) or 0) >= prompt.id)
    return prompt


def documents(fake: FakeTelegram, chat: int) -> list[dict[str, Any]]:
    """Return the JSON files in a chat."""
    files = [message.media["document"] for message in fake.messages(chat) if "document" in message.media]
    assert all(file["file_name"] == "arguments.json" for file in files)
    return [json.loads(fake.world.files.data(file["file_id"])) for file in files]


@pytest.mark.parametrize(
    ("button", "ran", "shown"),
    [
        ("Allow once", 1, "✓ Allowed once: shell"),
        ("Always: rm -r ```x```", 1, "✓ Always allowed: shell"),
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


async def test_the_end_of_a_question_that_was_deleted_is_shown_nowhere(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    chat, shell = fake.private(), Shell()
    async with lab(tmp_path, fake, shell, settings=ASK) as running:
        prompt = await asked(running, chat)
        fake.delete(chat, prompt.id)
        fake.say(chat, "yes")
        await until(lambda: shell.ran)
        await running.settled()
        unclosed = select(func.count()).where(t.question.c.closed == 0)
        read = running.gateway.parts.store.read
        async with asyncio.timeout(20):
            while await read(lambda c: c.execute(unclosed).scalar_one()):
                await asyncio.sleep(0.01)
        assert len(fake.transcript.of("editMessageText")) == 1
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
            fake.say(chat, "yes")  # the question was not shown, so this does not answer it
            (session,) = running.gateway.parts.sessions.live()
            await until(lambda: session.pending == 2)
            assert shell.ran == []
            (question,) = session.asked
            await running.gateway.parts.host.settle(question, "once", session=session.id)
        else:
            await until(lambda: prompts(fake, chat))
            fake.press(chat, prompts(fake, chat)[0].id, "Allow once")
        await until(lambda: shell.ran)
        await running.settled()
        assert prompts(fake, chat) == []
    fake.transcript.check()


async def test_a_button_that_is_delivered_twice_says_what_was_decided(tmp_path: Path) -> None:
    async with FakeTelegram(repeats=1) as fake, lab(tmp_path, fake, Shell(), settings=ASK) as running:
        chat = fake.private()
        query = fake.press(chat, (await asked(running, chat)).id, "Deny")
        await until(lambda: query.answer)
        assert query.answer is not None
        assert query.answer["text"] == "Denied."
        await running.settled()


async def test_only_the_user_that_asked_may_decide(tmp_path: Path, fake: FakeTelegram) -> None:
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


@pytest.mark.parametrize("command", [SHORT, LONG])
async def test_what_was_decided_before_a_crash_is_not_taken_for_the_answer(
    tmp_path: Path, fake: FakeTelegram, command: str
) -> None:
    chat, shell = fake.private(), Shell()
    async with lab(tmp_path, fake, shell, settings=ASK, streaming=False) as running:
        prompt = await asked(running, chat, command)
        running.models.then(Reply((Gate(asyncio.Event()),)))
        fake.press(chat, prompt.id, "Allow once")
        await until(lambda: len(running.models.requests) == 2)
        running.gateway.parts.dispatcher.cancel()
    async with lab(tmp_path, fake, shell, settings=ASK, streaming=False) as running:
        fake.then("drop_after", method="sendMessage")
        await running.settled()
    decided, answer = [one for one in fake.messages(chat) if one.sender.is_bot]
    assert (decided.id, decided.text) == (prompt.id, "✓ Allowed once: shell")
    assert "ran " in answer.text or "You said" in answer.text
    assert (decided.buttons, answer.buttons) == ([], [])
    fake.transcript.check()


@pytest.mark.parametrize("command", [SHORT, LONG])
async def test_a_button_of_an_earlier_process_decides_and_then_has_expired(
    tmp_path: Path, fake: FakeTelegram, command: str
) -> None:
    chat, shell = fake.private(), Shell()
    async with lab(tmp_path, fake, shell, settings=ASK, streaming=False) as running:
        prompt = await asked(running, chat, command)
    assert [one.id for one in prompts(fake, chat)] == [prompt.id]
    async with lab(tmp_path, fake, shell, settings=ASK, streaming=False) as running:
        fake.press(chat, prompt.id, "Allow once")
        await running.settled()
        await until(lambda: not prompts(fake, chat))
        fake.world.change(fake.chat(chat).messages[prompt.id], markup=prompt.markup)
        query = fake.press(chat, prompt.id, "Deny")
        await until(lambda: query.answer)
        assert query.answer is not None
        assert query.answer["text"] == "This question was answered already."
        # It was not asked a second time.
        assert sum("shell" in one.text for one in fake.messages(chat) if one.sender.is_bot) <= 2
    assert len(shell.ran) == 1
    fake.transcript.check()


async def test_the_file_of_a_decided_question_is_left_alone_by_a_server_that_shows_no_messages(
    tmp_path: Path, fake: FakeTelegram
) -> None:
    chat, shell = fake.private(), Shell()
    async with lab(tmp_path, fake, shell, settings=ASK, streaming=False) as running:
        prompt = await asked(running, chat, LONG)
        running.models.then(Reply((Gate(asyncio.Event()),)))
        fake.press(chat, prompt.id, "Allow once")
        await until(lambda: len(running.models.requests) == 2)
        running.gateway.parts.dispatcher.cancel()
    async with lab(tmp_path, fake, shell, settings=ASK, streaming=False) as running:
        fake.then("drop_after", method="sendMessage")
        fake.answer_next("editMessageReplyMarkup", *[True] * 4)
        await running.settled()
    decided, answer = [one for one in fake.messages(chat) if one.sender.is_bot]
    assert (decided.id, decided.text) == (prompt.id, "✓ Allowed once: shell")
    assert "ran " in answer.text or "You said" in answer.text
    assert (decided.buttons, answer.buttons) == ([], [])


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


@pytest.mark.parametrize(
    ("button", "ran", "shown"),
    [("Allow once", [LONG], "✓ Allowed once: shell"), ("Deny", [], "✗ Denied: shell")],
)
async def test_a_question_that_does_not_fit_has_the_complete_arguments_as_a_file(
    tmp_path: Path, fake: FakeTelegram, button: str, ran: list[str], shown: str
) -> None:
    chat, shell = fake.private(), Shell()
    async with lab(tmp_path, fake, shell, settings=ASK, streaming=False) as running:
        prompt = await asked(running, chat, LONG)
        assert prompt.text.startswith("May I use shell?")
        assert "; rm -rf /" in prompt.text
        assert "characters …" in prompt.text
        assert "\\u202e" in prompt.text
        assert documents(fake, chat) == [{"command": LONG}]
        file = fake.world.files.data(prompt.media["document"]["file_id"])
        assert b"\\u202e" in file
        fake.press(chat, prompt.id, button)
        await until(lambda: len(fake.answers(chat)) == 2)
        await running.settled()
    assert fake.answers(chat)[0] == shown
    assert (shell.ran, prompts(fake, chat), documents(fake, chat)) == (ran, [], [{"command": LONG}])
    fake.transcript.check()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_question_with_a_file_is_sent_at_most_once_under_faults(
    tmp_path: Path, fake: FakeTelegram, fault: Fault
) -> None:
    chat, shell = fake.private(), Shell()
    async with lab(tmp_path, fake, shell, settings=ASK, streaming=False) as running:
        fake.then(fault, method="sendDocument")
        running.models.then(Reply((Use("shell", json.dumps({"command": LONG})),), "tools"))
        fake.say(chat, "go")
        await until(lambda: fake.transcript.of("sendDocument"))
        if fault in ("fail_before", "drop_before"):
            (session,) = running.gateway.parts.sessions.live()
            (question,) = session.asked
            await running.gateway.parts.host.settle(question, "once", session=session.id)
        else:
            await until(lambda: prompts(fake, chat))
            fake.press(chat, prompts(fake, chat)[0].id, "Allow once")
        await until(lambda: shell.ran)
        await running.settled()
    assert shell.ran == [LONG]
    assert len(documents(fake, chat)) == (0 if fault in ("fail_before", "drop_before") else 1)
    assert prompts(fake, chat) == []
    fake.transcript.check()


@pytest.mark.parametrize("reason", ["no files", "too many arguments"])
async def test_a_question_that_cannot_be_shown_whole_is_denied_and_says_where_it_can_be_answered(
    tmp_path: Path, fake: FakeTelegram, reason: str
) -> None:
    chat, shell = fake.private(), Shell()
    fake.chat(chat).refuses_documents = reason == "no files"
    arguments = {"command": LONG} if reason == "no files" else {f"key{n}": "v" * 20 for n in range(200)}
    async with lab(tmp_path, fake, shell, settings=ASK, streaming=False) as running:
        running.models.then(Reply((Use("shell", json.dumps(arguments)),), "tools"))
        fake.say(chat, "go")
        await until(lambda: len(running.models.requests) == 2)
        await running.settled()
        assert prompts(fake, chat) == []
        refused = str(running.models.requests[-1].body)
        assert "cannot show the whole question" in refused
        assert "trunkline chat telegram:" in refused
    assert shell.ran == []
    assert documents(fake, chat) == []
