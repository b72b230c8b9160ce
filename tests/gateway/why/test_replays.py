"""Replays: messages without an answer are answered once their cause is gone, and nothing else changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from gateway.cli import app as trunkline
from gateway.contract.channel import Rejected, Withdrawal
from gateway.contract.messages import new_id
from gateway.store.inbox import QUARANTINE, quarantine_op, read_entry
from gateway.testing.fake_models.script import Gate, Refusal, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import until
from tests.gateway.why.cases import Case, database, line

pytestmark = pytest.mark.slow

WRONG_KEY = Refusal(401, "wrong key")


async def plan_of(case: Case, message_id: str, *, old: bool = False) -> dict[str, Any]:
    key = quote((await case.why(message_id))["same_cause"]["key"], safe="")
    query = "?old=true" if old else ""
    status, plan = await case.served.ask("POST", f"/api/why/same-cause/{key}/plan{query}")
    assert status == 200, plan
    return plan


async def confirmed(case: Case, plan: dict[str, Any], **request: Any) -> tuple[int, Any]:
    return await case.served.ask("POST", f"/api/why/plans/{plan['plan']}", **request)


async def finished(case: Case, plan: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a plan once nothing of it is left; asking again starts nothing."""
    async with asyncio.timeout(60):
        while (state := (await confirmed(case, plan))[1])["state"] != "done":
            await asyncio.sleep(0.02)
    await case.settled()
    return state


async def test_all_messages_with_one_cause_are_answered_once(
    tmp_path: Path, engine_settings: dict[str, Any]
) -> None:
    budgets = {"big": {"per": "day", "stop": 100}}
    prices = {"openai/fake-small": {"input_price": 1, "output_price": 1}}
    async with (
        FakeModels() as fake,
        line(tmp_path, fake, engine_settings, budgets=budgets, models=prices) as case,
    ):
        await case.write("Fine", "ada", "hall")
        await case.settled()
        fake.then(*(WRONG_KEY,) * 6)
        first, second = await case.write("One"), await case.write("Two")
        await case.settled()
        other = await case.write("Three", "ben", "garden")
        deleted = await case.write("Four", "ben", "garden")
        await case.settled()
        stranger = await case.write("Five", "ben", "porch")
        aged = await case.write("Six", "ada", "attic")
        await case.settled()
        fake.then(Refusal(500, "another cause"))
        unlike = await case.write("Seven", "ada", "cellar")
        await case.settled()
        await case.served.gateway.parts.intake.receiver("line")(signals=[Withdrawal("bot", "garden:105")])
        await case.aged(aged.message_id, days=2)

        found = await case.why(second.message_id)
        assert (found["same_cause"]["count"], found["same_cause"]["key"]) == (
            6,
            "openai:AuthFailedError:key 1 (api_key)",
        )
        plan = await plan_of(case, second.message_id)
        ok = {one["id"]: one["ok"] for one in plan["messages"]}
        assert ok == {
            **dict.fromkeys((first.message_id, second.message_id, other.message_id), True),
            stranger.message_id: True,
            deleted.message_id: False,
            aged.message_id: False,
        }
        reasons = {one["id"]: one["reason"] for one in plan["messages"] if not one["ok"]}
        assert reasons[deleted.message_id] == "its sender deleted it"
        assert reasons[aged.message_id].startswith("it is older than a day")
        assert plan["estimated_nano_usd"] > 0
        # Nothing has happened so far.
        assert (await case.why(first.message_id))["verdict"]["code"] == "failed"
        twin = await plan_of(case, second.message_id)

        # Ten clicks on one plan, and ten on that of a second operator, at once.
        clicks = [confirmed(case, one) for one in (plan, twin) * 10]
        assert {status for status, _ in await asyncio.gather(*clicks)} == {200}
        states = [await finished(case, one) for one in (plan, twin)]
        assert sum(state["replayed"] for state in states) == 4
        assert sum(state["skipped"] for state in states) == 4
        answers = case.platform.answers("kitchen")
        assert [text for text in answers if text.startswith("You said")] == ["You said: One", "You said: Two"]
        assert case.platform.answers("garden")[2:] == ["You said: Three"]
        assert len(case.platform.answers("attic")) == len(case.platform.answers("cellar")) == 1
        assert (await case.why(first.message_id))["verdict"]["code"] == "answered"
        assert (await case.why(unlike.message_id))["verdict"]["code"] == "failed"
        # The message that is too old is answered if that is wanted.
        late = await plan_of(case, aged.message_id, old=True)
        await confirmed(case, late)
        assert (await finished(case, late))["replayed"] == 1
        assert case.platform.answers("attic")[1:] == ["You said: Six"]
        with database(engine_settings, tmp_path) as connection:
            query = text("SELECT actor, subject FROM audit WHERE action = 'message.replay'")
            assert len(rows := connection.execute(query).all()) == 5
        assert {actor for actor, _ in rows} == {"owner"}


