"""Codex, at its terminal.

Its input line stays while it works, so an empty one alone does not mean ready: the last answer must have
ended.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plugins.coding_agents.adapters.contract import (
    LAST,
    Adapter,
    AgentRequest,
    AutoResponse,
    Cursor,
    Fact,
    Launch,
    Lines,
    LoginPrompt,
    Reading,
    ScreenQuestion,
    digest_of,
    menu_at_end,
    said,
    snippet,
)

_GLYPH = "\u203a"
_EMPTY = f"{_GLYPH} Ask Codex to do anything"
_FOOTER = re.compile(r"^  \S.* \u00b7 [~/]\S*")
_DONE = re.compile(r"^  Worked for (?:<?\d+[hms] ?)+ ?(?:$|\u2022)|^\u25a0 ")
_BUSY = re.compile(r"^\u2022 .*\besc to interrupt\b")
_STEP = re.compile(r"^\u2022 (Running .*)$")
_ASKED = {
    "Would you like to run the following command?": "shell",
    "Would you like to make the following edits?": "apply_patch",
}
_LAST_CHOICE = "No, and tell Codex what to do differently (esc)"
_FOLDER = "Folder access: open restricted"
_ACCESS = {
    "readonly": ("read-only", "on-request"),
    "standard": ("read-only", "on-request"),
    "permissive": ("workspace-write", "on-request"),
    "autonomous": ("workspace-write", "never"),
}
"""Sandbox and approvals. In the read-only sandbox the program asks before each change."""
_REMOVED = (".codex/.env", ".codex/config.toml", ".codex/hooks.json", ".codex/rules")
"""The login is in another file. Servers of the settings start without a question."""
_NO_DAEMON = (0, 169)
"""The first version known to have ``--no-daemon``; a daemon would outlive the session."""


def launch(request: AgentRequest) -> Launch:
    """Return the start without a daemon, the folder untrusted: its settings and hooks stay disabled."""
    sandbox, approval = _ACCESS[request.preset]
    url = request.base_url or request.environ.get("OPENAI_BASE_URL") or "https://api.openai.com/v1"
    provider = (
        f'{{name="Trunkline",base_url={json.dumps(url)},env_key="OPENAI_API_KEY",wire_api="responses"}}'
    )
    own = ("-c", 'model_provider="trunkline"', "-c", f"model_providers.trunkline={provider}")
    argv = (
        *(("--no-daemon",) if _has_no_daemon(request.version) else ()),
        *("-c", "check_for_update_on_startup=false"),
        *("-c", f'projects={{{json.dumps(request.workdir)}={{trust_level="untrusted"}}}}'),
        *(own if request.key else ()),
        *(("-m", request.model) if request.model else ()),
        *("-s", sandbox, "-a", approval, *request.args),
        *(("-c", f"notify={json.dumps(request.hook.argv)}") if request.hook else ()),
        *_resume(request.resume),
    )
    env = {"OPENAI_API_KEY": request.key} if request.key else {}
    return Launch(argv, env, removed=_REMOVED)


def read(lines: Lines, cursor: Cursor) -> Reading:
    """Return the meaning of a screen."""
    box = _composer(lines, cursor)
    if box is None:
        return _blocked(lines)
    start, end = box
    rows = lines[start:end]
    empty = rows[0] == _EMPTY and cursor == (start, 2)
    typed = "" if empty else "\n".join((rows[0].removeprefix(_GLYPH), *rows[1:])).strip()
    above = [line for line in lines[:start] if line]
    busy = [line for line in above[-4:] if _BUSY.match(line)]
    if busy:
        steps = [match[1] for line in above[-8:] if (match := _STEP.match(line))]
        return Reading("busy", input=typed, activity=steps[-1] if steps else "")
    done = bool(above and _DONE.match(above[-1]))
    fresh = not any(line.startswith((_GLYPH, "\u2022")) for line in above)
    return Reading("ready" if empty and (done or fresh) else "unknown", input=typed, done=empty and done)


def answer(lines: Lines) -> str:
    """Return the text between the user's last message and the end of the answer."""
    starts = [at for at, line in enumerate(lines) if line.startswith(f"{_GLYPH} ")]
    if len(starts) < 2:
        return ""
    below = lines[starts[-2] + 1 : starts[-1]]
    return "\n".join(line.removeprefix("\u2022 ") for line in below if not _DONE.match(line)).strip()


def logged_in(home: str, environ: Mapping[str, str]) -> bool | None:
    """Return whether there is a key or a stored login."""
    return bool(environ.get("OPENAI_API_KEY")) or (Path(home) / ".codex" / "auth.json").is_file()


def hook(report: Mapping[str, Any]) -> Fact | None:
    """Return the program's own session, from a report of ``notify`` after an answer.

    The program does not wait for it, so it may come after the next text, and does not report its end.
    """
    return Fact(session=said(report, "thread-id")) if said(report, "thread-id") else None


