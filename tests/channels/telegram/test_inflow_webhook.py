"""Webhook at the gateway's server: requires the secret, and confirms updates when they are durable."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from channels.telegram.fake import FakeTelegram
from gateway.app import Gateway
from gateway.server import Server
from gateway.settings import Settings
from gateway.testing.fake_models.server import FakeModels
from tests.channels.telegram.lab import Lab, until
from tests.channels.telegram.pictures import png

SECRET = "s3cret-S3CRET"
HEADER = "X-Telegram-Bot-Api-Secret-Token"


@asynccontextmanager
async def served(directory: Path, fake: FakeTelegram, port: int, **options: Any) -> AsyncGenerator[Lab]:
    """Run a gateway with a webhook."""
    async with FakeModels() as models:
        telegram = {
            "token": fake.token,
            "api_base_url": fake.url,
            "mode": "webhook",
            "webhook_url": f"http://127.0.0.1:{port}/hooks/telegram",
            "webhook_secret": SECRET,
            "allow": "*",
            **options,
        }
        given = {
            "data_dir": directory,
            "model": "openai/fake-small",
            "providers": {"openai": {"base_url": models.openai_url, "api_key": "none"}},
            "channels": {"telegram": telegram},
            "server": {"port": port},
        }
        gateway = Gateway(Settings.model_validate(given))
        async with gateway.running(), Server(gateway):
            yield Lab(gateway, fake, models)


@pytest.fixture
def port(unused_tcp_port: int) -> int:
    """Return a free port, which Telegram has to know before the gateway starts."""
    return unused_tcp_port


async def test_a_delivered_update_is_answered_once(tmp_path: Path, port: int) -> None:
    async with FakeTelegram() as fake:
        chat = fake.private()
        fake.say(chat, "before")
        async with served(tmp_path, fake, port) as running:
            await running.answers(chat, "You said: before")
            fake.say(chat, "after")
            await running.answers(chat, "You said: before", "You said: after")
            await until(lambda: running.gateway.health()["telegram"] == (True, ""))
            assert fake.webhook.address is not None
            assert fake.webhook.address.secret == SECRET
        fake.say(chat, "while away")
        await until(lambda: fake.webhook.failure is not None)
        async with served(tmp_path, fake, port) as running:
            fake.clock.advance(70)
            await until(lambda: len(fake.answers(chat)) == 3)
            await running.settled()
        fake.transcript.check()


async def test_an_album_is_one_message_there_too(tmp_path: Path, port: int, fake: FakeTelegram) -> None:
    chat = fake.private()
    async with served(tmp_path, fake, port) as running:
        fake.album(chat, [png(), png(40, 40)], caption="two")
        await running.answers(chat, "You said: two")
        assert await running.states() == ["done"]
    fake.transcript.check()


async def test_a_request_without_the_secret_is_refused(tmp_path: Path, port: int, fake: FakeTelegram) -> None:
    update = {
        "update_id": 1,
        "message": {
            "message_id": 1,
            "date": 1,
            "chat": {"id": 7, "type": "private"},
            "from": {"id": 7, "is_bot": False, "first_name": "Eve"},
            "text": "let me in",
        },
    }
    async with served(tmp_path, fake, port) as running, aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{port}/hooks/telegram"
        await until(lambda: running.gateway.health()["telegram"][0])
        for secret in (None, "", "wrong", SECRET + "x", SECRET[:-1], SECRET.lower()):
            headers = {} if secret is None else {HEADER: secret}
            async with http.post(url, json=update, headers=headers) as answer:
                assert answer.status == 401, secret
        assert await _raw(port, HEADER.encode() + b": s\xc3\xa9cret") == 401
        assert await _raw(port, HEADER.encode() + b": \xff\xfe") in (400, 401)
        for body in (b"", b"{", b"[" * 100_000, b'{"update_id": NaN}', b"\xff"):
            async with http.post(url, data=body, headers={HEADER: SECRET}) as answer:
                assert answer.status == 400, body[:10]
        for body in (b"7", b"{}", b'{"update_id": "x"}', b"[]", b'{"message": {"message_id": -1e400}}'):
            async with http.post(url, data=body, headers={HEADER: SECRET}) as answer:
                assert answer.status in (200, 400), body[:20]
        async with http.post(url, data=io.BytesIO(b" " * 2_000_000), headers={HEADER: SECRET}) as answer:
            assert answer.status == 413
        assert await running.states() == []
    fake.transcript.check()


@pytest.mark.parametrize(
    "wrong",
    [
        {"webhook_secret": ""},
        {"webhook_secret": "  "},
        {"webhook_secret": "not allowed!"},
        {"webhook_url": ""},
    ],
)
async def test_without_a_secret_nothing_is_opened(
    tmp_path: Path, port: int, fake: FakeTelegram, wrong: dict[str, str]
) -> None:
    async with served(tmp_path, fake, port, **wrong) as running:
        [(name, reason)] = running.gateway.left_out.items()
        assert (name, "mode webhook needs" in reason, "\n" in reason) == ("telegram", True, False)
        assert running.gateway.routes() == []


async def _raw(port: int, header: bytes) -> int:
    """Return the status of a request with a header that client libraries do not send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [b"POST /hooks/telegram HTTP/1.1", b"Host: 127.0.0.1", b"Content-Length: 2", header, b"", b"{}"]
    writer.write(b"\r\n".join(lines))
    status = int((await reader.readline()).split()[1])
    writer.close()
    await writer.wait_closed()
    return status
