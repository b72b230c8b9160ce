"""Messages and their parts: what they hold, how they round-trip, and what is refused."""

from __future__ import annotations

import time
import uuid
from typing import Any

import msgspec
import pytest

from gateway.contract.errors import InvalidPartTypeError, PartValidationError
from gateway.contract.messages import (
    PART_TYPES,
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
    checked_part,
    decode_part,
    new_id,
    part_from,
    sound,
    to_json,
)

FULL: list[tuple[Part, dict[str, Any]]] = [
    (
        TextPart("**Hello** 👋", "summary"),
        {"type": "text", "content": "**Hello** 👋", "kind": "summary"},
    ),
    (
        ToolCallPart("c1", "read", {"path": "a.txt", "deep": {"list": [1, 2.5, None, True]}}, "{oops"),
        {
            "type": "tool_call",
            "tool_call_id": "c1",
            "tool_name": "read",
            "arguments": {"path": "a.txt", "deep": {"list": [1, 2.5, None, True]}},
            "invalid_arguments": "{oops",
        },
    ),
    (
        ToolResultPart(
            "c1",
            "two lines\nof it",
            "Reading",
            ResultMetadata(exit_code=1, duration_ms=12, bytes_read=4096),
            (Attachment("image/png", "aGk=", "plot.png"),),
            is_error=True,
        ),
        {
            "type": "tool_result",
            "tool_call_id": "c1",
            "output": "two lines\nof it",
            "title": "Reading",
            "metadata": {"exit_code": 1, "duration_ms": 12, "bytes_read": 4096},
            "attachments": [{"mime_type": "image/png", "data": "aGk=", "name": "plot.png"}],
            "is_error": True,
        },
    ),
    (
        ErrorPart("RateLimitError", "wait", ErrorMetadata(code="429", retryable=True, stack="at line 1")),
        {
            "type": "error",
            "error_name": "RateLimitError",
            "message": "wait",
            "metadata": {"code": "429", "retryable": True, "stack": "at line 1"},
        },
    ),
    (
        ImagePart("aGk=", "image/png", "a cat", 640, 480),
        {
            "type": "image",
            "data": "aGk=",
            "mime_type": "image/png",
            "alt_text": "a cat",
            "width": 640,
            "height": 480,
        },
    ),
    (
        FilePart("src/a.py", "print()", "python", (3, 9)),
        {
            "type": "file",
            "path": "src/a.py",
            "content": "print()",
            "language": "python",
            "line_range": [3, 9],
        },
    ),
]
BARE: list[tuple[Part, dict[str, Any]]] = [
    (TextPart(""), {"type": "text", "content": ""}),
    (
        ToolCallPart("c", "t", {}),
        {"type": "tool_call", "tool_call_id": "c", "tool_name": "t", "arguments": {}},
    ),
    (ToolResultPart("c", ""), {"type": "tool_result", "tool_call_id": "c", "output": ""}),
    (ErrorPart("E", "m"), {"type": "error", "error_name": "E", "message": "m"}),
    (ImagePart("", "image/gif"), {"type": "image", "data": "", "mime_type": "image/gif"}),
    (FilePart("a"), {"type": "file", "path": "a"}),
]


def test_004_01_a_message_has_an_id_a_session_a_role_metadata_parts_and_a_time_in_milliseconds():
    before = time.time_ns() // 1_000_000
    message = Message(session_id="s", role="user", parts=(TextPart("Hi"),))
    assert uuid.UUID(message.id).version == 7
    assert before <= message.created_at <= time.time_ns() // 1_000_000
    assert (message.session_id, message.role, message.metadata) == ("s", "user", Metadata())


def test_004_01_a_whole_message_round_trips_with_all_its_metadata():
    metadata = Metadata("m", "p", 1, 2, 3, 0.25, 40, "end_turn")
    message = Message(
        session_id="s",
        role="assistant",
        parts=tuple(part for part, _ in FULL),
        metadata=metadata,
        custom_type="note",
        display=Display("red", ">", "!", hidden=True),
        for_model=False,
        meta={"mine": [1]},
    )
    assert msgspec.json.decode(to_json(message), type=Message) == message


