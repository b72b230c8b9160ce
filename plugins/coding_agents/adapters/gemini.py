"""Gemini CLI, at its terminal. Its folder stays untrusted: the folder's settings and hooks are not loaded."""

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

_MODES = {"readonly": "plan", "standard": "default", "permissive": "auto_edit", "autonomous": "yolo"}
_READY = "Type your message or @path/to/file"
_TOP, _BOTTOM = re.compile(r"^\u2584{20,}$"), re.compile(r"^\u2580{20,}$")
_INPUT = re.compile(r"^ [>!*] ?")
_BUSY = re.compile(r"^\s*\S .*\(esc to cancel, \d+\w+(?: \d+\w+)*\)")
_QUESTION = re.compile(r"Allow execution of .+\?|Apply this change\?|Do you want to proceed\?")
_TITLE = re.compile(r"^\?\s+(\w+)\s+(.*)$")
_URL = re.compile(r"https://accounts\.google\.com/\S+")
_TOOLS = {"Shell": "run_shell_command", "WriteFile": "write_file", "Edit": "replace", "WebFetch": "web_fetch"}

_EXTENSION = ".gemini/extensions/trunkline"
"""An extension of the home: in an untrusted folder no hooks of settings run, not even of the user."""
_EVENTS = ("SessionStart", "BeforeAgent", "Notification", "BeforeTool", "AfterTool", "AfterAgent")
_DETAILS = ("command", "filePath", "file_path", "url", "pattern", "query", "prompt")
"""The input of a tool that a user decides about."""


def launch(request: AgentRequest) -> Launch:
    """Return the start with the chosen login and the folder untrusted."""
    argv = (
        *(("-m", request.model) if request.model else ()),
        *("--approval-mode", _MODES[request.preset]),
        *(("--session-id", request.session_id) if request.session_id and not request.resume else ()),
        *(("--resume", request.resume) if request.resume else ()),
        *request.args,
    )
    env = {
        "NO_BROWSER": "true",
        **({"GEMINI_API_KEY": request.key} if request.key else {}),
        **({"GOOGLE_GEMINI_BASE_URL": request.base_url} if request.base_url else {}),
    }
    auth = {"security": {"auth": {"selectedType": "gemini-api-key"}}} if request.key else {}
    settings = {
        ".gemini/settings.json": {
            "general": {"disableAutoUpdate": True},
            "hooksConfig": {"notifications": False},
            **auth,
        },
        ".gemini/trustedFolders.json": {request.workdir: "DO_NOT_TRUST"},
    }
    return Launch(
        argv,
        env,
        settings,
        _extension(request.hook) if request.hook else {},
        removed=(".env", ".gemini/.env", ".gemini/extensions", ".gemini/policies"),
        kept={".gemini/settings.json": ("security.auth", "ui")},
    )


def read(lines: Lines, cursor: Cursor) -> Reading:
    """Return the meaning of a screen."""
    box = _composer(lines)
    if box is None:
        return _blocked(lines)
    top, bottom = box
    rows = lines[top + 1 : bottom]
    at_start = cursor[0] == top + 1 and cursor[1] <= 3
    shown = "\n".join((_INPUT.sub("", rows[0]), *rows[1:])).strip()
    empty = at_start and shown == _READY
    busy = [line for line in lines[max(0, top - 5) : top] if _BUSY.match(line)]
    if busy:
        return Reading("busy", input="" if empty else shown, activity=_step(lines[:top]))
    return Reading("ready", input="") if empty else Reading(input=shown)


def hook(report: Mapping[str, Any]) -> Fact | None:
    """Return the fact in a report of a hook."""
    session, event = said(report, "session_id"), said(report, "hook_event_name")
    match event:
        case "SessionStart":
            return Fact(session=session)
        case "AfterAgent":
            # Its "prompt_response" repeats the last part of the answer, so the screen is read instead.
            return Fact("done", session)
        case "Notification" if said(report, "notification_type") == "ToolPermission":
            given = fields(report, "details")
            tool = "run_shell_command" if said(given, "type") == "exec" else ""
            return Fact("asks", session, tool, said(given, *_DETAILS), folder=said(report, "cwd"))
        case "BeforeTool":
            given = fields(report, "tool_input")
            return Fact("busy", session, said(report, "tool_name"), said(given, *_DETAILS))
        case "BeforeAgent" | "AfterTool":
            return Fact("busy", session)
        case _:
            return None


def _extension(command: HookCommand) -> Mapping[str, str]:
    """Return the files of an extension with the hooks."""
    run = {"type": "command", "name": "trunkline", "command": command.line, "timeout": 5_000}
    return {
        f"{_EXTENSION}/gemini-extension.json": json.dumps({"name": "trunkline", "version": "1.0.0"}),
        f"{_EXTENSION}/hooks/hooks.json": json.dumps(
            {"hooks": {event: [{"hooks": [run]}] for event in _EVENTS}}
        ),
    }


def answer(lines: Lines) -> str:
    """Return the text between the user's last message and the input line."""
    box = _composer(lines)
    if box is None:
        return ""
    above = lines[: box[0]]
    ends = [at for at, line in enumerate(above) if _BOTTOM.match(line)]
    below = [line.removeprefix("\u2726 ") for line in above[ends[-1] + 1 :]] if ends else []
    noise = re.compile(r"^\s*\? for shortcuts$|^\u2500{20,}$|^ Shift\+Tab to |^ Press Ctrl\+O ")
    return "\n".join(line for line in below if not noise.match(line)).strip()


