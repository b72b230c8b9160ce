"""Shares: public read-only pages of conversations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from playwright.async_api import Browser, expect
from pydantic import ValidationError
from sqlalchemy import select

from channels.websocket.share_page import STRINGS
from gateway.contract.messages import (
    Attachment,
    ErrorPart,
    FilePart,
    ImagePart,
    Message,
    Origin,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    new_id,
)
from gateway.conversations.shares import Shares
from gateway.session.log import put_message
from gateway.settings import Settings, ShareSettings
from gateway.store import schema as t
from gateway.testing.chat import chatting, written
from gateway.testing.served import Served, serving

pytestmark = pytest.mark.slow

SECRET = "sk-0123456789abcdef0123456789"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
ON: dict[str, Any] = {"share": {"enabled": True, "base_url": "https://bot.example.org/"}}


async def shared(served: Served, text: str = "Hello", **body: Any) -> dict[str, Any]:
    """Say something in the session ``s`` and share it."""
    await served.ask("POST", "/api/sessions/s/messages", json={"text": text})
    await served.idle("s")
    status, made = await served.ask("POST", "/api/sessions/s/share", json=body)
    assert status == 201, made
    return made


async def opened(served: Served, made: dict[str, Any] | str, **request: Any) -> tuple[int, str, Any]:
    """The status, text and headers of a shared page."""
    link = made if isinstance(made, str) else made["url"].rpartition("/")[2]
    async with served.http.get(f"{served.url}/share/{link}", **request) as response:
        assert "Set-Cookie" not in response.headers
        return response.status, await response.text(), response.headers


async def test_004_t10_a_share_link_shows_the_conversation_until_it_is_revoked(tmp_path: Path) -> None:
    async with serving(tmp_path, **ON) as served:
        made = await shared(served, "Hello <b>you</b>")
        assert made["url"].startswith("https://bot.example.org/share/")
        assert len(made["url"].rpartition("/")[2]) == 22
        await served.ask("POST", "/api/sessions/s/messages", json={"text": "said later"})
        await served.idle("s")
        status, text, headers = await opened(served, made, headers={"Host": "bot.example.org"})
        assert status == 200
        assert '<div class="typed" dir="auto">Hello &lt;b&gt;you&lt;/b&gt;</div>' in text
        assert "You said: Hello" in text
        assert "said later" not in text
        assert "<script" not in text
        assert "s-" not in made["share"]["id"]
        assert 'content="noindex, nofollow"' in text
        assert headers["X-Robots-Tag"] == "noindex, nofollow"
        assert "script-src" not in headers["Content-Security-Policy"]
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'sha256-")
        _, listed = await served.ask("GET", "/api/sessions/s/shares")
        assert [(one["id"], one["views"]) for one in listed["shares"]] == [(made["share"]["id"], 1)]
        link = made["url"].rpartition("/")[2]
        stored = await served.gateway.parts.store.read(lambda c: repr(c.execute(select(t.share)).all()))
        assert link not in stored
        path = f"/api/shares/{made['share']['id']}"
        assert (await served.ask("DELETE", path))[0] == 204
        assert (await opened(served, made))[0] == 404
        assert (await served.ask("DELETE", path))[0] == 404


async def test_forged_expired_and_revoked_links_are_the_same(tmp_path: Path) -> None:
    async with serving(tmp_path, **ON) as served:
        made = await shared(served, days=1)
        revoked = await shared(served)
        await served.ask("DELETE", f"/api/shares/{revoked['share']['id']}")
        share, settings, redactor = made["share"], served.gateway.settings.share, served.gateway.redactor
        link, lasts = made["url"].rpartition("/")[2], share["expires_at"] - share["created_at"]
        # It lasts no longer if the clock is set back, or was ahead when it was made.
        for at in (share["expires_at"] + 1, share["created_at"] - lasts):
            other = Shares(served.gateway.parts.store, settings, redactor, lambda at=at: at)
            assert await other.open(link, "peer", count=True) is None
            assert await other.list() == []
        answers = [await opened(served, one) for one in ("A" * 22, "x", "A" * 5_000, "%00" * 22, revoked)]
        assert {(status, text) for status, text, _ in answers} == {(404, answers[0][1])}
        assert len({tuple(headers.items()) for _, _, headers in answers}) == 1
        assert (await opened(served, made))[0] == 200


async def test_guesses_are_limited(tmp_path: Path) -> None:
    async with serving(tmp_path, **ON) as served:
        made = await shared(served)
        for _ in range(30):
            assert (await opened(served, "A" * 22))[0] == 404
        assert (await opened(served, "A" * 22))[0] == 429
        assert (await opened(served, made))[0] == 429


async def test_only_people_are_counted(tmp_path: Path) -> None:
    async with serving(tmp_path, **ON) as served:
        made = await shared(served)
        link = f"{served.url}/share/{made['url'].rpartition('/')[2]}"
        async with served.http.head(link) as response:
            assert response.status == 200
        await opened(served, made, headers={"User-Agent": "TelegramBot (like TwitterBot)"})
        await opened(served, made, headers={"User-Agent": "Mozilla/5.0"})
        _, listed = await served.ask("GET", "/api/sessions/s/shares")
        assert [one["views"] for one in listed["shares"]] == [1]


async def test_a_share_ends_with_its_session(tmp_path: Path) -> None:
    async with serving(tmp_path, **ON) as served:
        made = await shared(served)
        await served.ask("DELETE", "/api/sessions/s")
        assert (await opened(served, made))[0] == 404
        assert await served.gateway.parts.conversations.shares.list() == []


async def test_the_public_name_leads_to_shared_pages_alone(tmp_path: Path) -> None:
    async with serving(tmp_path, **ON) as served:
        await shared(served)
        status, refused = await served.ask("GET", "/api/sessions", headers={"Host": "bot.example.org"})
        assert (status, refused["error_name"]) == (421, "MisdirectedRequestError")
        assert (await opened(served, "A" * 22, headers={"Host": "other.example.org"}))[0] == 421


async def test_sharing_is_off_by_default(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await served.ask("POST", "/api/sessions/s/messages", json={"text": "Hi"})
        await served.idle("s")
        status, refused = await served.ask("POST", "/api/sessions/s/share", json={})
        assert (status, refused["error_name"]) == (409, "InvalidStateError")
        assert (await opened(served, "A" * 22))[0] == 404


@pytest.mark.parametrize("given", [{}, {"base_url": "bot.example.org"}, {"base_url": "https://a/b?c"}])
def test_sharing_needs_a_public_address(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="base_url"):
        Settings.model_validate({"share": {"enabled": True, **given}})
    assert not ShareSettings().enabled


async def test_every_kind_of_part_is_shown_and_secrets_are_masked(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path, **ON) as served:
        await shared(served)
        session = await served.gateway.parts.sessions.find("s")
        parts = (
            TextPart("thinking hard", "reasoning"),
            TextPart("what was said", "summary"),
            TextPart("**bold** <script>alert(1)</script>"),
            ToolCallPart("c1", "shell", {"command": f"echo {SECRET}"}),
            ToolResultPart("c1", f"out {SECRET}", attachments=(Attachment("image/png", PIXEL, "plot"),)),
            ToolResultPart("c1", "it broke", is_error=True),
            ImagePart(PIXEL, "image/png", "a pixel"),
            ImagePart("<svg onload=x>", "image/svg+xml", "evil"),
            FilePart("notes.py", "x = 1"),
            ErrorPart("RateLimitError", "too many requests"),
        )
        hidden = Message(session_id="s", role="user", parts=(TextPart("withdrawn"),), for_model=False)
        context = Message(
            session_id="s",
            role="user",
            parts=(TextPart("by another person"),),
            origin=Origin(channel="x", context=True),
        )
        answer = Message(session_id="s", role="assistant", parts=parts)
        log = [structs.replace(one, id=new_id()) for one in (hidden, context, answer)]
        for number, message in enumerate(log):
            ops = put_message(message, session.row.seq + 1 + number)
            await served.gateway.parts.store.write(*ops)
        served.gateway.redactor.replace((SECRET,))
        _, made = await served.ask("POST", "/api/sessions/s/share", json={})
        _, text, _ = await opened(served, made)
        assert SECRET not in text
        assert "withdrawn" not in text
        assert "by another person" not in text
        page = await browser.new_page()
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text))
        await page.goto(f"{served.url}/share/{made['url'].rpartition('/')[2]}")
        await expect(page.locator("summary")).to_have_text(
            [
                "Reasoning",
                "Summary of earlier messages",
                "Tool call: shell",
                "Result: shell",
                "Failure: shell",
                "File: notes.py",
            ]
        )
        await expect(page.locator("details[open]")).to_have_count(0)
        await page.get_by_text("Result: shell").click()
        await expect(page.get_by_text("out **********")).to_be_visible()
        await expect(page.locator("strong")).to_have_text("bold")
        await expect(page.locator("img")).to_have_count(2)
        await expect(page.get_by_text("too many requests")).to_be_visible()
        await expect(page.locator("script")).to_have_count(0)
        assert await page.locator("main").evaluate("(main) => getComputedStyle(main).maxWidth") != "none"
        assert problems == []
        await page.close()
        # In the language of the browser; any other is English.
        for accepted, lang, call in (
            ("de-DE,de;q=0.9,en;q=0.8", "de", "Werkzeugaufruf: shell"),
            ("fr,de;q=0.5", "de", "Werkzeugaufruf: shell"),
            ("en-GB,de;q=0.5", "en", "Tool call: shell"),
            ("fr", "en", "Tool call: shell"),
            ("", "en", "Tool call: shell"),
        ):
            _, text, headers = await opened(served, made, headers={"Accept-Language": accepted})
            assert f'<html lang="{lang}">' in text
            assert f"<summary>{call}</summary>" in text
            assert headers["Vary"] == "Accept-Language"
        _, text, _ = await opened(served, "x", headers={"Accept-Language": "de"})
        assert "<h1>Nicht gefunden</h1>" in text


def test_both_languages_of_the_shared_page_have_the_same_strings() -> None:
    english, german = STRINGS["en"], STRINGS["de"]
    assert english.keys() == german.keys()
    marks = re.compile(r"{\w+}")
    assert {k: marks.findall(v) for k, v in english.items()} == {
        k: marks.findall(v) for k, v in german.items()
    }


async def test_004_t10_a_chat_is_shared_and_unshared_by_commands(tmp_path: Path) -> None:
    async with chatting(tmp_path, **ON) as chat:
        assert (await chat.say("/share")).text == "Not shared: there is no message to share yet."
        await chat.say("one")
        text = (await chat.say("/share")).text
        link = text.rpartition("/")[2]
        shares = chat.gateway.parts.conversations.shares
        found = await shares.open(link, "peer", count=True)
        assert found is not None
        assert [message.text for message in found.messages] == ["one", "You said: one"]
        message = written("/share")
        grouped = structs.replace(message, address=structs.replace(message.address, group=True))
        answer = await chat.host.submit(grouped)
        assert answer is not None
        assert answer.text == "Only admins can share the conversation of a group."
        assert (await chat.say("/unshare")).text == "Revoked: 1."
        assert await shares.open(link, "peer", count=True) is None
        assert (await chat.say("/unshare")).text == "This conversation is not shared."
    async with chatting(tmp_path) as chat:
        assert (await chat.say("/share")).text.startswith("Not shared: sharing is off")


async def test_shares_on_postgresql_are_the_same(tmp_path: Path, migrated_postgres_url: str) -> None:
    async with chatting(tmp_path, store={"url": migrated_postgres_url}, **ON) as chat:
        await chat.say("one")
        link = (await chat.say("/share")).text.rpartition("/")[2]
        shares = chat.gateway.parts.conversations.shares
        for views in range(2):
            found = await shares.open(link, "peer", count=True)
            assert found is not None
            assert found.share.views == views
        assert (await chat.say("/unshare")).text == "Revoked: 1."
        assert await shares.open(link, "peer", count=True) is None