async def test_a_plan_is_bound_to_its_session_and_to_what_it_saw(
    tmp_path: Path, engine_settings: dict[str, Any]
) -> None:
    server = {"token": "token of the operator"}
    head = {"Authorization": "Bearer token of the operator"}
    async with FakeModels() as fake, line(tmp_path, fake, engine_settings, server=server) as case:
        case.served.http.headers.update(head)
        fake.then(*(WRONG_KEY,) * 3)
        first = await case.write("One")
        gone = await case.write("Two", "ben", "garden")
        barred = await case.write("Three", "ben", "porch")
        await case.settled()
        plan = await plan_of(case, first.message_id)
        assert [one["ok"] for one in plan["messages"]] == [True] * 3
        # A cookie of the same gateway is another session; what is unknown and what is foreign look alike.
        _, refused = await confirmed(case, plan, headers={"Authorization": "bearer  token of the operator"})
        _, unknown = await confirmed(case, {"plan": "unknown"})
        assert refused == unknown
        assert refused["error_name"] == "NotFoundError"
        # Between the plan and its confirmation one message is deleted, and one fails again.
        await case.served.gateway.parts.intake.receiver("line")(signals=[Withdrawal("bot", "garden:102")])
        fake.then(WRONG_KEY)
        again = await plan_of(case, first.message_id)
        assert [one["id"] for one in again["messages"] if one["ok"]] == [first.message_id, barred.message_id]
        status, single = await case.served.ask("POST", f"/api/why/{barred.message_id}/plan")
        assert status == 200
        await confirmed(case, single)
        await finished(case, single)
        assert (await case.why(barred.message_id))["verdict"]["code"] == "failed"
        await confirmed(case, plan)
        state = await finished(case, plan)
        assert (state["replayed"], state["skipped"]) == (1, 2)
        assert (await case.why(gone.message_id))["verdict"]["text"] == (
            "No answer: the sender deleted the message."
        )
        assert case.platform.answers("garden")[1:] == []


async def test_at_most_five_conversations_are_answered_at_once(
    tmp_path: Path, engine_settings: dict[str, Any]
) -> None:
    opened = asyncio.Event()
    async with FakeModels() as fake, line(tmp_path, fake, engine_settings) as case:
        fake.then(*(WRONG_KEY,) * 8)
        written = [await case.write(f"Message {n}", "ada", f"room{n}") for n in range(8)]
        await case.settled()
        plan = await plan_of(case, written[0].message_id)
        asked = len(fake.requests)
        fake.then(*(Reply((Gate(opened), Say("Late."))),) * 8)
        await confirmed(case, plan)
        await until(lambda: len(fake.requests) == asked + 5)
        assert (await confirmed(case, plan))[1]["replayed"] == 5
        opened.set()
        assert (await finished(case, plan))["replayed"] == 8
        assert len(fake.requests) == asked + 8


async def test_what_must_not_be_repeated_is_not_planned(
    tmp_path: Path, engine_settings: dict[str, Any]
) -> None:
    async with FakeModels() as fake, line(tmp_path, fake, engine_settings) as case:
        fake.then(Reply((Use("door"),), "tools"), WRONG_KEY)
        failed = await case.write("Open the door")
        fine = await case.write("Hello")
        await case.settled()
        for message, reason in (
            (failed, "its tools have run, and would run again"),
            (fine, "it has an answer"),
        ):
            _, plan = await case.served.ask("POST", f"/api/why/{message.message_id}/plan")
            assert [(one["ok"], one["reason"]) for one in plan["messages"]] == [(False, reason)]
            await confirmed(case, plan)
        assert (await case.served.ask("POST", "/api/why/unknown/plan"))[0] == 404
        assert (await case.served.ask("POST", "/api/why/same-cause/x:y:z/plan"))[0] == 404


