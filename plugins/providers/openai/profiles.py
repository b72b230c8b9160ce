"""Profiles of the compatible services: addresses, headers, and differences in requests.

Responses need no profile: the parser knows the fields of all services.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from gateway import AuthMethod, Capabilities, ProviderConfig
from plugins.providers.openai.copilot import HEADERS


class Profile(Struct, frozen=True):
    """One service. If ``base_url`` is empty, the settings must have one.

    - ``key_header``: the header of the key; ``Authorization`` sends it as a bearer token.
    - ``limit``: the parameter for the most output tokens; ``limit_elsewhere``: the same for servers at
      other addresses that are configured as this service. ``default_limit``: its default, for services that
      count it against the limit per minute before the answer, or whose own default is very small.
    - ``without``: parameters that the service refuses.
    - ``id_length``: the required number of letters and digits of a tool call id; 0: any.
    - ``names_results``: a tool result must name the tool.
    - ``answers_results``: an assistant message must follow a tool result before the next user message.
    - ``alternates``: user and assistant must alternate, as in the chat templates of many open models.
    - ``reasoning_apart``: the reported output tokens exclude reasoning tokens.
    - ``deployments``: addresses have Azure's form; a model is a deployment.
    - ``seed``: the parameter for the seed.
    - ``refuses_stop``: a pattern of the models that refuse stop sequences.
    - ``responses``: a pattern of the models that keep their reasoning between tool calls only in the
      Responses protocol.
    - ``summarizes``: it summarizes hidden reasoning on request, in the Responses protocol.
    - ``unreasoned_tools``: a pattern of the models that accept tools only with reasoning disabled.
    - ``reasoning``: the field of reasoning in a request, for services that accept a model's own one back.
    - ``has_costs``: the usage has the cost in US dollars.
    - ``signs_calls``: the calls of newer Gemini models have signatures, which they require back.
    - ``key_path``: a path relative to ``base_url`` that needs a valid key, if the model list is public.
    """

    id: str
    name: str
    base_url: str = ""
    auth_method: AuthMethod = "api_key"
    capabilities: Capabilities = Capabilities(reasoning=True)
    key_header: str = "Authorization"
    headers: Mapping[str, str] = {}
    limit: str = "max_tokens"
    default_limit: int | None = None
    limit_elsewhere: str = ""
    without: frozenset[str] = frozenset()
    id_length: int = 0
    names_results: bool = False
    answers_results: bool = False
    alternates: bool = False
    reasoning_apart: bool = False
    deployments: bool = False
    key_path: str = ""
    seed: str = "seed"
    refuses_stop: str = ""
    responses: str = ""
    summarizes: bool = False
    unreasoned_tools: str = ""
    reasoning: str = ""
    has_costs: bool = False
    signs_calls: bool = False


_GPT_WITH_TOOLS = r"(^|/)gpt-(5\.[6-9]|[6-9])"
"""Models that accept tools in Chat Completions only without reasoning."""

CUSTOM = Profile("custom", "OpenAI-compatible", alternates=True, reasoning="reasoning_content")

_PROFILES = (
    Profile(
        "openai",
        "OpenAI",
        "https://api.openai.com/v1",
        limit="max_completion_tokens",
        limit_elsewhere="max_tokens",
        responses=_GPT_WITH_TOOLS,
        summarizes=True,
    ),
    Profile(
        "mistral",
        "Mistral",
        "https://api.mistral.ai/v1",
        without=frozenset({"stream_options"}),
        id_length=9,
        names_results=True,
        answers_results=True,
        seed="random_seed",
    ),
    Profile(
        "groq", "Groq", "https://api.groq.com/openai/v1", limit="max_completion_tokens", default_limit=4_096
    ),
    Profile(
        "xai",
        "xAI",
        "https://api.x.ai/v1",
        limit="max_completion_tokens",
        reasoning_apart=True,
        refuses_stop=r"^(?!.*non-reasoning)grok-(3-mini|[4-9])",
        responses=r"^(?!.*non-reasoning)grok-[4-9]",
    ),
    Profile(
        "deepinfra",
        "DeepInfra",
        "https://api.deepinfra.com/v1/openai",
        alternates=True,
        reasoning="reasoning_content",
        key_path="../me",
    ),
    Profile(
        "cerebras",
        "Cerebras",
        "https://api.cerebras.ai/v1",
        capabilities=Capabilities(images=False, reasoning=True),
        limit="max_completion_tokens",
        default_limit=8_192,
        without=frozenset({"stream_options"}),
        reasoning="reasoning",
    ),
    Profile(
        "openrouter",
        "OpenRouter",
        "https://openrouter.ai/api/v1",
        headers={"X-Title": "Trunkline"},
        alternates=True,
        reasoning="reasoning",
        has_costs=True,
        signs_calls=True,
        key_path="key",
    ),
    Profile("together", "Together AI", "https://api.together.xyz/v1", alternates=True, reasoning="reasoning"),
    Profile(
        "azure",
        "Azure OpenAI",
        key_header="api-key",
        limit="max_completion_tokens",
        deployments=True,
        responses=_GPT_WITH_TOOLS,
        summarizes=True,
    ),
    Profile(
        "copilot",
        "GitHub Copilot",
        "https://api.githubcopilot.com",
        auth_method="oauth",
        headers=HEADERS,
        reasoning="reasoning_text",
    ),
    CUSTOM,
)
_BY_ID = {profile.id: profile for profile in _PROFILES}


def profile_of(config: ProviderConfig) -> Profile:
    """Return the profile of a service, or the profile for any compatible one."""
    profile = _BY_ID.get(config.like or config.id, CUSTOM)
    if profile.deployments and config.api_version:
        # The older addresses of Azure have only Chat Completions.
        return replace(profile, responses="", unreasoned_tools=profile.responses)
    return profile
