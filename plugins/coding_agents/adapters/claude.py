"""Claude Code, at its terminal.

Its rules are those words that did not change between 2.1.197 and 2.1.330: the question, the first and the
last choice, and the hint for shortcuts. The prompt glyph marks the input line and the cursor of menus.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plugins.coding_agents.adapters.contract import (
    Adapter,
    AgentRequest,
    Cursor,
    Fact,
    HookCommand,
    Launch,
    Lines,
    LoginPrompt,
    Reading,
    ScreenQuestion,
    digest_of,
    fields,
    menu_at_end,
    said,
    snippet,
)

_MODES = {"readonly": "plan", "standard": "default", "permissive": "acceptEdits", "autonomous": "auto"}
"""Without a mode the program decides for itself what is risky ("auto mode")."""
_GLYPH = "\u276f"
_RULE = re.compile(r"^\u2500{20,}$")
_FRAME = re.compile(r"^\s*[\u2500\u254c]{20,}$")
_QUESTION = re.compile(
    r"Do you want to (?:proceed|create .+|overwrite .+|make this edit to .+"
    r"|allow Claude to fetch this content)\?"
)
_LAST_CHOICES = ("No", "No, and tell Claude what to do differently (esc)")
_TOOLS = {
    "Bash command": "Bash",
    "Create file": "Write",
    "Overwrite file": "Write",
    "Edit file": "Edit",
    "Fetch": "WebFetch",
}
_MODE_ON = re.compile(
    r"^\s*(?:\u23f5\u23f5|\u23f8) (?:(?:accept edits|plan mode|auto mode) on\b"
    r"|manual mode on(?: \u00b7 \u2190 for agents)?$)"
)
"""With a status line the row of the default mode has no hint for shortcuts."""
_DONE = re.compile(r"^\u273b \w+ for (?:\d+[hms] ?)+(?:$| \u00b7)|^\s*\u23bf\s+Interrupted \u00b7")
_NO_LOGIN = re.compile(
    r"^\s{20,}Not logged in \u00b7 run /login$|^\s*\u23bf\s+Not logged in \u00b7 Please run /login$"
)
"""The answer to a text without a login, and a notice at the right edge."""
_STEP = re.compile(r"^\u25cf (\w+\(.*\)?)$|^\s*\u23bf\s+(\$ .*)$")
_URL = re.compile(r"https://(?:claude\.ai|console\.anthropic\.com|platform\.claude\.com)/\S+")


_EVENTS = (
    *("SessionStart", "UserPromptSubmit", "PreToolUse", "PermissionRequest", "PostToolUse"),
    *("PostToolUseFailure", "Stop"),
)
_WITH_STATUS_LINE = (2, 1, 330)
"""The first version that is known to show its mode beside a status line; 2.1.197 shows no hint then."""
_MOST_USD = 1_000_000
_DETAILS = ("command", "file_path", "notebook_path", "url", "pattern", "query", "prompt")
"""The input of a tool that a user decides about."""


def launch(request: AgentRequest) -> Launch:
    """Return the start: onboarding and trust are settled, and no settings of the folder or home are loaded.

    They could allow tools and run hooks: others wrote the folder, and commands of earlier sessions the home.
    """
    argv = (
        *(("--model", request.model) if request.model else ()),
        *("--permission-mode", _MODES[request.preset], "--setting-sources", ""),
        *(("--session-id", request.session_id) if request.session_id and not request.resume else ()),
        *(("--resume", request.resume) if request.resume else ()),
        *(("--settings", json.dumps(_hooks(request.hook, request.version))) if request.hook else ()),
        *request.args,
    )
    env = {
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        **({"ANTHROPIC_API_KEY": request.key} if request.key else {}),
        **({"ANTHROPIC_BASE_URL": request.base_url} if request.base_url else {}),
    }
    known = {"customApiKeyResponses": {"approved": [request.key[-20:]]}} if request.key else {}
    trusted = {"projects": {request.workdir: {"hasTrustDialogAccepted": True}}}
    return Launch(argv, env, {".claude.json": {"hasCompletedOnboarding": True, **trusted, **known}})


def read(lines: Lines, cursor: Cursor) -> Reading:
    """Return the meaning of a screen."""
    box = _composer(lines)
    if box is None:
        return _blocked(lines, cursor)
    top, bottom = box
    footer = "\n".join(lines[bottom + 1 :])
    at_start = cursor[0] == top + 1 and cursor[1] <= 2
    typed = "" if at_start else "\n".join(lines[top + 1 : bottom]).removeprefix(_GLYPH).strip()
    if "esc to interrupt" in footer:
        return Reading("busy", input=typed, activity=_step(lines[:top]))
    content = [line for line in lines[:top] if line and "\u00b7 /effort" not in line]
    if "Not logged in \u00b7 Run /login" in footer or (content and _NO_LOGIN.match(content[-1])):
        text = "Claude Code is not logged in: run /login at its terminal, or set an API key"
        return Reading("login", login=LoginPrompt("cli_auth", text, snippet=snippet(lines)))
    hinted = "? for shortcuts" in footer or any(map(_MODE_ON.match, lines[bottom + 1 :]))
    if not hinted or not at_start:
        return Reading(input=typed)
    return Reading("ready", input="", done=bool(content and _DONE.match(content[-1])))


def answer(lines: Lines) -> str:
    """Return the text between the user's last message and the input line."""
    box = _composer(lines)
    if box is None:
        return ""
    above = lines[: box[0]]
    starts = [at for at, line in enumerate(above) if line.startswith(_GLYPH)]
    below = above[starts[-1] + 1 :] if starts else ()
    kept = [
        line.removeprefix("\u25cf ")
        for line in below
        if not _DONE.match(line) and "\u00b7 /effort" not in line
    ]
    return "\n".join(kept).strip()