def test_ids_are_all_different():
    assert len({new_id() for _ in range(10_000)}) == 10_000


@pytest.mark.parametrize(("part", "plain"), FULL + BARE, ids=lambda value: type(value).__name__)
def test_004_02_every_part_round_trips_field_by_field(part: Part, plain: dict[str, Any]):
    assert msgspec.json.decode(to_json(part)) == plain
    assert decode_part(to_json(part)) == part
    assert part_from(plain) == part
    assert decode_part(checked_part(part)) == part


def test_004_02_there_are_six_part_types():
    assert tuple(plain["type"] for _, plain in FULL) == PART_TYPES
    assert len(PART_TYPES) == 6


@pytest.mark.parametrize("value", [{"type": "video"}, {"type": ""}, {"type": "Text", "content": "x"}])
def test_004_06_an_unknown_type_is_an_invalid_part_type(value: dict[str, Any]):
    with pytest.raises(InvalidPartTypeError, match="text, tool_call, tool_result, error, image, file"):
        part_from(value)
    with pytest.raises(InvalidPartTypeError):
        decode_part(to_json(value))


@pytest.mark.parametrize(
    "value",
    [
        {"content": "x"},
        {"type": "text"},
        {"type": "text", "content": 5},
        {"type": "text", "content": "x", "kind": "thought"},
        {"type": "tool_call", "tool_call_id": "c", "tool_name": "t", "arguments": "{}"},
        {"type": "tool_result", "tool_call_id": "c", "output": "x", "is_error": "no"},
        {"type": "image", "data": "aGk=", "mime_type": "image/png", "width": "wide"},
        {"type": "file", "path": "a", "line_range": [1, 2, 3]},
        [],
        "text",
        None,
        7,
    ],
)
def test_004_06_wrong_fields_are_a_part_validation_error(value: object):
    with pytest.raises(PartValidationError):
        part_from(value)
    with pytest.raises(PartValidationError):
        decode_part(to_json(value))


@pytest.mark.parametrize("payload", [b"", b"{", b'{"type":"text","content":"\xff"}', b"[" * 100_000])
def test_004_06_invalid_json_is_a_part_validation_error(payload: bytes):
    with pytest.raises(PartValidationError):
        decode_part(payload)


def test_004_06_a_part_made_in_python_with_wrong_values_is_found_too():
    with pytest.raises(PartValidationError, match="content"):
        checked_part(TextPart(5))  # pyright: ignore[reportArgumentType]
    with pytest.raises(PartValidationError, match="tool_call"):
        checked_part(ToolCallPart("c", "t", {"x": object()}))
    with pytest.raises(InvalidPartTypeError, match="dict is not a part"):
        checked_part({"type": "text", "content": "x"})


def test_004_06_arguments_nested_beyond_all_measure_are_a_part_validation_error():
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(PartValidationError):
        checked_part(ToolCallPart("c", "t", deep))


def test_the_text_of_a_message_is_what_is_meant_to_be_read():
    parts = (TextPart("hm", "reasoning"), TextPart("One."), ErrorPart("E", "m"), TextPart("Two."))
    assert Message(session_id="s", role="assistant", parts=parts).text == "One.\n\nTwo."


@pytest.mark.parametrize("text", ["plain", "ünïcødé 👩‍👩‍👧", "nul \0 inside", ""])
def test_sound_text_is_left_alone(text: str):
    assert sound(text) is text
    part = TextPart(text)
    assert sound(part) is part


def test_half_a_character_becomes_one_replacement_and_lengths_stay():
    broken = "file\udcff\ud83d name\udcfe"
    assert sound(broken) == "file\ufffd\ufffd name\ufffd"
    assert len(sound(broken)) == len(broken)
    call = ToolCallPart("c", "t", {broken: [broken, 1, None]})
    whole = "file\ufffd\ufffd name\ufffd"
    assert sound(call) == ToolCallPart("c", "t", {whole: [whole, 1, None]})
    assert decode_part(to_json(TextPart(broken))) == TextPart(whole)
