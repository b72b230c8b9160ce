"""Questions to people: what a component asks in a chat, and the answer it gets.

A question is stored before it is asked, is answered once, and outlives a restart. The request for the
approval of a tool call is a question, too.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct, field, structs

from gateway.contract.channel import Address, Placed, PlacementRefused, SenderRole
from gateway.contract.messages import now_ms

QuestionState = Literal["open", "answered", "expired", "withdrawn"]

MAX_ANSWER = 4_000
"""Most characters of a free-text answer."""
_MOST_BUTTONS, _LONGEST_LABEL = 25, 75
"""The limits of Discord and Slack."""


class Choice(Struct, frozen=True, omit_defaults=True):
    """A button of a question. ``value`` is the answer it gives, ``label`` its text (default: the value).

    ``words`` are further texts that mean the same when a user types them instead of pressing the button.
    """

    value: str
    label: str = ""
    description: str = ""
    style: Literal["plain", "good", "bad"] = "plain"
    words: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The label of the button."""
        return self.label or self.value


class Question(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="question"):
    """A question in a chat. ``answerers`` may answer, besides the owner: ids of users, and groups of users
    such as ``role:123``.

    Without ``choices``, or with ``free_text``, any text is an answer. With ``multiple`` an answer has one
    choice or more. ``owner`` gets the answer; an owner asks once for each ``key``. Times are in milliseconds.
    ``role`` is the role in the message that led to the question. ``restored``: it was read from the store, so
    an earlier process may have shown it. With ``admins``, admins of the channel at the time of the answer may
    answer, too.
    """

    key: str
    address: Address
    answerers: tuple[str, ...]
    title: str
    expires_at: int
    session: str = ""
    owner: str = ""
    detail: str = ""
    choices: tuple[Choice, ...] = ()
    multiple: bool = False
    free_text: bool = False
    role: SenderRole | None = None
    admins: bool = False
    restored: bool = False
    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    created_at: int = field(default_factory=now_ms)

    @property
    def takes_text(self) -> bool:
        """Return whether any text is an answer."""
        return self.free_text or not self.choices

    def read(self, text: str) -> tuple[str, ...] | None:
        """Return the answer that a typed text gives: labels, values or numbers of choices, or free text."""
        typed = text.strip()
        several = re.split(r"[,;\n]", typed) if self.multiple else [typed]
        picked = [self._picked(one) for one in several if one.strip()]
        if picked and None not in picked:
            return tuple(dict.fromkeys(one for one in picked if one is not None))
        is_text = self.takes_text and 0 < len(typed) <= MAX_ANSWER and not typed.startswith("/")
        return (typed,) if is_text else None

    def accepts(self, values: Sequence[str]) -> bool:
        """Return whether these values are an answer to the question."""
        known = {choice.value for choice in self.choices}
        if not values or len(values) > (max(1, len(known)) if self.multiple else 1):
            return False
        return all(one in known or (self.takes_text and 0 < len(one) <= MAX_ANSWER) for one in values)

    def labels(self, values: Sequence[str]) -> str:
        """Return an answer as text, with the labels of its choices."""
        known = {choice.value: choice.text for choice in self.choices}
        return ", ".join(known.get(one, one) for one in values)

    def _picked(self, text: str) -> str | None:
        word = text.strip().rstrip(".!").lower()
        for number, choice in enumerate(self.choices, 1):
            names = {choice.value.lower(), choice.text.lower(), *choice.words}
            if word in names or (self.is_numbered and word == str(number)):
                return choice.value
        return None

    @property
    def buttons(self) -> tuple[Choice, ...]:
        """The choices that a press of one button can answer with, with labels that a button can show."""
        if self.multiple or len(self.choices) > _MOST_BUTTONS:
            return ()
        return tuple(
            structs.replace(one, label=f"{one.text[: _LONGEST_LABEL - 1]}…") if _is_long(one) else one
            for one in self.choices
        )

    def in_words(
        self, most: int = 10_000, measure: Callable[[str], int] = len, *, buttons: bool = True
    ) -> str:
        """Return what buttons do not show, as plain text: the detail, the choices, and how to answer.

        Detail and descriptions are cut so that ``measure`` of the text is at most ``most``, if that is
        possible. Without ``buttons`` the channel has none.
        """
        text = ""
        for longest in (MAX_ANSWER, *_CUTS, 20, 0):
            text = self._in_words(longest, buttons and bool(self.buttons))
            if measure(text) <= most:
                break
        return text

    def _in_words(self, longest: int, buttons: bool) -> str:
        texts = [_shortened(self.detail, longest)] if self.detail and longest else []
        explained = any(choice.description or _is_long(choice) for choice in self.choices)
        if self.choices and (explained or not buttons):
            lines = (
                f"{name}{choice.text}: {_shortened(choice.description, longest)}".removesuffix(": ")
                for name, choice in zip(self._names(), self.choices, strict=True)
            )
            texts.append("\n".join(lines))
        if self.multiple:
            texts.append("Reply with the numbers of your choices, such as 1, 2.")
        elif not buttons and not self.is_numbered:
            texts.append("Reply with one of these words.")
        elif not buttons and self.choices:
            texts.append(
                "Reply with the number of your choice, or with your own answer."
                if self.free_text
                else "Reply with the number of your choice."
            )
        elif self.takes_text:
            texts.append("Reply with your own answer." if self.choices else "Reply with your answer.")
        return "\n\n".join(texts)

    def _names(self) -> list[str]:
        """Return what a user types for each choice, as it begins the line of the choice."""
        if self.is_numbered:
            return [f"{number}. " for number in range(1, len(self.choices) + 1)]
        return [f"{choice.value}: " if choice.words or choice.label else "" for choice in self.choices]

    @property
    def is_numbered(self) -> bool:
        """Return whether its choices can be picked by their numbers."""
        return not any(choice.words for choice in self.choices)