async def test_an_answer_that_was_refused_is_sent_again_and_not_made_again(
    tmp_path: Path, engine_settings: dict[str, Any]
) -> None:
    async with FakeModels() as fake, line(tmp_path, fake, engine_settings) as case:
        case.platform.closed.add("kitchen")
        unsent = await case.write("Hello")
        await case.settled()
        asked = len(fake.requests)
        case.platform.closed.clear()
        # The platform takes the answer, and its confirmation is lost: it is looked for, not sent again.
        case.platform.then("drop_after")

        def replay() -> str:
            command = ["why", unsent.message_id, "--replay", "--yes", "--config", str(case.config)]
            result = CliRunner().invoke(trunkline, command)
            assert result.exit_code == 0, result.output
            return result.output

        printed = await asyncio.to_thread(replay)
        assert printed.startswith("Answered, but Line refused it: the bot may not write in this chat.\n")
        assert printed.endswith("1 is being answered.\n")
        await case.until(unsent.message_id, "answered")
        assert case.platform.answers("kitchen") == ["You said: Hello"]
        assert len(fake.requests) == asked
        messages = await case.served.gateway.parts.sessions.read("line:bot:kitchen")
        assert [message.text for _, message in messages] == ["Hello", "You said: Hello"]


async def dead(case: Case, fake: FakeModels, text: str, user: str = "ada", chat: str = "kitchen") -> str:
    """Have a message without an answer be a dead letter; return its id."""
    fake.then(WRONG_KEY)
    receipt = await case.write(text, user, chat)
    await case.settled()
    store = case.served.gateway.parts.store
    entry = await store.read(lambda c: read_entry(c, receipt.message_id))
    await store.write(*entry.give_up("ZeroDivisionError: not foreseen", None))
    return receipt.message_id


async def letter_plan(case: Case, action: str, **body: Any) -> dict[str, Any]:
    status, plan = await case.served.ask("POST", "/api/dead/plan", json={"action": action, **body})
    assert status == 200, plan
    return plan


def audited(engine: dict[str, Any], tmp_path: Path, action: str) -> list[tuple[str, str]]:
    with database(engine, tmp_path) as connection:
        query = text("SELECT actor, subject FROM audit WHERE action = :action ORDER BY id")
        return [(row.actor, row.subject) for row in connection.execute(query, {"action": action})]


async def test_a_group_of_dead_letters_is_answered_or_dropped_once(
    tmp_path: Path, engine_settings: dict[str, Any]
) -> None:
    async with FakeModels() as fake, line(tmp_path, fake, engine_settings) as case:
        ids = [
            await dead(case, fake, text, "ben", room) for room in ("hall", "attic") for text in ("One", "Two")
        ]
        rejected = Rejected("bot", "key", "{}", "no text")
        await case.served.gateway.parts.store.write(quarantine_op("line", rejected))
        _, found = await case.served.ask("GET", "/api/dead/causes")
        assert {one["key"]: one["count"] for one in found["causes"]} == {
            "-:ZeroDivisionError:-": 4,
            "line:UnreadableEvent:-": 1,
        }
        for body in ({}, {"cause": "x", "all": True}, {"ids": ["x"], "all": True}, {"everything": True}):
            status, _ = await case.served.ask("POST", "/api/dead/plan", json={"action": "drop", **body})
            assert status == 400
        whole = await letter_plan(case, "replay", all=True)
        assert [one["ok"] for one in whole["messages"]] == [True] * 4 + [False]
        assert whole["messages"][-1]["reason"] == "an event that could not be read can only be dropped"
        assert {one["text"] for one in whole["messages"][:4]} == {"One", "Two"}
        # Nothing has happened so far. One letter is then dropped, and a second operator has the same list.
        twin = await letter_plan(case, "drop", cause="-:ZeroDivisionError:-")
        single = await letter_plan(case, "drop", ids=[ids[1]])
        clicks = [confirmed(case, single) for _ in range(5)]
        assert {status for status, _ in await asyncio.gather(*clicks)} == {200}
        assert (await finished(case, single))["dropped"] == 1
        await asyncio.gather(*(confirmed(case, whole) for _ in range(10)))
        state = await finished(case, whole)
        assert (state["replayed"], state["skipped"], state["dropped"]) == (3, 1, 0)
        assert [text for text in case.platform.answers("attic") if "You said" in text] == [
            "You said: One",
            "You said: Two",
        ]
        assert [text for text in case.platform.answers("hall") if "You said" in text] == ["You said: One"]
        # The list of the second operator is out of date.
        assert (await confirmed(case, twin))[0] == 200
        state = await finished(case, twin)
        assert (state["dropped"], state["skipped"]) == (0, 4)
        await confirmed(case, events := await letter_plan(case, "drop", all=True))
        assert (await finished(case, events))["dropped"] == 1
        status, _ = await case.served.ask("POST", "/api/dead/plan", json={"action": "drop", "all": True})
        assert status == 404
        assert (await case.why(ids[0]))["verdict"]["code"] == "answered"
        dropped = [subject for _, subject in audited(engine_settings, tmp_path, "message.drop")]
        assert dropped[0] == ids[1]
        assert len(dropped) == 2
        assert len(audited(engine_settings, tmp_path, "message.replay")) == 3


