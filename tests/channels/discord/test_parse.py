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
from channels.discord.inflow import PARSE_ERRORS
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
    read,
)
from channels.discord.rooms import Chats, Roles
from gateway.channel import Address, Audio, InboundMessage, Quoted, Sender
from gateway.files import FileReader

pytestmark = pytest.mark.slow

PAYLOADS = {path.stem: json.loads(path.read_text()) for path in Path(__file__).parent.glob("payloads/*.json")}
ME = PAYLOADS["ready"]["user"]["id"]
DM = Chat(PAYLOADS["message_dm"]["channel_id"], "dm")
GUILD = PAYLOADS["guild_create"]["id"]
GENERAL = Chat(PAYLOADS["message_mention"]["channel_id"], "channel", guild=GUILD, name="general")
THREAD = Chat(
    PAYLOADS["message_thread"]["channel_id"],
    "thread",
    GENERAL.id,
    guild=GUILD,
    name=PAYLOADS["thread_create"]["name"],
)


def view(**options: Any) -> BotProfile:
    made = Options(token="t", **options)  # pyright: ignore[reportArgumentType] - pydantic makes a secret of it
    names = {("channel", GENERAL.id): "general", ("role", "77"): "team"}
    return BotProfile(
        "discord",
        ME,
        made,
        frozenset({"help", "model"}),
        lambda kind, key: names.get((kind, key), ""),
        {"78"},
    )


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
        sender=Sender(said["author"]["id"], "Ada", "ada"),
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


def test_marks_in_a_text_become_names() -> None:
    said = message(
        "message_mention",
        content=f"<@{ME}> <@&77> <@&78> <#{GENERAL.id}> <#5> <:wave:12> <a:hop:13> <t:0:R> <t:9999999999999>",
    )
    text = parse.text_of(said, view())
    assert text == "@team <@&78> #general <#5> :wave: :hop: 1970-01-01 00:00 UTC <t:9999999999999>"


def test_a_member_goes_by_the_name_on_the_server() -> None:
    bob = {"id": "8", "username": "bob", "global_name": "Bob", "member": {"nick": "Bobby\n", "roles": []}}
    said = message(
        "message_mention", content="<@8> hi", mentions=[bob], member={"nick": "Countess", "roles": ["77"]}
    )
    found = parse.inbound(said, GENERAL, view())
    assert (found.sender.name, found.sender.username) == ("Countess", "ada")
    assert found.text == "@Bobby hi"


def test_stickers_and_polls_are_text() -> None:
    poll = {"question": {"text": "Lunch?"}, "answers": [{"poll_media": {"text": "soup"}}, {"poll_media": {}}]}
    said = message("message_dm", content="", sticker_items=[{"name": "Wave\n"}], poll=poll)
    assert parse.text_of(said, view()) == "[Sticker: Wave]\n[Poll: Lunch?]\n- soup\n-"
    for odd in ({"question": 5}, [1], "poll"):
        assert parse.text_of(message("message_dm", poll=odd, sticker_items=odd), view()) == "hello **you**"


def test_what_a_message_answers_is_quoted() -> None:
    said = message("message_reply")
    (other,) = parse.pointed(said, view())
    assert other.quote == Quoted("reply", "it rains", Sender(other.quote.sender.id, "Bob", "bob"))
    found = parse.inbound(said, GENERAL, view())
    assert (found.text, found.in_reply_to) == ("really?", "1573810574444199940")


@pytest.mark.parametrize(
    ("changes", "quotes"),
    [
        ({"content": "<@8> /help"}, 1),
        ({"content": f"<@{ME}> /help"}, 0),
        ({"referenced_message": None}, 0),
    ],
)
def test_commands_and_deleted_messages_have_no_quote(changes: dict[str, Any], quotes: int) -> None:
    assert len(parse.pointed(message("message_reply", **changes), view())) == quotes


def forward(*snapshots: Any) -> Message:
    reference = {"type": 1, "channel_id": "5", "message_id": "6"}
    return message("message_dm", content="", message_reference=reference, message_snapshots=list(snapshots))


def test_a_forwarded_message_is_a_quote_and_not_text() -> None:
    cards = [
        {"type": "rich", "title": "Alert", "fields": [{"name": "disk", "value": "full"}]},
        {"type": "link"},
    ]
    said = forward({"message": {"content": "yes", "embeds": cards}})
    assert parse.text_of(said, view()) == ""
    assert [other.quote for other in parse.pointed(said, view())] == [
        Quoted("forward", "yes\nAlert\ndisk: full")
    ]


