"""A conversation begun with one provider continues on any other, and requests are what each of them takes."""

from __future__ import annotations

import msgspec
import pytest

from gateway.contract.messages import (
    Attachment,
    ImagePart,
    Message,
    ReasoningState,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    checked_part,
    decode_part,
)
from gateway.contract.provider import ChatOptions, ToolDefinition
from gateway.testing.contracts.provider_calls import assistant, deltas_of, text_of, user
from gateway.testing.contracts.provider_setup import ProviderSetup, named
from gateway.testing.fake_models.script import Refusal, Reply, Say, Think, Use, UseTogether
from tests.plugins.providers.test_contract import PROVIDER_SETUPS

CLOCK = ToolDefinition("clock", "Tells the time.", {"type": "object", "properties": {}})
OFFERED = ChatOptions(model="fake-small", message_id="answer", tools=(CLOCK,))
PLAIN = ChatOptions(model="fake-small", message_id="answer")


async def begun(setup: ProviderSetup) -> list[Message]:
    """A conversation that a provider took part in: it thought, spoke, and renumbered its calls."""
    calls = (Use("clock", '{"zone": "UTC"}', "call_0"), Use("clock", '{"zone": "CET"}', "call_1"))
    spoken = (Think("Hm."), Say("Let me see.")) if setup.reasons else ()
    said: list[Message] = []
    async with setup.running() as (fake, provider):
        for question in ("What time is it?", "And now?"):
            fake.then(Reply((*spoken, UseTogether(calls)), "tools"))
            said.append(user(question))
            answer = await provider.chat(said, OFFERED)
            made = [part for part in answer.parts if isinstance(part, ToolCallPart)]
            results = [ToolResultPart(call.tool_call_id, "noon") for call in made]
            said.append(assistant(*answer.parts, *results, TextPart("It is noon.")))
    return said


@pytest.mark.parametrize("first", PROVIDER_SETUPS, ids=named)
async def test_004_T13_a_conversation_begun_with_one_provider_continues_on_any_other(
    first: ProviderSetup,
) -> None:
    history = await begun(first)
    assert sum(isinstance(part, ToolCallPart) for message in history for part in message.parts) == 4
    for setup in PROVIDER_SETUPS:
        async with setup.running(max_retries=0) as (_, provider):
            for options in (OFFERED, PLAIN):
                deltas = await deltas_of(provider, *history, user("Thanks!"), options=options)
                assert text_of(deltas) == "You said: Thanks!", (first.id, setup.id)


RETURNED = {
    "openai": ("gpt-5.6", '"summary":[{"type":"summary_text","text":"Hm."}],"encrypted_content":"c2ln'),
    "azure": ("gpt-5.6", '"encrypted_content":"c2lnbmVk"'),
    "xai": ("grok-4.3", '"encrypted_content":"c2lnbmVk"'),
    "anthropic": ("claude-opus-5", '"thinking":"Hm.","signature":"c2lnbmVkIEhtLg=="'),
    "bedrock": ("anthropic.claude-opus-5", '"reasoningText":{"text":"Hm.","signature":"c2lnbmVk"}'),
    "google": ("gemini-3.8-flash", '"thoughtSignature":"c2lnbmVk"'),
    "vertex": ("gemini-3.8-flash", '"thoughtSignature":"c2lnbmVk"'),
    "cohere": ("command-a-reasoning", '{"type":"thinking","thinking":"Hm."}'),
    "mistral": ("mistral-medium-3-5", '"thinking":[{"type":"text","text":"Hm."}]'),
    "openrouter": ("anthropic/claude-opus-5", '"signature":"c2lnbmVk"'),
    "copilot": ("gemini-3.8-pro", '"reasoning_opaque":"c2lnbmVk"'),
    "custom": ("deepseek-v4-pro", '"reasoning_content":"Hm."'),
    "deepinfra": ("zai-org/GLM-5", '"reasoning_content":"Hm."'),
    "together": ("zai-org/GLM-5", '"reasoning":"Hm."'),
    "cerebras": ("gpt-oss-120b", '"reasoning":"Hm."'),
}
"""What each service gets back of its model's reasoning, in its own form."""


