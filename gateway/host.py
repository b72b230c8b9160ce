"""The parts of the running gateway, and the host: its interface for channels and the server."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from msgspec import structs

from gateway.access import THE_OWNER, Access, UserRef
from gateway.access.approvals import Approvals
from gateway.access.questions import Questions
from gateway.access.tokens import Auth, BrowserLogins
from gateway.commands.agent_draft import FOLDER, AgentDrafts
from gateway.contract.channel import (
    Attention,
    Audio,
    Cursor,
    InboundMessage,
    Placed,
    Receipt,
    SenderRole,
)
from gateway.contract.errors import InvalidRequestError, NotFoundError
from gateway.contract.messages import Part
from gateway.contract.plugin import CommandContext, MentionCompletion, SlashCommand, StatusSegment
from gateway.contract.questions import Answer, Question
from gateway.contract.services import Unregister
from gateway.conversations import (
    Branches,
    ChangeLog,
    ConversationServices,
    Forks,
    SearchIndex,
    Shares,
    Titles,
    Undo,
)
from gateway.conversations.announcements import Announcements
from gateway.counters import Counters
from gateway.delivery.deliverer import Deliverer
from gateway.delivery.feedback import FeedbackLog
from gateway.ephemeral import EphemeralRunner
from gateway.events.bus import ActivityBus, EventBus
from gateway.events.types import SessionDeleted
from gateway.extensions.backends import ProviderRegistry
from gateway.extensions.contributions import choices_trigger
from gateway.extensions.process.service import Processes
from gateway.extensions.registry import ChannelRegistry, PluginRegistry
from gateway.files import FileReader, Snapshots, ToolOutputs
from gateway.models import Agents, Models, Spending
from gateway.pipeline.agent import Agent, AgentDefaults
from gateway.pipeline.compactor import Compactor
from gateway.pipeline.intake import Bounds, Intake
from gateway.pipeline.mailbox import Dispatcher
from gateway.pipeline.model_call import ModelCaller
from gateway.pipeline.runner import Runner
from gateway.pipeline.submission import Submission
from gateway.pipeline.tools import ToolRunner
from gateway.plugin_services import GrantQuestions, PluginActions, PluginCompletions
from gateway.rooms.context import RoomContext
from gateway.rooms.envelope import Envelopes
from gateway.session import Session, Sessions
from gateway.session.feed import Feed
from gateway.session.frames import Event, LogChanged, MessageFrame
from gateway.session.log import SessionRow
from gateway.session.redaction import Redactor
from gateway.settings import Settings
from gateway.store import Store
from gateway.store.inbox import Inbox
from gateway.store.outbox import Outbox
from gateway.store.steps import Steps
from gateway.store.writes import audit_op
from gateway.tables.uploads import Content, Uploads
from gateway.version import VERSION

if TYPE_CHECKING:
    from gateway.why import Replays, Why
    from gateway.why.dead_letters import DeadLetters

_AUDIO = re.compile(r"audio/[a-z0-9.+-]{1,80}")


class Host:
    """The running gateway, as channels and the server see it."""

    def __init__(
        self,
        *,
        intake: Intake,
        submission: Submission,
        ephemeral: EphemeralRunner,
        inbox: Inbox,
        sessions: Sessions,
        questions: Questions,
        access: Access,
        conversations: ConversationServices,
        uploads: Uploads,
        logins: BrowserLogins,
        registry: PluginRegistry,
        counters: Counters,
        files: FileReader,
        settings: Settings,
        model: Callable[[], str],
        model_of: Callable[[str, SessionRow | None], str],
    ) -> None:
        self.sessions = sessions
        self.shares = conversations.shares
        self.changes = conversations.changes
        self.undo = conversations.undo
        self.branches = conversations.branches
        self.logins = logins
        self.auth = logins.auth
        self.limits = settings.limits
        self.counters = counters
        self.version = VERSION
        self._intake = intake
        self.submit = submission.submit
        self._ephemeral = ephemeral
        self._inbox = inbox
        self._registry = registry
        self._questions = questions
        self._access = access
        self._conversations = conversations
        self._files = files
        self.uploads = uploads
        self._model = model
        self._model_of = model_of
        self._cwd = str(settings.data_dir)

    @property
    def model(self) -> str:
        """The default model."""
        return self._model()

    def model_of(self, channel: str, row: SessionRow | None = None) -> str:
        """Return the model that answers in a session; without ``row``, in a new session of the channel."""
        return self._model_of(channel, row)

    def commands(self) -> Sequence[SlashCommand]:
        """Return the slash commands, sorted by name."""
        return self._registry.get_commands()

    async def press(self, key: str) -> bool:
        """Run a plugin's handler for a key such as ``ctrl+t``. Returns whether it handled the key."""
        return await self._registry.contributions.press(key)

    async def complete(self, partial: str, trigger: str = "@") -> Sequence[MentionCompletion]:
        """Return the completions that plugins offer for a mention."""
        return await self._registry.contributions.complete(trigger, partial)

    async def choices(
        self, channel: str, message: InboundMessage, command: str, partial: str
    ) -> Sequence[MentionCompletion]:
        """Return what the sender of ``message`` can select as the rest of a slash command.

        There is nothing to select for a user who may not run the command, here or at all. Neither the message
        nor its session is stored or loaded.
        """
        await self._access.confirm(channel, message)
        role, found = self._access.policy.role(channel, message), self._registry.current.find_command(command)
        if role is None or found is None or (found[0].admin and role != "admin"):
            return ()
        if self.attention(channel, message) != "answer":
            return ()
        trigger = choices_trigger(command)
        offers = await self.complete(partial, trigger)
        return [structs.replace(one, value=one.value.removeprefix(trigger)) for one in offers]

    def shortcuts(self) -> Sequence[str]:
        """Return the keys that plugins handle, such as ``ctrl+t``."""
        return self._registry.get_shortcuts()

    def triggers(self) -> Sequence[str]:
        """Return the characters that begin a mention which plugins complete, such as ``@``."""
        return self._registry.get_mention_triggers()

    def on_contributions(self, listener: Callable[[], None]) -> Unregister:
        """Call ``listener`` when status line, panels, keys or triggers change, until the result is called."""
        on_change = self._registry.contributions.on_change
        removes = [on_change(kind, listener) for kind in ("status", "panel", "shortcut", "mention")]

        def remove() -> None:
            for one in removes:
                one()

        return remove

    def status_line(self) -> Sequence[StatusSegment]:
        """Return the segments that plugins show in the status line."""
        return self._registry.get_status_segments()

    def panels(self) -> Sequence[tuple[str, str]]:
        """Return the panels of plugins on the page, by plugin: Markdown."""
        return self._registry.get_panels()

    async def accept(
        self, channel: str, message: InboundMessage, *, fresh: bool = False, uploads: Sequence[str] = ()
    ) -> Receipt:
        """Commit one message and dispatch it. ``fresh``: its session id was just created.

        ``uploads`` are ids of files that the sender uploaded. They become parts of the message, and are
        removed by the transaction that accepts it. Raises InvalidRequestError if one of them is not there.
        """
        prepare = None
        if uploads:
            found = await self.uploads.read(message.sender.id, uploads)
            if found is not None:
                message = _complete(message, found)
                prepare = partial(self.uploads.use, uploads)
            # The transaction that removed the uploads accepted the message, if it is a repeated one.
            elif not await self._inbox.contains(channel, message):
                raise InvalidRequestError(
                    f"uploads: one of {', '.join(map(repr, uploads))} is unknown, used by another message or "
                    "expired; upload the file again with POST /api/files"
                )
        return (await self._intake.accept(channel, (message,), fresh=fresh, prepare=prepare))[0]

    async def upload(
        self,
        owner: str,
        name: str,
        mime_type: str,
        data: bytes,
        *,
        width: int | None = None,
        height: int | None = None,
    ) -> tuple[Content, str, int]:
        """Store a file that a user sends ahead of its message.

        Returns its content, id and time of expiry (ms); it is durable then. Raises PartValidationError or
        OverloadedError for a file that cannot be read.
        """
        if _AUDIO.fullmatch(mime_type):
            audio = Audio(f"data:{mime_type};base64,{base64.b64encode(data).decode()}", mime_type)
            content = Content(audio=audio)
        else:
            read = self._files.read(name, mime_type, data, width=width, height=height, strict=True)
            content = Content(part=await read)
        upload, expires = await self.uploads.put(owner, content, len(data))
        return content, upload, expires

    async def answer(self, channel: str, message: InboundMessage, seconds: float, tokens: int) -> str:
        """Return a short answer to a message that is neither accepted nor stored.

        It has no tools and no history, and is cut after some seconds. Empty if there is none, or if the
        sender may not use the bot.
        """
        return await self._ephemeral.answer(channel, message, seconds, tokens)

    def feed(self, on_drop: Callable[[], None]) -> Feed:
        """Return a feed for one reader; ``on_drop`` is called when a slow reader is disconnected."""
        return Feed(self.limits.websocket_queue, on_drop, self.counters)

    async def follow(
        self,
        session_id: str,
        feed: Feed,
        after: int,
        characters: int | None = None,
        *,
        viewer: bool = True,
    ) -> None:
        """Send a session's events to a feed, after those that it missed; see ``Session.follow``.

        Raises NotFoundError.
        """
        session = await self.sessions.find(session_id)
        await session.follow(feed, after, characters, viewer=viewer)

    async def show(self, session_id: str, feed: Feed, message_id: str) -> None:
        """Send a session's log to a feed again, with an older message and those around it.

        Raises NotFoundError, also if the log does not show the message.
        """
        session = await self.sessions.find(session_id)
        around = await self._conversations.search.read_around(session_id, message_id)
        if not around:
            raise NotFoundError("this message is not in the conversation any more")
        # Not a reader until ``follow``: a live event in between would have a higher number than its replay.
        session.remove_sink(feed)
        feed.offer(Event(session_id, 0, LogChanged(around[-1][1].id)))
        for seq, message in around:
            shown = session.rendered(message)
            feed.offer(
                Event(session_id, seq, MessageFrame(message, None if shown is message else shown.text))
            )
        await session.follow(feed, 0, viewer=True)

    def unfollow(self, session_id: str, feed: Feed) -> None:
        """Stop sending a session's events to a feed."""
        session = self.sessions.get(session_id)
        if session is not None:
            session.remove_sink(feed)

    def on_delete(self, listener: Callable[[str], None]) -> Unregister:
        """Call ``listener`` with each session that is deleted, until the result is called."""
        return self.sessions.events.subscribe(SessionDeleted, lambda event: listener(event.session))

    async def abort(self, session_id: str, by: str = "") -> bool:
        """Stop the running answer of a session, or of the session that its chat was moved to.

        Returns, once the stop is durable, whether there was one. ``by`` is an operator, for the audit log.
        Raises NotFoundError.
        """
        session = await self.sessions.find(self._access.moved_chats.session_of(session_id))
        if session.row.root is not None:
            # A nested run has no message of its own; its parent continues with what it has said.
            self.sessions.close(session.id)
            return session.turn is not None
        audit = [audit_op(by, "answer.stop", session_id)] if by else []
        return await self._intake.stop(session_id, *audit)

    async def withdraw(self, channel: str, account: str, dedup_key: str) -> bool:
        """Mark a message without a finished answer as deleted, for example when its HTTP client disconnects.

        Returns, once that is durable, whether there was such a message. Channels report deletions as signals
        of ``receive`` instead.
        """
        return await self._intake.withdraw(channel, account, dedup_key)

    async def rename(self, session_id: str, title: str) -> Session:
        """Set the title of a session. Durable when it returns. Raises NotFoundError."""
        session = await self.sessions.find(session_id)
        await self._conversations.titles.rename(session, title)
        return session

    async def fork(self, session_id: str, owner: str, message: str | None = None) -> Session:
        """Copy a session, up to a message; see ``Forks.prepare``. Durable when it returns."""
        return await self._conversations.forks.fork(session_id, owner, message)

    async def settle(
        self,
        question_id: str,
        answer: str | Sequence[str],
        *,
        session: str | None = None,
        channel: str | None = None,
        user: str | None = None,
        shown: Placed | None = None,
        by: UserRef = THE_OWNER,
    ) -> Answer:
        """Answer a question, such as a tool approval; returns once that is durable.

        ``answer`` is the value of a choice or a text, or several of them. Channels name themselves and the
        user, the server the admin ``by``; ``shown`` is the place of the pressed button.
        See ``Questions.settle``.
        """
        values = (answer,) if isinstance(answer, str) else answer
        return await self._questions.settle(
            question_id, values, session=session, channel=channel, user=user, shown=shown, by=by
        )

    def question(self, question_id: str) -> Question | None:
        """Return an open question, or None."""
        return self._questions.get(question_id)

    def attention(self, channel: str, message: InboundMessage) -> Attention:
        """Return whether a message is answered, kept as context, or ignored.

        Channels ask before they download its files: a user who may not use the bot must not make them do so.
        """
        # A message that is ignored does not reach the intake; its room is listed all the same.
        self._access.seen_rooms.note(channel, message)
        policy = self._access.policy
        found = policy.rooms.attention(channel, message)
        if found == "answer" and not policy.hears(channel, message):
            return "remember" if policy.rooms.of(channel, message).context_messages else "ignore"
        return found

    async def role(self, channel: str, message: InboundMessage) -> SenderRole | None:
        """Return the role that the author of a message has now; None for an unauthorised user."""
        await self._access.confirm(channel, message)
        return self._access.policy.role(channel, message)

    async def preview(self, command: str, channel: str, message: InboundMessage) -> str:
        """Return what a command that only shows something would reply to the author of a message.

        Nothing is stored. Empty without such a command, for an unauthorised user, and for a chat without a
        conversation.
        """
        found, role = self._registry.current.find_command(command), await self.role(channel, message)
        if found is None or role is None or (found[0].admin and role != "admin"):
            return ""
        try:
            session = await self.sessions.find(self._access.session_of(channel, message))
        except NotFoundError:
            return ""
        context = CommandContext(
            session=session.id,
            messages=session.messages(),
            cwd=self._cwd,
            config=found[1],
            sender=message.sender,
            channel=channel,
            inbound=message,
            role=role,
        )
        return await found[0].execute("", context) or ""

    async def read_file(
        self,
        name: str,
        mime_type: str | None,
        data: bytes,
        *,
        width: int | None = None,
        height: int | None = None,
        alt_text: str | None = None,
    ) -> Part:
        """Return a received file as a part of its message: a picture, or a file with its text or a note.

        Reading a PDF or Word document may take 20 s; see ``FileReader.read``.
        """
        return await self._files.read(name, mime_type, data, width=width, height=height, alt_text=alt_text)

    def listed(self, channel: str) -> frozenset[str]:
        """Return the ids and groups that the access rules of a channel name; never ``*``."""
        return self._access.policy.listed(channel)

    async def cursors(self, channel: str) -> Sequence[Cursor]:
        """Return the positions up to which a channel has read its platforms."""
        return await self._inbox.read_cursors(channel)

    def live(self, session_id: str) -> Session | None:
        """Return a session if it is in memory."""
        return self.sessions.get(session_id)