class ApprovalRequest(Question, frozen=True, kw_only=True, omit_defaults=True, tag="approval"):
    """A tool call that waits for a user's decision: once, always or deny. ``arguments`` are the call's.

    ``always`` is the exact text that an "always" will match, to be printed on its button, at most 64
    printable characters. If it is None, "always" is not offered. ``reason`` is a sentence for the user: why
    the call is asked although a rule or an earlier "always" allows it; empty for other calls.
    """

    tool_name: str
    arguments: Mapping[str, Any]
    always: str | None = None
    reason: str = ""

    def whole(self, limit: int) -> str:
        """Return all arguments as JSON, with invisible characters escaped.

        Raises PlacementRefused if that is more than ``limit`` characters, so that nothing is hidden.
        """
        text = visible_json(dict(self.arguments), indent=1)
        if len(text) > limit or len(self.tool_name) > _LONGEST_NAME:
            raise PlacementRefused(f"the question of {self.tool_name[:_LONGEST_NAME]!r} is too long to show")
        return text

    def shortened(self, limit: int) -> str:
        """Return every argument in at most ``limit`` characters, with long values cut in the middle.

        Only for channels that also attach all arguments as a file. Raises
        PlacementRefused if there are too many arguments even so.
        """
        values = {visible_json(key): visible_json(value) for key, value in self.arguments.items()}
        for most in _CUTS:
            lines = [f" {key}: {_cut_in_the_middle(value, most)}" for key, value in values.items()]
            text = "\n".join(("{", *lines, "}"))
            if len(text) <= limit and len(self.tool_name) <= _LONGEST_NAME:
                return text
        raise PlacementRefused(f"the question of {self.tool_name[:_LONGEST_NAME]!r} is too long to show")

    def in_full(self) -> bytes:
        """Return all arguments as a JSON file in UTF-8, uncut."""
        return visible_json(dict(self.arguments), indent=1).encode()


class Answer(Struct, frozen=True, kw_only=True):
    """The end of a question: its answer, or the reason why there is none.

    ``values`` are the chosen values, or the text; empty unless it was answered. ``by`` is the user that
    answered. The owner may get an answer more than once, each time with the same ``question_id``.
    """

    question_id: str
    key: str
    state: QuestionState
    values: tuple[str, ...] = ()
    by: str = ""

    @property
    def value(self) -> str | None:
        """The only or first value."""
        return self.values[0] if self.values else None

    @property
    def outcome(self) -> str:
        """The first value, ``timeout`` if the question expired, or ``cancelled`` if it was withdrawn."""
        return self.value or ("timeout" if self.state == "expired" else "cancelled")


@runtime_checkable
class AsksQuestions(Protocol):
    """Can ask users in the chat; their answers are returned with ``Host.settle``.

    Returns the place of the question. A typed answer counts only if it is a reply to it, or was written in
    the same thread and later in the platform's own order; if the place is None or has no order, no typed
    answer counts. A question may be asked again if it is not known whether it was shown.
    """

    async def ask_question(self, question: Question) -> Placed | None: ...


@runtime_checkable
class ShowsAnswers(Protocol):
    """Can show the end of a question in its place, and remove its buttons. It may be called twice."""

    async def question_closed(self, question: Question, answer: Answer, shown: Placed | None) -> None: ...


def visible_json(value: object, indent: int | None = None) -> str:
    """Return a value as JSON, with invisible and direction-changing characters escaped."""
    return _NOT_ASCII.sub(_escaped, json.dumps(value, ensure_ascii=False, indent=indent, default=str))


def visible_text(text: str) -> str:
    """Return a text with invisible and direction-changing characters escaped; ends of lines and tabs stay."""
    return "\t".join(_NOT_ASCII.sub(_escaped, part) for part in text.split("\t"))


_LONGEST_NAME = 80
_CUTS = (1000, 500, 200, 100, 50)
_NOT_ASCII = re.compile(r"[^\n -~]")
# Unicode counts these as letters, marks and symbols, but fonts draw nothing for them.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable() and not _BLANK.match(character):
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…" if most else ""


def _is_long(choice: Choice) -> bool:
    return len(choice.text) > _LONGEST_LABEL


def _cut_in_the_middle(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … {len(text) - 2 * half:,} characters … {text[-half:]}"
