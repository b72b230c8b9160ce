"""What tells the compatible services apart: addresses, headers, and what each refuses or wants.

Only requests need to differ. Wherever a service puts reasoning and token counts, the parser finds them.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from gateway import AuthMethod, Capabilities, ProviderConfig
from plugins.providers.openai.copilot import HEADERS


class Profile(Struct, frozen=True):
    """One service. Without a ``base_url`` the settings must have one.

    - ``key_header``: where the key stands; in ``Authorization`` it is a bearer token.
    - ``limit``: what the parameter for the longest answer is called, ``limit_elsewhere`` what it is called
      by servers at other addresses that say they are this one.
    - ``without``: parameters that are refused, and so left out.
    - ``id_length``: how many letters and digits a tool call's id must have, if that is fixed.
    - ``names_results``: a tool's result must name the tool.
    - ``answers_results``: the user may not speak right after a tool's result; the assistant has to.
    - ``reasoning_apart``: tokens of reasoning are not in the number of output tokens.
    - ``deployments``: addresses are Azure's; a model is a deployment.
    - ``key_path``: below ``base_url``, what only a right key is answered, where anybody may list the models.
    """

    id: str
    name: str
    base_url: str = ""
    auth_method: AuthMethod = "api_key"
    capabilities: Capabilities = Capabilities(reasoning=True)
    key_header: str = "Authorization"
    headers: Mapping[str, str] = {}
    limit: str = "max_tokens"
    limit_elsewhere: str = ""
    without: frozenset[str] = frozenset()
    id_length: int = 0
    names_results: bool = False
    answers_results: bool = False
    reasoning_apart: bool = False
    deployments: bool = False
    key_path: str = ""


CUSTOM = Profile("custom", "OpenAI-compatible")

_PROFILES = (
    Profile(
        "openai",
        "OpenAI",
        "https://api.openai.com/v1",
        limit="max_completion_tokens",
        limit_elsewhere="max_tokens",
    ),
    Profile(
        "mistral",
        "Mistral",
        "https://api.mistral.ai/v1",
        without=frozenset({"stream_options"}),
        id_length=9,
        names_results=True,
        answers_results=True,
    ),
    Profile("groq", "Groq", "https://api.groq.com/openai/v1", limit="max_completion_tokens"),
    Profile("xai", "xAI", "https://api.x.ai/v1", limit="max_completion_tokens", reasoning_apart=True),
    Profile("deepinfra", "DeepInfra", "https://api.deepinfra.com/v1/openai", key_path="../me"),
    Profile(
        "cerebras",
        "Cerebras",
        "https://api.cerebras.ai/v1",
        capabilities=Capabilities(images=False, reasoning=True),
        limit="max_completion_tokens",
        without=frozenset({"stream_options"}),
    ),
    Profile(
        "openrouter",
        "OpenRouter",
        "https://openrouter.ai/api/v1",
        headers={"X-Title": "Trunkline"},
        key_path="key",
    ),
    Profile("together", "Together AI", "https://api.together.xyz/v1"),
    Profile(
        "azure",
        "Azure OpenAI",
        key_header="api-key",
        limit="max_completion_tokens",
        deployments=True,
    ),
    Profile(
        "copilot",
        "GitHub Copilot",
        "https://api.githubcopilot.com",
        auth_method="oauth",
        headers=HEADERS,
    ),
    CUSTOM,
)
_BY_ID = {profile.id: profile for profile in _PROFILES}


def profile_of(config: ProviderConfig) -> Profile:
    """The profile of a service, or that of any compatible one."""
    return _BY_ID.get(config.like or config.id, CUSTOM)
