"""The text that a program receives: the context of its workspace, the conversation, an unfinished answer."""

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
from plugins.cli_backends.contract import Context, Image
from plugins.cli_backends.git import Repository
from plugins.programs.git import GitError

log = structlog.get_logger("trunkline.cli_backends")

CONTEXT_CHARS = 40_000
"""The size limit of the whole context, in characters."""
CONTEXT_SECONDS = 15.0
"""The time limit for collecting the context; the rest is left out."""
MAX_FACTS = 10
"""The number of remembered facts in the context, the newest ones."""
INSTRUCTION_FILES = (".claude-code-instructions", ".claude-instructions", "CLAUDE.md", "AGENTS.md")
"""Files with a project's instructions for coding programs; the first one with content is used."""

_MAX_ENTRIES = 200
_FILE_CHARS = 30_000
_MIN_INSTRUCTION_CHARS = 4_000


async def gather_context(folder: str, memory: Sequence[str], repository: Repository | None) -> Context:
    """Collect the context of a folder. A part that cannot be read stays empty."""
    context = Context(memory=tuple(memory[-MAX_FACTS:]))
    try:
        async with asyncio.timeout(CONTEXT_SECONDS):
            context = msgspec.structs.replace(
                context,
                workspace=await asyncio.to_thread(_list_folder, Path(folder)),
                instructions=await asyncio.to_thread(_read_instructions, Path(folder)),
            )
            if repository is not None:
                context = msgspec.structs.replace(context, git=await repository.state())
    except (TimeoutError, OSError, GitError) as error:
        log.warning("dispatch context incomplete", folder=folder, reason=repr(error))
    return context


def fit_context(context: Context) -> Context:
    """Shorten the context to a budget: first the workspace, then memory, git and instructions."""
    replace, budget = msgspec.structs.replace, CONTEXT_CHARS
    if _size(context) > budget:
        context = replace(context, workspace=_cut(context.workspace, budget - _size(context, "workspace")))
    if _size(context) > budget:
        context = replace(context, memory=context.memory[-(len(context.memory) // 2) :])
    if _size(context) > budget:
        context = replace(context, git="\n".join(context.git.splitlines()[-5:]))
    if _size(context) > budget:
        room = max(_MIN_INSTRUCTION_CHARS, budget - _size(context, "instructions"))
        context = replace(context, instructions=_cut(context.instructions, room))
    return context


def render_context(context: Context) -> str:
    """Return the context as text, empty if it has no content."""
    sections = {
        "Workspace": context.workspace,
        "Remembered": "\n".join(f"- {fact}" for fact in context.memory),
        "Git": context.git,
        "Project instructions": context.instructions,
    }
    texts = [f"## {title}\n{text}" for title, text in sections.items() if text]
    return "<context>\n" + "\n\n".join(texts) + "\n</context>" if texts else ""


def _size(context: Context, without: str = "") -> int:
    return sum(
        len(value) if isinstance(value, str) else sum(map(len, value))
        for name, value in msgspec.structs.asdict(context).items()
        if name != without
    )


def _cut(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    return text[: max(0, room - 16)] + "\n[cut here]" if room > _MIN_INSTRUCTION_CHARS // 4 else ""


def _list_folder(folder: Path) -> str:
    """Return the folder's path and its entries, two levels deep, without hidden ones."""
    lines = [str(folder)]
    for entry in _entries(folder):
        lines.append(_display_name(entry))
        if entry.is_dir(follow_symlinks=False):
            lines += [f"  {_display_name(inner)}" for inner in _entries(Path(entry.path))]
        if len(lines) > _MAX_ENTRIES:
            return "\n".join([*lines[:_MAX_ENTRIES], "…"])
    return "\n".join(lines)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            seen = [entry for entry in found if not entry.name.startswith(".")]
    except OSError:
        return []
    return sorted(seen, key=lambda entry: entry.name)[:_MAX_ENTRIES]


def _display_name(entry: os.DirEntry[str]) -> str:
    return f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name


def _read_instructions(folder: Path) -> str:
    for name in INSTRUCTION_FILES:
        text = _read_plain_file(folder / name)
        if text.strip():
            return text
    return ""


def _read_plain_file(path: Path) -> str:
    """Return the beginning of a regular file.

    Links are not followed, as they can lead out of the folder; a read from a pipe would not end.
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with os.fdopen(opened, encoding="utf-8", errors="replace") as file:
        return file.read(_FILE_CHARS) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else ""


HISTORY_CHARS = 20_000
"""The size limit of the history, in characters; the newest messages are kept."""

CONTINUE = (
    "The user has already seen the beginning of the answer above. Continue from there; do not repeat it."
)
"""The instruction for a program that continues an answer."""

NO_ANSWER = "-"
"""The id of the last answer in a conversation without one."""


def split_partial_answer(
    messages: Sequence[Message], message_id: str
) -> tuple[Sequence[Message], Message | None]:
    """Return the conversation without the answer ``message_id``, and the part of the answer that exists, if
    any.

    It exists if another provider began the answer and failed.
    """
    if len(messages) > 1 and messages[-1].role == "assistant" and messages[-1].id == message_id:
        return messages[:-1], messages[-1]
    return messages, None


def render_partial_answer(answer: Message | None) -> str:
    """Return the text and the tool calls of an unfinished answer, with the instruction to continue it."""
    if answer is None:
        return ""
    results = {part.tool_call_id: part for part in answer.parts if isinstance(part, ToolResultPart)}
    steps = [
        _call_text(part, results.get(part.tool_call_id))
        if isinstance(part, ToolCallPart)
        else part_as_text(part)
        for part in answer.parts
    ]
    text = "\n".join(filter(None, steps))
    if len(text) > HISTORY_CHARS:
        text = f"[beginning omitted]\n{text[-HISTORY_CHARS:]}"
    return f"<answer_so_far>\n{text}\n</answer_so_far>\n\n{CONTINUE}" if text else ""


def _call_text(call: ToolCallPart, result: ToolResultPart | None) -> str:
    output = "no result" if result is None else result.output
    return f"[used {call.tool_name} {msgspec.json.encode(call.arguments).decode()}: {output}]"


def new_user_text(messages: Sequence[Message]) -> str:
    """Return the user's text since the last answer. Images are passed separately."""
    texts = (_text(message, with_pictures=False) for message in messages[_new_from(messages) :])
    return "\n\n".join(filter(None, texts))


def new_user_images(messages: Sequence[Message]) -> tuple[Image, ...]:
    """Return the user's images since the last answer."""
    return tuple(
        Image(part.mime_type, part.data)
        for message in messages[_new_from(messages) :]
        for part in message.parts
        if isinstance(part, ImagePart) and message.for_model
    )


def last_answer_id(messages: Sequence[Message]) -> str:
    """Return the id of the last answer."""
    start = _new_from(messages)
    return messages[start - 1].id if start else NO_ANSWER


def render_history(messages: Sequence[Message]) -> str:
    """Return the messages up to the last answer as text, for a program that has not seen them."""
    lines: list[str] = []
    room = HISTORY_CHARS
    for message in reversed(messages[: _new_from(messages)]):
        text = _text(message)
        if not text:
            continue
        line = f"{message.role}: {text}"
        room -= len(line)
        if room < 0:
            lines.append("[beginning omitted]")
            break
        lines.append(line)
    text = "\n\n".join(reversed(lines))
    return f"<conversation_so_far>\n{text}\n</conversation_so_far>" if text else ""


def _new_from(messages: Sequence[Message]) -> int:
    """Return the index of the first message after the last answer."""
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
