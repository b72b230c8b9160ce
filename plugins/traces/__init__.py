"""Traces: sends a span for each turn, model call and tool call to a collector of OpenTelemetry.

In: ``[plugins.traces]``. Out: requests of OTLP over HTTP with JSON, without texts of messages or arguments of
tools. The plugin loader imports it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import structlog
from pydantic import BaseModel, Field, SecretStr

from gateway import ChatOptions, Message, Plugin, PluginContext, TurnContext, TurnResult
from gateway.api import Figure
from gateway.events import ToolFinished, TurnFinished, TurnStarted
from gateway.provider_http import HttpClient, HttpError, open_client

_INTERNAL, _SERVER, _CLIENT = 1, 2, 3
_ERROR = 2
_MOST_RUNNING = 10_000
_MOST_WAITING = 2_048
_BATCH = 512
_SECONDS = 10
log = structlog.get_logger("traces")


class TracesSettings(BaseModel):
    """The settings of the plugin."""

    endpoint: str = Field(
        default="http://127.0.0.1:4318/v1/traces",
        pattern=r"^https?://[^\s#]+$",
        examples=["http://127.0.0.1:4318/v1/traces"],
        description="Address of the collector, for OTLP over HTTP; default http://127.0.0.1:4318/v1/traces",
    )
    headers: dict[str, SecretStr] = Field(
        default={}, description="HTTP headers for the collector, such as its API key; default none"
    )
    service: str = Field(
        default="trunkline", min_length=1, description="Name of this gateway in traces; default trunkline"
    )
    every_seconds: float = Field(
        default=5, gt=0, le=3600, description="Time between two requests to the collector; default 5"
    )


class _Turn:
    """A running turn. The id of its trace is the id of its answer."""

    def __init__(self, answer: str, began: int) -> None:
        self.trace = answer.replace("-", "")
        self.span = secrets.token_hex(8)
        self.began = began


class Traces(Plugin):
    """Sends spans. A collector that does not answer delays no turn: its spans are dropped and counted."""

    name = "traces"
    settings_model = TracesSettings

    def __init__(self) -> None:
        self._settings = TracesSettings()
        self._turns: dict[str, _Turn] = {}
        self._calls: dict[tuple[str, str], int] = {}
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_MOST_WAITING)
        self._sent = self._dropped = 0
        self._failed = False
        self._client: HttpClient | None = None

    async def activate(self, ctx: PluginContext) -> None:
        """Read the settings, and follow turns and tools."""
        self._settings = ctx.options(TracesSettings)
        self._client = open_client()
        if ctx.events is not None:
            ctx.events.subscribe(TurnStarted, self._begin)
            ctx.events.subscribe(TurnFinished, self._end)
            ctx.events.subscribe(ToolFinished, self._tool)
        if ctx.tasks is not None:
            ctx.tasks.create_task(self._export(self._client), name="traces")

    async def deactivate(self) -> None:
        """Send what waits."""
        if self._client is not None:
            await self._send(self._client)
            await self._client.close()

    def figures(self) -> Sequence[Figure]:
        """Return the number of spans that the collector took, and of those that were dropped."""
        return [
            Figure("spans", "Spans that the collector accepted", self._sent, "counter"),
            Figure("dropped", "Spans that were dropped", self._dropped, "counter"),
        ]

    async def before_llm_call(
        self, messages: tuple[Message, ...], options: ChatOptions, ctx: TurnContext
    ) -> None:
        """Note when the model is called."""
        if ctx.session in self._turns:
            self._calls[ctx.session, ctx.agent] = time.time_ns()

    async def after_llm_call(self, result: TurnResult, ctx: TurnContext) -> None:
        """Record the call of a model that answered."""
        began = self._calls.pop((ctx.session, ctx.agent), None)
        turn = self._turns.get(ctx.session)
        if began is not None and turn is not None:
            facts = {"gen_ai.operation.name": "chat", "gen_ai.agent.name": ctx.agent}
            self._add(turn, "chat", began, _CLIENT, {**facts, "trunkline.tokens": result.usage})

    def _begin(self, event: TurnStarted) -> None:
        if len(self._turns) >= _MOST_RUNNING:
            self._turns.pop(next(iter(self._turns)))
        self._turns[event.session] = _Turn(event.answer, time.time_ns())

    def _end(self, event: TurnFinished) -> None:
        turn = self._turns.pop(event.session, None)
        for key in [key for key in self._calls if key[0] == event.session]:
            del self._calls[key]
        if turn is None:
            return
        facts = {
            "session.id": event.session,
            "trunkline.channel": event.channel,
            "trunkline.answer": event.answer,
            "trunkline.outcome": event.outcome,
            "trunkline.cost_usd": event.cost,
            "gen_ai.response.model": event.model,
            "gen_ai.usage.input_tokens": event.input_tokens,
            "gen_ai.usage.output_tokens": event.output_tokens,
        }
        self._add(turn, "turn", turn.began, _SERVER, facts, error=event.error, root=True)

    def _tool(self, event: ToolFinished) -> None:
        turn = self._turns.get(event.session)
        if turn is not None:
            began = time.time_ns() - event.duration_ms * 1_000_000
            facts = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": event.tool}
            error = "ToolError" if event.is_error else ""
            self._add(turn, f"execute_tool {event.tool}", began, _INTERNAL, facts, error=error)

    def _add(
        self,
        turn: _Turn,
        name: str,
        began: int,
        kind: int,
        facts: dict[str, Any],
        *,
        error: str = "",
        root: bool = False,
    ) -> None:
        """Queue a span that ends now; the oldest one goes if too many wait."""
        span: dict[str, Any] = {
            "traceId": turn.trace,
            "spanId": turn.span if root else secrets.token_hex(8),
            "name": name,
            "kind": kind,
            "startTimeUnixNano": str(began),
            "endTimeUnixNano": str(time.time_ns()),
            "attributes": _attributes({**facts, "error.type": error}),
        }
        if not root:
            span["parentSpanId"] = turn.span
        if error:
            span["status"] = {"code": _ERROR, "message": error}
        self._dropped += len(self._waiting) == _MOST_WAITING
        self._waiting.append(span)

    async def _export(self, client: HttpClient) -> None:
        while True:
            await asyncio.sleep(self._settings.every_seconds)
            await self._send(client)

    async def _send(self, client: HttpClient) -> None:
        """Send the spans that wait. Those that the collector does not take are dropped."""
        while self._waiting:
            spans = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            problem = await self._post(client, spans)
            if problem and not self._failed:
                log.warning("the collector does not take spans", reason=problem)
            self._failed = bool(problem)
            if problem:
                self._dropped += len(spans)
                return
            self._sent += len(spans)

    async def _post(self, client: HttpClient, spans: list[dict[str, Any]]) -> str:
        """Send spans; return why the collector did not take them, or ""."""
        settings = self._settings
        resource = {"attributes": _attributes({"service.name": settings.service})}
        scoped = {"scope": {"name": "trunkline"}, "spans": spans}
        body = json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scoped]}]}).encode()
        headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
        headers["content-type"] = "application/json"
        try:
            answer = await client.request("POST", settings.endpoint, headers, body, _SECONDS)
            await answer.release()
        except TimeoutError:
            return f"no answer within {_SECONDS} s"
        except (HttpError, ValueError) as error:
            return str(error)
        return "" if answer.status < 300 else f"status {answer.status}"


def _attributes(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return attributes in the JSON of OTLP, without empty texts."""
    return [{"key": name, "value": _value(value)} for name, value in facts.items() if value != ""]


def _value(value: str | float) -> dict[str, str | float]:
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}


plugin = Traces()
