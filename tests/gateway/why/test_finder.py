"""Messages are found by the platform's id, with an index on both databases."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, event, text

from gateway.contract.channel import Address, InboundMessage, Sender
from gateway.store import Store
from gateway.store.inbox import Entry
from gateway.why.finder import Place, find_by_platform_id, find_messages


def accepted(key: str, alt: str | None = None, channel: str = "line") -> Entry:
    inbound = InboundMessage(
        session="s", dedup_key=key, alt_key=alt, address=Address(channel, "bot", "room"), sender=Sender("ada")
    )
    return Entry.of(channel, inbound, 1, attempts=1)


async def test_a_platforms_id_is_the_end_of_the_key_or_the_other_key(store: Store) -> None:
    entries = [
        accepted("room:412"),
        accepted("hall:412", channel="other"),
        accepted("412"),
        accepted("team:room:1412"),
        accepted("room:x", alt="room:client-7"),
        accepted("50%:9_"),
    ]
    await store.write(*(entry.accept() for entry in entries))
    ids = [entry.id for entry in entries]

    async def found(given: str, *place: str, key: str = "") -> set[str]:
        return set((await store.read(lambda c: find_by_platform_id(c, Place(*place), given, key))).ids)

    assert await found("412") == {ids[0], ids[1], ids[2]}
    assert await found("412", "line") == {ids[0], ids[2]}
    assert await found("412", "line", "bot", "room", key="room:412") == {ids[0], ids[2]}
    assert await found("room:1412") == {ids[3]}
    assert await found("room:client-7") == {ids[4]}
    assert await found("9_") == {ids[5]}
    assert await found("") == set()
    assert (await store.read(lambda c: find_messages(c, "hall:412"))).ids == (ids[1],)


async def test_no_table_of_messages_is_read_as_a_whole(store: Store) -> None:
    many = [accepted(f"room:{number}") for number in range(2_000)]
    await store.write(*(entry.accept("done") for entry in many))
    statements: list[tuple[str, Any]] = []

    def plans(connection: Connection) -> str:
        def note(_c: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
            statements.append((statement, parameters))

        sqlite = connection.dialect.name == "sqlite"
        if not sqlite:
            connection.execute(text("ANALYZE inbox"))
        event.listen(connection, "before_cursor_execute", note)
        assert len(find_by_platform_id(connection, Place(), "77").ids) == 1
        event.remove(connection, "before_cursor_execute", note)
        prefix = "EXPLAIN QUERY PLAN " if sqlite else "EXPLAIN "
        lines: list[str] = []
        for statement, parameters in statements:
            if "FROM inbox" in statement or "FROM outbox" in statement:
                lines += [str(row) for row in connection.exec_driver_sql(prefix + statement, parameters)]
        return "\n".join(lines)

    said = await store.read(plans)
    assert "inbox_tail" in said
    assert not any(scan in said for scan in ("SCAN inbox", "Seq Scan on inbox", "SCAN outbox"))
