"""Steps: the stations of a message on its way to its answer, and the text in which they are stored.

A row of the table holds the steps of one transaction as a JSON list of lists. Neither prompts nor answers nor
arguments of tools are part of a step; error texts are cut, and configured secrets are masked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import astuple, replace

Kind = Literal[
    "received",
    "accepted",
    "merged",
    "superseded",
    "waited",
    "hook",
    "command",
    "model",
    "fallback",
    "tool",
    "question",
    "restart",
    "placement",
    "final",
]
"""The kinds of steps, with the keys of their details:

==========  ==========================================================================================
received    channel, account, chat, platform_id
accepted    session, trace (the id of the answer, which the log lines of its turn name)
merged      into: the message that was answered together with it
superseded  by: the newer revision of the same message
waited      for (message, key, retry, rate, platform or mailbox), provider, until (ms)
hook        name is the plugin; hook, verdict (pass, changed, intercepted or blocked), calls, error
command     name is the command
model       name is provider/model; provider, model, key (as ``key 2 (api_keys[0])``),
            attempt, code, status (of HTTP), error, retryable, yours (the operator can fix it), input_tokens,
            output_tokens, cached_tokens, nano_usd
fallback    name is provider/model; asked, reason
tool        name is the tool; call, allowed_by or refused_by (rule NAME: PATTERN, always, person, plugin …,
            default; what took the tool away: agent …, room, mode or hook; why no person decided: nobody,
            unshown or timeout), asked_by (the rule that demanded a person)
question    name is the tool that waits for it, if any; id, kind (approval, budget or question), answer, by
restart     attempt; an attempt after the gateway was restarted
placement   name is the channel; nonce, platform_id, attempt, waited_ms, code, error
final       outcome (answered, notice, stopped, failed, dead or nothing), code
==========  ==========================================================================================
"""

State = Literal["ok", "failed", "refused", "skipped", "waiting", "running", "changed", "unrecorded"]
"""The end of a step. ``running`` and ``waiting`` had not ended when the row was written; ``unrecorded`` are
the steps that were lost when the gateway was killed before their commit."""

UNRECORDED = "not recorded: gateway restarted"
"""Name of the step that replaces steps that were lost."""

Value = str | int | float | bool
Mask = Callable[[str], str]

MOST_TEXT = 500
"""Characters of a text in a step."""
MOST_BYTES = 2048
"""Bytes of a stored step; of a longer one the texts are cut further."""
_SHORT_TEXT = 80


class Step(Struct, frozen=True, gc=False):
    """One step: when it began (ms since the epoch), how long it took (µs), and how it ended."""

    at: int
    took: int
    kind: Kind
    name: str = ""
    state: State = "ok"
    detail: Mapping[str, Value] = {}


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[tuple[int, int, Kind, str, State, dict[str, Value]]]).decode


def pack(steps: Sequence[Step], mask: Mask = str) -> str:
    """Return the stored text of some steps. ``mask`` returns a text without secrets."""
    text = _join(steps)
    # One scan for all steps: nearly always there is nothing to mask.
    return text if mask(text) == text else _join([_masked(step, mask) for step in steps])


def unpack(text: str) -> list[Step]:
    """Return the steps of a stored text. Raises ValueError for a text that ``pack`` did not write."""
    return [Step(*fields) for fields in _decode(text)]


def bounded(text: str, most: int = MOST_TEXT) -> str:
    """Return a text, cut to some characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _join(steps: Sequence[Step]) -> str:
    return f"[{','.join([_encoded(step) for step in steps])}]"


def _encoded(step: Step) -> str:
    encoded = _encode(astuple(step))
    if len(encoded) > MOST_BYTES:
        encoded = _encode(astuple(_cut(step, MOST_TEXT)))
    if len(encoded) > MOST_BYTES:
        encoded = _encode(astuple(_cut(step, _SHORT_TEXT)))
    if len(encoded) > MOST_BYTES:
        # Only more details than any kind of step has come here.
        encoded = _encode(astuple(replace(_cut(step, _SHORT_TEXT), detail={})))
    return encoded.decode()


def _cut(step: Step, most: int) -> Step:
    detail = {
        key: bounded(value, most) if isinstance(value, str) else value for key, value in step.detail.items()
    }
    return replace(step, name=bounded(step.name, most), detail=detail)


def _masked(step: Step, mask: Mask) -> Step:
    detail = {key: mask(value) if isinstance(value, str) else value for key, value in step.detail.items()}
    return replace(step, name=mask(step.name), detail=detail)
