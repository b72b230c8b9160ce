"""The fake's REST API: routing, authorization and responses, and the application's account."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from email.utils import formatdate
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from aiohttp import BodyPartReader, web

from channels.discord.fake.calls import (
    BAD_USER_AGENT,
    INVALID_JSON,
    NOT_FOUND,
    TOO_LARGE,
    UNAUTHORIZED,
    UNKNOWN_MEMBER,
    UNKNOWN_USER,
    WRONG_METHOD,
    Access,
    Answer,
    ApiCall,
    ApiError,
    Handler,
    Upload,
    check_call,
    schemas,
)
from channels.discord.fake.limits import Figures, RateLimited, RateLimits
from channels.discord.fake.payloads import GuildViews, Views
from channels.discord.fake.state import World
from gateway.testing.fake_platform import Clock, FakeServer, Fault, Window, as_json, cut


class Account:
    """The application's account: its token, its privileged intents, and its logins.

    More logins in a day than the limit allows make the gateway replace the token. ``shards`` is the number
    of shards that it requires, and recommends.
    """

    def __init__(self, clock: Clock, figures: Figures, token: str, privileged: frozenset[str]) -> None:
        self.token = token
        self.privileged = privileged
        self._clock = clock
        self._figures = figures
        self._identifies = Window(clock, figures.identifies, figures.identify_window)
        self.shards = 1
        self._last: dict[int, float] = {}

    def identify(self, shard: int) -> bool:
        """Count a login. Returns False if it comes too soon after the one before of the same bucket."""
        self._identifies.count()
        now, bucket = self._clock.now(), shard % self._figures.max_concurrency
        if now < self._last.get(bucket, float("-inf")) + self._figures.identify_interval:
            return False
        self._last[bucket] = now
        return True

    def spend(self, identifies: int) -> None:
        """Count a number of logins."""
        self._identifies.count(identifies)

    def reset(self) -> None:
        """Replace the token."""
        self.token = secrets.token_urlsafe(24)

    @property
    def remaining(self) -> int:
        """Return the number of logins that are left today."""
        return max(0, self._figures.identifies - self._identifies.used)

    @property
    def reset_after(self) -> float:
        """Return the seconds until the oldest counted login expires."""
        return self._identifies.reset_after

    @property
    def exhausted(self) -> bool:
        """Return whether there were more logins than a day allows."""
        return self._identifies.used > self._figures.identifies


class AccountRoutes:
    """Handlers of the calls about the gateway, the application, users and guilds.

    ``gateway_url`` is the gateway's URL, set once the server listens.
    """

    def __init__(
        self, world: World, views: Views, guilds: GuildViews, account: Account, figures: Figures
    ) -> None:
        self.gateway_url = ""
        self._world = world
        self._views = views
        self._guilds = guilds
        self._account = account
        self._figures = figures
        self._access = Access(world)

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers of these calls, by name."""
        return {
            "GET /gateway": lambda _: Answer(200, {"url": self.gateway_url}),
            "GET /gateway/bot": lambda _: Answer(200, self._gateway()),
            "GET /users/@me": lambda _: Answer(200, self._views.myself()),
            "GET /applications/@me": lambda _: Answer(200, self._guilds.application()),
            "GET /oauth2/applications/@me": lambda _: Answer(200, self._guilds.application()),
            "GET /users/@me/guilds": lambda _: Answer(200, self._listed()),
            "GET /users/{user_id}": self._user,
            "GET /guilds/{guild_id}": self._guild,
            "GET /guilds/{guild_id}/channels": self._channels,
            "GET /guilds/{guild_id}/roles": self._roles,
            "GET /guilds/{guild_id}/members/{user_id}": self._member,
        }

    def _gateway(self) -> dict[str, Any]:
        limit = {
            "total": self._figures.identifies,
            "remaining": self._account.remaining,
            "reset_after": int(self._account.reset_after * 1000),
            "max_concurrency": self._figures.max_concurrency,
        }
        return {"url": self.gateway_url, "shards": self._account.shards, "session_start_limit": limit}

    def _listed(self) -> list[dict[str, Any]]:
        return [self._guilds.listed(guild) for guild in self._world.guilds.values()]

    def _user(self, call: ApiCall) -> Answer:
        user = self._world.users.get(call.id("user_id"))
        if user is None:
            raise ApiError(UNKNOWN_USER)
        return Answer(200, self._views.user(user))

    def _guild(self, call: ApiCall) -> Answer:
        return Answer(200, self._guilds.guild(self._access.guild(call)))

    def _channels(self, call: ApiCall) -> Answer:
        guild = self._access.guild(call)
        chats = [chat for chat in self._world.channels.values() if chat.guild == guild.id]
        return Answer(200, [self._views.channel(chat) for chat in chats if chat.thread is None])

    def _roles(self, call: ApiCall) -> Answer:
        return Answer(200, list(self._views.roles(self._access.guild(call))))

    def _member(self, call: ApiCall) -> Answer:
        guild = self._access.guild(call)
        if call.id("user_id") not in guild.members:
            raise ApiError(UNKNOWN_MEMBER)
        return Answer(200, self._views.member(guild, self._world.users[call.id("user_id")]))


