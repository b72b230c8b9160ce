"""The web page in a real browser: what a person sees and can do. A scripted server plays the gateway."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.e2e.page_browser import (
    act,
    answers,
    chat,
    connection,
    message_field,
    place_of,
    questions,
    say,
    session_of,
    words,
)
from tests.e2e.page_scripts import answering, asking_leave, every_part, halting, looking_up, picture
from tests.e2e.page_server import PageServer

MARKDOWN = (
    "# Title\n\nSome **bold** text.\n\n```python\ndef f(): return 1\n```\n\n"
    "- one\n- two\n\n| a |\n|---|\n| b |\n"
)
ATTACKS = (
    "<script>window.hit = 1</script> <img src=x onerror='window.hit = 1'>\n\n"
    "[press](javascript:window.hit=1) <javascript:window.hit=1>\n\n"
    "![pic](https://tracker.example/pixel.png)\n\n```html\n<script>window.hit = 1</script>\n```\n"
)


async def test_a_message_typed_is_answered_as_it_streams(browser: Browser) -> None:
    server = PageServer(halting("First paragraph.\n\nSecond pa", "ragraph.\n"))
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "Hello there")
        await expect(words(questions(page))).to_have_text("Hello there")
        answer = answers(page)
        await expect(answer.locator("tl-text > p:not(.tail)")).to_have_text("First paragraph.")
        await expect(answer.locator(".tail")).to_have_text("Second pa")
        await expect(page).to_have_title("● Hello there · Trunkline")
        server.turns[session_of(page)].go.set()
        await expect(answer.locator("tl-text > p")).to_have_text(["First paragraph.", "Second paragraph."])
        await expect(answer.locator("footer")).to_contain_text("30 tokens · $0.0042 · 1.5 s")
        await expect(page.locator(".usage")).to_have_text("46 tokens · $0.0123")
        await expect(page).to_have_title("Hello there · Trunkline")


async def replay(page: Page) -> None:
    """Begin a replay of the conversation."""
    await page.get_by_role("button", name="Actions for this conversation").click()
    await page.get_by_role("menuitem", name="Replay this conversation").click()
    # It begins once its module is there, and draws with the page's clock.
    async with asyncio.timeout(60):
        while await answers(page).count():
            await page.clock.run_for(20)


async def test_004_09_a_conversation_is_played_again_with_its_recorded_times(browser: Browser) -> None:
    server = PageServer(looking_up)
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "Is it sunny?")
        await expect(words(answers(page))).to_contain_text("It is sunny.")
        await page.clock.install(time=0)
        await page.clock.pause_at(60_000)
        await page.evaluate("import('/page/replay.js')")  # its load takes none of the clock's time
        await replay(page)
        await expect(words(questions(page))).to_have_text("Is it sunny?")
        await expect(answers(page)).to_have_count(0)
        await expect(message_field(page)).to_be_hidden()
        await page.clock.run_for(3_900)  # the pause, cut to three seconds, and what was said before the tool
        await expect(words(answers(page))).to_contain_text("Let me look.")
        await expect(answers(page).locator("tl-tool")).to_have_count(1)
        await page.clock.run_for(3_000)
        await expect(words(answers(page))).not_to_contain_text("It is")
        await page.clock.run_for(2_000)
        await expect(words(answers(page))).to_contain_text("It is sunny.")
        await expect(message_field(page)).to_be_visible()
        await replay(page)
        await expect(answers(page)).to_have_count(0)
        await page.get_by_role("button", name="Stop the replay").click()
        await page.clock.run_for(100)
        await expect(words(answers(page))).to_contain_text("It is sunny.")


async def test_finished_blocks_are_never_drawn_again(browser: Browser) -> None:
    server = PageServer(halting("First paragraph.\n\nSecond pa", "ragraph.\n\nThird.\n"))
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "Hello")
        first = await answers(page).locator("tl-text > p:not(.tail)").element_handle()
        assert first is not None
        server.turns[session_of(page)].go.set()
        await expect(answers(page).locator("tl-text > p")).to_have_count(3)
        await expect(answers(page).locator("footer")).to_contain_text("tokens")
        assert await first.evaluate("(element) => element.isConnected")


async def test_markdown_is_shown_and_code_can_be_copied(browser: Browser) -> None:
    server = PageServer(answering(MARKDOWN))
    permissions = ["clipboard-read", "clipboard-write"]
    async with server.running(), chat(browser, server.url, permissions=permissions) as page:
        await say(page, "Show me")
        answer = answers(page)
        await expect(answer.get_by_role("heading", name="Title")).to_be_visible()
        await expect(answer.locator("strong")).to_have_text("bold")
        await expect(answer.get_by_role("listitem")).to_have_text(["one", "two"])
        await expect(answer.get_by_role("cell")).to_have_text("b")
        await expect(answer.locator(".k").first).to_have_text("def")
        await answer.get_by_role("button", name="Copy code").click()
        await expect(answer.get_by_role("button", name="Copied")).to_be_visible()
        assert await page.evaluate("navigator.clipboard.readText()") == "def f(): return 1\n"


async def test_text_that_is_read_from_the_right_begins_there_and_code_does_not(browser: Browser) -> None:
    hebrew = "שלום, עולם."
    server = PageServer(answering(f"{hebrew} `f(x)`\n\n- {hebrew}\n\n> {hebrew}\n\nIn English.\n"))
    async with server.running(), chat(browser, server.url) as page:
        await message_field(page).fill(hebrew)
        await expect(message_field(page)).to_have_css("direction", "rtl")
        await page.keyboard.press("Enter")
        await expect(questions(page).locator(".typed")).to_have_css("direction", "rtl")
        answer = answers(page)
        await expect(answer.locator("p").last).to_have_text("In English.")
        for kind in ("p >> nth=0", "li", "blockquote > p"):
            await expect(answer.locator(kind)).to_have_css("direction", "rtl")
        for kind in ("code", "p >> nth=-1"):
            await expect(answer.locator(kind)).to_have_css("direction", "ltr")


async def test_what_a_model_or_a_person_writes_stays_inert(browser: Browser) -> None:
    server = PageServer(answering(ATTACKS))
    async with server.running(), chat(browser, server.url) as page:
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        await say(page, ATTACKS)
        await expect(answers(page).locator("footer")).to_contain_text("tokens")
        await expect(answers(page).locator("script, img, [onerror]")).to_have_count(0)
        await expect(questions(page).locator("script, img, a")).to_have_count(0)
        await expect(answers(page).locator("a")).to_have_attribute(
            "href", "https://tracker.example/pixel.png"
        )
        assert await page.evaluate("window.hit") is None
        assert all(url.startswith(server.url) for url in requests)


async def test_no_other_door_lets_html_in(browser: Browser) -> None:
    server = PageServer(answering("Hi."))
    async with server.running(), chat(browser, server.url, expected="TrustedHTML") as page:
        assign = "() => { try { document.body.innerHTML = '<b>x</b>' } catch (error) { return error.name } }"
        assert await page.evaluate(assign) == "TypeError"


async def test_004_07_every_kind_of_part_is_shown_by_its_contract(browser: Browser) -> None:
    server = PageServer(every_part)
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "Everything, please")
        answer = answers(page)
        await expect(answer.locator("tl-text.notice")).to_have_text("one failed. Answering with two instead.")
        clock, forecast = answer.locator("tl-tool").nth(0), answer.locator("tl-tool").nth(1)
        await expect(clock.locator("summary")).to_contain_text("clock")
        await expect(clock.locator(".tool-status")).to_have_text("running")
        await expect(clock.locator(".tool-hint")).to_have_text("winding up")
        await expect(clock.get_by_role("group", name="Output")).to_be_hidden()
        server.turns[session_of(page)].go.set()
        await expect(clock.locator(".tool-status")).to_have_text("done · 1.2 s")
        await expect(forecast.locator(".tool-status")).to_have_text("failed · 40 ms")
        await clock.locator("summary").click()
        await expect(clock.get_by_role("group", name="Arguments")).to_have_text(
            '{\n  "zone": "Asia/Tokyo"\n}'
        )
        await expect(clock.get_by_role("group", name="Output")).to_have_text("winding up\n12:38 in Tokyo")
        await expect(answer.get_by_role("img", name="A green field")).to_be_visible()
        await expect(answer.locator("figure", has_text="notes/plan.py:3-3").locator("code")).to_have_text(
            "x = 1\n"
        )
        error = answer.get_by_role("group", name="Error: Rate limit reached")
        await expect(error.locator("strong")).to_have_text("Rate limit reached")
        await expect(error).to_contain_text("The provider asked us to slow down.")
        await expect(error.locator("pre")).to_be_hidden()
        await error.get_by_text("Details").click()
        await expect(error.locator("pre")).to_have_text("error: RateLimitError\ncode: 429\nretryable: true")
        reasoning = answer.locator("details.folded")
        await expect(reasoning.locator("tl-text")).to_be_hidden()
        await reasoning.locator("summary").click()
        await expect(reasoning.locator("tl-text")).to_have_text("I should look at the clock.")


@pytest.mark.parametrize("by_key", [True, False])
async def test_an_answer_can_be_stopped(browser: Browser, by_key: bool) -> None:
    server = PageServer(halting("As far as this.\n\n", "never said"))
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "Go on")
        await expect(answers(page)).to_contain_text("As far as this.")
        if by_key:
            await page.keyboard.press("Escape")
        else:
            await page.get_by_role("button", name="Stop answering").click()
        await expect(answers(page).locator("footer")).to_contain_text("Stopped")
        await expect(page.get_by_role("button", name="Stop answering")).to_be_hidden()
        await expect(page.get_by_role("button", name="Send message")).to_be_visible()


async def test_another_message_can_be_queued_while_an_answer_runs(browser: Browser) -> None:
    server = PageServer(halting("One. ", "Two."))
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "first")
        await expect(answers(page)).to_contain_text("One.")
        first = server.turns[session_of(page)]
        await say(page, "second")
        await expect(questions(page).nth(1).locator("footer")).to_contain_text("Queued")
        first.go.set()
        await expect(answers(page)).to_have_count(2)
        await expect(questions(page).nth(1).locator("footer")).not_to_contain_text("Queued")


@pytest.mark.parametrize(
    ("button", "decision"), [("Allow once", "once"), ("Always: git status", "always"), ("Deny", "deny")]
)
async def test_an_approval_is_decided_in_place(browser: Browser, button: str, decision: str) -> None:
    server = PageServer(asking_leave)
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "status?")
        card = page.get_by_role("group", name="Approval for shell")
        await expect(card.locator("pre")).to_contain_text('"git"')
        await expect(card.locator("pre")).to_contain_text(r'"b\u202ec\u3164\udb40\udc41"')
        # Pressed twice, before the answer of the gateway.
        twice = "(button) => { button.click(); button.click(); }"
        await card.get_by_role("button", name=button).evaluate(twice)
        await expect(card.get_by_role("button")).to_have_count(0)
        await expect(page.locator(".tool-status")).to_have_text("done · 5 ms")
        assert [f["decision"] for f in server.received if f["type"] == "approval"] == [decision]


async def test_pictures_are_attached_shown_and_sent(browser: Browser) -> None:
    server = PageServer(answering("Nice."))
    async with server.running(), chat(browser, server.url) as page:
        file = {"name": "field.png", "mimeType": "image/png", "buffer": picture(40, 20)}
        await page.locator("input[type=file]").set_input_files([file])  # type: ignore[list-item]
        await expect(page.get_by_role("button", name="Remove field.png")).to_be_visible()
        await say(page, "look")
        await expect(questions(page).get_by_role("img", name="field.png")).to_be_visible()
        await expect(page.locator("tl-attachments")).to_be_hidden()
        (sent,) = [frame for frame in server.received if frame["type"] == "message"]
        (file_id,) = sent["uploads"]
        held = server.uploads[file_id]
        assert (held["mime_type"], held["width"], held["height"]) == ("image/png", "40", "20")
        assert held["data"] == file["buffer"]


async def test_what_cannot_be_attached_is_said_on_its_chip_and_not_sent(browser: Browser) -> None:
    server = PageServer(answering("Nice."))
    async with server.running(), chat(browser, server.url, expected="status of 400") as page:
        large = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"text" * 3_000_000}
        other = {"name": "refuse.bin", "mimeType": "application/x-thing", "buffer": b"x"}
        good = {"name": "plan.txt", "mimeType": "text/plain", "buffer": b"the plan"}
        await page.locator("input[type=file]").set_input_files([large, other, good])  # type: ignore[list-item]
        chips = page.locator("tl-chip")
        await expect(chips.nth(0).get_by_role("alert")).to_have_text(
            "notes.txt is too large: a file may have at most 10 MB."
        )
        await expect(chips.nth(1).get_by_role("alert")).to_have_text("this kind of file cannot be read")
        await expect(chips.nth(2)).to_have_attribute("data-state", "done")
        await expect(chips.nth(2).get_by_role("alert")).to_have_count(0)
        await page.get_by_role("button", name="Remove refuse.bin").click()
        await expect(chips).to_have_count(2)
        await say(page, "look")
        (sent,) = [frame for frame in server.received if frame["type"] == "message"]
        assert [server.uploads[one]["name"] for one in sent["uploads"]] == ["plan.txt"]


async def test_what_cannot_be_read_is_said_in_the_language_of_the_page(browser: Browser) -> None:
    server = PageServer(answering("Schön."))
    async with (
        server.running(),
        chat(browser, server.url, connected=False, locale="de-DE", expected="status of 400") as page,
    ):
        empty = {"name": "leer.txt", "mimeType": "text/plain", "buffer": b""}
        other = {"name": "refuse.bin", "mimeType": "application/x-thing", "buffer": b"x"}
        await page.locator("input[type=file]").set_input_files([empty, other])  # type: ignore[list-item]
        reasons = page.locator("tl-chip").get_by_role("alert")
        await expect(reasons.nth(0)).to_have_text("leer.txt ist leer.")
        await expect(reasons.nth(1)).to_contain_text("Die Datei hat keinen lesbaren Text.")
        assert server.uploads == {}


async def test_uploads_show_their_progress_and_can_be_removed(browser: Browser) -> None:
    server = PageServer(answering("Nice."))
    server.uploading.clear()
    async with server.running(), chat(browser, server.url) as page:
        files: Any = [
            {"name": name, "mimeType": "text/plain", "buffer": b"text" * 100_000}
            for name in ("a.txt", "b.txt")
        ]
        await page.locator("input[type=file]").set_input_files(files)
        progress = page.get_by_role("progressbar", name="Uploading a.txt")
        await expect(progress).to_have_js_property("value", 1)
        await page.get_by_role("button", name="Remove b.txt").click()
        await expect(page.locator("tl-chip")).to_have_count(1)
        # A message waits for its files. Another draft does not, and has none of them.
        await message_field(page).fill("look")
        await message_field(page).press("Enter")
        await expect(page.get_by_text("The message is sent when its files are uploaded.")).to_be_visible()
        await expect(message_field(page)).to_have_value("look")
        assert [frame for frame in server.received if frame["type"] == "message"] == []
        server.uploading.set()
        await expect(words(questions(page))).to_contain_text("look")
        await expect(page.locator("tl-attachments")).to_be_hidden()
        (sent,) = [frame for frame in server.received if frame["type"] == "message"]
        assert [server.uploads[one]["name"] for one in sent["uploads"]] == ["a.txt"]


async def test_an_upload_continues_while_another_conversation_is_open(browser: Browser) -> None:
    server = PageServer(answering("Nice."))
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "first talk")
        await expect(words(answers(page))).to_have_text("Nice.")
        server.uploading.clear()
        file: Any = {"name": "a.txt", "mimeType": "text/plain", "buffer": b"text"}
        await page.locator("input[type=file]").set_input_files([file])
        await expect(page.locator("tl-chip")).to_have_count(1)
        await page.get_by_role("link", name="New chat").click()
        await expect(page.locator("tl-chip")).to_have_count(0)
        server.uploading.set()
        await page.get_by_role("link", name="first talk").click()
        await expect(page.locator("tl-chip")).to_have_attribute("data-state", "done")
        # It is in the draft then.
        await page.reload()
        await expect(page.locator("tl-chip")).to_have_text("a.txt")


async def test_a_message_stays_if_one_of_its_files_is_refused_meanwhile(browser: Browser) -> None:
    server = PageServer(answering("Nice."))
    server.uploading.clear()
    async with server.running(), chat(browser, server.url, expected="status of 400") as page:
        file: Any = {"name": "refuse.bin", "mimeType": "application/x-thing", "buffer": b"x"}
        await page.locator("input[type=file]").set_input_files([file])
        await message_field(page).fill("look")
        await message_field(page).press("Enter")
        server.uploading.set()
        await expect(page.locator("tl-chip").get_by_role("alert")).to_be_visible()
        await expect(page.get_by_text("The message is sent when")).to_be_hidden()
        await expect(message_field(page)).to_have_value("look")
        assert [frame for frame in server.received if frame["type"] == "message"] == []


async def test_sessions_are_listed_opened_and_deleted_after_a_question(browser: Browser) -> None:
    server = PageServer(answering("Answer."))
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "first talk")
        await expect(answers(page)).to_contain_text("Answer.")
        await page.get_by_role("link", name="New chat").click()
        await expect(page.get_by_role("heading", name="What can I do for you?")).to_be_visible()
        await say(page, "second talk")
        links = page.get_by_role("navigation").get_by_role("listitem")
        await expect(links).to_have_count(2)
        await page.get_by_role("link", name="first talk").click()
        await expect(words(questions(page))).to_have_text("first talk")
        await act(page, "first talk", "Delete…")
        await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
        await expect(links).to_have_count(2)
        await act(page, "first talk", "Delete…")
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await expect(links).to_have_count(1)
        await expect(page.get_by_role("heading", name="What can I do for you?")).to_be_visible()


async def test_a_link_to_a_session_opens_it_and_never_moves_the_endpoint(browser: Browser) -> None:
    server = PageServer(answering("Answer."))
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "remember me")
        await expect(answers(page)).to_contain_text("Answer.")
        address = page.url.replace("#", "?gatewayUrl=ws://evil.example/ws&ws=//evil.example#")
        other = await page.context.new_page()
        sockets: list[str] = []
        other.on("websocket", lambda socket: sockets.append(socket.url))
        await other.goto(address)
        await expect(words(questions(other))).to_have_text("remember me")
        await expect(answers(other)).to_contain_text("Answer.")
        assert sockets == [server.url.replace("http", "ws") + "ws"]


async def test_the_view_follows_the_end_only_while_one_is_there(browser: Browser) -> None:
    long = "".join(f"Paragraph {number}.\n\n" for number in range(60))
    server = PageServer(halting(long, long))
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "talk a lot")
        await expect(answers(page).get_by_text("Paragraph 59.")).to_be_in_viewport()
        jump = page.get_by_role("button", name="Jump to latest")
        await expect(jump).to_be_hidden()
        await page.locator(".scroller").evaluate("(element) => element.scrollTo(0, 100)")
        await expect(jump).to_be_visible()
        server.turns[session_of(page)].go.set()
        await expect(answers(page).locator("footer")).to_contain_text("tokens")
        assert await page.locator(".scroller").evaluate("(element) => element.scrollTop") == 100
        await jump.click()
        await expect(answers(page).locator("tl-text > p").last).to_be_in_viewport()
        await expect(jump).to_be_hidden()


async def test_commands_are_completed_by_the_keyboard(browser: Browser) -> None:
    server = PageServer(answering("Hi."))
    async with server.running(), chat(browser, server.url) as page:
        await message_field(page).press_sequentially("/")
        await expect(page.get_by_role("option")).to_have_count(3)
        await page.keyboard.press("ArrowDown")
        await expect(page.get_by_role("option", selected=True)).to_contain_text("/new")
        await page.keyboard.press("Tab")
        await expect(message_field(page)).to_have_value("/new ")
        await expect(page.get_by_role("listbox")).to_be_hidden()
        await message_field(page).fill("/he")
        await page.keyboard.press("Enter")
        await page.keyboard.press("Enter")
        await expect(words(questions(page))).to_have_text("/help")


async def test_an_example_is_one_press_away(browser: Browser) -> None:
    server = PageServer(answering("It is noon."))
    async with server.running(), chat(browser, server.url) as page:
        await page.get_by_role("button", name="Ask the clock").click()
        await expect(words(questions(page))).to_have_text("What time is it in Asia/Tokyo?")
        await expect(answers(page)).to_contain_text("It is noon.")
        await expect(connection(page)).to_have_text("Connected")


async def test_what_one_opens_stays_under_the_pointer(browser: Browser) -> None:
    server = PageServer(every_part)
    async with server.running(), chat(browser, server.url, viewport={"width": 900, "height": 500}) as page:
        await say(page, "Everything")
        server.turns[session_of(page)].go.set()
        await expect(answers(page).locator("footer")).to_contain_text("tokens")
        details = answers(page).get_by_text("Details")
        place = await place_of(details)
        await details.click()
        await expect(page.get_by_text("retryable: true")).to_be_visible()
        await expect(page.get_by_role("button", name="Jump to latest")).to_be_visible()
        assert await place_of(details) == place


async def test_a_session_that_still_answers_says_why_it_stays(browser: Browser) -> None:
    server = PageServer(halting("On and", " on."))
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "talk")
        await expect(answers(page)).to_contain_text("On and")
        await act(page, "talk", "Delete…")
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await expect(page.get_by_role("alert")).to_contain_text("An answer is still running.")
        await page.get_by_role("button", name="Dismiss").click()
        await expect(page.get_by_role("alert")).to_be_hidden()


async def test_a_large_picture_is_made_smaller(browser: Browser) -> None:
    server = PageServer(answering("Nice."))
    async with server.running(), chat(browser, server.url) as page:
        file = {"name": "photo.png", "mimeType": "image/png", "buffer": picture(1600, 1200, noise=True)}
        await page.locator("input[type=file]").set_input_files([file])  # type: ignore[list-item]
        await expect(page.get_by_role("button", name="Remove photo.png")).to_be_visible()
        await say(page, "look")
        await expect(words(answers(page))).to_have_text("Nice.")
        (held,) = server.uploads.values()
        assert held["mime_type"] == "image/jpeg"
        assert len(held["data"]) <= 525_000
        assert int(held["width"]) * 3 == int(held["height"]) * 4


async def test_a_picture_can_be_dropped_on_the_page(browser: Browser) -> None:
    server = PageServer(answering("Nice."))
    async with server.running(), chat(browser, server.url) as page:
        await page.evaluate(
            """(bytes) => {
                const dropped = new DataTransfer();
                dropped.items.add(new File([new Uint8Array(bytes)], "drop.png", { type: "image/png" }));
                document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: dropped, bubbles: true }));
            }""",
            list(picture(4, 4)),
        )
        await expect(page.get_by_role("button", name="Remove drop.png")).to_be_visible()
        await page.get_by_role("button", name="Remove drop.png").click()
        await expect(page.locator("tl-attachments")).to_be_hidden()


async def test_files_can_be_pasted(browser: Browser) -> None:
    server = PageServer(answering("Nice."))
    async with server.running(), chat(browser, server.url) as page:
        await message_field(page).evaluate(
            """(field, bytes) => {
                const pasted = new DataTransfer();
                pasted.items.add(new File([new Uint8Array(bytes)], "shot.png", { type: "image/png" }));
                pasted.items.add(new File(["a,b"], "table.csv", { type: "text/csv" }));
                field.dispatchEvent(new ClipboardEvent("paste", { clipboardData: pasted, bubbles: true }));
            }""",
            list(picture(4, 4)),
        )
        await expect(page.get_by_role("button", name="Remove shot.png")).to_be_visible()
        await expect(page.get_by_role("button", name="Remove table.csv")).to_be_visible()
        await say(page, "look")
        await expect(words(answers(page))).to_have_text("Nice.")
        (sent,) = (frame for frame in server.received if frame["type"] == "message")
        held = [server.uploads[one] for one in sent["uploads"]]
        assert [(one["name"], one["mime_type"]) for one in held] == [
            ("shot.png", "image/png"),
            ("table.csv", "text/csv"),
        ]


async def test_a_text_with_a_picture_of_itself_is_pasted_as_text(browser: Browser) -> None:
    """Word and Excel put both on the clipboard."""
    server = PageServer(answering("Nice."))
    async with server.running(), chat(browser, server.url) as page:
        is_left_to_the_browser = await message_field(page).evaluate(
            """(field, bytes) => {
                const copied = new DataTransfer();
                copied.setData("text/plain", "1\t2");
                copied.setData("text/html", "<table><tr><td>1<td>2</table>");
                copied.items.add(new File([new Uint8Array(bytes)], "image.png", { type: "image/png" }));
                const how = { clipboardData: copied, bubbles: true, cancelable: true };
                return field.dispatchEvent(new ClipboardEvent("paste", how));
            }""",
            list(picture(4, 4)),
        )
        assert is_left_to_the_browser
        await expect(page.locator("tl-attachments")).to_be_hidden()


async def test_a_text_that_is_dropped_goes_into_the_field(browser: Browser) -> None:
    server = PageServer(answering("Nice."))
    async with server.running(), chat(browser, server.url) as page:
        dropped = """(target) => ["dragover", "drop"].map((kind) => {
            const held = new DataTransfer();
            held.setData("text/plain", "from elsewhere");
            const how = { dataTransfer: held, bubbles: true, cancelable: true };
            return target.dispatchEvent(new DragEvent(kind, how));
        })"""
        assert await message_field(page).evaluate(dropped) == [True, True]
        # Elsewhere the browser would open it, and leave the page.
        assert await page.get_by_role("main").evaluate(dropped) == [False, False]
