"""The Slack channel with faults of the platform, outages and crashes."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import random
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from channels.slack.connection import team_of
from channels.slack.fake import FakeSlack
from gateway.app import Gateway
from gateway.store import schema as t
from gateway.testing.fake_models.script import Gate, Reply, Say
from gateway.testing.fake_models.server import FakeModels
from tests.channels.slack.gateways import gateway_at, settings_of, settled, states, until

pytestmark = pytest.mark.slow

PAYLOADS = [
    json.loads(path.read_text()) for path in sorted((Path(__file__).parent / "payloads").glob("*.json"))
]

ODD: list[Any] = [None, "", 0, [], {}, ["x"], {"a": 1}, "x" * 20_000, "\0", "1.5", True]


@pytest.mark.parametrize("chat", ["@ada", "general"])
@pytest.mark.parametrize("times", [1, 3])
async def test_a_message_that_was_placed_when_the_gateway_died_is_found_again(
    tmp_path: Path, chat: str, times: int
) -> None:
    """Slack has the message, but its answer reached no process."""
    async with FakeSlack() as fake, FakeModels() as models:
        never = asyncio.Event()
        for _ in range(times):
            models.then(Reply((Say("One "), Gate(never))))
        fake.then("drop_after", method="chat.postMessage" if chat == "@ada" else "chat.startStream")
        for run in range(times):
            async with gateway_at(fake, tmp_path, models) as gateway:
                if run == 0:
                    fake.say(chat, "count @trunkline")
                await fake.until(lambda: fake.answers(chat) == ["One"])
                gateway.parts.dispatcher.cancel()
        models.forget()
        models.then(Reply((Say("Uno dos."),)))
        async with gateway_at(fake, tmp_path, models) as gateway:
            await settled(gateway, "done")
        assert fake.answers(chat) == ["Uno dos."]
        assert not any(said.streaming for said in fake.messages(chat))
        never.set()
    fake.transcript.check()


async def test_a_stream_that_slack_ended_continues_as_edits(tmp_path: Path) -> None:
    first, second = asyncio.Event(), asyncio.Event()
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        models.then(Reply((Say("One "), Gate(first), Say("two "), Gate(second), Say("three."))))
        fake.say("general", "count @trunkline")
        await fake.until(lambda: fake.answers("general") == ["One"])
        fake.clock.advance(301)
        first.set()
        await fake.until(lambda: fake.answers("general") == ["One two"])
        second.set()
        await settled(gateway, "done")
        assert fake.answers("general") == ["One two three."]
    fake.transcript.check()


@pytest.mark.parametrize("chat", ["@ada", "general"])
async def test_an_answer_whose_message_was_deleted_is_posted_again_and_once(
    tmp_path: Path, chat: str
) -> None:
    go_on = asyncio.Event()
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        models.then(Reply((Say("One "), Gate(go_on), Say("two."))))
        fake.say(chat, "count @trunkline")
        await fake.until(lambda: fake.answers(chat) == ["One"])
        shown = next(said for said in fake.messages(chat) if said.bot)
        fake.delete(chat, shown.ts)
        go_on.set()
        await settled(gateway, "done")
        assert fake.answers(chat) == ["One two."]
    fake.transcript.check()


@pytest.mark.parametrize("chat", ["@ada", "general"])
async def test_an_answer_that_takes_longer_than_the_workspace_allows_edits_is_posted_again_and_once(
    tmp_path: Path, chat: str
) -> None:
    go_on = asyncio.Event()
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        fake.switches.edit_window = 60
        models.then(Reply((Say("One "), Gate(go_on), Say("two."))))
        fake.say(chat, "count @trunkline")
        await fake.until(lambda: fake.answers(chat) == ["One"])
        fake.state.stamps.skew = 120
        go_on.set()
        await settled(gateway, "done")
        assert fake.answers(chat) == ["One two."]
    fake.transcript.check()


async def test_a_long_answer_streams_over_several_messages(tmp_path: Path) -> None:
    words = [f"word{number} " for number in range(1500)]
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        opened = asyncio.Event()
        models.then(Reply((Say("".join(words[:1000])), Gate(opened), Say("".join(words[1000:])))))
        fake.say("general", "count @trunkline")
        await fake.until(lambda: len(fake.answers("general")) == 3)
        opened.set()
        await settled(gateway, "done")
        shown = " ".join(fake.answers("general")).split()
        assert shown == [word.strip() for word in words]
        assert not any(said.streaming for said in fake.messages("general"))
        nonces = [said.raw["metadata"]["event_payload"]["k"] for said in fake.messages("general") if said.bot]
        assert len(set(nonces)) == len(nonces) == 4
    fake.transcript.check()


@pytest.mark.parametrize("chat", ["general", "@ada"])
async def test_complete_pages_of_a_long_answer_are_not_edited_again(tmp_path: Path, chat: str) -> None:
    """Each page is posted or completed once; only the last one changes when the answer ends."""
    gates = [asyncio.Event() for _ in range(3)]
    text = [f"{number} " + "word " * 1_000 for number in range(3)]
    steps = [step for said, gate in zip(text, gates, strict=True) for step in (Say(said), Gate(gate))]
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        models.then(Reply((*steps, Say("The end."))))
        fake.say(chat, "tell me more @trunkline")
        for number, gate in enumerate(gates, 1):
            await fake.until(lambda number=number: len(fake.answers(chat)) > number)
            gate.set()
        await settled(gateway, "done")
        assert " ".join(fake.answers(chat)).split() == [*"".join(text).split(), "The", "end."]
    shown: dict[str, Any] = {}
    for call in fake.transcript.of("chat.postMessage", "chat.update"):
        assert shown.get(call.answer["ts"]) != call.arguments["blocks"], "nothing is shown twice"
        shown[call.answer["ts"]] = call.arguments["blocks"]
    stopped = [call.arguments["ts"] for call in fake.transcript.of("chat.stopStream")]
    assert len(set(stopped)) == len(stopped)
    assert not set(stopped) & {call.arguments["ts"] for call in fake.transcript.of("chat.update")}
    fake.transcript.check()


@pytest.mark.parametrize("odd", [True, [], "odd", 7, {"ok": True}, {"ok": True, "ts": 5}])
@pytest.mark.parametrize("method", ["chat.postMessage", "chat.update", "chat.startStream", "chat.stopStream"])
async def test_answers_of_an_unexpected_shape_neither_lose_nor_double_a_message(
    tmp_path: Path, method: str, odd: Any
) -> None:
    go_on = asyncio.Event()
    chat = "general" if "Stream" in method else "@ada"
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        models.then(Reply((Say("One "), Gate(go_on), Say("two."))))
        fake.answer_next(method, odd, odd)
        fake.say(chat, "count @trunkline")
        await fake.until(lambda: fake.answers(chat) == ["One"])
        go_on.set()
        await settled(gateway, "done")
        assert fake.answers(chat) == ["One two."]


async def test_a_token_that_is_revoked_shows_at_once(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        fake.say("@ada", "hello")
        await settled(gateway, "done")
        assert gateway.health()["slack"] == (True, "")
        for grant in fake.state.team_of(None).grants:
            grant.revoked = "token_revoked"
        fake.deliver_event({"type": "tokens_revoked", "tokens": {"bot": ["U1"]}})
        await until(lambda: "rejected bot_token" in gateway.health()["slack"][1])


async def test_a_probe_that_has_to_wait_is_made_again_and_leaves_no_red_health(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        fake.say("@ada", "hello")
        await settled(gateway, "done")
        asked = len(fake.transcript.of("auth.test"))
        fake.then("slow_down", "fail_before", method="auth.test")
        fake.deliver_event({"type": "tokens_revoked", "tokens": {"user": ["U1"]}})  # of a person, not the bot
        await until(lambda: len(fake.transcript.of("auth.test")) == asked + 3)
        await until(lambda: gateway.health()["slack"] == (True, ""))


async def test_an_answer_waits_for_a_token_that_is_accepted(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        models.then(Reply((Gate(gate), Say("Done."))))
        fake.say("@ada", "hello")
        await until(lambda: models.requests)
        for grant in fake.state.team_of(None).grants:
            grant.revoked = "token_revoked"
        gate.set()
        await until(lambda: "token_revoked" in gateway.health()["slack"][1])
        assert await states(gateway) == ["new"], "it is kept until it can be placed"
        gateway.parts.dispatcher.cancel()


async def test_an_answer_for_a_workspace_that_removed_the_app_is_a_dead_letter(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        models.then(Reply((Gate(gate), Say("Done."))))
        fake.say("@ada", "hello")
        await until(lambda: models.requests)
        fake.uninstall()
        gate.set()
        await settled(gateway, "dead")
        (letter,) = await dead_letters(gateway)
        assert "the app was removed from the workspace" in letter
        await until(lambda: "the app was removed from the workspace" in gateway.health()["slack"][1])


async def test_an_answer_for_a_channel_that_was_archived_says_what_to_do(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        models.then(Reply((Gate(gate), Say("Done."))))
        team = fake.open_chat("team", "ada")
        fake.say(team, "hello @trunkline", user="ada")
        await until(lambda: models.requests)
        fake.state.team_of(None).chats[team].archived = True
        gate.set()
        await settled(gateway, "dead")
        (letter,) = await dead_letters(gateway)
        assert letter.endswith(": is_archived; unarchive the channel")


@pytest.mark.parametrize("others", [False, True])
async def test_an_answer_is_a_dead_letter_if_the_app_was_removed_during_an_outage(
    tmp_path: Path, *, others: bool
) -> None:
    async with FakeSlack(teams=("acme", "umbrella")) as fake, FakeModels() as models:
        tokens: dict[str, Any] = {"bot_token": fake.token("acme")}
        tokens["workspaces"] = [fake.token("umbrella")] if others else []
        async with gateway_at(fake, tmp_path, models, **tokens) as gateway:
            models.then(Reply((Gate(asyncio.Event()),)))
            fake.say("@ada", "hello", team="acme")
            await until(lambda: models.requests)
            gateway.parts.dispatcher.cancel()
        fake.uninstall("acme")
        gateway = Gateway(settings_of(tmp_path, models, fake, **tokens))
        async with gateway.running():
            await settled(gateway, "dead")
            (letter,) = await dead_letters(gateway)
            assert "no token for this workspace" in letter
            assert "the app was removed from the workspace" in gateway.health()["slack"][1]


async def dead_letters(gateway: Gateway) -> list[str]:
    """Return the reasons of all dead letters."""
    return await gateway.parts.store.read(lambda c: list(c.execute(select(t.dead_letter.c.reason)).scalars()))


async def test_a_slack_that_is_away_is_waited_for(tmp_path: Path) -> None:
    opened = asyncio.Event()
    async with FakeModels() as models:
        models.then(Reply((Say("One "), Gate(opened), Say("two."))))
        async with FakeSlack() as fake:
            settings = settings_of(tmp_path, models, fake)
            port = int(fake.url.rpartition(":")[2])
            gateway = Gateway(settings)
            async with gateway.running():
                await fake.until(lambda: fake.sockets.live)
                fake.say("@ada", "count")
                await fake.until(lambda: fake.answers("@ada") == ["One"])
                await fake.__aexit__(None, None, None)
                await until(lambda: not gateway.health()["slack"][0])
                opened.set()
                back = FakeSlack(port=port)
                back.state.teams, back.state.tokens = fake.state.teams, fake.state.tokens
                back.state.names = fake.state.names
                async with back:
                    await settled(gateway, "done")
                    assert back.answers("@ada") == ["One two."]
                    await until(lambda: gateway.health()["slack"][0])
                    back.transcript.check()


async def test_an_active_channel_is_read_before_the_others(tmp_path: Path) -> None:
    async with FakeSlack() as fake:
        for number in range(60):
            fake.open_chat(f"room{number}")
        async with gateway_at(fake, tmp_path, pace=1) as gateway:
            fake.say("room59", "hello @trunkline")
            await settled(gateway, "done")
            assert len(fake.transcript.of("conversations.history")) < 61
            assert fake.answers("room59") == ["You said: hello"]
    fake.transcript.check()


async def test_an_edit_during_an_outage_is_answered(tmp_path: Path) -> None:
    async with FakeSlack(pace=1000) as fake:
        async with gateway_at(fake, tmp_path) as gateway:
            ts = fake.say("@ada", "helo")
            await settled(gateway, "done")
        fake.edit("@ada", ts, "hello")
        await fake.until(lambda: all(one.lost or one.acknowledged for one in fake.deliveries))
        async with gateway_at(fake, tmp_path) as gateway:
            await settled(gateway, "merged", "done")
            assert "You said: hello" in fake.answers("@ada")
    fake.transcript.check()


async def test_what_was_said_before_the_bot_came_is_left_alone(tmp_path: Path) -> None:
    async with FakeSlack(pace=1000) as fake:
        fake.say("@ada", "before")
        await fake.until(lambda: all(one.lost for one in fake.deliveries))
        async with gateway_at(fake, tmp_path) as gateway:
            fake.say("@ada", "now")
            await settled(gateway, "done")
            assert fake.answers("@ada") == ["You said: now"]
    fake.transcript.check()


@pytest.mark.parametrize("skew", [-7200, 7200])
async def test_a_wrong_clock_neither_loses_messages_nor_answers_old_ones(tmp_path: Path, skew: float) -> None:
    """Slack's time differs from that of the machine when the account is connected for the first time."""
    async with FakeSlack(pace=1000) as fake:
        fake.state.stamps.skew = skew
        fake.say("@ada", "before")
        await fake.until(lambda: all(one.lost for one in fake.deliveries))
        async with gateway_at(fake, tmp_path) as gateway:
            await until(lambda: gateway.health()["slack"][0])
        fake.state.stamps.skew += 2
        fake.say("@ada", "during an outage")
        await fake.until(lambda: all(one.lost for one in fake.deliveries))
        async with gateway_at(fake, tmp_path) as gateway:
            await settled(gateway, "done")
            assert fake.answers("@ada") == ["You said: during an outage"]
    fake.transcript.check()


