"""Acts of users in the fake, and the events that an app receives."""

from __future__ import annotations

from typing import Any

import pytest

from channels.slack.fake import FakeSlack
from tests.channels.slack.apps import Plain, bolt, connect, in_socket_mode, plain

Json = dict[str, Any]


def events(fake: FakeSlack) -> list[Json]:
    """Return the events that the app received."""
    return [one.payload["event"] for one in fake.deliveries if one.kind == "events_api"]


def kinds(fake: FakeSlack) -> list[tuple[str, str | None]]:
    """Return the types and subtypes of the events."""
    return [(event["type"], event.get("subtype")) for event in events(fake)]


async def posted(api: Plain, *elements: Json, **more: Any) -> str:
    """Post a message with buttons as the bot."""
    blocks = [{"type": "actions", "elements": list(elements)}]
    told = await api.call("chat.postMessage", channel="general", text="?", blocks=blocks, **more)
    return told["ts"]


def button(name: str, **more: Any) -> Json:
    return {"type": "button", "action_id": name, "text": {"type": "plain_text", "text": name.title()}, **more}


async def test_a_mention_comes_twice_under_one_stamp() -> None:
    async with plain() as (fake, api):
        bot = (await api.call("auth.test"))["user_id"]
        ts = fake.say("general", "hello @trunkline")
        message, mention = events(fake)
        assert (message["type"], mention["type"]) == ("message", "app_mention")
        assert message["ts"] == mention["ts"] == ts
        assert message["text"] == mention["text"] == f"hello <@{bot}>"
        assert message["client_msg_id"] == mention["client_msg_id"]
        ids = {delivery.payload["event_id"] for delivery in fake.deliveries}
        assert len(ids) == 2


async def test_in_a_direct_message_a_mention_is_a_message_only() -> None:
    async with FakeSlack() as fake:
        fake.say("@ada", "hello @trunkline")
        assert kinds(fake) == [("message", None)]
        assert events(fake)[0]["channel_type"] == "im"


async def test_what_is_typed_is_sent_as_slack_sends_it() -> None:
    async with FakeSlack() as fake:
        bob = fake.user("bob").id
        room = fake.chat("general").id
        fake.say("general", "1 < 2 & @bob, see #general. @here @nobody")
        fake.say("general", "is <https://a.example/?x=1&y=2>, b@c.example?")
        texts = [event["text"] for event in events(fake)]
        assert texts[0] == f"1 &lt; 2 &amp; <@{bob}>, see <#{room}|general>. <!here> @nobody"
        assert texts[1] == "is &lt;<https://a.example/?x=1&amp;y=2>&gt;, b@c.example?"
        words = events(fake)[0]["blocks"][0]["elements"][0]["elements"]
        assert [word["type"] for word in words] == [
            "text",
            "user",
            "text",
            "channel",
            "text",
            "broadcast",
            "text",
        ]
        assert words[0]["text"] == "1 < 2 & "


async def test_an_app_hears_only_of_rooms_that_it_is_in() -> None:
    async with FakeSlack() as fake:
        fake.open_chat("lounge", "ada", with_bot=False)
        fake.say("lounge", "about @trunkline")
        assert events(fake) == []
        fake.invite("lounge")
        fake.say("lounge", "hi")
        assert kinds(fake) == [("member_joined_channel", None), ("message", None)]


async def test_edits_and_deletions_are_sent_as_events() -> None:
    async with FakeSlack() as fake:
        ts = fake.say("general", "one")
        fake.edit("general", ts, "two")
        assert fake.messages("general")[0].edited
        fake.delete("general", ts)
        _, changed, deleted = events(fake)
        assert (changed["subtype"], deleted["subtype"]) == ("message_changed", "message_deleted")
        assert (changed["previous_message"]["text"], changed["message"]["text"]) == ("one", "two")
        assert changed["message"]["ts"] == deleted["deleted_ts"] == ts
        assert ts < changed["ts"] < deleted["ts"]
        assert fake.messages("general") == []


