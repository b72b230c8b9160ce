"""The path of a message as steps: the recorded trail, or else the steps that its other rows prove.

Without a trail (it is off, was removed, or the message is older) the steps are those that the inbox, the
answer and the outbox show: received, accepted, calls of tools, failed models, placements, final.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from gateway.contract.messages import ToolCallPart, ToolResultPart
from gateway.trail.steps import Step
from gateway.why.causes import Failure, status_in
from gateway.why.records import Records

_PLAIN = frozenset(("received", "accepted", "merged", "superseded"))


def has_trail(steps: Iterable[Step]) -> bool:
    """Return whether some of the steps were recorded; the others are in the inbox itself."""
    return any(step.kind not in _PLAIN for step in steps)


def last_attempt(steps: Sequence[Step]) -> Sequence[Step]:
    """Return the steps of the last attempt: those after the last restart."""
    begun = max((at for at, step in enumerate(steps) if step.kind == "restart"), default=-1)
    return steps[begun + 1 :]


def failure_of(step: Step) -> Failure:
    """Return the failure in the step of a failed call."""
    provider, _, model = step.name.partition("/")
    text = str(step.detail.get("error", ""))
    code, key = str(step.detail.get("code", "")), str(step.detail.get("key", ""))
    return Failure(provider, model, code, text, key, status_in(text))


def failures_in(steps: Sequence[Step]) -> list[Failure]:
    """Return the failed calls of models of the last attempt, and the models that were not asked.

    Empty if a later call succeeded.
    """
    found: list[Failure] = []
    for step in last_attempt(steps):
        if step.kind == "model" and step.state == "ok":
            found.clear()
        elif step.kind == "model" and step.state in ("failed", "refused"):
            failure = failure_of(step)
            # One model is called again after a temporary failure: its last failure counts.
            found = [one for one in found if (one.provider, one.model) != (failure.provider, failure.model)]
            found.append(failure)
        elif step.kind == "fallback" and not step.detail.get("asked", True):
            provider, _, model = step.name.partition("/")
            found.append(Failure(provider, model, str(step.detail.get("reason", "")), asked=False))
    return found


def mark_blocked(steps: Sequence[Step]) -> list[Step]:
    """Return the steps; a call of a tool that a hook blocked names the plugin as its ``refused_by``."""
    marked: list[Step] = []
    blocker = ""
    for step in steps:
        if step.kind == "hook" and step.detail.get("verdict") == "blocked":
            blocker = step.name
        elif step.kind == "tool" and blocker:
            if step.state == "failed":
                refused = {"call": step.detail.get("call", ""), "refused_by": f"plugin {blocker}"}
                step = replace(step, state="refused", detail=refused)
            blocker = ""
        marked.append(step)
    return marked


def refused_calls(steps: Sequence[Step]) -> list[Step]:
    """Return the calls of tools that did not run because of a rule, a person or a plugin, each reason once.

    Calls before a replay do not count.
    """
    found: dict[tuple[str, object, object], Step] = {}
    for before, step in zip([None, *steps], mark_blocked(steps), strict=False):
        if step.kind == "restart" and before is not None and before.kind == "final":
            found.clear()
        elif step.kind == "tool" and "refused_by" in step.detail:
            found.setdefault((step.name, step.detail["refused_by"], step.detail.get("asked_by")), step)
    return list(found.values())


def steps_from(records: Records, failures: Sequence[Failure]) -> list[Step]:
    """Return the steps of a message without a trail that its rows prove."""
    at, address = records.received_at, records.inbound.address
    arrival = {
        "channel": records.channel,
        "account": records.account,
        "chat": address.chat,
        "platform_id": records.platform_id,
    }
    steps = [
        Step(at, 0, "received", records.channel, detail=arrival),
        Step(at, 0, "accepted", detail={"session": records.session, "trace": records.answer_id}),
    ]
    if records.into is not None:
        kind, name = ("superseded", "by") if records.a_revision else ("merged", "into")
        return [*steps, Step(at, 0, kind, detail={name: records.into})]
    if records.attempts > 1:
        steps.append(Step(at, 0, "restart", detail={"attempt": records.attempts}))
    began = at if records.answer is None else records.answer.created_at
    steps += _tool_steps(records, began)
    steps += [
        Step(question.created_at, 0, "question", question.tool, "waiting", {"id": question.id})
        for question in records.questions
        if question.state == "open"
    ]
    for failure in failures:
        detail = {"provider": failure.provider, "model": failure.model, "code": failure.code}
        name = f"{failure.provider}/{failure.model}" if failure.provider else ""
        if name:
            steps.append(Step(began, 0, "model", name, "failed", {**detail, "error": failure.text}))
    steps += _answer_steps(records, began, failures)
    steps += [
        Step(
            page.sent_at,
            0,
            "placement",
            records.channel,
            "running" if page.platform_id is None else "ok",
            {"nonce": page.nonce, "platform_id": page.platform_id or ""},
        )
        for page in records.pages
    ]
    if records.state in ("done", "dead"):
        steps.append(Step(records.settled_at or at, 0, "final", detail={"outcome": records.state}))
    return steps


def _answer_steps(records: Records, began: int, failures: Sequence[Failure]) -> list[Step]:
    answer = records.answer
    if answer is None or failures or not answer.metadata.model:
        return []
    used = answer.metadata
    detail = {
        "provider": used.provider or "",
        "model": used.model or "",
        "input_tokens": used.input_tokens or 0,
        "output_tokens": used.output_tokens or 0,
    }
    return [
        Step(began, (used.duration_ms or 0) * 1000, "model", f"{used.provider}/{used.model}", detail=detail)
    ]


def _tool_steps(records: Records, began: int) -> list[Step]:
    parts = () if records.answer is None else records.answer.parts
    results = {part.tool_call_id: part for part in parts if isinstance(part, ToolResultPart)}
    steps: list[Step] = []
    for part in parts:
        if not isinstance(part, ToolCallPart):
            continue
        result = results.get(part.tool_call_id)
        known = None if result is None else result.metadata
        took = 0 if known is None else (known.duration_ms or 0) * 1000
        failed = result is not None and result.is_error
        steps.append(
            Step(
                began, took, "tool", part.tool_name, "failed" if failed else "ok", {"call": part.tool_call_id}
            )
        )
    return steps