def logged_in(home: str, environ: Mapping[str, str]) -> bool | None:
    """Return whether there is a key or a stored login."""
    if environ.get("ANTHROPIC_API_KEY") or environ.get("CLAUDE_CODE_OAUTH_TOKEN"):
        return True
    if (Path(home) / ".claude" / ".credentials.json").is_file():
        return True
    try:
        return "oauthAccount" in json.loads((Path(home) / ".claude.json").read_text())
    except (OSError, ValueError):
        return False


def hook(report: Mapping[str, Any]) -> Fact | None:
    """Return the fact in a report of a hook, or of the status line, which is the only source of the costs."""
    session, event = said(report, "session_id"), said(report, "hook_event_name")
    if event not in _EVENTS:
        cost = fields(report, "cost").get("total_cost_usd")
        if not isinstance(cost, int | float) or not 0 <= cost < _MOST_USD:
            return None
        return Fact(session=session, cost_usd=float(cost))
    if event == "SessionStart":
        return Fact(session=session)
    if event == "Stop":
        return Fact("done", session, output=said(report, "last_assistant_message"))
    if event not in ("PreToolUse", "PermissionRequest"):
        return Fact("busy", session)
    given = fields(report, "tool_input")
    return Fact(
        "asks" if event == "PermissionRequest" else "busy",
        session,
        tool=said(report, "tool_name"),
        detail=said(given, *_DETAILS),
        note=said(given, "description"),
        folder=said(report, "cwd"),
    )


def _hooks(command: HookCommand, version: str) -> Mapping[str, Any]:
    """Return settings with the hooks. As an argument they bind this session only."""
    run = {"type": "command", "command": command.line}
    numbers = tuple(int(part) for part in version.split(".") if part.isdecimal())
    return {
        "hooks": {event: [{"hooks": [{**run, "timeout": 5}]}] for event in _EVENTS},
        **({"statusLine": run} if numbers >= _WITH_STATUS_LINE else {}),
    }


def _composer(lines: Lines) -> tuple[int, int] | None:
    """Return the rows of the two rules around the input line, if it is the last box of the screen."""
    rules = [at for at, line in enumerate(lines) if _RULE.match(line)]
    if len(rules) < 2 or not lines[rules[-2] + 1].startswith(_GLYPH):
        return None
    return rules[-2], rules[-1]


