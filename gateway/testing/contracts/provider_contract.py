"""The suite for every provider over HTTP, with a fake server that speaks its protocol.

Each check is a coroutine function that takes a ``ProviderSetup``. In tests::

    from gateway.testing.contracts.provider_setup import Check, ProviderSetup, named

    @pytest.mark.parametrize("check", CHECKS, ids=named)
    async def test_the_contract(check: Check) -> None:
        await check(ProviderSetup("mine", create, MyDialect()))

A ``Dialect`` is the server's side of the protocol, with strict checks of requests; the scripts are the same
for all providers.
"""

from __future__ import annotations

import asyncio

import msgspec

from gateway.contract.deltas import Complete, Delta, MetadataDelta, TextDelta, ToolCallStart
from gateway.contract.errors import ContentFilterError
from gateway.contract.messages import Attachment, ImagePart, Metadata, TextPart, ToolCallPart, ToolResultPart
from gateway.contract.provider import Capabilities, ChatOptions, OneTool, Provider, ToolDefinition
from gateway.testing.contracts.provider_calls import OPTIONS, assistant, deltas_of, failure_of, text_of, user
from gateway.testing.contracts.provider_failures import FAILURES
from gateway.testing.contracts.provider_setup import Check, ProviderSetup
from gateway.testing.fake_models.script import Gate, Reply, Say, Stall, Think, Tokens, Use, UseTogether
from gateway.testing.fake_models.server import MODELS

CLOCK = ToolDefinition("clock", "Tells the time.", {"type": "object", "properties": {}})
IMAGE = ImagePart("aGVsbG8=", "image/png")


async def it_is_a_provider(setup: ProviderSetup) -> None:
    """Check that the provider has all members and lists its models."""
    async with setup.running() as (_, provider):
        assert isinstance(provider, Provider)
        assert provider.id == "fake"
        assert provider.name
        assert provider.api_endpoint.startswith("http://127.0.0.1:")
        assert provider.auth_method in ("api_key", "oauth", "custom")
        assert provider.capabilities.streaming
        assert [model.id for model in await provider.list_models()] == list(MODELS)
    async with setup.running(models=("mine",)) as (_, provider):
        assert [model.id for model in await provider.list_models()] == ["mine"]


async def text_arrives_as_it_is_sent(setup: ProviderSetup) -> None:
    """Check that separate pieces arrive separately and at once, followed by the usage and the end."""
    gate = asyncio.Event()
    async with setup.running() as (fake, provider):
        fake.then(Reply((Say("Hel"), Gate(gate), Say("lo\n"), Say("you")), tokens=Tokens(7, 2)))
        stream = provider.stream((user("Hi"),), OPTIONS)
        assert await anext(stream) == TextDelta("answer", 0, "Hel", 3)
        gate.set()
        rest = [delta async for delta in stream]
    assert "Hel" + text_of(rest) == "Hello\nyou"
    assert rest[-2:] == [
        MetadataDelta("answer", 7, 2, 0.0),
        Complete("answer", Metadata("fake-small", "fake", 7, 2, 0), "end_turn"),
    ]


async def a_call_comes_in_fragments(setup: ProviderSetup) -> None:
    """Check that the tool name comes first, and that the fragments form one JSON object."""
    arguments = {"zone": "Europe/Oslo", "deep": {"list": [1, None, "ü"]}}
    call = Use("clock", '{"zone": "Europe/Oslo", "deep": {"list": [1, null, "\\u00fc"]}}', "call_a", 7)
    async with setup.running() as (fake, provider):
        fake.then(Reply((Say("Let me see."), call), "tools"), Reply((call,), "tools"))
        deltas = await deltas_of(provider, options=_with_tools())
        message = (await provider.chat((user("Hi"),), _with_tools())).with_state_of()
    starts = [delta for delta in deltas if isinstance(delta, ToolCallStart)]
    assert [(start.part_index, start.tool_call_id, start.tool_name) for start in starts] == [
        (1, "call_a", "clock")
    ]
    assert _stop_of(deltas) == "tool_use"
    assert message.parts == (ToolCallPart("call_a", "clock", arguments),)


