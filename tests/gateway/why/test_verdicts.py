"""Every verdict, made by real parts: a gateway, fake model servers, and a platform that fails on demand.

The API has the sentence, the line and the action; `/why` and the command line print the same sentence.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from gateway.contract.channel import Rejected, Withdrawal
from gateway.contract.plugin import Plugin
from gateway.store import schema as t
from gateway.store.writes import Write
from gateway.testing.fake_models.script import Gate, Refusal, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import until
from tests.gateway.why.cases import Case, Pier, database, kinds, line, texts

pytestmark = pytest.mark.slow


async def test_answered_and_failed_messages_have_one_sentence_everywhere(
    tmp_path: Path, engine_settings: dict[str, Any]
) -> None:
    async with FakeModels() as fake, line(tmp_path, fake, engine_settings) as case:
        first = await case.write("Hello")
        await case.settled()
        found = await case.why(first.message_id)
        sentence = found["verdict"]["text"]
        assert (found["verdict"]["code"], kinds(found)) == ("answered", [])
        assert re.fullmatch(r"Answered in [\d.]+ m?s\.", sentence)
        model = "Model openai/fake-small"
        placed = ["Placed in Line", "Answer complete"]
        assert texts(found) == ["Received", "Stored", "Hook pier", model, *placed]
        assert found["proof"]["trail"] >= 1
        assert [(one["kind"], one["text"]) for one in found["seen"]] == [("answer", "You said: Hello")]
        assert found["seen"][0]["platform_id"] == str(case.platform.rooms["kitchen"][-1].id)
        assert found["proof"]["inbox"] == 1
        assert found["same_cause"] is None

        fake.then(Refusal(401, "Incorrect API key provided: sk-secret0000"))
        failed = await case.write("Where is it?")
        await case.settled()
        found = await case.why(failed.message_id)
        sentence = "No answer: OpenAI rejected the API key, and no other model was left."
        assert (found["verdict"]["code"], found["verdict"]["text"]) == ("failed", sentence)
        assert kinds(found) == ["replace_key", "replay"]
        assert found["verdict"]["actions"][0]["command"] == "trunkline auth login openai"
        broken = next(station for station in found["stations"] if station["state"] == "failed")
        siding = broken["sidings"][0]
        assert (siding["reason"], siding["yours"]) == ("OpenAI rejected the API key", True)
        key = found["verdict"]["actions"][0]
        assert (key["target"], key["more"]) == ("openai", "key 1 (api_key)")
        german = await case.why(failed.message_id, lang="de")
        assert german["verdict"]["text"] == (
            "Keine Antwort: OpenAI hat den API-Schlüssel abgelehnt, und kein anderes Modell war übrig."
        )
        assert [one["label"] for one in german["verdict"]["actions"]] == [
            "Schlüssel ersetzen",
            "Jetzt beantworten",
        ]
        assert texts(german)[-2:] == ["Gesendet an Line", "Beantwortet mit einem Fehler"]
        assert found["seen"][0]["kind"] == "notice"
        assert found["same_cause"]["count"] == 1

        # The answer, the platform's ids of both, and a link lead to the same message.
        number = case.platform.rooms["kitchen"][-1].id
        for given in (failed.answer_id, "kitchen:102", f"https://line.example/kitchen/{number}"):
            assert (await case.why(given))["message"]["id"] == failed.message_id
        assert (await case.told(failed.message_id)).startswith(f"**{sentence}**\n\nReceived ")
        assert (await case.told("", in_reply_to="102")).startswith(f"**{sentence}**")
        printed = await case.printed(failed.message_id)
        assert printed.startswith(f"{sentence}\n")
        assert "trunkline auth login openai" in printed
        assert "sk-secret" not in printed + str(found)


@pytest.mark.parametrize("trail", ["full", "off"])
async def test_the_cause_that_the_operator_can_fix_comes_first(
    tmp_path: Path, engine_settings: dict[str, Any], trail: str
) -> None:
    async with FakeModels() as second, FakeModels() as fake:
        providers = {
            "openai": {"base_url": fake.openai_url, "api_key": "k", "max_retries": 0},
            "groq": {"base_url": second.openai_url, "api_key": "k", "max_retries": 0},
        }
        async with line(
            tmp_path,
            fake,
            engine_settings,
            providers=providers,
            fallback=("groq/fake-small",),
            store={"trail": trail},
        ) as case:
            fake.then(Refusal(529, "overloaded"))
            second.then(Refusal(401, "wrong key"))
            failed = await case.write("Hello")
            await case.settled()
            found = await case.why(failed.message_id)
            assert found["verdict"]["text"] == (
                "No answer: Groq rejected the API key, and no other model was left."
            )
            assert found["verdict"]["more"] == "OpenAI was overloaded."
            # Without a trail the time of each call is not known, nor the hook.
            hook = ["Hook pier"] if trail == "full" else []
            end = ["Placed in Line", "Answered with an error" if trail == "full" else "Settled"]
            assert texts(found) == ["Received", "Stored", *hook, "Model: 2 failed", *end]
            broken = next(station for station in found["stations"] if station["state"] == "failed")
            assert [one["text"] for one in broken["sidings"]] == ["openai/fake-small", "groq/fake-small"]

            fake.then(Refusal(529, "overloaded"))
            answered = await case.write("Again")
            await case.settled()
            found = await case.why(answered.message_id)
            assert re.fullmatch(r"Answered in .* by (the second|another) model\.", found["verdict"]["text"])
            failed_first = ["Model failed"] if trail == "full" else []
            assert [*hook, *failed_first, "Model groq/fake-small", "Placed in Line"] == texts(found)[2:-1]


async def test_messages_that_wait_or_run(tmp_path: Path, engine_settings: dict[str, Any]) -> None:
    opened = asyncio.Event()
    async with (
        FakeModels() as fake,
        line(tmp_path, fake, engine_settings, permissions={"door": "ask", "*": "allow"}) as case,
    ):
        fake.then(Reply((Say("One"), Gate(opened), Say(" two."))))
        running = await case.write("Tell me")
        waiting = await case.write("And then?")
        found = await case.until(running.message_id, "running")
        assert re.fullmatch(
            r"Being answered: (model openai/fake-small|the hooks) for .*\.", found["verdict"]["text"]
        ), found["verdict"]
        assert (found["verdict"]["code"], kinds(found)) == ("running", ["stop"])
        assert texts(found)[:2] == ["Received", "Stored"], texts(found)
        found = await case.why(waiting.message_id)
        assert (found["verdict"]["code"], kinds(found)) == ("waiting", ["stop"])
        assert found["verdict"]["text"] == "No answer yet: it waits for an earlier message."
        assert texts(found) == ["Received", "Stored"]
        # An edit of a message that waits replaces it.
        revised = await case.write("And then, please?", revises="kitchen:102")
        opened.set()
        await case.settled()
        found = await case.why(waiting.message_id)
        assert (found["verdict"]["code"], found["verdict"]["text"]) == (
            "superseded",
            "A newer edit replaced it.",
        )
        assert kinds(found) == ["message"]
        assert found["verdict"]["actions"][0]["target"] == revised.message_id
        assert texts(found)[-1] == "Replaced by a newer edit"

        fake.then(Reply((Use("door"),), "tools"))
        asked = await case.write("Open the door")
        questions = case.served.gateway.parts.questions
        found = await case.until(asked.message_id, "waiting")
        assert found["verdict"]["text"] == (
            "No answer yet: it waits for a person to decide whether door may run."
        )
        [question] = questions.of_message(asked.message_id)
        assert [(one["kind"], one["target"]) for one in found["verdict"]["actions"]] == [
            ("allow", question.question.id)
        ]
        assert texts(found) == ["Received", "Stored", "Hook pier", "Model openai/fake-small"]
        await case.write("/stop")
        await case.settled()
        found = await case.why(asked.message_id)
        assert (found["verdict"]["code"], found["verdict"]["text"]) == (
            "stopped",
            "No answer: a person stopped it.",
        )
        assert kinds(found) == ["replay"]
        assert texts(found)[-1] == "Stopped"


async def test_messages_that_wait_for_a_limit(tmp_path: Path, engine_settings: dict[str, Any]) -> None:
    async with FakeModels() as fake:
        providers = {"openai": {"base_url": fake.openai_url, "api_key": "k", "max_retries": 3}}
        limits = {"drain_seconds": 0}
        async with line(tmp_path, fake, engine_settings, providers=providers, limits=limits) as case:
            case.pier.line.is_limited = True
            answered = await case.write("Hello", "ben", "attic")
            found = await case.until(answered.message_id, "waiting")
            assert found["verdict"]["text"].startswith("No answer yet: it waits for Line until ")
            assert kinds(found) == ["open"]
            assert texts(found)[-1] == "Waits for the platform"
            fake.then(Refusal(429, "slow down", {"retry-after": "20"}))
            limited = await case.write("Hello")
            found = await case.until(limited.message_id, "waiting")
            begin = "No answer yet: it waits for the rate limit of OpenAI until "
            assert found["verdict"]["text"].startswith(begin), found["verdict"]
            assert kinds(found) == ["stop"]
            assert texts(found)[-1] == "Waits for the rate limit of the provider"
            # Another message waits for the same key.
            behind = await case.write("Hello", "ben", "garden")
            found = await case.until(behind.message_id, "waiting")
            assert found["verdict"]["text"].startswith(begin), found["verdict"]
            assert texts(found)[-1] == "Waits for the rate limit of the provider"


async def test_messages_that_are_not_answered_on_purpose(
    tmp_path: Path, engine_settings: dict[str, Any]
) -> None:
    budgets = {"tiny": {"per": "day", "stop": 0.000001}}
    prices = {"openai/fake-small": {"input_price": 1, "output_price": 1}}
    async with (
        FakeModels() as fake,
        line(tmp_path, fake, engine_settings, budgets=budgets, models=prices) as case,
    ):
        kept = await case.write("secret")
        over = await case.write("Hello")
        gone = await case.write("Never mind", "ben", "garden", Withdrawal("bot", "garden:103"))
        foreign = await case.write("Psst", "eve", "hall", group=True)
        stranger = await case.write("Let me in", "eve", "porch")
        await case.settled()
        await case.served.gateway.parts.intake.receiver("line")(
            rejected=[Rejected("bot", "kitchen:77", "{}", "no text")]
        )
        expected = {
            kept.message_id: ("stopped", "No answer: the plugin pier stopped it."),
            over.message_id: ("stopped", "No answer: a budget stopped it: "),
            gone.message_id: ("stopped", "No answer: the sender deleted the message."),
            foreign.message_id or "hall:104": ("refused", "Not for the bot: the sender is not allowed."),
            stranger.message_id: ("refused", "Not for the bot: the sender is not allowed. The bot sent"),
            "kitchen:77": ("refused", "Not for the bot: the event could not be read."),
            "4711": ("unknown", "We have no such message."),
            "https://line.example/kitchen/4711": (
                "unknown",
                "We have no such message. Last event of Line: at",
            ),
        }
        found = {given: await case.why(given) for given in expected}
        for given, (code, begin) in expected.items():
            assert found[given]["verdict"]["code"] == code, found[given]["verdict"]
            assert found[given]["verdict"]["text"].startswith(begin), found[given]["verdict"]
        assert kinds(found[over.message_id]) == ["raise_budget", "replay"]
        assert texts(found[over.message_id])[-1] == "Answered with an error"
        assert texts(found[kept.message_id])[-2:] == ["Hook pier", "Settled without an answer"]
        assert found[over.message_id]["verdict"]["actions"][0]["target"] == "tiny"
        assert kinds(found[stranger.message_id]) == ["pair"]
        [pair] = found[stranger.message_id]["verdict"]["actions"]
        assert (pair["target"], pair["more"]) == ("line", "eve")
        assert kinds(found[kept.message_id]) == ["open"]
        assert found[kept.message_id]["verdict"]["actions"][0]["more"] == "pier"
        assert kinds(found[gone.message_id]) == []
        settled = ["Received", "Stored", "Settled"]
        notice = ["Received", "Stored", "Placed in Line", "Answered with a notice"]
        lines = [texts(one) for one in found.values()]
        assert lines[2:] == [settled, settled, notice, [], [], []]
        assert kinds(found["kitchen:77"]) == ["open"]
        assert kinds(found["4711"]) == ["open"]
        assert found["4711"]["message"] is None


DENIED: dict[str, tuple[dict[str, Any], str, str, str, str]] = {
    # What the message is sent with, what the model wants to open, the reason, the rule and the action.
    "rule": ({}, "front", "a rule of [permissions] forbids it", "door: front", "settings"),
    "other": ({}, "attic", "a rule of [permissions] forbids it", "door: no pattern matches", "settings"),
    "plugin": ({}, "back", "the plugin pier refused it", "", "plugins"),
    "agent": ({"agent": "mute"}, "side", "the agent mute does not have it", "", "agents"),
    "room": ({"chat": "cellar"}, "side", "the room does not have it", "", "rooms"),
    "mode": ({"chat": "desk"}, "side", "only tools that read run in this mode", "", ""),
    "person": ({}, "roof", "a person refused it", "door: roof", "settings"),
}


async def test_tools_that_were_refused_name_their_rule(
    tmp_path: Path, engine_settings: dict[str, Any]
) -> None:
    rules = {"side": "allow", "back": "allow", "front": "deny", "roof": "ask"}
    channels = {"line": {"allow": ["ada", "ben"], "rooms": {"cellar": {"tools": ["clock"]}}}}
    async with (
        FakeModels() as fake,
        line(
            tmp_path,
            fake,
            engine_settings,
            permissions={"door": rules, "*": "allow"},
            agents={"mute": {"tools": ["clock"]}},
            channels=channels,
        ) as case,
    ):
        for how, (sent, which, reason, rule, opened) in DENIED.items():
            call = Use("door", f'{{"which": "{which}"}}')
            if how == "mode":
                await case.write("/plan", **sent)
                await case.settled()
            fake.then(Reply((call,), "tools"), Reply((Say("I could not."),)))
            written = await case.write(f"Open it: {how}", **sent)
            if how == "person":
                await case.until(written.message_id, "waiting")
                [asked] = case.served.gateway.parts.questions.of_message(written.message_id)
                path = f"/api/questions/{asked.question.id}"
                assert (await case.served.ask("POST", path, json={"values": ["deny"]}))[0] == 200
            await case.settled()
            found = await case.why(written.message_id)
            verdict = found["verdict"]
            assert verdict["code"] == "denied", (how, verdict)
            told = re.sub(r"in [\d.]+ m?s", "in 1 s", verdict["text"])
            assert told == f"Answered in 1 s, but the tool door did not run: {reason}."
            assert (verdict["rule"], [one["target"] for one in verdict["actions"]]) == (
                rule,
                [opened] if opened else [],
            )
            assert "Tool door" in texts(found)
            assert texts(found)[-2:] == ["Placed in Line", "Answer complete"]
            [station] = [one for one in found["stations"] if one["kind"] == "tool"]
            said = ", ".join(filter(None, (reason, rule)))
            assert station["detail"] == f"door refused: {said}"
            if how == "person":
                await _everywhere(case, written.message_id, verdict["text"])


async def _everywhere(case: Case, message_id: str, sentence: str) -> None:
    """Check that the command line and /why have the sentence with its rule, and the page the German one."""
    printed = await case.printed(message_id)
    assert printed.startswith(f"{sentence}\nRule: door: roof\n")
    told = await case.told(message_id)
    assert told.startswith(f"**{sentence}**\n\nRule: `door: roof`\n\nReceived ")
    german = await case.why(message_id, lang="de")
    assert german["verdict"]["text"].endswith(
        ", aber das Werkzeug door lief nicht: Eine Person hat es abgelehnt."
    )


async def test_messages_that_were_not_accepted_are_known_by_their_platform_id(
    tmp_path: Path, engine_settings: dict[str, Any]
) -> None:
    async with FakeModels() as fake, line(tmp_path, fake, engine_settings) as case:
        put = Write("insert", 40, t.refused, "id channel account chat platform_id at reason")
        rows = [("1", "hall", "51", "no_mention"), ("2", "porch", "51", "room"), ("3", "", "", "gap")]
        await case.served.gateway.parts.store.write(
            *((put, (row, "line", "bot", chat, number, 1, reason)) for row, chat, number, reason in rows)
        )
        for given, sentence in {
            "https://line.example/hall/51": "Not for the bot: it does not address the bot.",
            "https://line.example/porch/51": "Not for the bot: the bot is switched off in this room.",
        }.items():
            found = await case.why(given)
            assert (found["verdict"]["code"], found["verdict"]["text"]) == ("refused", sentence)
            assert [(one["kind"], one["target"]) for one in found["verdict"]["actions"]] == [
                ("open", "rooms")
            ]
            assert (found["stations"], found["proof"]) == ([], {"refused": 1})
        found = await case.why("https://line.example/hall/52")
        assert found["verdict"]["code"] == "unknown"
        assert "came too fast, or were too many" in found["verdict"]["more"]


async def test_answers_that_the_platform_refuses_or_does_not_confirm(
    tmp_path: Path, engine_settings: dict[str, Any]
) -> None:
    limits = {"drain_seconds": 0}
    async with FakeModels() as fake, line(tmp_path, fake, engine_settings, limits=limits) as case:
        case.platform.closed.add("kitchen")
        unsent = await case.write("Hello")
        await case.settled()
        found = await case.why(unsent.message_id)
        assert (found["verdict"]["code"], kinds(found)) == ("unsent", ["send_again"])
        assert found["verdict"]["text"] == (
            "Answered, but Line refused it: the bot may not write in this chat."
        )
        assert found["seen"][0]["kind"] == "nothing"
        assert texts(found)[-2:] == ["Refused by Line", "Given up"]
        case.platform.then(*("fail_before",) * 8)
        uncertain = await case.write("Hello", "ada", "garden")
        found = await case.until(uncertain.message_id, "uncertain")
        assert found["verdict"]["text"] == "Answered, but Line has not confirmed it."
        assert kinds(found) == ["open"]
        assert texts(found)[-1] in ("Not confirmed by Line", "Waits for Line")
        case.platform.then()


class MergedPier(Pier):
    """Without the hook, with which late messages are answered one by one."""

    transform_user_input = Plugin.transform_user_input


async def test_what_a_restart_does_to_messages(tmp_path: Path, engine_settings: dict[str, Any]) -> None:
    opened = asyncio.Event()
    async with FakeModels() as fake:
        async with line(tmp_path, fake, engine_settings, limits={"drain_seconds": 0}) as case:
            fake.then(Reply((Say("One"), Gate(opened))))
            first = await case.write("One")
            second = await case.write("Two")
            third = await case.write("Three")
            await until(lambda: len(fake.requests) == 1)
        printed = await case.printed(second.message_id)
        assert printed.startswith("No answer yet: it waits for the gateway, which does not run.\n"), printed
        opened.set()
        # Two minutes pass.
        with database(engine_settings, tmp_path) as connection:
            connection.execute(text("UPDATE inbox SET received_at = received_at - 120000"))
        async with line(
            tmp_path, fake, engine_settings, pier=MergedPier, limits={"backlog_minutes": 1}
        ) as case:
            await case.settled()
            found = await case.why(second.message_id)
            assert found["verdict"]["code"] == "merged", found["verdict"]
            assert found["verdict"]["text"] == "Answered together with the message that came after it."
            assert texts(found)[-1] == "Answered with a later message"
            assert kinds(found) == ["message"]
            assert found["verdict"]["actions"][0]["target"] == third.message_id
            found = await case.why(first.message_id)
            assert found["verdict"]["code"] in ("answered", "merged")
            assert texts(found)[-1] in ("Answer complete", "Answered with a later message")


async def test_providers_have_their_names_before_their_first_use(
    tmp_path: Path, engine_settings: dict[str, Any]
) -> None:
    async with FakeModels() as fake:
        async with line(tmp_path, fake, engine_settings) as case:
            fake.then(Refusal(401, "wrong key"))
            failed = await case.write("Hello")
            await case.settled()
        async with line(tmp_path, fake, engine_settings) as case:
            found = await case.why(failed.message_id)
        assert texts(found)[-3:] == ["Model failed", "Placed in Line", "Answered with an error"]
        sentence = "No answer: OpenAI rejected the API key, and no other model was left."
        assert found["verdict"]["text"] == sentence


async def test_why_alone_explains_the_last_message(tmp_path: Path, engine_settings: dict[str, Any]) -> None:
    async with FakeModels() as fake, line(tmp_path, fake, engine_settings) as case:
        await case.write("Hello")
        await case.settled()
        assert (await case.told("")).startswith("**Answered in ")
        # An earlier /why is not the last message, and one that a plugin kept has no answer to reply to.
        await case.write("secret")
        await case.settled()
        assert (await case.told("")).startswith("**No answer: the plugin pier stopped it.**")
        # Another person in the same room asks about the own message, not about the last one.
        fake.then(Refusal(401, "wrong key"))
        await case.write("From Ben", "ben", "hall", group=True)
        await case.settled()
        await case.write("secret", "ada", "hall", group=True)
        await case.settled()
        assert (await case.told("", "ben", "hall", group=True)).startswith("**No answer: OpenAI rejected")
        assert (await case.told("", "ada", "hall", group=True)).startswith("**No answer: the plugin pier")
        assert "You have written no message here" in await case.told("", "ben", "porch")


async def test_writers_learn_of_their_own_messages_only(
    tmp_path: Path, engine_settings: dict[str, Any]
) -> None:
    async with FakeModels() as fake, line(tmp_path, fake, engine_settings) as case:
        assert "Reply with" in await case.told("")
        own = await case.write("Mine")
        other = await case.write("Not mine", "ben", "garden")
        await case.settled()
        refused = "None of your messages in this chat has that id."
        unknown = "01936f1c-6b1e-7a53-9d6a-0f0f3e0a7c11"
        # Of another writer, not stored, an answer of another writer, and a link into another chat.
        for given in (other.message_id, unknown, other.answer_id, "https://line.example/garden/102"):
            assert await case.told(given) == refused
        assert (await case.told(own.message_id)).startswith("**Answered in ")
        assert await case.told(own.message_id, chat="hall", group=True) == refused
        # The same for a message that is hidden since /undo.
        await case.write("/undo")
        await case.settled()
        assert (await case.why(own.message_id))["message"] is not None
        assert await case.told(own.message_id) == refused
        # Ten questions in a minute, whatever they were about, and others are not affected.
        for _ in range(2):
            await case.told(own.message_id)
        assert "ask again in a minute" in await case.told(own.message_id)
        assert (await case.told(other.message_id, "ben", "garden")).startswith("**Answered in ")
