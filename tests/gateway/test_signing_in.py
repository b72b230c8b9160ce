"""Signing in while the gateway runs: the next message is answered."""

from __future__ import annotations

from pathlib import Path

from gateway.provider import ApiKey
from gateway.routing.keys import KeptKeys
from gateway.testing.models import FakeModels
from gateway.testing.served import serving


async def test_004_T11_a_login_counts_from_the_next_message_on(tmp_path: Path) -> None:
    async with FakeModels(key="right") as fake:
        providers = {"openai": {"base_url": fake.openai_url, "max_retries": 0}}
        async with serving(tmp_path, fake=fake, providers=providers) as served, served.socket() as client:
            await client.say("Hi", session="a")
            assert (await client.until("part"))["part"]["error_name"] == "AuthFailedError"
            await client.until("complete")
            KeptKeys(tmp_path).keep("openai", ApiKey("right"), in_file=True)
            await client.say("Again", session="a")
            await client.until("complete")
            assert len(fake.requests) == 1


async def test_004_T11_a_key_in_the_settings_counts_before_a_login(tmp_path: Path) -> None:
    async with FakeModels(key="right") as fake:
        KeptKeys(tmp_path).keep("openai", ApiKey("right"), in_file=True)
        wrong = {"base_url": fake.openai_url, "api_key": "wrong", "max_retries": 0}
        async with (
            serving(tmp_path, fake=fake, providers={"openai": wrong}) as served,
            served.socket() as client,
        ):
            await client.say("Hi", session="a")
            assert (await client.until("part"))["part"]["error_name"] == "AuthFailedError"