async def test_all_limits_are_kept(tmp_path: Path) -> None:
    """More answers are in progress at once than Slack lets streams begin and end in a minute."""
    rooms = [f"room{number}" for number in range(20)]
    finish = asyncio.Event()
    async with FakeSlack() as fake, FakeModels() as models:
        fake.switches.limited = True
        models.then(*[Reply((Say("One "), Gate(finish), Say("two.")))] * 60)
        async with gateway_at(fake, tmp_path, models, pace=1) as gateway:
            for room in rooms * 3:
                fake.say(room, "count @trunkline")
            await fake.until(lambda: len(models.requests) == 60)
            # Half of the limit, because each stream has to be ended, too.
            await fake.until(lambda: len(fake.transcript.of("chat.startStream")) >= 12)
            finish.set()
            await settled(gateway, *["done"] * 60)
        assert [fake.answers(room) for room in rooms] == [["One two."] * 3] * 20
        assert [call.method for call in fake.transcript.calls if call.status == 429] == []
    fake.transcript.check()


async def test_the_channel_survives_any_delivery(tmp_path: Path) -> None:
    dice = random.Random(7)
    async with FakeSlack() as fake, gateway_at(fake, tmp_path, groups="always") as gateway:
        fake.chat("general")
        odd = [fake.deliver_raw(_mutated(dice)) for _ in range(200)]
        ours = [one for one in odd if team_of(one.payload) in ("", fake.state.team_of(None).id)]
        assert len(ours) > 150
        await fake.until(lambda: all(one.acknowledged for one in ours))
        fake.say("@ada", "hello")
        await fake.until(lambda: "You said: hello" in fake.answers("@ada"))
        assert len(fake.sockets.live) == 1
        assert fake.sockets.opened == 1
        gateway.parts.dispatcher.cancel()


