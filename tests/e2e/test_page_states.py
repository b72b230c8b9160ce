"""What the web page says of a conversation, on the real gateway: its model, its failures, what waits."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from playwright.async_api import Browser, Page, Route, expect

from gateway import Plugin, Tool, ToolContext, new_id, tool_from
from gateway.channel import Address, InboundMessage, Quoted, Sender
from gateway.testing.fake_models.script import Gate, Refusal, Reply, Say, Use
from gateway.testing.served import serving
from tests.e2e.page_browser import (
    answers,
    chat,
    connection,
    message_field,
    questions,
    say,
    scroll_list_to,
    session_of,
    words,
)
from tests.e2e.page_scripts import picture
from tests.gateway.access.rooms import Platforms

TOKEN = "a-token-of-at-least-thirty-two-characters"


class _Shell(Plugin):
    name = "shell"

    def tools(self) -> tuple[Tool, ...]:
        async def deploy(where: str, context: ToolContext) -> str:
            """Deploy somewhere."""
            return f"deployed to {where}"

        return (tool_from(deploy),)


async def test_the_header_shows_the_model_of_the_session(browser: Browser, tmp_path: Path) -> None:
    agents = {"small": {"model": "openai/fake-other"}}
    async with serving(tmp_path, agents=agents) as served, chat(browser, served.url) as page:
        model = page.locator(".model")
        await expect(model).to_have_text("openai/fake-small")
        await say(page, "/agent small")
        await expect(model).to_have_text("openai/fake-other")
        await say(page, "/model openai/fake-large")
        await expect(model).to_have_text("openai/fake-large")
        await page.reload()
        await expect(model).to_have_text("openai/fake-large")
        await page.get_by_role("link", name="New chat").click()
        await expect(model).to_have_text("openai/fake-small")


async def test_a_list_of_sessions_that_arrives_late_changes_nothing_back(
    browser: Browser, tmp_path: Path
) -> None:
    fetched, release = asyncio.Event(), asyncio.Event()

    async def late(route: Route) -> None:
        response = await route.fetch()
        fetched.set()
        await release.wait()
        await route.fulfill(response=response)

    agents = {"small": {"model": "openai/fake-other"}}
    async with serving(tmp_path, agents=agents) as served, chat(browser, served.url) as page:
        model = page.locator(".model")
        await say(page, "/agent small")
        await expect(model).to_have_text("openai/fake-other")
        await page.route("**/api/sessions?*", late)
        await page.reload()
        await fetched.wait()
        await say(page, "/model openai/fake-large")
        await expect(model).to_have_text("openai/fake-large")
        release.set()
        await page.unroute_all(behavior="wait")
        await say(page, "/status")
        await expect(answers(page)).to_have_count(3)
        await expect(model).to_have_text("openai/fake-large")


async def test_an_error_is_named_by_its_kind_and_the_question_can_be_asked_again(
    browser: Browser, tmp_path: Path
) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        served.models.then(Refusal(401))
        await say(page, "Are you there?")
        error = answers(page).get_by_role("group", name="Error: API key rejected")
        await expect(error).to_be_visible()
        await expect(answers(page).locator("footer")).not_to_contain_text("Stopped")
        assert "Error" not in await words(answers(page)).inner_text()
        await error.get_by_text("Details").click()
        await expect(error.locator("pre")).to_contain_text("error: AuthFailedError")
        served.models.then(Reply((Say("Now I am."),)))
        await error.get_by_role("button", name="Retry").click()
        await expect(words(answers(page)).nth(1)).to_have_text("Now I am.")
        await expect(words(questions(page))).to_have_text(["Are you there?", "Are you there?"])
        await expect(page.get_by_role("button", name="Retry")).to_have_count(0)


async def test_no_class_name_is_in_the_text_of_an_error(browser: Browser, tmp_path: Path) -> None:
    class Broken(Plugin):
        name = "broken"

        async def transform_user_input(self, text: str, ctx: Any) -> None:
            raise ZeroDivisionError("no luck")

    async with serving(tmp_path, Broken()) as served, chat(browser, served.url) as page:
        await say(page, "Hi")
        error = answers(page).get_by_role("group", name="Error: Plugin failed")
        await expect(error).to_contain_text("no luck")
        await error.get_by_text("Details").click()
        await expect(error.locator("pre")).to_contain_text("PluginError")
        await expect(error).not_to_contain_text("ZeroDivisionError")


async def test_an_answer_that_a_person_stopped_says_so(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        served.models.then(Reply((Say("So far"), Gate(asyncio.Event()))))
        await say(page, "Talk")
        await expect(answers(page)).to_contain_text("So far")
        await page.get_by_role("button", name="Stop answering").click()
        await expect(answers(page).locator("footer")).to_contain_text("Stopped")
        await page.reload()
        await expect(answers(page).locator("footer")).to_contain_text("Stopped")


async def test_a_tool_that_waits_for_approval_is_shown_as_waiting(browser: Browser, tmp_path: Path) -> None:
    asks: dict[str, Any] = {"permissions": {"deploy": "ask"}}
    async with serving(tmp_path, _Shell(), **asks) as served, chat(browser, served.url) as page:
        served.models.then(Reply((Use("deploy", '{"where": "production"}'),)))
        await say(page, "Deploy")
        status = page.locator(".tool-status")
        await expect(status).to_have_text("waits for approval")
        row = page.get_by_role("navigation").get_by_role("listitem")
        await expect(row).to_contain_text("waits for your approval")
        await page.reload()
        await expect(status).to_have_text("waits for approval")
        await expect(row).to_contain_text("waits for your approval")
        _, listed = await served.ask("GET", "/api/sessions")
        assert [session["status"] for session in listed["sessions"]] == ["waiting"]
        await page.get_by_role("button", name="Allow once").click()
        await expect(status).to_contain_text("done")


async def test_an_unreadable_picture_is_reported_as_unreadable(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        file = {"name": "scan.png", "mimeType": "image/png", "buffer": picture(40, 20)[:60]}
        await page.locator("input[type=file]").set_input_files([file])  # type: ignore[list-item]
        alert = page.get_by_role("alert")
        await expect(alert).to_contain_text(
            "scan.png is damaged or in a format that this browser cannot read"
        )
        await expect(alert).not_to_contain_text("does not fit")


async def test_a_draft_survives_a_reload_and_stays_with_its_session(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        await say(page, "first talk")
        await expect(answers(page)).to_have_attribute("data-status", "done")
        file = {"name": "field.png", "mimeType": "image/png", "buffer": picture(40, 20)}
        await message_field(page).fill("half a thought")
        await page.locator("input[type=file]").set_input_files([file])  # type: ignore[list-item]
        attached = page.get_by_role("button", name="Remove field.png")
        await expect(page.locator("tl-chip")).to_have_attribute("data-state", "done")
        await page.reload()
        await expect(message_field(page)).to_have_value("half a thought")
        await expect(attached).to_be_visible()
        await page.get_by_role("link", name="New chat").click()
        await expect(message_field(page)).to_have_value("")
        await expect(attached).to_have_count(0)
        await page.get_by_role("link", name="first talk").click()
        await expect(message_field(page)).to_have_value("half a thought")
        await page.keyboard.press("Enter")
        await expect(questions(page)).to_have_count(2)
        await page.reload()
        await expect(questions(page)).to_have_count(2)
        await expect(message_field(page)).to_have_value("")
        await expect(attached).to_have_count(0)


@pytest.mark.parametrize("address", ["#/s/never-was", "#/s/n%C3%B6%20such%20id", "#/s/%"])
async def test_a_conversation_that_does_not_exist_is_said_to_be_none(
    browser: Browser, tmp_path: Path, address: str
) -> None:
    async with (
        serving(tmp_path) as served,
        chat(browser, f"{served.url}/{address}", expected="status of 404") as page,
    ):
        await expect(page.get_by_role("heading", name="This conversation does not exist")).to_be_visible()
        await expect(message_field(page)).to_be_hidden()
        await expect(page).to_have_title("Conversation not found · Trunkline")
        await page.get_by_role("main").get_by_role("link", name="Start a new chat").click()
        await say(page, "Hello")
        await expect(answers(page)).to_have_attribute("data-status", "done")


async def test_the_token_is_remembered_until_the_browser_closes(browser: Browser, tmp_path: Path) -> None:
    async with (
        serving(tmp_path, server={"token": TOKEN}) as served,
        chat(browser, served.url, connected=False) as page,
    ):
        field = page.get_by_label("Token", exact=True)
        await field.fill("wrong")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("This token was not accepted.")).to_be_visible()
        await field.fill(TOKEN)
        await page.keyboard.press("Enter")
        await expect(connection(page)).to_have_text("Connected")
        await say(page, "hi")
        await expect(answers(page)).to_have_attribute("data-status", "done")
        session = session_of(page)
        tab = await page.context.new_page()
        await tab.goto(f"{served.url}/#/s/{session}")
        await expect(words(questions(tab))).to_have_text("hi")
        (cookie,) = await page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["expires"]) == (True, "Strict", -1)  # type: ignore[typeddict-item]
        assert TOKEN not in cookie["value"]  # type: ignore[typeddict-item]
        kept = await page.evaluate("JSON.stringify([{ ...localStorage }, { ...sessionStorage }])")
        assert TOKEN not in kept


async def test_a_user_signs_out_in_all_tabs_and_leaves_nothing_to_the_next_one(
    tmp_path: Path, browser: Browser
) -> None:
    async def sign_in(page: Page) -> None:
        await page.get_by_label("Token", exact=True).fill(TOKEN)
        await page.keyboard.press("Enter")
        await expect(connection(page)).to_have_text("Connected")

    kept = "JSON.stringify([Object.keys(localStorage), Object.keys(sessionStorage)])"
    async with (
        serving(tmp_path, server={"token": TOKEN}) as served,
        chat(browser, served.url, connected=False) as page,
    ):
        await sign_in(page)
        await say(page, "secret")
        await expect(words(answers(page))).to_have_text("You said: secret")
        other = await page.context.new_page()
        await other.goto(page.url)
        await expect(words(answers(other))).to_have_text("You said: secret")
        for tab in (page, other):
            await message_field(tab).fill("draft of a user")
        # What a tab that sleeps meanwhile keeps is not shown to the next user, either.
        sleeping = await other.evaluate("JSON.stringify({ ...sessionStorage })")
        await page.get_by_role("button", name="Settings").click()
        await page.get_by_role("dialog").get_by_role("button", name="Sign out").click()
        question = page.get_by_role("dialog", name="Sign out")
        await expect(question).to_contain_text("are deleted from this browser")
        await question.get_by_role("button", name="Cancel").click()
        await expect(message_field(page)).to_have_value("draft of a user")
        await page.get_by_role("button", name="Settings").click()
        await page.get_by_role("dialog").get_by_role("button", name="Sign out").click()
        await question.get_by_role("button", name="Sign out").click()
        for tab in (page, other):
            await expect(tab.get_by_label("Token", exact=True)).to_be_focused()
            await expect(tab.get_by_text("secret")).to_have_count(0)
            assert "draft" not in await tab.evaluate(kept)
            assert tab.url == f"{served.url}/"
        assert await page.context.cookies() == []
        await other.evaluate("(held) => Object.assign(sessionStorage, JSON.parse(held))", sleeping)
        await other.evaluate("sessionStorage.removeItem('trunkline.signed_out')")
        await sign_in(page)
        await expect(message_field(page)).to_have_value("")
        await other.reload()
        await other.get_by_role("link", name="secret").click()
        await expect(words(answers(other))).to_have_text("You said: secret")
        await expect(message_field(other)).to_have_value("")


async def test_a_login_in_one_tab_counts_in_the_others(tmp_path: Path, browser: Browser) -> None:
    async with (
        serving(tmp_path, server={"token": TOKEN}) as served,
        chat(browser, served.url, connected=False) as page,
    ):
        other = await page.context.new_page()
        await other.goto(served.url)
        field = other.get_by_label("Token", exact=True)
        await expect(field).to_be_focused()
        await page.get_by_label("Token", exact=True).fill(TOKEN)
        await page.keyboard.press("Enter")
        await expect(connection(page)).to_have_text("Connected")
        # Browsers send this when the user comes back to a tab.
        await other.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        await expect(connection(other)).to_have_text("Connected")
        await expect(field).to_be_hidden()


async def test_without_a_login_there_is_nothing_to_sign_out_of(tmp_path: Path, browser: Browser) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        await page.get_by_role("button", name="Settings").click()
        await expect(page.get_by_role("dialog").get_by_role("button", name="Plugins")).to_be_visible()
        await expect(page.get_by_role("dialog").get_by_role("button", name="Sign out")).to_have_count(0)


async def test_the_cookie_counts_for_the_page_of_the_gateway_alone(tmp_path: Path) -> None:
    async with serving(tmp_path, server={"token": TOKEN}) as served, ClientSession() as http:
        right = {"Authorization": f"Bearer {TOKEN}"}
        async with http.post(f"{served.url}/api/browser", headers=right) as answer:
            assert answer.status == 204
            (sent,) = answer.headers.getall("Set-Cookie")
        cookie = {"Cookie": sent.partition(";")[0]}
        own, other = {"Origin": served.url}, {"Origin": "http://127.0.0.1:1"}
        asked: dict[str, Any] = {
            "GET /api/sessions": ({}, 200),
            "POST /api/sessions/s/abort": ({}, 401),
            "POST /api/sessions/t/abort": (own, 404),
            "GET /api/status": (other, 403),
            "GET /api/dead": ({"Sec-Fetch-Site": "same-site"}, 401),
            "GET /metrics": (own, 401),
            "GET /v1/models": (own, 401),
            "GET /ws": ({"Connection": "Upgrade", "Upgrade": "websocket"}, 0),
        }
        got: dict[str, int] = {}
        for place, (headers, expected) in asked.items():
            method, path = place.split()
            if not expected:
                client = await served.connect(html=True, greeted=False, headers=cookie)
                assert await client.close_code() == 4001
                await served.connect(html=True, headers={**cookie, **own})
                continue
            async with http.request(method, served.url + path, headers={**cookie, **headers}) as answer:
                got[place] = answer.status
        assert got == {place: expected for place, (_, expected) in asked.items() if expected}
        forged = {"Cookie": cookie["Cookie"][:-1] + "x", **own}
        async with http.get(f"{served.url}/api/sessions", headers=forged) as answer:
            assert answer.status == 401


async def test_conversations_of_this_page_of_all_channels_and_unnamed_requests_are_listed_apart(
    browser: Browser, tmp_path: Path
) -> None:
    async with serving(tmp_path) as served:
        async with served.socket() as client:
            await client.say("written here", session="web")
            await served.idle("web")
        await served.ask("POST", "/api/sessions/named/messages", json={"text": "asked by a program"})
        for number in range(101):
            asked = {"messages": [{"role": "user", "content": f"request {number}"}], "model": ""}
            await served.ask("POST", "/v1/chat/completions", json=asked)
        async with chat(browser, served.url) as page:
            rows = page.get_by_role("navigation").get_by_role("listitem")
            await expect(rows).to_have_count(1)
            await expect(rows.get_by_role("link")).to_contain_text("written here")
            await expect(rows.locator(".channel")).to_have_count(0)
            await page.get_by_role("button", name="Chats of this page").click()
            await page.get_by_role("menuitem", name="All channels").click()
            await expect(rows).to_have_count(2)
            await expect(rows.nth(0).get_by_role("link", name="api: asked by a program")).to_be_visible()
            await expect(rows.nth(0).locator(".channel")).to_contain_text("AP")
            await page.get_by_role("button", name="All channels").click()
            await page.get_by_role("menuitem", name="Unnamed API requests").click()
            await expect(rows.filter(has_text="written here")).to_have_count(0)
            await expect(rows.first).to_contain_text("request 100")
            oldest = rows.locator(".title").get_by_text("request 0", exact=True)
            await scroll_list_to(page, "request 0")
            await expect(oldest).to_be_visible()


async def test_a_list_of_sessions_can_be_of_one_channel_or_without_unnamed_ones(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        for session in ("chat-friends", "mine"):
            await served.ask("POST", f"/api/sessions/{session}/messages", json={"text": "Hi"})
        asked = {"messages": [{"role": "user", "content": "Hi"}], "model": ""}
        await served.ask("POST", "/v1/chat/completions", json=asked)
        listed: dict[str, list[str]] = {}
        for query in ("unnamed=with", "unnamed=without", "unnamed=only", "channel=websocket"):
            _, said = await served.ask("GET", f"/api/sessions?{query}")
            listed[query] = sorted(session["id"] for session in said["sessions"])
        (unnamed,) = listed["unnamed=only"]
        assert listed["unnamed=without"] == ["chat-friends", "mine"]
        assert listed["unnamed=with"] == sorted(["chat-friends", "mine", unnamed])
        assert listed["channel=websocket"] == []
        assert (await served.ask("GET", "/api/sessions?unnamed=maybe"))[0] == 400


async def test_the_members_of_a_room_are_named_and_context_and_quotes_are_marked(
    browser: Browser, tmp_path: Path
) -> None:
    platforms = Platforms()
    room = Address("home", "bot", "-100", group=True, title="Team")
    channels: dict[str, Any] = {"websocket": {}, "home": {"allow": "*"}}
    session = "home:bot:-100"

    def said(text: str, name: str, **fields: Any) -> InboundMessage:
        sender = Sender(name, name.title(), name)
        return InboundMessage(
            session=session, dedup_key=new_id(), address=room, sender=sender, text=text, **fields
        )

    async with serving(tmp_path, platforms, channels=channels) as served:
        await platforms.home.write(said("<b>the build is red</b>", "bob", addressed="none"))
        quote = Quoted("reply", "who broke it?", Sender("eve", "Eve"))
        await platforms.home.write(said("why?", "alice", addressed="mention", quotes=(quote,)))
        await platforms.home.until(1)
        async with chat(browser, f"{served.url}/#/s/{session}") as page:
            earlier = page.get_by_role("article", name="Earlier message of Bob (@bob)")
            await expect(words(earlier)).to_have_text("<b>the build is red</b>")
            question = page.get_by_role("article", name="Alice (@alice)", exact=True)
            await expect(question.locator(".author")).to_have_text("Alice (@alice)")
            await expect(question.locator("blockquote")).to_have_text("Reply to Eve\nwho broke it?")
            await expect(question.locator(".typed")).to_have_text("why?")
            await expect(answers(page)).to_have_count(1)


async def test_a_summary_is_folded_and_what_it_covers_stays(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        await say(page, "I want to build a boat. " * 20)
        await expect(answers(page)).to_contain_text("You said: I want")  # not only begun
        served.models.then(Reply((Say("## Goal\n\nA boat"),)))
        await say(page, "/compact")
        await expect(answers(page).last).to_contain_text("Summarized 2 messages.")
        for _ in range(2):
            folded = page.locator("details", has_text="Summary of the conversation so far")
            await expect(folded).to_have_count(1)
            await expect(folded.get_by_text("A boat")).not_to_be_visible()
            await folded.locator("summary").click()
            await expect(folded.get_by_text("A boat")).to_be_visible()
            await expect(questions(page).first).to_contain_text("I want to build a boat.")
            await page.reload()
        await say(page, "Go on")
        await expect(answers(page).last).to_contain_text("You said: Go on")
    assert "> A boat" in served.models.requests[-1].body["messages"][-2]["content"]


async def test_messages_show_when_they_were_written(browser: Browser, tmp_path: Path) -> None:
    zone: dict[str, Any] = {"timezone_id": "UTC", "locale": "en-GB"}
    async with serving(tmp_path) as served, chat(browser, served.url, **zone) as page:
        await say(page, "Hi")
        await expect(answers(page).locator("footer")).to_contain_text("tokens")
        for _ in range(2):
            _, log = await served.ask("GET", f"/api/sessions/{session_of(page)}/messages")
            asked = datetime.fromtimestamp(log["messages"][0]["message"]["created_at"] / 1000, UTC)
            # A minute may pass between sending, storing and answering.
            minutes = {(asked - timedelta(minutes=n)).strftime("%H:%M") for n in (-1, 0, 1)}
            for message in (page.get_by_role("article", name="You"), answers(page)):
                shown = message.locator("footer time")
                await expect(shown).to_have_text(re.compile("|".join(minutes)))
                assert asked.strftime("%B %Y") in (await shown.get_attribute("title") or "")
            await expect(page.locator(".day")).to_have_text(re.compile("Today|Yesterday"))
            await page.reload()
            await expect(answers(page)).to_have_count(1)


async def test_a_text_that_no_message_can_hold_stays_in_its_field(browser: Browser, tmp_path: Path) -> None:
    """The gateway closes the socket that sends it, and the page would send it again with the next one."""
    limits = {"frame_bytes": 20_000}
    async with serving(tmp_path, limits=limits) as served, chat(browser, served.url) as page:
        await say(page, "ö" * 10_000)
        await expect(page.locator("#notice")).to_contain_text("longer than 20 kB")
        await expect(message_field(page)).not_to_have_value("")
        await expect(questions(page)).to_have_count(0)
        await say(page, "short")
        await expect(answers(page)).to_contain_text("You said")


async def test_a_double_click_does_nothing_twice(browser: Browser, tmp_path: Path) -> None:
    asks: dict[str, Any] = {"permissions": {"deploy": "ask"}}
    async with serving(tmp_path, _Shell(), **asks) as served, chat(browser, served.url) as page:
        notice, opened = page.locator("#notice"), asyncio.Event()
        await say(page, "one")
        await expect(answers(page)).to_contain_text("You said")
        for name in ("Edit", "Another answer"):
            opened.clear()
            served.models.then(Reply((Say("Slowly"), Gate(opened), Say(f" after {name}"))))
            await page.get_by_role("article").get_by_role("button", name=name).dblclick()
            if name == "Edit":
                await questions(page).get_by_role("button", name="Send message").dblclick()
            await expect(answers(page)).to_have_text(re.compile("Slowly"))
            opened.set()
            await expect(answers(page)).to_contain_text(f"after {name}")
            await expect(notice).to_be_hidden()
        served.models.then(Reply((Use("deploy", '{"where": "production"}'),)))
        await say(page, "Deploy")
        await page.get_by_role("button", name="Allow once").dblclick()
        await expect(answers(page).last).to_contain_text("The tool said")
        await expect(notice).to_be_hidden()
        served.models.then(Refusal(401))
        await say(page, "Once more")
        await page.get_by_role("button", name="Retry").dblclick()
        await expect(answers(page).last).to_contain_text("You said: Once more")
        await served.idle(session_of(page))
        await expect(questions(page)).to_have_count(4)
