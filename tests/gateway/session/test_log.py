"""A session's log in the database: what is written can be read again, and asked for."""

from __future__ import annotations

import pytest
from sqlalchemy import func, select

from gateway.contract.channel import Address
from gateway.contract.errors import InvalidPartTypeError, InvalidRequestError, PartValidationError
from gateway.contract.messages import (
    Attachment,
    Display,
    ErrorMetadata,
    ErrorPart,
    FilePart,
    ImagePart,
    Message,
    Metadata,
    Part,
    ResultMetadata,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from gateway.session.log import (
    SessionRow,
    count_errors,
    count_messages,
    put_message,
    read_errors,
    read_logs,
    read_messages,
    read_session,
    read_sessions,
    read_tool_calls,
)
from gateway.store import Store
from gateway.store import schema as t

ALL_PARTS: tuple[Part, ...] = (
    TextPart("What was said before.", "summary"),
    TextPart("thinking \0", "reasoning"),
    ToolCallPart("c1", "read", {"path": "a", "n": [1, None]}),
    ToolResultPart("c1", "out", "Read", ResultMetadata(0, 12, 9), (Attachment("image/png", "aGk="),)),
    ErrorPart("ToolError", "no", ErrorMetadata("1", False, "trace")),
    ImagePart("aGk=", "image/png", "a cat", 3, 4),
    FilePart("a.py", "x", "python", (1, 2)),
)


def row(session: str = "s", **fields: int) -> SessionRow:
    return SessionRow(id=session, channel="c", owner="o", address=Address("c", "a", "r"), **fields)


def answer(*parts: Part, session: str = "s", **fields: object) -> Message:
    return Message(session_id=session, role="assistant", parts=parts, **fields)  # pyright: ignore[reportArgumentType]


async def save(store: Store, *messages: Message, session: str = "s", **fields: int) -> None:
    ops = [op for seq, message in enumerate(messages, 1) for op in put_message(message, seq)]
    await store.write(row(session, **fields).put(), *ops)


async def test_004_09_a_session_is_read_back_part_by_part_in_order_with_its_times(store: Store):
    metadata = Metadata("m", "p", 1, 2, 3, 0.5, 1234, "end_turn")
    said = Message(session_id="s", role="user", parts=(TextPart("Go"),), created_at=1_000)
    done = answer(*ALL_PARTS, created_at=2_234, metadata=metadata)
    await save(store, said, done)
    assert await store.read(lambda c: read_messages(c, "s")) == [(1, said), (2, done)]


async def test_every_field_of_a_message_comes_back(store: Store):
    message = answer(
        TextPart("x"),
        custom_type="card",
        display=Display("red", hidden=True),
        for_model=False,
        meta={"a": [1]},
    )
    await save(store, message)
    assert await store.read(lambda c: read_messages(c, "s")) == [(1, message)]


async def test_004_05_parts_come_in_their_order_however_many(store: Store):
    parts = tuple(TextPart(str(n)) for n in range(120))
    await save(store, answer(*parts))
    (_, message), *_ = await store.read(lambda c: read_messages(c, "s"))
    assert message.parts == parts


async def test_004_04_each_part_is_a_row_with_its_whole_payload_as_json(store: Store):
    message = answer(*ALL_PARTS, created_at=77)
    await save(store, message)
    query = select(t.parts).order_by(t.parts.c.index)
    rows = await store.read(lambda c: list(c.execute(query).mappings()))
    assert [found["index"] for found in rows] == list(range(7))
    assert {(found["message_id"], found["created_at"]) for found in rows} == {(message.id, 77)}
    assert [found["type"] for found in rows] == [
        "text",
        "text",
        "tool_call",
        "tool_result",
        "error",
        "image",
        "file",
    ]
    assert rows[4]["content"] == (
        '{"type":"error","error_name":"ToolError","message":"no",'
        '"metadata":{"code":"1","retryable":false,"stack":"trace"}}'
    )


async def test_004_05_all_tool_calls_of_a_session_oldest_first(store: Store):
    calls = [ToolCallPart(f"c{n}", "t", {"n": n}) for n in range(4)]
    done = ToolResultPart("c1", "fine")
    first, second = answer(calls[0], TextPart("x"), calls[1], done), answer(calls[2], calls[3])
    await save(store, first, second)
    await save(store, answer(ToolCallPart("z", "t", {}), session="other"), session="other")
    found = await store.read(lambda c: read_tool_calls(c, "s"))
    assert [record.call for record in found] == calls
    assert [record.message_id for record in found] == [first.id, first.id, second.id, second.id]
    assert [record.result for record in found] == [None, done, None, None]
    assert await store.read(lambda c: read_tool_calls(c, "s", 3)) == found[1:]


async def test_004_05_errors_of_a_session_are_counted_and_read(store: Store):
    error = ErrorPart("E", "x")
    await save(store, answer(error, TextPart("x"), error), answer(ErrorPart("F", "y")))
    await save(store, answer(error, session="other"), session="other")
    assert await store.read(lambda c: [count_errors(c, name) for name in ("s", "other", "none")]) == [3, 1, 0]
    found = await store.read(lambda c: read_errors(c, "s"))
    assert [record.error.error_name for record in found] == ["E", "E", "F"]
    assert await store.read(lambda c: read_errors(c, "s", 1)) == found[2:]


async def test_004_08_a_session_costs_what_its_messages_cost(store: Store):
    costs = [0.125, 0.25, None, 0.5]
    await save(store, *(answer(TextPart("x"), metadata=Metadata(cost=cost)) for cost in costs))
    await store.write(row("empty").put())
    found = await store.read(lambda c: {found.id: found.cost for found in read_sessions(c)})
    assert found == {"s": 0.875, "empty": 0}


async def test_004_10_a_summary_is_a_text_part_of_its_own_kind(store: Store):
    await save(store, answer(TextPart("All of it, in short.", "summary")))
    (_, message), *_ = await store.read(lambda c: read_messages(c, "s"))
    assert message.parts == (TextPart("All of it, in short.", "summary"),)
    assert message.text == "All of it, in short."


async def test_004_06_a_message_with_a_wrong_part_is_refused_before_anything_is_written(store: Store):
    wrong: list[tuple[object, type[Exception]]] = [
        (TextPart(5), PartValidationError),  # pyright: ignore[reportArgumentType]
        ({"type": "text", "content": "x"}, InvalidPartTypeError),
        (ToolCallPart("c", "t", {"x": object()}), PartValidationError),
        (ImagePart("aGk=", "image/png", width="wide"), PartValidationError),  # pyright: ignore[reportArgumentType]
    ]
    for part, error in wrong:
        with pytest.raises(error):
            await save(store, answer(TextPart("fine")), answer(TextPart("fine"), part))  # pyright: ignore[reportArgumentType]
    for table in (t.sessions, t.messages, t.parts):
        query = select(func.count()).select_from(table)
        assert await store.read(lambda c, query=query: c.execute(query).scalar()) == 0


def test_004_06_a_meta_that_is_not_json_is_refused():
    with pytest.raises(InvalidRequestError, match="cannot be encoded as JSON"):
        put_message(answer(TextPart("x"), meta={"x": object()}), 1)


async def test_broken_text_and_a_megabyte_are_stored(store: Store):
    parts = (TextPart("nul \0 stays"), TextPart("half \ud83d goes"), TextPart("y" * 1_000_000))
    await save(store, answer(*parts))
    (_, message), *_ = await store.read(lambda c: read_messages(c, "s"))
    assert message.parts == (parts[0], TextPart("half \ufffd goes"), parts[2])


async def test_messages_after_a_number_and_only_the_last_ones(store: Store):
    await save(store, *(answer(TextPart(str(n))) for n in range(1, 8)))

    async def numbers(after: int = 0, last: int | None = None) -> list[int]:
        return [seq for seq, _ in await store.read(lambda c: read_messages(c, "s", after=after, last=last))]

    assert await numbers() == [1, 2, 3, 4, 5, 6, 7]
    assert await numbers(after=5) == [6, 7]
    assert await numbers(last=2) == [6, 7]
    assert await numbers(after=2, last=3) == [5, 6, 7]
    assert await numbers(after=7) == []


async def test_logs_of_several_sessions_are_read_at_once_each_from_its_end(store: Store):
    for session, count, hidden in (("a", 5, 5), ("b", 2, 0), ("c", 0, 0), ("d", 6, 1), ("e", 7, 0)):
        messages = [answer(TextPart(f"{session}{n}"), session=session) for n in range(count)]
        await save(store, *messages, session=session, context_from=hidden, messages=count)
    logs = await store.read(lambda c: read_logs(c, ["a", "b", "c", "d", "e", "unknown"], 3, 5))
    assert {name: [(seq, message.text) for seq, message in log] for name, log in logs.items()} == {
        "a": [(3, "a2"), (4, "a3"), (5, "a4")],
        "b": [(1, "b0"), (2, "b1")],
        "d": [(2, "d1"), (3, "d2"), (4, "d3"), (5, "d4"), (6, "d5")],
        "e": [(3, "e2"), (4, "e3"), (5, "e4"), (6, "e5"), (7, "e6")],
    }


async def test_messages_are_counted_some_of_them_not(store: Store):
    messages = [answer(TextPart("x")) for _ in range(3)]
    await save(store, *messages)
    assert await store.read(lambda c: count_messages(c, "s")) == 3
    assert await store.read(lambda c: count_messages(c, "s", without=[messages[0].id, "nobody"])) == 2


async def test_sessions_come_with_the_latest_first_and_in_pages(store: Store):
    await store.write(*(row(f"s{n}", created_at=1, updated_at=n).put() for n in range(5)))
    first = await store.read(lambda c: read_sessions(c, 2))
    assert [found.id for found in first] == ["s4", "s3"]
    rest = await store.read(lambda c: read_sessions(c, 10, before=first[-1].updated_at))
    assert [found.id for found in rest] == ["s2", "s1", "s0"]


async def test_a_session_comes_back_as_it_was_put(store: Store):
    made = row(seq=9, messages=2, input_tokens=3, output_tokens=4, context_from=5, created_at=6, updated_at=7)
    made.title, made.model, made.agent = "Tïtle", "p/m", "critic"
    made.mode = "plan"
    await store.write(made.put())
    assert await store.read(lambda c: read_session(c, "s")) == made
    assert await store.read(lambda c: read_session(c, "nobody")) is None
