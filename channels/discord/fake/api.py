"""The platform's REST API: what happens to every call before and after the one thing that it does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from aiohttp import BodyPartReader, web

from channels.discord.fake.account import Account
from channels.discord.fake.calls import Answer, ApiCall, Handler, Upload
from channels.discord.fake.changes import Changes
from channels.discord.fake.checking import Findings, error_tree, shapes
from channels.discord.fake.errors import (
    BAD_USER_AGENT,
    INVALID_FORM,
    INVALID_JSON,
    TOO_LARGE,
    UNAUTHORIZED,
    ApiError,
)
from channels.discord.fake.figures import Figures
from channels.discord.fake.limits import RateLimited, RateLimits
from channels.discord.fake.router import Router
from gateway.testing.faults import Fault, FaultScript
from gateway.testing.transcript import Transcript

PREFIXES: Final = ("/api/v10", "/api/v9")
_AGENT: Final = re.compile(r"DiscordBot \(.+\)")
_FILE: Final = re.compile(r"files\[(\d+)\]")
_PLACING: Final = re.compile(r"(POST|PATCH) .*(/messages|/messages/\{message_id\}|_token\}.*)")
"""Calls that write or change a message."""
_SLOW_SECONDS: Final = 0.2
_VIA: Final = {"Via": "1.1 google", "Server": "cloudflare"}


class Api:
    """Serves calls. ``on_applied`` is called when a message was written or changed, before the answer."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        account: Account,
        figures: Figures,
        limits: RateLimits,
        faults: FaultScript,
        transcript: Transcript,
        changes: Changes,
        on_applied: Callable[[], None] | None,
    ) -> None:
        self._handlers = handlers
        self._account = account
        self._figures = figures
        self._limits = limits
        self._faults = faults
        self._transcript = transcript
        self._changes = changes
        self._on_applied = on_applied
        self._router = Router(shapes().calls)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """One call, from its first byte to its answer."""
        if (seconds := self._limits.banned) > 0:
            self._transcript.record(
                request.path, {}, status=429, problem="called while the address is banned"
            )
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
            fault = self._faults.of(name)
            call = await self._read(request, call)
            arguments = call.arguments
            if fault == "slow_down":
                raise self._limits.refusal(call, _SLOW_SECONDS)
            answer = self._apply(call) if fault not in ("fail_before", "drop_before") else Answer()
        except ApiError as error:
            answer = Answer(error.status, error.body(), error.problem)
            headers = error.headers if isinstance(error, RateLimited) else headers
            self._limits.note(error.status, shared=isinstance(error, RateLimited) and error.scope == "shared")
            fault = fault if fault == "slow_down" else "none"
        return self._answered(request, name, arguments, answer, fault, headers)

    def _authorize(self, request: web.Request, name: str) -> None:
        if "_token}" in name:  # the token of an interaction is all that it takes
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
        findings = self._checked(call)
        answer = self._handlers[call.name](call)
        if self._on_applied is not None and _PLACING.fullmatch(call.name):
            self._on_applied()
        problems = [problem for problem in (findings.problem, answer.problem) if problem]
        return msgspec.structs.replace(answer, problem="; ".join(problems) or None)

    def _checked(self, call: ApiCall) -> Findings:
        findings = shapes().query(call.name, call.query)
        body = shapes().body(call.name, call.body)
        findings.wrong += body.wrong
        findings.unknown += body.unknown
        if findings.wrong:
            raise ApiError(INVALID_FORM, findings.problem, {"errors": error_tree(findings.wrong)})
        return findings

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
        self._transcript.record(name, arguments, status=status, answer=body, fault=fault, problem=problem)
        self._changes.bump()
        if fault.startswith("drop") and request.transport is not None:
            request.transport.abort()
        if failed:
            return web.Response(status=502, text="<html>502 Bad Gateway</html>", content_type="text/html")
        if body is None:
            return web.Response(status=status, headers={**_VIA, **headers})
        return web.Response(
            status=status,
            body=msgspec.json.encode(body),
            content_type="application/json",
            headers={**_VIA, **headers},
        )


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
