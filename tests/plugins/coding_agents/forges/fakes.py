"""Fakes of GitHub, GitLab and Gitea on real sockets, with their documented paths, fields and statuses.

::

    async with fake_forge("github") as fake:
        async with reaching(fake) as forges:
            forge = forges.forge_for(fake.url)
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from msgspec import Struct

from plugins.coding_agents.forges import Forges
from plugins.coding_agents.settings import CodingAgentSettings

TOKEN = "frg-0123456789abcdef0123456789"
KINDS = ("github", "gitlab", "gitea")
SHA = "5d3f1c9e" * 5

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Scripted(Struct, frozen=True):
    """An answer that replaces the next one. ``hold`` delays it until the client has gone."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}
    hold: bool = False
    carry_out: bool = False
    """Do what was asked before this answer."""
    method: str = ""
    """The method of the request that gets it, by default any."""
    path: str = ""
    """The end of its path, by default any."""

    def answers(self, request: web.Request) -> bool:
        """Return whether a request gets it."""
        return self.method in ("", request.method) and request.path.endswith(self.path)


class FakePull(Struct):
    number: int
    head: str
    base: str
    title: str
    body: str
    draft: bool = False
    state: str = "open"
    sha: str = SHA


class FakeForge:
    """One service with one repository. ``requests`` are all requests, as method and path."""

    def __init__(self, kind: str, repository: str = "") -> None:
        self.kind = kind
        self.repository = repository or ("group/acme/app" if kind == "gitlab" else "acme/app")
        self.address = ""
        self.pulls: list[FakePull] = []
        self.comments: list[dict[str, Any]] = []
        """Comments with ``kind`` (comment, review or line), ``author``, ``body``, ``path`` and ``line``."""
        self.checks: list[tuple[str, str]] = []
        """Names and states: pending, passed or failed."""
        self.requests: list[tuple[str, str]] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.state_of_new = "open"
        """The state of pull requests once they are opened: some rules merge at once."""
        self.unchanged = 0
        """Requests that were answered with 304."""
        self.scripted = asyncio.Event()
        """Set when a replaced answer is due."""
        self._answers: deque[Scripted] = deque()

    @property
    def host(self) -> str:
        return self.address.removeprefix("http://")

    @property
    def url(self) -> str:
        """The address of the repository."""
        return f"{self.address}/{self.repository}"

    def then(self, *answers: Scripted) -> None:
        """Replace the next answers."""
        self._answers.extend(answers)

    def add_comment(self, body: str, kind: str = "comment", author: str = "ada", **more: Any) -> None:
        self.comments.append({"kind": kind, "author": author, "body": body, **more})

    def count(self, method: str, ending: str) -> int:
        return sum(one == method and path.endswith(ending) for one, path in self.requests)

    def app(self) -> web.Application:
        @web.middleware
        async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._answer(request, handler)

        app = web.Application(middlewares=[answer])
        for add in _PARTS[self.kind]:
            add(self, app.router)
        return app

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        self.headers.append(request.headers)
        if request.method == "POST":
            self.bodies.append(await request.json())
        if self._answers and self._answers[0].answers(request):
            scripted = self._answers.popleft()
            if scripted.carry_out:
                await handler(request)
            self.scripted.set()
            if scripted.hold:
                await asyncio.get_running_loop().create_future()
            return web.Response(status=scripted.status, body=scripted.body, headers=scripted.headers)
        wanted = f"token {TOKEN}" if self.kind == "gitea" else f"Bearer {TOKEN}"
        if request.headers.get("Authorization") != wanted:
            message = {"github": "Bad credentials", "gitlab": "401 Unauthorized"}.get(
                self.kind, "invalid username, password or token"
            )
            return web.json_response({"message": message}, status=401)
        response = await handler(request)
        return self._tagged(request, response) if self.kind != "gitea" else response

    def _tagged(self, request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
        if request.method != "GET" or not isinstance(response, web.Response):
            return response
        etag = f'W/"{hashlib.sha256(response.body or b"").hexdigest()}"'
        if request.headers.get("If-None-Match") == etag:
            self.unchanged += 1
            return web.Response(status=304, headers={"ETag": etag})
        response.headers["ETag"] = etag
        return response

    def open(self, head: str, base: str, title: str, body: str, draft: bool = False) -> FakePull | None:
        """Open a pull request; None if these branches have an open one."""
        if any((one.head, one.base, one.state) == (head, base, "open") for one in self.pulls):
            return None
        self.pulls.append(FakePull(len(self.pulls) + 5, head, base, title, body, draft, self.state_of_new))
        return self.pulls[-1]

    def pull(self, request: web.Request) -> FakePull:
        number = int(request.match_info["number"])
        found = next((one for one in self.pulls if one.number == number), None)
        if found is None:
            raise web.HTTPNotFound(text='{"message": "Not Found"}', content_type="application/json")
        return found

    def page(self, request: web.Request, entries: list[Any], field: str = "", **rest: Any) -> web.Response:
        """Answer with one page, as a list or in a field, and the header that names the next one."""
        size = int(request.query.get("per_page", request.query.get("limit", "30")))
        page = int(request.query.get("page", "1"))
        following = f'<{request.url.update_query(page=page + 1)}>; rel="next"'
        more = {"Link": following} if len(entries) > page * size else {}
        shown = entries[(page - 1) * size : page * size]
        return web.json_response({field: shown, **rest} if field else shown, headers=more)


def _github(fake: FakeForge, router: web.UrlDispatcher) -> None:
    base = f"/repos/{fake.repository}"

    def shown(pull: FakePull) -> dict[str, Any]:
        return {
            "id": pull.number + 1000,
            "number": pull.number,
            "html_url": f"{fake.url}/pull/{pull.number}",
            "state": "open" if pull.state == "open" else "closed",
            "draft": pull.draft,
            "title": pull.title,
            "body": pull.body,
            "merged_at": "2026-11-27T10:00:00Z" if pull.state == "merged" else None,
            "head": {"label": f"acme:{pull.head}", "ref": pull.head, "sha": pull.sha},
            "base": {"label": f"acme:{pull.base}", "ref": pull.base, "sha": "0" * 40},
        }

    async def create(request: web.Request) -> web.Response:
        given = await request.json()
        pull = fake.open(given["head"], given["base"], given["title"], given["body"], given["draft"])
        if pull is None:
            message = f"A pull request already exists for acme:{given['head']}."
            errors = [{"resource": "PullRequest", "code": "custom", "message": message}]
            return web.json_response({"message": "Validation Failed", "errors": errors}, status=422)
        return web.json_response(shown(pull), status=201)

    async def listed(request: web.Request) -> web.Response:
        head, into = request.query.get("head", ""), request.query.get("base")
        found = [
            shown(one)
            for one in fake.pulls
            if one.state == "open" and head in ("", f"acme:{one.head}") and into in (None, one.base)
        ]
        return fake.page(request, found)

    async def one(request: web.Request) -> web.Response:
        return web.json_response(shown(fake.pull(request)))

    router.add_post(f"{base}/pulls", create)
    router.add_get(f"{base}/pulls", listed)
    router.add_get(f"{base}/pulls/{{number}}", one)


def _github_talk(fake: FakeForge, router: web.UrlDispatcher) -> None:
    base = f"/repos/{fake.repository}"

    def comments(*kinds: str) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            number = fake.pull(request).number
            return fake.page(request, [seen(at, one, number) for at, one in enumerate(fake.comments)
                                       if one["kind"] in kinds])  # fmt: skip

        return handler

    def seen(at: int, one: dict[str, Any], number: int) -> dict[str, Any]:
        return {
            "id": at,
            "html_url": f"{fake.url}/pull/{number}#{at}",
            "body": one["body"],
            "user": {"login": one["author"]},
            "state": "PENDING" if one["kind"] == "pending" else "COMMENTED",
            "path": one.get("path", ""),
            "line": one.get("line"),
            "original_line": one.get("line"),
        }

    async def runs(request: web.Request) -> web.Response:
        ended = {"passed": "success", "failed": "failure"}
        found = [
            {
                "id": at,
                "name": name,
                "status": "in_progress" if state == "pending" else "completed",
                "conclusion": ended.get(state),
                "html_url": f"{fake.url}/runs/{at}",
                "output": {"title": f"{name} {state}"},
            }
            for at, (name, state) in enumerate(fake.checks)
        ]
        return fake.page(request, found, "check_runs", total_count=len(found))

    async def status(request: web.Request) -> web.Response:
        return web.json_response({"state": "pending", "statuses": [], "sha": SHA, "total_count": 0})

    router.add_get(f"{base}/issues/{{number}}/comments", comments("comment"))
    router.add_get(f"{base}/pulls/{{number}}/reviews", comments("review", "pending"))
    router.add_get(f"{base}/pulls/{{number}}/comments", comments("line"))
    router.add_get(f"{base}/commits/{{sha}}/check-runs", runs)
    router.add_get(f"{base}/commits/{{sha}}/status", status)


def _gitlab(fake: FakeForge, router: web.UrlDispatcher) -> None:
    base = f"/projects/{{project:{fake.repository.replace('/', '%2F')}}}"

    def shown(pull: FakePull) -> dict[str, Any]:
        return {
            "id": pull.number + 1000,
            "iid": pull.number,
            "web_url": f"{fake.url}/-/merge_requests/{pull.number}",
            "state": "opened" if pull.state == "open" else pull.state,
            "draft": pull.draft,
            "title": pull.title,
            "description": pull.body,
            "source_branch": pull.head,
            "target_branch": pull.base,
            "sha": pull.sha,
        }

    async def create(request: web.Request) -> web.Response:
        given = await request.json()
        pull = fake.open(
            given["source_branch"], given["target_branch"], given["title"], given["description"],
            given["title"].startswith("Draft: "),
        )  # fmt: skip
        if pull is None:
            message = "Another open merge request already exists for this source branch: !5"
            return web.json_response({"message": [message]}, status=409)
        return web.json_response(shown(pull), status=201)

    async def listed(request: web.Request) -> web.Response:
        source, target = request.query.get("source_branch"), request.query.get("target_branch")
        return fake.page(
            request,
            [
                shown(one)
                for one in fake.pulls
                if one.state == "open" and source in (None, one.head) and target in (None, one.base)
            ],
        )

    def note(at: int, one: dict[str, Any]) -> dict[str, Any]:
        position = {"new_path": one.get("path"), "new_line": one.get("line"), "old_line": None}
        return {
            "id": at,
            "type": "DiffNote" if "path" in one else None,
            "body": one["body"],
            "author": {"username": one["author"]},
            "system": one["kind"] == "system",
            **({"position": position} if "path" in one else {}),
        }

    async def notes(request: web.Request) -> web.Response:
        fake.pull(request)
        found = [note(at, one) for at, one in enumerate(fake.comments) if one["kind"] != "pending"]
        return fake.page(request, found)

    async def statuses(request: web.Request) -> web.Response:
        states = {"passed": "success", "failed": "failed", "pending": "running"}
        return fake.page(
            request,
            [
                {"id": at, "name": name, "status": states[state], "target_url": f"{fake.url}/-/jobs/{at}",
                 "description": f"{name} {state}", "allow_failure": False}
                for at, (name, state) in enumerate(fake.checks)
            ],
        )  # fmt: skip

    async def one(request: web.Request) -> web.Response:
        return web.json_response(shown(fake.pull(request)))

    router.add_post(f"{base}/merge_requests", create)
    router.add_get(f"{base}/merge_requests", listed)
    router.add_get(f"{base}/merge_requests/{{number}}", one)
    router.add_get(f"{base}/merge_requests/{{number}}/notes", notes)
    router.add_get(f"{base}/repository/commits/{{sha}}/statuses", statuses)


def _gitea(fake: FakeForge, router: web.UrlDispatcher) -> None:
    base = f"/repos/{fake.repository}"

    def shown(pull: FakePull) -> dict[str, Any]:
        return {
            "id": pull.number + 1000,
            "number": pull.number,
            "html_url": f"{fake.url}/pulls/{pull.number}",
            "state": "open" if pull.state == "open" else "closed",
            "merged": pull.state == "merged",
            "title": pull.title,
            "body": pull.body,
            "head": {"label": pull.head, "ref": pull.head, "sha": pull.sha, "repo_id": 7},
            "base": {"label": pull.base, "ref": pull.base, "sha": "0" * 40, "repo_id": 7},
        }

    async def create(request: web.Request) -> web.Response:
        given = await request.json()
        pull = fake.open(
            given["head"], given["base"], given["title"], given["body"], given["title"].startswith("WIP: ")
        )
        if pull is None:
            message = "pull request already exists for these targets [id: 1, issue_id: 5]"
            return web.json_response({"message": message, "url": f"{fake.address}/api/swagger"}, status=409)
        return web.json_response(shown(pull), status=201)

    async def listed(request: web.Request) -> web.Response:
        return fake.page(request, [shown(one) for one in fake.pulls if one.state == "open"])

    async def one(request: web.Request) -> web.Response:
        return web.json_response(shown(fake.pull(request)))

    router.add_post(f"{base}/pulls", create)
    router.add_get(f"{base}/pulls", listed)
    router.add_get(f"{base}/pulls/{{number}}", one)


def _gitea_talk(fake: FakeForge, router: web.UrlDispatcher) -> None:
    base = f"/repos/{fake.repository}"

    def seen(at: int, one: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": at,
            "html_url": f"{fake.url}/pulls/5#{at}",
            "body": one["body"],
            "user": {"login": one["author"]},
            "path": one.get("path", ""),
            "position": one.get("line", 0),
            "original_position": 0,
        }

    async def comments(request: web.Request) -> web.Response:
        fake.pull(request)
        return web.json_response(
            [seen(at, one) for at, one in enumerate(fake.comments) if one["kind"] == "comment"]
        )

    async def reviews(request: web.Request) -> web.Response:
        fake.pull(request)
        states = {"review": "COMMENT", "line": "COMMENT", "pending": "PENDING"}
        return fake.page(
            request,
            [
                {"id": at, "state": states[one["kind"]], "html_url": f"{fake.url}/pulls/5#{at}",
                 "body": "" if one["kind"] == "line" else one["body"], "user": {"login": one["author"]},
                 "comments_count": int(one["kind"] == "line")}
                for at, one in enumerate(fake.comments)
                if one["kind"] in states
            ],
        )  # fmt: skip

    async def lines(request: web.Request) -> web.Response:
        at = int(request.match_info["review"])
        return web.json_response([seen(at, fake.comments[at])])

    async def status(request: web.Request) -> web.Response:
        states = {"passed": "success", "failed": "failure", "pending": "pending"}
        found = [
            {"id": at, "context": name, "status": states[state], "target_url": f"{fake.url}/actions/{at}",
             "description": f"{name} {state}"}
            for at, (name, state) in enumerate(fake.checks)
        ]  # fmt: skip
        # It has pages of 30 and no header that names the next one.
        size = min(50, int(request.query.get("limit", "30")))
        page = int(request.query.get("page", "1"))
        shown = found[(page - 1) * size : page * size]
        return web.json_response({"state": "pending", "sha": SHA, "statuses": shown or None})

    router.add_get(f"{base}/issues/{{number}}/comments", comments)
    router.add_get(f"{base}/pulls/{{number}}/reviews", reviews)
    router.add_get(f"{base}/pulls/{{number}}/reviews/{{review}}/comments", lines)
    router.add_get(f"{base}/commits/{{sha}}/status", status)


_PARTS: Mapping[str, tuple[Callable[[FakeForge, web.UrlDispatcher], None], ...]] = {
    "github": (_github, _github_talk),
    "gitlab": (_gitlab,),
    "gitea": (_gitea, _gitea_talk),
}


@asynccontextmanager
async def fake_forge(kind: str, repository: str = "") -> AsyncGenerator[FakeForge]:
    """Run a fake on a free port."""
    fake = FakeForge(kind, repository)
    runner = web.AppRunner(fake.app(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fake.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield fake
    finally:
        await runner.cleanup()


@asynccontextmanager
async def reaching(fake: FakeForge, token: str = TOKEN, seconds: float = 20.0) -> AsyncGenerator[Forges]:
    """Yield clients whose settings name the fake."""
    settings = CodingAgentSettings.model_validate(
        {"forges": {fake.host: {"kind": fake.kind, "base_url": fake.address, "token": token}}}
    )
    forges = Forges(settings, {}, seconds=seconds)
    try:
        yield forges
    finally:
        await forges.close()