def logged_in(home: str, environ: Mapping[str, str]) -> bool | None:
    """Return whether there is a key or a stored login."""
    if environ.get("GEMINI_API_KEY") or environ.get("GOOGLE_API_KEY"):
        return True
    folder = Path(home) / ".gemini"
    if (folder / "oauth_creds.json").is_file():
        return True
    try:
        accounts: Any = json.loads((folder / "google_accounts.json").read_text())
        return bool(accounts["active"])
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _composer(lines: Lines) -> tuple[int, int] | None:
    """Return the rows around the input line. Earlier messages have such frames, too, but no footer."""
    tops = [at for at, line in enumerate(lines) if _TOP.match(line)]
    bottoms = [at for at, line in enumerate(lines) if _BOTTOM.match(line)]
    if not tops or not bottoms or bottoms[-1] <= tops[-1] + 1 or not _INPUT.match(lines[tops[-1] + 1]):
        return None
    footer = [line for line in lines[bottoms[-1] + 1 :] if line]
    return (tops[-1], bottoms[-1]) if footer and "(/directory)" in footer[0] else None


def _step(above: Lines) -> str:
    for line in reversed(above):
        if match := re.match(r"^\u2502 (?:\u22b6|\u22b7|\S)\s+(\w+) (.*?)\s*\u2502$", line):
            return f"{match[1]}: {match[2]}"
        if _BOTTOM.match(line):
            return ""
    return ""


def _blocked(lines: Lines) -> Reading:
    rows = [at for at, line in enumerate(lines) if line.strip()]
    if not rows or not re.match(r"^ ?\u2570\u2500+\u256f$", lines[rows[-1]]):
        return Reading()
    tops = [at for at in rows if re.match(r"^ ?\u256d\u2500+\u256e$", lines[at])]
    box = tuple(_unframed(line) for line in lines[tops[-1] + 1 : rows[-1]]) if tops else ()
    inner = tuple(_unframed(line) for line in box)
    text = " ".join(" ".join(inner).split())
    if login := _login(text, lines):
        return Reading("login", login=login)
    question = _trust(text, box) or _permission(box)
    return Reading("question", question) if question else Reading()


def _unframed(line: str) -> str:
    return re.sub(r"^ ?[\u2502\u256d\u2570] ?|\s*[\u2502\u256e\u256f]$", "", line).rstrip()


def _login(text: str, lines: Lines) -> LoginPrompt | None:
    shown = snippet(lines)
    if "How would you like to authenticate for this project?" in text or "Enter Gemini API Key" in text:
        how = "set GEMINI_API_KEY, or choose a login at the terminal of Gemini CLI"
        return LoginPrompt("api_key", how, snippet=shown)
    if "Enter the authorization code" in text and (url := _URL.search(text)):
        return LoginPrompt(
            "oauth_browser", "open the address, and enter the code at the terminal", url[0], snippet=shown
        )
    return None


def _permission(box: Lines) -> ScreenQuestion | None:
    menu = menu_at_end(box, None, "\u25cf", footer="")
    if not menu or menu.options[0] != "Allow once" or menu.options[-1] != "No, suggest changes (esc)":
        return None
    above = [line for line in box[: menu.start] if line.strip()]
    if not above or not _QUESTION.fullmatch(above[-1].strip()):
        return None
    titles = [match for line in above if (match := _TITLE.match(line.strip()))]
    if not titles:
        return None
    name, rest = titles[0][1], titles[0][2].strip()
    inner = [_unframed(line).strip() for line in above[:-1] if line.strip()[:1] == "\u2502"]
    # The frame contains a command, or the content of a file.
    detail = "\n".join(inner) if name == "Shell" and inner else rest.removeprefix("Writing to ")
    prompt = f"{name}: {detail}\n{above[-1].strip()}"
    return ScreenQuestion(
        type="permission",
        prompt=prompt,
        digest=digest_of("permission", "\n".join((*above, *menu.options))),
        tool=_TOOLS.get(name, name),
        detail=detail,
        options=menu.options,
        yes=("1",),
        no=("escape",),
    )


def _trust(text: str, box: Lines) -> ScreenQuestion | None:
    menu = menu_at_end(box, None, "\u25cf", footer="")
    if not menu or "Do you trust the files in this folder?" not in text or menu.options[-1] != "Don't trust":
        return None
    prompt = "Do you trust the files in this folder?"
    digest = digest_of("permission", "\n".join((prompt, *menu.options)))
    return ScreenQuestion(
        "permission", prompt, digest, "trust", options=menu.options, no=(str(len(menu.options)),)
    )


ADAPTER = Adapter(
    name="gemini",
    title="Gemini CLI",
    binary="gemini",
    install="npm install -g @google/gemini-cli",
    launch=launch,
    read=read,
    answer=answer,
    logged_in=logged_in,
    hook=hook,
    takes_session_id=True,
    aliases=("google", "gemini-cli"),
    variables=("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_CLOUD_PROJECT", "GOOGLE_GEMINI_BASE_URL"),
    key="GEMINI_API_KEY",
    url="GOOGLE_GEMINI_BASE_URL",
    service="https://generativelanguage.googleapis.com",
    instructions=("GEMINI.md", "AGENTS.md"),
    hosts=(
        *("accounts.google.com", "cloudcode-pa.googleapis.com", "generativelanguage.googleapis.com"),
        *("oauth2.googleapis.com", "www.googleapis.com"),
    ),
    min_node=20,
    known_versions=("0.61.0",),
    settle_ms=300,
    task_delay_ms=300,
    pasted=r"\[Pasted Text: \d+ (?:lines|chars)\]",
    shields="!",
    # It shows its shortcuts instead, as long as it has not drawn the characters before it.
    typed_keys="?",
)
