"""Fallback: when a provider does not answer another one does, and the chat sees one answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway import (
    AuthFailedError,
    BadRequestError,
    ErrorPart,
    FallbackExhaustedError,
    Plugin,
    PluginContext,
    ProviderError,
    RateLimitError,
    ServerFailedError,
    StreamTimeoutError,
    TextPart,
)
from gateway.assembler import Assembler
from gateway.frames import MessageFrame, TurnStart
from gateway.routing.fallback import Circuit
from gateway.testing.chat import ScriptedModel, chatting
from gateway.testing.models import FakeModels
from gateway.testing.script import Cut, Refusal, Reply, Say, Use

CHAIN: dict[str, Any] = {"fallback": ["second/big", "third/big"]}


class Backups(Plugin):
    """Two more providers."""

    name = "backups"

    def __init__(self) -> None:
        self.second, self.third = ScriptedModel(), ScriptedModel()
        self.second.id, self.second.name = "second", "Second"
        self.third.id, self.third.name = "third", "Third"

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.providers is not None
        ctx.providers.register(self.second)
        ctx.providers.register(self.third)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RateLimitError("slow down"), "*Script is busy; Second answers instead.*"),
        (AuthFailedError("no"), "*Script did not let us in; Second answers instead.*"),
        (ServerFailedError("oh"), "*Script failed; Second answers instead.*"),
        (StreamTimeoutError("…"), "*Script went silent; Second answers instead.*"),
    ],
)
async def test_004_35_the_next_one_in_the_chain_answers(
    tmp_path: Path, error: ProviderError, line: str
) -> None:
    backups = Backups()
    async with chatting(tmp_path, backups, **CHAIN) as chat:
        chat.model.then(error)
        answer = await chat.say("hello")
    assert answer.parts == (TextPart(line), TextPart("You said: hello"))
    assert (answer.metadata.provider, answer.metadata.model) == ("second", "big")
    assert backups.third.calls == []


@pytest.mark.parametrize("error", [BadRequestError("what?"), ServerFailedError("oh")])
async def test_004_35_only_what_was_named_as_a_trigger_is_one(tmp_path: Path, error: ProviderError) -> None:
    backups = Backups()
    async with chatting(tmp_path, backups, fallback_triggers=["rate_limit"], **CHAIN) as chat:
        chat.model.then(error)
        answer = await chat.say("hello")
    assert [type(part) for part in answer.parts] == [ErrorPart]
    assert backups.second.calls == []


async def test_004_37_what_a_failed_attempt_said_is_taken_back_and_there_is_one_notice(
    tmp_path: Path,
) -> None:
    backups = Backups()
    async with chatting(tmp_path, backups, **CHAIN) as chat:
        await chat.say("hello")
        watcher = await chat.watch()
        chat.model.then(Reply((Say("The answer is 4"), Cut())))
        backups.second.then(Reply((Use("tell", '{"a": 1}'), Say("No, 5"), Cut())))
        answer = await chat.say("again")
        await watcher.until(lambda frame: getattr(frame, "stop_reason", "") == "end_turn")
    assert [p.content for p in answer.parts if isinstance(p, TextPart)] == [
        "*Second failed; Third answers instead.*",
        "You said: again",
    ]
    assert answer.metadata.provider == "third"
    assembler = Assembler("s", answer.id)
    for frame in watcher.frames:
        if getattr(frame, "message_id", "") == answer.id and not isinstance(frame, MessageFrame | TurnStart):
            assembler.apply(frame)
    assert assembler.message().text == answer.text


async def test_004_40_when_nobody_answers_every_attempt_is_told(tmp_path: Path) -> None:
    backups = Backups()
    async with chatting(tmp_path, backups, **CHAIN) as chat:
        chat.model.then(RateLimitError("slow down"))
        backups.second.then(ServerFailedError("overloaded"))
        backups.third.then(Reply((Say("Well"), Cut())))
        answer = await chat.say("hello")
    [error] = answer.parts
    assert isinstance(error, ErrorPart)
    assert error.error_name == FallbackExhaustedError.__name__
    for told in ("script/one: RateLimitError: slow down", "second/big: ServerFailedError", "third/big: "):
        assert told in error.message


async def test_004_36_a_provider_alone_means_the_model_it_begins_with(tmp_path: Path) -> None:
    backups = Backups()
    providers = {"second": {"models": ["medium", "large"]}}
    async with chatting(tmp_path, backups, fallback=["second"], providers=providers) as chat:
        chat.model.then(ServerFailedError("oh"))
        answer = await chat.say("hello")
    assert answer.metadata.model == "medium"


async def test_one_that_fails_again_and_again_is_left_alone_for_a_while(tmp_path: Path) -> None:
    backups = Backups()
    async with chatting(tmp_path, backups, **CHAIN) as chat:
        chat.model.then(*[ServerFailedError("oh")] * 3)
        for _ in range(4):
            await chat.say("hello")
        answer = await chat.say("hello")
    assert len(chat.model.calls) == 3
    assert answer.parts == (TextPart("You said: hello"),)
    assert answer.metadata.provider == "second"


def test_a_circuit_closes_again_by_itself_and_at_once_when_it_works() -> None:
    circuit = Circuit()
    for _ in range(3):
        assert circuit.closed(100.0)
        circuit.failed(100.0)
    assert not circuit.closed(129.0)
    assert circuit.closed(130.0)
    circuit.failed(130.0)
    assert not circuit.closed(131.0)
    circuit.worked()
    assert circuit.closed(131.0)


async def test_a_chain_that_names_nobody_is_told_in_the_log_and_the_failure_in_the_chat(
    tmp_path: Path,
) -> None:
    async with chatting(tmp_path, fallback=["nobody/big"]) as chat:
        chat.model.then(ServerFailedError("oh"))
        answer = await chat.say("hello")
    [error] = answer.parts
    assert isinstance(error, ErrorPart)
    assert (error.error_name, error.message) == ("ServerFailedError", "oh")


def two_vendors(anthropic: FakeModels, openai: FakeModels, **openai_settings: Any) -> dict[str, Any]:
    """Settings for two vendors at fake servers, the second one standing in for the first."""
    return {
        "model": "anthropic/claude-sonnet-4-20250514",
        "fallback": ["openai"],
        "providers": {
            "anthropic": {"base_url": anthropic.anthropic_url, "api_key": "k", "max_retries": 0},
            "openai": {"base_url": openai.openai_url, "api_key": "k", **openai_settings},
        },
    }


async def test_004_36_another_vendor_answers_with_the_model_that_comes_nearest(tmp_path: Path) -> None:
    """Over real connections: the vendor says what it offers, and the nearest of that is asked."""
    async with FakeModels() as anthropic, FakeModels() as openai:
        offered = ["gpt-3.5-turbo", "gpt-4o-mini", "gpt-4o", "o1", "text-embedding-3-small"]
        async with chatting(tmp_path, **two_vendors(anthropic, openai, models=offered)) as chat:
            anthropic.then(Reply((Say("The answer"), Cut())), Refusal(529, "overloaded"))
            for text in ("hello", "again"):
                answer = await chat.say(text)
                assert answer.parts[-1] == TextPart(f"You said: {text}")
                assert (answer.metadata.provider, answer.metadata.model) == ("openai", "gpt-4o")
    assert [asked.body["model"] for asked in openai.requests] == ["gpt-4o", "gpt-4o"]
    assert [asked.body["model"] for asked in anthropic.requests] == ["claude-sonnet-4-20250514"] * 2


async def test_004_36_a_vendor_is_asked_only_for_what_it_lists(tmp_path: Path) -> None:
    """Nothing is known of the two that it lists, so it is the first of them."""
    async with (
        FakeModels() as anthropic,
        FakeModels() as openai,
        chatting(tmp_path, **two_vendors(anthropic, openai)) as chat,
    ):
        anthropic.then(Refusal(529, "overloaded"))
        answer = await chat.say("hello")
    assert (answer.metadata.provider, answer.metadata.model) == ("openai", "fake-small")


async def test_004_36_what_the_settings_say_comes_first_and_holds_both_ways(
    tmp_path: Path,
) -> None:
    backups = Backups()
    models = {"second/best": {"equivalents": ["script/one", "third/best"]}}
    async with chatting(tmp_path, backups, fallback=["second", "third"], models=models) as chat:
        chat.model.then(ServerFailedError("oh"), ServerFailedError("oh"))
        assert (await chat.say("hello")).metadata.model == "best"
        await chat.say("/model second/best")
        backups.second.then(ServerFailedError("oh"))
        answer = await chat.say("hello")
    assert (answer.metadata.provider, answer.metadata.model) == ("third", "best")


async def test_004_36_an_alias_in_the_chain_means_its_model(tmp_path: Path) -> None:
    backups = Backups()
    settings: dict[str, Any] = {"fallback": ["spare"], "aliases": {"spare": "third/big"}}
    async with chatting(tmp_path, backups, **settings) as chat:
        chat.model.then(ServerFailedError("oh"))
        answer = await chat.say("hello")
    assert (answer.metadata.provider, answer.metadata.model) == ("third", "big")
