"""The Web API: reads a call, applies rate limits and faults, and calls its method."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from math import ceil
from typing import cast

from aiohttp import web
from msgspec import Struct, field

from channels.slack.fake import accounts, chats, files, messages, people
from channels.slack.fake.accounts import Installer, basic
from channels.slack.fake.calls import Asked, Method, RefusalError, arguments, methods
from channels.slack.fake.state import Grant, Json, State
from gateway.testing.fake_platform import Clock, FakeServer, Fault, Patience, Window, as_json, cut

Answer = Callable[[Asked], Json]

METHODS: Mapping[str, Answer] = {
    "agents.sessions.rename": chats.rename_session,
    "agents.sessions.setStatus": chats.set_session_status,
    "assistant.threads.setStatus": chats.set_status,
    "assistant.threads.setSuggestedPrompts": chats.set_prompts,
    "assistant.threads.setTitle": chats.set_title,
    "auth.revoke": accounts.auth_revoke,
    "auth.test": accounts.auth_test,
    "bots.info": accounts.bot_info,
    "chat.appendStream": messages.append_stream,
    "chat.delete": messages.delete,
    "chat.getPermalink": messages.get_permalink,
    "chat.postEphemeral": messages.post_ephemeral,
    "chat.postMessage": messages.post_message,
    "chat.startStream": messages.start_stream,
    "chat.stopStream": messages.stop_stream,
    "chat.update": messages.update,
    "conversations.history": chats.history,
    "conversations.info": chats.info,
    "conversations.join": chats.join,
    "conversations.list": chats.listing,
    "conversations.members": chats.members,
    "conversations.open": chats.open_direct,
    "conversations.replies": chats.replies,
    "files.completeUploadExternal": files.complete_upload,
    "files.delete": files.delete_file,
    "files.getUploadURLExternal": files.get_upload_url,
    "files.info": files.file_info,
    "reactions.add": messages.reactions_add,
    "reactions.get": messages.reactions_get,
    "reactions.remove": messages.reactions_remove,
    "team.info": accounts.team_info,
    "users.conversations": chats.of_user,
    "users.info": accounts.user_info,
    "users.list": accounts.users_list,
    "views.open": people.open_view,
    "views.publish": people.publish_view,
    "views.push": people.open_view,
    "views.update": people.update_view,
}

PLACING = frozenset({"chat.postMessage", "chat.startStream", "files.completeUploadExternal"})
"""Methods that place a message, so that calling them twice places two."""

_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


class Read(Struct, kw_only=True):
    """A call as it came in. ``notes`` says what was wrong with its form."""

    method: str
    given: Json
    token: str | None
    basic: Json
    notes: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])


class WebApi:
    """Answers ``/api/{method}``."""

    def __init__(self, fake: FakeServer, state: State, installer: Installer, connect: Answer) -> None:
        self._fake = fake
        self._state = state
        self._limits = Limits(state.clock)
        self._answers = {**METHODS, "apps.connections.open": connect, "oauth.v2.access": installer.exchange}

    async def handle(self, request: web.Request) -> web.Response:
        """Answer a call."""
        read = await _read(request)
        fault = self._fake.faults.of(read.method)
        if fault in ("fail_before", "drop_before"):
            return self._spoilt(request, read, fault, {"ok": False, "error": "service_unavailable"}, 503)
        answer, problem, wait = self._answered(read, fault)
        if wait is not None:
            self._write(read, answer, 429, fault, problem)
            return _json(answer, 429, {"Retry-After": str(wait)})
        if answer["ok"] and read.method in PLACING:
            self._fake.applied()
        if fault in ("fail_after", "drop_after"):
            return self._spoilt(request, read, fault, {"ok": False, "error": "fatal_error"}, 500, problem)
        if answer["ok"]:
            answer = self._fake.faults.answered(read.method, answer)
        self._write(read, answer, 200, fault, problem)
        return _json(answer, 200, self._scopes(read))

    def _answered(self, read: Read, fault: Fault) -> tuple[Json, str | None, int | None]:
        """The answer, the problem, and how long to wait if the call came too early."""
        asked = None
        try:
            method, answer = self._method(read)
            asked = self._asked(read, method)
            wait = self._too_early(asked, fault)
            if wait is not None:
                problem = "; ".join(asked.notes) or None
                return {"ok": False, "error": "ratelimited"}, problem, wait
            asked.arguments = arguments(read.method, read.given, asked.notes)
            return _good(answer(asked), asked.warnings), "; ".join(asked.notes) or None, None
        except RefusalError as refusal:
            answer = {"ok": False, "error": refusal.error, **refusal.more}
            notes = [*(asked.notes if asked else read.notes), *([refusal.problem] if refusal.problem else [])]
            return answer, "; ".join(notes) or None, None

    def _method(self, read: Read) -> tuple[Method, Answer]:
        facts, answer = methods().get(read.method), self._answers.get(read.method)
        if facts is None or answer is None:
            raise RefusalError("unknown_method", "no such method", req_method=read.method)
        return facts, answer

    def _asked(self, read: Read, method: Method) -> Asked:
        """The call with who makes it. Raises RefusalError for tokens that do not do."""
        given = read.given
        if read.method == "oauth.v2.access":
            given = read.given = {**read.basic, **read.given}
            grant = Grant(token="", kind="app", team="", user="", scopes=set())
        else:
            grant = self._grant(read)
        asked = Asked(
            state=self._state,
            method=read.method,
            arguments=given,
            grant=grant,
            notes=read.notes,
            warnings=read.warnings,
        )
        if method.scopes:
            asked.need_scope(*method.scopes)
        return asked

    def _grant(self, read: Read) -> Grant:
        if read.token is None:
            raise RefusalError("not_authed", "no token")
        grant = self._state.tokens.get(read.token)
        if grant is None:
            raise RefusalError("invalid_auth", "a token that was never given out")
        if grant.revoked is not None:
            raise RefusalError(grant.revoked)
        wanted = ("app",) if read.method == "apps.connections.open" else ("bot", "user")
        if read.method != "auth.test" and grant.kind not in wanted:
            raise RefusalError("not_allowed_token_type", f"called with the token of a {grant.kind}")
        return grant

    def _too_early(self, asked: Asked, fault: Fault) -> int | None:
        wait = self._limits.impatient(asked)
        if wait is not None:
            asked.notes.append("called before Retry-After was over")
            return wait
        wait = self._state.switches.retry_after if fault == "slow_down" else self._limits.check(asked)
        if wait is not None:
            self._limits.refused(asked, wait)
        return wait

    def _scopes(self, read: Read) -> dict[str, str]:
        grant = self._state.tokens.get(read.token or "")
        return {"X-OAuth-Scopes": ",".join(sorted(grant.scopes))} if grant is not None else {}

    def _spoilt(
        self,
        request: web.Request,
        read: Read,
        fault: Fault,
        answer: Json,
        status: int,
        problem: str | None = None,
    ) -> web.Response:
        self._write(read, answer, status, fault, problem)
        if fault.startswith("drop"):
            cut(request)
        return _json(answer, status)

    def _write(self, read: Read, answer: Json, status: int, fault: Fault, problem: str | None) -> None:
        self._fake.record(read.method, read.given, problem, status=status, answer=answer, fault=fault)


def _good(answer: Json, warnings: list[str]) -> Json:
    if not warnings:
        return {"ok": True, **answer}
    return {
        "ok": True,
        **answer,
        "warning": ",".join(warnings),
        "response_metadata": {**answer.get("response_metadata", {}), "warnings": warnings},
    }


async def _read(request: web.Request) -> Read:
    """The arguments of a call, from its query, a form or JSON, and its token."""
    method = request.match_info["method"]
    header = request.headers.get("Authorization", "")
    token = header.removeprefix("Bearer ") if header.startswith("Bearer ") else None
    read = Read(method=method, given=dict(request.query), token=token, basic=basic(header))
    if request.method == "POST":
        await _read_body(request, read)
    formed = read.given.pop("token", None)
    read.token = read.token or (formed if isinstance(formed, str) else None)
    return read


async def _read_body(request: web.Request, read: Read) -> None:
    kind = request.content_type
    if kind in _FORMS:
        form = await request.post()
        read.given |= {name: value for name, value in form.items() if isinstance(value, str)}
    elif kind == "application/json":
        _read_json(request, read, await request.read())
    elif await request.read():
        read.notes.append(f"content type {kind}")


def _read_json(request: web.Request, read: Read, body: bytes) -> None:
    facts = methods().get(read.method)
    if request.charset is None:
        read.warnings.append("missing_charset")
    try:
        given = json.loads(body)
    except ValueError:
        read.notes.append("the body is no JSON")
        return
    if facts is not None and not facts.json:
        read.notes.append("this method takes no JSON")
    elif isinstance(given, dict):
        read.given |= {name: value for name, value in cast(Json, given).items() if name != "token"}


def _json(answer: Json, status: int, headers: Mapping[str, str] | None = None) -> web.Response:
    return as_json(answer, status, headers, charset="utf-8")


WINDOW = 60
PER_MINUTE: Mapping[int, int] = {1: 1, 2: 20, 3: 50, 4: 100}
"""Calls a minute by tier, for each method and workspace."""

SPECIAL: Mapping[str, int] = {
    "assistant.threads.setStatus": 60,
    "auth.test": 600,
    "chat.getPermalink": 600,
    "chat.postMessage": 60,
    "oauth.v2.access": 100,
}
"""Calls a minute of methods with figures of their own, for each room where they name one."""

POSTS_PER_WORKSPACE = 300
"""Messages a minute in a workspace, in whatever chats."""

SCARCE = frozenset({"conversations.history", "conversations.replies"})
_IN_FLIGHT = 0.1
"""Real seconds in which a call may have been on its way before the refusal of another was read."""

Key = tuple[str, str, str]


class Limits:
    """The rate limits of one app."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._patience = Patience(clock, _IN_FLIGHT)
        self._windows: dict[Key, Window] = {}

    def check(self, asked: Asked) -> int | None:
        """Count a call. Returns the real seconds to wait if it may not pass."""
        windows: list[Window] = []
        for key, most in _keys(asked):
            windows.append(self._windows.setdefault(key, Window(self._clock, most, WINDOW)))
            windows[-1].most = most  # a switch may have changed it
        wait = max((window.wait() for window in windows), default=0)
        if wait > 0:
            return max(1, ceil(wait / self._clock.pace))
        for window in windows:
            window.count()
        return None

    def refused(self, asked: Asked, seconds: int) -> None:
        """Remember that the app was asked to wait so many real seconds."""
        self._patience.ask(_key(asked), seconds)

    def impatient(self, asked: Asked) -> int | None:
        """Return the seconds that the app should still have waited, if it did not."""
        key = _key(asked)
        return max(1, ceil(self._patience.left(key))) if self._patience.is_impatient(key) else None


def _keys(asked: Asked) -> list[tuple[Key, int]]:
    """Return the windows of a call, and the most calls that each takes."""
    scarce = asked.state.switches.scarce_history and asked.method in SCARCE
    if not asked.state.switches.limited and not scarce:
        return []
    tier = methods()[asked.method].tier
    keys = [(_key(asked), 1 if scarce else SPECIAL.get(asked.method) or PER_MINUTE[tier])]
    if asked.method == "chat.postMessage":
        keys.append(((asked.method, asked.grant.team, "*"), POSTS_PER_WORKSPACE))
    return keys


def _key(asked: Asked) -> Key:
    """Return the key of a limit: a method in a workspace; of a special method, in a chat."""
    room = ""
    if asked.method in SPECIAL:
        room = str(asked.arguments.get("channel") or asked.arguments.get("channel_id") or "")
    return asked.method, asked.grant.team, room
