"""Questions of plugins: asked in chats, and answered to the plugin's handler, or within a turn to its call.

The owner of a question is the plugin, so keys and ids of two plugins are apart.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from gateway.access.approvals import Asker
from gateway.access.questions import Questions
from gateway.contract.channel import Address, FollowsSession
from gateway.contract.errors import AlreadyRegisteredError, InvalidRequestError, OverloadedError
from gateway.contract.messages import now_ms, sound
from gateway.contract.questions import Answer, AsksQuestions, Choice, Question
from gateway.contract.services import QuestionService, TakesAnswer, Unregister
from gateway.conversations.chats import LONGEST_KEY, Chats
from gateway.extensions.contributions import ConsoleUI, Contributions
from gateway.session import Sessions, running

_KIND = "answers"
"""The kind of a plugin's handler among its contributions."""
_OWNER = "plugin:"
_MOST_OPEN = 1_000
"""Most questions of a plugin that are open, or whose answers its handler has not taken."""
_LONGEST_TITLE, _LONGEST_DETAIL, _LONGEST_VALUE = 500, 1_000, 100
_MOST_CHOICES, _LONGEST_LABEL, _LONGEST_DESCRIPTION = 25, 60, 100
"""The limits of the platforms: 25 buttons, and text that fits into a message of 2,000 characters."""
_LONGEST_MS = 5 * 366 * 86_400_000


YES_NO = (
    Choice("yes", "Yes", style="good", words=("y", "ok")),
    Choice("no", "No", style="bad", words=("n",)),
)


