"""One storm over one database: the fake servers around the gateway, the faults, the drain, the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import plugged
from chat_platform import Platform, Question
from checker import check, check_deletions, check_failures, lines_of, words_of
from choices import check_choices
from client import Client, Hooks
from decisions import Pressed, check_decisions
from failpoints import (
    ACCEPTING,
    ANSWERED,
    DECIDED,
    DELETED,
    PRESSED,
    QUESTIONED,
    STOPPED,
    TASKED,
    Failpoints,
    points_of,
)
from forks import ForkServer
from inquiries import Ledger, check_inquiries, is_choice, typed_answer, typed_words, word_of_choice
from killer import Killer
from lives import BrokenStormError, end_of
from model import WORD
from nodes import ONE_ADDRESS, Nodes
from notices import Notebook, check_notices
from person import Person, name_of
from plan import Outcome, Plan, Progress
from record import Record
from servers import Postgres
from sqlalchemy import Engine, create_engine, func, select
from tasks import check_tasks
from trails import check_trails
from verdict import Verdict
from versions import EDITORS, Editor, check_versions
from world import World, environment

from gateway.store import migrate
from gateway.store import schema as t
from tests.gateway.cluster.broker import Broker

CLIENTS = 12
"""Number of clients on websockets."""

_SLOWDOWN = 4
"""Factor of the pauses between messages in a storm that is prolonged."""

_PLANTED_POINTS = {
    "asked-anew": (QUESTIONED,),
    "forgotten-answers": (ANSWERED,),
    "no-row-lock": (ACCEPTING,),
    "second-runs": (TASKED,),
    "unkept-decisions": (DECIDED, PRESSED),
    "unwritten-signals": (STOPPED, DELETED),
}
"""Failpoints to kill or freeze at, for planted bugs that are only visible there."""

_HITS, _LONGEST = 2, 5
"""Required hits of each, and the factor by which such a storm may be prolonged for that."""

_ACKNOWLEDGED = 2.0
"""Seconds in which a press is acknowledged, unless the gateway dies first."""

_PRESSES = 30
"""Seconds in which the last buttons have to disappear after a press."""

_TYPES = 0.5
"""Probability that an inquiry is answered by typing, at each check."""

_TYPES_AGAIN = 6.0
"""Seconds until an answer that had no effect is typed again."""

_START_UP_SECONDS = 150.0
"""Seconds in which the gateway has to connect to all platforms before the faults begin."""


class Storm:
    """A storm in its own directory."""

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        fork_server: ForkServer,
        servers: tuple[Postgres, Broker] | None = None,
    ) -> None:
        self.plan = plan
        self._fork_server = fork_server
        self.progress = Progress()
        self._directory = directory
        self._dice = random.Random(plan.seed)
        self._failpoints = Failpoints(directory)
        self._notebook = Notebook(directory / "notices")
        self._ledger = Ledger(directory / "inquiries")
        self._points = points_of(plan.channels)
        if plan.planted in _PLANTED_POINTS:
            self._points = tuple(point for point in _PLANTED_POINTS[plan.planted] if point in self._points)
        dice = random.Random(plan.seed + 1)
        self._killer: Killer | Nodes = (
            Killer(directory, fork_server, self._failpoints, self._points, dice)
            if servers is None
            else Nodes(
                plan,
                servers,
                fork_server,
                directory,
                self._failpoints,
                self._points,
                dice,
                lambda: sum(len(client.view.complete) for client in self._clients),
            )
        )
        self._platforms: list[Platform] = []
        self._clients: list[Client] = []
        self._persons: list[Person] = []
        self._editors: list[Editor] = []
        self._pressed = Pressed()
        self._typed: dict[str, float] = {}
        """When the answer to an inquiry was typed last, in monotonic seconds."""
        self._chosen: set[str] = set()
        """The words whose questions of the model were answered in a room, with an acknowledgement."""
        self._server = ""
        self._begun = time.monotonic()

    async def run(self, show: Callable[[Progress], None]) -> Outcome:
        """Inject faults, drain and check. ``show`` is called twice a second. Raises BrokenStormError."""
        try:
            return await self._run(show)
        except BaseExceptionGroup as group:
            broken = group.subgroup(BrokenStormError)
            if broken is None:
                raise
            raise BrokenStormError(*_reasons(broken)) from None

    async def _run(self, show: Callable[[Progress], None]) -> Outcome:
        async with AsyncExitStack() as stack:
            port, found = await self._killer.open(environment())
            self._server = f"http://127.0.0.1:{port}"
            world = World(
                stack, self._fork_server, self._directory, self.plan.faults, self.plan.seed, self._server
            )
            model = await world.model()
            for name in self.plan.channels:
                if name != "websocket":
                    self._platforms.append(await world.platform(name))
            http = await stack.enter_async_context(aiohttp.ClientSession())
            await self._prepare(model, http, found)
            engine = create_engine(self.plan.store, pool_pre_ping=True)
            stack.callback(engine.dispose)
            left: list[Question] = []
            try:
                async with asyncio.TaskGroup() as tasks:
                    background = [
                        tasks.create_task(self._killer.listen()),
                        tasks.create_task(self._show(show)),
                        tasks.create_task(self._decide(http)),
                        *(tasks.create_task(client.live()) for client in self._clients),
                    ]
                    drained, seconds = await self._run_phases(engine, http)
                    left = await self._all_decided(http) if drained else []
                    status = await self._killer.stop()
                    for task in background:
                        task.cancel()
            finally:
                await self._killer.stop()
            rooms = {platform.name: await platform.rooms(http) for platform in self._platforms}
            for platform in self._platforms:
                transcript = self._directory / f"{platform.name}.transcript.json"
                transcript.write_bytes(await platform.transcript(http))
            record = Record.read(engine)
            (self._directory / "record.json").write_bytes(msgspec.json.encode(record, enc_hook=str))
            verdict = Verdict()
            failures = check_failures(verdict, record, lines_of(self._directory / "spoilt"))
            check_versions(verdict, record, self._editors)
            tasks = check_tasks(verdict, record, self._clients, self._persons)
            check(verdict, record, self._clients, self._persons, rooms, self._directory / "effects")
            effects = words_of(self._directory / "effects")
            check_decisions(verdict, record, self._clients, self._persons, self._pressed, effects)
            asked = lines_of(self._directory / "questions")
            choices = check_choices(verdict, record, self._clients, self._persons, self._chosen, asked)
            about = {line.partition(" ")[2] for line in lines_of(self._directory / "asked")}
            check_trails(verdict, record, self._clients, rooms, about)
            check_notices(verdict, record, self._notebook.read())
            check_inquiries(verdict, record, self._ledger.read(), self._persons)
            blocked, exchanged, ticks = 0, 0, 0
            if self.plan.plugins:
                blocked, exchanged, ticks = plugged.check_plugins(verdict, record, self._directory)
            deletions = {
                f"{platform.name}/{message}": at
                for platform in self._platforms
                for message, at in (await platform.deletions(http)).items()
            }
            check_deletions(verdict, self._persons, deletions, self._directory / "asked")
            for question in left:
                verdict.add("orphan", f"{question.room} still shows the buttons of {question.id}")
        outcome = self._outcome(engine, verdict, drained, seconds, status)
        outcome.inquiries = len(self._ledger.read())
        outcome.notices = sum(map(len, record.notices.values()))
        outcome.tasks, outcome.choices, outcome.failures = tasks, choices, failures
        outcome.blocked, outcome.exchanged, outcome.ticks = blocked, exchanged, ticks
        outcome.changes = sum(editor.changes for editor in self._editors)
        outcome.summaries = sum(len(found) for _, found in record.summaries.values())
        return outcome

    async def _prepare(self, model: str, http: aiohttp.ClientSession, found: Mapping[str, Any]) -> None:
        settings = {platform.name: platform.settings for platform in self._platforms}
        own: dict[str, Any] = {"websocket": {}} if "websocket" in self.plan.channels else {}
        given: dict[str, Any] = {
            "directory": str(self._directory),
            "store": self.plan.store,
            **found,
            "model": model,
            "channels": own | settings,
            "planted": self.plan.planted,
            "plugins": self.plan.plugins,
        }
        if isinstance(self._killer, Nodes):
            urls = {found.name: found.url for found in self._platforms if found.kind in ONE_ADDRESS}
            for node, channels in (await self._killer.reach(given["channels"], urls)).items():
                given["nodes"][node]["channels"] = channels
        if self.plan.plugins:
            plugged.write_plugins(self._directory)
        config = self._directory / "victim.json"
        config.write_text(json.dumps(given))
        await self._killer.warm_up(config, environment())
        hooks = Hooks(
            acked=lambda: self._failpoints.reach("after the ack"),
            began=lambda: self._failpoints.reach("after turn_start"),
            stopped=lambda: self._failpoints.reach(STOPPED),
            decided=lambda: self._failpoints.reach(DECIDED),
            wants_stop=lambda: self._failpoints.armed() == STOPPED,
            wants_decision=lambda: self._failpoints.armed() == DECIDED,
        )
        for number in range(CLIENTS if own else 0):
            client = Client(number, f"{self._server}/ws", self._new_random(), hooks, self.plan.files)
            self._clients.append(client)
        for number in range(EDITORS if own else 0):
            armed, reach = self._failpoints.armed, self._failpoints.reach
            self._editors.append(Editor(number, self._server, self._new_random(), armed, reach))
        for platform in self._platforms:
            await self._settle(platform, http)

    async def _settle(self, platform: Platform, http: aiohttp.ClientSession) -> None:
        """Create the persons of a platform."""
        called = await platform.called(http)
        for spot in platform.spots:
            number = CLIENTS + len(self._persons)
            room = await platform.open(http, name_of(number), spot)
            name = "" if spot == "direct" else called
            activity, files = platform.activity[spot], self.plan.files
            # In a thread that the bot was called into, everything is for the bot.
            chats = bool(name) and spot == "group"
            person = Person(
                number,
                platform,
                room,
                self._new_random(),
                activity,
                name,
                files,
                self._wants_press,
                chats=chats,
                undoes=spot == "direct" and platform.edits and number % 2 == 0,
            )
            self._persons.append(person)

    def _wants_press(self) -> bool:
        return self._failpoints.armed() == PRESSED

    def _new_random(self) -> random.Random:
        return random.Random(self._dice.getrandbits(32))

    async def _start_up(self, engine: Engine, http: aiohttp.ClientSession) -> None:
        """Connect the gateway to all platforms and let every person write, before the faults begin."""
        self.progress.phase = "start-up"
        await self._killer.start()
        try:
            async with asyncio.timeout(_START_UP_SECONDS):
                while not await self._is_ready(http):
                    await asyncio.sleep(0.1)
                for person in self._persons:
                    await person.say(http)
                await self._accepted(engine)
                async with asyncio.TaskGroup() as tasks:
                    for person in self._persons:
                        if person.platform.tells_changes:
                            tasks.create_task(person.write_and_revise(http))
                await self._accepted(engine)
        except TimeoutError:
            log = end_of(self._directory / "gateway.log")
            raise BrokenStormError(f"the gateway does not come to all its platforms: {log}") from None

    async def _accepted(self, engine: Engine) -> None:
        while not self._is_accepted(engine):
            await asyncio.sleep(0.1)

    async def _is_ready(self, http: aiohttp.ClientSession) -> bool:
        async with http.get(f"{self._server}/readyz") as response:
            return response.status == 200

    async def _run_phases(self, engine: Engine, http: aiohttp.ClientSession) -> tuple[bool, float]:
        """Run the faults, then drain until everything is answered."""
        await self._start_up(engine, http)
        self._begun = time.monotonic()
        activity = sum(writer.activity for writer in (*self._clients, *self._persons))

        def pace() -> float:
            """Return the pause between messages, longer in a prolonged storm, as all must be answered."""
            return activity / self.plan.rate * (1 if self._elapsed < self.plan.seconds else _SLOWDOWN)

        self.progress.phase = "faults"
        async with asyncio.TaskGroup() as editing:
            # They end with a complete change, which may take until the drain.
            edits = [editing.create_task(editor.write(self._is_over)) for editor in self._editors]
            async with asyncio.TaskGroup() as tasks:
                for writer in (*self._clients, *self._persons):
                    tasks.create_task(writer.write(pace, self._is_over))
                await self._killer.run_faults(self._is_over, self._lacks_failpoints)
            self.progress.phase = "drain"
            begun = time.monotonic()
            await self._killer.stop_faults()
            drained = await self._drain(engine, edits)
            for edit in edits:
                edit.cancel()
        return drained, time.monotonic() - begun

    async def _drain(self, engine: Engine, edits: Sequence[asyncio.Task[None]]) -> bool:
        """Wait until everything is answered. Returns whether that was in time."""
        begun = time.monotonic()
        while time.monotonic() - begun < self.plan.drain:
            if (
                all(client.satisfied for client in self._clients)
                and all(edit.done() for edit in edits)
                and self._is_accepted(engine)
                and self._is_settled(engine)
                and self._notebook.is_complete
                and self._ledger.is_complete
                and self._is_settled(engine)
            ):
                return True
            await asyncio.sleep(0.2)
        return False

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._begun

    def _is_over(self) -> bool:
        """Return whether the faults lasted long enough.

        A slow machine gets up to six times as long, and the time to restart servers.
        """
        elapsed = self._elapsed
        if (
            self.plan.planted in _PLANTED_POINTS
            and self.plan.nodes == 1
            and elapsed < _LONGEST * self.plan.seconds
        ):
            hits = self._failpoints.hits()
            return elapsed > self.plan.seconds and all(hits[point] >= _HITS for point in self._points)
        longest = 6 * self.plan.seconds + self._killer.outage_seconds
        if elapsed <= self.plan.seconds or elapsed > longest or self.plan.planted:
            return elapsed > self.plan.seconds
        faults = self._killer.faults.items()
        is_enough = all(times >= self.plan.fewest(fault) for fault, times in faults)
        return is_enough and not self._lacks_failpoints() and self._killer.kills >= self.plan.fewest_kills

    def _lacks_failpoints(self) -> bool:
        """Return whether the faults lasted long enough, but kills at some failpoints are missing."""
        if not self.plan.needs_every_failpoint or self._elapsed <= self.plan.seconds:
            return False
        hits = self._failpoints.hits()
        return not all(hits[point] for point in self._points)

    def _is_accepted(self, engine: Engine) -> bool:
        """Return whether the last revision of each message of persons was accepted."""
        with engine.connect() as c:
            accepted = {
                word
                for payload in c.execute(select(t.inbox.c.payload)).scalars()
                for word in WORD.findall(payload)
            }
        said = {s.word for person in self._persons for s in person.sent if not (s.replaced or s.deleted)}
        return accepted >= said

    def _is_settled(self, engine: Engine) -> bool:
        """Return whether no accepted message is open."""
        inbox, outbox = select(func.count()).select_from(t.inbox), select(func.count()).select_from(t.outbox)
        with engine.connect() as c:
            waiting = c.execute(inbox.where(t.inbox.c.state == "new")).scalar_one()
            growing = c.execute(
                outbox.where(t.outbox.c.state.not_in(("final", "dead", "removed")))
            ).scalar_one()
        return not waiting and not growing

    async def _decide(self, http: aiohttp.ClientSession) -> None:
        """Answer all questions with buttons, as their persons."""
        while True:
            async with asyncio.TaskGroup() as tasks:
                for question, person in await self._open_questions(http):
                    if question.inquiry is None:
                        self._pressed.see(person.platform.name, [question])
                    elif not is_choice(question.inquiry) and self._types(person):
                        word = self._next_word(person, question.inquiry)
                        if word is not None:
                            tasks.create_task(person.type(http, question, word, typed_answer(word)))
                        continue
                    tasks.create_task(self._press(http, question, person))
            await asyncio.sleep(0.2 if self._wants_press() else 1)

    def _types(self, person: Person) -> bool:
        """Return whether a person answers an inquiry by typing: always where questions have no buttons."""
        return person.can_type and (not person.platform.asks or self._dice.random() < _TYPES)

    def _next_word(self, person: Person, key: str) -> str | None:
        """Return the word to answer an inquiry with; None if that was typed.

        Without buttons it is typed again: no answer counts before the gateway knows the question's place.
        """
        words = [word for word in typed_words(key) if word not in person.typed]
        last = self._typed.get(key)
        if last is not None and (person.platform.asks or time.monotonic() - last < _TYPES_AGAIN):
            return None
        self._typed[key] = time.monotonic()
        return next(iter(words), None)

    async def _press(self, http: aiohttp.ClientSession, question: Question, person: Person) -> None:
        """Press a button. A decision counts once the gateway has stored and acknowledged it."""
        platform = person.platform
        with contextlib.suppress(
            aiohttp.ClientResponseError, TimeoutError
        ):  # the button was removed meanwhile
            press = await platform.press(http, question, person.name)
            async with asyncio.timeout(_ACKNOWLEDGED):
                while not await platform.is_acknowledged(http, question, press):
                    await asyncio.sleep(0.1)
            if question.approval in lines_of(self._directory / "decided"):
                if question.inquiry is None:
                    asked = await platform.questions(http)
                    self._pressed.see(platform.name, [one for one in asked if one.inquiry is None])
                    self._pressed.decide(platform.name, question)
                elif is_choice(question.inquiry):
                    self._chosen.add(word_of_choice(question.inquiry))
                self._failpoints.reach(PRESSED)

    async def _open_questions(self, http: aiohttp.ClientSession) -> list[tuple[Question, Person]]:
        whose = {(person.platform.name, person.room): person for person in self._persons}
        return [
            (question, whose[platform.name, question.room])
            for platform in self._platforms
            for question in await platform.questions(http)
            if (platform.name, question.room) in whose
        ]

    async def _all_decided(self, http: aiohttp.ClientSession) -> list[Question]:
        """Press the remaining buttons. Returns the questions that still have some; there should be none."""
        left = await self._open_questions(http)
        for _ in range(_PRESSES):
            if left:
                await asyncio.sleep(1)
                left = await self._open_questions(http)
        return [question for question, _ in left]

    async def _show(self, show: Callable[[Progress], None]) -> None:
        while True:
            sent = [s for writer in (*self._clients, *self._persons) for s in writer.sent]
            progress = self.progress
            progress.elapsed = self._elapsed
            progress.sent, progress.acked = len(sent), sum(s.message_id is not None for s in sent)
            progress.kills, progress.lives = self._killer.kills, self._killer.lives
            progress.points = f"{len(self._failpoints.hits())}/{len(self._points)}"
            show(progress)
            await asyncio.sleep(0.5)

    def _outcome(
        self, engine: Engine, verdict: Verdict, drained: bool, seconds: float, status: int | None
    ) -> Outcome:
        sent = [s for writer in (*self._clients, *self._persons) for s in writer.sent]
        hits = self._failpoints.hits()
        return Outcome(
            plan=self.plan,
            engine=engine.dialect.name,
            messages=len(sent),
            said=Counter([person.platform.name for person in self._persons for _ in person.sent]),
            acked=sum(s.message_id is not None for s in sent),
            kills=self._killer.kills,
            lives=self._killer.lives,
            faults=self._killer.faults,
            exits=self._killer.exits,
            answers_in_outages=self._killer.answers_in_outages,
            revision=migrate.current(engine),
            hits={point: hits[point] for point in self._points},
            drained=drained,
            drain_seconds=seconds,
            exit_status=status,
            unexpected=self._killer.unexpected,
            verdict=verdict,
        )


def _reasons(group: BaseExceptionGroup[BrokenStormError]) -> list[str]:
    found: list[str] = []
    for error in group.exceptions:
        found += _reasons(error) if isinstance(error, BaseExceptionGroup) else [str(error)]
    return found