async def test_a_deleted_message_with_replies_leaves_a_tombstone() -> None:
    async with plain() as (fake, api):
        root = fake.say("general", "one")
        fake.say("general", "two", thread=root)
        fake.delete("general", root)
        assert events(fake)[-1]["message"]["subtype"] == "tombstone"
        room = fake.chat("general").id
        told = await api.form("conversations.replies", channel=room, ts=root)
        assert [one["text"] for one in told["messages"]] == ["This message was deleted.", "two"]


async def test_a_reply_can_be_shown_in_the_room_too() -> None:
    async with FakeSlack() as fake:
        root = fake.say("general", "one")
        fake.say("general", "two", "bob", thread=root, broadcast=True)
        event = events(fake)[-1]
        assert (event["subtype"], event["thread_ts"], event["root"]["text"]) == (
            "thread_broadcast",
            root,
            "one",
        )


async def test_the_bots_own_messages_come_back_to_it() -> None:
    async with plain() as (fake, api):
        told = await api.call("chat.postMessage", channel="general", text="hi")
        event = events(fake)[0]
        assert (event["ts"], event["app_id"], "bot_id" in event) == (told["ts"], fake.app.id, True)
        await api.call("chat.update", channel=told["channel"], ts=told["ts"], text="ho")
        assert kinds(fake)[1] == ("message", "message_changed")


async def test_bolt_does_not_hear_itself() -> None:
    async with FakeSlack() as fake:
        app = bolt(fake)
        heard: list[str] = []

        @app.event("message")
        async def said(event: Any, say: Any) -> None:
            heard.append(event["text"])
            await say("echo")

        async with in_socket_mode(fake, app):
            fake.say("general", "one")
            await fake.until(lambda: fake.answers("general"))
            fake.another_bot_says("general", "two")
            await fake.until(lambda: all(one.acknowledged for one in fake.deliveries))
        assert heard[0] == "one"
        assert "echo" not in heard


async def test_reactions_are_sent_as_events() -> None:
    async with FakeSlack() as fake:
        ts = fake.say("general", "hi", "bob")
        fake.react("general", ts, "eyes")
        fake.react("general", ts, "eyes", add=False)
        added, removed = events(fake)[1:]
        assert (added["type"], removed["type"]) == ("reaction_added", "reaction_removed")
        assert added["item"] == {"type": "message", "channel": fake.chat("general").id, "ts": ts}
        assert added["item_user"] == fake.user("bob").id


async def test_the_home_tab_and_a_group_are_there() -> None:
    async with FakeSlack() as fake:
        fake.open_app("ada", "home")
        assert (events(fake)[0]["type"], events(fake)[0]["tab"]) == ("app_home_opened", "home")
        fake.say(fake.open_chat("pals", "ada", "bob", kind="mpim"), "hi")
        assert events(fake)[1]["channel_type"] == "mpim"


async def test_one_gesture_can_have_two_stamps() -> None:
    async with FakeSlack() as fake:
        first = fake.say("general", "hi", client_msg_id="m1")
        second = fake.say("general", "hi", client_msg_id="m1")
        assert first < second
        assert {event["client_msg_id"] for event in events(fake)} == {"m1"}


async def test_a_button_tells_where_it_was_pressed() -> None:
    async with plain() as (fake, api):
        root = fake.say("general", "may I?")
        ts = await posted(api, button("allow", value="42", style="primary"), thread_ts=root)
        socket = await connect(fake, api)
        delivery = fake.press("general", ts, "Allow", "bob")
        payload = (await socket.read())["payload"]
        assert payload["user"]["id"] == fake.user("bob").id
        assert payload["container"] == {
            "type": "message",
            "message_ts": ts,
            "channel_id": fake.chat("general").id,
            "is_ephemeral": False,
            "thread_ts": root,
        }
        action = payload["actions"][0]
        assert (action["action_id"], action["value"], action["style"]) == ("allow", "42", "primary")
        assert payload["message"]["blocks"][0]["block_id"] == action["block_id"]
        await socket.ack({"envelope_id": delivery.envelope})
        assert (await delivery.settled()).acknowledged


