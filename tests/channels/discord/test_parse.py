"""Discord's events as the gateway's messages: recorded events, and damaged variants of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.discord import parse
from channels.discord.files import may_download, received
from channels.discord.inflow import PARSE_ERRORS, Chats
from channels.discord.options import Options
from channels.discord.parse import (
    Attachment,
    BotProfile,
    Channel,
    Chat,
    Guild,
    Interaction,
    Message,
    Ready,
    chat_of,
    read,
)
from gateway.channel import Address, Audio, InboundMessage, Sender

pytestmark = pytest.mark.slow

PAYLOADS = {path.stem: json.loads(path.read_text()) for path in Path(__file__).parent.glob("payloads/*.json")}
ME = PAYLOADS["ready"]["user"]["id"]
DM = Chat(PAYLOADS["message_dm"]["channel_id"], "dm")
GENERAL = Chat(PAYLOADS["message_mention"]["channel_id"], "channel")
THREAD = Chat(PAYLOADS["message_thread"]["channel_id"], "thread", GENERAL.id)


def view(**options: Any) -> BotProfile:
    made = Options(token="t", **options)  # pyright: ignore[reportArgumentType] - pydantic makes a secret of it
    return BotProfile("discord", ME, made, frozenset({"help", "model"}))


def message(name: str, **changes: Any) -> Message:
    return read(PAYLOADS[name] | changes, Message)


def inbound(name: str, chat: Chat, **options: Any) -> InboundMessage:
    return parse.inbound(message(name), chat, view(**options))


def test_a_direct_message() -> None:
    said = PAYLOADS["message_dm"]
    assert inbound("message_dm", DM) == InboundMessage(
        session=f"discord:{ME}:{DM.id}",
        dedup_key=said["id"],
        address=Address("discord", ME, DM.id, reply_to=said["id"]),
        sender=Sender(said["author"]["id"], "Ada"),
        text="hello **you**",
        order=int(said["id"]),
        sent_at=int(datetime.fromisoformat(said["timestamp"]).timestamp() * 1000),
    )


def test_a_changed_message_names_the_one_that_it_changes() -> None:
    changed, first = inbound("message_changed", DM), inbound("message_dm", DM)
    assert changed.revises == first.dedup_key
    assert changed.dedup_key.startswith(f"{first.dedup_key}:e17")
    assert (changed.text, changed.session) == ("hello again", first.session)
    assert first.order < changed.order < 2**63


def test_two_edits_in_one_millisecond_are_two_revisions_in_their_order() -> None:
    stamps = ("2026-11-22T10:00:00.226101+00:00", "2026-11-22T10:00:00.226915+00:00")
    edits = [message("message_changed", edited_timestamp=stamp) for stamp in stamps]
    first, second = [parse.inbound(edit, DM, view()) for edit in edits]
    assert first.dedup_key != second.dedup_key
    assert first.order < second.order


def test_the_mention_of_the_bot_goes_and_others_become_names() -> None:
    assert inbound("message_mention", GENERAL).text == "what is @Bob doing?"


def test_what_a_message_answers_is_quoted() -> None:
    assert inbound("message_reply", GENERAL).text == "> Bob wrote: it rains\n\nreally?"
    assert inbound("message_reply", GENERAL).in_reply_to == "1573810574444199940"


def test_a_quoted_command_stays_a_text() -> None:
    said = message("message_reply")
    quoted = msgspec.structs.replace(said.referenced_message, content="/model x\n/help")
    text = parse.text_of(msgspec.structs.replace(said, referenced_message=quoted), view())
    assert text.startswith("> Bob wrote: /model x\n> /help\n\n")


@pytest.mark.parametrize(
    ("strategy", "session"),
    [
        ("thread", f"{GENERAL.id}:t{THREAD.id}"),
        ("chat", GENERAL.id),
        ("chat_user", f"{GENERAL.id}:u{{user}}"),
    ],
)
def test_conversations_by_strategy(strategy: str, session: str) -> None:
    user = PAYLOADS["message_thread"]["author"]["id"]
    found = inbound("message_thread", THREAD, session_strategy=strategy)
    assert found.session == f"discord:{ME}:{session.format(user=user)}"
    assert found.address == Address(
        "discord", ME, GENERAL.id, thread=THREAD.id, reply_to=found.dedup_key, group=True
    )


def test_a_thread_that_will_be_opened_has_the_id_of_its_message() -> None:
    found = inbound("message_mention", GENERAL, threads="open")
    assert found.address.thread == found.dedup_key == found.session.rpartition(":t")[2]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("interaction_slash", "/model openai/other"),
        ("interaction_message", "> Bob wrote: it rains\n\nWhat about this?"),
        ("interaction_user", "Who is Bob (id {bob})?"),
    ],
)
def test_commands_are_texts(name: str, text: str) -> None:
    interaction = read(PAYLOADS[name], Interaction)
    found = parse.from_command(interaction, GENERAL, view())
    assert found is not None
    assert found.text == text.format(bob=PAYLOADS["interaction_user"]["data"].get("target_id"))
    assert found.dedup_key == interaction.id
    assert found.address.reply_to == f"{interaction.id}:{interaction.token}"
    assert found.session == inbound("message_mention", GENERAL).session


def test_a_voice_message_is_heard_and_not_a_file() -> None:
    spoken = Attachment("1", "voice-message.ogg", "u", content_type="audio/ogg", waveform="AAA=")
    assert received(spoken, b"hi") == Audio("data:audio/ogg;base64,aGk=", "audio/ogg")
    found = parse.inbound(message("message_dm", content=""), DM, view(), (), Audio("data:,x"))
    assert (found.kind, found.text, found.audio) == ("audio", "", Audio("data:,x"))


@pytest.mark.parametrize(
    ("url", "ours"),
    [
        ("https://cdn.discordapp.com/attachments/1/2/a.png?ex=1", True),
        ("https://media.discordapp.net/a.png", True),
        ("http://cdn.discordapp.com/a.png", False),
        ("https://cdn.discordapp.com.evil.example/a.png", False),
        ("https://evil.example/cdn.discordapp.com", False),
        ("http://169.254.169.254/latest", False),
        ("file:///etc/passwd", False),
        ("https://cdn.discordapp.com@evil.example/", False),
    ],
)
def test_files_are_loaded_from_discord_alone(url: str, *, ours: bool) -> None:
    assert may_download(url, "https://discord.com/api/v10") is ours


def test_only_people_speak() -> None:
    assert parse.is_user_message(message("message_dm"), ME)
    assert not parse.is_user_message(message("message_own"), ME)
    assert not parse.is_user_message(message("message_dm", webhook_id="5"), ME)
    assert not parse.is_user_message(message("message_dm", type=21), ME)
    other = PAYLOADS["message_dm"]["author"] | {"bot": True}
    assert not parse.is_user_message(message("message_dm", author=other), ME)


@pytest.mark.parametrize(
    ("when", "content", "meant"),
    [
        ("mention", "hello", False),
        ("mention", f"hello <@{ME}>", True),
        ("mention", f"hello <@!{ME}>", True),
        ("mention", "/help", True),
        ("mention", "/shrug", False),
        ("reply", f"hello <@{ME}>", False),
        ("command", f"hello <@{ME}>", False),
        ("command", f"<@{ME}> /help me", True),
        ("always", "hello", True),
    ],
)
def test_whom_a_message_in_a_server_is_meant_for(when: str, content: str, *, meant: bool) -> None:
    said = message("message_mention", content=content)
    assert parse.should_answer(said, GENERAL, view(groups=when)) is meant
    assert parse.should_answer(said, DM, view(groups=when))


@pytest.mark.parametrize("key", ["9" * 20, "-1", "", "1\n", "١٢", "9300000000000000000", "1.5", "0x10"])
def test_an_id_is_a_number_that_a_database_can_keep(key: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        message("message_dm", id=key)


async def test_chats_are_learnt_and_asked_for() -> None:
    asked: list[str] = []

    async def ask(key: str) -> Any:
        asked.append(key)
        if key == THREAD.id:
            return PAYLOADS["thread_create"]
        raise LookupError(key)

    chats = Chats(ask)
    for channel in read(PAYLOADS["guild_create"], Guild).channels:
        chats.put(chat_of(channel, ME))
    guild = PAYLOADS["guild_create"]["id"]
    assert await chats.resolve(GENERAL.id, guild, None, ME) == GENERAL
    assert await chats.resolve("5", None, None, ME) == Chat("5", "dm")
    assert await chats.resolve("6", guild, 0, ME) == Chat("6", "channel")
    assert asked == []
    assert await chats.resolve(THREAD.id, guild, 11, ME) == THREAD
    assert await chats.resolve("7", guild, 11, ME) == Chat("7", "channel")
    assert asked == [THREAD.id, "7"]
    chats.join(THREAD.id)
    assert (await chats.resolve(THREAD.id, guild, 11, ME)).joined
    chats.apply_event("THREAD_DELETE", PAYLOADS["thread_create"], ME)
    assert chats.known(THREAD.id) is None


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.just("x" * 100_000),
    st.just("\ud800\0"),
    st.just("9" * 5000),
    st.lists(st.none(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from paths(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(len(value)):
            yield from paths(value[index], (*path, index))


@st.composite
def mangled(draw: st.DrawFn) -> tuple[str, Any]:
    name = draw(st.sampled_from(sorted(PAYLOADS)))
    payload = copy.deepcopy(PAYLOADS[name])
    for _ in range(draw(st.integers(1, 3))):
        found = list(paths(payload))
        if not found:
            break
        *above, last = draw(st.sampled_from(found))
        inside = payload
        for step in above:
            inside = inside[step]
        if draw(st.booleans()):
            inside[last] = draw(ODD)
        else:
            del inside[last]
    return name, draw(st.sampled_from([payload, payload, payload, draw(ODD)]))


def taken(name: str, payload: Any) -> InboundMessage | None:
    """Parse an event as the channel does."""
    if name.startswith("message") and name != "message_deleted":
        said = read(payload, Message)
        if parse.is_user_message(said, ME) and parse.should_answer(said, GENERAL, view()):
            return parse.inbound(said, GENERAL, view())
    elif name.startswith("interaction"):
        return parse.from_command(read(payload, Interaction), GENERAL, view())
    else:
        kinds: dict[str, Any] = {"ready": Ready, "guild_create": Guild}
        read(payload, kinds.get(name, Channel))
    return None


@settings(max_examples=1500, deadline=None)
@given(mangled())
def test_a_mangled_event_is_read_or_put_aside(event: tuple[str, Any]) -> None:
    try:
        found = taken(*event)
    except PARSE_ERRORS:
        return
    if found is not None:
        assert 0 <= found.order < 2**63
        assert "\0" not in found.session + found.dedup_key + (found.revises or "")
        assert len(found.text) < 50_000
