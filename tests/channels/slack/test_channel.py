"""The Slack channel in a whole gateway, against the fake Slack over real sockets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from sqlalchemy import select

from channels.slack.fake import FakeSlack
from channels.slack.fake.accounts import all_scopes
from channels.slack.fake.people import ShownMessage
from gateway.app import Gateway
from gateway.store import schema as t
from gateway.testing.fake_models.script import Gate, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.fake_platform import FAULTS, Fault
from tests.channels.slack.gateways import gateway_at, settings_of, settled, states, until
from tests.documents import pdf, word
from tests.recordings import Speaking, ogg_opus
from tests.small_plugins import Shell

pytestmark = pytest.mark.slow

LONG = f"ls\u202e{' ' * 3000}; rm -rf /"


async def test_a_direct_message_is_answered(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        fake.say("@ada", "hello")
        await settled(gateway, "done")
        assert fake.answers("@ada") == ["You said: hello"]
    fake.transcript.check()


async def test_a_mention_is_answered_once_in_its_thread(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        ts = fake.say("general", "hello @trunkline")
        fake.say("general", "nobody asked")
        await settled(gateway, "done")
        assert [said.text for said in fake.messages("general", thread=ts) if said.bot] == ["You said: hello"]
        assert len(fake.answers("general")) == 1
    fake.transcript.check()


async def test_by_http_too(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path, mode="http", app_token="") as gateway:
        fake.say("@ada", "hello")
        await settled(gateway, "done")
        assert fake.answers("@ada") == ["You said: hello"]
        assert not fake.sockets.live
    fake.transcript.check()


async def test_an_answer_is_streamed_in_a_thread(tmp_path: Path) -> None:
    opened = asyncio.Event()
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        models.then(Reply((Say("**One** "), Gate(opened), Say("two <@U123> and <!here>."))))
        ts = fake.say("general", "count @trunkline")
        await fake.until(lambda: any(said.streaming for said in fake.messages("general", thread=ts)))
        await fake.until(lambda: fake.status("general", ts) is None or True)
        assert fake.answers("general") == ["**One**"]
        opened.set()
        await settled(gateway, "done")
        (shown,) = [said for said in fake.messages("general", thread=ts) if said.bot]
        assert shown.text == "**One** two <\u2060@U123> and <\u2060!here>."
        assert not shown.streaming
        assert fake.state.sessions[shown_room(fake, "general"), ts].status == "active"
        assert [c.method for c in fake.transcript.of("chat.postMessage", "chat.update")] == []
    fake.transcript.check()


def shown_room(fake: FakeSlack, chat: str) -> str:
    return fake.chat(chat).id


async def test_an_answer_is_edited_where_nothing_streams(tmp_path: Path) -> None:
    opened = asyncio.Event()
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        models.then(Reply((Say("One "), Gate(opened), Say("two."))))
        ts = fake.say("@ada", "count")
        await fake.until(lambda: fake.answers("@ada") == ["One"])
        bot = fake.state.team_of(None).bot
        assert bot is not None
        await fake.until(lambda: fake.messages("@ada")[0].reactions == {"eyes": (bot.id,)})
        opened.set()
        await settled(gateway, "done")
        assert fake.answers("@ada") == ["One two."]
        await fake.until(lambda: not fake.messages("@ada")[0].reactions)
        assert fake.messages("@ada")[0].ts == ts
    fake.transcript.check()


HEAD = "| a | b |\n|---|---|\n"


def kinds(shown: ShownMessage) -> list[str]:
    return [block["type"] for block in shown.raw["blocks"]]


async def test_a_table_grows_and_stays_one(tmp_path: Path) -> None:
    rows = [asyncio.Event(), asyncio.Event()]
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        said = (
            Say("See"),
            Gate(rows[0]),
            Say(f":\n\n{HEAD}| 1 | **2** |\n"),
            Gate(rows[1]),
            Say("| 3 | 4 |"),
        )
        models.then(Reply(said))
        fake.say("@ada", "count")
        await fake.until(lambda: fake.answers("@ada") == ["See"])
        rows[0].set()
        await fake.until(lambda: fake.answers("@ada") == ["See:\na | b\n1 | 2"])
        rows[1].set()
        await settled(gateway, "done")
        assert fake.answers("@ada") == ["See:\na | b\n1 | 2\n3 | 4"]
        assert "table" in kinds(fake.messages("@ada")[-1])
    fake.transcript.check()


async def test_where_slack_knows_no_tables_they_are_text_and_it_is_not_asked_twice(tmp_path: Path) -> None:
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        fake.switches.unknown_blocks = frozenset({"table"})
        for number in range(2):
            models.then(Reply((Say(f"{HEAD}| 1 | {number} |"),)))
            fake.say("@ada", "count")
            await settled(gateway, *["done"] * (number + 1))
        assert fake.answers("@ada") == [f"a  b\n─  ─\n1  {number}" for number in range(2)]
        refused = [call for call in fake.transcript.calls if call.answer and not call.answer["ok"]]
        assert [call.answer["error"] for call in refused] == ["invalid_blocks"]
    fake.transcript.check()


async def test_a_stream_that_slack_refuses_to_extend_is_ended_and_shows_the_answer(tmp_path: Path) -> None:
    opened = asyncio.Event()
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        models.then(Reply((Say("One "), Gate(opened), Say("two."))))
        fake.say("general", "count @trunkline")
        await fake.until(lambda: any(said.streaming for said in fake.messages("general")))
        (stream,) = fake.state.streams.values()
        stream.size = 12_000
        opened.set()
        await settled(gateway, "done")
        assert fake.answers("general") == ["One two."]
        assert not any(said.streaming for said in fake.messages("general"))
    assert all("the streamed message would have" in problem for problem in fake.transcript.problems)


async def test_without_streaming_only_the_finished_answer_is_shown(tmp_path: Path) -> None:
    opened = asyncio.Event()
    async with (
        FakeSlack() as fake,
        FakeModels() as models,
        gateway_at(fake, tmp_path, models, streaming=False) as gateway,
    ):
        for _ in range(2):
            models.then(Reply((Say("One "), Gate(opened), Say("two."))))
        fake.say("@ada", "count")
        ts = fake.say("general", "count @trunkline")
        await until(lambda: len(models.requests) == 2)
        await fake.until(lambda: fake.status("general", ts))
        opened.set()
        await settled(gateway, "done", "done")
        assert (fake.answers("@ada"), fake.answers("general")) == (["One two."], ["One two."])
    assert fake.transcript.of("chat.update", "chat.startStream") == []
    fake.transcript.check()


async def test_an_unauthorised_user_gets_a_pairing_code(tmp_path: Path) -> None:
    async with FakeSlack() as fake, FakeModels() as models:
        ada = fake.user("ada").id
        async with gateway_at(fake, tmp_path, models, allow=[ada]) as gateway:
            fake.say("@eve", "let me in", "eve")
            fake.say("general", "hello @trunkline", "eve")
            fake.say("@ada", "hello")
            await fake.until(lambda: fake.answers("@ada") and fake.answers("@eve"))
            await until(lambda: gateway.parts.dispatcher.waiting == 0)
        assert "trunkline pair approve" in fake.answers("@eve")[0]
        assert fake.answers("@ada") == ["You said: hello"]
        assert fake.answers("general") == []
        assert len(models.requests) == 1
    fake.transcript.check()


async def test_the_stop_button_stops(tmp_path: Path) -> None:
    opened = asyncio.Event()
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        models.then(Reply((Say("One "), Gate(opened), Say("two."))))
        ts = fake.say("general", "count @trunkline")
        await fake.until(lambda: any(said.streaming for said in fake.messages("general", thread=ts)))
        await fake.until(lambda: fake.status("general", ts))
        fake.stop("general", ts)
        await settled(gateway, "done")
        assert fake.answers("general") == ["One"]
        assert fake.state.sessions[shown_room(fake, "general"), ts].status == "active"
        assert not any(said.streaming for said in fake.messages("general"))
        opened.set()
    fake.transcript.check()


async def test_the_stop_button_works_before_the_first_word(tmp_path: Path) -> None:
    opened = asyncio.Event()
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        models.then(Reply((Gate(opened), Say("One"))))
        ts = fake.say("general", "count @trunkline")
        place = fake.chat("general").id, ts
        await fake.until(lambda: place in fake.state.sessions)
        fake.stop("general", ts)
        await settled(gateway, "done")
        await fake.until(lambda: fake.state.sessions[place].status == "active")
        assert fake.answers("general") == []
        opened.set()
    fake.transcript.check()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("chat", ["@ada", "general"])
async def test_a_call_that_goes_wrong_is_made_good_and_not_doubled(
    tmp_path: Path, fault: Fault, chat: str
) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        for method in (
            "chat.postMessage",
            "chat.startStream",
            "chat.appendStream",
            "chat.stopStream",
            "chat.update",
        ):
            fake.then(fault, method=method)
        fake.say(chat, "hello @trunkline")
        await settled(gateway, "done")
        assert [text.split("hello")[0] for text in fake.answers(chat)] == ["You said: "]
        assert not any(said.streaming for said in fake.messages(chat))
    fake.transcript.check()


@pytest.mark.parametrize("chat", ["@ada", "general"])
async def test_a_gateway_that_dies_in_mid_answer_finishes_it_in_its_place(tmp_path: Path, chat: str) -> None:
    never = asyncio.Event()
    async with FakeSlack() as fake, FakeModels() as models:
        async with gateway_at(fake, tmp_path, models) as gateway:
            models.then(Reply((Say("One "), Gate(never), Say("two."))))
            fake.say(chat, "count @trunkline")
            await fake.until(lambda: fake.answers(chat) == ["One"])
            gateway.parts.dispatcher.cancel()
        models.then(Reply((Say("Uno dos."),)))
        async with gateway_at(fake, tmp_path, models) as gateway:
            await settled(gateway, "done")
        assert fake.answers(chat) == ["Uno dos."]
        assert not any(said.streaming for said in fake.messages(chat))
        never.set()
    fake.transcript.check()


async def test_what_was_written_during_an_outage_is_answered_in_order(tmp_path: Path) -> None:
    async with FakeSlack(pace=1000) as fake:
        async with gateway_at(fake, tmp_path) as gateway:
            root = fake.say("general", "hello @trunkline")
            fake.say("@ada", "one")
            await settled(gateway, "done", "done")
        fake.say("@ada", "two")
        fake.say("@ada", "three")
        fake.say("@bob", "never met")
        fake.say("general", "and in the thread @trunkline", thread=root)
        fake.say("general", "and new @trunkline")
        await fake.until(lambda: all(one.lost or one.acknowledged for one in fake.deliveries))
        async with gateway_at(fake, tmp_path) as gateway:
            await settled(gateway, *["done"] * 7)
            assert fake.answers("@ada") == ["You said: one", "You said: two", "You said: three"]
            assert fake.answers("@bob") == ["You said: never met"]
            assert sorted(fake.answers("general")) == [
                "You said: and in the thread",
                "You said: and new",
                "You said: hello",
            ]
    fake.transcript.check()


async def test_what_was_changed_during_an_outage_is_answered_once_in_its_last_wording(tmp_path: Path) -> None:
    async with FakeSlack(pace=1000) as fake:
        async with gateway_at(fake, tmp_path) as gateway:
            known = fake.say("@ada", "one")
            await settled(gateway, "done")
        new = fake.say("@bob", "tow")
        for text in ("to", "two"):
            fake.edit("@bob", new, text, "bob")
        for text in ("on", "once"):
            fake.edit("@ada", known, text)
        missed = fake.deliveries[1:]
        await fake.until(lambda: all(one.lost or one.acknowledged for one in missed))
        async with gateway_at(fake, tmp_path) as gateway:
            await fake.until(lambda: fake.answers("@bob") and len(fake.answers("@ada")) == 2)
            for one in missed:
                late = fake.deliver_raw(one.payload)
                await fake.until(lambda late=late: late.acknowledged)
                await until(lambda: gateway.parts.dispatcher.waiting == 0)
            assert fake.answers("@bob") == ["You said: two"]
            assert fake.answers("@ada") == ["You said: one", "You said: once"]
    fake.transcript.check()


async def test_a_lost_socket_loses_nothing(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        for number in range(3):
            fake.say("@ada", f"number {number}")
            fake.lose_sockets()
        await settled(gateway, "done", "done", "done")
        assert fake.answers("@ada") == [f"You said: number {number}" for number in range(3)]
    fake.transcript.check()


async def test_a_refresh_leaves_no_gap(tmp_path: Path) -> None:
    async with FakeSlack(pace=10) as fake, gateway_at(fake, tmp_path) as gateway:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fake.refresh_sockets())
            await fake.until(lambda: len(fake.sockets.sockets) == 2)
            fake.say("@ada", "hello")
            await settled(gateway, "done")
        assert fake.deliveries[-1].attempts == 1
        assert fake.answers("@ada") == ["You said: hello"]
    fake.transcript.check()


async def test_what_comes_twice_is_answered_once(tmp_path: Path) -> None:
    async with FakeSlack(repeats=1) as fake, gateway_at(fake, tmp_path) as gateway:
        fake.say("@ada", "hello", client_msg_id="same")
        fake.say("@ada", "hello", client_msg_id="same")
        fake.say("@ada", "again")
        await settled(gateway, "done", "done")
        await fake.until(lambda: all(one.acknowledged for one in fake.deliveries))
        assert fake.answers("@ada") == ["You said: hello", "You said: again"]
    fake.transcript.check()


async def test_what_cannot_be_read_is_kept_and_stops_nothing(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        team = fake.state.team_of(None).id
        odd = [
            {
                "type": "event_callback",
                "team_id": team,
                "event": {"type": "message", "channel": 7, "ts": "x"},
            },
            {"type": "event_callback", "team_id": team, "event": None},
            {
                "type": "event_callback",
                "event": {"type": "message", "channel": "D1", "ts": "1.5", "user": []},
            },
            {"type": ["event_callback"], "team": 4, "event": 5},
            {"type": "block_actions", "actions": "none", "user": "x"},
            {"type": "unheard_of"},
        ]
        deliveries = [fake.deliver_raw(one) for one in odd]
        fake.say("@ada", "hello")
        await settled(gateway, "done")
        await fake.until(lambda: all(one.acknowledged for one in deliveries))
        kept = await gateway.parts.store.read(
            lambda c: list(c.execute(select(t.quarantine.c.reason)).scalars())
        )
        assert len(kept) >= 4
        assert fake.answers("@ada") == ["You said: hello"]
    fake.transcript.check()


async def test_buttons_decide(tmp_path: Path) -> None:
    async with (
        FakeSlack() as fake,
        FakeModels() as models,
        gateway_at(fake, tmp_path, models, (Shell(),), permissions={"shell": "ask"}) as gateway,
    ):
        models.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"), Reply((Say("Done."),)))
        ts = fake.say("general", "go @trunkline")
        await fake.until(lambda: any("May I run" in text for text in fake.answers("general")))
        prompt = next(said for said in fake.messages("general", thread=ts) if "May I run" in said.text)
        await fake.press("general", prompt.ts, "Allow once", "bob").settled()
        await fake.until(lambda: fake.hidden("general", "bob"))
        await fake.press("general", prompt.ts, "Allow once", "ada").settled()
        await settled(gateway, "done")
        await fake.until(lambda: any("✅ Allowed once" in text for text in fake.answers("general")))
        assert "Done." in "\n".join(fake.answers("general"))
        assert "✅ `shell ls`" in "\n".join(fake.answers("general")).replace("✅ shell ls", "✅ `shell ls`")
    fake.transcript.check()


async def test_a_question_about_an_answer_that_only_its_author_sees_is_asked_in_the_direct_chat(
    tmp_path: Path,
) -> None:
    async with (
        FakeSlack() as fake,
        FakeModels() as models,
        gateway_at(fake, tmp_path, models, (Shell(),), permissions={"shell": "ask"}) as gateway,
    ):
        whole = json.dumps({"command": "ls " + "x" * 3_000})
        models.then(Reply((Use("shell", whole),), "tools"), Reply((Say("Done."),)))
        await fake.command("general", "/bot-ask look").settled()
        prompt = await prompt_in(fake, "@ada")
        assert any(said.files for said in fake.messages("@ada"))
        await fake.press("@ada", prompt.ts, "Allow once").settled()
        await settled(gateway, "done")
        await fake.until(lambda: any("✅ Allowed once" in text for text in fake.answers("@ada")))
        assert fake.messages("general") == []
        assert "Done." in fake.hidden("general")[-1].text
    fake.transcript.check()


async def test_a_button_from_before_a_restart_decides_and_a_second_press_removes_it(
    tmp_path: Path,
) -> None:
    async with FakeSlack() as fake, FakeModels() as models:
        asking = {"permissions": {"shell": "ask"}, "streaming": False}
        async with gateway_at(fake, tmp_path, models, (Shell(),), **asking) as gateway:
            models.then(Reply((Use("shell", '{"command": "ls"}'),), "tools"))
            fake.say("@ada", "go")
            prompt = await prompt_in(fake, "@ada")
            raw = prompt.raw
            await until(lambda: all(one.shown for one in gateway.parts.questions._held.values()))
        models.then(Reply((Say("Done."),)))
        async with gateway_at(fake, tmp_path, models, (Shell(),), **asking) as gateway:
            await fake.press("@ada", prompt.ts, "Allow once").settled()
            await settled(gateway, "done")
            await fake.until(lambda: any("✅ Allowed once" in text for text in fake.answers("@ada")))
            assert sum("May I run" in text for text in fake.answers("@ada")) == 1
            fake.chat("@ada").messages[prompt.ts] = raw
            await fake.press("@ada", prompt.ts, "Deny").settled()
            await fake.until(lambda: fake.hidden("@ada"))
            assert [said.text for said in fake.hidden("@ada")] == ["This question was answered already."]
            # What the platform shows again is replaced by the outcome again.
            await fake.until(lambda: any("✅ Allowed once" in text for text in fake.answers("@ada")))
            assert "actions" not in str(fake.chat("@ada").messages[prompt.ts].get("blocks"))
    fake.transcript.check()


def argument_files(fake: FakeSlack, chat: str) -> dict[str, object]:
    """Return the JSON files in a chat, by their names."""
    shown = [file for said in fake.messages(chat) for file in said.raw.get("files", ())]
    found = {file["name"]: fake.state.files[file["id"]] for file in shown}
    assert len(found) == len(shown)
    return {name: json.loads(file.content or b"") for name, file in found.items() if not file.deleted}


async def prompt_in(fake: FakeSlack, chat: str, newest: int = 1) -> ShownMessage:
    """Wait for a number of approval requests in a chat. Returns the newest."""
    await fake.until(lambda: sum("May I run" in text for text in fake.answers(chat)) == newest)
    return [said for said in fake.messages(chat) if "May I run" in said.text][-1]


@pytest.mark.parametrize(
    ("method", "fault"),
    [
        *[("files.getUploadURLExternal", fault) for fault in FAULTS],
        *[("files.completeUploadExternal", fault) for fault in FAULTS],
        ("chat.postMessage", "slow_down"),
        ("chat.postMessage", "none"),
    ],
)
async def test_a_question_that_does_not_fit_has_the_complete_arguments_as_a_file_once(
    tmp_path: Path, method: str, fault: Fault
) -> None:
    async with (
        FakeSlack() as fake,
        FakeModels() as models,
        gateway_at(
            fake, tmp_path, models, (Shell(),), permissions={"shell": "ask"}, streaming=False
        ) as gateway,
    ):
        fake.then(fault, method=method)
        models.then(Reply((Use("shell", json.dumps({"command": LONG})),), "tools"), Reply((Say("Done."),)))
        fake.say("@ada", "go")
        prompt = await prompt_in(fake, "@ada")
        assert "; rm -rf /" in prompt.text
        assert "characters …" in prompt.text
        assert "\\u202e" in prompt.text
        files = argument_files(fake, "@ada")
        assert list(files.values()) == [{"command": LONG}]
        assert f"The file {next(iter(files))} has the arguments in full." in prompt.text
        await fake.press("@ada", prompt.ts, "Allow once").settled()
        await settled(gateway, "done")
        await fake.until(lambda: any("✅ Allowed once" in text for text in fake.answers("@ada")))
        assert "Done." in "\n".join(fake.answers("@ada"))
        assert argument_files(fake, "@ada") == files
    fake.transcript.check()


@pytest.mark.parametrize("reason", ["no scope", "too many arguments"])
async def test_a_question_that_cannot_be_shown_whole_is_denied_and_says_where_it_can_be_answered(
    tmp_path: Path, reason: str
) -> None:
    arguments = {"command": LONG}
    if reason == "too many arguments":
        arguments = {f"key{n}": "v" * 20 for n in range(200)}
    async with FakeSlack() as fake, FakeModels() as models:
        options: dict[str, str] = {}
        if reason == "no scope":
            options["bot_token"] = fake.install(scopes=all_scopes() - {"files:write"}).token
        asking = gateway_at(fake, tmp_path, models, (Shell(),), permissions={"shell": "ask"}, **options)
        async with asking as gateway:
            models.then(Reply((Use("shell", json.dumps(arguments)),), "tools"), Reply((Say("Done."),)))
            fake.say("@ada", "go")
            await settled(gateway, "done")
            refused = str(models.requests[-1].body)
            assert "cannot show the whole question" in refused
            assert "trunkline chat slack:" in refused
            assert not any("May I run" in text for text in fake.answers("@ada"))
            assert argument_files(fake, "@ada") == {}
    fake.transcript.check()


async def test_the_text_of_an_answer_does_not_depend_on_its_files(tmp_path: Path) -> None:
    async with FakeSlack() as fake, FakeModels() as models:
        token = fake.install(scopes=all_scopes() - {"files:write"}).token
        speaking = Speaking(("audio/ogg", ogg_opus(), "said.ogg"))
        async with gateway_at(fake, tmp_path, models, (speaking,), bot_token=token) as gateway:
            models.then(Reply((Use("speak"),), "tools"), Reply((Say("That was it."),)))
            fake.say("@ada", "say it aloud")
            await settled(gateway, "done")
        shown = "\n".join(fake.answers("@ada"))
        assert shown.count("That was it.") == shown.count("said.ogg") == 1
        assert "could not be sent" in shown
        assert "files:write" in shown


async def test_a_question_with_a_file_is_not_asked_again_after_a_restart(tmp_path: Path) -> None:
    async with FakeSlack() as fake, FakeModels() as models:
        asking = {"permissions": {"shell": "ask"}, "streaming": False}
        async with gateway_at(fake, tmp_path, models, (Shell(),), **asking):
            models.then(Reply((Use("shell", json.dumps({"command": LONG})),), "tools"))
            fake.say("@ada", "go")
            prompt = await prompt_in(fake, "@ada")
        async with gateway_at(fake, tmp_path, models, (Shell(),), **asking) as gateway:
            await fake.press("@ada", prompt.ts, "Allow once").settled()
            await settled(gateway, "done")
            await fake.until(lambda: any("✅ Allowed once" in text for text in fake.answers("@ada")))
            assert list(argument_files(fake, "@ada").values()) == [{"command": LONG}]
    assert sum("May I run" in text for text in fake.answers("@ada")) == 1
    fake.transcript.check()


async def test_an_edit_is_answered_again_and_a_deletion_ends_the_answer(tmp_path: Path) -> None:
    never = asyncio.Event()
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        ts = fake.say("@ada", "helo")
        await settled(gateway, "done")
        fake.edit("@ada", ts, "hello")
        await settled(gateway, "merged", "done")
        assert "You said: hello" in fake.answers("@ada")
        models.then(Reply((Say("One "), Gate(never))))
        ts = fake.say("@ada", "count")
        await fake.until(lambda: "One" in fake.answers("@ada"))
        fake.delete("@ada", ts)
        await settled(gateway, "merged", "done", "done")
        assert models.left.is_set()
        assert fake.answers("@ada") == ["You said: helo", "You said: hello"]
        never.set()
    fake.transcript.check()


async def test_files_come_in_and_go_out(tmp_path: Path) -> None:
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        fake.say("@ada", "look", files=[("notes.txt", b"remember the milk"), ("blob.bin", b"\0\1")])
        await settled(gateway, "done")
        asked = str(models.requests[-1].body["messages"])
        assert "remember the milk" in asked
        assert "notes.txt" in asked
        assert "2 bytes: this kind of file cannot be read" in asked
        long = "A paragraph of some length. " * 40
        models.then(Reply((Say("\n\n".join([long] * 40)),)))
        fake.say("@ada", "tell me all")
        await settled(gateway, "done", "done")
        names = [name for said in fake.messages("@ada") if said.bot for name in said.files]
        assert len(names) == 1
        assert names[0].startswith("answer-")
        assert names[0].endswith(".md")
        assert len(fake.answers("@ada")) == 1 + 6 + 1
    fake.transcript.check()


async def test_a_file_of_a_shared_channel_is_looked_up(tmp_path: Path) -> None:
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        fake.state.switches.shared = True
        fake.say("@ada", "look", files=[("notes.txt", b"remember the milk")])
        await settled(gateway, "done")
        asked = str(models.requests[-1].body["messages"])
    assert "notes.txt" in asked
    assert "remember the milk" in asked
    fake.transcript.check()


async def test_a_file_that_is_too_large_is_named_with_the_reason(tmp_path: Path) -> None:
    async with (
        FakeSlack() as fake,
        FakeModels() as models,
        gateway_at(fake, tmp_path, models, file_bytes=10) as gateway,
    ):
        fake.say("@ada", "look", files=[("notes.txt", b"remember the milk")])
        await settled(gateway, "done")
        assert "it has more than 10 bytes" in str(models.requests[-1].body["messages"])
    fake.transcript.check()


async def test_the_text_of_a_document_reaches_the_model(tmp_path: Path) -> None:
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        fake.say("@ada", "read", files=[("plan.docx", word()), ("report.pdf", pdf("Revenue was 42"))])
        await settled(gateway, "done")
        asked = str(models.requests[-1].body["messages"])
    assert "Sales rose." in asked
    assert "Revenue was 42" in asked
    fake.transcript.check()


async def test_a_slash_command_is_answered_for_who_gave_it(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        await fake.command("general", "/bot-status").settled()
        await fake.command("@ada", "/model").settled()
        await settled(gateway, "done", "done")
        (told,) = fake.hidden("general")
        assert "messages" in told.text
        assert fake.answers("general") == []
        assert "The model is" in fake.answers("@ada")[0]
        assert fake.notices == []
    fake.transcript.check()


async def test_a_file_of_an_answer_that_only_its_author_sees_is_not_shown_to_the_channel(
    tmp_path: Path,
) -> None:
    long = "A paragraph of some length. " * 40
    async with FakeSlack() as fake, FakeModels() as models, gateway_at(fake, tmp_path, models) as gateway:
        for _ in range(2):
            models.then(Reply((Say("\n\n".join([long] * 40)),)))
        await fake.command("general", "/bot-ask tell me all").settled()
        await settled(gateway, "done")
        assert fake.messages("general") == []
        told = fake.hidden("general")
        assert len(told) == 6 + 1
        assert "answer.md" in told[-1].text
        assert "ask in a direct message" in told[-1].text
        await fake.command("@ada", "/bot-ask tell me all").settled()
        await settled(gateway, "done", "done")
        assert any(said.files for said in fake.messages("@ada"))
    fake.transcript.check()


async def test_a_command_in_a_mention_is_one(tmp_path: Path) -> None:
    async with FakeSlack() as fake, gateway_at(fake, tmp_path) as gateway:
        fake.say("general", "@trunkline /model")
        await settled(gateway, "done")
        assert fake.answers("general")[0].startswith("The model is")
    fake.transcript.check()


async def test_two_accounts_are_two_apps(tmp_path: Path) -> None:
    async with FakeSlack() as fake, FakeSlack(teams=("umbrella",)) as other:
        accounts = {
            name: {"bot_token": app.bot_token, "api_base_url": app.api_url}
            for name, app in (("acme", fake), ("umbrella", other))
        }
        async with gateway_at(fake, tmp_path, accounts=accounts) as gateway:
            await other.until(lambda: other.sockets.live)
            fake.say("@ada", "hello")
            other.say("@eve", "hi")
            await settled(gateway, "done", "done")
            assert fake.answers("@ada") == ["You said: hello"]
            assert other.answers("@eve") == ["You said: hi"]
            other.transcript.check()
    fake.transcript.check()


async def test_one_app_in_several_workspaces_answers_each_with_its_own_token(tmp_path: Path) -> None:
    async with FakeSlack(teams=("acme", "umbrella", "gone")) as fake:
        tokens = [fake.token("umbrella"), fake.token("gone")]
        fake.uninstall("gone")
        async with gateway_at(fake, tmp_path, workspaces=tokens) as gateway:
            for number in range(3):
                fake.say("@ada", f"hello {number}", team="acme")
                fake.say("@eve", f"hi {number}", team="umbrella")
            fake.say("general", "you @trunkline", team="umbrella")
            await settled(gateway, *["done"] * 7)
            assert fake.answers("@ada", team="acme") == [f"You said: hello {number}" for number in range(3)]
            assert fake.answers("@eve", team="umbrella") == [f"You said: hi {number}" for number in range(3)]
            assert fake.answers("general", team="umbrella") == ["You said: you"]
            assert fake.sockets.opened == 1
            ok, detail = gateway.health()["slack"]
            assert not ok
            assert "account_inactive" in detail or "token_revoked" in detail
    fake.transcript.check()


async def test_a_person_of_another_workspace_is_never_taken_for_one_with_the_same_id(tmp_path: Path) -> None:
    async with FakeSlack(teams=("acme", "umbrella")) as fake:
        ada, eve = fake.user("ada", "acme").id, fake.user("eve", "umbrella").id
        allow = [ada, eve, f"{fake.state.team_of('umbrella').id}:{fake.user('bob', 'umbrella').id}"]
        async with gateway_at(fake, tmp_path, workspaces=[fake.token("umbrella")], allow=allow) as gateway:
            fake.say("@ada", "hello", team="acme")
            fake.say("@eve", "hello", "eve", team="umbrella")
            fake.say("@bob", "hello", "bob", team="umbrella")
            await settled(gateway, "done", "done", "done")
            assert fake.answers("@ada", team="acme") == ["You said: hello"]
            assert "code" in fake.answers("@eve", team="umbrella")[0], "her id is only known at home"
            assert fake.answers("@bob", team="umbrella") == ["You said: hello"]
            assert {person.user_id for person in gateway.parts.access.members.list()} == set()
    fake.transcript.check()


async def test_a_wrong_token_is_reported_and_stops_no_other_workspace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with FakeSlack() as fake:
        wrong = {"bot_token": "xoxb-wrong", "app_token": "xapp-wrong"}
        accounts = {"good": {}, "blank": {"bot_token": " "}, "wrong": wrong}
        async with gateway_at(fake, tmp_path, accounts=accounts) as gateway:
            fake.say("@ada", "hello")
            await settled(gateway, "done")
            assert list(gateway.left_out) == ["slack.blank"]
            assert "bot_token" in gateway.left_out["slack.blank"]
            await until(lambda: "invalid_auth" in gateway.health()["slack.wrong"][1])
            assert gateway.health()["slack.good"][0]
            assert "xoxb" not in str(gateway.health())
    written = capsys.readouterr()
    assert "invalid_auth" in written.out + written.err
    assert "Traceback" not in written.out + written.err


async def test_a_wrong_app_token_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with FakeSlack() as fake, FakeModels() as models:
        gateway = Gateway(settings_of(tmp_path, models, fake, app_token="xapp-wrong"))
        async with gateway.running():
            await until(lambda: "app_token" in gateway.health()["slack"][1])
        written = capsys.readouterr()
    assert "app_token" in written.out + written.err
    assert "Traceback" not in written.out + written.err


@pytest.mark.parametrize(
    ("slack", "missing"),
    [
        ({"app_token": " "}, "app_token"),
        ({"mode": "http", "signing_secret": ""}, "signing_secret"),
        ({"client_id": "1.2", "client_secret": ""}, "client_secret"),
        ({"bot_token": ""}, "bot_token"),
    ],
)
async def test_a_key_that_is_missing_is_named_and_the_channel_left_out(
    tmp_path: Path, slack: dict[str, str], missing: str
) -> None:
    async with FakeSlack() as fake, FakeModels() as models:
        gateway = Gateway(settings_of(tmp_path, models, fake, **slack))
        async with gateway.running():
            [(name, reason)] = gateway.left_out.items()
            assert (name, "\n" in reason) == ("slack", False)
            assert reason.startswith(f"channels.slack.{missing}: is missing")


async def test_the_storm_leaves_one_answer_each(tmp_path: Path) -> None:
    async with FakeSlack(faults=0.15, repeats=0.3, seed=4) as fake, gateway_at(fake, tmp_path) as gateway:
        said = [fake.say(f"@user{number % 4}", f"word{number}") for number in range(12)]
        await settled(gateway, *["done"] * len(said))
        for number in range(4):
            mine = [f"You said: word{n}" for n in range(12) if n % 4 == number]
            assert fake.answers(f"@user{number}") == mine
        assert await states(gateway) == ["done"] * 12
    fake.transcript.check()
