"""The verdict: one sentence that says why a message was answered or not, and what to do.

The first rule that applies decides, in the order of ``_RULES``. The sentences name no person, and show no
text of a message, so that they are the same for the operator and for the writer of the message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from gateway.access.pairing import REFUSAL
from gateway.contract.messages import is_notice
from gateway.trail.recorder import BUDGET_TOOL
from gateway.trail.steps import Step
from gateway.why.causes import Failure, is_undelivered, the_cause
from gateway.why.path import last_attempt, refused_calls
from gateway.why.records import Records, is_overflow
from gateway.why.stations import mark_replays, refusal_of, rule_of
from gateway.why.words import Words

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
    "denied",
    "answered",
]
ActionKind = Literal[
    "replace_key",
    "allow",
    "pair",
    "replay",
    "raise_budget",
    "send_again",
    "stop",
    "open",
    "message",
    "model",
    "wait",
    "now",
]

_INSTEAD = re.compile(r"Answering with (\S+) instead\.$")
_ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth"}


class Action(Struct, frozen=True):
    """Something to do about a verdict: what it is about, and the equal command for the terminal.

    ``more`` is a second target: the alias of a key, the user of a pairing, the path of a setting.
    """

    kind: ActionKind
    label: str
    target: str = ""
    command: str = ""
    more: str = ""


class Verdict(Struct, frozen=True):
    """A verdict. ``text`` is the sentence; ``more`` adds what else the operator should know, or is empty.

    ``rule`` is the rule of the permissions that refused a tool, with its pattern.
    """

    code: Code
    text: str
    actions: tuple[Action, ...] = ()
    more: str = ""
    rule: str = ""


class Live(Struct, frozen=True):
    """The running turn of a message: what it does, since when (ms), and its steps that are not stored yet.

    ``name`` is that of the tool or model.
    """

    doing: Literal["tool", "model", "hooks", "delivery"]
    since: int
    name: str = ""
    steps: tuple[Step, ...] = ()


class Case(Struct, frozen=True):
    """Everything that a verdict is made from. ``live`` is None unless a turn runs for the message.

    ``running`` is false if the rows were read while no gateway ran. ``now`` is milliseconds.
    """

    records: Records
    steps: Sequence[Step]
    failures: Sequence[Failure]
    words: Words
    now: int
    live: Live | None = None
    running: bool = True

    @property
    def platform(self) -> str:
        """The display name of the channel."""
        return self.words.platform(self.records.channel)

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


def unknown(words: Words, channel: str = "", last_event: int | None = None, *, gap: bool = False) -> Verdict:
    """Return the verdict of a message that was never stored. ``last_event`` is the channel's newest one (ms).

    ``gap``: messages that were not for the bot came too fast, or were too many, to be kept.
    """
    text = words("unknown")
    if channel and last_event:
        text = words("unknown.last", platform=words.platform(channel), time=words.clock(last_event))
    elif channel:
        text = words("unknown.none", platform=words.platform(channel))
    return Verdict("unknown", text, (_health(words, channel),), words("unknown.gap") if gap else "")


def refused(words: Words, reason: str, channel: str) -> Verdict:
    """Return the verdict of a message that was not accepted."""
    key = f"refusal.{reason}"
    text = words("refused", reason=words(key if words.has(key) else "refusal.other"))
    match reason:
        case "sender":
            actions = (_pair(words, channel),)
        case "unreadable":
            actions = (Action("open", words("action.unreadable"), "dead", "trunkline dead list"),)
        case _:
            actions = (Action("open", words("action.room"), "rooms", "trunkline channels rooms", channel),)
    return Verdict("refused", text, actions)


def _refused(case: Case) -> Verdict | None:
    records, words = case.records, case.words
    if is_overflow(records):
        return refused(words, "limit", records.channel)
    if records.was_deleted or not case.is_settled:
        return None
    # Only messages that are settled by their acceptance have no place in a conversation.
    if not records.seq and not records.attempts and records.answer is None:
        return refused(words, "sender", records.channel)
    if records.answer is not None and records.answer.text.startswith(REFUSAL):
        pair = _pair(words, records.channel, records.inbound.sender.id)
        return Verdict("refused", words("refused.paired"), (pair,))
    return None


def _merged(case: Case) -> Verdict | None:
    records, words = case.records, case.words
    if records.state != "merged" or records.into is None:
        return None
    show = Action("message", words("action.message"), records.into, f"trunkline why {records.into}")
    code: Code = "superseded" if records.a_revision else "merged"
    return Verdict(code, words(code), (show,))


def _waiting(case: Case) -> Verdict | None:
    records, words = case.records, case.words
    if case.is_settled or records.was_deleted:
        return None
    question = next((one for one in records.questions if one.state == "open"), None)
    if question is not None:
        what = "question" if not question.tool else "budget" if question.tool == BUDGET_TOOL else "tool"
        allow = Action("allow", words("action.decide"), question.id, "")
        return _waits(words, words(f"wait.{what}", tool=question.tool), allow)
    if records.has_body:
        return _waiting_for_platform(case)
    if (waited := _current_wait(case)) is not None:
        return waited
    if case.live is not None:
        return None
    if not case.running:
        start = Action("open", words("action.start"), "", "trunkline run")
        return _waits(words, words("wait.gateway"), start)
    if records.ahead:
        many = words("wait.message" if records.ahead == 1 else "wait.messages", count=records.ahead)
        return _waits(words, many, Action("stop", words("action.stop_other"), records.session, "/stop"))
    if records.not_before > case.now:
        what = words("wait.attempt", time=words.clock(records.not_before))
        return _waits(words, what, Action("wait", words("action.wait")))
    return _waits(words, words("wait.turn"), Action("wait", words("action.wait")))


def _waiting_for_platform(case: Case) -> Verdict | None:
    """Return the verdict of an answer that its platform does not take at the moment."""
    last = case.steps[-1] if case.steps else None
    if last is None or last.detail.get("code") == "PlacementUncertain":
        return None
    asked = last.kind == "waited" and last.detail.get("for") == "platform"
    if not asked and (last.kind, last.state) != ("placement", "waiting"):
        return None
    what = case.words("wait.platform", platform=case.platform, until=_until(case, last))
    return _waits(case.words, what, _health(case.words, case.records.channel))


def _current_wait(case: Case) -> Verdict | None:
    """Return the verdict of a turn that pauses before its next call of a model."""
    last, words = case.steps[-1] if case.steps else None, case.words
    if case.live is None or last is None or (last.kind, last.state) != ("waited", "waiting"):
        return None
    given = last.detail.get("provider")
    provider = words.named(str(given)) if given else words("the_provider")
    reason = str(last.detail.get("for"))
    key = f"wait.{reason}" if given or reason == "mailbox" else "wait.next"
    # Only the pause before another attempt can be ended; a provider has its own reasons.
    now = (Action("now", words("action.now"), case.records.id),) if key == "wait.next" else ()
    what = words(key, provider=provider, until=_until(case, last))
    stop = Action("stop", words("action.stop"), case.records.session, "/stop")
    return _waits(words, what, *now, stop)


def _until(case: Case, step: Step) -> str:
    until = step.detail.get("until")
    if not isinstance(until, int) or until <= case.now:
        return ""
    return case.words("until", time=case.words.clock(until))


def _running(case: Case) -> Verdict | None:
    live, words = case.live, case.words
    if live is None or case.is_settled or case.records.has_body:
        return None
    step, since = words(f"doing.{live.doing}", name=live.name), words.duration(case.now - live.since)
    stop = Action("stop", words("action.stop"), case.records.session, "/stop")
    return Verdict("running", words("running", step=step, duration=since), (stop,))


def _stopped(case: Case) -> Verdict | None:
    records, words = case.records, case.words
    if records.was_deleted:
        return Verdict("stopped", words("stopped.deleted"))
    if not case.is_settled:
        return None
    cause = the_cause(case.failures)
    if cause is not None and cause.code == "BudgetExceededError":
        name = _budget_of(cause.text)
        raised = Action("raise_budget", words("action.budget"), name, "trunkline usage")
        text = words("stopped.budget", text=_sentence(cause.text))
        return Verdict("stopped", text, (raised, _replay(words, records)))
    hook = next(
        (one for one in last_attempt(case.steps) if (one.kind, one.state) == ("hook", "refused")), None
    )
    # A hook that answers in place of the model has not stopped anything.
    if hook is not None and (records.answer is None or records.error is not None):
        return Verdict("stopped", words("stopped.hook", name=hook.name), (_plugin(words, hook.name),))
    if records.interrupted == "stopped" or _was_cancelled(records):
        return Verdict("stopped", words("stopped.person"), (_replay(words, records),))
    if records.answer is None and not records.dead_at:
        return Verdict("stopped", words("stopped.silent"))
    return None


def _failed(case: Case) -> Verdict | None:
    cause, words = the_cause(case.failures), case.words
    if cause is None or not case.is_settled or is_undelivered(case.records):
        return None
    text = words("failed.provider" if cause.is_of_provider else "failed", cause=cause.in_words(words))
    others = [one for one in case.failures if one is not cause and one.asked]
    more = ". ".join(_capitalized(one.in_words(words)) for one in others)
    return Verdict("failed", text, (*_fixes(words, cause), _replay(words, case.records)), more and f"{more}.")


def _undelivered(case: Case) -> Verdict | None:
    records, words = case.records, case.words
    again = Action(
        "send_again", words("action.send_again"), records.id, f"trunkline dead replay {records.id}"
    )
    if is_undelivered(records):
        reason = _sentence(records.dead_reason.partition(": ")[2])
        text = words("unsent.reason" if reason else "unsent", platform=case.platform, reason=reason)
        return Verdict("unsent", text, (again,))
    if records.has_body and not case.is_settled:
        text = words("uncertain", platform=case.platform)
        return Verdict("uncertain", text, (_health(words, records.channel),))
    return None


def _answered(case: Case) -> Verdict:
    records, words = case.records, case.words
    took = max(0, records.settled_at - records.received_at) if records.settled_at else 0
    failed = {
        step.name
        for step in last_attempt(case.steps)
        if step.kind == "model" and step.state in ("failed", "refused")
    }
    by = ""
    if failed:
        by = words(f"answered.{_ORDINALS.get(len(failed) + 1, 'later')}")
    elif _was_answered_by_another(records):
        by = words("answered.other")
    restarts = sum(step.kind == "restart" and step.state == "ok" for step in mark_replays(case.steps))
    after = words("answered.restart" if restarts == 1 else "answered.restarts", count=restarts)
    how = {"duration": words.duration(took), "by": by, "after": after if restarts else ""}
    if refusals := refused_calls(case.steps):
        return _denied(case, refusals, how)
    return Verdict("answered", words("answered", **how))


def _denied(case: Case, refusals: Sequence[Step], how: Mapping[str, str]) -> Verdict:
    """Return the verdict of an answer without a tool that the model wanted to run."""
    words = case.words
    first, *others = (words("tool_refused", tool=one.name, reason=refusal_of(one, words)) for one in refusals)
    more = ". ".join(map(_capitalized, others))
    rules = ", ".join(filter(None, dict.fromkeys([rule_of(one) for one in refusals])))
    by, _, name = str(refusals[0].detail["refused_by"]).partition(" ")
    match by:
        case "agent":
            actions = (Action("open", words("action.agent"), "agents", "trunkline agents list", name),)
        case "room":
            rooms, channel = "trunkline channels rooms", case.records.channel
            actions = (Action("open", words("action.room"), "rooms", rooms, channel),)
        case "plugin":
            actions = (_plugin(words, name),)
        case _ if rules:
            shown = "trunkline config show"
            actions = (Action("open", words("action.rules"), "settings", shown, "permissions"),)
        case _:
            return Verdict("denied", words("denied", **how, what=first), more=more and f"{more}.")
    return Verdict("denied", words("denied", **how, what=first), actions, more and f"{more}.", rules)


Rule = Callable[[Case], Verdict | None]
_RULES: tuple[Rule, ...] = (_refused, _merged, _waiting, _running, _stopped, _failed, _undelivered)


def _waits(words: Words, what: str, *actions: Action) -> Verdict:
    return Verdict("waiting", words("waiting", what=what), actions)


def _health(words: Words, channel: str) -> Action:
    return Action("open", words("action.channels"), "channels", "trunkline channels status", channel)


def _plugin(words: Words, name: str) -> Action:
    return Action("open", words("action.plugin"), "plugins", f"trunkline plugin info {name}", name)


def _pair(words: Words, channel: str, user: str = "") -> Action:
    return Action("pair", words("action.pair"), channel, "trunkline pair list", user)


def _replay(words: Words, records: Records) -> Action:
    return Action("replay", words("action.replay"), records.id, f"trunkline why {records.id} --replay")


def _fixes(words: Words, cause: Failure) -> list[Action]:
    match cause.code:
        case "AuthFailedError" | "QuotaExceededError":
            command = f"trunkline auth login {cause.provider}"
            return [Action("replace_key", words("action.key"), cause.provider, command, cause.key)]
        case "ModelNotFoundError" | "ProviderResolutionError":
            return [Action("model", words("action.model"), cause.model, "trunkline models list")]
        case "ContextLengthError" | "CapabilityError":
            return [Action("model", words("action.model"), cause.model, "/model")]
        case "PluginError":
            return [Action("open", words("action.plugins"), "plugins", "trunkline plugin doctor")]
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
