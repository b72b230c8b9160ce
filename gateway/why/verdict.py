"""The verdict: one sentence that says why a message got its answer or none, and what to do about it.

The first rule that applies decides, in the order of ``_RULES``. The sentences name no person, and show no
text of a message, so that they are the same for the operator and for the writer of the message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Literal

from msgspec import Struct

from gateway.access.pairing import REFUSAL
from gateway.contract.messages import is_notice
from gateway.trail.recorder import BUDGET_TOOL
from gateway.trail.steps import Step
from gateway.why.causes import Failure, Named, is_undelivered, the_cause
from gateway.why.path import last_attempt
from gateway.why.records import Records, is_overflow
from gateway.why.stations import mark_replays, platform_name

Code = Literal[
    "unknown",
    "refused",
    "merged",
    "superseded",
    "waiting",
    "running",
    "stopped",
    "failed",
    "unsent",
    "uncertain",
    "answered",
]
ActionKind = Literal[
    "replace_key", "allow", "pair", "replay", "raise_budget", "send_again", "stop", "open", "model", "wait"
]

_INSTEAD = re.compile(r"Answering with (\S+) instead\.$")
_ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth"}
_REFUSALS = {
    "no_mention": "it does not address the bot",
    "sender": "the sender is not allowed",
    "room": "the bot is switched off in this room",
    "unreadable": "the event could not be read",
    "limit": "too many messages were waiting",
}


class Action(Struct, frozen=True):
    """Something to do about a verdict: what it is about, and the equal command for the terminal."""

    kind: ActionKind
    label: str
    target: str = ""
    command: str = ""


class Verdict(Struct, frozen=True):
    """A verdict. ``text`` is the sentence; ``more`` adds what else the operator should know, or is empty."""

    code: Code
    text: str
    actions: tuple[Action, ...] = ()
    more: str = ""


class Live(Struct, frozen=True):
    """The running turn of a message: what it does, since when (ms), and its steps that are not stored yet."""

    step: str
    since: int
    steps: tuple[Step, ...] = ()


class Case(Struct, frozen=True):
    """Everything that a verdict is made from. ``live`` is None unless a turn runs for the message.

    ``running`` is false if the rows were read while no gateway ran. ``now`` is milliseconds.
    """

    records: Records
    steps: Sequence[Step]
    failures: Sequence[Failure]
    named: Named
    now: int
    live: Live | None = None
    running: bool = True

    @property
    def platform(self) -> str:
        """The display name of the channel."""
        return platform_name(self.records.channel)

    @property
    def is_settled(self) -> bool:
        """Return whether the message has its outcome."""
        return self.records.state in ("done", "dead")


def decide(case: Case) -> Verdict:
    """Return the verdict of a message that the inbox has."""
    for rule in _RULES:
        found = rule(case)
        if found is not None:
            return found
    return _answered(case)


def unknown(channel: str = "", last_event: int | None = None, *, gap: bool = False) -> Verdict:
    """Return the verdict of a message that was never stored. ``last_event`` is the channel's newest one (ms).

    ``gap``: messages that were not for the bot came too fast, or were too many, to be kept.
    """
    text = "We have no such message."
    if channel:
        seen = f"at {clock(last_event)}" if last_event else "none"
        text += f" Last event of {platform_name(channel)}: {seen}."
    more = (
        "Some messages that were not for the bot came too fast, or were too many, to be kept." if gap else ""
    )
    command = "trunkline channels status"
    return Verdict("unknown", text, (Action("open", "Channel health", channel, command),), more)


def refused(reason: str, channel: str) -> Verdict:
    """Return the verdict of a message that was not accepted."""
    text = f"Not for the bot: {_REFUSALS.get(reason, 'it was not accepted')}."
    match reason:
        case "sender":
            actions = (_pair(channel),)
        case "unreadable":
            actions = (Action("open", "Unreadable events", "dead", "trunkline dead list"),)
        case _:
            actions = (Action("open", "Rules of the room", channel, "trunkline channels rooms"),)
    return Verdict("refused", text, actions)


def _refused(case: Case) -> Verdict | None:
    records = case.records
    if is_overflow(records):
        return refused("limit", records.channel)
    if records.was_deleted or not case.is_settled:
        return None
    # Only messages that are settled by their acceptance have no place in a conversation.
    if not records.seq and not records.attempts and records.answer is None:
        return refused("sender", records.channel)
    if records.answer is not None and records.answer.text.startswith(REFUSAL):
        text = "Not for the bot: the sender is not allowed. The bot sent a pairing code."
        return Verdict("refused", text, (_pair(records.channel),))
    return None


def _merged(case: Case) -> Verdict | None:
    records = case.records
    if records.state != "merged" or records.into is None:
        return None
    show = Action("open", "Open that message", records.into, f"trunkline why {records.into}")
    if records.a_revision:
        return Verdict("superseded", "A newer edit replaced it.", (show,))
    return Verdict("merged", "Answered together with the message that came after it.", (show,))


def _waiting(case: Case) -> Verdict | None:
    records = case.records
    if case.is_settled or records.was_deleted:
        return None
    question = next((one for one in records.questions if one.state == "open"), None)
    if question is not None:
        if question.tool == BUDGET_TOOL:
            what = "to decide about more budget"
        else:
            what = f"to decide whether {question.tool} may run" if question.tool else "to answer a question"
        allow = Action("allow", "Decide", question.id, "")
        return _waits(f"a person {what}", allow)
    if records.has_body:
        return _waiting_for_platform(case)
    if (waited := _current_wait(case)) is not None:
        return waited
    if case.live is not None:
        return None
    if not case.running:
        return _waits("the gateway, which does not run", Action("open", "Start", "", "trunkline run"))
    if records.ahead:
        many = "an earlier message" if records.ahead == 1 else f"{records.ahead} earlier messages"
        return _waits(many, Action("stop", "Stop the running answer", records.session, "/stop"))
    if records.not_before > case.now:
        return _waits(f"its next attempt at {clock(records.not_before)}", Action("wait", "Wait"))
    return _waits("its turn", Action("wait", "Wait"))


def _waiting_for_platform(case: Case) -> Verdict | None:
    """Return the verdict of an answer that its platform does not take at the moment."""
    last = case.steps[-1] if case.steps else None
    if last is None or last.detail.get("code") == "PlacementUncertain":
        return None
    asked = last.kind == "waited" and last.detail.get("for") == "platform"
    if not asked and (last.kind, last.state) != ("placement", "waiting"):
        return None
    what = f"{case.platform}{_until(last, case.now)}"
    return _waits(what, Action("open", "Channel health", case.records.channel, _CHANNELS))


def _current_wait(case: Case) -> Verdict | None:
    """Return the verdict of a turn that pauses before its next call of a model."""
    last = case.steps[-1] if case.steps else None
    if case.live is None or last is None or last.kind != "waited":
        return None
    if last.state != "waiting":
        return None
    provider = case.named(str(last.detail["provider"])) if "provider" in last.detail else "the provider"
    whats = {
        "rate": f"the rate limit of {provider}",
        "key": f"a free key of {provider}",
        "retry": f"its next call of {provider}",
    }
    what = whats.get(str(last.detail.get("for")), "its next attempt")
    stop = Action("stop", "Stop", case.records.session, "/stop")
    return _waits(f"{what}{_until(last, case.now)}", Action("wait", "Wait"), stop)


def _until(step: Step, now: int) -> str:
    until = step.detail.get("until")
    return f" until {clock(until)}" if isinstance(until, int) and until > now else ""


def _running(case: Case) -> Verdict | None:
    if case.live is None or case.is_settled or case.records.has_body:
        return None
    text = f"Being answered: {case.live.step} for {duration(case.now - case.live.since)}."
    return Verdict("running", text, (Action("stop", "Stop", case.records.session, "/stop"),))


def _stopped(case: Case) -> Verdict | None:
    records = case.records
    if records.was_deleted:
        return _stop("the sender deleted the message")
    if not case.is_settled:
        return None
    cause = the_cause(case.failures)
    if cause is not None and cause.code == "BudgetExceededError":
        raised = Action("raise_budget", "Raise the budget", _budget_of(cause.text), "trunkline usage")
        return _stop(f"a budget stopped it: {_sentence(cause.text)}", raised)
    hook = next(
        (one for one in last_attempt(case.steps) if (one.kind, one.state) == ("hook", "refused")), None
    )
    # A hook that answers in place of the model has not stopped anything.
    if hook is not None and (records.answer is None or records.error is not None):
        info = Action("open", "Show the plugin", hook.name, f"trunkline plugin info {hook.name}")
        return _stop(f"the plugin {hook.name} stopped it", info)
    if records.interrupted == "stopped" or _was_cancelled(records):
        return _stop("a person stopped it", _replay(records))
    if records.answer is None and not records.dead_at:
        return _stop("a plugin or a command took the message and said nothing")
    return None


def _failed(case: Case) -> Verdict | None:
    cause = the_cause(case.failures)
    if cause is None or not case.is_settled or is_undelivered(case.records):
        return None
    left = ", and no other model was left" if cause.is_of_provider else ""
    text = f"No answer: {cause.in_words(case.named)}{left}."
    others = [one for one in case.failures if one is not cause and one.asked]
    more = ". ".join(_capitalized(one.in_words(case.named)) for one in others)
    return Verdict("failed", text, (*_fixes(cause), _replay(case.records)), more and f"{more}.")


def _undelivered(case: Case) -> Verdict | None:
    records = case.records
    again = Action("send_again", "Send again", records.id, f"trunkline dead replay {records.id}")
    if is_undelivered(records):
        reason = records.dead_reason.partition(": ")[2]
        text = f"Answered, but {case.platform} refused it{f': {_sentence(reason)}' if reason else ''}."
        return Verdict("unsent", text, (again,))
    if records.has_body and not case.is_settled:
        text = f"Answered, but {case.platform} has not confirmed it."
        return Verdict("uncertain", text, (Action("open", "Channel health", records.channel, _CHANNELS),))
    return None


def _answered(case: Case) -> Verdict:
    records = case.records
    took = max(0, records.settled_at - records.received_at) if records.settled_at else 0
    text = f"Answered in {duration(took)}"
    failed = {
        step.name
        for step in last_attempt(case.steps)
        if step.kind == "model" and step.state in ("failed", "refused")
    }
    if failed:
        which = _ORDINALS.get(len(failed) + 1)
        text += f" by the {which} model" if which else " by a later model"
    elif _was_answered_by_another(records):
        text += " by another model"
    restarts = sum(step.kind == "restart" and step.state == "ok" for step in mark_replays(case.steps))
    if restarts:
        text += f" after {restarts} restart{'s' if restarts > 1 else ''}"
    return Verdict("answered", f"{text}.")


Rule = Callable[[Case], Verdict | None]
_RULES: tuple[Rule, ...] = (_refused, _merged, _waiting, _running, _stopped, _failed, _undelivered)
_CHANNELS = "trunkline channels status"


def _waits(what: str, *actions: Action) -> Verdict:
    return Verdict("waiting", f"No answer yet: it waits for {what}.", actions)


def _stop(why: str, *actions: Action) -> Verdict:
    return Verdict("stopped", f"No answer: {why}.", actions)


def _pair(channel: str) -> Action:
    return Action("pair", "Allow the sender", channel, "trunkline pair list")


def _replay(records: Records) -> Action:
    return Action("replay", "Answer it now", records.id, f"trunkline why {records.id} --replay")


def _fixes(cause: Failure) -> list[Action]:
    match cause.code:
        case "AuthFailedError" | "QuotaExceededError":
            command = f"trunkline auth login {cause.provider}"
            return [Action("replace_key", "Replace the key", cause.key or cause.provider, command)]
        case "ModelNotFoundError" | "ProviderResolutionError":
            return [Action("model", "Choose another model", cause.model, "trunkline models list")]
        case "ContextLengthError" | "CapabilityError":
            return [Action("model", "Choose another model", cause.model, "/model")]
        case "PluginError":
            return [Action("open", "Check the plugins", "", "trunkline plugin doctor")]
        case _:
            return []


def _was_cancelled(records: Records) -> bool:
    answer = records.answer
    return answer is not None and answer.metadata.stop_reason == "cancelled" and records.error is None


def _was_answered_by_another(records: Records) -> bool:
    parts = () if records.answer is None else records.answer.parts
    return any(is_notice(part) and _INSTEAD.search(getattr(part, "content", "")) for part in parts)


def _budget_of(text: str) -> str:
    found = re.search(r"budgets\.([^\s.)]+)", text)
    return found[1] if found else ""


def _sentence(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def clock(at: int) -> str:
    """Return a time of day in the gateway's zone, with the date if it is not today."""
    moment, today = datetime.fromtimestamp(at / 1000).astimezone(), datetime.now().astimezone().date()
    return f"{moment:%H:%M:%S}" if moment.date() == today else f"{moment:%Y-%m-%d %H:%M:%S}"


def duration(ms: int) -> str:
    """Return a duration with its unit: ``240 ms``, ``3.9 s``, ``2 min 5 s`` or ``3 h 10 min``."""
    if ms < 1000:
        return f"{ms} ms"
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
