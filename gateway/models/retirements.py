"""Retirement dates of models, as their vendors announced them.

The price data does not hold them. Each provider has its own dates: Bedrock and Azure keep a model longer
than its vendor does. The vendors publish them on these pages. Dates were compared with public model data in
November 2026; those that it does not hold are unconfirmed.

- platform.claude.com/docs/en/about-claude/model-deprecations
- developers.openai.com/api/docs/deprecations
- ai.google.dev/gemini-api/docs/deprecations
- docs.x.ai/developers/migration
- console.groq.com/docs/deprecations
- docs.mistral.ai/models
- docs.cohere.com/docs/deprecations
- inference-docs.cerebras.ai/support/deprecation
- docs.together.ai/docs/deprecations
- docs.aws.amazon.com/bedrock/latest/userguide/model-lifecycle.html
- learn.microsoft.com/azure/ai-foundry/openai/concepts/model-retirements
- docs.github.com/copilot/reference/ai-models/supported-models
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Final

_GONE: Final = "2026-11-22"
"""Day for models that a provider no longer listed on it and without an announced date."""

_RETIREMENTS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "anthropic": {
        "2024-11-06": (r"claude-1\b.*", r"claude-v1.*", r"claude-instant.*"),
        "2025-07-21": (r"claude-2\b.*", "claude-3-sonnet"),
        "2025-10-28": ("claude-3-5-sonnet",),
        "2026-01-05": ("claude-3-opus",),
        "2026-02-19": ("claude-3-7-sonnet", "claude-3-5-haiku"),
        "2026-04-20": ("claude-3-haiku",),
        "2026-06-15": (r"claude-(opus|sonnet)-4(-0)?",),
        "2026-06-30": ("claude-mythos-preview",),
        "2026-08-05": ("claude-opus-4-1",),
        "2026-11-30": ("claude-sonnet-4-5",),
    },
    "openai": {
        "2024-01-04": (r"(text-)?(ada|babbage|curie|davinci)(-00[13])?", "text-davinci-002"),
        "2024-09-13": (r"gpt-3\.5(-turbo)?-0(301|613)", r"gpt-3\.5-turbo-16k.*"),
        "2024-12-06": (r"gpt-4(-1106)?-vision-preview",),
        "2025-06-06": (r"gpt-4-32k.*",),
        "2025-07-14": (r"gpt-4\.5-preview",),
        "2025-07-28": ("o1-preview",),
        "2025-10-27": ("o1-mini",),
        "2026-02-12": ("codex-mini", "codex-mini-latest"),
        "2026-02-17": ("chatgpt-4o-latest",),
        "2026-03-26": ("gpt-4-0125-preview", "gpt-4-turbo-preview", "gpt-4-0314"),
        "2026-05-07": (r"gpt-4o(-mini)?-audio-preview",),
        "2026-07-23": (
            r"gpt-5-codex|gpt-5\.1-codex(-mini|-max)?|gpt-5\.2-codex",
            "computer-use-preview",
            r"gpt-5(\.1)?-chat-latest",
            r"gpt-4o(-mini)?-search-preview",
        ),
        "2026-08-10": (r"gpt-5\.[23]-chat-latest",),
        "2026-09-28": (r"gpt-3\.5-turbo-(1106|instruct)", "babbage-002", "davinci-002"),
        "2026-10-23": (
            r"gpt-3\.5-turbo(-0125)?",
            r"gpt-4(-0613|-1106-preview|-turbo)?",
            "gpt-4o-2024-05-13",
            r"gpt-4\.1-nano",
            r"o1(-pro)?",
            "o3-mini",
            "o4-mini",
        ),
        "2026-12-11": (r"gpt-5(-mini|-nano|-pro)?", r"o3(-pro)?"),
        "2027-01-14": (r"gpt-4\.1(-mini)?", r"gpt-4o(-mini)?"),
        "2027-01-20": ("gpt-audio-mini",),
        "2027-04-01": (r"gpt-5\.1", r"gpt-5\.4-nano"),
    },
    "google": {
        "2025-02-15": (r"gemini-1\.0-.*", "gemini-pro"),
        "2025-09-29": (r"gemini-1\.5-.*", r"gemini-(flash|pro)-1\.5.*"),
        "2025-12-02": (r"gemini-2\.5-(pro|flash)-preview.*",),
        "2026-03-09": ("gemini-3-pro-preview",),
        "2026-06-01": (r"gemini-2\.0-flash(-lite)?(-001)?",),
        "2026-06-25": (r"gemini-3-pro-image-preview", r"gemini-3\.1-flash-image-preview"),
        "2026-12-01": (r"gemini-2\.5-(pro|flash)",),
        "2027-05-07": (r"gemini-3\.1-flash-lite",),
        _GONE: (r"gemma-2-.*",),
    },
    "vertex": {
        "2025-09-29": (r"gemini-1\..*", "gemini-pro", r"gemini-(flash|pro)-1\.5.*"),
        "2025-12-02": (r"gemini-2\.5-(pro|flash)-preview.*",),
        "2026-03-26": ("gemini-3-pro-preview",),
        "2026-06-01": (r"gemini-2\.0-flash.*",),
        "2026-10-20": (r"gemini-2\.5-(pro|flash|flash-lite)",),
        _GONE: (r"gemma-2-.*",),
    },
    "xai": {
        "2026-05-15": (
            r"grok-4(-1)?-fast-(non-)?reasoning",
            "grok-4-0709",
            "grok-code-fast-1",
            "grok-3",
        ),
        _GONE: (r"grok-(1|2|beta|vision).*", r"grok-3-.*"),
    },
    "groq": {
        "2025-03-20": ("mixtral-8x7b-32768",),
        "2026-08-16": (r"llama-3\.1-8b-instant", r"llama-3\.3-70b-versatile"),
        _GONE: (
            r"gemma.*",
            r"llama2-.*|llama3-.*",
            r"llama-3\.1-(70b|405b)-.*|llama-3\.2-.*|llama-3\.3-70b-specdec",
            r"meta-llama/llama-4-.*",
            r"deepseek-r1-distill-.*|mistral-saba-24b|moonshotai/kimi-k2-.*|qwen/qwen3-32b",
        ),
    },
    "mistral": {
        "2025-03-30": (r"(open-)?mi(stral|xtral)-(7b|8x7b|8x22b).*", "mistral-tiny"),
        "2025-06-16": ("mistral-medium-2312",),
        "2025-11-30": ("codestral-2501",),
        "2025-12-31": (r"pixtral-12b.*",),
        "2026-05-31": ("mistral-large-2411", r"pixtral-large.*"),
        _GONE: (
            r"codestral|devstral-.*(2505|2507|2512)|devstral-small.*|magistral-(small|medium)|mistral-(large|saba)",
            r"ministral-[38]b(-2410)?|mistral-medium-3-1|mistral-nemo(:free)?|mistral-small-(24b|3\.[12]).*",
        ),
    },
    "cohere": {
        "2025-09-15": (r"command(-light|-nightly)?", r"command-r(-03-2024)?", r"command-r-plus(-04-2024)?"),
        _GONE: (r"c4ai-aya-expanse-8b",),
    },
    "cerebras": {
        "2025-11-05": ("qwen-3-coder-480b",),
        "2026-02-16": ("qwen-3-32b", r"llama-3\.3-70b"),
        "2026-05-27": (r"llama3\.1-.*", "qwen-3-235b-a22b-instruct-2507"),
    },
    "together": {
        "2024-08-22": (r"deepseek-ai/deepseek-coder-33b-instruct",),
        "2025-08-28": (r"meta-llama/llama-3-8b-chat-hf", r"qwen/qwen2-.*"),
        "2025-12-23": (r"meta-llama/meta-llama-3-70b-instruct-turbo",),
        "2026-02-06": (r"meta-llama/llama-4-scout-.*",),
        "2026-03-06": (r"meta-llama/meta-llama-3\.1-.*",),
        "2026-04-16": (r"mistralai/mi[sx]tral-.*",),
        "2026-10-22": (r"meta-llama/llama-3\.3-70b-instruct-turbo",),
        "2026-11-06": (r"minimaxai/minimax-m3", r"thinkingmachines/inkling", r"qwen/qwen3\.8-2\.4t-a95b"),
        _GONE: (
            r"(togethercomputer|lmsys|codellama|undi95|wizardlm|teknium|openchat|open-orca|zero-one-ai|allenai)/.*",
            r"(austism|gryphe|nexusflow|garage-baind|snorkelai|upstage)/.*|microsoft/(phi-2|wizardlm.*)",
            r"qwen/qwen1\.5-.*|google/gemma-[27]b|meta-llama/(meta-)?llama-[23]-.*|meta-llama/llama-4-maverick.*",
            r"meta-llama/meta-llama-3\.3-.*",
        ),
    },
    "azure": {
        "2025-07-28": ("o1-preview",),
        "2025-08-30": (r"phi-3-.*",),
        "2025-10-27": ("o1-mini",),
        "2026-11-19": (r"o1|o3(-mini|-pro)?|o4-mini",),
        _GONE: (r"curie|ada|gpt-35-.*|phi-3\.5-.*|wizardlm-2-.*|mai-ds-r1.*",),
    },
    "bedrock": {
        "2026-04-28": (r"([a-z-]+\.)?anthropic\.claude-(v2|instant|3-7).*",),
        "2026-05-31": (r"([a-z-]+\.)?anthropic\.claude-opus-4-20250514.*",),
        "2026-07-07": (r"([a-z-]+\.)?meta\.llama3-(1-405b|2)-.*",),
        "2026-10-14": (r"([a-z-]+\.)?anthropic\.claude-sonnet-4-20250514.*",),
        "2027-01-08": (r"([a-z-]+\.)?anthropic\.claude-opus-4-1-.*",),
        "2027-04-08": (r"([a-z-]+\.)?anthropic\.claude-sonnet-4-5-.*",),
        _GONE: (r"([a-z-]+\.)?anthropic\.claude-3-.*", r"amazon\.titan-text-.*"),
    },
    "copilot": {
        "2026-02-17": ("gpt-5", r"claude-opus-4\.1"),
        "2026-04-15": (r"gpt-5\.1.*",),
        "2026-05-01": ("claude-sonnet-4",),
        "2026-05-15": ("grok-code-fast-1",),
        "2026-06-01": (r"gpt-4\.1",),
        "2026-09-01": (r"claude-sonnet-4\.6",),
        "2026-10-19": (r"gpt-5-mini|gpt-5\.4|gpt-5\.4-mini|gpt-5\.5|gemini-3\.7-flash|grok-4\.5",),
        "2026-11-16": (r"claude-opus-4\.8(-fast)?|claude-opus-5|gpt-5\.6-terra",),
    },
}
"""Provider, day, and patterns that match whole ids of models without their date."""

_SUFFIX: Final = re.compile(r"(-latest|[-@]20\d\d-?\d\d-?\d\d)$")


def retirement(provider: str, model: str) -> date | None:
    """Return the day on which a provider stops serving a model; None if none is announced.

    ``provider`` is a provider's id, or the ``like`` of a configured one. A dated id (``claude-
    sonnet-4-5-20250929``) has the date of its undated name unless it has one of its own.
    """
    model = model.lower()
    for name in (model, _SUFFIX.sub("", model)):
        for day, ids in _RETIREMENTS.get(provider, {}).items():
            if re.fullmatch("|".join(ids), name):
                return date.fromisoformat(day)
    return None