def _complete(message: InboundMessage, uploads: Sequence[Content]) -> InboundMessage:
    """Return a message with the content of its uploads."""
    parts = [one.part for one in uploads if one.part is not None]
    voices = [one.audio for one in uploads if one.audio is not None]
    if len(voices) + (message.audio is not None) > 1:
        raise InvalidRequestError(
            "uploads: a message can have one voice message; send the others as separate messages"
        )
    message = structs.replace(message, parts=(*message.parts, *parts))
    return structs.replace(message, audio=voices[0], kind="audio") if voices else message


@dataclass(kw_only=True)
class RunningGateway:
    """The parts of a gateway that exist only while it runs, because they need the open store.

    The fields exist before. Each part is built from them and from other parts, when it is first used.
    """

    settings: Settings
    events: EventBus
    activity: ActivityBus
    counters: Counters
    registry: PluginRegistry
    channels: ChannelRegistry
    providers: ProviderRegistry
    models: Models
    agents: Agents
    processes: Processes
    redactor: Redactor
    outputs: ToolOutputs
    git: str | None
    """The path of the program git."""
    model: Callable[[], str]
    """Returns the default model."""
    model_of: Callable[[str, SessionRow | None], str]
    tasks: asyncio.TaskGroup
    keep: Callable[[str, Coroutine[Any, Any, None]], None]
    """Starts a named task that runs until the gateway stops."""
    store: Store
    sessions: Sessions
    access: Access
    questions: Questions
    grants: GrantQuestions
    actions: PluginActions

    @cached_property
    def inbox(self) -> Inbox:
        """The accepted messages."""
        return Inbox(self.store, self.settings.store.keep_days)

    @cached_property
    def intake(self) -> Intake:
        """The receiver of messages from channels."""
        limits = self.settings.limits
        return Intake(
            store=self.store,
            inbox=self.inbox,
            sessions=self.sessions,
            dispatcher=self.dispatcher,
            access=self.access,
            bounds=Bounds(
                limits.session_inbox,
                limits.session_backlog,
                limits.sender_backlog,
                limits.global_inbox,
                limits.backlog_minutes,
            ),
            counters=self.counters,
            questions=self.questions,
            deliverer=self.deliverer,
            context=self._room_context,
            feedback=FeedbackLog(self.store, self.access, self.activity, self.counters),
        )

    @cached_property
    def dispatcher(self) -> Dispatcher:
        """The mailboxes of the sessions."""
        return Dispatcher(
            tasks=self.tasks,
            runner=self._runner,
            store=self.store,
            inbox=self.inbox,
            max_attempts=self.settings.limits.max_attempts,
            capacity=self.settings.limits.session_inbox,
            trail=self.settings.store.trail,
        )

    @cached_property
    def _runner(self) -> Runner:
        return Runner(
            inbox=self.inbox,
            registry=self.registry,
            access=self.access,
            context=self._room_context,
            agent=self._agent,
            deliverer=self.deliverer,
            questions=self.questions,
            counters=self.counters,
            answered=self._titles.answered,
            cwd=str(self.settings.data_dir),
        )

    @cached_property
    def _room_context(self) -> RoomContext:
        return RoomContext(self.access, self.channels, self.inbox)

    @cached_property
    def _agent(self) -> Agent:
        limits = self.settings.limits
        return Agent(
            sessions=self.sessions,
            models=self.models,
            agents=self.agents,
            tool_runner=self._tool_runner,
            steps=Steps(self.store),
            model_caller=self._model_caller,
            activity=self.activity,
            defaults=AgentDefaults(self.model, limits.max_llm_calls, self.settings.steer),
            rooms=self.access.policy.rooms,
        )

    @cached_property
    def _model_caller(self) -> ModelCaller:
        settings = self.settings
        envelopes = Envelopes(self.access, None if settings.timezone is None else ZoneInfo(settings.timezone))
        return ModelCaller(
            self.agents,
            self._tool_runner,
            self.spending,
            envelopes,
            Compactor(self.agents, self.models, self.spending, envelopes, settings.history_window),
            self.counters,
        )

    @cached_property
    def _tool_runner(self) -> ToolRunner:
        return ToolRunner(
            permissions=self.access.permissions,
            approvals=self.approvals,
            rooms=self.access.policy.rooms,
            activity=self.activity,
            outputs=self.outputs,
            changing=self.changes.changing,
            watching=self.changes.watching,
        )

    @cached_property
    def approvals(self) -> Approvals:
        """The approvals of tool calls."""
        return Approvals(self.questions, self.access, self.settings.limits.approval_timeout_ms)

    @cached_property
    def spending(self) -> Spending:
        """The ledger and the budgets."""
        return Spending.of(self.settings, self.store, self.models, self.access, self.approvals)

    @cached_property
    def deliverer(self) -> Deliverer:
        """The deliveries of answers to chats."""
        return Deliverer(Outbox(self.store, self.channels), self.tasks)

    @cached_property
    def changes(self) -> ChangeLog:
        """The changes of files by tools."""
        data = self.settings.data_dir.resolve()
        return ChangeLog(self.store, Snapshots(data / "snapshots", self.git), data, self.events)

    @cached_property
    def _titles(self) -> Titles:
        return Titles(
            self.sessions,
            self.registry,
            self.models,
            self.agents,
            self._model_caller,
            self.channels,
            enabled=self.settings.titles,
        )

    @cached_property
    def conversations(self) -> ConversationServices:
        """The services for conversations beside the sending of messages."""
        return ConversationServices(
            titles=self._titles,
            forks=Forks(self.store, self.sessions, self.channels, self.agents),
            shares=Shares(self.store, self.settings.share, self.redactor),
            undo=Undo(self.store, self.channels, self.intake, self.deliverer, self.changes),
            branches=Branches(self.store, self.inbox, self.intake, self.changes),
            search=SearchIndex(self.store),
            changes=self.changes,
        )

    @cached_property
    def announcements(self) -> Announcements:
        """The messages that plugins and the gateway send unasked."""
        return Announcements(
            self.store, self.sessions, self.channels, self.access, self.dispatcher, self.intake
        )

    @cached_property
    def submission(self) -> Submission:
        """The messages that plugins and the server send on behalf of users."""
        return Submission(self.intake, self.inbox, self.sessions, self.agents)

    @cached_property
    def drafts(self) -> AgentDrafts:
        """The agents that users let a model write."""
        return AgentDrafts(
            self.models,
            self.agents,
            self._model_caller,
            self.access.permissions,
            self.access.policy.rooms,
            self.settings.data_dir / FOLDER,
        )

    @cached_property
    def completions(self) -> PluginCompletions:
        """The model calls of plugins."""
        return PluginCompletions(
            self.registry, self.sessions, self.models, self.agents, self._model_caller, self.model
        )

    @cached_property
    def host(self) -> Host:
        """The interface for channels and the server."""
        return Host(
            intake=self.intake,
            submission=self.submission,
            ephemeral=EphemeralRunner(self.sessions, self.registry, self.access, self._agent, self.counters),
            inbox=self.inbox,
            sessions=self.sessions,
            questions=self.questions,
            access=self.access,
            conversations=self.conversations,
            uploads=Uploads(self.store),
            logins=BrowserLogins(Auth.of(self.settings.server), self.store),
            registry=self.registry,
            counters=self.counters,
            files=FileReader(run=self.processes.run_script),
            settings=self.settings,
            model=self.model,
            model_of=self.model_of,
        )

    # Explanations are imported with the first one: they take half a megabyte, and many gateways need none.

    @cached_property
    def dead_letters(self) -> DeadLetters:
        """The messages without an answer."""
        from gateway.why.dead_letters import DeadLetters

        return DeadLetters(self.store, self.intake.answer_reopened)

    @cached_property
    def why(self) -> Why:
        """The explanations of messages."""
        from gateway.why import Why

        mailbox = self.dispatcher.mailbox
        return Why(self.store, self.sessions, self.access, self.channels, self.providers, mailbox)

    @cached_property
    def replays(self) -> Replays:
        """The replay of messages that failed."""
        from gateway.why import Replays

        settling = self.dispatcher.worker
        replays = Replays(self.store, self.access, self.dead_letters, self.channels, settling)
        self.keep("replays", replays.run())
        return replays
