"""Messages that were not accepted are known by their ids, without a flood of writes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, select

from gateway.channel import Rejected
from gateway.contract.channel import Address, InboundMessage, Sender
from gateway.store import Store
from gateway.store import schema as t
from gateway.testing.chat import chatting
from gateway.trail.refused import MOST_A_SECOND, RefusalLog, has_gaps
from gateway.why.finder import find_messages


def message(key: str, **fields: Any) -> InboundMessage:
    address = Address("box", "bot", "room", reply_to=f"id-{key}", group=True)
    return InboundMessage(
        session="s", dedup_key=key, address=address, sender=Sender("eve"), text="words", **fields
    )


async def kept(store: Store, platform_id: str) -> list[tuple[str, str]]:
    found = select(t.refused.c.chat, t.refused.c.reason).where(t.refused.c.platform_id == platform_id)
    return await store.read(lambda c: [(row.chat, row.reason) for row in c.execute(found)])


async def rows(store: Store) -> int:
    # What was submitted before this write is committed with it, or earlier.
    await store.write()
    return await store.read(lambda c: c.execute(select(func.count()).select_from(t.refused)).scalar_one())


async def test_a_flood_is_cut_and_said_to_be_cut(store: Store):
    log = RefusalLog(store, most_rows=50)
    for n in range(MOST_A_SECOND):
        log.note("box", message(str(n)), "no_mention")
    log.flush()
    assert await rows(store) == MOST_A_SECOND
    assert not await store.read(lambda c: has_gaps(c, "box"))
    assert await kept(store, "id-3") == [("room", "no_mention")]
    for n in range(MOST_A_SECOND + 5):
        log.note("box", message(f"m{n}"), "room")
    log.flush()
    assert await rows(store) == 2 * MOST_A_SECOND + 1
    assert await store.read(lambda c: has_gaps(c, "box"))
    assert not await store.read(lambda c: has_gaps(c, "other"))
    for n in range(0, 60, MOST_A_SECOND):
        for m in range(n, n + MOST_A_SECOND):
            log.note("box", message(f"later{m}"), "room")
        log.flush()
    assert await rows(store) == 50
    assert await store.read(lambda c: has_gaps(c, "box", most_rows=50))
    assert await store.read(lambda c: has_gaps(c, most_rows=50)), "of any channel"
    assert await kept(store, "id-3") == []


async def test_what_gets_no_turn_is_noted_with_the_reason(tmp_path: Any):
    async with chatting(tmp_path) as chat:
        intake, store = chat.gateway.parts.intake, chat.gateway.parts.store
        receive = intake.receiver("test")
        await receive(message("1", addressed="none"), rejected=[Rejected("bot", "9", "{}", "no text")])
        await receive(message("2", addressed="mention"))
        intake._refusals.flush()  # pyright: ignore[reportPrivateUsage]
        await store.write()
        query = select(t.refused.c.platform_id, t.refused.c.reason)
        found = await store.read(lambda c: [tuple(row) for row in c.execute(query)])
        named = await store.read(lambda c: find_messages(c, "id-1"))
        assert named.not_accepted is not None
        assert named.not_accepted.reason == "no_mention"
    assert sorted(found) == [("9", "unreadable"), ("id-1", "no_mention"), ("id-2", "sender")]
