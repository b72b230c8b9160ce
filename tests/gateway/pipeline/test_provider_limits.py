"""Limits of providers, seen from the chats: waits are told, shared, and a reason to ask another one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from gateway.testing.fake_models.script import Gate, Refusal, Reply, Say
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import Frame, serving


def limited(frame: Frame) -> bool:
    return frame["type"] == "metadata_delta" and frame.get("rate_limit") is not None


def reached(fake: FakeModels, **limits: Any) -> dict[str, Any]:
    return {"base_url": fake.openai_url, "api_key": "k", "max_retries": 0, **limits}


async def test_004_28_a_chat_that_waits_for_its_turn_says_so_and_then_has_its_answer(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with FakeModels() as models:
        providers = {"openai": reached(models, concurrency=1)}
        async with (
            serving(tmp_path, fake=models, providers=providers) as served,
            served.socket() as first,
            served.socket() as second,
        ):
            models.then(Reply((Say("One"), Gate(gate), Say("."))))
            await first.say("Hi", session="a")
            await first.until("text_delta")
            await second.say("Ho", session="b")
            told = await second.until(limited)
            assert told["rate_limit"] == {"retry_after_ms": 0, "provider": "openai"}
            assert len(models.requests) == 1
            gate.set()
            done = await second.until("complete")
            assert done["stop_reason"] == "end_turn"


async def test_a_chat_that_waits_for_its_turn_can_be_stopped(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with FakeModels() as models:
        providers = {"openai": reached(models, concurrency=1)}
        async with (
            serving(tmp_path, fake=models, providers=providers) as served,
            served.socket() as first,
            served.socket() as second,
        ):
            models.then(Reply((Say("One"), Gate(gate))))
            await first.say("Hi", session="a")
            await first.until("text_delta")
            await second.say("Ho", session="b")
            await second.until(limited)
            await second.send(type="abort", session="b")
            assert (await second.until("complete"))["stop_reason"] == "cancelled"
            gate.set()
            await first.until("complete")
            assert len(models.requests) == 1


async def test_004_35_when_the_wait_is_too_long_another_provider_answers(tmp_path: Path) -> None:
    spent = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "50s"}
    async with FakeModels() as models, FakeModels() as others:
        providers = {
            "openai": reached(models, timeout=60_000),
            "desk": reached(others, models=("fake-small",)),
        }
        async with (
            serving(tmp_path, fake=models, providers=providers, fallback=["desk/fake-small"]) as served,
            served.socket() as client,
        ):
            models.then(Refusal(429, "slow", {"retry-after": "90"}))
            await client.say("Hi", session="a")
            await client.until("complete")
            assert (len(models.requests), len(others.requests)) == (1, 1)
            models.then(Refusal(429, "slow", spent))
            await client.say("Ho", session="a")
            await client.until("complete")
            assert len(others.requests) == 2
