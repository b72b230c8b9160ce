"""What a program is told of its surroundings, gathered once for a dispatch and cut to a budget."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog

from plugins.cli_backends.contract import Context
from plugins.cli_backends.git import GitError, Repository

log = structlog.get_logger("trunkline.cli_backends")

BUDGET = 40_000
"""Characters of all of it together."""
SECONDS = 15.0
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
        async with asyncio.timeout(SECONDS):
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


def fitted(context: Context, budget: int = BUDGET) -> Context:
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
        text = _text(folder / name)
        if text.strip():
            return text
    return ""


def _text(path: Path) -> str:
    """The beginning of a plain file; links lead elsewhere and are not followed, pipes never end."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(opened, encoding="utf-8", errors="replace") as file:
        return file.read(_FILE_CHARS) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else ""
