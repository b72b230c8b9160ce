"""The recorder of one message's steps, carried by its entry from the first attempt to the settled answer.

Steps are kept in memory until a transaction of the message takes them with it: a trail never causes a commit
of its own. What a kill cuts off before that is one step ``unrecorded`` of the path.
"""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from gateway.contract.messages import now_ms
from gateway.store import schema as t
from gateway.store.writes import Op, OwnStatement, Write
from gateway.trail.steps import Kind, Mask, State, Step, Value, pack

TrailMode = Literal["full", "failures", "off"]
"""Messages whose steps are stored: all, those that did not simply get their answer, or none."""

PUT_TRAIL = Write("upsert", 39, t.trail, "inbox_id n at steps", key="inbox_id n")
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

MOST_STEPS = 200
"""Steps between two transactions; those beyond are counted in the last one."""
_FAILED: frozenset[State] = frozenset(("failed", "refused", "unrecorded"))


class Trail:
    """Recorder of a message. ``mask`` returns a text without secrets."""

    __slots__ = (
        "_full",
        "_mask",
        "_n",
        "_omitted",
        "_reopened",
        "_steps",
        "_taken",
        "code",
        "inbox_id",
        "outcome",
    )

    def __init__(self, inbox_id: str, mode: TrailMode = "full", mask: Mask = str) -> None:
        self.inbox_id = inbox_id
        self.outcome, self.code = "", ""
        """Outcome of the turn, once it is decided; its answer may still have to be placed."""
        self._full = mode == "full"
        self._mask = mask
        self._n = 0
        self._omitted = 0
        self._reopened = False
        self._steps: list[Step] = []
        self._taken: list[Step] = []
        """The steps of the newest row, which may not have been committed."""

    def add(
        self, kind: Kind, name: str = "", state: State = "ok", took: float = 0.0, /, **detail: Value
    ) -> None:
        """Record a step that ends now and took some seconds."""
        if len(self._steps) >= MOST_STEPS:
            self._omitted += 1
            return
        self._steps.append(Step(now_ms() - int(took * 1e3), int(took * 1e6), kind, name, state, detail))

    def decide(self, outcome: str, code: str = "") -> None:
        """Note the outcome of the turn, for the step that ends the trail."""
        self.outcome, self.code = outcome, code

    def finish(self, outcome: str = "", code: str = "") -> list[Op]:
        """Record that the message is settled, and return the writes of all steps until then."""
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
        if not self._reopened:
            self._n = max(self._n + 1, now)
        self._taken, self._steps, self._omitted, self._reopened = steps, [], 0, False
        return [(PUT_TRAIL, (self.inbox_id, self._n, now, pack(steps, self._mask)))]

    def reopen(self) -> None:
        """Take back the steps of the newest row: the transaction that wrote it may have failed.

        If it was committed, the next row replaces it.
        """
        if self._taken:
            self._steps, self._taken = [*self._taken, *self._steps], []
            self._reopened = True

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

    def decide(self, outcome: str, code: str = "") -> None:
        """Note nothing: one recorder serves all messages."""


NO_TRAIL = NoTrail("")