async def test_an_option_is_chosen() -> None:
    async with plain() as (fake, api):
        options = [{"text": {"type": "plain_text", "text": text}, "value": text} for text in ("a", "b")]
        ts = await posted(api, {"type": "static_select", "action_id": "pick", "options": options})
        payload = fake.press("general", ts, "pick", option="b").payload
        assert payload["actions"][0]["selected_option"] == options[1]
        with pytest.raises(LookupError):
            fake.press("general", ts, "pick", option="c")
        with pytest.raises(LookupError):
            fake.press("general", ts, "no such button")


async def test_feedback_buttons_are_pressed_by_their_label() -> None:
    async with plain() as (fake, api):
        sides = {
            f"{side}_button": {"text": {"type": "plain_text", "text": text}, "value": side}
            for side, text in (("positive", "Good"), ("negative", "Bad"))
        }
        element = {"type": "feedback_buttons", "action_id": "rate", **sides}
        blocks = [{"type": "context_actions", "elements": [element]}]
        told = await api.call("chat.postMessage", channel="general", text="?", blocks=blocks)
        action = fake.press("general", told["ts"], "Bad").payload["actions"][0]
        assert (action["type"], action["action_id"], action["value"]) == (
            "feedback_buttons",
            "rate",
            "negative",
        )


async def test_a_response_url_can_be_used_five_times_in_half_an_hour() -> None:
    async with plain() as (fake, api):
        ts = await posted(api, button("go"))
        url = fake.press("general", ts, "go").payload["response_url"]
        for number in range(5):
            async with api.http.post(url, json={"text": str(number), "replace_original": False}) as answer:
                assert (answer.status, await answer.text()) == (200, "ok")
        async with api.http.post(url, json={"text": "6"}) as answer:
            assert (answer.status, await answer.json()) == (404, {"ok": False, "error": "used_url"})
        assert len(fake.hidden("general")) == 5
        fresh = fake.press("general", ts, "go").payload["response_url"]
        fake.clock.advance(30 * 60 + 1)
        async with api.http.post(fresh, json={"text": "late"}) as answer:
            assert (await answer.json())["error"] == "expired_url"
        assert len(fake.transcript.problems) == 2


async def test_a_response_replaces_or_deletes_what_was_acted_on() -> None:
    async with plain() as (fake, api):
        ts = await posted(api, button("go"))
        url = fake.press("general", ts, "go").payload["response_url"]
        await (await api.http.post(url, json={"text": "done", "replace_original": True})).read()
        assert fake.answers("general") == ["done"]
        await (await api.http.post(url, json={"delete_original": True})).read()
        assert fake.answers("general") == []


@pytest.mark.parametrize(
    "body",
    ["[]", '"x"', "x", '{"text": 5}', '{"blocks": "x"}', '{"blocks": [1]}', '{"thread_ts": 5}', "{}"],
)
async def test_a_response_that_is_none_is_refused(body: str) -> None:
    async with plain() as (fake, api):
        url = fake.command("general", "/ask").payload["response_url"]
        async with api.http.post(url, data=body) as answer:
            assert (answer.status, (await answer.json())["ok"]) == (400, False)
        assert fake.transcript.problems
        assert fake.hidden("general") == []


async def test_an_ephemeral_message_has_buttons_too() -> None:
    async with plain() as (fake, api):
        fake.say("general", "hi")
        blocks = [{"type": "actions", "elements": [button("go")]}]
        room, ada = fake.chat("general").id, fake.user("ada").id
        told = await api.call("chat.postEphemeral", channel=room, user=ada, text="?", blocks=blocks)
        payload = fake.press("general", told["message_ts"], "go").payload
        assert payload["container"]["is_ephemeral"]
        assert "message" not in payload
        url = payload["response_url"]
        await (await api.http.post(url, json={"text": "done", "replace_original": True})).read()
        assert [said.text for said in fake.hidden("general")] == ["done"]