@pytest.mark.parametrize("odd", [5, None, {}, {"message": 1}, {"message": {"content": 3}}, [[]], "text"])
def test_invalid_snapshots_are_left_out(odd: Any) -> None:
    good = {"message": {"content": "fine"}}
    assert [other.quote.text for other in parse.pointed(forward(odd, good), view())] == ["fine"]
    said = msgspec.structs.replace(forward(), message_snapshots=odd)
    assert parse.pointed(said, view()) == ()


def test_long_quotes_are_cut() -> None:
    (other,) = parse.pointed(forward({"message": {"content": "x" * 1_000_000}}), view())
    assert other.quote.text == "x" * 7_999 + "…"


def test_of_a_message_of_the_bot_only_the_files_are_quoted() -> None:
    said = message("message_reply")
    other = said.referenced_message
    assert other is not None
    mine = msgspec.structs.replace(other, author=msgspec.structs.replace(other.author, id=ME))
    assert parse.pointed(msgspec.structs.replace(said, referenced_message=mine), view()) == ()
    mine = msgspec.structs.replace(mine, attachments=(Attachment("1", "plan.png", "u"),))
    (found,) = parse.pointed(msgspec.structs.replace(said, referenced_message=mine), view())
    assert (found.quote.text, found.quote.own, len(found.attachments)) == ("", True, 1)


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
    title = f"#general / {THREAD.name}"
    assert found.address == Address(
        "discord", ME, GENERAL.id, thread=THREAD.id, reply_to=found.dedup_key, group=True, title=title
    )
    assert found.written_in == THREAD.id


def test_a_thread_that_will_be_opened_has_the_id_of_its_message() -> None:
    found = inbound("message_mention", GENERAL, threads="open")
    assert found.address.thread == found.dedup_key == found.session.rpartition(":t")[2]
    assert (found.written_in, found.address.title) == (None, "#general")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("interaction_slash", "/model openai/other"),
        ("interaction_message", "What about this?"),
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
    assert found.addressed == "command"
    assert [other.quote.text for other in parse.shared(interaction, view())] == ["it rains"] * (
        name == "interaction_message"
    )


async def test_a_voice_message_is_heard_and_not_a_file() -> None:
    spoken = Attachment("1", "voice-message.ogg", "u", content_type="audio/ogg", waveform="AAA=")
    assert await received(spoken, b"hi", FileReader().read) == Audio(
        "data:audio/ogg;base64,aGk=", "audio/ogg"
    )


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


JOINED = msgspec.structs.replace(THREAD, joined=True)


@pytest.mark.parametrize(
    ("content", "chat", "way"),
    [
        ("hello", GENERAL, "none"),
        (f"hello <@{ME}>", GENERAL, "mention"),
        (f"hello <@!{ME}>", GENERAL, "mention"),
        (f"<@{ME}>", GENERAL, "mention"),
        ("hello <@&78>", GENERAL, "mention"),
        ("hello <@&77>", GENERAL, "none"),
        ("<@&78> /help", GENERAL, "command"),
        ("/help", GENERAL, "command"),
        ("/shrug", GENERAL, "none"),
        (f"<@{ME}> /help me", GENERAL, "command"),
        ("hello", THREAD, "none"),
        ("hello", JOINED, "thread"),
        ("hello <@8>", JOINED, "thread"),
        ("<@8> hello", JOINED, "none"),
        (f"<@8> ask <@{ME}>", JOINED, "mention"),
        (f"<@{ME}> and you?", JOINED, "thread"),
        (f"<@{ME}> <@8> said so", JOINED, "mention"),
        (f"<@{ME}>", JOINED, "thread"),
        ("hello", DM, "direct"),
        (f"<@{ME}>", DM, "mention"),
        ("/help", DM, "direct"),
    ],
)
def test_how_a_message_addresses_the_bot(content: str, chat: Chat, way: str) -> None:
    said = message("message_mention", content=content)
    assert parse.addressed(said, chat, view()) == way