@pytest.mark.parametrize("setup", [one for one in PROVIDER_SETUPS if one.id in RETURNED], ids=named)
async def test_reasoning_goes_back_with_its_calls_to_the_same_model_only(setup: ProviderSetup) -> None:
    model, fragment = RETURNED[setup.id]
    options = msgspec.structs.replace(OFFERED, model=model)
    async with setup.running(max_retries=0) as (fake, provider):
        fake.then(Reply((Think("Hm."), Use("clock", "{}", "call_a")), "tools"))
        answer = await provider.chat((user("Time?"),), options)
        # As it is stored and read again, for example after a crash.
        parts = (*answer.parts, ToolResultPart("call_a", "noon"))
        stored = assistant(*(decode_part(checked_part(part)) for part in parts))
        for each in (options, options, msgspec.structs.replace(options, model="fake-other")):
            assert "noon" in text_of(await deltas_of(provider, user("Time?"), stored, options=each))
        second, third, other = (msgspec.json.encode(one.body).decode() for one in fake.requests[1:])
    assert fragment in second
    assert second == third
    assert "c2ln" not in other
    assert "Hm." not in other


async def test_a_model_that_refuses_its_reasoning_is_asked_again_without_it() -> None:
    setup = next(one for one in PROVIDER_SETUPS if one.id == "anthropic")
    thought = '{"anthropic":{"type":"thinking","thinking":"Hm.","signature":"c2lnbmVkIEhtLg=="}}'
    state = ReasoningState("fake", "fake-small", thought)
    said = assistant(TextPart("", "reasoning", state), TextPart("Hello."))
    async with setup.running(max_retries=0) as (fake, provider):
        fake.then(Refusal(400, "Invalid `signature` in `thinking` block"))
        assert text_of(await deltas_of(provider, user("Hi"), said, user("So?"))) == "You said: So?"
        assert ["Hm." in str(request.body) for request in fake.requests] == [True, False]


STRANGE = (
    user("", ImagePart("aGk=", "image/tiff", "a plan"), ImagePart("aGk=", "image/gif")),
    assistant(TextPart("   ")),
    user("Do it"),
    assistant(
        ToolCallPart("x" * 90, "codex:shell", {"command": "ls"}),
        ToolCallPart("функция/1", "9lives", {}),
        ToolCallPart("", "a" * 90, {}),
        ToolResultPart("x" * 90, "", attachments=(Attachment("image/heic", "aGk=", "photo.heic"),)),
        ToolResultPart("функция/1", "done", attachments=(Attachment("image/svg+xml", "PHN2Zz4=", "a.svg"),)),
    ),
    assistant(ToolCallPart("0", "clock", {}), ToolResultPart("0", "noon")),
    user("again"),
    assistant(ToolCallPart("0", "clock", {}), ToolResultPart("0", "noon")),
    Message(session_id="s", role="system", parts=(TextPart("A note in the middle."),)),
)
"""Names, ids and pictures that some protocols know and others do not, and messages with nothing in them."""


@pytest.mark.parametrize("setup", PROVIDER_SETUPS, ids=named)
async def test_004_T13_what_only_other_protocols_know_is_sent_in_a_way_that_this_one_takes(
    setup: ProviderSetup,
) -> None:
    async with setup.running(max_retries=0) as (fake, provider):
        for options in (OFFERED, PLAIN):
            assert (
                text_of(await deltas_of(provider, *STRANGE, user("So?"), options=options)) == "You said: So?"
            )
        sent = str(fake.requests[0].body)
    assert "(image attached: a plan)" in sent
    assert "a.svg (image/svg+xml)" in sent
    assert "A note in the middle." in sent
    assert "codex_shell" in sent


@pytest.mark.parametrize("setup", PROVIDER_SETUPS, ids=named)
async def test_004_T13_a_tools_schema_is_normalised_for_each_provider(setup: ProviderSetup) -> None:
    choice = {"properties": {"a": {"type": "array"}}, "required": ["a", "gone"]}
    tools = tuple(
        ToolDefinition(f"tool_{number}", "Does something.", schema)
        for number, schema in enumerate(({}, {"type": "object"}, {"anyOf": [choice]}, choice))
    )
    async with setup.running(max_retries=0) as (fake, provider):
        options = ChatOptions(model="fake-small", message_id="answer", tools=tools)
        assert text_of(await deltas_of(provider, options=options)) == "You said: Hi"
        assert fake.requests[0].tools == tuple(tool.name for tool in tools)
