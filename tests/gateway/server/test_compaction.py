"""Compaction over real sockets: what readers see of it, and what goes to the provider."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.testing.fake_models.script import ModelRequest, Refusal, Reply, Say, Tokens
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import serving

WINDOW, MOST = 3_527, 300
LONG = "all work and no play makes jack a dull boy " * 25


def size(request: ModelRequest) -> int:
    """The tokens of a request, of four characters each."""
    return sum(len(str(message["content"])) for message in request.body["messages"]) // 4


def answer(request: ModelRequest) -> Reply | Refusal:
    """Refuse what is too long, as the real service does; else summarize or answer."""
    tokens = size(request)
    if tokens + MOST > WINDOW:
        told = f"This model's maximum context length is {WINDOW} tokens. However, you requested {tokens}."
        return Refusal(400, told, code="context_length_exceeded")
    first = request.body["messages"][0]
    summarizes = "summarize" in first["content"]
    said = "## Facts\nJack is dull." if summarizes else "Yes."
    return Reply((Say(said),), tokens=Tokens(tokens, 5))


async def test_a_long_conversation_over_a_websocket_continues_and_its_readers_keep_everything(
    tmp_path: Path,
) -> None:
    """The window is not in any list: the first refusal tells it."""
    settings: dict[str, Any] = {"max_tokens": MOST}
    async with FakeModels(answer) as models, serving(tmp_path, fake=models, **settings) as served:
        async with served.socket() as client:
            for n in range(30):
                await client.say(f"{n} {LONG}", session="long")
                done = await client.until("complete")
                assert done["stop_reason"] == "end_turn", done
            kept = [f for f in client.frames if f["type"] == "message" and f["message"].get("custom_type")]
        refused = [r for r in models.requests if size(r) + MOST > WINDOW]
        asked = [r for r in models.requests if r not in refused]
        assert len(refused) == 1
        last = asked[-1].body["messages"]
        _, page = await served.ask("GET", "/api/sessions/long/messages")
    assert [f["message"]["parts"][0] for f in kept] == [
        {"type": "text", "content": "## Facts\nJack is dull.", "kind": "summary"}
    ] * len(kept)
    assert len(kept) >= 3
    assert [message["role"] for message in last[:2]] == ["user", "user"]
    assert last[0]["content"].startswith("[Summary of the earlier conversation, quoted")
    assert last[0]["content"].endswith("> ## Facts\n> Jack is dull.")
    assert "Jack is dull" not in str(page["messages"][0])