def _mutated(dice: random.Random) -> dict[str, Any]:
    payload = copy.deepcopy(dice.choice(PAYLOADS))
    for _ in range(dice.randint(1, 3)):
        place: Any = payload
        while True:
            keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key: Any = dice.choice(keys)
            if isinstance(place[key], dict | list) and place[key] and dice.random() < 0.8:
                place = place[key]
                continue
            if dice.random() < 0.3:
                del place[key]
            else:
                place[key] = dice.choice(
                    [None, "", 0, [], {}, ["x"], {"a": 1}, "x" * 20_000, "\0", "1.5", True]
                )
            break
    return payload


async def test_an_app_without_agents_and_with_few_scopes_answers(tmp_path: Path) -> None:
    scopes = ["chat:write", "im:history", "channels:history", "app_mentions:read"]
    async with FakeSlack(installed=False) as fake:
        fake.install(scopes=scopes)
        fake.switches.agent = False
        async with gateway_at(fake, tmp_path) as gateway:
            fake.say("@ada", "hello")
            fake.say("general", "hi @trunkline")
            await settled(gateway, "done", "done")
            assert fake.answers("@ada") == ["You said: hello"]
            assert fake.answers("general") == ["You said: hi"]
            assert len(fake.transcript.of("reactions.add")) <= 1
    fake.transcript.check()


