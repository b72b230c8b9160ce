"""Sessions as a chat shows them: one message for each, new ones for what needs attention, and questions.

In: sessions, and answers of users. Out: announcements and questions. Everything is made from stored records,
so after a crash nothing is announced, asked or answered twice. An answer types in a program only while the
same question is on its screen.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence

import structlog
from msgspec import convert, structs

from gateway import Answer, ChatOptions, Choice, Message, PluginContext, TextPart, TrunklineError
from gateway.api import ProgramAction
from plugins.coding_agents import machine
from plugins.coding_agents.adapters import find_adapter
from plugins.coding_agents.errors import CodingAgentError, ServiceUnavailableError, StaleQuestionError
from plugins.coding_agents.records import NOT_ASKED, AskedQuestion, Notice, SessionRecord
from plugins.coding_agents.records import Choice as Decision
from plugins.coding_agents.session import Session
from plugins.coding_agents.sessions import Sessions

log = structlog.get_logger("trunkline.coding_agents")

EDIT_SECONDS = 3.0
"""The shortest time between two edits of the message of a session."""
LOOK_SECONDS = 15.0
"""The time after which the lines of a screen are looked at, without an event."""
RETRY_SECONDS = 5.0
_JUDGE_SECONDS = 60.0
_VERDICT_TOKENS = 4_096
"""A verdict is a line, but the reasoning before it counts, too."""
_RESUME = ":resume"
_LINES, _LONGEST_LINES, _LONGEST_TEXT = 8, 700, 3_000
_LONGEST_PROMPT, _LONGEST_DETAIL, _LONGEST_FOLDER = 300, 700, 200
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_HEADING = re.compile(r"[*\s]*(?P<title>[\w .-]{1,40}?)[*\s`]+(?P<id>[0-9a-f]{8})`?(?:\s|:|$)")
"""The beginning of each message of a session, with and without its Markdown."""
_ONCE = Choice("once", "Once", style="good", words=("yes", "y", "ok", "allow"))
_ALWAYS = Choice("always", "Always here", words=("always",))
_DENY = Choice("deny", "Deny", style="bad", words=("no", "n"))
_TITLES = {"finished": "has finished", "failed": "failed", "lost": "was lost", "stopped": "has ended"}
_VERDICTS = {
    "waiting": "The screen has not changed",
    "done": "It seems to be done: the screen has not changed",
    "error": "It seems to have failed: the screen has not changed",
}
_REASONS = {"idle": "because it was idle", "blocked": "because its question was not answered"}


class SessionChats:
    """The chats of all sessions."""

    def __init__(self, ctx: PluginContext, sessions: Sessions) -> None:
        """Observe the sessions; call it before they are loaded."""
        self.ctx = ctx
        self.sessions = sessions
        sessions.observers.append(self._open)
        sessions.note_answer = self._note_typed

    def resume(self) -> None:
        """Announce what earlier processes did not; call it once the sessions are loaded."""
        for session in self.sessions.unannounced():
            self._open(session)

    async def answered(self, answer: Answer) -> None:
        """Apply the answer to a question. It may come again, and is applied once."""
        if answer.key.endswith(_RESUME):
            await self._answer_resume(answer)
            return
        record = self.sessions.record(answer.key.rpartition(":")[0])
        if record is None or answer.state != "answered":
            return
        if self.sessions.is_away(record):
            raise ServiceUnavailableError(f"session {record.short_id} runs on node {record.node}")
        session = self.sessions.find(record.id)
        if session is None or session.ended.is_set():
            await self._tell_ended(record, answer.key)
        else:
            await self._answer(session, answer)

    async def _answer(self, session: Session, answer: Answer) -> None:
        asked = session.record.question
        if asked is None or asked.key != answer.key:
            if answer.key not in session.record.done_keys:
                await self._tell_stale(session)
            return
        if not session.asks(asked.digest) and asked.key not in session.record.done_keys:
            # It was answered at the terminal just now: an "always" must not cover later questions.
            await self._tell_stale(session)
            return
        choice = convert(answer.value, Decision)
        # Before it is typed: a question that was answered leaves the screen, and is not known after a crash.
        await self._record(session.record, asked, choice, answer.by, answer.question_id)
        try:
            await session.answer(asked.digest, choice, asked.key)
        except StaleQuestionError:
            await self._tell_stale(session)
        except CodingAgentError as error:
            # The program has ended, or has no key for this answer: a retry would fail, too.
            log.info("an answer was not typed", session=session.record.id, reason=str(error))

    async def _note_typed(self, record: SessionRecord, asked: AskedQuestion, choice: Decision) -> None:
        await self._record(record, asked, choice, record.owner, asked.key)

    async def _record(
        self, record: SessionRecord, asked: AskedQuestion, choice: Decision, by: str, key: str
    ) -> None:
        """Add an answer to the audit log and the figures, and keep an "always"."""
        if self.ctx.permissions is not None:
            await self.ctx.permissions.record(_action(record, asked), choice, by, key)
        self.sessions.counts["questions_total", record.agent, choice] += 1

    async def reply(self, text: str, quoted: str, owner: str, key: str) -> str | None:
        """Send a reply to a message of a session to that session, once for each ``key``.

        Returns what the chat shows; None if the quoted message is of no session of this user.
        """
        found = _HEADING.match(quoted)
        record = None
        if found is not None:
            own = [one for one in self.sessions.list(owner) if one.short_id == found["id"]]
            record = own[-1] if own else None
        if found is None or record is None or find_adapter(record.agent).title != found["title"]:
            return None
        try:
            await self.sessions.send(record.id, owner, text=text, key=key)
        except CodingAgentError as error:
            return str(error)
        return f"Sent {_code(_cut(text, 200))} to {record.agent} {_code(record.short_id)}."

    async def classify(self, prompt: str) -> str:
        """Return the verdict of the model for screens. Raises ProviderError."""
        if self.ctx.models is None:
            return ""
        route = await self.ctx.models.resolve(self.sessions.settings.stall_model)
        message = Message(session_id="", role="user", parts=(TextPart(prompt),))
        options = ChatOptions(model=route.model, max_tokens=_VERDICT_TOKENS, temperature=0)
        async with asyncio.timeout(_JUDGE_SECONDS):
            return (await route.provider.chat((message,), options)).text

    async def _tell_stale(self, session: Session) -> None:
        await session.tell("notice", "This question is no longer on the screen, so nothing was typed.")

    async def _tell_ended(self, record: SessionRecord, key: str) -> None:
        title = find_adapter(record.agent).title
        text = f"**{title}** {_code(record.short_id)} has ended before this answer, so nothing was typed."
        try:
            await self.announce(record, text, f"{key}:ended")
        except TrunklineError as error:
            if error.retryable:
                raise
            log.info("a chat does not show its session", session=record.id, reason=str(error))

    async def _answer_resume(self, answer: Answer) -> None:
        session_id = answer.key.removesuffix(_RESUME)
        record = self.sessions.record(session_id)
        if record is None or answer.value != "resume":
            return
        try:
            await self.sessions.resume(session_id, record.owner)
        except CodingAgentError as error:
            await self.announce(
                record, f"The session cannot be resumed: {error}", f"{session_id}:not-resumed"
            )

    def _open(self, session: Session) -> None:
        if self.ctx.tasks is not None:
            chat = _SessionChat(self, session)
            self.ctx.tasks.create_task(chat.run(), name=f"chat of {session.record.id}")

    async def announce(self, record: SessionRecord, text: str, key: str) -> None:
        """Announce a text in the chat of a session. Models do not get what programs print."""
        if self.ctx.announce is None or not record.address:
            return
        message = Message(
            session_id=record.session, role="assistant", parts=(TextPart(text),), for_model=False
        )
        await self.ctx.announce(record.address, message, key)


class _SessionChat:
    """The chat of one session: a task that brings it up to date with the record."""

    def __init__(self, chats: SessionChats, session: Session) -> None:
        self._chats = chats
        self._session = session
        self._wake = asyncio.Event()
        """Something may have changed."""
        self._urgent = asyncio.Event()
        """The user has to learn of something now."""
        self._shown = ""
        self._edit_at = 0.0
        """The time of the event loop before which the message is not edited again."""
        self._judged = ""
        """The content that was judged: each is shown once."""
        self._asked: AskedQuestion | None = None
        """The question that is open in the chat."""

    async def run(self) -> None:
        """Follow the session until its end is announced."""
        unsubscribe = self._session.subscribe(self._heard)
        try:
            while not await self._update():
                if self._is_calm():
                    self._urgent.clear()
                # Many events come at once, and platforms limit edits. A question, a notice and the end of the
                # session do not wait for the next one.
                await _wait(self._urgent, self._edit_at - asyncio.get_running_loop().time())
                await _wait(self._wake, LOOK_SECONDS)
                self._wake.clear()
                self._urgent.clear()
        finally:
            unsubscribe()

    def _heard(self, event: machine.Event | None) -> None:
        tasks = self._chats.ctx.tasks
        content = self._session.state.content
        if isinstance(event, machine.Stalled) and tasks is not None and content != self._judged:
            self._judged = content
            tasks.create_task(self._judge(event), name=f"judging {self._session.record.id}")
        self._wake_up()

    def _wake_up(self) -> None:
        self._wake.set()
        if not self._is_calm():
            self._urgent.set()

    async def _judge(self, stalled: machine.Stalled) -> None:
        """Notify the chat of a screen that does not change. A model's verdict only selects the text."""
        verdict: machine.Verdict | None = "waiting"
        if self._chats.sessions.settings.stall_model:
            try:
                verdict = await machine.judge(self._chats.classify, stalled)
            except (TrunklineError, TimeoutError) as error:
                log.warning("a screen without changes could not be judged", reason=str(error))
        if verdict in ("waiting", "error", "done"):
            seconds = round(stalled.silent_ms / 1000)
            await self._session.tell("blocked", f"{_VERDICTS[verdict]} for {seconds} s.")

    async def _update(self) -> bool:
        """Bring the chat up to date. Returns whether nothing more can happen."""
        session = self._session
        ended = session.ended.is_set()
        try:
            await self._withdraw_outdated()
            await self._announce_notices()
            await self._update_question()
            await self._update_message(ended=ended)
        except TrunklineError as error:
            if not error.retryable:
                # The chat is gone, or its user may not use the bot any more: drop its notices.
                log.info("a chat does not show its session", session=session.record.id, reason=str(error))
                await session.change(notices=())
                return ended
            await asyncio.sleep(RETRY_SECONDS)
            self._wake_up()
            return False
        return ended and not session.record.notices and not session.record.outdated

    def _is_calm(self) -> bool:
        """Return whether only the message may have to be edited."""
        record = self._session.record
        asked = None if record.question is None else record.question.key
        shown = None if self._asked is None else self._asked.key
        settled = not record.notices and not record.outdated
        return settled and asked == shown and not self._session.ended.is_set()

    async def _withdraw_outdated(self) -> None:
        """Withdraw the questions that left the screen, also before a restart of the gateway."""
        session, questions = self._session, self._chats.ctx.questions
        while session.record.outdated:
            question_id = session.record.outdated[0]
            if questions is not None:
                await questions.withdraw(question_id)
            left = tuple(one for one in session.record.outdated if one != question_id)
            await session.change(outdated=left)

    async def _announce_notices(self) -> None:
        session = self._session
        while session.record.notices:
            notice = session.record.notices[0]
            if text := _notice_text(session, notice):
                await self._chats.announce(session.record, text, notice.key)
            if notice.kind == "lost":
                await self._offer_resume()
            await session.change(
                notices=tuple(one for one in session.record.notices if one.key != notice.key)
            )

    async def _update_question(self) -> None:
        """Ask what the program asks, and withdraw a question that has left its screen."""
        session, questions = self._session, self._chats.ctx.questions
        asked, shown = session.record.question, self._asked
        if shown is not None and (asked is None or asked.key != shown.key):
            self._asked = None
            if questions is not None and shown.id:
                await questions.withdraw(shown.id)
        if asked is None or self._asked is not None or session.ended.is_set():
            return
        if not asked.id:
            asked = await self._decide(asked)
        self._asked = asked

    async def _decide(self, asked: AskedQuestion) -> AskedQuestion:
        """Answer by rules and earlier answers; else ask in the chat. Returns the question as it is asked."""
        session, ctx = self._session, self._chats.ctx
        if not asked.answerable:
            await session.tell("blocked", asked.prompt)
            return await self._note(asked, NOT_ASKED)
        action = _action(session.record, asked)
        decided = "ask" if ctx.permissions is None else await ctx.permissions.decide(action)
        if decided != "ask":
            choice: Decision = "once" if decided == "allow" else "deny"
            try:
                await session.answer(asked.digest, choice, asked.key)
            except CodingAgentError as error:
                log.info("a rule answers nothing", session=session.record.id, reason=str(error))
            if choice == "deny":
                await session.tell("notice", f"Denied by the permissions: {asked.detail or asked.prompt}")
            return await self._note(asked, NOT_ASKED)
        if not session.record.address:
            return asked
        return await self._note(asked, await self._ask(asked, action))

    async def _ask(self, asked: AskedQuestion, action: ProgramAction) -> str:
        """Ask in the chat. Returns the id of the question, NOT_ASKED if the chat can show none."""
        session, ctx = self._session, self._chats.ctx
        if ctx.questions is None or ctx.permissions is None:
            return ""
        choices, detail = (_ONCE, _ALWAYS, _DENY), _detail(asked)
        if len(asked.detail) > _LONGEST_DETAIL or (not asked.detail and len(asked.prompt) > _LONGEST_PROMPT):
            # What is not shown whole must not be allowed by a button.
            choices, detail = (_DENY,), f"{detail}\nIt is too long to show; answer it at the terminal."
        try:
            return await ctx.questions.ask(
                session.record.address,
                f"{session.adapter.title} {session.record.short_id}: {_cut(asked.prompt, _LONGEST_PROMPT)}",
                asked.key,
                answerers=ctx.permissions.answerers(action),
                admins=True,
                detail=detail,
                choices=choices,
                timeout_ms=self._chats.sessions.settings.blocked_timeout_ms,
            )
        except TrunklineError as error:
            if error.retryable:
                raise
            # Such as a channel without buttons: the user answers with a command.
            log.info("a chat shows no question", session=session.record.id, reason=str(error))
            await session.tell("blocked", f"{asked.prompt}\n{_detail(asked)}")
            return NOT_ASKED

    async def _note(self, asked: AskedQuestion, question_id: str) -> AskedQuestion:
        """Store that a question was asked, or is not."""
        asked = structs.replace(asked, id=question_id)
        current = self._session.record.question
        if current is not None and current.key == asked.key:
            await self._session.change(question=asked)
        return asked

    async def _offer_resume(self) -> None:
        session, ctx = self._session, self._chats.ctx
        record = session.record
        if ctx.questions is None or ctx.permissions is None or not record.address:
            return
        asked = AskedQuestion(
            key="", digest="", tool="resume", prompt="", detail="", folder=record.workdir, at=0
        )
        try:
            await ctx.questions.ask(
                record.address,
                f"Resume {session.adapter.title} {record.short_id}?",
                f"{record.id}{_RESUME}",
                answerers=ctx.permissions.answerers(_action(record, asked)),
                admins=True,
                detail=f"in {record.workdir}",
                choices=(
                    Choice("resume", "Resume", style="good", words=("yes", "y")),
                    Choice("leave", "Leave it"),
                ),
            )
        except TrunklineError as error:
            if error.retryable:
                raise
            log.info("a chat shows no question", session=record.id, reason=str(error))

    async def _update_message(self, *, ended: bool) -> None:
        """Edit the message of the session, if it would show something else. Its end is shown at once."""
        session = self._session
        text = _session_text(session)
        if text == self._shown:
            return
        now = asyncio.get_running_loop().time()
        if now < self._edit_at and not ended:
            self._wake.set()
            return
        self._edit_at = now + EDIT_SECONDS
        await self._chats.announce(session.record, text, f"{session.record.id}:message")
        self._shown = text


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, at most this long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def _action(record: SessionRecord, asked: AskedQuestion) -> ProgramAction:
    return ProgramAction(
        name=f"coding_agents:{record.agent}:{asked.tool}",
        text=asked.detail or asked.prompt,
        folder=asked.folder,
        user=record.owner,
        address=record.address,
        session=record.session,
    )


