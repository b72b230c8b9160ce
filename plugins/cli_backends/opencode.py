"""OpenCode, which speaks the Agent Client Protocol and routes to many providers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from plugins.cli_backends.acp import AcpTalk
from plugins.cli_backends.cli import Cli

CONFIG = "OPENCODE_CONFIG_CONTENT"
"""Settings that come after those of its files, so that a workspace cannot allow itself anything."""

_LOOKING = ("glob", "grep", "list", "lsp", "question", "read", "skill", "todoread", "todowrite")
_RULES = {"*": "ask", **dict.fromkeys(_LOOKING, "allow"), "external_directory": "ask"}


class OpenCodeTalk(AcpTalk):
    """One dispatch."""

    def arguments(self) -> list[str]:
        """The protocol on its pipes."""
        return ["acp"]


def adjusted(model: str, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Its settings: those given, the model, and that it asks before it does anything but look."""
    given: dict[str, Any] = {}
    try:
        known: object = msgspec.json.decode(environment.get(CONFIG, "{}"))
        given = cast("dict[str, Any]", known) if isinstance(known, dict) else {}
    except msgspec.DecodeError:
        given = {}
    whole = {"permission": _RULES, "autoupdate": False, "share": "disabled", **given}
    if model:
        whole["model"] = model
    return {CONFIG: msgspec.json.encode(whole).decode()}


CLI = Cli(
    name="opencode",
    title="OpenCode",
    binary="opencode",
    install="npm install -g opencode-ai",
    key="OPENCODE_API_KEY",
    variables=(
        "ANTHROPIC_API_KEY",
        "DEEPSEEK_API_KEY",
        "GEMINI_API_KEY",
        "GROQ_API_KEY",
        "MISTRAL_API_KEY",
        "OPENAI_API_KEY",
        "OPENCODE_API_KEY",
        "OPENROUTER_API_KEY",
        "XAI_API_KEY",
        CONFIG,
    ),
    url="",
    fixed={"OPENCODE_DISABLE_AUTOUPDATE": "1"},
    adjusted=adjusted,
    talk=OpenCodeTalk,
)
