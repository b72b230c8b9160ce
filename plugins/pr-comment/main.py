"""Posts the newest answer of each conversation as a comment on a pull request, and updates that comment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from trunkline_plugin import Context, Data, plugin

LONGEST = 60_000
"""Characters of a comment; GitHub accepts 65,536."""
SECONDS = 4.0
"""Less than an observing handler may take."""


@plugin
def pr_comment(ctx: Context) -> Mapping[str, Any]:
    """Collect answers, and post the newest one once its conversation has no message to answer."""
    comments = Comments(ctx)
    answers: dict[str, str] = {}
    posting = asyncio.Lock()

    def added(event: Data) -> None:
        if comments.number and event.role == "assistant" and event.get("text"):
            answers[event.session_id] = event.text

    async def completed(event: Data) -> None:
        # One after the other: two at once would each make the comment of a new conversation.
        async with posting:
            text = answers.get(event.session_id, "")
            if text:
                await comments.post(event.session_id, text)
            if answers.get(event.session_id) == text:
                del answers[event.session_id]

    return {"on": {"message.added": added, "session.completed": completed}}


class Comments:
    """The comments on one pull request, one for each conversation."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.number: str = ctx.config["pull_request"]
        self._repository: str = ctx.config["repository"]
        self._api: str = ctx.config["api"].rstrip("/")

    async def post(self, session: str, text: str) -> None:
        """Make the comment of a conversation, or update it."""
        text = text if len(text) <= LONGEST else f"{text[:LONGEST]}\n\n[cut here]"
        key = f"{self._repository}#{self.number} {session}"
        known = await self._ctx.kv.get(key)
        if known is not None and await self._send("PATCH", f"issues/comments/{known}", text) is not None:
            return
        made = await self._send("POST", f"issues/{self.number}/comments", text)
        if made is None:
            raise RuntimeError(
                f"{self._api} has no pull request {self.number} in {self._repository}, "
                "or the token may not write there"
            )
        await self._ctx.kv.set(key, made["id"])

    async def _send(self, method: str, place: str, text: str) -> Any:
        """Make a request of the API. Returns None if it does not know the place."""
        headers = {
            "authorization": f"Bearer {await self._ctx.secrets.get('TOKEN')}",
            "accept": "application/json",
            "content-type": "application/json",
            "user-agent": "trunkline",
        }
        url, body = f"{self._api}/repos/{self._repository}/{place}", json.dumps({"body": text})
        answer = await self._ctx.http.request(method, url, headers=headers, body=body, timeout=SECONDS)
        if answer.status == 404:
            return None
        if answer.status >= 300:
            raise RuntimeError(
                f"{self._api} answered {answer.status} to {method} {place}: {answer.text[:200]}"
            )
        return json.loads(answer.text)