class Router:
    """Table of the known calls, by verb and path template."""

    def __init__(self, calls: Iterable[str]) -> None:
        names = [name.split(" ", 1) for name in calls]
        self._routes = [(verb, template, template.split("/")) for verb, template in names]
        # "@me" has to match before a template with an id.
        self._routes.sort(key=lambda route: route[1].count("{"))

    def match(self, verb: str, path: str) -> tuple[str, Mapping[str, str]]:
        """Return the name of a call and the values in its path. Raises ApiError."""
        parts = [unquote(part) for part in path.split("/")]
        found = False
        for known, template, wanted in self._routes:
            gaps = _gaps(wanted, parts)
            if gaps is not None and known == verb:
                return f"{verb} {template}", gaps
            found = found or gaps is not None
        if found:
            raise ApiError(WRONG_METHOD, f"no {verb} {path}")
        raise ApiError(NOT_FOUND, f"the fake has no {path}")


def _gaps(wanted: Sequence[str], parts: Sequence[str]) -> Mapping[str, str] | None:
    """Return the values of a template's gaps; None if the path does not match it."""
    if len(wanted) != len(parts):
        return None
    gaps: dict[str, str] = {}
    for template, part in zip(wanted, parts, strict=True):
        if template.startswith("{") and part:
            gaps[template[1:-1]] = part
        elif template != part:
            return None
    return gaps


PREFIXES: Final = ("/api/v10", "/api/v9")
_AGENT: Final = re.compile(r"DiscordBot \(.+\)")
_FILE: Final = re.compile(r"files\[(\d+)\]")
_PLACING: Final = re.compile(r"(POST|PATCH) .*(/messages|/messages/\{message_id\}|_token\}.*)")
"""Calls that send or edit a message."""
_SLOW_SECONDS: Final = 0.2
_VIA: Final = {"Via": "1.1 google", "Server": "cloudflare"}


