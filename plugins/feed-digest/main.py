"""Writes the new entries of feeds into the chats that asked for them, each day.

A digest is stored before it is sent. So a run that a crash interrupts, and that is repeated, sends the same
digest with the same key, and the entries that it lists count as seen only then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from trunkline_plugin import Command, Context, Data, Response, plugin

from .feeds import Feed, parse_feed

MOST_SEEN = 500
"""Entries of a feed that are remembered."""
MOST_AT_ONCE = 8
"""Requests at the same time."""
LONGEST = 50_000
"""Characters of a digest."""


@plugin
def feed_digest(ctx: Context) -> Mapping[str, Any]:
    """Follow the feeds of the settings."""
    digests = Digests(ctx)

    async def latest(_request: Data) -> Response:
        text = await ctx.kv.get("latest", "There was no digest yet.")
        return Response(text, headers={"content-type": "text/markdown; charset=utf-8"})

    return {
        "commands": [Command("digest", "Daily news of feeds in this chat: on, off", digests.command)],
        "schedule": {"digest": digests.run},
        "routes": {"GET /latest": latest},
    }


class Digests:
    """The digests, the chats that get them, and the entries that were in one."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._feeds: Sequence[str] = ctx.config["feeds"]
        self._most: int = ctx.config["most"]

    async def command(self, args: str, call: Data) -> str:
        """Turn the digest of a chat on or off."""
        key = f"chat {call.session_id}"
        if args.strip() == "on":
            await self._ctx.kv.set(key, 1)
            return f"The news of {len(self._feeds)} feeds come here each day at 8:00. `/digest off` ends it."
        if args.strip() == "off":
            return "The digest is off." if await self._ctx.kv.delete(key) else "It was not on in this chat."
        return "Use `/digest on` or `/digest off`."

    async def run(self, run: Data) -> None:
        """Make the digest of a due time, and send it."""
        pending = await self._ctx.kv.get("pending")
        if pending is not None:
            await self._send(pending)
        if pending is None or pending["key"] != run.key:
            made = await self._make(run.key)
            await self._ctx.kv.set("pending", made)
            await self._send(made)

    async def _make(self, key: str) -> dict[str, Any]:
        """Return a digest with all entries that no earlier one had."""
        gate = asyncio.Semaphore(MOST_AT_ONCE)

        async def read(url: str) -> Feed | None:
            async with gate:
                return await self._read(url)

        found = await asyncio.gather(*map(read, self._feeds))
        parts: list[str] = []
        seen: dict[str, list[str]] = {}
        for url, feed in zip(self._feeds, found, strict=True):
            if feed is None:
                continue
            place = f"seen {_digest(url)}"
            before: list[str] = await self._ctx.kv.get(place, [])
            new = {_digest(each.id): each for each in feed.entries if _digest(each.id) not in before}
            seen[place] = [*new, *before][:MOST_SEEN]
            if new:
                lines = [each.as_markdown() for each in new.values()][: self._most]
                more = [f"- and {len(new) - len(lines)} more"] if len(new) > len(lines) else []
                parts.append("\n".join((f"**{feed.title or url}**", "", *lines, *more)))
        return {"key": key, "text": "\n\n".join(parts)[:LONGEST], "seen": seen}

    async def _read(self, url: str) -> Feed | None:
        """Return a feed; None if it cannot be read, which is logged, so that others still are."""
        try:
            answer = await self._ctx.http.get(url, headers={"user-agent": "trunkline"}, timeout=30)
            if answer.status != 200:
                raise ValueError(f"the server answered {answer.status}")
            return parse_feed(answer.body)
        except Exception as error:  # noqa: BLE001 - a denial, a network error, or what the feed contains
            self._ctx.log.warning(f"{url} could not be read: {error}")
            return None

    async def _send(self, made: Mapping[str, Any]) -> None:
        """Send a digest to all chats; then its entries are seen."""
        chats = await self._ctx.kv.list("chat ") if made["text"] else []
        for chat in chats:
            try:
                await self._ctx.send(chat.removeprefix("chat "), made["text"], made["key"])
            except Exception as error:  # noqa: BLE001 - other chats shall get it although one is gone
                self._ctx.log.warning(f"{chat} did not get its digest: {error}")
        for place, ids in made["seen"].items():
            await self._ctx.kv.set(place, ids)
        if made["text"]:
            await self._ctx.kv.set("latest", made["text"])
        await self._ctx.kv.delete("pending")


def _digest(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()[:16]
