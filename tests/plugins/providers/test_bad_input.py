"""What servers may send that is no answer: every provider bears it, and a chat gets one clear answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway import ErrorPart, ProviderError
from gateway.provider_http import StreamTimeoutError
from gateway.testing.backend import KEY, Backend, Check, named, raised_by
from gateway.testing.bad_input import BAD_INPUT, CASES
from gateway.testing.chat import chatting
from gateway.testing.rude import Piece, RudeServer, http
from plugins.providers.trial import BACKENDS, BEDROCK_WITH_A_KEY

pytestmark = pytest.mark.slow

PROTOCOLS = ("openai", "mistral", "anthropic", "google", "cohere", "bedrock")
ONE_OF_EACH = [backend for backend in (*BACKENDS, BEDROCK_WITH_A_KEY) if backend.id in PROTOCOLS]
"""One for every protocol, and one whose text comes in lists."""


@pytest.mark.parametrize("backend", ONE_OF_EACH, ids=named)
@pytest.mark.parametrize("check", BAD_INPUT, ids=named)
async def test_bad_input_ends_in_a_named_error_or_a_mended_answer(backend: Backend, check: Check) -> None:
    await check(backend)


@pytest.mark.parametrize("backend", {b.id: b for b in ONE_OF_EACH}.values(), ids=named)
async def test_the_chat_gets_one_clear_answer_to_each(backend: Backend, tmp_path: Path) -> None:
    async with RudeServer() as other, RudeServer() as rude:
        provider: dict[str, Any] = {"base_url": rude.url, "api_key": KEY, "max_retries": 0, "timeout": 2000}
        settings: dict[str, Any] = {
            "model": f"{backend.id}/fake-small",
            "providers": {backend.id: {**provider, "region": "eu-west-1"}},
            "stream_timeout_ms": 600,
            "limits": {"max_llm_calls": 2},
        }
        async with chatting(tmp_path, **settings) as chat:
            for case in CASES:
                rude.answer = tuple(case.sent(backend.dialect, other.url))
                answer = await chat.say("Hi", session=case.name)
                errors = [part for part in answer.parts if isinstance(part, ErrorPart)]
                if case.mended is None:
                    assert [error.error_name for error in errors] in [[e.__name__] for e in case.errors], case
                assert KEY not in str(answer), case
                [_, said] = (await chat.gateway.parts.sessions.find(case.name)).messages()
                assert said == answer, case
        assert not other.requests


LISTS: dict[str, Piece] = {
    "noise": bytes(range(256)),
    "nothing": http(b"", "application/json"),
    "a page": http(b"<html>no</html>", "text/html"),
    "half an object": http(b'{"data":[{"id"', "application/json"),
    "a number": http(b"7", "application/json"),
    "an error": http(b'{"error":"boom"}', "application/json"),
    "lists without end": http(b'{"data":' + b"[" * 200_000, "application/json"),
    "numbers without end": http(
        b'{"data":%b,"models":%b,"modelSummaries":%b}' % ((b"9" * 100_000,) * 3), "application/json"
    ),
    "no UTF-8": http(b'{"data":[{"id":"\xff"}],"models":[{"name":"\xff"}]}', "application/json"),
    "less than it said": http(b'{"data":[', "application/json", size=500),
    "too much": http(b'{"data":[' + b'{"id":"x"},' * 2_000_000, "application/json"),
    "a refusal": http(b"", status="500 Oops"),
    "silence": "hang",
}


@pytest.mark.parametrize("backend", {b.id: b for b in ONE_OF_EACH}.values(), ids=named)
async def test_a_list_of_models_that_is_none_is_an_error_with_a_name(backend: Backend) -> None:
    async with RudeServer() as rude, backend.connected_to(rude.url, timeout=1000, max_retries=0) as provider:
        for name, sent in LISTS.items():
            rude.answer = (sent,)
            failure = await raised_by(provider.list_models())
            assert isinstance(failure, ProviderError), name
            assert KEY not in str(failure), name
            assert (type(failure) is StreamTimeoutError) == (name == "silence"), (name, failure)
            await rude.left()