class Api:
    """HTTP handler of the REST API."""

    def __init__(
        self,
        fake: FakeServer,
        handlers: Mapping[str, Handler],
        account: Account,
        figures: Figures,
        limits: RateLimits,
    ) -> None:
        self._fake = fake
        self._handlers = handlers
        self._account = account
        self._figures = figures
        self._limits = limits
        self._router = Router(schemas().at("calls"))

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Handle one call, or inject a fault: match, authorize, limit, validate, apply and record it."""
        if (seconds := self._limits.banned) > 0:
            self._fake.record(request.path, {}, "called while the address is banned", status=429)
            return _banned(seconds)
        path = request.rel_url.raw_path
        version = next((prefix for prefix in PREFIXES if path.startswith(prefix + "/")), "")
        name, arguments = f"{request.method} {path}", dict[str, Any]()
        fault: Fault = "none"
        headers: Mapping[str, str] = {}
        try:
            name, gaps = self._router.match(request.method, path[len(version) :])
            self._authorize(request, name)
            call = ApiCall(name=name, path=gaps, query=dict(request.query))
            arguments = call.arguments
            headers = self._limits.take(call)
            fault = self._fake.faults.of(name)
            call = await self._read(request, call)
            arguments = call.arguments
            if fault == "slow_down":
                raise self._limits.refusal(call, _SLOW_SECONDS)
            answer = self._apply(call) if fault not in ("fail_before", "drop_before") else Answer()
            answer = msgspec.structs.replace(answer, body=self._fake.faults.replace_answer(name, answer.body))
        except ApiError as error:
            answer = Answer(error.status, error.body(), error.problem)
            headers = error.headers if isinstance(error, RateLimited) else headers
            self._limits.note(error.status, shared=isinstance(error, RateLimited) and error.scope == "shared")
            fault = fault if fault == "slow_down" else "none"
        return self._answered(request, name, arguments, answer, fault, headers)

    def _authorize(self, request: web.Request, name: str) -> None:
        if "_token}" in name:  # the token of the interaction is enough
            return
        if not _AGENT.match(request.headers.get("User-Agent", "")):
            raise ApiError(BAD_USER_AGENT, "the user agent does not begin with `DiscordBot (…)`")
        if name == "GET /gateway":
            return
        if request.headers.get("Authorization", "") != f"Bot {self._account.token}":
            raise ApiError(UNAUTHORIZED)

    async def _read(self, request: web.Request, call: ApiCall) -> ApiCall:
        if (request.content_length or 0) > self._figures.request_bytes:
            raise ApiError(TOO_LARGE)
        if request.content_type == "multipart/form-data":
            body, files = await self._read_form(request)
            return msgspec.structs.replace(call, body=body, files=files)
        raw = await request.read()
        return msgspec.structs.replace(call, body=_json(raw)) if raw else call

    async def _read_form(self, request: web.Request) -> tuple[Any, tuple[Upload, ...]]:
        body: Any = {}
        files: list[Upload] = []
        async for part in await request.multipart():
            if not isinstance(part, BodyPartReader):
                continue
            data = await part.read()
            if part.name == "payload_json":
                body = _json(data)
            elif (match := _FILE.fullmatch(part.name or "")) is not None:
                files.append(Upload(int(match[1]), part.filename or "unknown", bytes(data)))
        return body, tuple(files)

    def _apply(self, call: ApiCall) -> Answer:
        ignored = check_call(call)
        answer = self._handlers[call.name](call)
        if _PLACING.fullmatch(call.name):
            self._fake.applied()
        problems = [problem for problem in (ignored, answer.problem) if problem]
        return msgspec.structs.replace(answer, problem="; ".join(problems) or None)

    def _answered(
        self,
        request: web.Request,
        name: str,
        arguments: Mapping[str, Any],
        answer: Answer,
        fault: Fault,
        headers: Mapping[str, str],
    ) -> web.StreamResponse:
        failed = fault.startswith(("fail", "drop"))
        status = 502 if failed else answer.status
        body = None if failed else answer.body
        problem = None if failed and fault.endswith("before") else answer.problem
        self._fake.record(name, arguments, problem, status=status, answer=body, fault=fault)
        if fault.startswith("drop"):
            cut(request)
        if failed:
            return web.Response(status=502, text="<html>502 Bad Gateway</html>", content_type="text/html")
        if body is None:
            return web.Response(status=status, headers={**_VIA, **headers})
        date = {"Date": formatdate(self._fake.clock.now(), usegmt=True)}
        return as_json(body, status, {**_VIA, **date, **headers})


def _json(raw: bytes | bytearray) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(INVALID_JSON) from error


def _banned(seconds: float) -> web.Response:
    return web.Response(
        status=429,
        text="error code: 1015",
        content_type="text/html",
        headers={"Retry-After": str(int(seconds) + 1), "Server": "cloudflare"},
    )