async def test_socket_mode_that_is_switched_off_shows(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        await until(lambda: gateway.health()["slack"][0])
        await fake.disable_sockets()
        await until(lambda: not gateway.health()["slack"][0])
        fake.switches.socket_mode = True
        await until(lambda: gateway.health()["slack"][0])


async def test_answers_in_a_thread_that_is_followed(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        root = fake.say("general", "hello @trunkline")
        await settled(gateway, "done")
        await fake.until(lambda: fake.answers("general"))
        fake.user("bob")
        fake.say("general", "@bob and you?", thread=root)
        fake.say("general", "not for you")
        fake.say("general", "and more", thread=root)
        await settled(gateway, "done", "done")
        shown = [said.text for said in fake.messages("general", thread=root) if said.bot]
        assert shown == ["You said: hello", "You said: and more"]
    fake.transcript.check()


async def test_a_channel_can_be_one_conversation(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path, session_strategy="chat") as gateway:
        fake.say("general", "hello @trunkline")
        await settled(gateway, "done")
        (answer,) = [said for said in fake.messages("general") if said.bot]
        assert answer.thread is None
    fake.transcript.check()


async def test_nothing_unfurls_and_every_message_can_be_found(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        fake.say("@ada", "https://example.org <!here>")
        await settled(gateway, "done")
        (call,) = fake.transcript.of("chat.postMessage")
        assert call.arguments["unfurl_links"] is False
        assert call.arguments["unfurl_media"] is False
        assert len(call.arguments["metadata"]["event_payload"]["k"]) == 24
        assert await states(gateway) == ["done"]
    fake.transcript.check()


async def test_a_shortcut_on_a_message_is_answered_in_its_thread(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        ts = fake.say("general", "what is this")
        assert (await fake.message_shortcut("trunkline_ask", "general", ts).settled()).acknowledged
        await settled(gateway, "done")
        (answer,) = [said for said in fake.messages("general", thread=ts) if said.bot]
        assert answer.text.startswith("You said: [Shared from Ada (@ada)]\nwhat is this\n")
    fake.transcript.check()


async def test_nothing_shows_a_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    async with FakeSlack() as fake:
        accounts = {"good": {}, "wrong": {"bot_token": "xoxb-wrong", "app_token": "xapp-wrong"}}
        async with gateway_at(fake, tmp_path, accounts=accounts) as gateway:
            fake.then("fail_before", "slow_down", "drop_after")
            fake.say("@ada", "hello", files=[("notes.txt", b"milk")])
            await settled(gateway, "done")
            fake.lose_sockets()
            await fake.until(lambda: fake.sockets.live)
            shown = caplog.text + "".join(capfd.readouterr()) + str(gateway.health())
        secrets = (fake.bot_token, fake.app_token, fake.app.signing_secret, "xoxb-wrong", "xapp-wrong")
        assert [secret for secret in secrets if secret in shown] == []
