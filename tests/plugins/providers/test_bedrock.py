"""Bedrock against a server that speaks the real protocol and refuses what Amazon would."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import struct
import zlib
from typing import Any
from urllib.parse import quote

import botocore.session
import msgspec
import pytest
from aiohttp import web
from botocore.config import Config
from botocore.eventstream import EventStreamBuffer, ParserError
from hypothesis import given
from hypothesis import strategies as st

from gateway import (
    ChatOptions,
    ImagePart,
    Message,
    ProviderConfig,
    ProviderError,
    SettingsError,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from gateway.contract.messages import Attachment
from gateway.provider_http import (
    ContentFilterError,
    OneTool,
    RateLimitError,
    ServerFailedError,
    StreamAbortedError,
    ToolDefinition,
)
from gateway.testing.contracts.provider_calls import OPTIONS, assistant, connected, deltas_of, user
from gateway.testing.fake_models.bedrock_wire import frame
from gateway.testing.fake_models.script import Bytes, Cut, ModelRequest, Reply, Say, Tokens
from gateway.testing.fake_models.server import FakeModels
from plugins.providers.bedrock import create
from plugins.providers.bedrock.adapter import BedrockAdapter
from plugins.providers.bedrock.conversation import MOST_IMAGE_CHARACTERS
from plugins.providers.bedrock.frames import UNREADABLE, EventReader
from tests.plugins.providers.reading import EXAMPLES, Read, ours, replies

pytestmark = pytest.mark.slow

TOOL = ToolDefinition("clock", "Tells the time.", {"type": "object", "properties": {}})
SECRETS = {"access_key_id": "AKIAFAKE", "secret_access_key": "very-secret", "session_token": "for-now"}
REGION = "eu-west-1"


async def asked_with(*messages: Message, options: ChatOptions = OPTIONS, **settings: Any) -> ModelRequest:
    given = {"region": REGION, "credentials": SECRETS, **settings}
    async with FakeModels() as fake, connected(create, fake.at("bedrock"), **given) as provider:
        await deltas_of(provider, *messages, options=options)
        return fake.requests[0]


async def failure_at(*end: bytes) -> ProviderError:
    async with (
        FakeModels() as fake,
        connected(create, fake.at("bedrock"), region=REGION, api_key="k", max_retries=0) as provider,
    ):
        fake.then(Reply((Say("Half"), *map(Bytes, end))))
        with pytest.raises(ProviderError) as caught:
            await deltas_of(provider)
    return caught.value


async def test_004_32_every_option_reaches_the_wire() -> None:
    options = ChatOptions(
        model="eu.anthropic.claude:0",
        temperature=0.25,
        top_p=0.9,
        seed=7,
        max_tokens=99,
        tools=(TOOL,),
        system_prompt="Be brief.",
        stop_sequences=("END",),
        response_format="json",
    )
    asked = await asked_with(user("Hi"), options=options, custom_headers={"X-Team": "blue"})
    assert asked.path == "/bedrock/model/eu.anthropic.claude:0/converse-stream"
    assert asked.headers["x-team"] == "blue"
    spec = {"name": "clock", "description": "Tells the time.", "inputSchema": {"json": TOOL.parameters}}
    assert asked.body == {
        "messages": [{"role": "user", "content": [{"text": "Hi"}]}],
        "system": [
            {"text": "Be brief."},
            {"text": "Answer with a single JSON object and nothing else."},
        ],
        "toolConfig": {"tools": [{"toolSpec": spec}]},
        "inferenceConfig": {"maxTokens": 99, "temperature": 0.25, "stopSequences": ["END"]},
    }
    nova = ChatOptions(
        model="amazon.nova-2", temperature=0.25, top_p=0.9, tools=(TOOL,), tool_choice="required"
    )
    asked = await asked_with(user("Hi"), options=nova)
    assert asked.body["inferenceConfig"] == {"temperature": 0.25, "topP": 0.9}
    assert asked.body["toolConfig"]["toolChoice"] == {"any": {}}
    named = ChatOptions(
        model="eu.anthropic.claude-sonnet-5", temperature=0.25, tools=(TOOL,), tool_choice=OneTool("clock")
    )
    asked = await asked_with(user("Hi"), options=named)
    assert "inferenceConfig" not in asked.body, "the model refuses to be told how to choose words"
    assert asked.body["toolConfig"]["toolChoice"] == {"tool": {"name": "clock"}}
    newer = msgspec.structs.replace(named, model="eu.anthropic.claude-sonnet-5-5")
    asked = await asked_with(user("Hi"), options=newer)
    assert "toolChoice" not in asked.body["toolConfig"], "the model refuses to be forced"
    assert asked.body["system"][0] == {"text": "Call the tool `clock` before you answer."}


async def test_turns_alternate_for_any_conversation() -> None:
    called = (
        TextPart("Let me see."),
        ToolCallPart("tooluse_0123456789", "clock", {"marks": "\x01\x02"}),
        ToolResultPart("tooluse_0123456789", " "),
    )
    asked = await asked_with(
        assistant(TextPart("Before the window.")),
        assistant(TextPart("Twice.")),
        user("one"),
        user("two\x01"),
        assistant(*called),
        user("three"),
        Message(session_id="s", role="system", parts=(TextPart("Note"),)),
    )
    use = {"toolUseId": "tooluse_0123456789", "name": "clock", "input": {"marks": "\x01\x02"}}
    result = {"toolUseId": "tooluse_0123456789", "content": [{"text": "(no output)"}]}
    assert asked.body["messages"] == [
        {"role": "user", "content": [{"text": "(the conversation continues)"}]},
        {"role": "assistant", "content": [{"text": "Before the window."}, {"text": "Twice."}]},
        {"role": "user", "content": [{"text": "one"}, {"text": "two\x01"}]},
        {"role": "assistant", "content": [{"text": "Let me see."}, {"toolUse": use}]},
        {"role": "user", "content": [{"toolResult": result}, {"text": "three"}]},
    ]
    assert asked.body["system"] == [{"text": "Note"}]
    assert asked.tools == ("unavailable",), "calls are refused where no tool is offered"


@pytest.mark.parametrize(
    ("model", "marked"),
    [
        ("eu.anthropic.claude-sonnet-4-5-20250929-v1:0", True),
        ("anthropic.claude-3-7-sonnet-20250219-v1:0", True),
        ("amazon.nova-lite-v1:0", True),
        ("anthropic.claude-3-haiku-20240307-v1:0", False),
        ("meta.llama3-70b-instruct-v1:0", False),
    ],
)
async def test_004_T13_models_that_can_are_asked_to_remember_the_prompt_and_the_conversation(
    model: str, marked: bool
) -> None:
    options = ChatOptions(model=model, message_id="answer", system_prompt="Be kind.")
    called = assistant(
        ToolCallPart("tooluse_0123456789", "clock", {}), ToolResultPart("tooluse_0123456789", "noon")
    )
    for messages in ((user("Hi"),), (user("Hi"), called)):
        body = (await asked_with(*messages, options=options)).body
        point = {"cachePoint": {"type": "default"}}
        blocks = [block for message in body["messages"] for block in message["content"]]
        assert (body["system"][-1] == point, blocks[-1] == point) == (marked, marked)
        assert blocks.count(point) == int(marked)


async def test_images_beyond_the_limit_are_named_and_not_sent() -> None:
    asked = await asked_with(user("Look", ImagePart("a" * (MOST_IMAGE_CHARACTERS + 1), "image/png")))
    assert asked.body["messages"][0]["content"] == [
        {"text": "Look"},
        {"text": "(image attached, but it is too large for this model)"},
    ]


async def test_002_38_images_reach_the_model_if_it_knows_their_kind() -> None:
    chart = ToolResultPart("a", "drawn", is_error=True, attachments=(Attachment("image/webp", "aGk="),))
    asked = await asked_with(
        user("Look", ImagePart("aGk=", "image/png"), ImagePart("aGk=", "image/tiff")),
        assistant(ToolCallPart("a", "chart", {}), chart),
    )
    shown = {"image": {"format": "png", "source": {"bytes": "aGk="}}}
    first, _, last = asked.body["messages"]
    assert first["content"] == [{"text": "Look"}, shown, {"text": "(image attached)"}]
    assert last["content"][0]["toolResult"]["status"] == "error"
    assert last["content"][1] == {"image": {"format": "webp", "source": {"bytes": "aGk="}}}


@pytest.mark.parametrize(
    ("end", "named"),
    [
        (frame("throttlingException", {"message": "slow"}, exception=True), RateLimitError),
        (frame("modelStreamErrorException", {}, exception=True), ServerFailedError),
        (frame("messageStop", {"stopReason": "content_filtered"}), ContentFilterError),
        (frame("messageStop", {"stopReason": "malformed_tool_use"}), ServerFailedError),
    ],
)
async def test_an_error_in_the_stream_has_a_type(end: bytes, named: type[ProviderError]) -> None:
    assert type(await failure_at(end)) is named


def test_events_are_read_however_they_are_cut() -> None:
    sent = b"".join(frame("contentBlockDelta", {"delta": {"text": text}}) for text in ("one", "two", "ü"))
    for size in (1, 7, 12, 64, len(sent)):
        reader = EventReader()
        events = [
            event for at in range(0, len(sent), size) for event in reader.feed(sent[at : at + size])
        ] + reader.finish()
        assert [event.name for event in events] == [b"contentBlockDelta"] * 3
        assert [msgspec.json.decode(event.data)["delta"]["text"] for event in events] == ["one", "two", "ü"]


HEADERS = st.lists(
    st.tuples(
        st.sampled_from((":event-type", ":exception-type", ":message-type", "x", "ü")),
        st.one_of(
            st.text(max_size=9).map(lambda text: (7, struct.pack("!H", len(text.encode())) + text.encode())),
            st.binary(max_size=9).map(lambda data: (6, struct.pack("!H", len(data)) + data)),
            st.sampled_from(((0, b""), (1, b""), (2, b"1"), (3, b"12"), (4, b"1234"), (5, b"12345678"))),
            st.sampled_from(((8, b"12345678"), (9, b"1" * 16))),
        ),
    ),
    max_size=4,
    unique_by=lambda header: header[0],
)


def framed(headers: list[tuple[str, tuple[int, bytes]]], payload: bytes) -> bytes:
    """An event with headers of any kind."""
    lines = b"".join(
        bytes([len(name.encode())]) + name.encode() + bytes([kind]) + value for name, (kind, value) in headers
    )
    lengths = struct.pack("!II", 16 + len(lines) + len(payload), len(lines))
    whole = lengths + struct.pack("!I", zlib.crc32(lengths)) + lines + payload
    return whole + struct.pack("!I", zlib.crc32(whole))


@given(
    st.lists(st.tuples(HEADERS, st.binary(max_size=40)), min_size=1, max_size=4),
    st.integers(1, 70),
    st.none() | st.tuples(st.integers(0, 10_000), st.integers(1, 255)),
)
def test_events_are_read_as_amazons_own_library_reads_them(
    sent: list[Any], size: int, fallen: tuple[int, int] | None
) -> None:
    data = bytearray(b"".join(framed(headers, payload) for headers, payload in sent))
    if fallen is not None:
        data[fallen[0] % len(data)] ^= fallen[1]
    theirs, reader = EventStreamBuffer(), EventReader()
    read: list[bytes] = []
    wanted: list[bytes] = []
    for at in range(0, len(data), size):
        chunk = bytes(data[at : at + size])
        read += [b"?" if event.name == UNREADABLE else event.data for event in reader.feed(chunk)]
        theirs.add_data(chunk)
        try:
            for message in theirs:
                wanted.append(message.payload)
        except ParserError:
            wanted.append(b"?")
            break
    assert read == wanted


@pytest.mark.parametrize(
    "headers",
    [b"\x05:even", b"\x01x\x63", b"\x01x\x07\xff\xffabc", b"\xff", b"\x01x"],
)
def test_headers_that_cannot_be_are_noticed(headers: bytes) -> None:
    lengths = struct.pack("!II", 16 + len(headers), len(headers))
    whole = lengths + struct.pack("!I", zlib.crc32(lengths)) + headers
    [event] = EventReader().feed(whole + struct.pack("!I", zlib.crc32(whole)))
    assert event.name == UNREADABLE


async def test_a_byte_that_fell_over_is_noticed() -> None:
    whole = frame("messageStop", {"stopReason": "end_turn"})
    with_error = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
    assert "cannot be read" in str(await failure_at(with_error))


async def test_an_answer_without_its_end_is_none() -> None:
    half = frame("messageStop", {"stopReason": "end_turn"})[:-3]
    async with (
        FakeModels() as fake,
        connected(create, fake.at("bedrock"), region=REGION, api_key="k", max_retries=0) as provider,
    ):
        fake.then(Reply((Say("Half"), Bytes(half), Cut())))
        with pytest.raises(StreamAbortedError):
            await deltas_of(provider)


def test_addresses_are_those_of_the_region() -> None:
    config = ProviderConfig(id="bedrock", region="us-west-2")
    adapter = BedrockAdapter()
    assert adapter.endpoint(config) == "https://bedrock-runtime.us-west-2.amazonaws.com"
    listing = adapter.build_models_request(config).url
    assert listing.startswith("https://bedrock.us-west-2.amazonaws.com/foundation-models?")
    arn = ChatOptions(model="arn:aws:bedrock:us-west-2:1:inference-profile/x")
    url = adapter.build_chat_request((user("Hi"),), arn, config).url
    assert url.endswith("/model/arn%3Aaws%3Abedrock%3Aus-west-2%3A1%3Ainference-profile%2Fx/converse-stream")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, r"region is missing; set it or AWS_REGION"),
        ({"region": "r", "credentials": {"key": "x"}}, r"credentials\.key is not known"),
        ({"region": "r", "credentials": {"access_key_id": "x"}}, r"must both be set"),
    ],
)
async def test_settings_that_cannot_work_are_reported(settings: dict[str, Any], said: str) -> None:
    config = ProviderConfig(id="bedrock", **settings)
    with pytest.raises(SettingsError, match=said):
        await create(config).initialize(config)


async def test_only_models_that_stream_are_listed() -> None:
    async with (
        FakeModels() as fake,
        connected(create, fake.at("bedrock"), region=REGION, credentials=SECRETS) as provider,
    ):
        assert [model.name for model in await provider.list_models()] == ["Fake-Small", "Fake-Large"]


async def test_a_key_needs_no_signature() -> None:
    asked = await asked_with(user("Hi"), api_key="bedrock-api-key", credentials={})
    assert asked.headers["authorization"] == "Bearer bedrock-api-key"
    assert "x-amz-date" not in asked.headers


def _signature(request: web.Request, body: bytes) -> str:
    """What AWS expects of a request as it came, by its own description of the signature."""
    given = dict(part.strip().split("=", 1) for part in request.headers["Authorization"][17:].split(","))
    scope = given["Credential"].split("/", 1)[1]
    names = given["SignedHeaders"].split(";")
    path = quote(request.raw_path.partition("?")[0], safe="/~")
    canonical = "\n".join(
        (
            request.method,
            path,
            request.query_string,
            *(f"{name}:{request.headers[name].strip()}" for name in names),
            "",
            ";".join(names),
            hashlib.sha256(body).hexdigest(),
        )
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    to_sign = "\n".join(("AWS4-HMAC-SHA256", request.headers["X-Amz-Date"], scope, digest))
    key = b"AWS4very-secret"
    for piece in (*scope.split("/"), to_sign):
        key = hmac.digest(key, piece.encode(), "sha256")
    assert {"host", "x-amz-date", "x-amz-security-token", "content-type"} <= set(names)
    return f"{key.hex()} {given['Signature']}"


async def test_what_is_signed_is_what_is_sent() -> None:
    signatures: list[str] = []

    async def check(request: web.Request) -> web.Response:
        signatures.append(_signature(request, await request.read()))
        return web.json_response({"modelSummaries": []}, status=400 if request.method == "POST" else 200)

    app = web.Application()
    app.router.add_route("*", "/{anything:.*}", check)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with connected(create, url, region=REGION, credentials=SECRETS) as provider:
            for model in ("anthropic.claude-3:0", "arn:aws:bedrock:eu-west-1:1:inference-profile/x", "ü m"):
                with pytest.raises(ProviderError):
                    await deltas_of(provider, options=ChatOptions(model=model))
            await provider.list_models()
    finally:
        await runner.cleanup()
    assert len(signatures) == 4
    assert [said.split()[0] for said in signatures] == [said.split()[1] for said in signatures]


async def by_amazon(url: str) -> Read:
    return await asyncio.to_thread(_read_by_amazon, url)


def _read_by_amazon(url: str) -> Read:
    client = botocore.session.Session().create_client(
        "bedrock-runtime",
        region_name=REGION,
        endpoint_url=url,
        aws_access_key_id="AKIAFAKE",
        aws_secret_access_key="very-secret",
        config=Config(retries={"total_max_attempts": 1}),
    )
    text = reasoning = ""
    calls: list[list[str]] = []
    tokens, stop = Tokens(0, 0), ""
    try:
        answer = client.converse_stream(
            modelId="fake-small", messages=[{"role": "user", "content": [{"text": "Hi"}]}]
        )
        for event in answer["stream"]:
            (kind, body), *_ = event.items()
            if kind == "contentBlockStart":
                use = body["start"]["toolUse"]
                calls.append([use["toolUseId"], use["name"], ""])
            elif kind == "contentBlockDelta":
                delta = body["delta"]
                text += delta.get("text", "")
                reasoning += delta.get("reasoningContent", {}).get("text", "")
                if "toolUse" in delta:
                    calls[-1][2] += delta["toolUse"]["input"]
            elif kind == "messageStop":
                stop = body["stopReason"]
            elif kind == "metadata":
                used = body["usage"]
                cached = used["cacheReadInputTokens"]
                tokens = Tokens(used["inputTokens"] + cached, used["outputTokens"], cached)
    finally:
        client.close()
    return Read(text, reasoning, [(a, b, json.loads(c)) for a, b, c in calls], tokens, stop)


@EXAMPLES
@given(reply=replies(comments=False))
async def test_bedrock_and_amazons_own_library_read_the_same(reply: Reply) -> None:
    async with (
        FakeModels(lambda _: reply) as fake,
        connected(create, fake.at("bedrock"), region=REGION, credentials=SECRETS) as provider,
    ):
        assert await ours(provider) == await by_amazon(fake.at("bedrock"))
