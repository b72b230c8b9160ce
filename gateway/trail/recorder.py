"""The recorder of one message's steps, carried by its entry from the first attempt to the settled answer.

Steps are kept in memory until a transaction of the message takes them with it: a trail never causes its own
commit. What a kill cuts off before that is one step ``unrecorded`` of the path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec.structs import replace
from sqlalchemy import ColumnElement, Dialect, ScalarSelect, func, select

from gateway.contract.deltas import ToolResultEnd
from gateway.contract.messages import Part, ToolCallPart, now_ms, to_json
from gateway.store import schema as t
from gateway.store.writes import MAX_ROWS, Op, OwnStatement, Row, Statement, Write, flatten
from gateway.trail.steps import UNRECORDED, Kind, Mask, State, Step, Value, pack

TrailMode = Literal["full", "failures", "off"]
"""Messages whose steps are stored: all, those that did not simply get their answer, or none."""


class _PaddedInsert(Write):
    """Insert of up to 64 rows by one statement: the last row is repeated up to the next power of two.

    Each statement of a batch costs the writer a fight for the interpreter lock. The usual three for a number
    of rows that is not a power of two made a turn of 2 tokens a tenth dearer.
    """

    def statements(self, dialect: Dialect, rows: Sequence[Row]) -> Iterator[Statement]:
        """Yield the statements that write the rows; those that are there already are skipped."""
        for start in range(0, len(rows), MAX_ROWS):
            chunk = list(rows[start : start + MAX_ROWS])
            size = 1 << (len(chunk) - 1).bit_length()
            chunk += chunk[-1:] * (size - len(chunk))
            yield Statement(self._text(dialect, size), flatten(chunk))

    def _build(self, dialect: Dialect, rows: int) -> str:
        return f"{super()._build(dialect, rows)} ON CONFLICT DO NOTHING"


PUT_TRAIL = _PaddedInsert("insert", 38, t.trail, "inbox_id n at steps")
PUT_TRAIL_AGAIN = Write("upsert", 38, t.trail, "inbox_id n at steps", key="inbox_id n")
# Deletions have a higher rank: in one batch they come after the steps that were recorded before them.
DROP_TRAIL = Write("delete", 39, t.trail, "inbox_id", key="inbox_id")
DROP_SESSION_TRAIL = OwnStatement(
    39,
    t.trail,
    # By the log, because the inbox has no index of sessions. The second list has what was announced.
    "DELETE FROM trail WHERE inbox_id IN (SELECT id FROM messages WHERE session_id = CAST(?1 AS TEXT)) OR "
    "inbox_id IN (SELECT o.inbox_id FROM messages m JOIN outbox o ON o.id = m.id || '.0' "
    "WHERE m.session_id = CAST(?1 AS TEXT))",
)
"""Delete the trails of a conversation; before its log, in the same transaction."""
DROP_WITHDRAWN_TRAIL = OwnStatement(
    39,
    t.trail,
    "DELETE FROM trail WHERE inbox_id IN (SELECT id FROM inbox WHERE channel = CAST(?1 AS TEXT) "
    "AND account = CAST(?2 AS TEXT) AND dedup_key = CAST(?3 AS TEXT))",
)
"""Delete the trail of a message that its sender deleted."""

AFTER = "not asked after "
"""Begin of the reason of models that were not reached; the name of the error follows."""
NO_PROVIDER = "no provider or key for it"
OPEN_CIRCUIT = "its circuit is open: it failed several times in a row"
BUDGET_TOOL = "spend-more"
"""Name of the tool whose approval lets a turn exceed a budget."""
MOST_STEPS = 200
"""Steps between two transactions; those beyond are counted in the last one."""
_ALWAYS: frozenset[Kind] = frozenset(("restart", "placement", "final"))
"""Kinds that are recorded beyond that number: a path without its end would be wrong."""
_SHORTEST_WAIT = 0.01
"""Seconds; a shorter wait is not a step."""
_HOOK_STATES: Mapping[str, State] = {
    "pass": "ok",
    "changed": "changed",
    "allowed": "ok",
    "intercepted": "refused",
    "blocked": "refused",
}
_FAILED: frozenset[State] = frozenset(("failed", "refused", "unrecorded"))


class Trail:
    """Recorder of a message. ``mask`` returns a text without secrets.

    Its rows come after the row ``newest``, which an earlier process wrote if the message is ``recovered``.
    """

    __slots__ = (
        "_full",
        "_judged",
        "_key",
        "_mask",
        "_n",
        "_omitted",
        "_open_wait",
        "_passed",
        "_reopened",
        "_steps",
        "_taken",
        "_unnoted_restart",
        "code",
        "inbox_id",
        "outcome",
    )

    def __init__(
        self,
        inbox_id: str,
        mode: TrailMode = "full",
        mask: Mask = str,
        newest: int = 0,
        *,
        recovered: bool = False,
    ) -> None:
        self.inbox_id = inbox_id
        self.outcome, self.code = "", ""
        """Outcome of the turn, once it is decided; its answer may still have to be placed."""
        self._full = mode == "full"
        self._mask = mask
        self._n = newest
        self._unnoted_restart = recovered and newest > 0
        self._omitted = 0
        self._reopened = False
        self._steps: list[Step] = []
        self._passed: dict[str, int] = {}
        """Index of the step of each plugin whose hooks changed nothing so far."""
        self._judged: dict[str, tuple[str, bool, str]] = {}
        """For each tool call that has not ended, what allowed or refused it, and the rule that asked."""
        self._key = ""
        self._open_wait = False
        """True if the last step is a wait that has not ended."""
        self._taken: list[Step] = []
        """The steps of the newest row, which may not have been committed."""

    @property
    def unsaved(self) -> tuple[Step, ...]:
        """The steps that no transaction has taken yet."""
        return tuple(self._steps)

    def add(
        self, kind: Kind, name: str = "", state: State = "ok", took: float = 0.0, /, **detail: Value
    ) -> None:
        """Record a step that ends now and took some seconds."""
        if self._open_wait:
            self.end_wait(took)
        if len(self._steps) >= MOST_STEPS and kind not in _ALWAYS:
            self._omitted += 1
            return
        self._steps.append(Step(now_ms() - int(took * 1e3), int(took * 1e6), kind, name, state, detail))

    def start(self, attempt: int, received_at: int, *, recovered: bool) -> list[Op]:
        """Record that a message which waited, or was accepted by an earlier process, is now answered."""
        self._unnoted_restart = False
        if recovered or attempt > 1:
            self.add("restart", attempt=attempt)
        else:
            self.wait("message", (now_ms() - received_at) / 1000, attempt=attempt)
        return self.ops()

    def wait(self, reason: str, seconds: float, **detail: Value) -> None:
        """Record a wait that ended now."""
        if seconds >= _SHORTEST_WAIT:
            self.add("waited", reason, "ok", seconds, **{"for": reason}, **detail)

    def await_next(self, reason: str, seconds: float = 0.0, **detail: Value) -> None:
        """Record a wait that begins now, for some seconds or, if that is not known, for 0."""
        if seconds:
            detail["until"] = now_ms() + round(seconds * 1000)
        self.add("waited", reason, "waiting", 0.0, **{"for": reason}, **detail)
        self._open_wait = True

    def end_wait(self, since: float = 0.0) -> None:
        """Record that the wait has ended, at the latest some seconds ago."""
        last = self._steps[-1] if self._open_wait and self._steps else None
        self._open_wait = False
        if last is not None and last.kind == "waited":
            now = now_ms()
            ended = now - int(since * 1e3)
            until = last.detail.get("until")
            # The next step may contain the wait, as a model call that is repeated does.
            if ended < last.at:
                ended = min(now, until) if isinstance(until, int) else now
            self._steps[-1] = replace(last, state="ok", took=(ended - last.at) * 1000)

    def lease(self, provider: str, key: str | None, seconds: float) -> None:
        """Record that a call waits for a key (None), or which key it uses, after any wait."""
        if key is None:
            # A wait of known length is for the limit of the keys, another one for a call that has them.
            self.await_next("rate" if seconds else "key", seconds, provider=provider)
            return
        self.end_wait()
        self._key = key

    def take_key(self) -> str:
        """Return the name of the key that the call has used, once; empty for the only key."""
        key, self._key = self._key, ""
        return key

    def suspend(self) -> list[Op]:
        """Record that the gateway ends in order before the message is answered.

        If the message is settled, only the commit of that is under way.
        """
        last = next(reversed(self._steps or self._taken), None)
        if last is None or last.kind != "final" or last.state == "running":
            self.add("restart", "shutdown", "waiting")
        return self.ops()

    def hook(self, plugin: str, hook: str, verdict: str, seconds: float, error: str = "") -> None:
        """Record the call of a hook. Those of a plugin that change nothing are one step."""
        if verdict == "pass" and (at := self._passed.get(plugin)) is not None:
            step = self._steps[at]
            calls = int(step.detail.get("calls", 1)) + 1
            took = step.took + int(seconds * 1e6)
            self._steps[at] = replace(step, took=took, detail={**step.detail, "calls": calls})
            return
        detail: dict[str, Value] = {"hook": hook, "verdict": verdict}
        if error:
            detail["error"] = error
        if verdict == "pass" and len(self._steps) < MOST_STEPS:
            self._passed[plugin] = len(self._steps)
        self.add("hook", plugin, _HOOK_STATES.get(verdict, "failed"), seconds, **detail)

    def judge(self, call: str, by: str, *, refused: bool = False, asked_by: str = "") -> None:
        """Note which rule or person allowed or refused a tool call, for the step at its end.

        ``asked_by`` is the rule that demanded a person.
        """
        self._judged[call] = by, refused, asked_by

    def tool(self, name: str, call: str, outcome: str, seconds: float) -> None:
        """Record a tool call that ended: ok, failed or aborted."""
        by, refused, asked_by = self._judged.pop(call, ("", False, ""))
        state: State = "refused" if refused else "ok" if outcome == "ok" else "failed"
        detail: dict[str, Value] = {"call": call}
        if by:
            detail["refused_by" if refused else "allowed_by"] = by
        if asked_by:
            detail["asked_by"] = asked_by
        if outcome == "aborted":
            detail["code"] = outcome
        self.add("tool", name, state, seconds, **detail)

    def backend_tool(self, parts: Iterable[tuple[int, Part]], end: ToolResultEnd) -> None:
        """Record the end of a call, among these parts, that the model's backend made itself."""
        for _, call in parts:
            if isinstance(call, ToolCallPart) and call.tool_call_id == end.tool_call_id:
                # What allowed it was noted by its content.
                known = f"{call.tool_name} {_text(call.arguments)}"
                if known in self._judged:
                    self._judged[call.tool_call_id] = self._judged.pop(known)
                outcome = "failed" if end.is_error else "ok"
                self.tool(call.tool_name, call.tool_call_id, outcome, end.duration_ms / 1000)

    def judge_backend(self, tool: str, arguments: Mapping[str, Any], by: str, *, refused: bool) -> None:
        """Note what allowed or refused a call of a backend, ``BACKEND:TOOL``, whose id is not known yet."""
        self.judge(f"{tool.rpartition(':')[2]} {_text(arguments)}", by, refused=refused)

    def skip(self, models: Iterable[tuple[str, str]]) -> None:
        """Record the models that are not asked, each with the reason."""
        for name, reason in models:
            self.add("fallback", name, "skipped", asked=False, reason=reason)

    def question(self, question: str, tool: str, answer: str, by: str, since: int) -> None:
        """Record a question that was open from a time (ms) until now; ``tool`` is what it was to allow."""
        kind = "budget" if tool == BUDGET_TOOL else "approval" if tool else "question"
        detail: dict[str, Value] = {"id": question, "kind": kind, "answer": answer, "by": by}
        self.add("question", tool, "ok" if by else "skipped", (now_ms() - since) / 1000, **detail)

    def intend(self, channel: str, *nonces: str) -> None:
        """Record that pages are about to be placed."""
        for nonce in nonces:
            self.add("placement", channel, "running", nonce=nonce)

    def fail_to_place(self, channel: str, state: State, code: str, attempt: int, error: str = "") -> None:
        """Record an attempt to place a page. Those that fail in the same way in a row are one step."""
        last = self._steps[-1] if self._steps else None
        detail: dict[str, Value] = {"code": code, "attempt": attempt, "error": error}
        if last is not None and last.kind == "placement" and last.detail.get("code") == code:
            took = (now_ms() - last.at) * 1000
            self._steps[-1] = replace(last, took=took, detail=detail)
            return
        self.add("placement", channel, state, **detail)

    def decide(self, outcome: str, code: str = "") -> None:
        """Note the outcome of the turn, for the step that ends the trail."""
        self.outcome, self.code = outcome, code

    def decided(self) -> None:
        """Record the outcome of a turn whose answer has to be placed: a later process does not know it."""
        if self.outcome:
            code: dict[str, Value] = {"code": self.code} if self.code else {}
            self.add("final", "", "running", outcome=self.outcome, **code)

    def finish(self, outcome: str = "", code: str = "") -> list[Op]:
        """Record that the message is settled, and return the writes of all steps until then."""
        if self._unnoted_restart:
            # It is settled without another attempt, such as one that was deleted or replaced by an edit.
            self._steps.insert(0, Step(now_ms(), 0, "restart", UNRECORDED, "unrecorded"))
            self._unnoted_restart = False
        outcome, code = outcome or self.outcome, code or self.code
        detail: dict[str, Value] = {}
        if outcome:
            detail["outcome"] = outcome
        if code:
            detail["code"] = code
        failed = outcome in ("failed", "dead", "stopped")
        self.add("final", "", "failed" if failed else "ok", **detail)
        return self.ops()

    def ops(self) -> list[Op]:
        """Return the writes of the steps since the last call, for a transaction of the message."""
        steps = self._steps
        if not steps or not (self._full or self._has_failed()):
            return []
        if self._omitted:
            steps[-1] = replace(steps[-1], detail={**steps[-1].detail, "omitted": self._omitted})
        now = now_ms()
        self._open_wait = False
        put: Write = PUT_TRAIL
        if self._reopened:
            put = PUT_TRAIL_AGAIN
        else:
            # The clock may have been set back since the last row.
            self._n = max(self._n + 1, now)
        self._taken, self._steps, self._omitted, self._reopened = steps, [], 0, False
        self._passed.clear()
        return [(put, (self.inbox_id, self._n, now, pack(steps, self._mask)))]

    def reopen(self) -> None:
        """Take back the steps of the newest row: the transaction that wrote it may have failed.

        If it was committed, the next row replaces it.
        """
        if self._taken:
            self._steps, self._taken = [*self._taken, *self._steps], []
            self._reopened = True
            self._passed.clear()

    def _has_failed(self) -> bool:
        """Return whether a step so far did not go well, so that all of them are kept."""
        if not self._full and any(step.state in _FAILED or step.kind == "restart" for step in self._steps):
            self._full = True
        return self._full