async def parallel_calls_are_separate(setup: ProviderSetup) -> None:
    """Check that parallel calls, also of one tool, are separate; one may have no arguments."""
    calls = (Use("clock", '{"zone": "UTC"}', "a", 3), Use("clock", '{"zone": "CET"}', "b", 5), Use("now"))
    async with setup.running() as (fake, provider):
        fake.then(Reply((UseTogether(calls),), "tools"))
        message = (await provider.chat((user("Hi"),), _with_tools())).with_state_of()
    assert message.parts == (
        ToolCallPart("a", "clock", {"zone": "UTC"}),
        ToolCallPart("b", "clock", {"zone": "CET"}),
        ToolCallPart("call_1", "now", {}),
    )


async def reasoning_is_a_separate_part(setup: ProviderSetup) -> None:
    """Check that reasoning comes before the answer and not in its text."""
    async with setup.running() as (fake, provider):
        fake.then(Reply((Think("Hm"), Think("m."), Say("Yes."))))
        message = (await provider.chat((user("Hi"),), OPTIONS)).with_state_of()
    reasoning = (TextPart("Hmm.", "reasoning"),) if setup.reasons else ()
    assert message.parts == (*reasoning, TextPart("Yes."))


async def tokens_are_counted_once(setup: ProviderSetup) -> None:
    """Check that input includes cached tokens, and output includes reasoning."""
    moves = (Think("Hm"), Say("a")) if setup.reasons else (Say("a"),)
    async with setup.running() as (fake, provider):
        fake.then(Reply(moves, tokens=Tokens(100, 12, 80 if setup.caches else 0)))
        reports = [delta for delta in await deltas_of(provider) if isinstance(delta, MetadataDelta)]
    assert reports == [MetadataDelta("answer", 100, 12, 0.0, 80 if setup.caches else 0)]


async def the_stop_reason_is_reported(setup: ProviderSetup) -> None:
    """Check the stop reasons "end", "limit" and "call"; a call counts even if the server reports an end."""
    async with setup.running() as (fake, provider):
        fake.then(
            Reply((Say("Hi"),)),
            Reply((Say("Hi"),), "length"),
            Reply((Use("clock"),), "tools"),
            Reply((Use("clock"),), "end"),
        )
        stops = [_stop_of(await deltas_of(provider, options=_with_tools())) for _ in range(4)]
    assert stops == ["end_turn", "max_tokens", "tool_use", "tool_use"]


async def a_filtered_answer_is_an_error(setup: ProviderSetup) -> None:
    """Check that an answer that the vendor's filter ended is an error."""
    async with setup.running() as (fake, provider):
        fake.then(Reply((Say("I"),), "filter"))
        assert type(await failure_of(provider)) is ContentFilterError


async def a_long_history_is_accepted(setup: ProviderSetup) -> None:
    """Check a history with other vendors' calls, calls without results, images, and unusual role orders."""
    history = (
        assistant(TextPart("Hello, I was here before the window.")),
        user("Look", IMAGE),
        user("again"),
        assistant(
            TextPart("thinking", "reasoning"),
            TextPart("Let me see."),
            ToolCallPart("toolu_01:A/b", "clock", {"zone": "UTC"}),
            ToolCallPart("b", "clock", {}, invalid_arguments='{"cut'),
            ToolResultPart("toolu_01:A/b", "noon", attachments=(Attachment("image/png", "aGk="),)),
            ToolResultPart("b", "went wrong", is_error=True),
            TextPart("It is noon."),
            ToolCallPart("c", "clock", {}),
        ),
        user("Stop!"),
        assistant(ToolCallPart("d", "clock", {}), ToolResultPart("d", "")),
        user("And now?"),
    )
    async with setup.running() as (fake, provider):
        assert text_of(await deltas_of(provider, *history, options=_with_tools())) == "You said: And now?"
        unfinished = (*history, assistant(ToolCallPart("e", "clock", {}), ToolResultPart("e", "one o'clock")))
        assert "one o'clock" in text_of(await deltas_of(provider, *unfinished, options=_with_tools()))
        assert [request.tools for request in fake.requests] == [("clock",), ("clock",)]


