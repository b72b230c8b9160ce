"""Workspaces whose files are read and written in the sandbox of the agent."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.extensions.process import kernel
from gateway.extensions.process.service import Processes
from plugins.coding_agents.confinement.profile import Confinement
from plugins.coding_agents.workspaces import WorkspaceRecord, Workspaces
from tests.plugins.coding_agents.rig import OWNER, SECONDS, agents, processes, until, until_status
from tests.plugins.coding_agents.workspaces.forge import ENV, READ_TOKEN, TOKEN, Desk, Hub, run_git

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(kernel.missing(kernel.layers(), strict=True)), reason="the kernel cannot confine"
    ),
]


class Tasks:
    def create_task(self, work: Any, *, name: str | None = None) -> object:
        raise AssertionError("there is no stream")


@pytest.fixture
async def confined(desk: Desk, tmp_path: Path) -> Workspaces:
    """Workspaces with the sandbox of agents."""
    desk.base = tmp_path / "data" / "coding-workspaces"
    command = ["sh", "-c", "cat .env; touch made; cat ../../../t.db ~/secret || echo refused"]
    (tmp_path / "env").write_text("KEY=1\n")
    (tmp_path / "home").mkdir()
    setup = {f"{desk.hub.host}/acme/app": {"files": {".env": str(tmp_path / "env")}, "command": command}}
    desk.settings = desk.settings.model_validate({"workspaces": {"hosts": [desk.hub.url], "setup": setup}})
    data, own = tmp_path / "data", tmp_path / "data" / "coding-agents"
    environ = {**ENV, "HOME": str(tmp_path / "home")}
    desk.confine = Confinement(Processes(), desk.settings, environ, Tasks(), data=data, own=own).wrap
    return await desk.open()


async def test_git_of_the_gateway_works_in_the_sandbox(confined: Workspaces, desk: Desk) -> None:
    record = await confined.provision("ada", desk.url, branch="work")
    tree = confined.places.tree(record.id)
    assert record.setup is not None
    assert (record.setup.output.splitlines()[0], record.setup.output.splitlines()[-1]) == ("KEY=1", "refused")
    (tree / "new").write_text("x\n")
    (tree / "src/app.py").unlink()
    first = await confined.checkpoint(record.id, "ada")
    assert {c.path for c in (await confined.changes(record.id, "ada")).files} == {"made", "new", "src/app.py"}
    (tree / "new").unlink()
    assert await confined.undo(record.id, "ada") == first
    assert (tree / "new").read_text() == "x\n"
    result = await confined.finalize(record.id, "ada", message="Fix")
    assert desk.hub.log("work", form="%H")[0] == result.commit
    assert run_git(tree, "status", "--porcelain") == ""
    (tree / "more").write_text("x\n")
    await confined.finalize(record.id, "ada", message="More")
    assert desk.hub.log("work") == ["More", "Fix", "First"]


def content(path: Path) -> bytes | None:
    """The content of a file, None if there is none."""
    return path.read_bytes() if path.exists() else None


async def as_agent(
    desk: Desk, workspaces: Workspaces, record: WorkspaceRecord, script: str
) -> tuple[int, str]:
    """Run a script in the sandbox of an agent."""
    writable, readable = await workspaces.git_folders(record.id, record.owner)
    argv = await desk.confine(["/bin/sh", "-c", script], ENV, writable=writable, readable=readable)
    tree = workspaces.places.tree(record.id)
    run = await asyncio.to_thread(
        subprocess.run, argv, cwd=tree, env=ENV, capture_output=True, text=True, timeout=120
    )
    return run.returncode, run.stdout + run.stderr


async def test_git_of_an_agent_works_in_the_sandbox_and_reaches_no_other_workspace(
    confined: Workspaces, desk: Desk
) -> None:
    record = await confined.provision("ada", desk.url, branch="work")
    other = await confined.provision("eve", desk.url, branch="other")
    script = (
        "echo x > new && git add -A && git commit -qm One && git checkout -qb side && git log --format=%s"
    )
    assert await as_agent(desk, confined, record, script) == (0, "One\nFirst\n")
    places = confined.places
    repository, theirs = places.repository(record.id), places.repository(other.id)
    for target in (
        repository / "config",
        repository / "hooks/post-commit",
        places.own(record.id) / "index",
        places.tree(other.id) / "README.md",
        theirs / "refs/heads/other",
        theirs / "objects/x",
        places.mirrors / "x",
    ):
        before = content(target)
        await as_agent(desk, confined, record, f"echo x > {target}")
        assert content(target) == before, target
    for target in (places.tree(other.id) / "README.md", theirs / "HEAD", places.base.parent.parent / "t.db"):
        code, told = await as_agent(desk, confined, record, f"cat {target}")
        assert code != 0, f"{target}: {told}"
    result = await confined.finalize(record.id, "ada", message="Fix")
    assert desk.hub.log("work", form="%H")[0] == result.commit


async def test_an_agent_without_a_network_reads_all_earlier_contents(
    confined: Workspaces, desk: Desk
) -> None:
    work = desk.hub.root / "work/acme/app"
    for number in range(3):
        (work / "src/app.py").write_text(f"print({number + 2})\n")
        run_git(work, "commit", "-qam", f"Change {number}")
    run_git(work, "push", "-q", str(desk.hub.bare()), "main")
    # The cache of a time without a sandbox lacks the contents of files.
    free, desk.settings = desk.settings, desk.settings.model_copy(update={"sandbox": "off"})
    early = await (await desk.open()).provision("ada", desk.url, branch="early")
    mirror = next((desk.base / "mirrors").iterdir())
    assert run_git(mirror, "config", "remote.origin.partialclonefilter") == "blob:none"
    assert "?" in run_git(mirror, "rev-list", "--objects", "--missing=print", "main")
    desk.settings = free
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url, branch="late")
    assert "?" not in run_git(mirror, "rev-list", "--objects", "--missing=print", "main")
    for one in (early, record):
        code, told = await as_agent(desk, workspaces, one, "git log -p --format=%s && git blame src/app.py")
        assert code == 0, told
        assert "-print(1)" in told
        assert "+print(4)" in told


@pytest.mark.parametrize("sandbox", ["on", "off"])
async def test_004_T24_git_in_a_session_gets_credentials_through_its_keeper(
    hub: Hub, tmp_path: Path, sandbox: str
) -> None:
    forge = {"kind": "gitea", "token": TOKEN, "read_token": READ_TOKEN}
    async with agents(
        tmp_path / "gateway",
        sandbox=sandbox,
        network="open",
        workspaces={"hosts": [hub.url]},
        forges={hub.host: forge},
    ) as rig:
        workspaces = (await rig.plugin.desk()).services.workspaces
        record = await workspaces.provision(OWNER, f"{hub.url}/acme/app", branch="work")
        session = await rig.spawn(workspace=record.id)
        try:
            await until_status(session, "ready")
            for command, shown in (
                ("git fetch -q origin; echo code=$?", "code=0"),
                ("git push -q origin HEAD:stolen 2>/dev/null || echo re''fused", "refused"),
                ("env | grep -c tok''en- || echo no''thing", "nothing"),
                ("git commit -q --allow-empty -m By-the-agent; git log --format=got-%s", "got-By-the-agent"),
            ):
                await rig.sessions.send(session.record.id, OWNER, text=command)
                await until(session, lambda wanted=shown: wanted in "\n".join(session.tail(40)))
                await until_status(session, "ready")
            result = await workspaces.finalize(record.id, OWNER, pr=False)
            assert hub.log("work") == ["By-the-agent", "First"]
            assert workspaces.get(record.id, OWNER).commit == result.commit
        finally:
            await session.stop(force=True)


@pytest.mark.parametrize("sandbox", ["on", "off"])
async def test_a_session_pauses_while_its_workspace_is_too_large(
    hub: Hub, tmp_path: Path, sandbox: str
) -> None:
    limits = {"hosts": [hub.url], "max_bytes": 3_000_000}
    forges = {hub.host: {"kind": "gitea", "token": TOKEN}}
    async with agents(tmp_path / "gateway", sandbox=sandbox, workspaces=limits, forges=forges) as rig:
        workspaces = (await rig.plugin.desk()).services.workspaces
        record = await workspaces.provision(OWNER, f"{hub.url}/acme/app")
        session = await rig.spawn(workspace=record.id)
        try:
            await until_status(session, "ready")
            await rig.sessions.send(
                session.record.id, OWNER, text="bash -c 'while :; do date > now; sleep 1; done'"
            )
            now = workspaces.places.tree(record.id) / "now"
            await waited(now.exists)
            assert named(session.record.id, "bash")
            big = workspaces.places.tree(record.id) / "big"
            big.write_bytes(b"x" * 4_000_000)
            await workspaces.sweep()
            await waited(lambda: all(is_stopped(pid) for pid in named(session.record.id, "bash")))
            big.unlink()
            await workspaces.sweep()
            await waited(lambda: not any(is_stopped(pid) for pid in named(session.record.id, "bash")))
            now.unlink()
            await waited(now.exists)
        finally:
            await session.stop(force=True)


async def waited(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(SECONDS):
        while not holds():
            await asyncio.sleep(0.05)


def named(session_id: str, name: str) -> list[int]:
    """Return the processes of a session with a name."""
    return [pid for pid in processes(session_id) if f"({name}) " in stat(pid)]


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped a process."""
    return ") T " in stat(pid)


def stat(pid: int) -> str:
    """Return what the kernel says about a process, "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
