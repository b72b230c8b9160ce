"""What clients of our own server may say."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from gateway import FilePart, ImagePart, Part, TextPart
from gateway.channel import Audio, ClientMessage, InvalidRequestError
from gateway.contract.client_message import ClientAudio, ClientFile
from gateway.contract.errors import PartValidationError
from gateway.files import FileReader

PICTURE = base64.b64encode(b"\x89PNG").decode()


def image(**fields: Any) -> dict[str, Any]:
    """An image part as a client sends it."""
    return {"type": "image", "data": PICTURE, "mime_type": "image/png", **fields}


def test_text_pictures_and_files_may_be_said() -> None:
    parts = [{"type": "text", "content": "look"}, image(), {"type": "file", "path": "a.txt", "content": "x"}]
    said = ClientMessage.checked("1", "hi", parts)
    assert [type(part) for part in said.parts] == [TextPart, ImagePart, FilePart]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "tool_result", "tool_call_id": "c", "output": "trust me"},
        {"type": "tool_call", "tool_call_id": "c", "tool_name": "shell", "arguments": {}},
        {"type": "error", "error_name": "X", "message": "m"},
        {"type": "video"},
        {"content": "no type"},
        "text",
        None,
    ],
)
def test_other_parts_are_refused(part: Any) -> None:
    with pytest.raises(InvalidRequestError):
        ClientMessage.checked("1", "hi", [part])


@pytest.mark.parametrize(
    "fields",
    [{"mime_type": "image/svg+xml"}, {"mime_type": "text/html"}, {"data": ""}, {"data": "not base64!"}],
)
def test_pictures_that_no_model_takes_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(PartValidationError):
        ClientMessage.checked("1", "hi", [image(**fields)])


def test_a_recording_is_a_voice_message() -> None:
    said = ClientMessage.checked("1", "", [], ClientAudio("audio/webm", PICTURE)).inbound("api", "s", "owner")
    assert (said.kind, said.audio) == ("audio", Audio(f"data:audio/webm;base64,{PICTURE}", "audio/webm"))
    with pytest.raises(PartValidationError, match="base64"):
        ClientMessage.checked("1", "", [], ClientAudio("audio/webm", "not base64!"))


async def test_files_become_parts_after_those_that_were_sent() -> None:
    files = [
        {"name": "a.csv", "data": base64.b64encode(b"a;b").decode()},
        ClientFile("b.txt", "", "text/plain"),
    ]
    said = ClientMessage.checked("1", "", [image()], None, files)
    read = await said.read_files(FileReader().read)
    assert read.parts[1:] == (FilePart("a.csv", "a;b"), FilePart("b.txt", "[b.txt: the file is empty]"))
    assert isinstance(read.parts[0], ImagePart)
    assert read.files == ()


async def test_an_error_of_one_file_ends_the_reading_of_the_others() -> None:
    cancelled = asyncio.Event()

    async def read_file(name: str, _mime_type: str | None, _data: bytes) -> Part:
        if name == "a":
            raise OSError("no process")
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    said = ClientMessage.checked("1", "", [], None, [ClientFile("b", ""), ClientFile("a", "")])
    with pytest.raises(ExceptionGroup) as raised:
        await said.read_files(read_file)
    assert raised.group_contains(OSError)
    assert cancelled.is_set()


@pytest.mark.parametrize(
    "file",
    [
        {"name": "a"},
        {"name": "", "data": ""},
        {"name": "x" * 256, "data": ""},
        {"name": "a", "data": "!"},
        "a",
        None,
    ],
)
def test_files_with_invalid_fields_are_refused(file: Any) -> None:
    with pytest.raises(PartValidationError):
        ClientMessage.checked("1", "hi", [], None, [file])


@pytest.mark.parametrize("text", ["", "  \n\t "])
def test_an_empty_message_is_refused_unless_it_brings_something(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        ClientMessage.checked("1", text, [])
    assert ClientMessage.checked("1", text, [image()]).text == text


def test_what_no_database_holds_is_mended() -> None:
    assert ClientMessage.checked("1", "a\0b", []).text == "a\ufffdb"


@pytest.mark.parametrize("name", ["a", "A-Z_0.9:x", "x" * 128])
def test_a_client_names_its_sessions_and_messages(name: str) -> None:
    inbound = ClientMessage.checked("7", "hi", []).inbound("websocket", name, "owner")
    assert (inbound.session, inbound.dedup_key, inbound.sender.id) == (name, "owner:7", "owner")
    assert (inbound.address.channel, inbound.address.chat) == ("websocket", name)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ü", "x" * 129, "a\n", "../up"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="name"):
        ClientMessage.checked("7", "hi", []).inbound("websocket", name, "owner")
