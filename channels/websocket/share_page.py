"""The public page of a shared conversation: plain HTML without scripts, cookies or loaded content."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Iterator
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
_AUTHORS = {"user": "User", "assistant": "Assistant", "system": "System"}
_FOLDED = {"reasoning": "Reasoning", "summary": "Summary of earlier messages", "quote": "Quote"}


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
        }
        self._rendering = asyncio.Lock()

    async def serve(self, request: web.Request) -> web.Response:
        """Return the page of a link; the same page with status 404 for each link that is not valid."""
        person = request.method == "GET" and not _NOT_PEOPLE.search(request.headers.get("User-Agent", ""))
        link, peer = request.match_info["link"], request.remote or ""
        shared = await self._host.shares.open(link, peer, count=person)
        if shared is None:
            body = "<h1>Not found</h1>\n<p>This link is not valid, or not valid any more.</p>"
            return self._respond(404, "Not found", body)
        async with self._rendering:
            body = await asyncio.to_thread(lambda: "\n".join(_conversation(shared)))
        return self._respond(200, shared.share.title or "Conversation", body)

    def _respond(self, status: int, title: str, body: str) -> web.Response:
        text = (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<meta name="robots" content="noindex, nofollow"><title>{escape(title)}</title>'
            f"<style>{self._style}</style></head>\n<body><main>\n{body}\n</main></body></html>\n"
        )
        return web.Response(text=text, status=status, content_type="text/html", headers=self._headers)


def _conversation(shared: SharedConversation) -> Iterator[str]:
    share = shared.share
    yield f"<h1>{escape(share.title or 'Conversation')}</h1>"
    yield f'<p class="note">Shared on {_day(share.created_at)}, until {_day(share.expires_at)}.</p>'
    if shared.cut:
        yield '<p class="note">Only the latest messages are shown.</p>'
    for message in shared.messages:
        yield f'<article class="{escape(message.role)}"><h2>{_AUTHORS.get(message.role, "System")}</h2>'
        yield from _parts(message)
        yield "</article>"


def _parts(message: Message) -> Iterator[str]:
    names = {part.tool_call_id: part.tool_name for part in message.parts if isinstance(part, ToolCallPart)}
    for part in message.parts:
        match part:
            case TextPart(kind="text" | "notice"):
                yield _text(part.content, message.role)
            case TextPart():
                yield _folded(_FOLDED[part.kind], _text(part.content, message.role))
            case ToolCallPart():
                arguments = json.dumps(part.arguments, ensure_ascii=False, indent=2)
                yield _folded(f"Tool call: {part.tool_name}", _preformatted(arguments))
            case ToolResultPart():
                name = names.get(part.tool_call_id, "tool")
                pictures = [_picture(one.mime_type, one.data, one.name) for one in part.attachments]
                outcome = "Failure" if part.is_error else "Result"
                yield _folded(f"{outcome}: {name}", _preformatted(part.output) + "".join(pictures))
            case ErrorPart():
                yield f'<p class="error">{escape(part.message)}</p>'
            case ImagePart():
                yield _picture(part.mime_type, part.data, part.alt_text or "picture")
            case FilePart():
                content = (part.content or "")[:_LONGEST_OUTPUT]
                shown = code_html(content, part.language or language_of(part.path), part.path)
                yield _folded(f"File: {part.path}", shown) if content else f"<p>File: {escape(part.path)}</p>"
            case _:
                assert_never(part)


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


def _picture(mime_type: str, data: str, name: str) -> str:
    """Return a picture inside the page, or its name if it is none that browsers show safely."""
    if mime_type not in _PICTURES or not _BASE64.fullmatch(data):
        return f"<p>File: {escape(name)}</p>"
    return f'<img src="data:{mime_type};base64,{data}" alt="{escape(name)}">'


def _day(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
