"""OpenCode, at its terminal.

Its permission menu has no keys but arrows and Enter, and begins at "Allow once". "Allow always" asks again,
so Enter does not grant it even if a user has moved the selection at the terminal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from plugins.coding_agents.adapters.contract import (
    LAST,
    Adapter,
    AgentRequest,
    Cursor,
    Launch,
    Lines,
    Preset,
    Reading,
    ScreenQuestion,
    digest_of,
)

CONFIG = "OPENCODE_CONFIG_CONTENT"
"""Settings that override those in files, so that a workspace cannot allow itself anything."""
_BAR = re.compile(r"^\s*\u2503 ?")
_BASE = re.compile(r"^\s*\u2579\u2580{20,}$")
_EMPTY = re.compile(r'^(?:Ask anything\u2026 ".*")?$')
_DONE = re.compile(r"^\s+\u25a3 {2}.+ \u00b7 (?:\d+h )?(?:\d+m )?[\d.]+(?:ms|s)$")
_CHOICES = re.compile(r"^Allow once {2,}Allow always {2,}Reject {2,}.*\benter confirm$")
_ASKED = "\u25b3 Permission required"
_SHELL = "# Shell command"
_READING = ("glob", "grep", "list", "lsp", "question", "read", "skill", "todoread", "todowrite")


def launch(request: AgentRequest) -> Launch:
    """Return the start with permissions of the preset, without settings of the folder."""
    given: dict[str, Any] = {}
    try:
        decoded: object = json.loads(request.environ.get(CONFIG, "{}"))
        given = cast("dict[str, Any]", decoded) if isinstance(decoded, dict) else {}
    except ValueError:
        given = {}
    whole: dict[str, Any] = {
        "autoupdate": False,
        "share": "disabled",
        "permission": _rules(request.preset),
        **given,
    }
    if request.model:
        whole["model"] = request.model
    env = {
        CONFIG: json.dumps(whole),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_PROJECT_CONFIG": "1",
    }
    named = ("--session", request.resume) if request.resume != LAST else ("--continue",)
    resumed = named if request.resume else ()
    return Launch((*resumed, *request.args), env, removed=(".config/opencode", ".opencode"))


def read(lines: Lines, cursor: Cursor) -> Reading:
    """Return the meaning of a screen."""
    box = _composer(lines)
    if box is None:
        question = _permission(lines)
        return Reading("question", question) if question else Reading()
    top, bottom = box
    shown = "\n".join(_BAR.sub("", line).strip() for line in lines[top + 1 : bottom - 2]).strip()
    at_start = cursor == (top + 1, lines[top].index("\u2503") + 3)
    typed = "" if at_start and _EMPTY.match(shown) else shown
    footer = " ".join(lines[bottom + 1 :])
    if "esc interrupt" in footer:
        return Reading("busy", input=typed)
    if typed or not at_start or "ctrl+p commands" not in footer:
        return Reading(input=typed)
    content = [line for line in lines[:top] if line]
    return Reading("ready", input="", done=bool(content and _DONE.match(content[-1])))


def answer(lines: Lines) -> str:
    """Return the text between the user's last message and the input line."""
    box = _composer(lines)
    bars = [at for at in range(box[0]) if lines[at].startswith("  \u2503")] if box else []
    if not box or not bars:
        return ""
    # Output of tools has a bar, too; the user's message is the first block.
    start = next(at for at in range(bars[0], box[0]) if not lines[at].startswith("  \u2503"))
    said = (
        _BAR.sub("", line).strip() for line in lines[start : box[0]] if not line.strip().startswith("\u25a3")
    )
    return "\n".join(said).strip()


def logged_in(home: str, environ: Mapping[str, str]) -> bool | None:
    """Return whether there is a stored login; models without one are free but limited."""
    try:
        stored: Any = json.loads((Path(home) / ".local/share/opencode/auth.json").read_text())
    except (OSError, ValueError):
        stored = None
    return bool(stored) or any(name.endswith("_API_KEY") for name in environ) or CONFIG in environ


def _rules(preset: Preset) -> Mapping[str, str]:
    if preset == "autonomous":
        return {"*": "allow", "external_directory": "ask"}
    rules = {"*": "ask", **dict.fromkeys(_READING, "allow"), "external_directory": "ask"}
    if preset == "readonly":
        return {**rules, "edit": "deny", "bash": "ask"}
    return {**rules, "edit": "allow"} if preset == "permissive" else rules


def _composer(lines: Lines) -> tuple[int, int] | None:
    """Return the first row of the input box and the row of its base."""
    bases = [at for at, line in enumerate(lines) if _BASE.match(line)]
    if not bases:
        return None
    top = bases[-1]
    while top and _BAR.match(lines[top - 1]):
        top -= 1
    return (top, bases[-1]) if bases[-1] - top >= 4 else None


def _permission(lines: Lines) -> ScreenQuestion | None:
    """Return the question in the box that ends the screen; while one is there, the input box is not."""
    rows = [at for at, line in enumerate(lines) if line.strip()]
    end = len(rows)
    start = next((at for at in range(end - 1, -1, -1) if not _BAR.match(lines[rows[at]])), -1) + 1
    block = [text for at in rows[start:end] if (text := _BAR.sub("", lines[at]).strip())]
    if len(block) < 3 or block[0] != _ASKED or not _CHOICES.match(block[-1]):
        return None
    body = block[1:-1]
    # A sign, the tool, and its argument: "% WebFetch https://example.org".
    name, _, rest = body[0].partition(" ")[2].partition(" ")
    is_shell = body[0] == _SHELL and len(body) > 1
    tool = "bash" if is_shell else name.lower()
    detail = "\n".join(body[1:]).removeprefix("$ ") if is_shell else rest
    return ScreenQuestion(
        type="permission",
        prompt=f"{tool}: {detail}",
        digest=digest_of("permission", "\n".join(body)),
        tool=tool,
        detail=detail,
        options=("Allow once", "Allow always", "Reject"),
        yes=("enter",),
        no=("escape",),
    )


ADAPTER = Adapter(
    name="opencode",
    title="OpenCode",
    binary="opencode",
    install="npm install -g opencode-ai",
    launch=launch,
    read=read,
    answer=answer,
    logged_in=logged_in,
    aliases=("open-code", "opencode-ai"),
    variables=(
        *("ANTHROPIC_API_KEY", "DEEPSEEK_API_KEY", "GEMINI_API_KEY", "GROQ_API_KEY", "MISTRAL_API_KEY"),
        *("OPENAI_API_KEY", "OPENCODE_API_KEY", "OPENROUTER_API_KEY", "XAI_API_KEY", CONFIG),
    ),
    key="OPENCODE_API_KEY",
    instructions=("AGENTS.md", "CLAUDE.md"),
    hosts=(
        *("api.anthropic.com", "api.deepseek.com", "api.groq.com", "api.mistral.ai", "api.openai.com"),
        *("api.x.ai", "generativelanguage.googleapis.com", "openrouter.ai", "models.dev", "opencode.ai"),
    ),
    known_versions=("1.18",),
    settle_ms=1000,
    task_delay_ms=300,
    pasted=r"\[Pasted ~\d+ lines\]",
    shields="!",
)
