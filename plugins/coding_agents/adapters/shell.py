"""A plain shell, for programs without their own adapter."""

from __future__ import annotations

import re

from plugins.coding_agents.adapters.contract import (
    Adapter,
    AgentRequest,
    Cursor,
    Launch,
    Lines,
    Reading,
    ScreenQuestion,
    digest_of,
)

PROMPT = "pty> "
_LINE = re.compile(r"^(?:pty> ?|[^\s$#>][^$#]*[$#](?: |$)|[$#](?: |$))(.*)$")
"""A prompt and what is typed behind it. The continuation prompt ``> `` is none."""
_YES_NO = re.compile(
    r"^(.*(?:\[y(?:es)?/n(?:o)?\]|\(y(?:es)?/n(?:o)?\))\s*[:?]?)\s*[a-z]{0,3}$", re.IGNORECASE
)
_OPEN = re.compile(r"\S.{0,198}\?\s*$|\bpass(?:word|phrase)\b.*:\s*$", re.IGNORECASE)


def launch(request: AgentRequest) -> Launch:
    """Return the start of bash without the user's files; a prompt in them would hide the known one."""
    # A dumb title and no history: nothing of the session is left in the home folder.
    env = {"PS1": PROMPT, "PS2": "> ", "HISTFILE": "", "BASH_SILENCE_DEPRECATION_WARNING": "1"}
    return Launch(("--noprofile", "--norc", "-i", *request.args), env)


def read(lines: Lines, cursor: Cursor) -> Reading:
    """Return ready at an empty prompt, a question if the line at the cursor is one, else unknown."""
    row = cursor[0]
    current = lines[row] if row < len(lines) else ""
    if not _LINE.match(current) and (asked := line_question(current)):
        return asked
    typed = _typed(lines, row)
    if typed is not None:
        return Reading("unknown" if typed else "ready", input=typed, done=not typed)
    return Reading()


def answer(lines: Lines) -> str:
    """Return the output of the last command."""
    prompts = [at for at, line in enumerate(lines) if _LINE.match(line)]
    return "\n".join(lines[prompts[-2] + 1 : prompts[-1]]).strip() if len(prompts) > 1 else ""


def line_question(line: str) -> Reading | None:
    """Return the question in a line without a menu. Only yes/no has keys; other questions need a user."""
    prompt = line.strip()
    if match := _YES_NO.match(prompt):
        prompt = match[1].strip()  # without the answer, which is typed key by key
        question = ScreenQuestion(
            type="unknown",
            prompt=prompt,
            digest=digest_of("unknown", prompt),
            options=("yes", "no"),
            yes=("y", "enter"),
            no=("n", "enter"),
        )
        return Reading("question", question)
    if _OPEN.search(prompt):
        return Reading("question", ScreenQuestion("unknown", prompt, digest_of("unknown", prompt)))
    return None


def _typed(lines: Lines, row: int) -> str | None:
    """Return the text between the prompt and the cursor; a pasted text has several rows."""
    for at in range(row, -1, -1):
        if at >= len(lines):
            continue
        if match := _LINE.match(lines[at]):
            below = lines[at + 1 : row + 1]
            # With an empty row at the cursor a command runs: its output may begin there.
            return None if at < row and not (below and below[-1]) else "\n".join((match[1], *below)).strip()
        if not lines[at]:
            return None
    return None


ADAPTER = Adapter(
    name="shell",
    title="Shell",
    binary="bash",
    install="apt-get install bash",
    launch=launch,
    read=read,
    answer=answer,
    aliases=("bash", "sh", "terminal"),
    known_versions=("5.2",),
    settle_ms=200,
    resubmits=0,
)
