"""Measures rooms in one process: the cost of a turn with its context, and the memory of an idle room.

The model is a script in the same process, so that only the gateway's own work counts. Prints JSON:
microseconds of processor time for a turn, and bytes for a room.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import procfs

from gateway import Plugin, PluginContext, new_id
from gateway.channel import Address, InboundMessage, Sender
from gateway.testing.chat import Chat, chatting
from gateway.testing.letterbox import Letterbox

_TURNS, _ROUNDS, _ROOMS, _CONTEXT = 60, 7, 2_000, 20
_TEXT = "a message of ordinary length, which somebody wrote to the others in the room. " * 3


class Platform(Plugin):
    """Registers one channel."""

    name = "platform"

    def __init__(self) -> None:
        self.box = Letterbox("home")

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.channels is not None
        ctx.channels.register(self.box)


def said(chat: str, text: str, *, group: bool, **fields: Any) -> InboundMessage:
    """Return a message of a room or a private chat."""
    title = "Team" if group else ""
    return InboundMessage(
        session=f"home:{chat}",
        dedup_key=new_id(),
        address=Address("home", "bot", chat, group=group, title=title),
        sender=Sender("1", "Alice", "alice"),
        text=text,
        sent_at=1_780_056_120_000,
        **fields,
    )


async def turns(box: Letterbox, name: str, *, group: bool, context: int) -> float:
    """Return the microseconds of processor time for a turn, each in its own room."""
    taken = 0.0
    for number in range(_TURNS):
        chat = f"{name}-{number}"
        for _ in range(context):
            await box.write(said(chat, _TEXT, group=True, addressed="none"))
        before, sent = time.process_time(), len(box.sent)
        await box.write(said(chat, "hi", group=group, addressed="mention" if group else "direct"))
        await box.until(sent + 1)
        taken += time.process_time() - before
    return taken / _TURNS * 1e6


async def rooms(box: Letterbox) -> float:
    """Return the bytes of memory that a room with 20 messages takes."""
    gc.collect()
    before = procfs.rss_bytes(os.getpid())
    for number in range(_ROOMS):
        for _ in range(_CONTEXT):
            await box.write(said(f"room-{number}", _TEXT, group=True, addressed="none"))
    gc.collect()
    return (procfs.rss_bytes(os.getpid()) - before) / _ROOMS


async def main() -> None:
    """Measure in turns, so that the machine's changes of speed concern all alike."""
    platform = Platform()
    channels = {"home": {"allow": "*"}}
    with tempfile.TemporaryDirectory() as folder:
        async with chatting(Path(folder), platform, channels=channels, log={"level": "error"}) as chat:
            await measure(chat, platform.box)


async def measure(chat: Chat, box: Letterbox) -> None:
    """Print the figures."""
    kinds = {"private": (False, 0), "group": (True, 0), "context": (True, _CONTEXT)}
    seen: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(_ROUNDS):
        for name, (group, context) in kinds.items():
            seen[name].append(await turns(box, f"{name}-{number}", group=group, context=context))
            chat.model.calls.clear()
    figures = {name: median(taken) for name, taken in seen.items()}
    print(json.dumps({**figures, "room_bytes": await rooms(box)}), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    asyncio.run(main())
