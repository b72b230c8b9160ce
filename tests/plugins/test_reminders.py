"""The plugin ``reminders``: reminders come once, when they are due, across restarts and kills."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from channels.telegram.fake import FakeTelegram
from gateway import PluginContext, PluginError, new_id
from gateway.channel import Address, InboundMessage, OverloadedError, Sender, SessionKey
from gateway.session.frames import ApprovalAsked
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.letterbox import Letterbox
from gateway.testing.served import until
from plugins.reminders import Reminders
from tests.e2e.gateway_process import GatewayProcess
from tests.gateway.access.test_questions import Brings

SOCKET = {"websocket": {}}


class Clock:
    """A clock that a test sets, in seconds since the epoch."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Room:
    """A user's session on the websocket channel, in a gateway with the plugin."""

    def __init__(self, chat: Chat, reminders: Reminders, clock: Clock) -> None:
        self._chat, self._reminders, self._clock = chat, reminders, clock

    async def say(self, text: str, user: str = "ada") -> str:
        message = InboundMessage(
            session="s",
            dedup_key=new_id(),
            address=Address("websocket", "", "s"),
            sender=Sender(user),
            role="user",
            text=text,
        )
        answer = await self._chat.host.submit(message)
        assert answer is not None
        return answer.text

    def advance(self, seconds: float) -> None:
        """Let the clock go on, and the plugin look at it."""
        self._clock.now += seconds
        self._reminders._changed.set()

    async def shown(self, count: int) -> list[str]:
        """Return the reminders of the log, once there are that many."""
        async with asyncio.timeout(60):
            while True:
                log = [message.text for _, message in await self._chat.gateway.parts.sessions.read("s")]
                found = [text for text in log if text.startswith("⏰")]
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.01)

    async def until_none(self) -> None:
        """Wait until no reminder is left; one is removed some time after it was announced."""
        async with asyncio.timeout(60):
            while await self.say("/remind list") != "You have no reminders.":
                await asyncio.sleep(0.01)


async def test_a_reminder_comes_when_it_is_due_and_once(tmp_path: Path) -> None:
    clock = Clock()
    reminders = Reminders(clock)
    async with chatting(tmp_path, reminders, channels=SOCKET) as chat:
        room = Room(chat, reminders, clock)
        assert (await room.say("/remind in 10m check the oven")).startswith(
            "Reminder 1: Fri 15 Jan 2027, 08:10"
        )
        assert (await room.say("/remind in 1h30m call Ada")).startswith("Reminder 2: Fri 15 Jan 2027, 09:30")
        assert (await room.say("/remind list")).splitlines() == [
            "- **1** Fri 15 Jan 2027, 08:10: check the oven",
            "- **2** Fri 15 Jan 2027, 09:30: call Ada",
        ]
        room.advance(599)
        room.advance(1)
        assert await room.shown(1) == ["⏰ **Reminder:** check the oven"]
        assert (await room.say("/remind cancel 2")) == "Reminder 2 is cancelled."
        room.advance(-3_600)  # the clock is set back
        room.advance(86_400)
        await room.until_none()
        assert await room.shown(1) == ["⏰ **Reminder:** check the oven"]
        # A number is not used again, so that its announcement is not taken for the earlier one.
        assert (await room.say("/remind in 1s again")).startswith("Reminder 3")
        room.advance(1)
        assert (await room.shown(2))[1] == "⏰ **Reminder:** again"


async def test_a_reminder_that_became_due_while_the_gateway_was_off_comes_at_the_start(
    tmp_path: Path,
) -> None:
    clock = Clock()
    first, second, third = Reminders(clock), Reminders(clock), Reminders(clock)
    async with chatting(tmp_path, first, channels=SOCKET) as chat:
        await Room(chat, first, clock).say("/remind in 10m check the oven")
    clock.now += 3_600
    async with chatting(tmp_path, second, channels=SOCKET) as chat:
        room = Room(chat, second, clock)
        late = ["⏰ **Reminder:** check the oven (it was due Fri 15 Jan 2027, 08:10)"]
        assert await room.shown(1) == late
    async with chatting(tmp_path, third, channels=SOCKET) as chat:
        room = Room(chat, third, clock)
        await room.until_none()
        assert await room.shown(1) == late


class Refused(Reminders):
    """Reminders of a gateway that refuses the first announcement, as one does that is starting."""

    async def activate(self, ctx: PluginContext) -> None:
        refused: list[str] = []

        async def announce(address: Any, message: Any, key: str) -> None:
            assert ctx.announce is not None
            if not refused:
                refused.append(key)
                raise OverloadedError("the gateway is starting; send this again later")
            await ctx.announce(address, message, key)

        await super().activate(replace(ctx, announce=announce))


