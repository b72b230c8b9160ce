"""The web page when the line is bad: nothing is lost, nothing is doubled, and a token is asked for."""

from __future__ import annotations

from contextlib import AsyncExitStack

from playwright.async_api import Browser, WebSocket, expect

from tests.e2e.page_browser import answers, chat, connection, message_field, questions, say, session_of, words
from tests.e2e.page_scripts import answering, halting
from tests.e2e.page_server import PageServer

TOKEN = "a-token-of-32-characters-or-more"


async def test_a_lost_connection_in_an_answer_loses_and_doubles_nothing(browser: Browser) -> None:
    server = PageServer(halting("First.\n\nSecond, half", " and whole.\n\nThird.\n"))
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "Hello")
        await expect(answers(page)).to_contain_text("Second, half")
        await server.drop_sockets()
        server.turns[session_of(page)].go.set()
        await expect(connection(page)).to_have_text("Connected")
        await expect(answers(page).locator("tl-text > p")).to_have_text(
            ["First.", "Second, half and whole.", "Third."]
        )
        await expect(questions(page)).to_have_count(1)
        (resumed,) = [frame for frame in server.received if frame["type"] == "resume"]
        assert resumed["after"] > 0
        assert len([frame for frame in server.received if frame["type"] == "message"]) == 1


async def test_a_running_answer_replayed_under_one_number_is_whole(browser: Browser) -> None:
    """A real session replays what a running answer has so far as one piece, all under its latest number."""
    server = PageServer(halting("First.\n\nSec", "ond.\n"))
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "Hello")
        await expect(answers(page)).to_contain_text("Sec")
        await server.drop_sockets()
        session = session_of(page)
        server.squeeze(session)
        await expect(connection(page)).to_have_text("Connected")
        await expect(answers(page).locator("tl-text")).to_contain_text("Sec")
        await expect(answers(page).locator("tl-text > p")).to_have_count(1)
        server.turns[session].go.set()
        await expect(answers(page).locator("tl-text > p")).to_have_text(["First.", "Second."])


async def test_an_answer_begun_again_after_a_crash_drops_the_lost_part(browser: Browser) -> None:
    server = PageServer(halting("A part that was lo", "st"))
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "Hello")
        await expect(answers(page)).to_contain_text("A part that was lo")
        session = session_of(page)
        turn = server.turns[session]
        place = {"message_id": turn.answer_id, "reply_to": f"m-{turn.message['client_msg_id']}"}
        await server.emit(session, {"type": "turn_start", **place, "attempt": 2})
        fresh = {"message_id": turn.answer_id, "part_index": 0, "content": "Anew.", "accumulated_length": 5}
        await server.emit(session, {"type": "text_delta", **fresh})
        await expect(words(answers(page))).to_have_text("Anew.")
        await expect(answers(page)).to_have_count(1)


async def test_a_message_written_while_offline_is_sent_once_the_server_is_back(browser: Browser) -> None:
    server = PageServer(answering("Back again."))
    async with AsyncExitStack() as stack:
        async with server.running():
            page = await stack.enter_async_context(chat(browser, server.url))
        await expect(connection(page)).to_have_text("Connection lost, trying again…")
        await say(page, "are you there?")
        await expect(questions(page).locator("footer")).to_have_text("Sending…")
        await stack.enter_async_context(server.running(server.port))
        await page.evaluate("dispatchEvent(new Event('online'))")
        await expect(words(answers(page))).to_have_text("Back again.")
        await expect(words(questions(page))).to_have_text("are you there?")
        assert len([frame for frame in server.received if frame["type"] == "message"]) == 1


async def test_a_hidden_tab_that_may_seldom_ping_stays_connected(browser: Browser) -> None:
    server = PageServer(answering("Hi."))
    async with server.running(), chat(browser, server.url) as page:
        sockets: list[WebSocket] = []
        page.on("websocket", lambda socket: sockets.append(socket))
        await page.clock.install()
        await page.reload()
        await expect(connection(page)).to_have_text("Connected")
        for _ in range(3):
            # Timers that are due run once after the minute, as in a tab that the browser slows down.
            async with sockets[0].expect_event("framereceived", lambda payload: "pong" in str(payload)):
                await page.clock.fast_forward(60_000)
        await expect(connection(page)).to_have_text("Connected")
        assert len(sockets) == 1


async def test_a_line_that_died_without_a_word_is_noticed_and_opened_again(browser: Browser) -> None:
    server = PageServer(answering("Hi."))
    async with server.running(), chat(browser, server.url) as page:
        await page.clock.install()
        await page.reload()
        await expect(connection(page)).to_have_text("Connected")
        server.ignore_pings = server.ignore_messages = True
        # Sooner where the user waits: for the network, with a page that is shown again, or for an answer.
        offline = "dispatchEvent(new Event('offline'))"
        shown = "document.dispatchEvent(new Event('visibilitychange'))"
        sent = "document.querySelector('tl-composer form').requestSubmit()"
        await message_field(page).fill("Are you there?")
        for happens, silence in ((offline, 2_000), (shown, 6_000), (sent, 6_000)):
            await page.clock.pause_at(await page.evaluate("Date.now() / 1_000 + 1"))
            await page.evaluate(happens)
            await page.clock.run_for(silence + 20)
            await expect(connection(page)).to_have_text("Connection lost, trying again…")
            await page.clock.resume()
            await expect(connection(page)).to_have_text("Connected")
        async with page.expect_websocket():
            await page.clock.run_for(61_000)
        server.ignore_messages = False
        await server.drop_sockets()
        await expect(words(answers(page))).to_have_text("Hi.")


