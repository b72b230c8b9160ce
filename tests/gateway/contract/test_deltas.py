"""Deltas: their fields on the wire, writing them, and putting messages together again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.contract.assembler import Assembler
from gateway.contract.deltas import (
    Complete,
    Delta,
    DeltaWriter,
    MetadataDelta,
    PartDelta,
    RateLimit,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    ToolResultDelta,
    ToolResultEnd,
    ToolResultStart,
    deltas_of,
)
from gateway.contract.errors import DeltaParseError
from gateway.contract.messages import (
    Attachment,
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
    to_json,
)
from gateway.session.feed import Feed, merge_text
from gateway.session.frames import Event

pytestmark = pytest.mark.slow

ON_THE_WIRE: list[tuple[Delta, dict[str, Any]]] = [
    (
        TextDelta("m", 0, "Hé", 7),
        {"type": "text_delta", "message_id": "m", "part_index": 0, "content": "Hé", "accumulated_length": 7},
    ),
    (
        ToolCallStart("m", 1, "c", "now"),
        {
            "type": "tool_call_start",
            "message_id": "m",
            "part_index": 1,
            "tool_call_id": "c",
            "tool_name": "now",
        },
    ),
    (
        ToolCallDelta("m", 1, "c", '{"a"'),
        {
            "type": "tool_call_delta",
            "message_id": "m",
            "part_index": 1,
            "tool_call_id": "c",
            "arguments_delta": '{"a"',
        },
    ),
    (
        ToolResultStart("m", 2, "c", "Looking"),
        {
            "type": "tool_result_start",
            "message_id": "m",
            "part_index": 2,
            "tool_call_id": "c",
            "title": "Looking",
        },
    ),
    (
        ToolResultStart("m", 2, "c"),
        {"type": "tool_result_start", "message_id": "m", "part_index": 2, "tool_call_id": "c"},
    ),
    (
        ToolResultDelta("m", 2, "c", "out"),
        {
            "type": "tool_result_delta",
            "message_id": "m",
            "part_index": 2,
            "tool_call_id": "c",
            "content": "out",
        },
    ),
    (
        ToolResultEnd("m", 2, "c", is_error=False, duration_ms=12),
        {
            "type": "tool_result_end",
            "message_id": "m",
            "part_index": 2,
            "tool_call_id": "c",
            "is_error": False,
            "duration_ms": 12,
        },
    ),
    (
        MetadataDelta("m", 3, 4, 0.5),
        {"type": "metadata_delta", "message_id": "m", "input_tokens": 3, "output_tokens": 4, "cost": 0.5},
    ),
    (
        MetadataDelta("m", 3, 4, 0.5, rate_limit=RateLimit(1500, "p")),
        {
            "type": "metadata_delta",
            "message_id": "m",
            "input_tokens": 3,
            "output_tokens": 4,
            "cost": 0.5,
            "rate_limit": {"retry_after_ms": 1500, "provider": "p"},
        },
    ),
    (
        PartDelta("m", 4, ErrorPart("E", "x")),
        {
            "type": "part",
            "message_id": "m",
            "part_index": 4,
            "part": {"type": "error", "error_name": "E", "message": "x"},
        },
    ),
    (
        Complete("m", Metadata(input_tokens=3, cost=0.5), "end_turn"),
        {
            "type": "complete",
            "message_id": "m",
            "final_metadata": {"input_tokens": 3, "cost": 0.5},
            "stop_reason": "end_turn",
        },
    ),
]


def assembled(deltas: Sequence[Delta], message_id: str = "m") -> Message:
    assembler = Assembler("s", message_id, created_at=0)
    for delta in deltas:
        assembler.apply(delta)
    return assembler.message()


@pytest.mark.parametrize(("delta", "plain"), ON_THE_WIRE, ids=[plain["type"] for _, plain in ON_THE_WIRE])
def test_004_20_each_delta_has_its_fields_and_no_others_on_the_wire(delta: Delta, plain: dict[str, Any]):
    assert msgspec.json.decode(to_json(delta)) == plain
    assert msgspec.json.decode(to_json(delta), type=Delta) == delta


def test_004_11_accumulated_length_counts_code_points_of_the_part():
    write = DeltaWriter("m")
    said = [
        write.text("a👋"),
        write.text("é𝄞", "text"),
        write.text("hm", "reasoning"),
        write.text("!", "text"),
    ]
    assert [d.accumulated_length for d in said] == [2, 4, 2, 1]
    assert [d.part_index for d in said] == [0, 0, 1, 2]


def test_004_11_a_wrong_accumulated_length_is_noticed():
    assembler = Assembler("s", "m")
    assembler.apply(TextDelta("m", 0, "👋", 1))
    with pytest.raises(DeltaParseError, match="holds 3 code points, not 5"):
        assembler.apply(TextDelta("m", 0, "ab", 5))


def test_004_12_the_start_of_a_call_shows_its_name_and_its_fragments_become_arguments():
    write = DeltaWriter("m")
    start = write.tool_call("c", "search")
    assert (start.tool_name, start.part_index) == ("search", 0)
    deltas = [start, *(write.arguments("c", piece) for piece in ('{"q', '":"caf', "é \\ud83d", '\\udc4b"}'))]
    assert assembled(deltas).parts == (ToolCallPart("c", "search", {"q": "café 👋"}),)
    assert assembled(deltas[:1]).parts == (ToolCallPart("c", "search", {}),)


def test_004_12_interleaved_calls_do_not_mix():
    write = DeltaWriter("m")
    deltas = [write.tool_call("a", "x"), write.tool_call("b", "y")]
    deltas += [write.arguments("a", '{"n":'), write.arguments("b", '{"n":'), write.arguments("a", "1}")]
    deltas += [write.arguments("b", "2}")]
    calls = (ToolCallPart("a", "x", {"n": 1}), ToolCallPart("b", "y", {"n": 2}))
    assert assembled(deltas).parts == calls


@pytest.mark.parametrize("text", ['{"n":1', "[1]", "null", "7", '"x"', "{'n': 1}", "[" * 100_000])
def test_004_12_arguments_that_are_not_a_json_object_are_kept_unchanged(text: str):
    write = DeltaWriter("m")
    parts = assembled([write.tool_call("c", "t"), write.arguments("c", text)]).parts
    assert parts == (ToolCallPart("c", "t", {}, invalid_arguments=text),)


def test_004_13_a_result_starts_grows_and_ends_with_its_outcome_and_duration():
    write = DeltaWriter("m")
    start = write.result("c", "Running")
    deltas: list[Delta] = [start, *(ToolResultDelta("m", 0, "c", line) for line in ("one\n", "two\n"))]
    unfinished = ToolResultPart("c", "one\ntwo\n", "Running", is_error=True)
    assert assembled(deltas).parts == (unfinished,)
    deltas.append(ToolResultEnd("m", 0, "c", is_error=False, duration_ms=31))
    done = ToolResultPart("c", "one\ntwo\n", "Running", ResultMetadata(duration_ms=31))
    assert assembled(deltas).parts == (done,)
    deltas[-1] = ToolResultEnd("m", 0, "c", True, 31, ResultMetadata(exit_code=2, duration_ms=31))
    failed = ToolResultPart("c", "one\ntwo\n", "Running", ResultMetadata(2, 31), is_error=True)
    assert assembled(deltas).parts == (failed,)


def test_004_03_a_result_carries_the_id_of_its_call():
    write = DeltaWriter("m")
    deltas: list[Delta] = []
    for call_id in ("a", "b"):
        deltas += [write.tool_call(call_id, "t"), write.arguments(call_id, "{}")]
    for call_id in ("a", "b"):
        start = write.result(call_id)
        deltas += [start, ToolResultEnd("m", start.part_index, call_id, False, 1)]
    parts = assembled(deltas).parts
    calls = [part.tool_call_id for part in parts if isinstance(part, ToolCallPart)]
    results = [part.tool_call_id for part in parts if isinstance(part, ToolResultPart)]
    assert calls == results == ["a", "b"]


def test_004_14_counts_are_cumulative_so_the_last_ones_count():
    counts = [MetadataDelta("m", 10, n, n / 1000, cached_tokens=4) for n in (1, 5, 9)]
    assert assembled(counts).metadata == Metadata(
        input_tokens=10, output_tokens=9, cached_tokens=4, cost=0.009
    )


@pytest.mark.parametrize("reason", ["end_turn", "max_tokens", "tool_use", "cancelled"])
def test_004_15_complete_brings_one_of_four_reasons_and_the_final_metadata(reason: Any):
    assembler = Assembler("s", "m")
    assembler.apply(MetadataDelta("m", 1, 1, 0.0))
    final = Metadata("model", "provider", 10, 20, None, 0.5, 900, reason)
    assembler.apply(Complete("m", final, reason))
    assert assembler.metadata == final
    assert assembler.snapshot()[-1] == Complete("m", final, reason)


@pytest.mark.parametrize(
    "delta",
    [
        TextDelta("other", 0, "x", 1),
        ToolCallDelta("m", 0, "c", "{}"),
        ToolResultDelta("m", 0, "c", "x"),
        ToolResultEnd("m", 0, "c", False, 1),
        ToolResultDelta("m", 1, "c", "x"),
        ToolCallDelta("m", 2, "c", "x"),
    ],
)
def test_004_29_a_delta_that_cannot_belong_is_a_delta_parse_error(delta: Delta):
    assembler = Assembler("s", "m")
    assembler.apply(ToolCallStart("m", 1, "c", "t"))
    assembler.apply(ToolResultStart("m", 2, "c"))
    with pytest.raises(DeltaParseError):
        assembler.apply(delta)


def test_a_whole_part_replaces_what_was_known_of_its_index():
    deltas: list[Delta] = [TextDelta("m", 0, "draft", 5), PartDelta("m", 0, TextPart("final"))]
    assert assembled(deltas).parts == (TextPart("final"),)


def test_parts_without_text_are_left_out_and_indices_of_others_stay():
    write = DeltaWriter("m")
    deltas = [write.text(""), write.part(ErrorPart("E", "x")), write.text("after")]
    assert assembled(deltas).parts == (ErrorPart("E", "x"), TextPart("after"))
    assert [d.part_index for d in deltas] == [0, 1, 2]


# --- however a message is cut into deltas, it is the same message -------------------------------------

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
names = st.text(st.sampled_from("abcxyz_09"), min_size=1, max_size=8)
small = st.integers(0, 10_000)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
arguments = st.dictionaries(words, json_values, max_size=3)
attachments = st.lists(st.builds(Attachment, st.just("image/png"), st.just("aGk="), words), max_size=2)
parts_of_all_kinds: list[st.SearchStrategy[Part]] = [
    st.builds(TextPart, words, st.sampled_from(["text", "reasoning", "summary"])),
    st.builds(ToolCallPart, names, names, arguments),
    st.builds(
        ToolCallPart, names, names, st.just({}), words.filter(lambda text: "{" not in text and text.strip())
    ),
    st.builds(
        ToolResultPart,
        names,
        st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
        st.none() | words,
        st.none() | st.builds(ResultMetadata, st.none() | small, small, st.none() | small),
        attachments.map(tuple),
        st.booleans(),
    ),
    st.builds(ErrorPart, names, words, st.none() | st.builds(ErrorMetadata, words, st.booleans(), words)),
    st.builds(ImagePart, st.just("aGk="), st.just("image/png"), st.none() | words, small, small),
    st.builds(FilePart, words, st.none() | words, st.none() | names, st.none() | st.tuples(small, small)),
]
messages = st.lists(st.one_of(parts_of_all_kinds), max_size=6).map(tuple)


def pieces(text: str, dice: random.Random) -> list[str]:
    """The text cut at random places; some pieces may be empty."""
    cuts = sorted(dice.randint(0, len(text)) for _ in range(dice.randint(0, 6)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def streamed(part: Part, index: int, dice: random.Random) -> list[Delta]:
    """One part as a stream of deltas, cut at random places."""
    match part:
        case TextPart(content=content, kind=kind):
            deltas, length = [], 0
            for piece in pieces(content, dice):
                length += len(piece)
                deltas.append(TextDelta("m", index, piece, length, kind))
            return deltas
        case ToolCallPart(tool_call_id=call_id, tool_name=name, invalid_arguments=invalid):
            text = msgspec.json.encode(part.arguments).decode() if invalid is None else invalid
            start: list[Delta] = [ToolCallStart("m", index, call_id, name)]
            return start + [ToolCallDelta("m", index, call_id, piece) for piece in pieces(text, dice)]
        case ToolResultPart():
            return streamed_result(part, index, dice)
        case _:
            return [PartDelta("m", index, part)]


def streamed_result(part: ToolResultPart, index: int, dice: random.Random) -> list[Delta]:
    call_id = part.tool_call_id
    deltas: list[Delta] = [ToolResultStart("m", index, call_id, part.title)]
    deltas += [ToolResultDelta("m", index, call_id, piece) for piece in pieces(part.output, dice)]
    duration = part.metadata.duration_ms if part.metadata and part.metadata.duration_ms else 0
    deltas.append(ToolResultEnd("m", index, call_id, part.is_error, duration, part.metadata))
    if part.attachments or part.metadata is None:
        deltas.append(PartDelta("m", index, part))
    return deltas


def interleaved(streams: list[list[Delta]], dice: random.Random) -> list[Delta]:
    """The streams mixed at random, each in its own order: calls that run together."""
    waiting = [list(reversed(stream)) for stream in streams if stream]
    mixed: list[Delta] = []
    while waiting:
        stream = dice.choice(waiting)
        mixed.append(stream.pop())
        waiting = [stream for stream in waiting if stream]
    return mixed


def whole_stream(parts: Sequence[Part], dice: random.Random) -> list[Delta]:
    deltas = interleaved([streamed(part, i, dice) for i, part in enumerate(parts)], dice)
    for _ in range(dice.randint(0, 3)):
        deltas.insert(dice.randint(0, len(deltas)), MetadataDelta("m", 1, 2, 0.5))
    return [*deltas, Complete("m", Metadata(output_tokens=9), "end_turn")]


def read_slowly(deltas: Sequence[Delta], capacity: int, dice: random.Random) -> list[Delta]:
    """What a reader gets that only reads now and then."""
    feed, read = Feed(capacity), []

    async def take() -> None:
        read.extend(event.frame for event in await feed.take())

    for seq, delta in enumerate(deltas):
        feed.offer(Event("s", seq, delta))
        if seq == len(deltas) - 1 or dice.random() < 0.05:
            asyncio.run(take())
    return read


expected_metadata = Metadata(output_tokens=9)


@given(messages, st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_004_24_the_message_does_not_depend_on_how_it_is_cut(parts: tuple[Part, ...], dice: random.Random):
    first, second = whole_stream(parts, dice), whole_stream(parts, dice)
    assert assembled(first) == assembled(second)
    assert assembled(first).parts == parts
    assert assembled(first).metadata == expected_metadata


@given(messages, st.integers(1, 8), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_004_24_the_message_does_not_depend_on_coalescing(
    parts: tuple[Part, ...], capacity: int, dice: random.Random
):
    deltas = whole_stream(parts, dice)
    assert assembled(read_slowly(deltas, capacity, dice)) == assembled(deltas)


@given(messages, st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_004_24_a_reader_that_resumes_in_the_middle_gets_the_same_message(
    parts: tuple[Part, ...], dice: random.Random
):
    deltas = whole_stream(parts, dice)
    cut = dice.randint(0, len(deltas))
    until_then = Assembler("s", "m", created_at=0)
    for delta in deltas[:cut]:
        until_then.apply(delta)
    assert assembled([*until_then.snapshot(), *deltas[cut:]]) == assembled(deltas)


def test_004_28_a_reader_who_joins_during_a_wait_sees_it_and_a_later_one_does_not() -> None:
    wait = MetadataDelta("m", 0, 0, 0.0, rate_limit=RateLimit(1500, "p"))
    waiting = Assembler("s", "m")
    for before in ((), (TextDelta("m", 0, "a", 1),)):
        for delta in (*before, wait):
            waiting.apply(delta)
        assert waiting.snapshot() == [*before, wait]
    waiting.apply(TextDelta("m", 0, "b", 2))
    over = MetadataDelta("m", 0, 0, 0.0)
    assert waiting.snapshot() == [TextDelta("m", 0, "ab", 2), over]
    waiting.apply(wait)
    waiting.apply(Complete("m", Metadata(), "cancelled"))
    assert waiting.snapshot()[1] == over


@given(messages)
@settings(max_examples=100, deadline=None)
def test_004_24_finished_parts_as_the_fewest_deltas_are_the_same_message(parts: tuple[Part, ...]):
    deltas = [delta for index, part in enumerate(parts) for delta in deltas_of(part, "m", index)]
    assert assembled(deltas).parts == parts
    assert len(deltas) == len(parts)


@given(st.lists(words, min_size=1))
def test_004_22_merged_text_is_the_text_and_knows_its_length(chunks: list[str]):
    write = DeltaWriter("m")
    merged = merge_text([write.text(chunk) for chunk in chunks])
    assert merged == TextDelta("m", 0, "".join(chunks), len("".join(chunks)))
