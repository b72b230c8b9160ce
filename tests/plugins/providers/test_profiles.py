"""What the services that are compatible with OpenAI want differently, as it is sent."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from gateway import ChatOptions, Message, ProviderConfig, SettingsError, ToolCallPart, ToolResultPart
from gateway.contract.messages import ImagePart, ReasoningState, TextPart
from gateway.contract.provider import Capabilities, ToolDefinition
from gateway.provider_http import AuthFailedError, MetadataDelta, ServerFailedError
from gateway.testing.contracts.provider_calls import OPTIONS, assistant, connected, deltas_of, text_of, user
from gateway.testing.fake_models.script import Bytes, ModelRequest, Reply, Say
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.fake_models.tokens import FakeTokens
from plugins.providers.openai import create
from plugins.providers.openai.adapter import CompletionsAdapter
from plugins.providers.openai.messages import call_id
from plugins.providers.openai.profiles import profile_of
from plugins.providers.protocol import UNSIGNED

ALL = (
    "openai",
    "mistral",
    "groq",
    "xai",
    "deepinfra",
    "cerebras",
    "openrouter",
    "together",
    "azure",
    "custom",
)
LIMITED = ChatOptions(model="m", max_tokens=9)


def adapter_of(config: ProviderConfig) -> CompletionsAdapter:
    profile = profile_of(config)
    return CompletionsAdapter(profile, config.capabilities_or(profile.capabilities))


def body_for(config: ProviderConfig, *messages: Message, options: ChatOptions = LIMITED) -> dict[str, Any]:
    request = adapter_of(config).build_chat_request(messages or (user("Hi"),), options, config)
    return msgspec.json.decode(request.body or b"")


@pytest.mark.parametrize("vendor", ALL)
def test_only_services_with_a_bad_default_get_a_limit_that_was_not_set(vendor: str) -> None:
    config = ProviderConfig(id=vendor, base_url="https://models.example/v1")
    body = body_for(config, options=ChatOptions(model="m"))
    sent = body.get("max_completion_tokens", body.get("max_tokens"))
    assert sent == {"groq": 4_096, "cerebras": 8_192}.get(vendor)


async def asked_of(vendor: str, *messages: Message, **settings: Any) -> ModelRequest:
    async with (
        FakeModels() as fake,
        connected(
            create, fake.at("openai" if vendor == "custom" else vendor), like=vendor, **settings
        ) as provider,
    ):
        await deltas_of(provider, *messages)
        return fake.requests[0]


@pytest.mark.parametrize(
    ("vendor", "url", "limit"),
    [
        ("openai", "https://api.openai.com/v1", "max_completion_tokens"),
        ("mistral", "https://api.mistral.ai/v1", "max_tokens"),
        ("groq", "https://api.groq.com/openai/v1", "max_completion_tokens"),
        ("xai", "https://api.x.ai/v1", "max_completion_tokens"),
        ("deepinfra", "https://api.deepinfra.com/v1/openai", "max_tokens"),
        ("cerebras", "https://api.cerebras.ai/v1", "max_completion_tokens"),
        ("openrouter", "https://openrouter.ai/api/v1", "max_tokens"),
        ("together", "https://api.together.xyz/v1", "max_tokens"),
    ],
)
def test_004_33_each_service_has_its_address_and_its_word_for_the_limit(
    vendor: str, url: str, limit: str
) -> None:
    config = ProviderConfig(id=vendor)
    adapter = adapter_of(config)
    assert adapter.endpoint(config) == url
    assert adapter.build_chat_request((user("Hi"),), LIMITED, config).url == f"{url}/chat/completions"
    assert adapter.build_models_request(config).url == f"{url}/models"
    limits = {key: value for key, value in body_for(config).items() if key.startswith("max")}
    assert limits == {limit: 9}


def test_a_server_that_says_it_is_openai_gets_the_old_name_of_the_limit() -> None:
    body = body_for(ProviderConfig(id="openai", base_url="http://localhost:1234/v1"))
    assert (body.get("max_tokens"), body.get("max_completion_tokens")) == (9, None)


@pytest.mark.parametrize("vendor", ALL)
async def test_004_32_the_key_is_shown_where_the_service_looks_for_it(vendor: str) -> None:
    asked = await asked_of(vendor, api_key="key-of-mine")
    if vendor == "azure":
        assert asked.headers["api-key"] == "key-of-mine"
        assert "authorization" not in asked.headers
    else:
        assert asked.headers["authorization"] == "Bearer key-of-mine"


async def test_openrouter_learns_who_asks() -> None:
    assert (await asked_of("openrouter")).headers["x-title"] == "Trunkline"


@pytest.mark.parametrize(
    ("base_url", "version", "chat", "models"),
    [
        (
            "https://mine.openai.azure.com/",
            None,
            "https://mine.openai.azure.com/openai/v1/chat/completions",
            "https://mine.openai.azure.com/openai/v1/models",
        ),
        (
            "https://mine.openai.azure.com/openai/v1",
            None,
            "https://mine.openai.azure.com/openai/v1/chat/completions",
            "https://mine.openai.azure.com/openai/v1/models",
        ),
        (
            "https://mine.openai.azure.com",
            "2024-10-21",
            "https://mine.openai.azure.com/openai/deployments/my%20gpt%2F4/chat/completions?api-version=2024-10-21",
            "https://mine.openai.azure.com/openai/models?api-version=2024-10-21",
        ),
    ],
)
def test_azure_has_its_own_addresses(base_url: str, version: str | None, chat: str, models: str) -> None:
    config = ProviderConfig(id="azure", base_url=base_url, api_version=version)
    adapter = adapter_of(config)
    request = adapter.build_chat_request((user("Hi"),), ChatOptions(model="my gpt/4"), config)
    assert (request.url, adapter.build_models_request(config).url) == (chat, models)


async def test_azure_answers_at_both_addresses() -> None:
    async with FakeModels() as fake:
        for version, path in ((None, "/azure/openai/v1/chat/completions"), ("2024-10-21", "/deployments/")):
            async with connected(create, fake.at("azure"), like="azure", api_version=version) as provider:
                assert text_of(await deltas_of(provider)) == "You said: Hi"
            assert path in fake.requests[-1].path


@pytest.mark.parametrize("vendor", ["azure", "custom"])
async def test_a_missing_base_url_is_asked_for(vendor: str) -> None:
    config = ProviderConfig(id=vendor)
    with pytest.raises(SettingsError, match=rf"providers\.{vendor}\.base_url is missing"):
        await create(config).initialize(config)


async def test_a_token_takes_the_place_of_a_key_and_is_kept() -> None:
    async with FakeModels(key="token-1") as fake, FakeTokens() as tokens:
        secrets = {"client_id": "me", "client_secret": "right", "token_url": tokens.token_url}
        async with connected(create, f"{fake.url}/v1", like="custom", credentials=secrets) as provider:
            for _ in range(3):
                await deltas_of(provider)
        assert (tokens.given, len(fake.requests)) == (1, 3)


async def test_azure_asks_for_tokens_of_its_own_scope() -> None:
    async with FakeModels() as fake, FakeTokens() as tokens:
        secrets = {"client_id": "me", "client_secret": "right", "token_url": tokens.token_url}
        async with connected(create, fake.at("azure"), like="azure", credentials=secrets) as provider:
            await deltas_of(provider)
        assert tokens.asked[0]["scope"] == "https://cognitiveservices.azure.com/.default"
        assert fake.requests[0].headers["authorization"] == "Bearer token-1"
        assert "api-key" not in fake.requests[0].headers


async def test_a_token_that_is_refused_is_replaced_once() -> None:
    async with FakeModels(key="token-2") as fake, FakeTokens() as tokens:
        secrets = {"client_id": "me", "client_secret": "right", "token_url": tokens.token_url}
        async with connected(create, f"{fake.url}/v1", like="custom", credentials=secrets) as provider:
            assert text_of(await deltas_of(provider)) == "You said: Hi"
            assert [model.id for model in await provider.list_models()] == ["fake-small", "fake-large"]
        assert tokens.given == 2


async def test_a_secret_that_is_refused_is_named_and_not_shown() -> None:
    async with FakeModels() as fake, FakeTokens() as tokens:
        secrets = {"client_id": "me", "client_secret": "wrong-secret", "token_url": tokens.token_url}
        async with connected(create, f"{fake.url}/v1", like="custom", credentials=secrets) as provider:
            with pytest.raises(AuthFailedError) as caught:
                await deltas_of(provider)
        assert "wrong-secret" not in str(caught.value)
        assert fake.requests == []


@pytest.mark.parametrize(
    ("credentials", "said"),
    [
        ({"client": "x"}, r"credentials\.client is not known; known are client_id"),
        ({"client_id": "x"}, r"credentials\.client_secret is missing"),
        ({"client_id": "x", "client_secret": "y"}, r"credentials\.token_url is missing"),
    ],
)
def test_credentials_that_cannot_work_are_reported(credentials: dict[str, str], said: str) -> None:
    with pytest.raises(SettingsError, match=rf"providers\.mine\.{said}"):
        create(ProviderConfig(id="mine", base_url="http://x", credentials=credentials))


def test_a_directory_is_found_by_its_tenant() -> None:
    secrets = {"client_id": "x", "client_secret": "y", "tenant_id": "t"}
    create(ProviderConfig(id="azure", base_url="https://a", credentials=secrets))


def test_ids_of_a_fixed_length_stay_the_same_and_apart() -> None:
    assert call_id("toolu_01", 0) == "toolu_01"
    assert call_id("abcDEF123", 9) == "abcDEF123"
    made = {call_id(given, 9) for given in ("toolu_01", "toolu_02", "äbcDEF123", "")}
    assert len(made) == 4
    assert all(re.fullmatch("[A-Za-z0-9]{9}", each) for each in made)
    assert call_id("toolu_01", 9) in made


THOUGHT = (
    user("Time?"),
    assistant(
        TextPart("Let me ", "reasoning"),
        TextPart("see.", "reasoning"),
        ToolCallPart("a", "clock", {}),
        ToolResultPart("a", "noon"),
        TextPart("Noon.", "reasoning"),
        TextPart("It is noon."),
    ),
    user("And now?"),
    assistant(ToolCallPart("b", "clock", {}), ToolResultPart("b", "one")),
)
"""A conversation with calls after reasoning, and with one of another model."""


@pytest.mark.parametrize(
    ("vendor", "model", "field"),
    [
        ("custom", "deepseek-v4-pro", "reasoning_content"),
        ("custom", "moonshotai/Kimi-K2.5", "reasoning_content"),
        ("openrouter", "deepseek/deepseek-v4-flash", "reasoning"),
    ],
)
def test_reasoning_goes_back_to_models_that_refuse_calls_without_it(
    vendor: str, model: str, field: str
) -> None:
    config = ProviderConfig(id=vendor, base_url="http://localhost/v1")
    kept = f'{{"completions":{{"reasoning":"{field}"}}}}'
    own = TextPart("", "reasoning", ReasoningState(vendor, model, kept))
    question, answer, *rest = THOUGHT
    made = assistant(*answer.parts[:3], own, *answer.parts[3:], own)
    sent = body_for(config, question, made, *rest, options=ChatOptions(model=model))["messages"]
    said = [message for message in sent if message["role"] == "assistant"]
    assert [message.get(field) for message in said] == ["Let me see.", "Noon.", " "]


@pytest.mark.parametrize(
    ("vendor", "model"),
    [("custom", "qwen3"), ("groq", "moonshotai/kimi-k2"), ("openrouter", "openai/gpt-5.4")],
)
def test_reasoning_stays_here_for_all_other_models(vendor: str, model: str) -> None:
    config = ProviderConfig(id=vendor, base_url="http://localhost/v1")
    body = body_for(config, *THOUGHT, options=ChatOptions(model=model))
    assert not any("reasoning" in name for message in body["messages"] for name in message)


GEMINI = ChatOptions(model="google/gemini-3.8-flash", message_id="answer")


@pytest.mark.parametrize("first", ["call", "signature"])
async def test_openrouter_gets_the_signatures_of_gemini_back(first: str) -> None:
    calls = [
        {"index": at, "id": name, "function": {"name": "clock", "arguments": "{}"}}
        for at, name in enumerate(("tool_0_clock", "tool_1_clock"))
    ]
    signed = {
        "type": "reasoning.encrypted",
        "data": "c2ln",
        "id": "tool_1_clock",
        "format": "google-gemini-v1",
    }
    text = {"type": "reasoning.text", "text": "Hm.", "format": "google-gemini-v1"}
    deltas = [{"tool_calls": calls}, {"reasoning_details": [text, signed]}]
    pieces = [sse_of(delta) for delta in (deltas if first == "call" else reversed(deltas))]
    async with FakeModels() as fake, connected(create, fake.at("openrouter"), like="openrouter") as provider:
        fake.then(Reply(tuple(pieces), "tools"))
        made = await provider.chat((user("Time?"),), GEMINI)
        results = [ToolResultPart(name, "noon") for name in ("tool_0_clock", "tool_1_clock")]
        await deltas_of(provider, user("Time?"), assistant(*made.parts, *results), options=GEMINI)
        sent = fake.requests[1].body["messages"][1]
    assert sent["reasoning_details"] == [text, signed]


async def test_a_signature_without_an_id_is_that_of_the_first_call() -> None:
    call = {"index": 0, "id": "a", "function": {"name": "clock", "arguments": "{}"}}
    signed = {"type": "reasoning.encrypted", "data": "c2ln", "format": "google-gemini-v1"}
    async with FakeModels() as fake, connected(create, fake.at("openrouter"), like="openrouter") as provider:
        fake.then(Reply((sse_of({"tool_calls": [call], "reasoning_details": [signed]}),), "tools"))
        made = await provider.chat((user("Time?"),), GEMINI)
        said = assistant(*made.parts, ToolResultPart("a", "noon"))
        await deltas_of(provider, user("Time?"), said, options=GEMINI)
        [detail] = fake.requests[1].body["messages"][1]["reasoning_details"]
    assert (detail["id"], detail["data"]) == ("a", "c2ln")


def test_calls_without_a_signature_get_a_stand_in_for_gemini() -> None:
    body = body_for(ProviderConfig(id="openrouter"), *THOUGHT, options=GEMINI)
    details = [message.get("reasoning_details") for message in body["messages"]]
    assert [each and (each[0]["id"], each[0]["data"]) for each in details if each] == [
        ("a", UNSIGNED),
        ("b", UNSIGNED),
    ]
    other = body_for(ProviderConfig(id="openrouter"), *THOUGHT, options=LIMITED)
    assert not any("reasoning_details" in message for message in other["messages"])


@pytest.mark.parametrize("details", ['"text"', "{}", '[{"type":1}]', "[null]", "null"])
async def test_reasoning_details_of_another_shape_lose_nothing(details: str) -> None:
    chunk = b'data: {"choices":[{"delta":{"content":"Hi","reasoning_details":%b}}]}\n\n' % details.encode()
    async with FakeModels() as fake, connected(create, fake.at("openrouter"), like="openrouter") as provider:
        fake.then(Reply((Bytes(chunk),)))
        assert text_of(await deltas_of(provider)) == "Hi"


@pytest.mark.parametrize(
    ("vendor", "usage", "cost"),
    [
        ("openrouter", '"cost":0.0125,"cost_details":{"upstream_inference_cost":0.0125}', 0.0125),
        ("openrouter", '"cost":0.001,"is_byok":true,"cost_details":{"upstream_inference_cost":0.02}', 0.021),
        ("openrouter", '"cost":"much"', 0.0),
        ("openrouter", '"cost":-1', 0.0),
        ("custom", '"cost":0.0125', 0.0),
    ],
)
async def test_the_cost_that_openrouter_reports_counts(vendor: str, usage: str, cost: float) -> None:
    counts = f'{{"prompt_tokens":7,"completion_tokens":2,{usage}}}'
    chunk = f'data: {{"choices":[],"usage":{counts}}}\n\ndata: [DONE]\n\n'.encode()
    async with FakeModels() as fake, connected(create, fake.at(vendor), like=vendor) as provider:
        fake.then(Reply((Say("Hi"), Bytes(chunk))))
        reports = [delta for delta in await deltas_of(provider) if isinstance(delta, MetadataDelta)]
    assert [(report.input_tokens, report.cost) for report in reports] == [(7, pytest.approx(cost))]


def sse_of(delta: dict[str, Any]) -> Bytes:
    return Bytes(b"data: " + msgspec.json.encode({"choices": [{"delta": delta}]}) + b"\n\n")


async def test_mistral_hears_the_assistant_before_the_user_speaks_again() -> None:
    said = assistant(
        ToolCallPart("a", "clock", {}), ToolResultPart("a", 'noon","role":"tool"},{"role":"user"')
    )
    asked = await asked_of("mistral", user("Time?"), said, user("Well?"))
    roles = [message["role"] for message in asked.body["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]
    assert asked.body["messages"][2]["content"] == 'noon","role":"tool"},{"role":"user"'
    unanswered = await asked_of("mistral", user("Time?"), said)
    assert [message["role"] for message in unanswered.body["messages"]] == ["user", "assistant", "tool"]


async def test_004_39_a_model_without_vision_gets_the_name_of_a_picture() -> None:
    picture = ImagePart("aGk=", "image/png", "a cat")
    asked = await asked_of("cerebras", user("Look", picture))
    assert asked.body["messages"] == [{"role": "user", "content": "Look\n\n(image attached: a cat)"}]


async def test_004_39_capabilities_of_the_settings_count() -> None:
    options = ChatOptions(model="m", response_format="json", message_id="answer")
    async with FakeModels() as fake:
        async with connected(create, fake.openai_url, capabilities=("streaming", "tools")) as provider:
            assert provider.capabilities == Capabilities(images=False, json_mode=False)
            await deltas_of(provider, user("Hi", ImagePart("aGk=", "image/png")), options=options)
        body = fake.requests[0].body
    assert "response_format" not in body
    assert "JSON" in body["messages"][0]["content"]
    assert body["messages"][1]["content"] == "Hi\n\n(image attached)"


async def test_004_38_a_custom_provider_needs_an_address_and_nothing_else() -> None:
    async with FakeModels() as fake:
        async with connected(create, fake.openai_url, name="The one below the desk") as provider:
            assert provider.name == "The one below the desk"
            assert text_of(await deltas_of(provider)) == "You said: Hi"
        assert fake.requests[0].headers["authorization"] == "Bearer none"


async def test_windows_and_limits_of_models_are_found_in_every_shape() -> None:
    config = ProviderConfig(id="mine", base_url="http://x")
    adapter = adapter_of(config)
    shapes = (
        b'{"data":[{"id":"m","context_window":7,"max_completion_tokens":3}]}',
        b'[{"id":"m","context_length":7,"max_completion_tokens":3}]',
        b'{"data":[{"id":"m","max_context_length":7,"max_completion_tokens":3}]}',
        b'{"data":[{"id":"m","max_model_len":7,"max_completion_tokens":3}]}',
        b'{"data":[{"id":"m","metadata":{"context_length":7},"max_completion_tokens":3}]}',
    )
    for shape in shapes:
        (model,) = adapter.parse_models_response(shape, config)
        assert (model.id, model.provider, model.context_window, model.output_limit) == ("m", "mine", 7, 3)


@pytest.mark.parametrize(
    ("shape", "can"),
    [
        (
            b'"capabilities":{"function_calling":false,"vision":true}',
            (False, True, None),
        ),
        (b'"capabilities":{"supports":{"tool_calls":true,"vision":false},"limits":{}}', (True, False, None)),
        (
            b'"architecture":{"input_modalities":["text","image"]},"supported_parameters":["tools","reasoning"]',
            (True, True, True),
        ),
        (
            b'"architecture":{"input_modalities":["text"]},"supported_parameters":["temperature"]',
            (False, False, False),
        ),
        (b'"capabilities":["chat"],"architecture":"gguf","supported_parameters":"all"', (None, None, None)),
        (b'"object":"model"', (None, None, None)),
    ],
)
async def test_004_39_what_a_server_says_of_its_models_is_taken_over(
    shape: bytes, can: tuple[bool | None, ...]
) -> None:
    config = ProviderConfig(id="mine", base_url="http://x")
    (model,) = adapter_of(config).parse_models_response(b'{"data":[{"id":"m",%b}]}' % shape, config)
    assert (model.tools, model.images, model.reasoning) == can


async def test_an_answer_that_the_server_gave_up_is_a_failure_of_the_server() -> None:
    broken = Bytes(b'data: {"choices":[{"delta":{"content":""},"finish_reason":"error"}]}\n\n')
    async with FakeModels() as fake, connected(create, fake.openai_url, max_retries=0) as provider:
        fake.then(Reply((Say("a"), broken)))
        with pytest.raises(ServerFailedError):
            await deltas_of(provider, options=OPTIONS)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("gpt-5", False),
        ("gpt-5-mini", False),
        ("gpt-5-nano-2025-08-07", False),
        ("openai/gpt-5", False),
        ("o1", False),
        ("o3-mini", False),
        ("o4-mini-2025-04-16", False),
        ("gpt-4o", True),
        ("gpt-5-chat-latest", True),
        ("gpt-5.1", True),
        ("openai/gpt-oss-120b", True),
        ("o", True),
    ],
)
async def test_004_T13_models_that_reject_a_temperature_get_none(model: str, told: bool) -> None:
    options = ChatOptions(model=model, message_id="answer", temperature=0.5)
    async with FakeModels() as fake, connected(create, fake.openai_url) as provider:
        assert text_of(await deltas_of(provider, options=options)) == "You said: Hi"
        assert ("temperature" in fake.requests[0].body) is told


@pytest.mark.parametrize(
    ("name", "model", "left_out"),
    [
        ("openai", "gpt-6-sol", {"temperature", "top_p", "stop", "seed"}),
        ("openai", "gpt-5.4-mini", set[str]()),
        ("xai", "grok-4.7", {"stop", "seed"}),
        ("azure", "gpt-6-sol", {"temperature", "top_p", "stop"}),
        ("groq", "openai/gpt-oss-120b", set[str]()),
    ],
)
async def test_004_32_what_a_model_refuses_is_left_out(name: str, model: str, left_out: set[str]) -> None:
    options = ChatOptions(
        model=model, message_id="answer", temperature=0.5, top_p=0.9, seed=7, stop_sequences=("END",)
    )
    offered = msgspec.structs.replace(options, tools=(ToolDefinition("clock", "", {"type": "object"}),))
    # The old addresses of Azure have only Chat Completions, where newer models take tools without reasoning.
    old = {"base_url": "https://a", "api_version": "2024-10-21"} if name == "azure" else {}
    body = body_for(ProviderConfig(id=name, **old), options=offered)
    assert {"temperature", "top_p", "seed", "stop"} - body.keys() == left_out
    assert body.get("reasoning_effort") == ("none" if name == "azure" else None)
    if name == "openai":
        async with FakeModels() as fake, connected(create, fake.openai_url, like=name) as provider:
            assert text_of(await deltas_of(provider, options=offered)) == "You said: Hi"


def test_004_32_mistral_has_its_own_name_for_a_seed() -> None:
    body = body_for(ProviderConfig(id="mistral"), options=ChatOptions(model="m", seed=7))
    assert (body["random_seed"], "seed" in body) == (7, False)