class PluginQuestions:
    """Questions of all plugins. ``opened`` waits until a plugin may ask, or refuses it."""

    def __init__(
        self,
        questions: Questions,
        chats: Chats,
        sessions: Sessions,
        contributions: Contributions,
        opened: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self._questions = questions
        self._chats = chats
        self._sessions = sessions
        self._contributions = contributions
        self._opened = opened
        questions.handler_of = self._handler_of

    def of(self, plugin: str) -> QuestionService:
        """Return the questions of one plugin."""
        return _OwnQuestions(self, plugin)

    async def ask(self, plugin: str, given: Address | Mapping[str, Any], question: Question) -> str:
        """Store a question with its address, and show it. Returns its id."""
        await self._opened(plugin, "ask")
        address, channel = self._chats.find(given)
        if not isinstance(channel, AsksQuestions | FollowsSession):
            raise InvalidRequestError(f"the channel {channel.id!r} cannot show questions")
        session_id = self._chats.session_of(channel, address)
        await self._chats.check_access(session_id, channel, address)
        owner = _OWNER + plugin
        if self._questions.count(owner) >= _MOST_OPEN:
            raise OverloadedError(
                f"{_MOST_OPEN:,} questions of the plugin {plugin!r} are open; withdraw some and ask again"
            )
        asked = replace(question, address=replace(address, reply_to=None), session=session_id, owner=owner)
        if not isinstance(channel, FollowsSession):
            return (await self._questions.ask(asked)).question.id
        # Only the readers of the session see the question, so there must be one.
        session = await self._sessions.get_or_create(
            session_id, channel=channel.id, owner="", address=asked.address
        )
        held = await self._questions.ask(asked, ops=[] if session.numbers_reserved else [session.put()])
        session.saved = session.numbers_reserved = True
        return held.question.id

    async def withdraw(self, plugin: str, question_id: str) -> bool:
        """Close an open question of a plugin. Returns whether it was open."""
        return await self._questions.withdraw(question_id, _OWNER + plugin)

    def on_answer(self, plugin: str, handler: TakesAnswer) -> Unregister:
        """Call a handler with the ends of a plugin's questions, also with those that wait for one."""
        if self._contributions.find(_KIND, plugin):
            raise AlreadyRegisteredError(f"plugin {plugin!r} has a handler of answers already")
        remove = self._contributions.add(plugin, _KIND, plugin, handler)
        self._questions.deliver()
        return remove

    def _handler_of(self, owner: str) -> TakesAnswer | None:
        plugin = owner.removeprefix(_OWNER)
        found = self._contributions.find(_KIND, plugin) if plugin != owner else ()
        return next(iter(found), None)


class _OwnQuestions:
    """The questions of one plugin; see ``gateway.contract.services.QuestionService``."""

    def __init__(self, questions: PluginQuestions, plugin: str) -> None:
        self._questions = questions
        self._plugin = plugin

    async def ask(
        self,
        address: Address | Mapping[str, Any],
        title: str,
        key: str,
        *,
        answerers: Sequence[str],
        admins: bool = False,
        detail: str = "",
        choices: Sequence[Choice] = (),
        multiple: bool = False,
        free_text: bool = False,
        timeout_ms: int = 86_400_000,
    ) -> str:
        """Ask a question in a chat. Returns its id once it is durable."""
        now = now_ms()
        question = Question(
            key=key,
            address=Address(""),
            answerers=(answerers,) if isinstance(answerers, str) else tuple(answerers),
            admins=admins,
            title=title,
            detail=detail,
            choices=tuple(choices),
            multiple=multiple,
            free_text=free_text,
            created_at=now,
            expires_at=now + timeout_ms,
        )
        _check(question)
        return await self._questions.ask(self._plugin, address, sound(question))

    async def withdraw(self, question_id: str) -> bool:
        """Close an open question without an answer."""
        return await self._questions.withdraw(self._plugin, question_id)

    def on_answer(self, handler: TakesAnswer) -> Unregister:
        """Register the handler of the answers."""
        return self._questions.on_answer(self._plugin, handler)


class QuestionUI(ConsoleUI):
    """The UI service of a plugin: within a turn, its questions are asked in the chat of the turn."""

    def __init__(self, plugin: str, questions: Questions, timeout_ms: int) -> None:
        self._owner = f"ui:{plugin}"
        self._questions = questions
        self._timeout_ms = timeout_ms

    async def confirm(self, title: str, message: str) -> bool:
        """Ask a yes-or-no question. Returns False without a user, and without an answer in time."""
        answer = await self._ask(title, detail=message, choices=YES_NO)
        return await super().confirm(title, message) if answer is None else answer.value == "yes"

    async def select(self, title: str, options: Sequence[str]) -> str | None:
        """Ask to pick an option. Returns the first one without a user, None without an answer in time."""
        answer = await self._ask(title, choices=[Choice(option) for option in options])
        return await super().select(title, options) if answer is None else answer.value

    async def input(self, title: str, placeholder: str = "") -> str | None:
        """Ask for a line of text. Returns None without a user, and without an answer in time."""
        answer = await self._ask(title, detail=placeholder)
        return None if answer is None else answer.value

    async def _ask(self, title: str, detail: str = "", choices: Sequence[Choice] = ()) -> Answer | None:
        turn = running.get()
        if turn is None:
            return None
        return await Asker(self._questions, turn, self._owner, self._timeout_ms)(
            title, detail=detail, choices=choices
        )


def _check(question: Question) -> None:
    """Raise InvalidRequestError for a question that no chat could show or no user could answer."""
    values = [choice.value for choice in question.choices]
    problems = {
        f"a key needs 1 to {LONGEST_KEY} characters, and no NUL": not 0 < len(question.key) <= LONGEST_KEY
        or "\0" in question.key,
        f"a title needs 1 to {_LONGEST_TITLE} characters": not 0
        < len(question.title.strip())
        <= len(question.title)
        <= _LONGEST_TITLE,
        f"a detail has at most {_LONGEST_DETAIL:,} characters": len(question.detail) > _LONGEST_DETAIL,
        "answerers names at least one id of a user": not (question.answerers or question.admins)
        or not all(question.answerers),
        f"at most {_MOST_CHOICES} choices can be offered": len(values) > _MOST_CHOICES,
        "two choices have the same value": len(set(values)) < len(values),
        f"a choice needs a value of 1 to {_LONGEST_VALUE} characters, a label of at most {_LONGEST_LABEL} "
        f"and a description of at most {_LONGEST_DESCRIPTION}": not all(map(_is_shown, question.choices)),
        "multiple needs choices": question.multiple and not values,
        "timeout_ms is between one second and five years": not 1_000
        <= question.expires_at - question.created_at
        <= _LONGEST_MS,
    }
    found = [problem for problem, is_there in problems.items() if is_there]
    if found:
        raise InvalidRequestError(f"the question {question.key[:40]!r} cannot be asked: {'; '.join(found)}")


def _is_shown(choice: Choice) -> bool:
    return (
        0 < len(choice.value) <= _LONGEST_VALUE
        and 0 < len(choice.text.strip()) <= len(choice.text) <= _LONGEST_LABEL
        and len(choice.description) <= _LONGEST_DESCRIPTION
    )