async def test_reminders_come_in_the_order_in_which_they_are_due(tmp_path: Path) -> None:
    """Also if the first one has to be tried again, and whatever their numbers are."""
    clock = Clock()
    reminders = Refused(clock)
    async with chatting(tmp_path, reminders, channels=SOCKET) as chat:
        room = Room(chat, reminders, clock)
        for number in range(12):
            await room.say(f"/remind in {12 - number // 2}m {number}")
        room.advance(3_600)
        async with asyncio.timeout(60):
            while await room.say("/remind list") != "You have no reminders.":
                room.advance(0)
        shown = [text.split()[2] for text in await room.shown(12)]
        assert shown == ["10", "11", "8", "9", "6", "7", "4", "5", "2", "3", "0", "1"]


async def question(chat: Chat, number: int = 1) -> ApprovalAsked:
    """Return the latest question of the session, once it has had that many."""
    watcher = await chat.watch()
    asked: dict[str, ApprovalAsked] = {}

    def seen(frame: object) -> bool:
        if isinstance(frame, ApprovalAsked):
            asked[frame.approval_id] = frame
        return len(asked) >= number

    async with asyncio.timeout(60):
        await watcher.until(seen)
    return [*asked.values()][-1]


async def test_a_reminder_comes_again_if_its_user_wants_it_also_across_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    first, second = Reminders(clock), Reminders(clock)
    async with chatting(tmp_path, first, channels=SOCKET) as chat:
        room = Room(chat, first, clock)
        await room.say("/remind in 10m check the oven")
        room.advance(600)
        shown = await question(chat)
        assert (shown.title, shown.detail) == ("Remind you again?", "check the oven")
        assert [choice.text for choice in shown.choices or ()] == ["In 10 minutes", "Done"]
        await chat.host.settle(shown.approval_id, "again", session="s")
        async with asyncio.timeout(60):
            while await room.say("/remind list") == "You have no reminders.":
                await asyncio.sleep(0.01)
        assert await room.say("/remind list") == "- **1** Fri 15 Jan 2027, 08:20: check the oven"
    async with chatting(tmp_path, second, channels=SOCKET) as chat:
        room = Room(chat, second, clock)
        room.advance(600)
        assert await room.shown(2) == ["⏰ **Reminder:** check the oven"] * 2
        shown = await question(chat)
        await chat.host.settle(shown.approval_id, "done", session="s")
        async with asyncio.timeout(60):
            while await second._asked.keys():
                await asyncio.sleep(0.01)
        assert await room.say("/remind list") == "You have no reminders."
        log = [message.text for _, message in await chat.gateway.parts.sessions.read("s")]
        assert log.count("Reminder 1 comes again: Fri 15 Jan 2027, 08:20.") == 1


async def test_a_reminder_is_not_offered_again_without_minutes(tmp_path: Path) -> None:
    clock = Clock()
    reminders = Reminders(clock)
    plugins = {"reminders": {"again": 0}}
    async with chatting(tmp_path, reminders, channels=SOCKET, plugins=plugins) as chat:
        room = Room(chat, reminders, clock)
        await room.say("/remind in 10m check the oven")
        room.advance(600)
        await room.shown(1)
        assert await room.say("/remind list") == "You have no reminders."
        assert await reminders._asked.keys() == []
        assert (await chat.gateway.parts.sessions.find("s")).asked == {}


async def test_a_channel_without_questions_gets_the_reminder_alone(tmp_path: Path) -> None:
    clock, letters, text = Clock(), Letterbox(), "⏰ **Reminder:** check the oven"
    reminders = Reminders(clock)
    allowed = {"letters": {"allow": "*"}}
    async with chatting(tmp_path, Brings(letters), reminders, channels=allowed) as chat:
        message = written("/remind in 10m check the oven", channel="letters")
        own = str(SessionKey("letters", message.address.account, message.address.chat))
        answer = await chat.host.submit(replace(message, session=own))
        assert answer is not None
        clock.now += 600
        reminders._changed.set()
        async with asyncio.timeout(60):
            while await reminders._waiting.keys():
                await asyncio.sleep(0.01)
            while (await chat.gateway.parts.sessions.read(own))[-1][1].text != text:
                await asyncio.sleep(0.01)
        assert await reminders._asked.keys() == []


async def test_reminders_at_a_time_of_day_follow_the_zone(tmp_path: Path) -> None:
    clock = Clock()
    reminders = Reminders(clock)
    plugins = {"reminders": {"zone": "Europe/Oslo"}}
    async with chatting(tmp_path, reminders, channels=SOCKET, plugins=plugins) as chat:
        room = Room(chat, reminders, clock)
        assert (await room.say("/remind at 18:30 eat")).startswith("Reminder 1: Fri 15 Jan 2027, 18:30.")
        assert (await room.say("/remind at 08:59 run")).startswith("Reminder 2: Sat 16 Jan 2027, 08:59.")


