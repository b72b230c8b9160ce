"""Aider, a program of lines: its questions and its prompt are the line of the cursor.

A model could print the text of a question. The program's line editor is on only while it really asks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from plugins.coding_agents.adapters.contract import (
    Adapter,
    AgentRequest,
    AutoResponse,
    Cursor,
    Launch,
    Lines,
    Reading,
    ScreenQuestion,
    digest_of,
)

_PROMPT = re.compile(r"^((?:[a-z-]+ )*(?:[a-z-]+)?> ?)(.*)$")
_QUESTION = re.compile(
    r"^(?P<asked>.*\?) \(Y\)es/\(N\)o(?:/\(A\)ll)?(?:/\(S\)kip all)?(?:/\(D\)on't ask again)?"
    r" \[(?:Yes|No)\]:\s*\w{0,3}$"
)
_SPENT = re.compile(r"^Tokens: \S+ sent, .*received\.")
"""The row between an answer of the model and the first question about its commands."""
_DECLINED = {
    "Allow collection of anonymous analytics": "declined the collection of analytics",
    r"Add \.aider\* to \.gitignore": "left the project's .gitignore as it is",
    "Would you like to see what's new in this version": "skipped the release notes",
    r"Run pip install\?": "declined an update",
    "Open documentation url for more info": "opened no documentation",
    "Open a GitHub Issue pre-filled with this error": "reported no bug",
    "Login to OpenRouter or create a free account": "declined a login",
}
CONFIGURED_BY = (".aider.conf.yml", ".env")
"""Settings and variables that Aider reads in its home and its folder, with yes to all and commands to run."""
_TOOLS = {"Create new file": "edit", "Allow edits to file": "edit", "Run shell command": "shell"}


def launch(request: AgentRequest) -> Launch:
    """Return the start without questions about updates, news and analytics."""
    argv = (
        *("--auto-commits", "--no-pretty", "--no-check-update", "--no-show-release-notes"),
        *("--analytics-disable", "--no-gitignore", "--no-show-model-warnings"),
        *(("--yes-always",) if request.preset == "autonomous" else ()),
        *(("--chat-mode", "ask") if request.preset == "readonly" else ()),
        *(("--restore-chat-history",) if request.resume else ()),
        *(("--model", request.model) if request.model else ()),
        *request.args,
    )
    env = {
        **({"OPENAI_API_KEY": request.key} if request.key else {}),
        **({"OPENAI_API_BASE": request.base_url} if request.base_url else {}),
    }
    return Launch(argv, env, removed=CONFIGURED_BY)


def read(lines: Lines, cursor: Cursor) -> Reading:
    """Return the meaning of the line at the cursor; the lines above it are output."""
    row = min(cursor[0], len(lines) - 1)
    if question := _question(lines, row):
        return Reading("question", question)
    rows: list[re.Match[str]] = []
    while row - len(rows) >= 0 and (match := _PROMPT.match(lines[row - len(rows)])):
        rows.insert(0, match)  # a long or pasted text repeats the prompt in each row
    if not rows:
        return Reading()
    typed = "\n".join(match[2] for match in rows).strip()
    start = row - len(rows) + 1
    talked = any((match := _PROMPT.match(line)) and match[2] for line in lines[:start])
    return Reading("unknown" if typed else "ready", input=typed, done=talked and not typed)


def answer(lines: Lines) -> str:
    """Return the text between the user's last message and the prompt."""
    prompts = [at for at, line in enumerate(lines) if (match := _PROMPT.match(line)) and match[2]]
    if not prompts:
        return ""
    said = [
        line
        for line in lines[prompts[-1] + 1 :]
        if not _PROMPT.match(line) and not line.startswith("Tokens: ")
    ]
    return "\n".join(said).strip()


def logged_in(home: str, environ: Mapping[str, str]) -> bool | None:
    """Return True with a key; a key may also be in a file of the project, so None without one."""
    return any(name.endswith("_API_KEY") for name in environ) or None


def _question(lines: Lines, row: int) -> ScreenQuestion | None:
    match = _QUESTION.match(lines[row]) if row >= 0 else None
    if match is None:
        return None
    asked = match["asked"].strip()
    tool = next((tool for text, tool in _TOOLS.items() if asked.startswith(text)), "")
    commands = _commands(lines[:row]) if tool == "shell" else None
    subject = _paragraph(lines[:row]) if commands is None else commands
    prompt = "\n".join((*subject, asked))
    return ScreenQuestion(
        type="permission" if tool else "config",
        prompt=prompt,
        digest=digest_of("permission", prompt),
        tool=tool,
        detail="\n".join(subject),
        options=("Yes", "No"),
        # Of commands that are not on the screen as a whole, the user reads the rest at the terminal.
        yes=() if tool == "shell" and commands is None else ("y", "enter"),
        no=("n", "enter"),
    )


def _paragraph(above: Lines) -> list[str]:
    """Return the last rows without an empty one between them."""
    found: list[str] = []
    for line in reversed(above[-8:]):
        if not line or line.startswith("\u2500"):
            break
        found.insert(0, line.strip())
    return found


def _commands(above: Lines) -> list[str] | None:
    """Return the rows of the commands of a question, None if their beginning is not on the screen.

    A model writes them, and empty rows between them: they begin after its answer, not after an empty row.
    """
    prompts = [at for at, line in enumerate(above) if (match := _PROMPT.match(line)) and match[2]]
    begun = prompts[-1] if prompts else -1
    spent = [at for at, line in enumerate(above) if at > begun and _SPENT.match(line)]
    return [line.strip() for line in above[spent[0] + 1 :] if line.strip()] if spent else None


ADAPTER = Adapter(
    name="aider",
    title="Aider",
    binary="aider",
    install="python -m pip install aider-install && aider-install",
    launch=launch,
    read=read,
    answer=answer,
    logged_in=logged_in,
    aliases=("aider-chat",),
    variables=(
        "ANTHROPIC_API_KEY",
        "DEEPSEEK_API_KEY",
        "GEMINI_API_KEY",
        "OPENAI_API_KEY",
        "OPENROUTER_API_KEY",
    ),
    key="OPENAI_API_KEY",
    url="OPENAI_API_BASE",
    service="https://api.openai.com/v1",
    configured_by=CONFIGURED_BY,
    hosts=(
        *("api.anthropic.com", "api.deepseek.com", "api.openai.com"),
        *("generativelanguage.googleapis.com", "openrouter.ai"),
    ),
    known_versions=("0.86.2",),
    settle_ms=200,
    task_delay_ms=200,
    shields="!",
    line_editor=True,
    auto_responses=tuple(
        AutoResponse(pattern=text, type="config", keys=("n", "enter"), description=description)
        for text, description in _DECLINED.items()
    ),
)
