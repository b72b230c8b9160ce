"""Web API of the fake: reads a call, applies rate limits and faults, and calls its method."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from email.utils import formatdate
from math import ceil
from typing import cast

from aiohttp import web
from msgspec import Struct, field

from channels.slack.fake import accounts, chats, files, messages, people
from channels.slack.fake.accounts import Installer, basic_credentials
from channels.slack.fake.calls import Call, Method, RefusalError, arguments, methods
from channels.slack.fake.state import Grant, Json, State
from gateway.testing.fake_platform import Clock, FakeServer, Fault, Patience, Window, as_json, cut

Answer = Callable[[Call], Json]

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
    "usergroups.list": accounts.user_groups_list,
    "usergroups.users.list": accounts.user_group_members,
    "users.conversations": chats.of_user,
    "users.info": accounts.user_info,
    "users.list": accounts.users_list,
    "views.open": people.open_view,
    "views.publish": people.publish_view,
    "views.push": people.open_view,
    "views.update": people.update_view,
}

PLACING = frozenset({"chat.postMessage", "chat.startStream", "files.completeUploadExternal"})
"""Methods that post a message, so that a repeated call posts a second one."""

_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


class RawCall(Struct, kw_only=True):
    """Call as received. ``notes`` lists mistakes in its form."""

    method: str
    given: Json
    token: str | None
    basic: Json
    notes: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])


class WebApi:
    """Handler of ``/api/{method}``."""

    def __init__(self, fake: FakeServer, state: State, installer: Installer, connect: Answer) -> None:
        self._fake = fake
        self._state = state
        self._limits = RateLimits(state.clock)
        self._answers = {**METHODS, "apps.connections.open": connect, "oauth.v2.access": installer.exchange}

    async def handle(self, request: web.Request) -> web.Response:
        """Answer a call, with the fault that is due."""
        raw = await _read_call(request)
        fault = self._fake.faults.of(raw.method)
        if fault in ("fail_before", "drop_before"):
            return self._fail(request, raw, fault, {"ok": False, "error": "service_unavailable"}, 503)
        answer, problem, wait = self._answer_or_refuse(raw, fault)
        if wait is not None:
            self._record(raw, answer, 429, fault, problem)
            return _json(answer, 429, {"Retry-After": str(wait)})
        if answer["ok"] and raw.method in PLACING:
            self._fake.applied()
        if fault in ("fail_after", "drop_after"):
            return self._fail(request, raw, fault, {"ok": False, "error": "fatal_error"}, 500, problem)
        if answer["ok"]:
            answer = self._fake.faults.replace_answer(raw.method, answer)
        self._record(raw, answer, 200, fault, problem)
        return _json(answer, 200, self._headers(raw))

    def _answer_or_refuse(self, raw: RawCall, fault: Fault) -> tuple[Json, str | None, int | None]:
        """Return the answer, the problem to record, and the seconds to wait if the call is rate limited."""
        call = None
        try:
            method, answer = self._method(raw)
            call = self._authorize(raw, method)
            wait = self._rate_limited(call, fault)
            if wait is not None:
                problem = "; ".join(call.notes) or None
                return {"ok": False, "error": "ratelimited"}, problem, wait
            call.arguments = arguments(raw.method, raw.given, call.notes)
            return _success(answer(call), call.warnings), "; ".join(call.notes) or None, None
        except RefusalError as refusal:
            answer = {"ok": False, "error": refusal.error, **refusal.more}
            notes = [*(call.notes if call else raw.notes), *([refusal.problem] if refusal.problem else [])]
            return answer, "; ".join(notes) or None, None

    def _method(self, raw: RawCall) -> tuple[Method, Answer]:
        facts, answer = methods().get(raw.method), self._answers.get(raw.method)
        if facts is None or answer is None:
            raise RefusalError("unknown_method", "no such method", req_method=raw.method)
        return facts, answer

    def _authorize(self, raw: RawCall, method: Method) -> Call:
        """Return the call with the grant of its token. Raises RefusalError if the token is not accepted."""
        given = raw.given
        if raw.method == "oauth.v2.access":
            given = raw.given = {**raw.basic, **raw.given}
            grant = Grant(token="", kind="app", team="", user="", scopes=set())
        else:
            grant = self._grant(raw)
        call = Call(
            state=self._state,
            method=raw.method,
            arguments=given,
            grant=grant,
            notes=raw.notes,
            warnings=raw.warnings,
        )
        if method.scopes:
            call.need_scope(*method.scopes)
        return call

    def _grant(self, raw: RawCall) -> Grant:
        if raw.token is None:
            raise RefusalError("not_authed", "no token")
        grant = self._state.tokens.get(raw.token)
        if grant is None:
            raise RefusalError("invalid_auth", "unknown token")
        if grant.revoked is not None:
            raise RefusalError(grant.revoked)
        wanted = ("app",) if raw.method == "apps.connections.open" else ("bot", "user")
        if raw.method != "auth.test" and grant.kind not in wanted:
            raise RefusalError("not_allowed_token_type", f"called with the token of a {grant.kind}")
        return grant

    def _rate_limited(self, call: Call, fault: Fault) -> int | None:
        wait = self._limits.early_wait(call)
        if wait is not None:
            call.notes.append("called before Retry-After was over")
            return wait
        wait = self._state.switches.retry_after if fault == "slow_down" else self._limits.check(call)
        if wait is not None:
            self._limits.refused(call, wait)
        return wait

    def _headers(self, raw: RawCall) -> dict[str, str]:
        date = {"Date": formatdate(self._state.stamps.seconds(), usegmt=True)}
        grant = self._state.tokens.get(raw.token or "")
        return date if grant is None else {**date, "X-OAuth-Scopes": ",".join(sorted(grant.scopes))}

    def _fail(
        self,
        request: web.Request,
        raw: RawCall,
        fault: Fault,
        answer: Json,
        status: int,
        problem: str | None = None,
    ) -> web.Response:
        self._record(raw, answer, status, fault, problem)
        if fault.startswith("drop"):
            cut(request)
        return _json(answer, status)

    def _record(self, raw: RawCall, answer: Json, status: int, fault: Fault, problem: str | None) -> None:
        self._fake.record(raw.method, raw.given, problem, status=status, answer=answer, fault=fault)


def _success(answer: Json, warnings: list[str]) -> Json:
    if not warnings:
        return {"ok": True, **answer}
    return {
        "ok": True,
        **answer,
        "warning": ",".join(warnings),
        "response_metadata": {**answer.get("response_metadata", {}), "warnings": warnings},
    }


async def _read_call(request: web.Request) -> RawCall:
    """Read the arguments of a call from its query, form or JSON body, and its token."""
    method = request.match_info["method"]
    header = request.headers.get("Authorization", "")
    token = header.removeprefix("Bearer ") if header.startswith("Bearer ") else None
    raw = RawCall(method=method, given=dict(request.query), token=token, basic=basic_credentials(header))
    if request.method == "POST":
        await _read_body(request, raw)
    formed = raw.given.pop("token", None)
    raw.token = raw.token or (formed if isinstance(formed, str) else None)
    return raw


async def _read_body(request: web.Request, raw: RawCall) -> None:
    kind = request.content_type
    if kind in _FORMS:
        form = await request.post()
        raw.given |= {name: value for name, value in form.items() if isinstance(value, str)}
    elif kind == "application/json":
        _read_json(request, raw, await request.read())
    elif await request.read():
        raw.notes.append(f"content type {kind}")


def _read_json(request: web.Request, raw: RawCall, body: bytes) -> None:
    facts = methods().get(raw.method)
    if request.charset is None:
        raw.warnings.append("missing_charset")
    try:
        given = json.loads(body)
    except ValueError:
        raw.notes.append("the body is not JSON")
        return
    if facts is not None and not facts.json:
        raw.notes.append("this method does not accept JSON")
    elif isinstance(given, dict):
        raw.given |= {name: value for name, value in cast(Json, given).items() if name != "token"}


def _json(answer: Json, status: int, headers: Mapping[str, str] | None = None) -> web.Response:
    return as_json(answer, status, headers, charset="utf-8")


WINDOW = 60
PER_MINUTE: Mapping[int, int] = {1: 1, 2: 20, 3: 50, 4: 100}
"""Calls per minute by tier, for each method and workspace."""

SPECIAL: Mapping[str, int] = {
    "assistant.threads.setStatus": 60,
    "auth.test": 600,
    "chat.getPermalink": 600,
    "chat.postMessage": 60,
    "oauth.v2.access": 100,
}
"""Calls per minute of methods with their own limits, for each chat if a call names one."""

POSTS_PER_WORKSPACE = 300
"""Messages per minute in all chats of a workspace."""

SCARCE = frozenset({"conversations.history", "conversations.replies"})
_IN_FLIGHT = 0.1
"""Real seconds in which a call may have been sent before the app read the refusal of another."""

Key = tuple[str, str, str]


class RateLimits:
    """Rate limits of the app."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._patience = Patience(clock, _IN_FLIGHT)
        self._windows: dict[Key, Window] = {}

    def check(self, call: Call) -> int | None:
        """Count a call. Returns the real seconds to wait if it exceeds a limit."""
        windows: list[Window] = []
        for key, most in _keys(call):
            windows.append(self._windows.setdefault(key, Window(self._clock, most, WINDOW)))
            windows[-1].most = most  # a test may have changed a switch
        wait = max((window.wait() for window in windows), default=0)
        if wait > 0:
            return max(1, ceil(wait / self._clock.pace))
        for window in windows:
            window.count()
        return None

    def refused(self, call: Call, seconds: int) -> None:
        """Note that the app was asked to wait for some real seconds."""
        self._patience.ask(_key(call), seconds)

    def early_wait(self, call: Call) -> int | None:
        """Return the remaining seconds if the app called before a wait was over, else None."""
        key = _key(call)
        return max(1, ceil(self._patience.left(key))) if self._patience.is_impatient(key) else None


def _keys(call: Call) -> list[tuple[Key, int]]:
    """Return the windows that a call counts in, each with its limit."""
    scarce = call.state.switches.scarce_history and call.method in SCARCE
    if not call.state.switches.limited and not scarce:
        return []
    tier = methods()[call.method].tier
    keys = [(_key(call), 1 if scarce else SPECIAL.get(call.method) or PER_MINUTE[tier])]
    if call.method == "chat.postMessage":
        keys.append(((call.method, call.grant.team, "*"), POSTS_PER_WORKSPACE))
    return keys


def _key(call: Call) -> Key:
    """Return the key of a window: method and workspace, and the chat for special methods."""
    chat = ""
    if call.method in SPECIAL:
        chat = str(call.arguments.get("channel") or call.arguments.get("channel_id") or "")
    return call.method, call.grant.team, chat