async def test_users_have_their_own_reminders_and_not_too_many(tmp_path: Path) -> None:
    clock = Clock()
    reminders = Reminders(clock)
    plugins = {"reminders": {"most": 1}}
    async with chatting(tmp_path, reminders, channels=SOCKET, plugins=plugins) as chat:
        room = Room(chat, reminders, clock)
        await room.say("/remind in 1d eat", "ada")
        assert await room.say("/remind list", "bob") == "You have no reminders."
        assert (await room.say("/remind cancel 1", "bob")).startswith("You have no reminder 1.")
        assert (await room.say("/remind in 1d eat", "bob")).startswith("Reminder 1")
        assert (await room.say("/remind in 2d eat", "bob")).startswith("You have 1 reminders already.")


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ("/remind", "Use `/remind in 10m"),
        ("/remind in ten minutes eat", "Use `/remind in 10m"),
        ("/remind in 10m", "Use `/remind in 10m"),
        ("/remind in 0s eat", "A reminder can wait between"),
        ("/remind in 999999w eat", "A reminder can wait between"),
        ("/remind at 25:00 eat", "25:00 is not a time of day"),
        ("/remind cancel 7", "You have no reminder 7."),
        ("/remind in 1m " + "x" * 2_001, "The text has 2,001 characters, and at most 2,000"),
    ],
)
async def test_a_wrong_command_is_explained(tmp_path: Path, text: str, reply: str) -> None:
    clock = Clock()
    reminders = Reminders(clock)
    async with chatting(tmp_path, reminders, channels=SOCKET) as chat:
        assert (await Room(chat, reminders, clock).say(text)).startswith(reply)


async def test_a_wrong_zone_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match='zone = "Mars" is not a time zone'):
        async with chatting(tmp_path, Reminders(), plugins={"reminders": {"zone": "Mars"}}):
            pass


async def test_a_button_on_telegram_lets_a_reminder_come_again(tmp_path: Path) -> None:
    clock = Clock()
    reminders = Reminders(clock)
    async with FakeTelegram() as telegram:
        settings = {"token": telegram.token, "api_base_url": telegram.url, "allow": "*"}
        async with chatting(tmp_path, reminders, channels={"telegram": settings}):
            chat = telegram.private("Ada")
            telegram.say(chat, "/remind in 10m check the oven")
            await until(lambda: any("cancels it" in text for text in telegram.answers(chat)))
            clock.now += 600
            reminders._changed.set()
            await until(lambda: [one for one in telegram.messages(chat) if one.buttons])
            [asked] = [one for one in telegram.messages(chat) if one.buttons]
            assert telegram.answers(chat)[-2:] == ["⏰ Reminder: check the oven", asked.text]
            telegram.press(chat, asked.id, "In 10 minutes")
            await until(lambda: any("comes again" in text for text in telegram.answers(chat)))
            clock.now += 600
            reminders._changed.set()
            await until(lambda: telegram.answers(chat).count("⏰ Reminder: check the oven") == 2)
        telegram.transcript.check()


async def test_reminders_come_once_on_telegram_although_the_gateway_is_killed(tmp_path: Path) -> None:
    async with FakeTelegram() as telegram, FakeModels() as models:
        settings = (
            '[plugins]\nenabled = ["reminders"]\n'
            f'[channels.telegram]\ntoken = "{telegram.token}"\napi_base_url = "{telegram.url}"\nallow = "*"\n'
        )
        gateway = GatewayProcess(tmp_path, models.openai_url, settings)
        chat = telegram.private("Ada")

        def reminded() -> list[str]:
            return [text for text in telegram.answers(chat) if "Reminder:" in text]

        async with gateway:
            assert await gateway.start()
            for number in range(4):
                telegram.say(chat, f"/remind in {2 + number}s number {number}")
            await until(lambda: sum("cancels it" in text for text in telegram.answers(chat)) == 4)
            for number in range(4):
                # Killed as soon as the platform shows the next one: it may not be settled yet.
                await until(lambda number=number: len(reminded()) > number)
                await gateway.stop(signal.SIGKILL)
                assert await gateway.start()
            # The last kill can come before the reminder is removed, and the command before it is tried again.
            while "You have no reminders." not in telegram.answers(chat):
                before = len(telegram.answers(chat))
                telegram.say(chat, "/remind list")
                await until(lambda before=before: len(telegram.answers(chat)) > before)
            assert await gateway.stop() == 0
        assert [text.rpartition(" ")[2] for text in reminded()] == ["0", "1", "2", "3"]
        telegram.transcript.check()
