"""Gemini against a server that speaks the real protocol and refuses what Google would."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway import (
    ChatOptions,
    Complete,
    ImagePart,
    Message,
    Provider,
    ProviderConfig,
    ProviderError,
    SettingsError,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from gateway.contract.errors import BadRequestError
from gateway.contract.messages import Attachment
from gateway.provider_http import (
    AuthFailedError,
    ContentFilterError,
    OneTool,
    ProviderUnavailableError,
    ServerFailedError,
    ToolChoice,
    ToolDefinition,
)
from gateway.testing.contracts.provider_calls import OPTIONS, assistant, connected, deltas_of, text_of, user
from gateway.testing.fake_models.google_wire import SIGNATURE
from gateway.testing.fake_models.script import Bytes, ModelRequest, Refusal, Reply, Say, Use, UseTogether
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.fake_models.tokens import FakeTokens, with_account
from plugins.providers.google import create
from plugins.providers.google.adapter import GeminiAdapter
from plugins.providers.protocol import UNSIGNED

TOOL = ToolDefinition("clock", "Tells the time.", {"type": "object", "properties": {}})
CONFIG = ProviderConfig(id="google")
NEW = ChatOptions(model="gemini-3.8-flash", message_id="answer", tools=(TOOL,))


async def asked_with(*messages: Message, options: ChatOptions = OPTIONS, **settings: Any) -> ModelRequest:
    async with FakeModels() as fake, connected(create, fake.at("google"), **settings) as provider:
        await deltas_of(provider, *messages, options=options)
        return fake.requests[0]


def body_for(*messages: Message, **options: Any) -> dict[str, Any]:
    request = GeminiAdapter().build_chat_request(
        messages or (user("Hi"),), ChatOptions(**{"model": "gemini-2.5-pro", **options}), CONFIG
    )
    return msgspec.json.decode(request.body or b"")


def event(**response: Any) -> Bytes:
    return Bytes(b"data: " + msgspec.json.encode(response) + b"\r\n\r\n")


def candidate(*parts: dict[str, Any], **more: Any) -> Bytes:
    return event(candidates=[{"content": {"parts": parts, "role": "model"}, **more}])


async def failure(provider: Provider) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await deltas_of(provider)
    return caught.value


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
    )
    asked = await asked_with(user("Hi"), options=options, api_key="key", custom_headers={"X-Team": "blue"})
    assert asked.path == "/google/v1beta/models/fake-large:streamGenerateContent"
    assert (asked.headers["x-goog-api-key"], asked.headers["x-team"]) == ("key", "blue")
    assert asked.body == {
        "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "tools": [
            {
                "functionDeclarations": [
                    {
                        "name": "clock",
                        "description": "Tells the time.",
                        "parametersJsonSchema": {"type": "object", "properties": {}},
                    }
                ]
            }
        ],
        "generationConfig": {
            "temperature": 0.25,
            "maxOutputTokens": 99,
            "stopSequences": ["END"],
            "topP": 0.9,
            "seed": 7,
        },
    }
    choices: list[tuple[ToolChoice, dict[str, Any]]] = [
        ("required", {}),
        (OneTool("clock"), {"allowedFunctionNames": ["clock"]}),
    ]
    for choice, named in choices:
        forced = ChatOptions(model="fake-large", tools=(TOOL,), tool_choice=choice)
        body = (await asked_with(user("Hi"), options=forced)).body
        assert body["toolConfig"] == {"functionCallingConfig": {"mode": "ANY", **named}}


def test_json_is_a_mode_without_tools_and_a_request_beside_them() -> None:
    assert body_for(response_format="json")["generationConfig"]["responseMimeType"] == "application/json"
    beside = body_for(response_format="json", tools=(TOOL,))
    assert "responseMimeType" not in beside["generationConfig"]
    assert "JSON" in beside["systemInstruction"]["parts"][0]["text"]


@pytest.mark.parametrize(
    ("model", "asks"),
    [
        ("gemini-2.5-flash", True),
        ("gemini-3.8-flash", True),
        ("gemini-flash-latest", True),
        ("gemini-2.0-flash", False),
        ("gemini-1.5-pro", False),
        ("gemini-2.5-flash-image", False),
        ("gemini-3.8-flash-tts", False),
        ("gemma-4-31b-it", False),
    ],
)
def test_only_models_that_think_are_asked_for_their_thoughts(model: str, asks: bool) -> None:
    generation = body_for(model=model).get("generationConfig", {})
    assert generation.get("thinkingConfig", {}).get("includeThoughts", False) is asks


async def test_system_messages_are_sent_beside_the_prompt() -> None:
    note = Message(session_id="s", role="system", parts=(TextPart("Note"),))
    asked = await asked_with(
        user("one"), note, user("two"), options=ChatOptions(model="m", system_prompt="Be")
    )
    assert asked.body["systemInstruction"] == {"parts": [{"text": "Be"}, {"text": "Note"}]}
    assert asked.body["contents"] == [{"role": "user", "parts": [{"text": "one"}, {"text": "two"}]}]


async def test_002_38_images_reach_the_model_also_those_that_tools_made() -> None:
    shown = {"inlineData": {"mimeType": "image/png", "data": "aGk="}}
    chart = ToolResultPart("a", "drawn", attachments=(Attachment("image/png", "aGk="),))
    asked = await asked_with(
        user("Look", ImagePart("aGk=", "image/png")), assistant(ToolCallPart("a", "chart", {}), chart)
    )
    contents = asked.body["contents"]
    assert contents[0]["parts"] == [{"text": "Look"}, shown]
    answer = {"functionResponse": {"id": "a", "name": "chart", "response": {"output": "drawn"}}}
    assert contents[2] == {"role": "user", "parts": [answer, shown]}


async def test_a_result_that_is_an_error_says_so() -> None:
    said = assistant(ToolCallPart("a", "clock", {}), ToolResultPart("a", "broken", is_error=True))
    asked = await asked_with(user("Time?"), said)
    assert asked.body["contents"][2]["parts"][0]["functionResponse"]["response"] == {"error": "broken"}


async def test_pictures_of_the_model_are_parts() -> None:
    large = "aGk" * 900_000
    blob = {"inlineData": {"mimeType": "image/png", "data": large}}
    thought = {"inlineData": {"mimeType": "image/png", "data": "bm8="}, "thought": True}
    async with FakeModels() as fake, connected(create, fake.at("google")) as provider:
        fake.then(Reply((Say("Here: "), candidate(thought), candidate(blob), Say("done"))))
        message = await provider.chat((user("Draw"),), OPTIONS)
    assert message.parts == (TextPart("Here: "), ImagePart(large, "image/png"), TextPart("done"))


async def test_a_signature_goes_back_with_its_call() -> None:
    async with FakeModels() as fake, connected(create, fake.at("google")) as provider:
        fake.then(Reply((UseTogether((Use("clock", "{}", "a"), Use("clock", "{}", "b"))),), "tools"))
        made = await provider.chat((user("Time?"),), NEW)
        results = (ToolResultPart("a", "noon"), ToolResultPart("b", "one"))
        await deltas_of(provider, user("Time?"), assistant(*made.parts, *results), options=NEW)
        parts = fake.requests[1].body["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == [SIGNATURE, None]


async def test_calls_without_a_signature_get_a_placeholder_where_one_is_required() -> None:
    old = assistant(
        ToolCallPart("a", "clock", {}),
        ToolCallPart("b", "clock", {}),
        ToolResultPart("a", "noon"),
        ToolResultPart("b", "one"),
    )
    for model, signature in (("gemini-3.8-flash", UNSIGNED), ("gemini-2.5-pro", None)):
        asked = await asked_with(user("Time?"), old, options=ChatOptions(model=model, tools=(TOOL,)))
        parts = asked.body["contents"][1]["parts"]
        assert [part.get("thoughtSignature") for part in parts] == [signature, None]


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        ("SAFETY", ContentFilterError),
        ("RECITATION", ContentFilterError),
        ("PROHIBITED_CONTENT", ContentFilterError),
        ("MALFORMED_FUNCTION_CALL", ServerFailedError),
        ("UNEXPECTED_TOOL_CALL", ServerFailedError),
    ],
)
async def test_an_answer_that_was_broken_off_is_an_error(reason: str, named: type[ProviderError]) -> None:
    async with FakeModels() as fake, connected(create, fake.at("google"), max_retries=0) as provider:
        fake.then(Reply((Say("I"), candidate(finishReason=reason))))
        assert type(await failure(provider)) is named


async def test_a_request_that_was_blocked_is_an_error() -> None:
    async with FakeModels() as fake, connected(create, fake.at("google"), max_retries=0) as provider:
        fake.then(Reply((event(promptFeedback={"blockReason": "PROHIBITED_CONTENT"}),)))
        error = await failure(provider)
    assert type(error) is ContentFilterError
    assert "PROHIBITED_CONTENT" in str(error)


async def test_other_candidates_and_unknown_parts_are_passed_over() -> None:
    other = event(
        candidates=[{"index": 1, "content": {"parts": [{"text": "other"}]}, "finishReason": "STOP"}]
    )
    strange = candidate({"executableCode": {"code": "1"}}, {"text": ""}, {})
    async with FakeModels() as fake, connected(create, fake.at("google")) as provider:
        fake.then(Reply((other, strange, event(usageMetadata={}), Bytes(b"data:\n\n"), Say("Hi"))))
        deltas = await deltas_of(provider)
    assert text_of(deltas) == "Hi"
    assert isinstance(deltas[-1], Complete)


async def test_a_wait_that_the_body_asks_for_is_honoured() -> None:
    error = {"code": 429, "message": "quota", "details": [{"retryDelay": "0s"}]}
    async with FakeModels() as fake, connected(create, fake.at("google")) as provider:
        fake.then(Refusal(429, body=msgspec.json.encode({"error": error})))
        assert text_of(await deltas_of(provider)) == "You said: Hi"
        assert len(fake.requests) == 2


@pytest.mark.parametrize(
    ("base_url", "version", "expected"),
    [
        (None, None, "https://generativelanguage.googleapis.com/v1beta"),
        (None, "v1", "https://generativelanguage.googleapis.com/v1"),
        ("http://proxy/gemini/", None, "http://proxy/gemini/v1beta"),
        ("http://proxy/v1beta", None, "http://proxy/v1beta"),
    ],
)
def test_the_address_has_a_version(base_url: str | None, version: str | None, expected: str) -> None:
    config = ProviderConfig(id="google", base_url=base_url, api_version=version)
    assert GeminiAdapter().endpoint(config) == expected


async def test_only_models_that_chat_are_listed() -> None:
    async with FakeModels() as fake, connected(create, fake.at("google")) as provider:
        models = await provider.list_models()
    assert [(model.id, model.context_window, model.output_limit) for model in models] == [
        ("fake-small", 1000, 100),
        ("fake-large", 1000, 100),
    ]


async def test_google_cloud_is_asked_by_project_region_and_token() -> None:
    tokens = FakeTokens()
    async with (
        FakeModels(key="token-1") as fake,
        with_account(tokens=tokens) as settings,
        connected(create, fake.at("vertex"), like="vertex", region="europe-west4", **settings) as provider,
    ):
        for _ in range(2):
            await deltas_of(provider)
    place = "/vertex/v1beta1/projects/ours/locations/europe-west4/publishers/google/models"
    assert fake.requests[0].path == f"{place}/fake-small:streamGenerateContent"
    assert tokens.given == 1
    assert provider.auth_method == "oauth"


async def test_google_cloud_gets_calls_without_ids() -> None:
    calls = (ToolCallPart("a", "clock", {}), ToolCallPart("b", "sum", {}))
    said = assistant(*calls, ToolResultPart("a", "noon"), ToolResultPart("b", "3"))
    async with (
        FakeModels() as fake,
        with_account() as settings,
        connected(create, fake.at("vertex"), like="vertex", **settings) as provider,
    ):
        await deltas_of(provider, user("Time?"), said, options=NEW)
    _, made, answered = fake.requests[0].body["contents"]
    assert [part["functionCall"] for part in made["parts"]] == [
        {"name": "clock", "args": {}},
        {"name": "sum", "args": {}},
    ]
    assert [part["functionResponse"] for part in answered["parts"]] == [
        {"name": "clock", "response": {"output": "noon"}},
        {"name": "sum", "response": {"output": "3"}},
    ]


def endpoint_of(**settings: Any) -> str:
    return create(ProviderConfig(id="vertex", project_id="p", **settings)).api_endpoint


def test_google_clouds_address_is_its_regions() -> None:
    assert endpoint_of() == "https://aiplatform.googleapis.com"
    assert endpoint_of(region="us-east5") == "https://us-east5-aiplatform.googleapis.com"
    assert endpoint_of(region="eu") == "https://aiplatform.eu.rep.googleapis.com"


async def test_google_cloud_wants_a_project() -> None:
    config = ProviderConfig(id="vertex")
    with pytest.raises(SettingsError, match=r"providers\.vertex\.project_id is missing"):
        await create(config).initialize(config)
    with pytest.raises(SettingsError, match=r"credentials\.key is not known; known is file"):
        create(ProviderConfig(id="vertex", credentials={"key": "x"}))


async def test_invalid_credentials_are_named() -> None:
    async with FakeModels() as fake, with_account() as settings:
        broken = {**settings, "credentials": {"file": "/nowhere.json"}}
        async with connected(create, fake.at("vertex"), like="vertex", **broken) as provider:
            assert type(await failure(provider)) is AuthFailedError
        assert fake.requests == []


async def test_a_token_service_that_is_gone_is_unavailable() -> None:
    tokens = FakeTokens()
    async with FakeModels() as fake, with_account(tokens=tokens) as settings:
        await tokens.__aexit__(None, None, None)
        async with connected(create, fake.at("vertex"), like="vertex", max_retries=0, **settings) as provider:
            assert type(await failure(provider)) is ProviderUnavailableError


async def test_a_request_that_google_would_refuse_is_refused() -> None:
    async with FakeModels() as fake, connected(create, fake.at("google"), max_retries=0) as provider:
        with pytest.raises(BadRequestError, match="contents is not specified"):
            await provider.chat((user(" "),), OPTIONS)