class NoTrail(Trail):
    """A recorder that records nothing: of messages without a trail, and if the settings want none."""

    __slots__ = ()

    def add(
        self, kind: Kind, name: str = "", state: State = "ok", took: float = 0.0, /, **detail: Value
    ) -> None:
        """Record nothing."""

    def await_next(self, reason: str, seconds: float = 0.0, **detail: Value) -> None:
        """Record nothing."""

    def lease(self, provider: str, key: str | None, seconds: float) -> None:
        """Record nothing."""

    def decide(self, outcome: str, code: str = "") -> None:
        """Note nothing: one recorder serves all messages."""

    def hook(self, plugin: str, hook: str, verdict: str, seconds: float, error: str = "") -> None:
        """Record nothing."""

    def judge(self, call: str, by: str, *, refused: bool = False, asked_by: str = "") -> None:
        """Note nothing."""


NO_TRAIL = NoTrail("")


def _text(arguments: Mapping[str, Any]) -> str:
    return to_json(dict(sorted(arguments.items()))).decode()


def begin_trail(mode: TrailMode, inbox_id: str, mask: Mask, newest: int, recovered: bool) -> Trail:
    """Return the recorder of a message, as the settings want it."""
    return NO_TRAIL if mode == "off" else Trail(inbox_id, mode, mask, newest, recovered=recovered)


def newest_row(inbox_id: ColumnElement[str]) -> ScalarSelect[int | None]:
    """Return the query for the number of the newest row of a message; None without any."""
    return select(func.max(t.trail.c.n)).where(t.trail.c.inbox_id == inbox_id).scalar_subquery()
