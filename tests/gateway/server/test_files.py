"""Files that are uploaded ahead of their message."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest

from gateway.contract.channel import Audio
from gateway.contract.errors import InvalidRequestError, NotFoundError, OverloadedError
from gateway.contract.messages import FilePart, ImagePart
from gateway.store import Store
from gateway.store.retention import Retention
from gateway.tables.uploads import Content, Uploads
from gateway.testing.served import Served, serving
from tests.documents import pdf
from tests.e2e.page_scripts import picture

pytestmark = pytest.mark.slow

UNKNOWN = "0" * 32


async def upload(served: Served, name: str, data: bytes, kind: str = "") -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": kind} if kind else {}
    url = f"{served.url}/api/files"
    async with served.http.post(url, params={"name": name}, data=data, headers=headers) as response:
        return response.status, await response.json()


async def post(served: Served, key: str, *uploads: str, text: str = "look") -> tuple[int, dict[str, Any]]:
    body = {"text": text, "uploads": list(uploads), "client_msg_id": key}
    return await served.ask("POST", "/api/sessions/s/messages", json=body)


async def parts(served: Served) -> list[dict[str, Any]]:
    """The parts of the questions of the session."""
    await served.idle("s")
    _, found = await served.ask("GET", "/api/sessions/s/messages")
    said = [one["message"] for one in found["messages"] if one["message"]["role"] == "user"]
    return [part for message in said for part in message["parts"]]


async def test_uploaded_files_become_parts_of_their_message_in_order(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        image = picture(4, 4)
        status, first = await upload(served, "plan.pdf", pdf("Call Ms. Kim"))
        assert (status, first["kind"], first["name"]) == (201, "file", "plan.pdf")
        status, second = await upload(served, "field.png", image, "image/png")
        assert (status, second["kind"], second["size"]) == (201, "image", len(image))
        status, _ = await post(served, "m1", second["id"], first["id"])
        assert status == 202
        text, shown, read = await parts(served)
        assert text["content"] == "look"
        assert (shown["type"], base64.b64decode(shown["data"])) == ("image", image)
        assert (read["type"], read["path"]) == ("file", "plan.pdf")
        assert "Call Ms. Kim" in read["content"]
        # A repeated request is a duplicate; another message cannot use them again.
        status, again = await post(served, "m1", second["id"], first["id"])
        assert (status, again["duplicate"]) == (202, True)
        status, refused = await post(served, "m2", second["id"])
        assert (status, refused["error_name"]) == (400, "InvalidRequestError")
        assert refused["message"] == (
            f"uploads: one of '{second['id']}' is unknown, used by another message or expired; "
            "upload the file again with POST /api/files"
        )
        assert len(await parts(served)) == 3


async def test_a_message_may_consist_of_uploads_alone_over_the_websocket(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.socket() as client:
        _, sent = await upload(served, "sum.py", b"total = 6 * 7")
        await client.send(type="message", client_msg_id="m1", session="s", uploads=[sent["id"]])
        await client.until("ack")
        assert [part["content"] for part in await parts(served)] == ["total = 6 * 7"]
        await client.send(type="message", client_msg_id="m2", session="s", text="x", uploads=[UNKNOWN])
        refused = await client.until("error")
        assert refused["client_msg_id"] == "m2"
        assert "upload the file again" in refused["message"]


async def test_what_cannot_be_read_or_is_too_large_is_refused_when_it_is_uploaded(tmp_path: Path) -> None:
    async with serving(tmp_path, limits={"upload_bytes": 1_000}) as served:
        status, refused = await upload(served, "big.txt", b"x" * 1_001)
        assert (status, refused["error_name"]) == (413, "TooLargeError")
        assert refused["message"] == (
            "the file has more than limits.upload_bytes = 1000 bytes; upload a smaller one"
        )

        async def pieces() -> Any:
            for _ in range(3):
                yield b"x" * 500

        url = f"{served.url}/api/files?name=big.txt"
        async with served.http.post(url, data=pieces()) as response:
            assert response.status == 413
        for name, data, reason in (
            ("empty.txt", b"", "empty.txt: the file is empty"),
            ("a.bin", b"\x00\x01\x02" * 50, "this kind of file cannot be read"),
            ("broken.pdf", b"%PDF-1.7 nothing", "damaged"),
        ):
            status, refused = await upload(served, name, data)
            assert (status, refused["error_name"]) == (400, "PartValidationError")
            assert reason in refused["message"]
        async with served.http.post(f"{served.url}/api/files", data=b"x") as response:
            assert response.status == 400


async def test_an_upload_is_removed_by_its_owner(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        _, sent = await upload(served, "a.txt", b"x")
        assert (await served.ask("DELETE", f"/api/files/{sent['id']}"))[0] == 204
        assert (await served.ask("DELETE", f"/api/files/{sent['id']}"))[0] == 404
        assert (await post(served, "m1", sent["id"]))[0] == 400


async def test_an_upload_needs_the_token(tmp_path: Path) -> None:
    async with serving(tmp_path, server={"token": "secret-token-of-this-test"}) as served:
        url = f"{served.url}/api/files?name=a.txt"
        async with served.http.post(url, data=b"x", headers={"Authorization": "Bearer wrong"}) as response:
            assert response.status == 401


async def test_an_upload_survives_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        _, sent = await upload(served, "a.txt", b"kept")
    async with serving(tmp_path) as served:
        assert (await post(served, "m1", sent["id"]))[0] == 202
        assert [part.get("content") for part in await parts(served)] == ["look", "kept"]


async def test_a_voice_message_can_be_uploaded_and_there_is_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        _, one = await upload(served, "a.ogg", b"OggS\x00\x01", "audio/ogg")
        _, two = await upload(served, "b.ogg", b"OggS\x00\x02", "audio/ogg")
        assert one["kind"] == "audio"
        status, refused = await post(served, "m1", one["id"], two["id"])
        assert (status, "one voice message" in refused["message"]) == (400, True)
        assert (await post(served, "m2", one["id"]))[0] == 202


async def test_only_its_owner_uses_an_upload_until_it_expires(tmp_path: Path) -> None:
    now = 0
    store = Store.open(f"sqlite:///{tmp_path / 'db'}", "safe", lambda error: None)
    try:
        uploads = Uploads(store, lambda: now)
        part, audio = Content(FilePart("a.txt", "x")), Content(audio=Audio("data:,", "audio/ogg"))
        upload, expires = await uploads.put("alice", part, 1)
        voice, _ = await uploads.put("alice", audio, 1)
        assert await uploads.read("alice", [voice, upload]) == [audio, part]
        assert await uploads.read("bob", [upload]) is None
        assert await uploads.read("alice", [upload, UNKNOWN]) is None
        with pytest.raises(NotFoundError, match="no upload"):
            await uploads.remove("bob", upload)
        now = expires - 1
        assert await uploads.read("alice", [upload]) == [part]
        now = expires
        assert await uploads.read("alice", [upload]) is None
        # Nothing stays for ever.
        assert await Retention(store, 30).clean(expires + 1) == 2
    finally:
        await store.close()


async def test_unused_uploads_and_those_of_one_message_are_limited(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'db'}", "safe", lambda error: None)
    try:
        uploads = Uploads(store)
        image = Content(ImagePart("", "image/png"))
        ids = [(await uploads.put("alice", image, 19_000_000))[0] for _ in range(10)]
        assert await uploads.read("alice", ids[:2]) == [image, image]
        with pytest.raises(InvalidRequestError, match="several messages"):
            await uploads.read("alice", ids[:3])
        await uploads.check_room()
        with uploads.arriving(10_000_001), pytest.raises(OverloadedError, match="send or remove some"):
            await uploads.check_room()
        await uploads.check_room()
    finally:
        await store.close()


async def test_two_messages_at_once_with_the_same_key_are_one(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        _, sent = await upload(served, "a.txt", b"once")
        answers = await asyncio.gather(*(post(served, "m1", sent["id"]) for _ in range(4)))
        assert [status for status, _ in answers] == [202] * 4
        assert [part.get("content") for part in await parts(served)] == ["look", "once"]
