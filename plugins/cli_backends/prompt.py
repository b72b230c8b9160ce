"""What a program is told of its surroundings, gathered once for a dispatch and cut to a budget."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog

from gateway import ImagePart, Message, ToolCallPart, ToolResultPart
from gateway.provider_http import part_as_text
from plugins.cli_backends.contract import Context, Picture
from plugins.cli_backends.git import GitError, Repository

log = structlog.get_logger("trunkline.cli_backends")

CONTEXT_CHARS = 40_000
"""Characters of all of it together."""
CONTEXT_SECONDS = 15.0
"""For all of it together; what is not known by then is left out."""
FACTS = 10
"""Things remembered that are told, the newest."""
INSTRUCTIONS = (".claude-code-instructions", ".claude-instructions", "CLAUDE.md", "AGENTS.md")
"""Files in which projects say how to work on them; the first that there is counts."""

_ENTRIES = 200
_FILE_CHARS = 30_000
_FLOOR = 4_000


async def gathered(folder: str, memory: Sequence[str], repository: Repository | None) -> Context:
    """What is known of a folder. Whatever cannot be found out is left empty."""
    context = Context(memory=tuple(memory[-FACTS:]))
    try:
        async with asyncio.timeout(CONTEXT_SECONDS):
            context = msgspec.structs.replace(
                context,
                workspace=await asyncio.to_thread(_listed, Path(folder)),
                instructions=await asyncio.to_thread(_instructions, Path(folder)),
            )
            if repository is not None:
                context = msgspec.structs.replace(context, git=await repository.state())
    except (TimeoutError, OSError, GitError) as error:
        log.warning("the context of a dispatch is not complete", folder=folder, reason=repr(error))
    return context


def fitted(context: Context, budget: int = CONTEXT_CHARS) -> Context:
    """The context cut to a budget: first the workspace goes, then memory, git and instructions shrink."""
    replace = msgspec.structs.replace
    if _size(context) > budget:
        context = replace(context, workspace=_cut(context.workspace, budget - _size(context, "workspace")))
    if _size(context) > budget:
        context = replace(context, memory=context.memory[-(len(context.memory) // 2) :])
    if _size(context) > budget:
        context = replace(context, git="\n".join(context.git.splitlines()[-5:]))
    if _size(context) > budget:
        room = max(_FLOOR, budget - _size(context, "instructions"))
        context = replace(context, instructions=_cut(context.instructions, room))
    return context


def rendered(context: Context) -> str:
    """The context as text, empty if there is nothing to tell."""
    sections = {
        "Workspace": context.workspace,
        "Remembered": "\n".join(f"- {fact}" for fact in context.memory),
        "Git": context.git,
        "Project instructions": context.instructions,
    }
    told = [f"## {title}\n{text}" for title, text in sections.items() if text]
    return "<context>\n" + "\n\n".join(told) + "\n</context>" if told else ""


def _size(context: Context, without: str = "") -> int:
    return sum(
        len(value) if isinstance(value, str) else sum(map(len, value))
        for name, value in msgspec.structs.asdict(context).items()
        if name != without
    )


def _cut(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    return text[: max(0, room - 16)] + "\n[cut here]" if room > _FLOOR // 4 else ""


def _listed(folder: Path) -> str:
    """The folder's path and what lies in it, two levels deep; hidden entries are left out."""
    lines = [str(folder)]
    for entry in _entries(folder):
        lines.append(_named(entry))
        if entry.is_dir(follow_symlinks=False):
            lines += [f"  {_named(inner)}" for inner in _entries(Path(entry.path))]
        if len(lines) > _ENTRIES:
            return "\n".join([*lines[:_ENTRIES], "…"])
    return "\n".join(lines)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            seen = [entry for entry in found if not entry.name.startswith(".")]
    except OSError:
        return []
    return sorted(seen, key=lambda entry: entry.name)[:_ENTRIES]


