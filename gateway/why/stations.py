"""The line of a message: its stations in the order of time, as the console draws it.

Equal neighbours are one station. The models that failed hang under their station as sidings, with the
reasons, also those that were not asked. A long line is folded in its middle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from gateway.trail.recorder import BUDGET_TOOL
from gateway.trail.steps import Step
from gateway.why.causes import Named
from gateway.why.path import failure_of

MOST_STATIONS = 8
"""Stations of a line that is not folded."""
_KEPT_FIRST, _KEPT_LAST = 3, 4

_WAITED_FOR = {
    "message": "an earlier message",
    "key": "a key of the provider",
    "rate": "the rate limit of the provider",
    "retry": "the next attempt",
    "person": "a person",
    "platform": "the platform",
    "mailbox": "its turn",
    "budget": "a budget",
}
_FAILED = ("failed", "refused")
_BETWEEN_CALLS = ("retry", "rate", "key")
"""What a turn waits for before it calls a model once more."""


class Siding(Struct, frozen=True):
    """A model under the station of the failed calls. ``reason`` says why it did not answer."""

    text: str
    state: str
    reason: str = ""


class Station(Struct, frozen=True, omit_defaults=True):
    """A station of the line. ``at`` is milliseconds, ``took`` microseconds; states are those of steps."""

    kind: str
    text: str
    at: int
    took: int
    state: str
    detail: str | UnsetType = UNSET
    sidings: tuple[Siding, ...] | UnsetType = UNSET


def draw_line(steps: Sequence[Step], named: Named) -> list[Station]:
    """Return the stations of a message, the first one first. ``named`` names providers."""
    stations: list[Station] = []
    for group, found in groupby(mark_replays(steps), _group_of):
        run = list(found)
        match group:
            case "received":
                stations += [_received(step) for step in run]
            case "hook":
                stations.append(_hooks(run))
            case "model":
                stations += _models(run, named)
            case "tool":
                stations.append(_tools(run))
            case "placement":
                stations.append(_placements(run))
            case "waited":
                stations.append(_waits(run))
            case _:
                stations += [_other(step) for step in run]
    return _fold(_with_one_break(stations))


def _with_one_break(stations: list[Station]) -> list[Station]:
    """Return the stations; the end of a line that broke earlier is no second break."""
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


def _received(step: Step) -> Station:
    channel = platform_name(str(step.detail.get("channel", "")))
    message = step.detail.get("platform_id", "")
    return Station("received", "Received", step.at, step.took, step.state, f"{channel}, message {message}")


def _other(step: Step) -> Station:
    detail, state = "", step.state
    match step.kind:
        case "accepted":
            text, detail = "Stored", "acknowledged after the commit"
        case "merged":
            text = "Answered with a later message"
        case "superseded":
            text = "Replaced by a newer edit"
        case "command":
            text = f"Command /{step.name.removeprefix('/')}"
        case "question":
            if step.name == BUDGET_TOOL:
                text = "Asked for more budget"
            else:
                text = f"Asked whether {step.name} may run" if step.name else "Asked a question"
            answer = str(step.detail.get("answer", ""))
            detail = f"answered {answer}" if answer else "no answer yet" if state == "waiting" else ""
        case "restart":
            text = _RESTARTS.get(state, "Gateway restarted, taken up again")
        case "final":
            text = _FINALS.get(str(step.detail.get("outcome", "")), "Settled")
        case _:
            text = step.kind.capitalize()
    return Station(step.kind, text, step.at, step.took, state, detail or UNSET)


_RESTARTS = {
    "unrecorded": "Not recorded: gateway restarted",
    "waiting": "Gateway stopped in order",
    "skipped": "Answered again on request",
}
_FINALS = {
    "answered": "Answer complete",
    "done": "Settled",
    "notice": "Answered with a notice",
    "stopped": "Stopped",
    "failed": "Answered with an error",
    "dead": "Given up",
    "nothing": "Settled without an answer",
}


def _hooks(run: Sequence[Step]) -> Station:
    changed = sum(step.state == "changed" for step in run)
    blocking = next((step for step in run if step.state in _FAILED), None)
    if len(run) == 1:
        text = f"Hook {run[0].name}"
        detail = {"changed": "changed the message", "ok": "passed"}.get(run[0].state, "stopped the message")
    else:
        text = f"Hooks: {len(run)} ran" + (f", {changed} changed the message" if changed else "")
        detail = ", ".join(dict.fromkeys(step.name for step in run))
    state = blocking.state if blocking else "changed" if changed else run[-1].state
    return Station("hook", text, run[0].at, _sum(run), state, detail)


def _models(run: Sequence[Step], named: Named) -> list[Station]:
    """Return the stations of neighbouring calls: failed ones are one station with sidings."""
    stations: list[Station] = []
    failed: list[Step] = []
    for step in run:
        is_pause = step.kind == "waited"
        if step.kind == "fallback" or step.state in _FAILED or (is_pause and failed and step.state == "ok"):
            failed.append(step)
            continue
        if failed:
            stations.append(_failed_models(failed, named))
            failed = []
        if is_pause:
            stations.append(_waits([step]))
            continue
        tokens = step.detail.get("output_tokens")
        detail = f"{tokens:,} tokens" if isinstance(tokens, int) and tokens else UNSET
        stations.append(Station("model", f"Model {step.name}", step.at, step.took, step.state, detail))
    if failed:
        stations.append(_failed_models(failed, named))
    return stations


def _failed_models(run: Sequence[Step], named: Named) -> Station:
    sidings: dict[str, Siding] = {}
    tries: dict[str, int] = {}
    for step in run:
        if step.kind == "waited":
            continue
        if step.kind == "fallback":
            if not step.detail.get("asked", True):
                sidings[step.name] = Siding(
                    step.name, "skipped", f"not asked: {step.detail.get('reason', '')}"
                )
            continue
        tries[step.name] = tries.get(step.name, 0) + 1
        failure = failure_of(step)
        reason = failure.in_words(named) if failure.code else "failed"
        if tries[step.name] > 1:
            reason += f", tried {tries[step.name]} times"
        sidings[step.name] = Siding(
            step.name, step.state, reason + (" · yours to fix" if failure.is_fixable else "")
        )
    asked = len(tries)
    if not asked:
        return Station(
            "model", "Models not asked", run[0].at, _sum(run), "skipped", sidings=tuple(sidings.values())
        )
    text = "Model failed" if asked == 1 else f"Model: {asked} failed"
    return Station("model", text, run[0].at, _sum(run), "failed", sidings=tuple(sidings.values()))


def _tools(run: Sequence[Step]) -> Station:
    allowed = str(run[0].detail.get("allowed_by", ""))
    detail = f"allowed by {allowed}" if allowed else ""
    text = f"Tool {run[0].name}"
    if len(run) > 1:
        text, detail = f"Tools: {len(run)} calls", ", ".join(dict.fromkeys(step.name for step in run))
    state = next((step.state for step in run if step.state != "ok"), "ok")
    return Station("tool", text, run[0].at, _sum(run), state, detail or UNSET)


def _waits(run: Sequence[Step]) -> Station:
    reasons = dict.fromkeys(_WAITED_FOR.get(str(step.detail.get("for", "")), "something") for step in run)
    state = run[-1].state
    verb = "Waits" if state == "waiting" else "Waited"
    return Station("waited", f"{verb} for {' and '.join(reasons)}", run[0].at, _sum(run), state)


def _placements(run: Sequence[Step]) -> Station:
    platform, last = platform_name(run[-1].name), run[-1]
    placed = sum(step.state == "ok" for step in run)
    match last.state:
        case "ok":
            text = f"Placed in {platform}"
        case "running":
            text = f"Not confirmed by {platform}"
        case "waiting":
            text = f"Waits for {platform}"
        case _:
            text = f"Refused by {platform}"
    message = str(last.detail.get("platform_id", ""))
    detail = f"{placed} messages" if placed > 1 else f"message {message}" if message else ""
    return Station("placement", text, run[0].at, _sum(run), last.state, detail or UNSET)


def _fold(stations: list[Station]) -> list[Station]:
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
            kept.append(Station("folded", f"{len(run)} more steps", run[0].at, took, "ok"))
    return [*stations[:_KEPT_FIRST], *kept, *stations[-_KEPT_LAST:]]


def platform_name(channel: str) -> str:
    """Return the display name of a channel."""
    return channel.partition(".")[0].capitalize() or "the platform"


def _sum(run: Iterable[Step]) -> int:
    return sum(step.took for step in run)
