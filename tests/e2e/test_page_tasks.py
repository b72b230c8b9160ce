"""The log of a nested run on the page, which is read there and not changed."""

from __future__ import annotations

from collections.abc import AsyncIterator

from playwright.async_api import Browser, expect

from tests.e2e.page_browser import chat, message_field, say
from tests.e2e.page_scripts import complete
from tests.e2e.page_server import Frame, PageServer, Turn, stored

NESTED = "task-0123456789abcdef"


async def delegating(turn: Turn) -> AsyncIterator[Frame]:
    """Lets a nested run do the work, which asks a question itself and fails."""
    failed: Frame = {"type": "error", "error_name": "RateLimitError", "message": "slow down", "metadata": {}}
    log: list[Frame] = [
        {"id": "n1", "role": "user", "parts": [{"type": "text", "content": "Look at the files."}]},
        {"id": "n2", "role": "assistant", "parts": [failed], "metadata": {"stop_reason": "end_turn"}},
    ]
    for message in log:
        await turn.server.emit(NESTED, {"type": "message", "message": message | {"session_id": NESTED}})
    parts: list[Frame] = [
        {"type": "tool_call", "tool_call_id": "c1", "tool_name": "task", "arguments": {}},
        {"type": "tool_result", "tool_call_id": "c1", "output": "No.", "metadata": {"sessions": [NESTED]}},
    ]
    yield complete(turn)
    yield stored(turn, parts, stop_reason="end_turn")


async def test_the_messages_of_a_nested_run_are_only_read(browser: Browser) -> None:
    server = PageServer(delegating)
    async with server.running(), chat(browser, server.url, expected="status of 404") as page:
        await say(page, "Tidy up")
        await page.get_by_text("Steps of the task").click()
        nested = page.locator("tl-task").get_by_role("article")
        await expect(nested).to_have_count(2)
        await expect(nested.get_by_role("button", name="Copy message").first).to_be_visible()
        for name in ("Edit", "Another answer", "Fork from here", "Retry", "Why?"):
            await expect(nested.get_by_role("button", name=name)).to_have_count(0)
        # The arrow key edits the last message of this conversation, not what the run was told.
        await message_field(page).press("ArrowUp")
        await expect(page.get_by_role("textbox", name="New text of the message")).to_have_value("Tidy up")