def _named(entry: os.DirEntry[str]) -> str:
    return f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name


def _instructions(folder: Path) -> str:
    for name in INSTRUCTIONS:
        text = _file_text(folder / name)
        if text.strip():
            return text
    return ""


def _file_text(path: Path) -> str:
    """The beginning of a plain file; links lead elsewhere and are not followed, pipes never end."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(opened, encoding="utf-8", errors="replace") as file:
        return file.read(_FILE_CHARS) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else ""


HISTORY_CHARS = 20_000
"""Characters of what was said before; the newest counts."""

GO_ON = "The user has seen the beginning of the answer above. Go on from there; do not repeat it."
"""What a program is told that continues an answer."""

NONE = "-"
"""The answer before the first one."""


def without_answer(messages: Sequence[Message], message_id: str) -> tuple[Sequence[Message], Message | None]:
    """Return the conversation, and apart from it what the answer ``message_id`` holds already.

    That is there when another provider began the answer and this program stands in for it.
    """
    if len(messages) > 1 and messages[-1].role == "assistant" and messages[-1].id == message_id:
        return messages[:-1], messages[-1]
    return messages, None


def so_far(answer: Message | None) -> str:
    """Return what was said and done for the answer already, for a program that goes on with it."""
    if answer is None:
        return ""
    results = {part.tool_call_id: part for part in answer.parts if isinstance(part, ToolResultPart)}
    steps = [
        _used(part, results.get(part.tool_call_id)) if isinstance(part, ToolCallPart) else part_as_text(part)
        for part in answer.parts
    ]
    whole = "\n".join(filter(None, steps))
    if len(whole) > HISTORY_CHARS:
        whole = f"[the beginning is left out]\n{whole[-HISTORY_CHARS:]}"
    return f"<answer_so_far>\n{whole}\n</answer_so_far>\n\n{GO_ON}" if whole else ""


def _used(call: ToolCallPart, result: ToolResultPart | None) -> str:
    output = "no result" if result is None else result.output
    return f"[used {call.tool_name} {msgspec.json.encode(call.arguments).decode()}: {output}]"


def wanted(messages: Sequence[Message]) -> str:
    """What the user says now: everything since the last answer but the pictures, which go beside it."""
    said = (_text(message, with_pictures=False) for message in messages[_since(messages) :])
    return "\n\n".join(filter(None, said))


def shown(messages: Sequence[Message]) -> tuple[Picture, ...]:
    """The pictures among what the user says now."""
    return tuple(
        Picture(part.mime_type, part.data)
        for message in messages[_since(messages) :]
        for part in message.parts
        if isinstance(part, ImagePart) and message.for_model
    )


def last_answer(messages: Sequence[Message]) -> str:
    """The id of the last answer."""
    since = _since(messages)
    return messages[since - 1].id if since else NONE


def earlier(messages: Sequence[Message]) -> str:
    """What was said up to the last answer, for a program that was not there; empty if nothing was."""
    said: list[str] = []
    room = HISTORY_CHARS
    for message in reversed(messages[: _since(messages)]):
        text = _text(message)
        if not text:
            continue
        line = f"{message.role}: {text}"
        room -= len(line)
        if room < 0:
            said.append("[the beginning is left out]")
            break
        said.append(line)
    whole = "\n\n".join(reversed(said))
    return f"<conversation_so_far>\n{whole}\n</conversation_so_far>" if whole else ""


def _since(messages: Sequence[Message]) -> int:
    """The index behind the last answer."""
    for index in range(len(messages), 0, -1):
        if messages[index - 1].role == "assistant":
            return index
    return 0


def _text(message: Message, *, with_pictures: bool = True) -> str:
    if not message.for_model:
        return ""
    parts = (
        f"[used {part.tool_name}]" if isinstance(part, ToolCallPart) else part_as_text(part)
        for part in message.parts
        if with_pictures or not isinstance(part, ImagePart)
    )
    return "\n".join(filter(None, parts))