def test_a_reply_to_the_bot_addresses_it_and_a_forward_of_its_words_does_not() -> None:
    said = message("message_reply", content="really?")
    assert said.referenced_message is not None
    author = msgspec.structs.replace(said.referenced_message.author, id=ME)
    mine = msgspec.structs.replace(said.referenced_message, author=author)
    reply = msgspec.structs.replace(said, referenced_message=mine)
    assert parse.addressed(said, GENERAL, view()) == "none"
    assert parse.addressed(reply, GENERAL, view()) == "reply"
    named = msgspec.structs.replace(reply, content=f"<@{ME}> really?")
    assert parse.addressed(named, GENERAL, view()) == "reply"
    reference = msgspec.structs.replace(reply.message_reference, type=1)
    assert (
        parse.addressed(msgspec.structs.replace(reply, message_reference=reference), GENERAL, view())
        == "none"
    )


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

    async def ask_guild(key: str) -> Any:
        asked.append(key)
        raise LookupError(key)

    chats = Chats(ask, ask_guild)
    chats.put_guild(read(PAYLOADS["guild_create"], Guild), ME)
    assert await chats.resolve(GENERAL.id, GUILD, None, ME) == GENERAL
    assert await chats.resolve("5", None, None, ME) == Chat("5", "dm")
    assert await chats.resolve("6", GUILD, 0, ME) == Chat("6", "channel", guild=GUILD)
    assert asked == []
    assert await chats.resolve(THREAD.id, GUILD, 11, ME) == THREAD
    assert await chats.resolve("7", GUILD, 11, ME) == Chat("7", "channel", guild=GUILD)
    assert asked == [THREAD.id, "7"]
    chats.join(THREAD.id)
    assert (await chats.resolve(THREAD.id, GUILD, 11, ME)).joined
    chats.apply_event("CHANNEL_UPDATE", {"id": GENERAL.id, "type": 0, "name": "lounge"}, ME)
    assert chats.name("channel", GENERAL.id) == "lounge"
    chats.apply_event("GUILD_ROLE_UPDATE", {"role": {"id": "4", "name": "team"}}, ME)
    assert (chats.name("role", "4"), chats.name("role", "5")) == ("team", "")
    chats.apply_event("THREAD_DELETE", PAYLOADS["thread_create"], ME)
    assert chats.known(THREAD.id) is None
    # An unknown server is asked for once.
    await chats.resolve("8", "99", 0, ME)
    await chats.resolve("9", "99", 0, ME)
    assert asked == [THREAD.id, "7", "99"]


async def test_roles_are_known_for_five_minutes_and_unknown_ones_are_none() -> None:
    now, answers, asked = [1000.0], {"1": ["77"]}, list[str]()

    async def ask(guild: str, user: str) -> list[str]:
        asked.append(guild)
        if guild == "down":
            raise OSError(guild)
        return answers.get(guild, [])

    roles = Roles(ask, lambda: now[0])
    assert roles.of("ada") == frozenset()
    roles.note("1", "ada", ["77", "78"])
    assert roles.of("ada") == {"77", "78"}
    roles.note("1", "ada", ["79"], age=60)
    assert roles.of("ada") == {"77", "78"}, "an older state does not replace a newer one"
    now[0] += 299
    assert roles.of("ada") == {"77", "78"}
    await roles.refresh("ada", ["1"])
    assert asked == []
    now[0] += 2
    assert roles.of("ada") == frozenset()
    with pytest.raises(OSError, match="down"):
        await roles.refresh("ada", ["down"])
    assert roles.of("ada") == frozenset()
    await roles.refresh("ada", ["1", "2"])
    assert roles.of("ada") == {"77"}
    answers["1"] = []
    now[0] += 301
    await roles.refresh("ada", ["1", "2"])
    assert roles.of("ada") == frozenset()
    roles.note("1", "eve", ["80"], age=301)
    assert roles.of("eve") == frozenset()


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
        if parse.is_user_message(said, ME):
            assert all(len(other.quote.text) <= 8_000 for other in parse.pointed(said, view()))
            return parse.inbound(said, GENERAL, view())
    elif name.startswith("interaction"):
        return parse.from_command(read(payload, Interaction), GENERAL, view())
    else:
        kinds: dict[str, Any] = {"ready": Ready, "guild_create": Guild}
        read(payload, kinds.get(name, Channel))
    return None


@settings(max_examples=500, deadline=None)
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


def test_the_options_of_a_command_are_limited() -> None:
    payload = copy.deepcopy(PAYLOADS["interaction_slash"])
    payload["data"]["options"][0]["value"] = "x" * 100_000
    found = parse.from_command(read(payload, Interaction), GENERAL, view())
    assert found is not None
    assert found.text == "/model " + "x" * 16_000
