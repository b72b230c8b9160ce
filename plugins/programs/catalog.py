"""The coding programs that plugins know, with the facts that do not depend on how a plugin runs them."""

from __future__ import annotations

from msgspec import Struct


class Program(Struct, frozen=True, kw_only=True):
    """A coding program.

    ``binary`` is its usual name and ``install`` the command that installs it. ``key`` and ``url`` are the
    variables for its credential and for the address of its model service, if it has one. ``variables`` are
    those that it gets of the gateway's environment besides the shared ones.
    """

    title: str
    binary: str
    install: str
    key: str
    url: str = ""
    variables: tuple[str, ...] = ()


CLAUDE_CODE = Program(
    title="Claude Code",
    binary="claude",
    install="npm install -g @anthropic-ai/claude-code",
    key="ANTHROPIC_API_KEY",
    url="ANTHROPIC_BASE_URL",
    variables=(
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "ANTHROPIC_BASE_URL",
        "CLAUDE_CODE_OAUTH_TOKEN",
        "CLAUDE_CONFIG_DIR",
    ),
)
CODEX = Program(
    title="Codex",
    binary="codex",
    install="npm install -g @openai/codex",
    key="OPENAI_API_KEY",
    url="OPENAI_BASE_URL",
    variables=("OPENAI_API_KEY", "OPENAI_BASE_URL", "CODEX_HOME"),
)
GEMINI = Program(
    title="Gemini CLI",
    binary="gemini",
    install="npm install -g @google/gemini-cli",
    key="GEMINI_API_KEY",
    url="GOOGLE_GEMINI_BASE_URL",
    variables=(
        "GEMINI_API_KEY",
        "GEMINI_CLI_HOME",
        "GOOGLE_API_KEY",
        "GOOGLE_CLOUD_LOCATION",
        "GOOGLE_CLOUD_PROJECT",
        "GOOGLE_GEMINI_BASE_URL",
        "GOOGLE_GENAI_USE_VERTEXAI",
    ),
)
OPENCODE = Program(
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
        "OPENCODE_CONFIG_CONTENT",
        "OPENROUTER_API_KEY",
        "XAI_API_KEY",
    ),
)