async def test_a_slash_command_that_is_not_acknowledged_fails_for_its_user() -> None:
    async with plain() as (fake, api):
        nobody = await fake.command("general", "/ask").settled()
        socket = await connect(fake, api)
        late = fake.command("@ada", "/ask me")
        payload = (await socket.read())["payload"]
        assert (payload["command"], payload["text"], payload["channel_name"]) == (
            "/ask",
            "me",
            "directmessage",
        )
        fake.clock.advance(3)
        await late.settled()
        assert (nobody.refused, late.refused) == ("dispatch_failed", "operation_timeout")
        assert [failure for _, failure in fake.notices] == ["dispatch_failed", "operation_timeout"]


async def test_a_slash_command_is_answered_with_its_acknowledgement() -> None:
    async with plain() as (fake, api):
        socket = await connect(fake, api)
        delivery = fake.command("general", "/ask")
        frame = await socket.read()
        assert frame["accepts_response_payload"]
        await socket.ack(frame, text="<!here> psst")
        await delivery.settled()
        assert [said.text for said in fake.hidden("general")] == ["<!here> psst"]
        assert fake.transcript.problems == ["slash_command: unescaped mention <!here>"]


async def test_shortcuts_open_modals_that_are_submitted() -> None:
    async with FakeSlack() as fake:
        app = bolt(fake)
        title = {"type": "plain_text", "text": "Ask"}
        entry = {"type": "plain_text_input", "action_id": "question"}
        field = {"type": "input", "block_id": "b", "element": entry, "label": title}
        view = {"type": "modal", "callback_id": "form", "title": title, "blocks": [field], "submit": title}
        heard: list[str] = []

        @app.shortcut("ask")
        async def ask(ack: Any, client: Any, shortcut: Any) -> None:
            await ack()
            await client.views_open(trigger_id=shortcut["trigger_id"], view=view)

        @app.view("form")
        async def form(ack: Any, view: Any) -> None:
            said = view["state"]["values"]["b"]["question"]["value"]
            heard.append(said)
            await (ack() if said else ack(response_action="errors", errors={"b": "Say something."}))

        async with in_socket_mode(fake, app):
            await fake.shortcut("ask").settled()
            await fake.until(lambda: fake.state.views)
            opened = next(iter(fake.state.views))
            await fake.submit(opened, {"b": {"question": {"value": ""}}}).settled()
            assert fake.state.views[opened]["errors"] == {"b": "Say something."}
            await fake.submit(opened, {"b": {"question": {"value": "why"}}}).settled()
        assert heard == ["", "why"]
        assert fake.state.views == {}
        fake.transcript.check()


async def test_a_trigger_opens_one_view_within_three_seconds() -> None:
    async with plain() as (fake, api):
        title = {"type": "plain_text", "text": "T"}
        view = {"type": "modal", "title": title, "blocks": []}
        ts = fake.say("general", "hi")
        trigger = fake.message_shortcut("quote", "general", ts).payload["trigger_id"]
        assert (await api.call("views.open", trigger_id=trigger, view=view))["ok"]
        again = await api.call("views.open", trigger_id=trigger, view=view)
        assert again["error"] == "exchanged_trigger_id"
        late = fake.shortcut("ask").payload["trigger_id"]
        fake.clock.advance(3.1)
        assert (await api.call("views.open", trigger_id=late, view=view))["error"] == "expired_trigger_id"
        assert (await api.call("views.open", trigger_id="9", view=view))["error"] == "invalid_trigger_id"


async def test_views_are_updated_and_published() -> None:
    async with plain() as (fake, api):
        home = {"type": "home", "blocks": [{"type": "divider"}]}
        ada = fake.user("ada").id
        shown = (await api.call("views.publish", user_id=ada, view=home))["view"]
        again = (await api.call("views.publish", user_id=ada, view=home))["view"]
        assert shown["id"] == again["id"]
        stale = await api.call("views.update", view_id=shown["id"], hash=shown["hash"], view=home)
        assert stale["error"] == "hash_conflict"
        assert (await api.call("views.update", view_id=shown["id"], hash=again["hash"], view=home))["ok"]
        wrong = await api.call("views.publish", user_id=ada, view={**home, "blocks": [{"type": "hologram"}]})
        assert "json-pointer:/view/blocks/0/type" in wrong["response_metadata"]["messages"][0]
        fake.close(shown["id"])
        assert fake.deliveries[-1].payload["type"] == "view_closed"
