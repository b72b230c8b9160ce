"""Pi, run by a shell: each text is one call of ``pi``, and the shell's prompt is its end."""

from __future__ import annotations

from msgspec import structs

from plugins.coding_agents.adapters import shell
from plugins.coding_agents.adapters.contract import Adapter, AgentRequest, Cursor, Launch, Lines, Reading

_VARIABLES = ("ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GROQ_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY")


def launch(request: AgentRequest) -> Launch:
    """Return the start of the shell, with the key of the model service."""
    plain = shell.launch(structs.replace(request, args=()))
    return structs.replace(
        plain, env={**plain.env, **({"OPENAI_API_KEY": request.key} if request.key else {})}
    )


def read(lines: Lines, cursor: Cursor) -> Reading:
    """Return ready at the shell's prompt. Questions of the program itself are left to the user."""
    reading = shell.read(lines, cursor)
    if reading.question is None:
        return reading
    return structs.replace(reading, question=structs.replace(reading.question, yes=(), no=()))


ADAPTER = Adapter(
    name="pi",
    title="Pi",
    binary="bash",
    program="pi",
    install="npm install -g @mariozechner/pi-coding-agent",
    launch=launch,
    read=read,
    answer=shell.answer,
    aliases=("pi-ai", "piai", "pi-coding-agent", "picodingagent"),
    known_versions=("0.73",),
    variables=_VARIABLES,
    key="OPENAI_API_KEY",
    hosts=(
        *("api.anthropic.com", "api.deepseek.com", "api.groq.com", "api.mistral.ai", "api.openai.com"),
        *("api.x.ai", "generativelanguage.googleapis.com", "openrouter.ai"),
    ),
    min_node=20,
    settle_ms=200,
    resubmits=0,
    command="pi --print",
)
