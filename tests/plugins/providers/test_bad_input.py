"""What servers may send that is not an answer: every provider bears it, and a chat gets one clear answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway import ErrorPart, ProviderError
from gateway.provider_http import StreamTimeoutError
from gateway.testing.chat import chatting
from gateway.testing.contracts.bad_input import BAD_INPUT, CASES, BadInput
from gateway.testing.contracts.provider_calls import raised_by
from gateway.testing.contracts.provider_setup import KEY, Check, ProviderSetup, named
from gateway.testing.contracts.rude_server import Piece, RudeServer, http_response
from plugins.providers.candidates import BEDROCK_WITH_A_KEY, PROVIDER_SETUPS
from tests.plugins.providers.at_once import check_all
from tests.plugins.providers.test_contract import RESPONSES

pytestmark = pytest.mark.slow

PROTOCOLS = ("openai", "mistral", "anthropic", "google", "cohere", "bedrock")
ONE_OF_EACH = [setup for setup in (*PROVIDER_SETUPS, BEDROCK_WITH_A_KEY) if setup.id in PROTOCOLS]
"""One for every protocol, and one whose text comes in lists."""


@pytest.mark.parametrize("check", BAD_INPUT, ids=named)
async def test_bad_input_ends_in_a_named_error_or_a_mended_answer(check: Check) -> None:
    await check_all(check, [*ONE_OF_EACH, RESPONSES])


@pytest.mark.parametrize("setup", {b.id: b for b in ONE_OF_EACH}.values(), ids=named)
async def test_the_chat_gets_one_clear_answer_to_each(setup: ProviderSetup, tmp_path: Path) -> None:
    """In one gateway for all cases with the same time limits; the gateways run at the same time."""
    groups: dict[str, list[BadInput]] = {}
    for case in CASES:
        groups.setdefault(" ".join(case.limits), []).append(case)
    async with asyncio.TaskGroup() as tasks:
        for name, cases in groups.items():
            tasks.create_task(answered_clearly(setup, cases, tmp_path / f"data {name}"))


async def answered_clearly(setup: ProviderSetup, cases: Sequence[BadInput], folder: Path) -> None:
    """Ask a gateway once for each case; all cases have the limits of the first."""
    limits = cases[0].limits
    async with RudeServer() as other, RudeServer() as rude:
        provider: dict[str, Any] = {"base_url": rude.url, "api_key": KEY, "max_retries": 0}
        settings: dict[str, Any] = {
            "model": f"{setup.id}/fake-small",
            "providers": {
                setup.id: {**provider, "region": "eu-west-1", "timeout": limits.get("timeout", 60_000)}
            },
            "stream_timeout_ms": limits.get("stream_timeout_ms", 60_000),
            "limits": {"max_llm_calls": 2},
        }
        async with chatting(folder, **settings) as chat:
            for case in cases:
                rude.answer = tuple(case.response(setup.dialect, other.url))
                answer = await chat.say("Hi", session=case.name)
                errors = [part for part in answer.parts if isinstance(part, ErrorPart)]
                if case.accepted is None:
                    assert [error.error_name for error in errors] in [[e.__name__] for e in case.errors], case
                assert KEY not in str(answer), case
                [_, said] = (await chat.gateway.parts.sessions.find(case.name)).messages()
                assert said == answer, case
        assert not other.requests


LISTS: dict[str, Piece] = {
    "noise": bytes(range(256)),
    "nothing": http_response(b"", "application/json"),
    "a page": http_response(b"<html>no</html>", "text/html"),
    "half an object": http_response(b'{"data":[{"id"', "application/json"),
    "a number": http_response(b"7", "application/json"),
    "an error": http_response(b'{"error":"boom"}', "application/json"),
    "lists without end": http_response(b'{"data":' + b"[" * 200_000, "application/json"),
    "numbers without end": http_response(
        b'{"data":%b,"models":%b,"modelSummaries":%b}' % ((b"9" * 100_000,) * 3), "application/json"
    ),
    "no UTF-8": http_response(b'{"data":[{"id":"\xff"}],"models":[{"name":"\xff"}]}', "application/json"),
    "less than it said": http_response(b'{"data":[', "application/json", size=500),
    "too much": http_response(b'{"data":[' + b'{"id":"x"},' * 2_000_000, "application/json"),
    "a refusal": http_response(b"", status="500 Oops"),
    "silence": "hang",
}


@pytest.mark.parametrize("setup", {b.id: b for b in ONE_OF_EACH}.values(), ids=named)
async def test_a_list_of_models_that_is_none_is_an_error_with_a_name(setup: ProviderSetup) -> None:
    async with RudeServer() as rude, setup.connected_to(rude.url, timeout=1000, max_retries=0) as provider:
        for name, sent in LISTS.items():
            rude.answer = (sent,)
            failure = await raised_by(provider.list_models())
            assert isinstance(failure, ProviderError), name
            assert KEY not in str(failure), name
            assert (type(failure) is StreamTimeoutError) == (name == "silence"), (name, failure)
            await rude.wait_disconnected()