async def test_a_stop_while_offline_says_that_it_was_not_sent(browser: Browser) -> None:
    server = PageServer(halting("First, half", " and whole."))
    async with AsyncExitStack() as stack:
        async with server.running():
            page = await stack.enter_async_context(chat(browser, server.url))
            await say(page, "Hello")
            await expect(answers(page)).to_contain_text("First, half")
        await expect(connection(page)).to_have_text("Connection lost, trying again…")
        await page.get_by_role("button", name="Stop answering").click()
        await expect(page.locator("#notice")).to_contain_text("Stop the answer when the connection is back")


async def test_a_message_without_its_ack_is_sent_again_under_the_same_id(browser: Browser) -> None:
    server = PageServer(answering("Once."))
    server.ignore_messages = True
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "hello?")
        await expect(questions(page).locator("footer")).to_have_text("Sending…")
        server.ignore_messages = False
        await page.reload()
        await expect(words(answers(page))).to_have_text("Once.")
        await expect(questions(page)).to_have_count(1)
        sent = [frame["client_msg_id"] for frame in server.received if frame["type"] == "message"]
        assert len(sent) == 2
        assert len(set(sent)) == 1
        assert (
            await page.evaluate("Object.keys(localStorage).filter((key) => key.includes('outbox')).length")
            == 0
        )


async def test_a_message_sent_after_a_reload_does_not_hide_the_conversation(browser: Browser) -> None:
    server = PageServer(answering("Yes."))
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "one?")
        await expect(words(answers(page))).to_have_text("Yes.")
        server.ignore_messages = True
        await say(page, "two?")
        await expect(questions(page)).to_have_count(2)
        server.ignore_messages = False
        await page.reload()
        await expect(words(questions(page))).to_have_text(["one?", "two?"])
        await expect(words(answers(page))).to_have_text(["Yes.", "Yes."])


async def test_a_message_whose_ack_was_lost_is_answered_once(browser: Browser) -> None:
    server = PageServer(answering("Once."))
    server.swallow_acks = 1
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "hello?")
        await expect(questions(page).locator("footer").last).to_have_text("Sending…")
        await server.drop_sockets()
        await expect(connection(page)).to_have_text("Connected")
        await expect(words(answers(page))).to_have_text("Once.")
        await expect(words(questions(page))).to_have_text(["hello?"])


async def test_a_refused_message_says_why_and_can_be_discarded(browser: Browser) -> None:
    server = PageServer(answering("Fine."))
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "refuse this")
        pending = questions(page)
        await expect(pending.locator("footer")).to_contain_text("Not sent: the queue is full")
        await pending.get_by_role("button", name="Discard").click()
        await expect(pending).to_have_count(0)
        await say(page, "take this")
        await expect(words(answers(page))).to_have_text("Fine.")


async def test_a_sign_out_without_a_connection_ends_the_login_when_it_is_back(browser: Browser) -> None:
    server = PageServer(answering("Welcome."), token=TOKEN)
    async with AsyncExitStack() as stack:
        async with server.running():
            page = await stack.enter_async_context(chat(browser, server.url, connected=False))
            await page.get_by_label("Token", exact=True).fill(TOKEN)
            await page.keyboard.press("Enter")
            await expect(connection(page)).to_have_text("Connected")
        await expect(connection(page)).to_have_text("Connection lost, trying again…")
        await say(page, "secret")
        await message_field(page).fill("a draft")
        await page.get_by_role("button", name="Settings").click()
        await page.get_by_role("button", name="Sign out").click()
        await page.get_by_role("dialog", name="Sign out").get_by_role("button", name="Sign out").click()
        await expect(page.get_by_role("alert")).to_contain_text("You are signed out in this browser")
        await expect(page.get_by_text("secret")).to_have_count(0)
        kept = await page.evaluate("JSON.stringify([{ ...localStorage }, { ...sessionStorage }])")
        assert not {"draft", "outbox"} & set(kept.split("."))
        await stack.enter_async_context(server.running(server.port))
        await page.evaluate("dispatchEvent(new Event('online'))")
        await expect(page.get_by_label("Token", exact=True)).to_be_focused()
        assert await page.context.cookies() == []
        assert "message" not in [frame["type"] for frame in server.received]


async def test_a_token_is_asked_for_and_never_in_an_address_or_in_reach_of_a_script(browser: Browser) -> None:
    server = PageServer(answering("Welcome."), token=TOKEN)
    async with server.running(), chat(browser, server.url, connected=False) as page:
        addresses: list[str] = []
        page.on("request", lambda request: addresses.append(request.url))
        page.on("websocket", lambda socket: addresses.append(socket.url))
        field = page.get_by_label("Token", exact=True)
        await expect(field).to_be_focused()
        await field.fill("wrong")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("This token was not accepted.")).to_be_visible()
        await field.fill(TOKEN)
        await page.keyboard.press("Enter")
        await expect(connection(page)).to_have_text("Connected")
        await say(page, "hi")
        await expect(words(answers(page))).to_have_text("Welcome.")
        await page.reload()
        await expect(words(answers(page))).to_have_text("Welcome.")
        assert not any(TOKEN in address for address in addresses)
        kept = "JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie])"
        assert await page.evaluate(kept) == '[{},{},""]'