def _resume(session: str) -> tuple[str, ...]:
    if not session:
        return ()
    return ("resume", "--last" if session == LAST else session)


def _has_no_daemon(version: str) -> bool:
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    return not numbers or numbers >= _NO_DAEMON


def _composer(lines: Lines, cursor: Cursor) -> tuple[int, int] | None:
    """Return the first row of the input line and the row after it; the cursor is in it, a footer below."""
    footers = [at for at, line in enumerate(lines) if _FOOTER.match(line)]
    starts = [at for at, line in enumerate(lines[: cursor[0] + 1]) if line.startswith(_GLYPH)]
    if not footers or not starts or not starts[-1] <= cursor[0] < footers[-1]:
        return None
    return starts[-1], footers[-1] - 1


def _blocked(lines: Lines) -> Reading:
    text = "\n".join(lines)
    if "Choose how you want to use Codex." in text and "Press enter to continue" in text:
        how = "log in at the terminal of Codex (a device code works without a browser), or set an API key"
        return Reading("login", login=LoginPrompt("cli_auth", how, snippet=snippet(lines)))
    if (code := re.search(r"\b[A-Z0-9]{4}-[A-Z0-9]{4,5}\b", text)) and "auth.openai.com/codex/device" in text:
        how = "open the address and enter the code"
        url = "https://auth.openai.com/codex/device"
        return Reading("login", login=LoginPrompt("device_code", how, url, code[0], snippet(lines)))
    question = _permission(lines) or _folder(lines)
    return Reading("question", question) if question else Reading()


def _permission(lines: Lines) -> ScreenQuestion | None:
    menu = menu_at_end(lines, None, _GLYPH, footer="Press enter to confirm or esc to cancel")
    if not menu or menu.options[0] != "Yes, proceed (y)" or menu.options[-1] != _LAST_CHOICE:
        return None
    asked = [at for at in range(menu.start) if lines[at].strip() in _ASKED]
    if not asked:
        return None
    body = [line.strip() for line in lines[asked[-1] + 1 : menu.start] if line.strip()]
    tool = _ASKED[lines[asked[-1]].strip()]
    marks = ("$ ",) if tool == "shell" else ("Destination: ",)
    found = [at for at, line in enumerate(body) if line.startswith(marks)]
    if not found:
        return None
    # A command may have such a row, too.
    detail = "\n".join(body[found[0] :]).removeprefix(marks[0])
    prompt = "\n".join((lines[asked[-1]].strip(), *body))
    return ScreenQuestion(
        type="permission",
        prompt=prompt,
        digest=digest_of("permission", "\n".join((prompt, *menu.options))),
        tool=tool,
        detail=detail,
        options=menu.options,
        yes=("y",),
        no=("escape",),
    )


def _folder(lines: Lines) -> ScreenQuestion | None:
    """Return the question about the folder. Its menu has no keys of its own; to trust is left to the user."""
    menu = menu_at_end(lines, None, _GLYPH, footer="enter continue \u00b7 esc back")
    above = [line.strip() for line in lines[: menu.start] if line.strip()] if menu else []
    if not menu or above[:1] != ["Folder access"] or len(above) < 3:
        return None
    restricted = menu.options == ("Open restricted", "Back to Agent Command Center")
    restricted = restricted and above[2].startswith(
        "Config, hooks, and exec policies from untrusted folders stay"
    )
    prompt = _FOLDER if restricted else "Folder access: trust this folder?"
    digest = digest_of("permission", "\n".join((*above, *menu.options)))
    return ScreenQuestion(
        "permission", prompt, digest, "trust", folder=above[1], options=menu.options, no=("escape",)
    )


ADAPTER = Adapter(
    name="codex",
    title="Codex",
    binary="codex",
    install="npm install -g @openai/codex",
    launch=launch,
    read=read,
    answer=answer,
    logged_in=logged_in,
    hook=hook,
    aliases=("openai", "codex-cli"),
    variables=("OPENAI_API_KEY", "OPENAI_BASE_URL"),
    key="OPENAI_API_KEY",
    url="OPENAI_BASE_URL",
    service="https://api.openai.com/v1",
    instructions=("AGENTS.md",),
    hosts=("api.openai.com", "auth.openai.com", "chatgpt.com"),
    min_node=16,
    known_versions=("0.169.0",),
    settle_ms=2000,
    task_delay_ms=300,
    pasted=r"\[Pasted Content \d+ chars\]",
    shields="!",
    auto_responses=(
        AutoResponse(
            pattern=rf"^{_FOLDER}$",
            type="permission",
            keys=("enter",),
            description="opened the folder without trusting its settings and hooks",
            once=True,
        ),
    ),
)