def _session_text(session: Session) -> str:
    """Return the message of a session: status, folder, cost, activity, the last lines of its screen."""
    record = session.record
    status = record.public_status if record.status != "busy" else "working"
    cost = f" · {record.cost}" if record.cost else ""
    head = f"**{session.adapter.title}** {_code(record.short_id)} · {status} · {_code(record.workdir)}{cost}"
    parts = [head]
    if session.state.activity and record.status == "busy":
        parts.append(_code(_cut(session.state.activity, 200)))
    if lines := session.tail(_LINES):
        parts.append(_block(lines, _LONGEST_LINES))
    return "\n\n".join(parts)


def _notice_text(session: Session, notice: Notice) -> str:
    """Return a new message of a session; "" for an end that its user wanted."""
    record = session.record
    name = f"**{session.adapter.title}** {_code(record.short_id)}"
    if notice.kind == "stopped":
        if record.stop_reason == "user":
            return ""
        return f"{name} {_TITLES['stopped']} {_REASONS.get(record.stop_reason, 'by itself')}."
    if notice.kind == "notice":
        return f"{name}: {_cut(_clean(notice.text), _LONGEST_TEXT)}"
    if notice.kind == "blocked":
        screen = _block(session.tail(2 * _LINES), _LONGEST_TEXT)
        asked = _block(notice.text.splitlines(), _LONGEST_TEXT)
        return f"{name} waits for you:\n\n{asked}\n\n{screen}\n\n{_how_to_answer(record)}"
    said = notice.text.splitlines() or session.tail(_LINES)
    resume = (
        f"\n\n{_code(f'/agents {record.short_id} resume')} continues it." if notice.kind == "lost" else ""
    )
    return f"{name} {_TITLES[notice.kind]}.\n\n{_block(said, _LONGEST_TEXT)}{resume}"


def _how_to_answer(record: SessionRecord) -> str:
    """Return the commands that answer a program. Only a question that is known takes y and n."""
    asked = record.question
    words = [("y", "allows it once"), ("n", "denies it")] if asked is not None and asked.answerable else []
    known = "".join(f"{_code(f'/agents {record.short_id} {word}')} {what}, " for word, what in words)
    return f"{known}{_code(f'/agents {record.short_id} keys 1 enter')} presses keys, here 1 and Enter."


def _detail(asked: AskedQuestion) -> str:
    shown = _cut(asked.detail, _LONGEST_DETAIL)
    return f"{shown}\nin {_cut(asked.folder, _LONGEST_FOLDER)}".lstrip("\n")


def _clean(text: str) -> str:
    return _CONTROL.sub("", text)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _code(text: str) -> str:
    return f"`{' '.join(_clean(text).replace('`', chr(39)).split()) or ' '}`"


def _block(lines: Sequence[str], most: int) -> str:
    """Return lines as a code block, the end of them, with a longer fence than any in the text."""
    text = _clean("\n".join(lines)).strip("\n")[-most:]
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 0)
    return f"{fence}\n{text}\n{fence}"
