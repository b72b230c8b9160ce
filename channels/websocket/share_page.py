"""The public page of a shared conversation: plain HTML without scripts, cookies or loaded content."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import assert_never

from aiohttp import web

from gateway import ErrorPart, FilePart, ImagePart, Message, TextPart, ToolCallPart, ToolResultPart
from gateway.channel import Host, SharedConversation
from gateway.server.pages.highlight import code_html, language_of

_PICTURES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]*")
_LONGEST_OUTPUT = 20_000
_NOT_PEOPLE = re.compile(r"bot|preview|facebookexternalhit|whatsapp|crawl|spider|fetch", re.IGNORECASE)
_ENGLISH = {
    "user": "User",
    "assistant": "Assistant",
    "system": "System",
    "reasoning": "Reasoning",
    "summary": "Summary of earlier messages",
    "quote": "Quote",
    "not_found": "Not found",
    "not_valid": "This link is not valid, or not valid any more.",
    "untitled": "Conversation",
    "shared": "Shared on {begin}, until {end}.",
    "cut": "Only the latest messages are shown.",
    "call": "Tool call: {name}",
    "result": "Result: {name}",
    "failure": "Failure: {name}",
    "tool": "tool",
    "file": "File: {name}",
    "picture": "picture",
}
_GERMAN = {
    "user": "Nutzer",
    "assistant": "Assistent",
    "system": "System",
    "reasoning": "Überlegung",
    "summary": "Zusammenfassung früherer Nachrichten",
    "quote": "Zitat",
    "not_found": "Nicht gefunden",
    "not_valid": "Dieser Link gilt nicht, oder nicht mehr.",
    "untitled": "Unterhaltung",
    "shared": "Geteilt am {begin}, bis {end}.",
    "cut": "Nur die neuesten Nachrichten werden gezeigt.",
    "call": "Werkzeugaufruf: {name}",
    "result": "Ergebnis: {name}",
    "failure": "Fehler: {name}",
    "tool": "Werkzeug",
    "file": "Datei: {name}",
    "picture": "Bild",
}
STRINGS: Mapping[str, Mapping[str, str]] = {"en": _ENGLISH, "de": _GERMAN}


class SharePage:
    """Handler of ``/share/{link}``. One page is rendered at a time, in a thread."""

    def __init__(self, host: Host, folder: Path) -> None:
        self._host = host
        self._style = (folder / "share.css").read_text(encoding="utf-8")
        digest = base64.b64encode(hashlib.sha256(self._style.encode()).digest()).decode()
        self._headers = {
            "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "sandbox allow-popups allow-popups-to-escape-sandbox",
            "X-Robots-Tag": "noindex, nofollow",
            "Cache-Control": "no-store",
            "Vary": "Accept-Language",
        }
        self._rendering = asyncio.Lock()

    async def serve(self, request: web.Request) -> web.Response:
        """Return the page of a link; the same page with status 404 for each link that is not valid."""
        person = request.method == "GET" and not _NOT_PEOPLE.search(request.headers.get("User-Agent", ""))
        link, peer = request.match_info["link"], request.remote or ""
        shared = await self._host.shares.open(link, peer, count=person)
        language = _language_of(request.headers.get("Accept-Language", ""))
        words = _Words(STRINGS[language])
        if shared is None:
            heading = words("not_found")
            body = f"<h1>{heading}</h1>\n<p>{words('not_valid')}</p>"
            return self._respond(404, language, heading, body)
        async with self._rendering:
            body = await asyncio.to_thread(lambda: "\n".join(words.conversation(shared)))
        return self._respond(200, language, shared.share.title or words("untitled"), body)

    def _respond(self, status: int, language: str, title: str, body: str) -> web.Response:
        text = (
            f'<!doctype html>\n<html lang="{language}"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta name="robots" content="noindex, nofollow"><title>{escape(title)}</title>'
            f"<style>{self._style}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
        )
        return web.Response(text=text, status=status, content_type="text/html", headers=self._headers)


def _language_of(accepted: str) -> str:
    """Return the first known language of a header, else English. Browsers send the preferred first."""
    codes = (one.strip()[:2].lower() for one in accepted.split(","))
    return next((code for code in codes if code in STRINGS), "en")


class _Words:
    """Renderer of a conversation in one language."""

    def __init__(self, strings: Mapping[str, str]) -> None:
        self._strings = strings

    def __call__(self, key: str, **values: str) -> str:
        """Return a string with its values, not escaped."""
        return self._strings[key].format(**values)

    def conversation(self, shared: SharedConversation) -> Iterator[str]:
        """Yield the lines of the page."""
        share = shared.share
        yield f"<h1>{escape(share.title or self('untitled'))}</h1>"
        dates = self("shared", begin=_day(share.created_at), end=_day(share.expires_at))
        yield f'<p class="note">{dates}</p>'
        if shared.cut:
            yield f'<p class="note">{self("cut")}</p>'
        for message in shared.messages:
            author = self(message.role if message.role in self._strings else "system")
            yield f'<article class="{escape(message.role)}"><h2>{author}</h2>'
            yield from self._parts(message)
            yield "</article>"

    def _parts(self, message: Message) -> Iterator[str]:
        names = {
            part.tool_call_id: part.tool_name for part in message.parts if isinstance(part, ToolCallPart)
        }
        for part in message.parts:
            match part:
                case TextPart(kind="text" | "notice"):
                    yield _text(part.content, message.role)
                case TextPart():
                    yield _folded(self(part.kind), _text(part.content, message.role))
                case ToolCallPart():
                    arguments = json.dumps(part.arguments, ensure_ascii=False, indent=2)
                    yield _folded(self("call", name=part.tool_name), _preformatted(arguments))
                case ToolResultPart():
                    name = names.get(part.tool_call_id, self("tool"))
                    pictures = [self._picture(one.mime_type, one.data, one.name) for one in part.attachments]
                    outcome = self("failure" if part.is_error else "result", name=name)
                    yield _folded(outcome, _preformatted(part.output) + "".join(pictures))
                case ErrorPart():
                    yield f'<p class="error">{escape(part.message)}</p>'
                case ImagePart():
                    yield self._picture(part.mime_type, part.data, part.alt_text or self("picture"))
                case FilePart():
                    content = (part.content or "")[:_LONGEST_OUTPUT]
                    shown = code_html(content, part.language or language_of(part.path), part.path)
                    name = self("file", name=part.path)
                    yield _folded(name, shown) if content else f"<p>{escape(name)}</p>"
                case _:
                    assert_never(part)

    def _picture(self, mime_type: str, data: str, name: str) -> str:
        """Return a picture inside the page, or its name if it is none that browsers show safely."""
        if mime_type not in _PICTURES or not _BASE64.fullmatch(data):
            return f"<p>{escape(self('file', name=name))}</p>"
        return f'<img src="data:{mime_type};base64,{data}" alt="{escape(name)}">'


def _text(content: str, role: str) -> str:
    from gateway.server.pages.blocks import render_html  # the Markdown parser, for shared pages only

    if role == "user":
        return f'<div class="typed" dir="auto">{escape(content)}</div>'
    return f'<div class="prose" dir="auto">{render_html(content)}</div>'


def _folded(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def _preformatted(text: str) -> str:
    rest = "\n…" if len(text) > _LONGEST_OUTPUT else ""
    return f"<pre>{escape(text[:_LONGEST_OUTPUT])}{rest}</pre>"


def _day(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
