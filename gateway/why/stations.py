"""The line of a message: its stations in the order of time, as the console draws it.

Equal neighbours are one station. The models that failed hang under their station as sidings, with the
reasons, also those that were not asked. A long line is folded in its middle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from gateway.trail.recorder import AFTER, BUDGET_TOOL, NO_PROVIDER, OPEN_CIRCUIT
from gateway.trail.steps import Step
from gateway.why.causes import Failure
from gateway.why.path import failure_of, mark_blocked
from gateway.why.words import Words

MOST_STATIONS = 8
"""Stations of a line that is not folded."""
_KEPT_FIRST, _KEPT_LAST = 3, 4

_FAILED = ("failed", "refused")
_BETWEEN_CALLS = ("retry", "rate", "key")
"""The kinds of events that a turn waits for before it calls a model once more."""


class Siding(Struct, frozen=True, omit_defaults=True):
    """A model under the station of the failed calls. ``reason`` says why it did not answer; ``yours``: the
    operator can fix that.
    """

    text: str
    state: str
    reason: str = ""
    yours: bool = False


class Station(Struct, frozen=True, omit_defaults=True):
    """A station of the line. ``at`` is milliseconds, ``took`` microseconds; states are those of steps."""

    kind: str
    text: str
    at: int
    took: int
    state: str
    detail: str | UnsetType = UNSET
    sidings: tuple[Siding, ...] | UnsetType = UNSET


def draw_line(steps: Sequence[Step], words: Words) -> list[Station]:
    """Return the stations of a message, the first one first."""
    stations: list[Station] = []
    for group, found in groupby(mark_blocked(mark_replays(steps)), _group_of):
        run = list(found)
        match group:
            case "received":
                stations += [_received(step, words) for step in run]
            case "hook":
                stations.append(_hooks(run, words))
            case "model":
                stations += _models(run, words)
            case "tool":
                stations.append(_tools(run, words))
            case "placement":
                stations.append(_placements(run, words))
            case "waited":
                stations.append(_waits(run, words))
            case _:
                stations += [_other(step, words) for step in run]
    return _fold(_with_one_break(stations), words)


def _with_one_break(stations: list[Station]) -> list[Station]:
    """Return the stations; the end of a line that broke earlier is not a second break."""
    last = stations[-1] if stations else None
    if last is None or last.kind != "final" or not any(one.state in _FAILED for one in stations[:-1]):
        return stations
    return [*stations[:-1], replace(last, state="ok")]


def mark_replays(steps: Sequence[Step]) -> list[Step]:
    """Return the steps, with those of a restart that followed an outcome as ``skipped``: it was a replay."""
    before = [None, *steps]
    return [
        replace(step, state="skipped")
        if step.kind == "restart" and last is not None and last.kind == "final"
        else step
        for last, step in zip(before, steps, strict=False)
    ]


def _group_of(step: Step) -> str:
    # A fallback, and a pause before a repeated call, belong to the calls around them.
    if step.kind == "fallback" or (step.kind == "waited" and step.detail.get("for") in _BETWEEN_CALLS):
        return "model"
    return step.kind


def _received(step: Step, words: Words) -> Station:
    platform = words.platform(str(step.detail.get("channel", "")))
    detail = words("line.received.detail", platform=platform, id=str(step.detail.get("platform_id", "")))
    return Station("received", words("line.received"), step.at, step.took, step.state, detail)


def _other(step: Step, words: Words) -> Station:
    key, detail = f"line.{step.kind}", ""
    match step.kind:
        case "accepted":
            detail = words("line.accepted.detail")
        case "question":
            if step.name:
                key += ".budget" if step.name == BUDGET_TOOL else ".tool"
            answer = str(step.detail.get("answer", ""))
            if answer:
                detail = words("line.question.answered", answer=answer)
            elif step.state == "waiting":
                detail = words("line.question.open")
        case "restart":
            key += f".{step.state}"
        case "final":
            key += f".{step.detail.get('outcome', '')}"
        case _:
            pass
    text = words(
        key if words.has(key) else f"line.{step.kind}", name=step.name.removeprefix("/"), tool=step.name
    )
    return Station(step.kind, text, step.at, step.took, step.state, detail or UNSET)


def _hooks(run: Sequence[Step], words: Words) -> Station:
    changed = sum(step.state == "changed" for step in run)
    blocking = next((step for step in run if step.state in _FAILED), None)
    if len(run) == 1:
        text = words("line.hook", name=run[0].name)
        detail = words(f"line.hook.{run[0].state if run[0].state in ('changed', 'ok') else 'refused'}")
    else:
        text = words("line.hooks.changed" if changed else "line.hooks", count=len(run), changed=changed)
        detail = ", ".join(dict.fromkeys(step.name for step in run))
    state = blocking.state if blocking else "changed" if changed else run[-1].state
    return Station("hook", text, run[0].at, _sum(run), state, detail)


def _models(run: Sequence[Step], words: Words) -> list[Station]:
    """Return the stations of neighbouring calls: failed ones are one station with sidings."""
    stations: list[Station] = []
    failed: list[Step] = []
    for step in run:
        is_pause = step.kind == "waited"
        if step.kind == "fallback" or step.state in _FAILED or (is_pause and failed and step.state == "ok"):
            failed.append(step)
            continue
        if failed:
            stations.append(_failed_models(failed, words))
            failed = []
        if is_pause:
            stations.append(_waits([step], words))
            continue
        tokens = step.detail.get("output_tokens")
        detail = UNSET
        if isinstance(tokens, int) and tokens:
            detail = words("line.model.tokens", count=words.count(tokens))
        text = words("line.model", name=step.name)
        stations.append(Station("model", text, step.at, step.took, step.state, detail))
    if failed:
        stations.append(_failed_models(failed, words))
    return stations


def _failed_models(run: Sequence[Step], words: Words) -> Station:
    sidings: dict[str, Siding] = {}
    tries: dict[str, int] = {}
    for step in run:
        if step.kind == "waited":
            continue
        if step.kind == "fallback":
            if not step.detail.get("asked", True):
                reason = _why_skipped(str(step.detail.get("reason", "")), words)
                sidings[step.name] = Siding(step.name, "skipped", reason)
            continue
        tries[step.name] = tries.get(step.name, 0) + 1
        failure = failure_of(step)
        reason = failure.in_words(words) if failure.code else words("cause.failed")
        if tries[step.name] > 1:
            reason = words("siding.tried", reason=reason, count=tries[step.name])
        sidings[step.name] = Siding(step.name, step.state, reason, failure.is_fixable)
    state, text = "failed", words("line.models.failed", count=len(tries))
    if len(tries) == 1:
        text = words("line.model.failed")
    if not tries:
        state, text = "skipped", words("line.models.skipped")
    return Station("model", text, run[0].at, _sum(run), state, sidings=tuple(sidings.values()))


def _why_skipped(reason: str, words: Words) -> str:
    """Return why a model was not asked; what a provider or a plugin said stays as it is."""
    if reason.startswith(AFTER):
        cause = Failure("", "", reason.removeprefix(AFTER)).in_words(words)
        return words("siding.after", cause=cause)
    known = {NO_PROVIDER: "siding.no_provider", OPEN_CIRCUIT: "siding.circuit"}.get(reason)
    return words("siding.skipped", reason=words(known) if known else reason)


def _tools(run: Sequence[Step], words: Words) -> Station:
    refusal = next((step for step in run if "refused_by" in step.detail), None)
    allowed = str(run[0].detail.get("allowed_by", ""))
    detail = words("line.tool.allowed", by=_by(allowed, words)) if allowed else ""
    text = words("line.tool", name=run[0].name)
    if len(run) > 1:
        text = words("line.tools", count=len(run))
        detail = ", ".join(dict.fromkeys(step.name for step in run))
    if refusal is not None:
        said = ", ".join(filter(None, (refusal_of(refusal, words), rule_of(refusal))))
        detail = words("line.tool.refused", name=refusal.name, reason=said)
    state = next((step.state for step in run if step.state != "ok"), "ok")
    return Station("tool", text, run[0].at, _sum(run), state, detail or UNSET)


def refusal_of(step: Step, words: Words) -> str:
    """Return as a clause why the call of a tool did not run, without the pattern of a rule."""
    kind, _, name = str(step.detail.get("refused_by", "")).partition(" ")
    key = f"refusal_by.{kind}"
    return words(key if words.has(key) else "refusal_by.other", name=name)


def rule_of(step: Step) -> str:
    """Return the rule with its pattern that refused the call of a tool, or demanded a person; else ""."""
    rules = (str(step.detail.get(name, "")) for name in ("refused_by", "asked_by"))
    return next((rule.removeprefix("rule ") for rule in rules if rule.startswith("rule ")), "")


def _by(allowed: str, words: Words) -> str:
    kind, _, name = allowed.partition(" ")
    return words(f"by.{kind}", name=name) if words.has(f"by.{kind}") else allowed


def _waits(run: Sequence[Step], words: Words) -> Station:
    keys = dict.fromkeys(f"line.for.{step.detail.get('for', '')}" for step in run)
    reasons = [words(key if words.has(key) else "line.for.other") for key in keys]
    state = run[-1].state
    key = "line.waits" if state == "waiting" else "line.waited"
    text = words(key, reason=words("line.and").join(reasons))
    return Station("waited", text, run[0].at, _sum(run), state)


def _placements(run: Sequence[Step], words: Words) -> Station:
    last = run[-1]
    placed = sum(step.state == "ok" for step in run)
    key = {"ok": "", "running": ".running", "waiting": ".waiting"}.get(last.state, ".refused")
    text = words(f"line.placed{key}", platform=words.platform(last.name))
    message = str(last.detail.get("platform_id", ""))
    detail = words("line.placed.one", id=message) if message else ""
    if placed > 1:
        detail = words("line.placed.many", count=placed)
    return Station("placement", text, run[0].at, _sum(run), last.state, detail or UNSET)


def _fold(stations: list[Station], words: Words) -> list[Station]:
    """Replace the middle of a long line by one station; what went wrong stays."""
    if len(stations) <= MOST_STATIONS:
        return stations
    middle = stations[_KEPT_FIRST:-_KEPT_LAST]
    kept: list[Station] = []
    for is_broken, found in groupby(middle, lambda station: station.state not in ("ok", "changed")):
        run = list(found)
        if is_broken or len(run) == 1:
            kept += run
        else:
            took = sum(station.took for station in run)
            kept.append(Station("folded", words("line.folded", count=len(run)), run[0].at, took, "ok"))
    return [*stations[:_KEPT_FIRST], *kept, *stations[-_KEPT_LAST:]]


def _sum(run: Iterable[Step]) -> int:
    return sum(step.took for step in run)