async def test_an_answer_that_was_refused_is_placed_again_and_not_made_again(
    tmp_path: Path, engine_settings: dict[str, Any]
) -> None:
    async with FakeModels() as fake, line(tmp_path, fake, engine_settings) as case:
        case.platform.closed.add("kitchen")
        receipt = await case.write("One")
        await case.settled()
        asked = len(fake.requests)
        plan = await letter_plan(case, "replay", cause="line:PlacementRefused:-")
        assert (plan["estimated_nano_usd"], [one["id"] for one in plan["messages"]]) == (
            0,
            [receipt.message_id],
        )
        case.platform.closed.clear()
        await confirmed(case, plan)
        assert (await finished(case, plan))["replayed"] == 1
        assert case.platform.answers("kitchen").count("You said: One") == 1
        assert len(fake.requests) == asked


async def test_ten_thousand_letters_are_dropped_and_the_oldest_thousand_replayed(
    tmp_path: Path, engine_settings: dict[str, Any]
) -> None:
    async with FakeModels() as fake, line(tmp_path, fake, engine_settings) as case:
        rows = [(QUARANTINE, (new_id(), "line", "bot", str(n), "{}", "odd", n)) for n in range(10_001)]
        await case.served.gateway.parts.store.write(*rows)
        plan = await letter_plan(case, "drop", all=True)
        assert (len(plan["messages"]), plan["omitted"]) == (10_000, 1)
        await confirmed(case, plan)
        assert (await finished(case, plan))["dropped"] == 10_000
        replayed = await letter_plan(case, "replay", all=True)
        assert (len(replayed["messages"]), replayed["omitted"]) == (1, 0)


async def test_a_message_beyond_the_reply_window_of_its_channel_has_to_be_confirmed(tmp_path: Path) -> None:
    async with FakeModels() as fake, line(tmp_path, fake) as case:
        fake.then(*(WRONG_KEY,) * 4)
        late = await case.write("One", "ada", "kiosk")
        in_time = await case.write("Two", "ada", "kiosk")
        posted = await case.write("Three", "ada", "post")
        ordinary = await case.write("Four", "ada", "hall")
        await case.settled()
        for receipt, days in ((late, 0.1), (in_time, 0.05), (posted, 2), (ordinary, 2)):
            await case.aged(receipt.message_id, days=days)
        plan = await plan_of(case, late.message_id)
        assert {one["id"]: one.get("reason", "") for one in plan["messages"]} == {
            late.message_id: "Line takes replies there for only 1 h 30 min; confirm that it is answered "
            "anyway",
            in_time.message_id: "",
            posted.message_id: "",
            ordinary.message_id: "it is older than a day; confirm that it is answered all the same",
        }
        confirmed_old = await plan_of(case, late.message_id, old=True)
        assert all(one["ok"] for one in confirmed_old["messages"])
        assert (await finished(case, confirmed_old))["replayed"] == 4
