"""The dialects of the fake model servers, by vendor, with the quirks of compatible services."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.testing.fake_models.anthropic_wire import AnthropicDialect
from gateway.testing.fake_models.bedrock_wire import BedrockDialect
from gateway.testing.fake_models.cohere_wire import CohereDialect
from gateway.testing.fake_models.dialect import Dialect
from gateway.testing.fake_models.google_wire import GOOGLE, VERTEX
from gateway.testing.fake_models.openai_wire import OpenAIDialect, Quirks
from gateway.testing.fake_models.script import Refusal

# Mistral publishes its rules, as the request validator in github.com/mistralai/mistral-common: the user or
# a tool ends, the assistant follows a tool's result, and no assistant message is without content and calls.
MISTRAL = OpenAIDialect(
    "/mistral/v1",
    Quirks(
        unsupported=frozenset({"stream_options", "max_completion_tokens", "seed"}),
        reasoning="content",
        usage="last",
        errors="flat",
        id_pattern="[A-Za-z0-9]{9}",
        user_after_tool=False,
        requires_result_names=True,
        stops={"length": "model_length"},
    ),
    {
        "too_long": Refusal(
            400, "Prompt contains 40000 tokens, too large for model with 32768 maximum context length"
        ),
        "no_model": Refusal(400, "Invalid model: x", code="1500"),
    },
)
# console.groq.com/docs/prefilling: the conversation may end with the assistant.
GROQ = OpenAIDialect(
    "/groq/openai/v1",
    Quirks(
        accepts_prefill=True, unsupported=frozenset({"max_tokens"}), reasoning="reasoning", usage="x_groq"
    ),
    {"too_long": Refusal(400, "Please reduce the length of the messages or completion.")},
)
# docs.x.ai/docs/guides/chat: roles in any order, also at the end. Empty content is reported to be refused.
XAI = OpenAIDialect(
    "/xai/v1",
    Quirks(accepts_prefill=True, errors="words", separate_reasoning=True),
    {
        "too_long": Refusal(400, "This model's maximum prompt length is 131072 but the request has 537812."),
        "filtered": Refusal(403, "Content violates usage guidelines."),
        "no_key": Refusal(400, "Incorrect API key provided: xa***."),
    },
)
# DeepInfra, Together and OpenRouter pass a conversation to the chat template of an open model. Several
# (Gemma, Mistral, Llama 2) are reported to refuse roles that do not alternate, so the fakes refuse that.
DEEPINFRA = OpenAIDialect(
    "/deepinfra/v1/openai",
    Quirks(unsupported=frozenset({"max_completion_tokens"}), errors="detail", requires_alternation=True),
    {"no_model": Refusal(404, "The model x does not exist")},
)
# Cerebras documents no order of roles; the fake refuses a conversation that ends with the assistant.
CEREBRAS = OpenAIDialect(
    "/cerebras/v1",
    Quirks(
        unsupported=frozenset({"stream_options", "max_tokens"}),
        reasoning="reasoning",
        usage="last",
        errors="flat",
    ),
    {"too_long": Refusal(400, "Please reduce the length of the messages. Current length is 9932.")},
)
# Claude by way of OpenRouter is reported to refuse a conversation that ends with the assistant.
OPENROUTER = OpenAIDialect(
    "/openrouter/api/v1",
    Quirks(reasoning="reasoning", details=True, requires_alternation=True),
    {
        "too_long": Refusal(
            400,
            body=b'{"error":{"code":400,"message":"Provider returned error","metadata":{"provider_name":'
            b'"X","raw":"{\\"message\\":\\"maximum context length is 8192 tokens\\"}"}}}',
        ),
        "filtered": Refusal(403, "x requires moderation; your input was flagged", code="403"),
    },
)
TOGETHER = OpenAIDialect(
    "/together/v1",
    Quirks(
        unsupported=frozenset({"max_completion_tokens"}),
        reasoning="reasoning",
        usage="last",
        stops={"end": "eos"},
        requires_alternation=True,
    ),
    {"too_long": Refusal(422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193.")},
)
DEEPINFRA.key_path = "/deepinfra/v1/me"
OPENROUTER.key_path = "/openrouter/api/v1/key"

AZURE = OpenAIDialect(
    "/azure",
    Quirks(bearer=False, accepts_prefill=True),  # OpenAI's rules
    {
        "filtered": Refusal(
            400,
            body=b'{"error":{"message":"The response was filtered","code":"content_filter","status":400,'
            b'"innererror":{"code":"ResponsibleAIPolicyViolation"}}}',
        ),
        "no_model": Refusal(
            404, "The API deployment for this resource does not exist", code="DeploymentNotFound"
        ),
    },
    (
        "/openai/v1/chat/completions",
        "/openai/v1/responses",
        "/openai/deployments/{deployment}/chat/completions",
    ),
)
AZURE.models_route = "/openai/v1/models"

# Copilot's proxy is reported to refuse a conversation that ends with the assistant.
COPILOT = OpenAIDialect(
    "/copilot",
    Quirks(
        unsupported=frozenset({"max_completion_tokens"}),
        reasoning="reasoning_text",
        headers=("editor-version", "copilot-integration-id", "x-initiator"),
    ),
    {
        "too_long": Refusal(
            400,
            "prompt token count of 130000 exceeds the limit of 128000",
            code="model_max_prompt_tokens_exceeded",
        )
    },
)

# Local servers (llama.cpp, vLLM, LM Studio) use the chat template of their model.
CUSTOM = OpenAIDialect("/custom/v1", Quirks(requires_alternation=True))

DIALECTS: Mapping[str, Dialect] = {
    "openai": OpenAIDialect(),
    "custom": CUSTOM,
    "anthropic": AnthropicDialect(),
    "mistral": MISTRAL,
    "groq": GROQ,
    "xai": XAI,
    "deepinfra": DEEPINFRA,
    "cerebras": CEREBRAS,
    "openrouter": OPENROUTER,
    "together": TOGETHER,
    "azure": AZURE,
    "bedrock": BedrockDialect(),
    "cohere": CohereDialect(),
    "copilot": COPILOT,
    "google": GOOGLE,
    "vertex": VERTEX,
}
"""The dialects by the names for ``FakeModels.at``."""
