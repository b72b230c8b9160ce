"""A host of repositories: real git over smart HTTP with a token, and pull requests in memory."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from gateway.events import BusEvent
from gateway.store.database import Store
from gateway.tables import PluginTables
from plugins.coding_agents.forges.contract import Check, Comment, Forge, NewPullRequest, PullRequest
from plugins.coding_agents.settings import CodingAgentSettings
from plugins.coding_agents.workspaces import Confine, WorkspaceHost, WorkspaceRecord, Workspaces, unconfined
from plugins.coding_agents.workspaces.records import Rights

TOKEN = "token-of-the-gateway"
READ_TOKEN = "token-for-reading"
ENV = {
    "PATH": os.environ.get("PATH", os.defpath),
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    **{f"GIT_{role}_NAME": "Ada" for role in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{role}_EMAIL": "ada@example.org" for role in ("AUTHOR", "COMMITTER")},
}


def run_git(folder: Path, *arguments: str) -> str:
    """Run git as a user would."""
    argv = ["git", "-c", "init.defaultBranch=main", *arguments]
    done = subprocess.run(argv, cwd=folder, env=ENV, check=True, capture_output=True)
    return done.stdout.decode().strip()


class Hub:
    """A server at a real socket. ``repositories`` are bare ones below ``root``, by OWNER/NAME.git."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = ""
        self.asked: list[tuple[str, str]] = []
        """User agents' requests: path with query, and the password that was sent."""
        self.tokens = {TOKEN: "write", READ_TOKEN: "read"}
        self.holds: list[str] = []
        """Pushes that get no answer: ``before`` they are carried out, or ``after`` that."""
        self.held = asyncio.Event()
        """Set when such a push waits."""
        self.redirect = ""
        """The address to which requests are redirected."""

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    def make(self, name: str = "acme/app", files: dict[str, str] | None = None) -> Path:
        """Make a repository with one commit on main."""
        work = self.root / "work" / name
        work.mkdir(parents=True)
        run_git(work, "init", "-q")
        for path, text in (files or {"README.md": "# App\n", "src/app.py": "print(1)\n"}).items():
            (work / path).parent.mkdir(parents=True, exist_ok=True)
            (work / path).write_text(text)
        run_git(work, "add", "-A")
        run_git(work, "commit", "-q", "-m", "First")
        bare = self.bare(name)
        bare.parent.mkdir(parents=True, exist_ok=True)
        run_git(self.root, "clone", "-q", "--bare", str(work), str(bare))
        run_git(bare, "config", "http.receivepack", "true")
        run_git(bare, "config", "uploadpack.allowFilter", "true")
        run_git(bare, "config", "uploadpack.allowAnySHA1InWant", "true")
        return work

    def bare(self, name: str = "acme/app") -> Path:
        return self.root / "served" / f"{name}.git"

    def log(self, branch: str, name: str = "acme/app", form: str = "%s") -> list[str]:
        return run_git(self.bare(name), "log", f"--format={form}", branch).splitlines()

    async def answer(self, request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "").removeprefix("Basic ")
        password = base64.b64decode(given).decode().partition(":")[2] if given else ""
        self.asked.append((request.path_qs, password))
        if self.redirect:
            return web.Response(status=302, headers={"Location": f"{self.redirect}{request.path_qs}"})
        writes = "git-receive-pack" in request.path_qs
        rights = self.tokens.get(password, "")
        if rights != "write" and (writes or rights != "read"):
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="git"'})
        body = await request.read()
        held = self.holds.pop(0) if self.holds and request.path.endswith("/git-receive-pack") else ""
        if held == "before":
            await self._hold()
        environ = {
            "PATH": ENV["PATH"],
            "GIT_PROJECT_ROOT": str(self.root / "served"),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
            "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
            "REQUEST_METHOD": request.method,
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query_string,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "REMOTE_USER": "ada",
            "REMOTE_ADDR": "127.0.0.1",
        }
        done = await asyncio.to_thread(
            subprocess.run, ["git", "http-backend"], input=body, env=environ, capture_output=True, check=False
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        status = int(headers.pop("Status", "200").split()[0])
        if held:
            await self._hold()
        return web.Response(status=status, body=content, headers=headers)

    async def _hold(self) -> None:
        self.held.set()
        await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def serving(root: Path) -> AsyncIterator[Hub]:
    """Serve repositories."""
    hub = Hub(root)
    (root / "served").mkdir(parents=True)
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", hub.answer)
    # Bodies reach git as they were sent.
    runner = web.AppRunner(app, auto_decompress=False, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    hub.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield hub
    finally:
        await runner.cleanup()


class Pulls:
    """The pull requests of one repository."""

    host, repository = "127.0.0.1", "acme/app"

    def __init__(self) -> None:
        self.made: list[NewPullRequest] = []
        self.failures: list[Exception] = []

    async def create_pr(self, draft: NewPullRequest) -> PullRequest:
        if self.failures:
            raise self.failures.pop(0)
        self.made.append(draft)
        return self._pull(len(self.made))

    async def find_pr(self, head: str, base: str = "") -> PullRequest | None:
        numbers = [n for n, draft in enumerate(self.made, 1) if draft.head == head]
        return self._pull(numbers[-1]) if numbers else None

    async def pr_state(self, number: int) -> PullRequest:
        return self._pull(number)

    async def checks(self, sha: str) -> Sequence[Check]:
        return ()

    async def comments(self, number: int) -> Sequence[Comment]:
        return ()

    async def comment(self, number: int, text: str) -> Comment:
        return Comment(id="1", author="ada", body=text)

    def _pull(self, number: int) -> PullRequest:
        draft = self.made[number - 1]
        return PullRequest(
            number=number,
            url=f"https://git.example.org/acme/app/pull/{number}",
            state="open",
            title=draft.title,
            head=draft.head,
            base=draft.base,
            sha="",
        )


class Desk:
    """Workspaces with all that they need; ``workspaces`` may be replaced as by a restart."""

    def __init__(self, base: Path, hub: Hub, store: Store, **settings: Any) -> None:
        self.base = base
        self.hub = hub
        self.pulls = Pulls()
        self.now = 1_795_000_000_000
        self.events: list[BusEvent] = []
        self.audited: list[tuple[str, str, str, str]] = []
        self.paused: list[tuple[str, str]] = []
        self.tables = PluginTables(store)
        given = {"hosts": [hub.url], **settings.pop("workspaces", {})}
        self.settings = CodingAgentSettings.model_validate({"workspaces": given, **settings})
        self.has_read_token = False
        self.used: set[str] = set()
        self.confine: Confine = unconfined
        self.node = ""
        """The node whose machine alone has the files."""

    @property
    def url(self) -> str:
        return f"{self.hub.url}/acme/app"

    @property
    def names(self) -> list[str]:
        return [event.event_name() for event in self.events]

    async def open(self) -> Workspaces:
        """Start the workspaces, as a gateway does."""
        host = WorkspaceHost(
            table=lambda name: self.tables.open("coding_agents", name),
            environ=ENV,
            forge_for=self.forge_for,
            login=self.login,
            audit=self.audit,
            emit=self.events.append,
            pause=self.pause,
            used=lambda _owner: self.used,
            confine=self.confine,
            node=self.node,
        )
        workspaces = Workspaces(self.settings, self.base, host, clock=lambda: self.now)
        await workspaces.start()
        return workspaces

    def forge_for(self, url: str) -> Forge:
        assert url == f"{self.url}.git"
        return self.pulls

    def login(self, url: str, rights: Rights) -> tuple[str, str] | None:
        if rights == "write":
            return ("x-access-token", TOKEN)
        return ("x-access-token", READ_TOKEN) if self.has_read_token else None

    async def audit(self, action: str, subject: str, detail: str = "", *, actor: str = "") -> None:
        self.audited.append((actor, action, subject, detail))

    async def pause(self, record: WorkspaceRecord, reason: str) -> None:
        self.paused.append((record.id, reason))


def plain(record: WorkspaceRecord) -> dict[str, Any]:
    """A record as the table has it."""
    found: dict[str, Any] = msgspec.to_builtins(record)
    return found
