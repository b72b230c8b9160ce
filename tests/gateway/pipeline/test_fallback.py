"""Fallback: when a provider does not answer another one does, and the chat sees one answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway import (
    ChatOptions,
    ErrorPart,
    Message,
    Plugin,
    PluginContext,
    ProviderConfig,
    ProviderError,
    TextPart,
    TurnContext,
)
from gateway.contract.assembler import Assembler
from gateway.contract.errors import BadRequestError, FallbackExhaustedError
from gateway.contract.messages import is_notice
from gateway.extensions.backends import ProviderRegistry
from gateway.models import Fallback, Models
from gateway.models.fallback import Circuit
from gateway.provider_http import AuthFailedError, RateLimitError, ServerFailedError, StreamTimeoutError
from gateway.session.frames import MessageFrame, TurnStart
from gateway.testing.chat import ScriptedModel, chatting
from gateway.testing.fake_models.script import Cut, Refusal, Reply, Say, Think, Use
from gateway.testing.fake_models.server import FakeModels
from plugins.cli_backends import CliBackends
from plugins.providers import register_factories

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
        (RateLimitError("slow down", status=429), "script reached its rate limit (429)."),
        (AuthFailedError("no", status=401), "script rejected the API key (401)."),
        (AuthFailedError("no", status=403), "script denied access (403)."),
        (ServerFailedError("oh", status=500), "script failed (500)."),
        (StreamTimeoutError("…"), "script stopped responding."),
    ],
)
async def test_004_35_the_next_one_in_the_chain_answers(
    tmp_path: Path, error: ProviderError, line: str
) -> None:
    backups = Backups()
    async with chatting(tmp_path, backups, **CHAIN) as chat:
        chat.model.then(error)
        answer = await chat.say("hello")
    notice = TextPart(f"{line} Answering with second instead.", "notice")
    assert answer.parts == (notice, TextPart("You said: hello"))
    assert answer.text == "You said: hello", "a notice is no part of what the answer says"
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
        "second failed. Answering with third instead.",
        "You said: again",
    ]
    assert answer.metadata.provider == "third"
    assembler = Assembler("s", answer.id)
    for frame in watcher.frames:
        if getattr(frame, "message_id", "") == answer.id and not isinstance(frame, MessageFrame | TurnStart):
            assembler.apply(frame)
    assert assembler.message().text == answer.text


async def test_004_40_when_no_model_answers_every_attempt_is_reported(tmp_path: Path) -> None:
    backups = Backups()
    async with chatting(tmp_path, backups, **CHAIN) as chat:
        chat.model.then(RateLimitError("slow down"))
        backups.second.then(ServerFailedError("overloaded"))
        backups.third.then(Reply((Say("Well"), Cut())))
        answer = await chat.say("hello")
    said, error = answer.parts
    assert said == TextPart("Well"), "what people had been shown stays before the error"
    assert isinstance(error, ErrorPart)
    assert error.error_name == FallbackExhaustedError.__name__
    assert error.message.startswith("No provider answered. ")
    for told in ("script/one: slow down", "second/big: overloaded", "third/big: "):
        assert told in error.message
    # For the question why: names without the words of providers, which may quote secrets.
    assert error.metadata is not None
    assert error.metadata.stack is not None
    assert error.metadata.stack.splitlines()[:2] == [
        "script/one: RateLimitError",
        "second/big: ServerFailedError",
    ]


async def test_004_37_a_notice_is_shown_and_kept_but_no_model_ever_gets_it(tmp_path: Path) -> None:
    """Neither the stand-in in the same turn nor anyone in a later one; the user has the last word."""
    backups = Backups()
    async with chatting(tmp_path, backups, **CHAIN) as chat:
        chat.model.then(Reply((Say("The ans"), Use("clock", '{"a'), Cut())))
        await chat.say("hello")
        await chat.say("again")
        stored = (await chat.gateway.parts.sessions.find("s")).messages()
    async with chatting(tmp_path, **CHAIN) as chat:
        await chat.say("and now?")
        after_restart = chat.model.calls[0]
    [first] = backups.second.calls
    assert [(m.role, m.text) for m in first.messages] == [("user", "hello")]
    assert [is_notice(part) for part in stored[1].parts] == [True, False]
    for call in (chat.model.calls[-1], after_restart):
        assert not [part for m in call.messages for part in m.parts if is_notice(part)]
        assert call.messages[1].parts == (TextPart("You said: hello"),)


async def test_004_37_a_hook_is_shown_what_the_model_is(tmp_path: Path) -> None:
    backups, seen = Backups(), list[Sequence[Message]]()

    class Peeping(Plugin):
        name = "peeping"

        async def before_llm_call(
            self, messages: Sequence[Message], options: ChatOptions, ctx: TurnContext
        ) -> Sequence[Message]:
            seen.append(messages)
            return messages

    async with chatting(tmp_path, backups, Peeping(), **CHAIN) as chat:
        chat.model.then(ServerFailedError("oh"))
        await chat.say("hello")
    assert [[message.text for message in messages] for messages in seen] == [["hello"], ["hello"]]


async def test_004_35_a_stand_in_that_says_nothing_has_failed(tmp_path: Path) -> None:
    """The notice is not an answer."""
    backups = Backups()
    async with chatting(tmp_path, backups, **CHAIN) as chat:
        chat.model.then(ServerFailedError("oh"))
        backups.second.then(Reply())
        answer = await chat.say("hello")
    assert answer.metadata.provider == "third"
    assert answer.text == "You said: hello"


async def test_004_25_when_no_model_answers_all_that_was_shown_stays_before_the_error(tmp_path: Path) -> None:
    """In the order in which it was shown; a tool call that never ran is left out."""
    backups = Backups()
    async with chatting(tmp_path, backups, **CHAIN) as chat:
        await chat.say("hello")
        watcher = await chat.watch()
        chat.model.then(Reply((Think("Hm."), Say("The answer is 4"), Cut())))
        backups.second.then(RateLimitError("slow down"))
        backups.third.then(Reply((Say("No, 5"), Use("tell", '{"a": 1}'), Cut())))
        answer = await chat.say("again")
        await watcher.until(lambda frame: getattr(frame, "stop_reason", "") == "cancelled")
        chat.model.then(Reply((Say("Well."),)))
        await chat.say("and now?")
    *said, error = answer.parts
    assert said == [TextPart("Hm.", "reasoning"), TextPart("The answer is 4"), TextPart("No, 5")]
    assert isinstance(error, ErrorPart)
    assembler = Assembler("s", answer.id)
    for frame in watcher.frames:
        if getattr(frame, "message_id", "") == answer.id and not isinstance(frame, MessageFrame | TurnStart):
            assembler.apply(frame)
    assert assembler.message().parts == answer.parts


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
        assert circuit.allows_call(100.0)
        circuit.record_failure(100.0)
    assert not circuit.allows_call(129.0)
    assert circuit.allows_call(130.0)
    circuit.record_failure(130.0)
    assert not circuit.allows_call(131.0)
    circuit.record_success()
    assert circuit.allows_call(131.0)


async def test_a_chain_without_a_known_model_is_reported_in_the_log_and_the_failure_in_the_chat(
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


async def _asked_alone(tmp_path: Path, first: str, chain: tuple[str, ...] | None = None) -> list[str]:
    """The full names of all who are asked for a model that fails, without a chain in the settings."""

    def configured(name: str) -> ProviderConfig:
        if name == "google":
            return ProviderConfig(id=name, api_key="k", base_url="http://127.0.0.1:9")
        return ProviderConfig(id=name)

    registry = ProviderRegistry(configured)
    register_factories(registry)
    plugin = CliBackends()
    context: Any = SimpleNamespace(
        cwd=str(tmp_path), options=lambda model: model(), environ={}, providers=registry
    )
    await plugin.activate(context)
    models = Models(registry)
    fallback = Fallback(models).with_chain(chain, None)
    asked: list[str] = []
    candidates = fallback.candidates(await models.resolve(first))
    while (route := await candidates.next()) is not None:
        asked.append(route.name)
        assert fallback.record_failure(route, ServerFailedError("down")) == (chain is None)
    await registry.close()
    return asked


async def test_000_09_gemini_and_google_stand_in_for_each_other_by_default(tmp_path: Path) -> None:
    assert await _asked_alone(tmp_path, "gemini/default") == ["gemini/default", "google/gemini-3.8-flash"]
    assert await _asked_alone(tmp_path, "google/gemini-3.8-flash") == [
        "google/gemini-3.8-flash",
        "gemini/default",
    ]
    assert await _asked_alone(tmp_path, "gemini/default", ()) == ["gemini/default"]
