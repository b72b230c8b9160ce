"""The check before the first session: which programs are there, and what confines them.

In: the settings and the environment. Out: a report for HTTP clients, ``/agents check`` and ``trunkline
doctor``. Programs run with ``--version`` only.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec import Struct

from gateway import PluginContext
from plugins.coding_agents.adapters import adapters
from plugins.coding_agents.adapters.preflight import Preflight, check_program
from plugins.coding_agents.settings import CodingAgentSettings
from plugins.programs.environment import find_program


class PreflightReport(Struct, frozen=True):
    """The state of this machine. ``sandbox`` names the layers; with ``sandbox_problem`` there are none."""

    programs: list[Preflight]
    git: str
    """The path of git, "" without it."""
    sandbox: list[str]
    sandbox_problem: str
    network: str
    key: str


async def check_machine(ctx: PluginContext, settings: CodingAgentSettings) -> PreflightReport:
    """Check all programs at once, git and the sandbox."""
    async with asyncio.TaskGroup() as group:
        checks = [
            group.create_task(
                check_program(one, ctx.environ, ctx.environ.get("HOME", ""), binary=settings.of(name).binary)
            )
            for name, one in adapters().items()
        ]
        git = group.create_task(asyncio.to_thread(find_program, "git", ctx.environ))
        data = await asyncio.to_thread(Path(ctx.cwd).absolute)
        layers = group.create_task(_check_sandbox(ctx, settings, data))
    found, problem = layers.result()
    return PreflightReport(
        [one.result() for one in checks],
        git.result() or "",
        found,
        problem,
        settings.network,
        settings.key,
    )


def find_problem(report: PreflightReport, settings: CodingAgentSettings) -> str:
    """Return what prevents sessions; "" if nothing. ``sandbox = "off"`` is named, too."""
    problems = [report.sandbox_problem] if report.sandbox_problem else []
    if not report.git:
        problems.append("git is not installed, so there are no workspaces: install git")
    missing = [one.problem for one in report.programs if not one.found and one.agent in settings.agents]
    return "; ".join((*problems, *missing))


def render(report: PreflightReport) -> str:
    """Return the report as Markdown for a chat."""
    lines = [f"- {_state(one)}" for one in report.programs]
    lines.append("- ✅ git" if report.git else "- ❌ git is not installed, so there are no workspaces")
    if report.sandbox_problem:
        lines.append(f"- ⚠️ Sandbox: {report.sandbox_problem}")
    else:
        lines.append(
            f"- ✅ Sandbox: {', '.join(report.sandbox)}; network: {report.network}; key: {report.key}"
        )
    return "\n".join(lines)


def _state(one: Preflight) -> str:
    if not one.found:
        return f"❌ {one.problem}"
    login = "" if one.logged_in is not False else "; not logged in: start it, and log in at its terminal"
    if one.problem:
        return f"⚠️ **{one.title}** {one.version}: {one.problem}{login}"
    return f"✅ **{one.title}** {one.version}{login}"


async def _check_sandbox(
    ctx: PluginContext, settings: CodingAgentSettings, data: Path
) -> tuple[list[str], str]:
    from plugins.coding_agents.confinement.profile import Confinement  # with the first session or check

    own = data / "coding-agents"
    confinement = Confinement(ctx.processes, settings, ctx.environ, ctx.tasks, data=data, own=own)
    found = await confinement.report()
    return list(found.layers), found.problem
