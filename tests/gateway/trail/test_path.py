"""The path of a message is read from its rows and from the inbox, on both databases."""

from __future__ import annotations

from msgspec.structs import replace

from gateway.contract.channel import Address, InboundMessage, Sender
from gateway.store import Store
from gateway.store.inbox import Entry, withdraw_ops
from gateway.store.retention import Retention
from gateway.trail import Trail, read


def entry(key: str, revises: str | None = None) -> Entry:
    address = Address("telegram", "bot", "room", reply_to=f"id-{key}")
    inbound = InboundMessage(
        session="s",
        dedup_key=key,
        address=address,
        sender=Sender("ann"),
        text="secret words",
        revises=revises,
    )
    return Entry.of("telegram", inbound, 1, attempts=1)


async def test_what_the_inbox_knows_needs_no_row(store: Store):
    one = entry("1")
    await store.write(one.accept())
    path = await read(store, one.id)
    assert [step.kind for step in path.steps] == ["received", "accepted"]
    assert path.steps[0].at == one.received_at
    assert path.steps[0].detail == {
        "channel": "telegram",
        "account": "bot",
        "chat": "room",
        "platform_id": "id-1",
    }
    assert path.steps[1].detail == {"session": "s", "trace": one.answer_id}
    assert (path.rows, path.is_known) == ({"inbox": 1, "trail": 0}, True)
    assert "secret words" not in repr(path)


async def test_rows_are_read_in_their_order(store: Store):
    one, trail = entry("1"), Trail("")
    trail.inbox_id = one.id
    trail.add("model", "p/m", "failed", 0.1, code="RateLimitError")
    first = trail.ops()
    trail.add("model", "q/m")
    # Both rows in one batch, the later one first.
    await store.write(one.accept(), *trail.finish("answered"), *first)
    path = await read(store, one.id)
    assert [(s.kind, s.name) for s in path.steps[2:]] == [("model", "p/m"), ("model", "q/m"), ("final", "")]
    assert path.rows == {"inbox": 1, "trail": 2}


async def test_a_message_that_another_one_answers_names_it(store: Store):
    older, newer, edit = entry("1"), entry("2"), entry("2b", revises="2")
    ops = [older.accept(), newer.accept(), edit.accept()]
    await store.write(*ops, older.replace_by(newer.id), newer.replace_by(edit.id))
    merged, superseded = (await read(store, older.id)).steps[-1], (await read(store, newer.id)).steps[-1]
    assert (merged.kind, merged.detail) == ("merged", {"into": newer.id})
    assert (superseded.kind, superseded.detail) == ("superseded", {"by": edit.id})


async def test_an_unknown_message_has_no_steps(store: Store):
    path = await read(store, replace(entry("1"), id="none").id)
    assert (path.steps, path.is_known) == ((), False)


async def test_old_trails_and_those_of_deleted_messages_are_removed(store: Store):
    kept, old, gone = entry("1"), entry("2"), entry("3")
    # An id has the time of its message.
    month = 40 * 86_400_000
    before = kept.received_at - month
    old.id = f"{before >> 16:08x}-{before & 0xFFFF:04x}{kept.id[13:]}"
    trails = [Trail(one.id) for one in (kept, old, gone)]
    ops = [op for one in (kept, old, gone) for op in [one.accept()]]
    await store.write(*ops, *(op for trail in trails for op in trail.finish("answered")))
    assert await Retention(store, 90, 41).clean(kept.received_at) == 0
    assert await Retention(store, 90, 39).clean(kept.received_at) == 1
    await store.write(*withdraw_ops("telegram", "bot", "3"))
    found = [(await read(store, one.id)).rows["trail"] for one in (kept, old, gone)]
    assert found == [1, 0, 0]