async def every_option_is_accepted(setup: ProviderSetup) -> None:
    """Check all options together, JSON without tools, and each way to force a tool call."""
    options = ChatOptions(
        model="fake-large",
        temperature=0.25,
        top_p=0.9,
        seed=7,
        max_tokens=99,
        tools=(CLOCK,),
        system_prompt="Be brief.",
        stop_sequences=("END",),
        response_format="json",
        message_id="answer",
    )
    plain = ChatOptions(model="fake-large", response_format="json", message_id="answer")
    forced = [
        ChatOptions(model="fake-large", tools=(CLOCK,), tool_choice=choice, message_id="answer")
        for choice in ("required", OneTool("clock"))
    ]
    async with setup.running() as (fake, provider):
        for each in (options, plain, *forced):
            assert text_of(await deltas_of(provider, options=each)) == "You said: Hi"
        assert fake.requests[0].tools == ("clock",)


async def an_image_is_sent(setup: ProviderSetup) -> None:
    """Check that an image is sent unchanged, or as a text if the model does not accept images."""
    async with setup.running() as (fake, provider):
        await deltas_of(provider, user("Look", IMAGE))
        body = str(fake.requests[0].body)
        assert IMAGE.data in body or "(image attached)" in body
        assert IMAGE.data not in body or provider.capabilities.images


async def images_become_text_without_image_support(setup: ProviderSetup) -> None:
    """Check that images become texts if the settings say that the model does not accept them."""
    attachment = Attachment("image/png", IMAGE.data)
    history = (
        user("Look", IMAGE),
        assistant(ToolCallPart("a", "clock", {}), ToolResultPart("a", "noon", attachments=(attachment,))),
        user("So?"),
    )
    async with setup.running(capabilities=("streaming", "tools")) as (fake, provider):
        assert (provider.capabilities.images, provider.capabilities.tools) == (False, True)
        await deltas_of(provider, *history, options=_with_tools())
        assert IMAGE.data not in str(fake.requests[0].body)
        assert "(image attached)" in str(fake.requests[0].body)


async def capabilities_of_a_model_override_the_providers(setup: ProviderSetup) -> None:
    """Check that capabilities in the options override those of the provider, for each call."""
    without, with_images = Capabilities(images=False), Capabilities(images=True)
    async with setup.running() as (fake, provider):
        for capabilities in (without, with_images, without):
            options = msgspec.structs.replace(OPTIONS, model="fake-vision", capabilities=capabilities)
            await deltas_of(provider, user("Look", IMAGE), options=options)
    assert [IMAGE.data in str(request.body) for request in fake.requests] == [False, True, False]


async def closing_ends_the_call(setup: ProviderSetup) -> None:
    """Check that closing the stream disconnects from the server and does not affect the next call."""
    async with setup.running() as (fake, provider):
        fake.then(Reply((Say("Half"), Stall())))
        stream = provider.stream((user("Hi"),), OPTIONS)
        await anext(stream)
        await stream.aclose()
        async with asyncio.timeout(60):
            await fake.left.wait()
        assert text_of(await deltas_of(provider)) == "You said: Hi"


CHECKS: tuple[Check, ...] = (
    it_is_a_provider,
    text_arrives_as_it_is_sent,
    a_call_comes_in_fragments,
    parallel_calls_are_separate,
    reasoning_is_a_separate_part,
    tokens_are_counted_once,
    the_stop_reason_is_reported,
    a_filtered_answer_is_an_error,
    a_long_history_is_accepted,
    every_option_is_accepted,
    an_image_is_sent,
    images_become_text_without_image_support,
    capabilities_of_a_model_override_the_providers,
    closing_ends_the_call,
    *FAILURES,
)
"""The whole suite."""


def _with_tools() -> ChatOptions:
    return ChatOptions(model="fake-small", message_id="answer", tools=(CLOCK,))


def _stop_of(deltas: list[Delta]) -> str:
    assert isinstance(deltas[-1], Complete)
    return deltas[-1].stop_reason