def _step(above: Lines) -> str:
    for line in reversed(above):
        if match := _STEP.match(line):
            return (match[1] or match[2]).strip()
        if line.startswith(_GLYPH):
            return ""
    return ""


def _blocked(lines: Lines, cursor: Cursor) -> Reading:
    text = "\n".join(lines)
    if "Unable to connect to Anthropic services" in text:
        return Reading("exit")
    if "Select login method:" in text or "Paste code here if prompted" in text:
        url = _URL.search(text)
        prompt = LoginPrompt(
            "oauth_browser" if url else "cli_auth",
            "log in at the terminal of Claude Code, or set an API key",
            url=url[0] if url else "",
            snippet=snippet(lines),
        )
        return Reading("login", login=prompt)
    question = _permission(lines, cursor) or _trust(lines, cursor)
    return Reading("question", question) if question else Reading()


def _permission(lines: Lines, cursor: Cursor) -> ScreenQuestion | None:
    menu = menu_at_end(lines, cursor, _GLYPH, footer=r"Esc to cancel(?: \u00b7 .*)?")
    if not menu or menu.options[0] != "Yes" or menu.options[-1] not in _LAST_CHOICES or menu.start < 2:
        return None
    asked = lines[menu.start - 1].strip()
    if not _QUESTION.fullmatch(asked):
        return None
    above = lines[: menu.start - 1]
    rules = [at for at, line in enumerate(above) if _RULE.match(line)]
    block = [line for line in above[rules[-1] + 1 if rules else 0 :] if line]
    title = block[0].strip() if rules and block else ""
    frames = [at for at, line in enumerate(block) if _FRAME.match(line)]
    body = block[frames[0] + 1 : frames[-1]] if len(frames) > 1 else block[1:]
    # A file is named above the frame, a command is inside it.
    tool = _TOOLS.get(title, title)
    detail = block[1].strip() if tool in ("Write", "Edit") and len(block) > 1 else ""
    detail = detail or "\n".join(line.strip() for line in body)
    prompt = f"{title}: {detail}\n{asked}" if title else asked
    digest = digest_of("permission", "\n".join((*block, asked, *menu.options)))
    # Without the rule above it, the beginning of the command is not on the screen.
    yes = ("1",) if rules else ()
    return ScreenQuestion(
        "permission", prompt, digest, tool, detail, options=menu.options, yes=yes, no=("escape",)
    )


def _trust(lines: Lines, cursor: Cursor) -> ScreenQuestion | None:
    """Return the question about the folder. The order of its choices differs, so only No has a key."""
    shown = [line.strip() for line in lines if line.strip()]
    text = " ".join(" ".join(shown).split())
    found = re.search(
        r"Accessing workspace: (\S+) Quick safety check: Is this a project you (?:created|trust)", text
    )
    if (
        not found
        or shown[-1] != "Enter to confirm \u00b7 Esc to cancel"
        or "Yes, I trust this folder" not in text
    ):
        return None
    prompt = f"Do you trust the files in {found[1]}?"
    return ScreenQuestion(
        "permission", prompt, digest_of("permission", prompt), "trust", folder=found[1], no=("escape",)
    )


ADAPTER = Adapter(
    name="claude",
    title="Claude Code",
    binary="claude",
    install="npm install -g @anthropic-ai/claude-code",
    launch=launch,
    read=read,
    answer=answer,
    logged_in=logged_in,
    hook=hook,
    takes_session_id=True,
    aliases=("claude-code", "claudecode", "anthropic"),
    variables=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "CLAUDE_CODE_OAUTH_TOKEN"),
    key="ANTHROPIC_API_KEY",
    url="ANTHROPIC_BASE_URL",
    service="https://api.anthropic.com",
    instructions=("CLAUDE.md", "AGENTS.md"),
    hosts=("api.anthropic.com", "claude.ai", "console.anthropic.com", "platform.claude.com"),
    min_node=22,
    node_limits={18: "2.1.197", 20: "2.1.197"},
    known_versions=("2.1.197", "2.1.330"),
    settle_ms=3000,
    task_delay_ms=800,
    pasted=r"\[Pasted text #\d+(?: \+\d+ lines)?\]",
    shields="!#&",
)
