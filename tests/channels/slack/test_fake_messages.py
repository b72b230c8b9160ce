"""Messages of an app in the fake: posting, editing, deleting, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from channels.slack.fake import FakeSlack
from tests.channels.slack.apps import plain

Json = dict[str, Any]


def rich_text(*inside: Json) -> Json:
    return rich_parts(rich_section(*inside))


def rich_parts(*parts: Json) -> Json:
    return {"type": "rich_text", "elements": [*parts]}


def rich_section(*inside: Json) -> Json:
    return {"type": "rich_text_section", "elements": [*(inside or ({"type": "text", "text": "a"},))]}


def section(text: str) -> Json:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}


def key(value: str) -> Json:
    return {"event_type": "placed", "event_payload": {"k": value}}


def button(number: int, **more: Any) -> Json:
    label = {"type": "plain_text", "text": f"b{number}"}
    return {"type": "button", "action_id": f"a{number}", "text": label, **more}


def actions(*elements: Json) -> Json:
    return {"type": "actions", "elements": list(elements)}


async def test_a_message_is_in_its_channel_and_has_the_fields_of_slack() -> None:
    async with plain() as (fake, api):
        room = fake.chat("general").id
        told = await api.call("chat.postMessage", channel="#general", text="a & b")
        message = told["message"]
        assert told["channel"] == room
        assert (message["type"], message["ts"], message["text"]) == ("message", told["ts"], "a &amp; b")
        assert message["user"] == (await api.call("auth.test"))["user_id"]
        assert message["bot_profile"]["app_id"] == message["app_id"] == fake.app.id
        assert fake.answers("general") == ["a &amp; b"]


async def test_a_users_id_stands_for_the_direct_message_with_them() -> None:
    async with plain() as (fake, api):
        ada = fake.user("ada")
        told = await api.call("chat.postMessage", channel=ada.id, text="hi")
        assert told["channel"].startswith("D")
        assert fake.answers("@ada") == ["hi"]


@pytest.mark.parametrize(
    ("room", "error"),
    [("nowhere", "channel_not_found"), ("secret", "channel_not_found"), ("old", "is_archived")],
)
async def test_there_are_rooms_that_cannot_be_written_to(room: str, error: str) -> None:
    async with plain() as (fake, api):
        fake.open_chat("secret", "ada", kind="group", with_bot=False)
        fake.open_chat("old", archived=True)
        assert (await api.call("chat.postMessage", channel=room, text="hi"))["error"] == error
        fake.transcript.check()


async def test_a_room_the_bot_is_not_in_takes_its_messages_only_with_a_scope_for_that() -> None:
    async with plain(installed=False) as (fake, api):
        room = fake.open_chat("lounge", with_bot=False)
        narrow = fake.install(scopes=["chat:write"]).token
        assert (await api.call("chat.postMessage", narrow, channel=room, text="hi"))[
            "error"
        ] == "not_in_channel"
        wide = fake.install(scopes=["chat:write", "chat:write.public"]).token
        assert (await api.call("chat.postMessage", wide, channel=room, text="hi"))["ok"]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "no_text"),
        ({"text": ""}, "no_text"),
        ({"text": "a", "markdown_text": "b"}, "markdown_text_conflict"),
        ({"markdown_text": "x" * 12_001}, "msg_too_long"),
        ({"text": "a", "blocks": "[{"}, "invalid_blocks_format"),
        ({"text": "a", "blocks": {"type": "divider"}}, "invalid_blocks_format"),
        ({"text": "a", "attachments": [{"text": "x"}] * 101}, "too_many_attachments"),
        ({"text": "a", "metadata": {"event_type": "k"}}, "invalid_metadata_schema"),
        ({"text": "a", "metadata": [1]}, "invalid_metadata_format"),
        ({"text": "a", "metadata": key("x" * 9_000)}, "metadata_too_large"),
        ({"text": "a", "thread_ts": ""}, "invalid_thread_ts"),
        ({"text": "a", "thread_ts": "1.000000"}, "invalid_thread_ts"),
        ({"blocks": [{"type": "markdown", "text": "x" * 6_001}] * 2}, "msg_blocks_too_long"),
        ({"blocks": [section("x" * 2_700)] * 5}, "msg_blocks_too_long"),
        ({"blocks": [{"type": "table", "rows": [[rich_text()]]}] * 2}, "invalid_attachments"),
    ],
)
async def test_content_that_slack_does_not_take_is_refused_and_noted(given: Json, error: str) -> None:
    async with plain() as (fake, api):
        told = await api.call("chat.postMessage", channel="general", **given)
        assert told["error"] == error
        assert len(fake.transcript.problems) == 1
        assert fake.messages("general") == []


@pytest.mark.parametrize(
    "blocks",
    [
        [{"type": "divider"}] * 51,
        [section("x" * 3_001)],
        [section("")],
        [{"type": "section", "fields": [section("a")["text"]] * 11}],
        [{"type": "section", "fields": [section("x" * 2_001)["text"]]}],
        [{"type": "section"}],
        [{"type": "header", "text": section("a")["text"]}],
        [{"type": "header", "text": {"type": "plain_text", "text": "x" * 151}}],
        [actions(*(button(number) for number in range(26)))],
        [actions(button(1), button(1))],
        [actions(button(1, value="x" * 2_001))],
        [actions(button(1, style="loud"))],
        [actions(button(1, action_id="x" * 256))],
        [actions(button(1, text={"type": "plain_text", "text": "x" * 76}))],
        [actions({"type": "lever"})],
        [actions({"type": "static_select", "action_id": "a", "options": []})],
        [actions()],
        [{"type": "context", "elements": [section("a")["text"]] * 11}],
        [{"type": "image", "image_url": "https://example.org"}],
        [rich_text({"type": "rich_text_list", "style": "bullet", "elements": []})],
        [rich_text({"type": "text", "text": ""})],
        [rich_parts({"type": "rich_text_list", "style": "dashed", "elements": [rich_section()]})],
        [
            rich_parts(
                {"type": "rich_text_list", "style": "bullet", "indent": 9, "elements": [rich_section()]}
            )
        ],
        [
            rich_parts(
                {"type": "rich_text_list", "style": "bullet", "elements": [{"type": "text", "text": "a"}]}
            )
        ],
        [rich_parts({"type": "rich_text_preformatted", "elements": [{"type": "user", "user_id": "U1"}]})],
        [rich_parts({"type": "text", "text": "a"})],
        [{"type": "table", "rows": [[{"type": "raw_text", "text": "a"}] * 21]}],
        [{"type": "table", "rows": [[{"type": "raw_text", "text": "a"}]] * 101}],
        [{"type": "table", "rows": [[{"type": "raw_text", "text": ""}]]}],
        [{"type": "table", "rows": [[{"type": "mrkdwn", "text": "a"}]]}],
        [{"type": "table", "rows": []}],
        [{"type": "table", "rows": [[rich_text()]], "column_settings": [{"align": "justify"}]}],
        [{"type": "table", "rows": [[{"type": "raw_text", "text": "x" * 10_001}]]}],
        [{"type": "divider", "block_id": "b"}] * 2,
        [{"type": "hologram"}],
        ["divider"],
    ],
)
async def test_blocks_that_slack_does_not_take_are_refused_and_noted(blocks: list[Any]) -> None:
    async with plain() as (fake, api):
        told = await api.call("chat.postMessage", channel="general", text="a", blocks=blocks)
        assert told["error"] == "invalid_blocks"
        assert len(fake.transcript.problems) == 1
        assert fake.messages("general") == []


async def test_a_block_that_is_refused_is_pointed_to() -> None:
    async with plain() as (_, api):
        blocks = [{"type": "divider"}, section("x" * 3_001)]
        told = await api.call("chat.postMessage", channel="general", text="a", blocks=blocks)
        message = "must be less than 3001 characters [json-pointer:/blocks/1/text/text]"
        assert told["errors"] == [message]
        assert told["response_metadata"]["messages"] == [f"[ERROR] {message}"]


async def test_content_at_every_limit_is_taken() -> None:
    async with plain() as (fake, api):
        many = [{"type": "divider"}] * 49 + [section("x" * 3_000)]
        markdown = [{"type": "markdown", "text": "x" * 12_000}]
        full = [actions(*(button(number, value="v" * 2_000) for number in range(25)))]
        for blocks in (many, markdown, full):
            assert (await api.call("chat.postMessage", channel="general", text="a", blocks=blocks))["ok"]
        assert (await api.call("chat.postMessage", channel="general", markdown_text="x" * 12_000))["ok"]
        fake.transcript.check()


async def test_a_text_that_is_too_long_is_cut_with_a_warning() -> None:
    async with plain() as (fake, api):
        told = await api.call("chat.postMessage", channel="general", text="x" * 40_001)
        assert told["warning"] == "message_truncated"
        assert len(told["message"]["text"]) == 40_000
        assert "40001 characters" in fake.transcript.problems[0]


@pytest.mark.parametrize(
    "given",
    [
        {"text": "<!here> all"},
        {"text": "<!channel|channel>"},
        {"text": "<!everyone>"},
        {"text": "hello <@U0000000099>"},
        {"text": "<!subteam^S0000000001>"},
        {"markdown_text": "look <!channel>"},
        {"text": "a", "blocks": [section("<!here>")]},
        {"text": "a", "blocks": [{"type": "markdown", "text": "<@U0000000099>"}]},
        {
            "text": "a",
            "blocks": [rich_text({"type": "broadcast", "range": "here"})],
        },
        {"text": "@here come", "link_names": True},
        {"text": "a", "attachments": [{"fields": [{"value": "<!channel>"}]}]},
        {"text": "@channel come", "parse": "full"},
        {"text": "if a < b"},
        {"text": "a", "blocks": [section("<script>")]},
    ],
)
async def test_markup_that_pings_or_is_not_escaped_is_noted(given: Json) -> None:
    async with plain() as (fake, api):
        assert (await api.call("chat.postMessage", channel="general", **given))["ok"]
        with pytest.raises(AssertionError):
            fake.transcript.check()


@pytest.mark.parametrize(
    "given",
    [
        {"text": "&lt;!here&gt; and &lt;@U0000000099&gt;"},
        {"text": "<https://example.org|a link> in <#C0000000001|general>"},
        {"text": "@here is only text"},
        {"text": "> a quotation"},
        {"markdown_text": "if a < b"},
        {"text": "<!date^1392734382^{date}|then>"},
    ],
)
async def test_markup_that_notifies_no_user_is_accepted(given: Json) -> None:
    async with plain() as (fake, api):
        assert (await api.call("chat.postMessage", channel="general", **given))["ok"]
        fake.transcript.check()


async def test_whom_the_bot_may_mention_can_be_said() -> None:
    async with plain() as (fake, api):
        ada = fake.user("ada").id
        fake.switches.may_ping.add(ada)
        assert (await api.call("chat.postMessage", channel="general", text=f"<@{ada}> hi"))["ok"]
        fake.transcript.check()


async def test_a_reply_hangs_on_its_thread() -> None:
    async with plain() as (fake, api):
        root = fake.say("general", "question")
        told = await api.call("chat.postMessage", channel="general", text="answer", thread_ts=root)
        assert told["message"]["parent_user_id"] == fake.user("ada").id
        room = fake.chat("general")
        assert room.messages[root]["reply_count"] == 1
        assert room.messages[root]["latest_reply"] == told["ts"]
        assert [said.text for said in fake.messages("general", thread=root)] == ["question", "answer"]
        deeper = await api.call("chat.postMessage", channel="general", text="more", thread_ts=told["ts"])
        assert deeper["message"]["thread_ts"] == root
        assert fake.transcript.problems == [
            "chat.postMessage: thread_ts names a reply instead of the thread's first message"
        ]


async def test_a_reply_can_be_broadcast() -> None:
    async with plain() as (fake, api):
        root = fake.say("general", "question")
        arguments = {"thread_ts": root, "reply_broadcast": True}
        told = await api.call("chat.postMessage", channel="general", text="answer", **arguments)
        assert told["message"]["subtype"] == "thread_broadcast"
        assert told["message"]["root"]["ts"] == root
        history = await api.call("conversations.history", channel=fake.chat("general").id)
        assert [one["text"] for one in history["messages"]] == ["answer", "question"]


async def test_a_message_is_changed_in_place() -> None:
    async with plain() as (fake, api):
        posted = await api.call("chat.postMessage", channel="general", text="one", metadata=key("n1"))
        place = {"channel": posted["channel"], "ts": posted["ts"]}
        told = await api.call("chat.update", **place, text="two")
        assert (told["text"], told["message"]["edited"]["user"]) == ("two", posted["message"]["user"])
        assert told["message"]["metadata"] == key("n1")
        told = await api.call("chat.update", **place, text="two", blocks=[section("shown")], metadata={})
        assert "metadata" not in told["message"]
        assert fake.answers("general") == ["shown"]
        assert (await api.call("chat.update", **place, text="three", blocks=[]))["ok"]
        assert fake.answers("general") == ["three"]
        fake.transcript.check()


async def test_a_change_of_text_alone_does_not_say_what_becomes_of_the_blocks() -> None:
    async with plain() as (fake, api):
        posted = await api.call("chat.postMessage", channel="general", text="a", blocks=[section("a")])
        await api.call("chat.update", channel=posted["channel"], ts=posted["ts"], text="b")
        assert "state which to keep" in fake.transcript.problems[0]


async def test_a_change_holds_4000_characters() -> None:
    async with plain() as (fake, api):
        posted = await api.call("chat.postMessage", channel="general", text="one")
        place = {"channel": posted["channel"], "ts": posted["ts"]}
        assert (await api.call("chat.update", **place, text="x" * 4_000))["ok"]
        fake.transcript.check()
        assert (await api.call("chat.update", **place, text="x" * 4_001))["error"] == "msg_too_long"
        assert fake.transcript.problems == ["chat.update: the text has 4001 characters"]


async def test_only_its_own_messages_are_the_bots_to_change() -> None:
    async with plain() as (fake, api):
        room = fake.chat("general").id
        ts = fake.say("general", "mine")
        told = await api.call("chat.update", channel=room, ts=ts, text="yours")
        assert told["error"] == "cant_update_message"
        assert (await api.call("chat.delete", channel=room, ts=ts))["error"] == "cant_delete_message"
        assert (await api.call("chat.delete", channel=room, ts="1.000000"))["error"] == "message_not_found"


async def test_the_time_to_change_a_message_can_be_over() -> None:
    async with plain() as (fake, api):
        posted = await api.call("chat.postMessage", channel="general", text="one")
        fake.switches.edit_window = 60
        place = {"channel": posted["channel"], "ts": posted["ts"]}
        assert (await api.call("chat.update", **place, text="two"))["ok"]
        fake.state.stamps.skew = 120
        assert (await api.call("chat.update", **place, text="three"))["error"] == "edit_window_closed"


async def test_rich_text_is_only_replaced_by_rich_text() -> None:
    async with plain() as (_, api):
        rich = rich_text({"type": "text", "text": "a"})
        posted = await api.call("chat.postMessage", channel="general", text="a", blocks=[rich])
        place = {"channel": posted["channel"], "ts": posted["ts"]}
        told = await api.call("chat.update", **place, text="b", blocks=[section("b")])
        assert told["error"] == "block_mismatch"


async def test_a_deleted_message_is_gone() -> None:
    async with plain() as (fake, api):
        posted = await api.call("chat.postMessage", channel="general", text="one")
        assert (await api.call("chat.delete", channel=posted["channel"], ts=posted["ts"]))["ok"]
        assert fake.messages("general") == []


async def test_an_ephemeral_message_is_for_one_and_in_no_history() -> None:
    async with plain() as (fake, api):
        fake.say("general", "hi")
        room, ada = fake.chat("general").id, fake.user("ada").id
        told = await api.call("chat.postEphemeral", channel=room, user=ada, text="psst")
        assert [said.text for said in fake.hidden("general")] == ["psst"]
        assert fake.answers("general") == []
        assert fake.hidden("general", "bob") == []
        changed = await api.call("chat.update", channel=room, ts=told["message_ts"], text="louder")
        assert changed["error"] == "message_not_found"
        stranger = fake.user("stranger").id
        refused = await api.call("chat.postEphemeral", channel=room, user=stranger, text="psst")
        assert refused["error"] == "user_not_in_channel"


async def test_another_name_needs_a_scope() -> None:
    async with plain(installed=False) as (fake, api):
        token = fake.install(scopes=["chat:write"]).token
        told = await api.call("chat.postMessage", token, channel="general", text="hi", username="Boss")
        assert (told["error"], told["needed"]) == ("missing_scope", "chat:write.customize")


async def test_reactions_are_set_once_and_taken_back() -> None:
    async with plain() as (fake, api):
        item = {"channel": fake.chat("general").id, "timestamp": fake.say("general", "hi")}
        bot = (await api.call("auth.test"))["user_id"]
        assert (await api.call("reactions.add", **item, name="eyes"))["ok"]
        assert (await api.call("reactions.add", **item, name="eyes"))["error"] == "already_reacted"
        assert (await api.call("reactions.add", **item, name="no such"))["error"] == "invalid_name"
        assert fake.messages("general")[0].reactions == {"eyes": (bot,)}
        fake.react("general", item["timestamp"], "eyes")
        got = await api.form("reactions.get", **item)
        assert got["message"]["reactions"][0]["count"] == 2
        assert (await api.call("reactions.remove", **item, name="eyes"))["ok"]
        assert (await api.call("reactions.remove", **item, name="eyes"))["error"] == "no_reaction"
        wrong = {**item, "timestamp": "yesterday"}
        assert (await api.call("reactions.add", **wrong, name="eyes"))["error"] == "bad_timestamp"


async def test_a_message_can_be_found_by_its_metadata() -> None:
    async with plain() as (fake, api):
        room = fake.chat("general").id
        asked = fake.say("general", "question")
        await api.call("chat.postMessage", channel=room, text="x", metadata=key("n1"), thread_ts=asked)
        search = {"channel": room, "ts": asked, "oldest": asked}
        told = await api.form("conversations.replies", **search, include_all_metadata="true")
        assert [one["metadata"] for one in told["messages"] if "metadata" in one] == [key("n1")]
        blind = await api.form("conversations.replies", **search)
        assert blind["messages"][1]["metadata"] == {"event_type": "placed"}


async def test_a_message_has_an_address_for_people() -> None:
    async with plain() as (fake, api):
        ts = fake.say("general", "hi")
        room = fake.chat("general").id
        told = await api.form("chat.getPermalink", channel=room, message_ts=ts)
        assert told["permalink"].endswith(f"/archives/{room}/p{ts.replace('.', '')}")


async def test_stamps_only_grow() -> None:
    async with FakeSlack() as fake:
        stamps = [fake.say("general", str(number)) for number in range(200)]
        assert stamps == sorted(set(stamps))
