"""Slash commands for coding agents: everything works without a model.

In: the text after ``/agents``, ``/attach``, ``/diff``, ``/pr`` and ``/compare``. Out: actions of the desk.
``/agent`` is the core's, which selects the agent of a conversation, so ``/agents`` also talks to one.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from gateway import CommandContext, SlashCommand
from plugins.coding_agents.api.preflight import PreflightReport, render
from plugins.coding_agents.tools.services import Caller, FinalizeRequest, caller_of

if TYPE_CHECKING:
    from plugins.coding_agents.tools import OpenDesk
    from plugins.coding_agents.tools.desk import Desk

USAGE = """\
- `/agents`: list your coding agents; `/agents check`: which programs are installed
- `/agents new claude https://github.com/acme/app fix the login`: start one in a new worktree
- `/agents new 2 claude URL TASK` or `/agents new claude,codex URL TASK`: several, each in a worktree
- `/agents new shell /srv/folder` or `/agents new claude TASK`: in a folder, or in an empty one
- `/agents 1 TEXT`: send text; `/agents 1 y` accepts; `/agents 1 keys ctrl+c enter` sends keys
- `/agents 1 stop`, `/agents stop all`, `/agents 1 resume`: end one, all, or continue an ended one
- `/agents 1 undo`: its files as they were before the last text that you sent
- `/attach 1`: its screen; `/diff 1`: its changes; `/pr 1 TITLE`: commit, push, and open a pull request
- `/compare`: the changes of a team side by side; `/compare keep 2`: keep one\
"""

_TARGET = r"#?\d{1,3}|[0-9a-f]{8}|pty-\d+-[0-9a-f]{8}|ws-\d+-[0-9a-f]{8}"
_ONE = re.compile(rf"({_TARGET})(?:\s+(.*))?", re.DOTALL)
_NEW = re.compile(r"(?:(\d)x?\s+)?([\w.,-]+)(?:\s+(.*))?", re.DOTALL)
_OPTION = re.compile(r"(branch|base|model)=(\S+)(?:\s+(.*))?", re.DOTALL)
_REPO = re.compile(r"((?:https?|ssh)://\S+|[\w.-]+@[\w.-]+:\S+)(?:\s+(.*))?", re.DOTALL)
_FOLDER = re.compile(r"(/\S*|~/\S*)(?:\s+(.*))?", re.DOTALL)
_WORKSPACE = re.compile(r"(ws-\d+-[0-9a-f]{8})(?:\s+(.*))?", re.DOTALL)


class Wanted(Struct):
    """The parts of ``/agents new``."""

    agents: tuple[str, ...]
    count: int = 1
    task: str = ""
    repo: str = ""
    workdir: str = ""
    workspace: str = ""
    branch: str = ""
    base: str = ""
    model: str = ""


def parse_new(text: str) -> Wanted | None:
    """Read the text after ``/agents new``; None if it names no agent. What is not a place is the task."""
    found = _NEW.fullmatch(text.strip())
    if found is None:
        return None
    wanted = Wanted(tuple(name for name in found[2].split(",") if name), int(found[1] or 1))
    rest = found[3] or ""
    for pattern, field in ((_REPO, "repo"), (_FOLDER, "workdir"), (_WORKSPACE, "workspace")):
        if place := pattern.fullmatch(rest):
            setattr(wanted, field, place[1])
            rest = place[2] or ""
            break
    while option := _OPTION.fullmatch(rest):
        setattr(wanted, option[1], option[2])
        rest = option[3] or ""
    wanted.task = rest.strip()
    return wanted if wanted.agents and wanted.count else None


class AgentCommands:
    """The commands."""

    def __init__(self, desk: OpenDesk, check: Callable[[], Awaitable[PreflightReport]]) -> None:
        self._desk = desk
        self._check = check
        self.all: Sequence[SlashCommand] = (
            SlashCommand("agents", "Coding agents: list, new AGENT [URL] TASK, N TEXT, N stop", self._agents),
            SlashCommand("attach", "Show the terminal of a coding agent: /attach N", self._attach),
            SlashCommand("diff", "Show the changes of a coding agent: /diff N", self._diff),
            SlashCommand("pr", "Commit, push and open a pull request: /pr N TITLE", self._pr),
            SlashCommand("compare", "Compare agents, and keep one: /compare, /compare keep N", self._compare),
        )

    async def _agents(self, rest: str, ctx: CommandContext) -> str:
        word, _, more = rest.strip().partition(" ")
        if rest.strip() == "check":
            return render(await self._check())
        desk, caller = await self._opened(ctx)
        key = ctx.inbound.dedup_key
        if not word:
            return desk.list(caller)
        if word in ("new", "start"):
            return await self._new(desk, caller, more, key)
        if word == "stop":
            return await desk.stop(caller, more.strip())
        if one := _ONE.fullmatch(rest.strip()):
            return await self._one(desk, caller, one[1], one[2] or "", key)
        return USAGE

    async def _new(self, desk: Desk, caller: Caller, text: str, key: str) -> str:
        from plugins.coding_agents.tools.desk import Start

        wanted = parse_new(text)
        if wanted is None:
            return USAGE
        start = Start(
            agents=wanted.agents,
            count=wanted.count,
            task=wanted.task,
            repo=wanted.repo,
            workdir=wanted.workdir,
            workspace=wanted.workspace,
            branch=wanted.branch,
            base=wanted.base,
            model=wanted.model,
        )
        return await desk.spawn(caller, start, key)

    async def _one(self, desk: Desk, caller: Caller, target: str, text: str, key: str) -> str:
        match text.split():
            case []:
                return desk.attach(caller, target)
            case ["stop" | "kill" as word]:
                return await desk.stop(caller, target, force=word == "kill")
            case ["resume"]:
                return await desk.resume(caller, key, target)
            case ["undo"]:
                return await desk.undo(caller, target)
            case ["undo", number] if number.isdigit():
                return await desk.undo(caller, target, int(number))
            case ["keys", *keys]:
                return await desk.send(caller, key, session=target, keys=keys)
            case _:
                return await desk.send(caller, key, session=target, text=text)

    async def _attach(self, rest: str, ctx: CommandContext) -> str:
        desk, caller = await self._opened(ctx)
        return desk.attach(caller, rest.strip())

    async def _diff(self, rest: str, ctx: CommandContext) -> None:
        desk, caller = await self._opened(ctx)
        await desk.changes(caller, ctx.inbound.dedup_key, rest.strip())

    async def _pr(self, rest: str, ctx: CommandContext) -> str:
        desk, caller = await self._opened(ctx)
        one = _ONE.fullmatch(rest.strip())
        target, title = (one[1], one[2] or "") if one else ("", rest)
        draft = title.split()[:1] == ["draft"]
        title = title.strip().removeprefix("draft").strip() if draft else title.strip()
        return await desk.finalize(caller, target, FinalizeRequest(title=title, draft=draft))

    async def _compare(self, rest: str, ctx: CommandContext) -> str | None:
        desk, caller = await self._opened(ctx)
        match rest.split():
            case ["keep", number] if number.isdigit():
                return await desk.keep(caller, int(number))
            case targets:
                await desk.compare(caller, ctx.inbound.dedup_key, targets)
                return None

    async def _opened(self, ctx: CommandContext) -> tuple[Desk, Caller]:
        return await self._desk(), caller_of(ctx)
