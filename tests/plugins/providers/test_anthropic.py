"""The Anthropic provider against a server that speaks the real protocol and refuses what Anthropic would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from gateway.contract.deltas import Complete, MetadataDelta, TextDelta
from gateway.contract.errors import (
    AuthFailedError,
    BadRequestError,
    ContentFilterError,
    ContextLengthError,
    DeltaParseError,
    ModelNotFoundError,
    ProviderError,
    RateLimitError,
    ServerFailedError,
    StreamAbortedError,
)
from gateway.contract.messages import (
    Attachment,
    ImagePart,
    Message,
    Metadata,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from gateway.contract.provider import (
    ChatOptions,
    OneTool,
    Provider,
    ProviderConfig,
    ToolChoice,
    ToolDefinition,
)
from gateway.models.catalog import Catalog
from gateway.testing.contracts.provider_calls import OPTIONS, assistant, connected, deltas_of, text_of, user
from gateway.testing.fake_models import anthropic_wire
from gateway.testing.fake_models.script import (
    Bytes,
    Cut,
    ModelRequest,
    Refusal,
    Reply,
    Say,
    Stop,
    Think,
    Tokens,
    Use,
    UseTogether,
)
from gateway.testing.fake_models.server import FakeModels
from plugins.providers.anthropic import MOST_IMAGE_CHARACTERS, AnthropicAdapter, create

TOOL = ToolDefinition("clock", "Tells the time.", {"type": "object", "properties": {}})


async def asked_with(*messages: Message, options: ChatOptions = OPTIONS, **settings: object) -> ModelRequest:
    async with FakeModels() as fake, connected(create, fake.anthropic_url, **settings) as provider:
        await deltas_of(provider, *messages, options=options)
        return fake.requests[0]


async def test_002_30_an_answer_streams_through_the_adapter() -> None:
    async with FakeModels() as fake, connected(create, fake.anthropic_url) as provider:
        fake.then(Reply((Say("Hel"), Say("lo")), tokens=Tokens(7, 2)))

        assert await deltas_of(provider) == [
            TextDelta("answer", 0, "Hello", 5),
            MetadataDelta("answer", 7, 2, 0.0),
            Complete("answer", Metadata("fake-small", "fake", 7, 2, 0), "end_turn"),
        ]


async def test_002_19_cached_tokens_are_reported_once_and_counted_as_input() -> None:
    async with FakeModels() as fake, connected(create, fake.anthropic_url) as provider:
        fake.then(Reply((Say("a"),), tokens=Tokens(100, 2, 80)))
        reports = [d for d in await deltas_of(provider) if isinstance(d, MetadataDelta)]

    assert reports == [MetadataDelta("answer", 100, 2, 0.0, 80)]


async def test_thinking_is_reasoning_and_calls_follow_the_text() -> None:
    calls = UseTogether((Use("clock", '{"zone": "UTC"}', "toolu_a", 4), Use("now", "{}", "toolu_b")))
    async with FakeModels() as fake, connected(create, fake.anthropic_url) as provider:
        fake.then(Reply((Think("Hm"), Think("m."), Say("Let me see."), calls), "tools"))
        message = (await provider.chat((user("Hi"),), OPTIONS)).with_state_of()

    assert message.parts == (
        TextPart("Hmm.", "reasoning"),
        TextPart("Let me see."),
        ToolCallPart("toolu_a", "clock", {"zone": "UTC"}),
        ToolCallPart("toolu_b", "now", {}),
    )


@pytest.mark.parametrize(
    ("stop", "reason"), [("end", "end_turn"), ("length", "max_tokens"), ("tools", "tool_use")]
)
async def test_stop_reasons_are_translated(stop: Stop, reason: str) -> None:
    async with FakeModels() as fake, connected(create, fake.anthropic_url) as provider:
        fake.then(Reply((Say("Hi"),), stop))
        last = (await deltas_of(provider))[-1]

    assert isinstance(last, Complete)
    assert last.stop_reason == reason


async def test_a_refusal_is_an_error() -> None:
    async with FakeModels() as fake, connected(create, fake.anthropic_url) as provider:
        fake.then(Reply((Say("I"),), "filter"))
        with pytest.raises(ContentFilterError):
            await deltas_of(provider)


async def test_004_30_the_contract_is_whole() -> None:
    async with (
        FakeModels(key="right") as fake,
        connected(create, fake.anthropic_url, api_key="right") as provider,
    ):
        assert isinstance(provider, Provider)
        assert (provider.name, provider.auth_method) == ("Anthropic", "api_key")
        assert [model.name for model in await provider.list_models()] == ["Fake-Small", "Fake-Large"]
        assert (await provider.chat((user("Hi"),), OPTIONS)).text == "You said: Hi"


async def test_004_31_every_provider_setting_reaches_the_wire() -> None:
    asked = await asked_with(user("Hi"), api_key="key-1", custom_headers={"X-Team": "blue"})

    assert asked.headers["x-api-key"] == "key-1"
    assert asked.headers["anthropic-version"] == "2026-10-21"
    assert asked.headers["x-team"] == "blue"


async def test_a_base_url_may_end_in_the_version() -> None:
    async with FakeModels() as fake, connected(create, fake.anthropic_url + "/v1/") as provider:
        assert text_of(await deltas_of(provider)) == "You said: Hi"


@pytest.mark.parametrize(
    ("model", "given", "sent"),
    [
        ("claude-haiku-4-5", {"temperature": 1.5}, {"temperature": 1.0}),
        ("claude-haiku-4-5", {"top_p": 0.9}, {"top_p": 0.9}),
        ("claude-haiku-4-5", {"top_p": 0.9, "temperature": 0.5}, {"temperature": 0.5}),
        ("claude-sonnet-5-5", {"top_p": 0.9, "temperature": 0.5}, {}),
        ("claude-opus-4-8", {"temperature": 0.5}, {}),
    ],
)
async def test_sampling_parameters_are_sent_only_to_models_that_accept_them(
    model: str, given: dict[str, float], sent: dict[str, float]
) -> None:
    asked = await asked_with(user("Hi"), options=ChatOptions(model=model, **given))
    assert {name: asked.body[name] for name in ("temperature", "top_p") if name in asked.body} == sent


@pytest.mark.parametrize(
    ("choice", "sent"), [("required", {"type": "any"}), (OneTool("clock"), {"type": "tool", "name": "clock"})]
)
async def test_a_model_can_be_made_to_call_a_tool(choice: ToolChoice, sent: dict[str, str]) -> None:
    options = ChatOptions(model="fake-large", tools=(TOOL,), tool_choice=choice)
    assert (await asked_with(user("Hi"), options=options)).body["tool_choice"] == sent


CLAUDES = sorted(facts.id for facts in Catalog().models_of("anthropic") if "claude" in facts.id)
SHOWN = {"type": "adaptive", "display": "summarized"}


def body_for(options: ChatOptions) -> tuple[dict[str, Any], Mapping[str, str]]:
    request = AnthropicAdapter().build_chat_request((user("Hi"),), options, ProviderConfig(id="anthropic"))
    return msgspec.json.decode(request.body or b""), request.headers


@pytest.mark.parametrize("model", CLAUDES)
@pytest.mark.parametrize("choice", ["auto", "required", OneTool("clock")])
def test_no_generation_of_claude_refuses_a_request(model: str, choice: ToolChoice) -> None:
    options = ChatOptions(model=model, temperature=0.5, top_p=0.5, tools=(TOOL,), tool_choice=choice)
    assert anthropic_wire.problem(*body_for(options)) == ""


@pytest.mark.parametrize(
    ("model", "free", "forced"),
    [
        ("claude-haiku-4-5", None, (None, {"type": "tool", "name": "clock"})),
        ("claude-opus-4-8", None, (None, {"type": "tool", "name": "clock"})),
        ("claude-sonnet-5", SHOWN, (None, {"type": "tool", "name": "clock"})),
        ("claude-haiku-5-5", SHOWN, (None, {"type": "tool", "name": "clock"})),
        ("claude-sonnet-5-5", SHOWN, (SHOWN, None)),
        ("claude-opus-5-5-20260922", SHOWN, (SHOWN, None)),
        ("claude-fable-5-1", SHOWN, (SHOWN, None)),
    ],
)
def test_thinking_is_shown_and_a_tool_forced_where_the_model_allows_it(
    model: str, free: object, forced: tuple[object, object]
) -> None:
    options = ChatOptions(model=model, tools=(TOOL,))
    assert body_for(options)[0].get("thinking") == free
    body, _ = body_for(msgspec.structs.replace(options, tool_choice=OneTool("clock")))
    assert (body.get("thinking"), body.get("tool_choice")) == forced
    told = "Call the tool `clock` before you answer." in str(body.get("system"))
    assert told == (forced[1] is None)


async def test_what_a_vendor_lacks_is_logged_at_debug() -> None:
    options = ChatOptions(model="claude-sonnet-5-5", temperature=0.5, seed=7)
    with capture_logs() as logs:
        await asked_with(user("Hi"), options=options)
    [told] = [log for log in logs if log["event"] == "options left out"]
    assert (told["log_level"], told["provider"]) == ("debug", "fake")
    assert sorted(told["options"]) == ["seed", "temperature"]


async def test_004_32_every_option_reaches_the_wire() -> None:
    options = ChatOptions(
        model="fake-large",
        temperature=0.25,
        top_p=0.9,
        seed=7,
        max_tokens=99,
        tools=(TOOL,),
        system_prompt="Be brief.",
        stop_sequences=("END",),
        response_format="json",
    )
    asked = await asked_with(user("Hi"), options=options)

    assert asked.headers["anthropic-version"] == "2023-06-01"
    assert dict(asked.body) == {
        "model": "fake-large",
        "temperature": 0.25,
        "max_tokens": 99,
        "tools": [{"name": "clock", "description": "Tells the time.", "input_schema": TOOL.parameters}],
        "system": [
            {"type": "text", "text": "Be brief."},
            {"type": "text", "text": "Answer with a single JSON object and nothing else."},
        ],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "stop_sequences": ["END"],
        "stream": True,
    }


@pytest.mark.parametrize(("limit", "sent"), [(None, 32_000), (8_192, 8_192), (128_000, 32_000)])
async def test_a_limit_is_always_sent(limit: int | None, sent: int) -> None:
    options = ChatOptions(model="fake-large", output_limit=limit)
    assert (await asked_with(user("Hi"), options=options)).body["max_tokens"] == sent


async def test_images_beyond_the_limit_are_named_and_not_sent() -> None:
    data = "a" * (MOST_IMAGE_CHARACTERS + 1)
    large, shot = ImagePart(data, "image/png", "a plan"), Attachment("image/png", data, "shot.png")
    said = assistant(ToolCallPart("a", "look", {}), ToolResultPart("a", "done", attachments=(shot,)))
    asked = await asked_with(user("Look", large), said)
    first, _, last = asked.body["messages"]
    assert [block["text"] for block in first["content"]] == [
        "Look",
        "(image attached: a plan, but it is too large for this model)",
    ]
    [result] = last["content"]
    assert [block["text"] for block in result["content"]] == [
        "done\n[attached: shot.png, which is too large for this model]"
    ]


async def test_002_38_images_reach_the_model() -> None:
    asked = await asked_with(user("Look", ImagePart("aGVsbG8=", "image/png")))

    assert asked.body["messages"][0]["content"] == [
        {"type": "text", "text": "Look"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}},
    ]


async def test_an_assistant_message_is_sent_in_the_roles_of_the_wire() -> None:
    picture = ToolResultPart("toolu_01A09q90qw90", "here", attachments=(Attachment("image/png", "aGk="),))
    spoken = assistant(
        TextPart("Let me see. "),
        ToolCallPart("toolu_01A09q90qw90", "chart", {"of": "x"}),
        ToolCallPart("b", "codex:shell", {}),
        picture,
        ToolResultPart("b", "no clock", is_error=True),
        TextPart("There it is."),
    )
    asked = await asked_with(user("Draw"), spoken, user("Thanks"))

    _, said, results, after, _ = asked.body["messages"]
    assert said["content"] == [
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "toolu_01A09q90qw90", "name": "chart", "input": {"of": "x"}},
        {"type": "tool_use", "id": f"b_{spoken.id[-12:]}", "name": "codex_shell", "input": {}},
    ]
    ids = [block["tool_use_id"] for block in results["content"]]
    assert ids == ["toolu_01A09q90qw90", f"b_{spoken.id[-12:]}"]
    assert results["content"][0]["content"][1]["type"] == "image"
    assert results["content"][1]["is_error"] is True
    assert after == {"role": "assistant", "content": [{"type": "text", "text": "There it is."}]}


async def test_calls_that_were_aborted_never_make_a_transcript_that_is_refused() -> None:
    broken = assistant(
        ToolCallPart("a", "clock", {}),
        ToolCallPart("b", "clock", {}),
        ToolResultPart("a", ""),
        ToolResultPart("stray", "?"),
        ToolCallPart("c", "clock", {}),
    )
    asked = await asked_with(user("Time?"), broken, user("Well?"))

    results = [
        block for m in asked.body["messages"] for block in m["content"] if block["type"] == "tool_result"
    ]
    assert [block.get("is_error", False) for block in results] == [False, True, True]


async def test_a_window_that_begins_with_the_assistant_is_opened_for_it() -> None:
    asked = await asked_with(assistant(TextPart("Earlier.")), user("Now?"))

    assert [message["role"] for message in asked.body["messages"]] == ["user", "assistant", "user"]


async def test_system_messages_go_to_the_system_prompt() -> None:
    note = Message(session_id="s", role="system", parts=(TextPart("Note"),))
    asked = await asked_with(user("one"), note, user("two"))

    assert asked.body["system"] == [{"type": "text", "text": "Note"}]
    assert len(asked.body["messages"]) == 2


def test_004_T13_what_conversations_have_in_common_and_the_last_of_each_is_marked_to_be_remembered() -> None:
    adapter, options = AnthropicAdapter(), ChatOptions(model="m", system_prompt="Be kind.")
    note = Message(session_id="s", role="system", parts=(TextPart("Note"),))
    for base_url, marked in ((None, True), ("http://compatible.example", False)):
        config = ProviderConfig(id="anthropic", base_url=base_url)
        request = adapter.build_chat_request((user("Hi"), note), options, config)
        body = msgspec.json.decode(request.body or b"")
        assert ("cache_control" in body, "cache_control" in body["system"][-1]) == (marked, marked)
        assert "cache_control" not in body["system"][0]


@pytest.mark.parametrize(
    ("refusal", "named"),
    [
        (Refusal(400, "prompt is too long: 250000 tokens > 200000 maximum"), ContextLengthError),
        (Refusal(400, "bad"), BadRequestError),
        (Refusal(401, "no"), AuthFailedError),
        (Refusal(404, "model: nope"), ModelNotFoundError),
        (Refusal(413, "large"), ContextLengthError),
        (Refusal(429, "slow"), RateLimitError),
        (Refusal(529, "Overloaded"), ServerFailedError),
    ],
)
async def test_refusals_have_names(refusal: Refusal, named: type[ProviderError]) -> None:
    async with FakeModels() as fake, connected(create, fake.anthropic_url, max_retries=0) as provider:
        fake.then(refusal)
        with pytest.raises(ProviderError) as caught:
            await deltas_of(provider)
    assert type(caught.value) is named


def error_event(kind: str) -> Bytes:
    event = {"type": "error", "error": {"type": kind, "message": "no"}}
    return Bytes(b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n")


@pytest.mark.parametrize(
    ("end", "named"),
    [
        (error_event("overloaded_error"), ServerFailedError),
        (error_event("rate_limit_error"), RateLimitError),
        (error_event("something_new"), ServerFailedError),
        (Bytes(b"event: message_delta\ndata: {no json\n\n"), DeltaParseError),
        (Cut(), StreamAbortedError),
    ],
)
async def test_004_25_a_stream_that_breaks_is_named(end: Bytes | Cut, named: type[ProviderError]) -> None:
    async with FakeModels() as fake, connected(create, fake.anthropic_url, max_retries=0) as provider:
        fake.then(Reply((Say("Half"), end)))
        with pytest.raises(ProviderError) as caught:
            await deltas_of(provider)
    assert type(caught.value) is named


async def test_events_and_blocks_of_kinds_unknown_are_passed_over() -> None:
    strange = Bytes(b'event: x\ndata: {"type":"something_new","value":1}\n\n')
    block = Bytes(
        b'data: {"type":"content_block_start","index":9,"content_block":{"type":"server_tool"}}\n\n'
    )
    async with FakeModels() as fake, connected(create, fake.anthropic_url) as provider:
        fake.then(Reply((strange, block, Say("Hi"))))
        assert text_of(await deltas_of(provider)) == "Hi"
