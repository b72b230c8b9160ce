"""Reminders: ``/remind in 10m check the oven`` announces a text in the chat when it is due.

In: ``[plugins.reminders]``. Out: the command ``/remind``, and one message for each reminder, also for those
that became due while the gateway was off; then a question whether to remind again. The plugin loader imports
it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, cast
from zoneinfo import ZoneInfo

import msgspec
import structlog
from msgspec import Struct
from pydantic import BaseModel, Field, field_validator

from gateway import Answer, Choice, CommandContext, Plugin, PluginContext, SlashCommand, TrunklineError

log = structlog.get_logger("trunkline.reminders")

_IN = re.compile(r"in\s+((?:\d{1,6}\s*[smhdw]\s*)+)\s(.+)", re.DOTALL | re.IGNORECASE)
_AT = re.compile(r"at\s+(\d{1,2}):(\d{2})\s+(.+)", re.DOTALL | re.IGNORECASE)
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_LONGEST_SECONDS = 5 * 366 * 86_400
_LONGEST_TEXT, _LONGEST_DETAIL = 2_000, 300
_LOOK_SECONDS = 30.0
"""Longest pause between two looks at the clock, which may be set."""
_RETRY_SECONDS = 5.0
_LATE_SECONDS = 300
_AGAIN, _DONE = "again", "done"
_USAGE = (
    "Use `/remind in 10m check the oven` (units s, m, h, d, w), `/remind at 18:30 call Ada`, "
    "`/remind list` or `/remind cancel 3`."
)


class RemindersSettings(BaseModel):
    """The settings of the plugin."""

    zone: str = Field(default="UTC", description="Time zone of /remind at, such as Europe/Oslo; default UTC")
    most: int = Field(default=50, ge=1, description="Most waiting reminders of one user; default 50")
    again: int = Field(
        default=10,
        ge=0,
        le=1_440,
        description="Minutes after which a reminder is offered again; 0 offers nothing; default 10",
    )

    @field_validator("zone")
    @classmethod
    def _known(cls, zone: str) -> str:
        try:
            ZoneInfo(zone)
        except (KeyError, ValueError, OSError):
            raise ValueError('is not a time zone; write one such as "Europe/Oslo"') from None
        return zone


class Reminder(Struct, frozen=True, kw_only=True):
    """A stored reminder. ``due`` is seconds since the epoch; ``address`` is that of its command.

    ``user`` is the sender's id on the platform, empty in those of an earlier version. ``late`` is set before
    it is announced, so that a repeated announcement has the same content. ``times`` counts how often it was
    asked for again.
    """

    due: int
    text: str
    address: Mapping[str, Any]
    user: str = ""
    late: bool | None = None
    times: int = 0


class Reminders(Plugin):
    """Keeps reminders in a table, waits for them in a task, announces each once, and asks if it comes again.

    The table ``asked`` has the reminders of open questions by the keys of their questions.
    """

    name = "reminders"
    settings_model = RemindersSettings
    version = "1"

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """``clock`` returns seconds since the epoch."""
        self._clock = clock
        self._changed = asyncio.Event()
        self._settings = RemindersSettings()

    async def activate(self, ctx: PluginContext) -> None:
        """Read the settings and wait for the stored reminders."""
        self._settings = ctx.options(RemindersSettings)
        if ctx.announce is None or ctx.questions is None or ctx.tasks is None or ctx.table is None:
            return  # the gateway does not run; its plugins are only listed
        self._announce, self._questions = ctx.announce, ctx.questions
        self._waiting, self._numbers = ctx.table("waiting"), ctx.table("numbers")
        self._asked = ctx.table("asked")
        ctx.questions.on_answer(self._answered)
        ctx.tasks.create_task(self._run(), name="reminders")

    def commands(self) -> Sequence[SlashCommand]:
        """Return /remind."""
        return [SlashCommand("remind", "Remind me: in 10m TEXT, at 18:30 TEXT, list, cancel N", self._remind)]

    async def _remind(self, rest: str, ctx: CommandContext) -> str:
        words = rest.strip()
        if words == "list":
            return await self._list(ctx)
        if cancelled := re.fullmatch(r"cancel\s+#?(\d{1,9})", words):
            return await self._cancel(cancelled[1], ctx)
        found = self._parse(words)
        return found if isinstance(found, str) else await self._add(*found, ctx)

    def _parse(self, words: str) -> tuple[int, str] | str:
        """Return time and text of a reminder, or what is wrong with the command."""
        now = self._clock()
        if given := _IN.fullmatch(words):
            amounts = re.findall(r"(\d+)\s*([a-z])", given[1].lower())
            seconds = sum(int(amount) * _SECONDS[unit] for amount, unit in amounts)
            if not 0 < seconds <= _LONGEST_SECONDS:
                return "A reminder can wait between one second and five years."
            due, text = now + seconds, given[2]
        elif given := _AT.fullmatch(words):
            hour, minute, text = int(given[1]), int(given[2]), given[3]
            if hour > 23 or minute > 59:
                return f"{given[1]}:{given[2]} is not a time of day, such as 18:30."
            here = datetime.fromtimestamp(now, ZoneInfo(self._settings.zone))
            at = here.replace(hour=hour, minute=minute, second=0, microsecond=0)
            # Wall-clock arithmetic: tomorrow's 18:30 is also 18:30 if the clocks change tonight.
            due = (at if at > here else at + timedelta(days=1)).timestamp()
        else:
            return _USAGE
        if len(text) > _LONGEST_TEXT:
            return f"The text has {len(text):,} characters, and at most {_LONGEST_TEXT:,} can be kept."
        return round(due), text.strip()

    async def _add(self, due: int, text: str, ctx: CommandContext) -> str:
        owner = _owner(ctx)
        if len(await self._waiting.keys(f"{owner} ")) >= self._settings.most:
            return f"You have {self._settings.most} reminders already. Cancel one first: `/remind list`."
        # A number is never used again: it is the key of the announcement.
        while True:
            last = await self._numbers.get(owner)
            number = (last or 0) + 1
            if await self._numbers.put(owner, number, expected=last):
                break
        address = cast("Mapping[str, Any]", msgspec.to_builtins(ctx.inbound.address))
        reminder = Reminder(due=due, text=text, address=address, user=ctx.sender.id)
        await self._waiting.put(f"{owner} {number}", msgspec.to_builtins(reminder))
        self._changed.set()
        return f"Reminder {number}: {self._time(due)}. `/remind cancel {number}` cancels it."

    async def _list(self, ctx: CommandContext) -> str:
        owner = _owner(ctx)
        found = [
            (key.rpartition(" ")[2], _read(value)) for key, value in await self._waiting.items(f"{owner} ")
        ]
        found.sort(key=lambda one: one[1].due)
        lines = [f"- **{number}** {self._time(one.due)}: {one.text}" for number, one in found]
        return "\n".join(lines) or "You have no reminders."

    async def _cancel(self, number: str, ctx: CommandContext) -> str:
        if await self._waiting.delete(f"{_owner(ctx)} {int(number)}"):
            return f"Reminder {int(number)} is cancelled."
        return f"You have no reminder {int(number)}. `/remind list` shows those that wait."

    async def _run(self) -> None:
        """Announce reminders when they are due, until cancelled."""
        failed: set[str] = set()
        while True:
            self._changed.clear()
            pause = _LOOK_SECONDS
            delayed: set[str] = set()
            for key, value in sorted(await self._waiting.items(), key=_order):
                left = _read(value).due - self._clock()
                owner = key.rpartition(" ")[0]
                try:
                    if left > 0:
                        pause = min(pause, left)
                    elif owner not in delayed:
                        await self._fire(key, value)
                except TrunklineError as error:
                    # Kept: the gateway stops, too many messages wait, or the channel was removed.
                    (log.debug if key in failed else log.warning)(
                        "could not announce a reminder; it is tried again", reminder=key, reason=str(error)
                    )
                    failed.add(key)
                    delayed.add(owner)  # what is due later waits for it, so that they come in their order
                    pause = min(pause, _RETRY_SECONDS)
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _fire(self, key: str, value: Any) -> None:
        """Announce a reminder that is due, then remove it."""
        reminder = _read(value)
        if reminder.late is None:
            late = self._clock() - reminder.due > _LATE_SECONDS
            reminder = msgspec.structs.replace(reminder, late=late)
            if not await self._waiting.put(key, msgspec.to_builtins(reminder), expected=value):
                return  # cancelled meanwhile
        note = f" (it was due {self._time(reminder.due)})" if reminder.late else ""
        name = f"{key} {reminder.times}" if reminder.times else key
        try:
            # A crash after this announces again, with the same key and content, which does nothing.
            await self._announce(reminder.address, f"⏰ **Reminder:** {reminder.text}{note}", name)
            await self._ask(key, name, reminder)
        except TrunklineError as error:
            if error.name != "ForbiddenError":
                raise
            log.warning("dropped a reminder of a user without access", reminder=key, reason=str(error))
        await self._waiting.delete(key)

    async def _ask(self, key: str, name: str, reminder: Reminder) -> None:
        """Ask whether to remind again, where the channel can show questions."""
        minutes = self._settings.again
        if not minutes or not reminder.user:
            return
        await self._asked.put(name, {"key": key, "reminder": msgspec.to_builtins(reminder)})
        again = Choice(_AGAIN, f"In {minutes} minutes" if minutes > 1 else "In a minute")
        try:
            await self._questions.ask(
                reminder.address,
                "Remind you again?",
                name,
                answerers=[reminder.user],
                detail=_cut(reminder.text),
                choices=[again, Choice(_DONE, "Done", style="good")],
            )
        except TrunklineError as error:
            if error.name != "InvalidRequestError":
                raise
            await self._asked.delete(name)
            log.debug("could not ask about a reminder", reminder=name, reason=str(error))

    async def _answered(self, answer: Answer) -> None:
        """Let a reminder wait again, if its user wants it. A second call with an answer changes nothing."""
        asked = await self._asked.get(answer.key)
        if asked is None:
            return
        if answer.value == _AGAIN:
            key, reminder = asked["key"], _read(asked["reminder"])
            # The time of the first call counts, which is what the user was shown.
            due = asked.get("due") or round(self._clock()) + 60 * self._settings.again
            if "due" not in asked:
                await self._asked.put(answer.key, {**asked, "due": due})
            again = msgspec.structs.replace(reminder, due=due, late=None, times=reminder.times + 1)
            await self._waiting.put(key, msgspec.to_builtins(again), expected=None)
            self._changed.set()
            number = key.rpartition(" ")[2]
            text = f"Reminder {number} comes again: {self._time(due)}."
            try:
                await self._announce(reminder.address, text, f"{answer.key} again")
            except TrunklineError as error:
                if error.retryable:
                    raise  # the gateway calls again
                log.warning("could not confirm a reminder", reminder=key, reason=str(error))
        await self._asked.delete(answer.key)

    def _time(self, due: int) -> str:
        return f"{datetime.fromtimestamp(due, ZoneInfo(self._settings.zone)):%a %d %b %Y, %H:%M}"


def _owner(ctx: CommandContext) -> str:
    """Return the user of a command, as it begins the keys of the tables."""
    parts = (ctx.channel, ctx.inbound.address.account, ctx.sender.id)
    return "/".join(part.replace(" ", "_") for part in parts)


def _order(item: tuple[str, Any]) -> tuple[int, int]:
    """Return what a waiting reminder is sorted by: when it is due, and its number."""
    key, value = item
    return _read(value).due, int(key.rpartition(" ")[2])


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_DETAIL else f"{text[: _LONGEST_DETAIL - 1]}…"


def _read(value: Any) -> Reminder:
    return msgspec.convert(value, Reminder)


plugin = Reminders()
