"""The contract suite for channels: a real gateway, a fake platform on a socket, and what goes wrong there.

Each check takes a ``Trial``. In tests::

    from gateway.testing.contracts.channel_contract import ChannelCheck, checks_for
    from gateway.testing.contracts.channel_platform import Platform

    class MyPlatform(Platform): ...

    @pytest.mark.parametrize("check", checks_for(MyPlatform), ids=str)
    async def test_the_contract(check: ChannelCheck, tmp_path: Path) -> None:
        await check(MyPlatform(), tmp_path)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import get_args

from msgspec import Struct

from gateway.testing.contracts.channel_platform import (
    Feature,
    Platform,
    Trial,
    freeze_after_placing,
    refusals_of,
    settled,
    trial,
    until,
)
from gateway.testing.fake_models.script import Gate, Reply, Say
from gateway.testing.fake_platform import FAULTS, Fault

_MOST_CHARACTERS = 20_000
_FILE = b"minutes of the meeting"


async def a_message_is_answered(trial: Trial) -> None:
    """Check one message and its answer; the answer to a second one follows it."""
    async with trial.gateway() as gateway:
        trial.platform.write("one")
        await trial.shows("You said: one")
        trial.platform.write("two")
        await trial.shows("You said: one", "You said: two")
        await settled(gateway)
    assert trial.asked() == ["one", "two"]


async def malformed_events_stop_nothing(trial: Trial) -> None:
    """Check that events that cannot be parsed neither end the channel nor delay the next message."""
    async with trial.gateway() as gateway:
        trial.platform.malformed()
        trial.platform.write("one")
        await trial.shows("You said: one")
        await settled(gateway)
    assert trial.failures == [], "the channel had to be restarted"


async def a_refused_message_is_not_acknowledged(trial: Trial) -> None:
    """Check that a message is neither lost nor acknowledged while ``receive`` raises OverloadedError.

    It is offered again. The gateway ends while it is full; the next one still gets it from the platform.
    """
    trial.models.then(Reply((Say("never"), Gate(asyncio.Event()))))
    async with trial.gateway(limits={"global_inbox": 1}) as gateway:
        trial.platform.write("one")
        await until(lambda: trial.asked() == ["one"])
        refused = refusals_of(gateway)
        trial.platform.write("two")
        await until(lambda: refused() >= 2)
    async with trial.gateway() as gateway:
        await trial.shows("You said: one", "You said: two")
        await settled(gateway)
    assert trial.failures == [], "the channel had to be restarted"


async def a_full_gateway_takes_messages_later(trial: Trial) -> None:
    """Check that messages that were refused are answered once, and in order, when there is room again."""
    gate = asyncio.Event()
    trial.models.then(Reply((Gate(gate), Say("You said: one"))))
    async with trial.gateway(limits={"global_inbox": 2}) as gateway:
        trial.platform.write("one")
        await until(lambda: trial.asked() == ["one"])
        refused = refusals_of(gateway)
        trial.platform.write("two")
        trial.platform.write("three")
        await until(refused)
        gate.set()
        await trial.shows("You said: one", "You said: two", "You said: three")
        await settled(gateway)
    assert trial.failures == [], "the channel had to be restarted"


async def messages_during_an_outage_are_answered(trial: Trial) -> None:
    """Check that messages that were written while no gateway ran are answered by the next one."""
    async with trial.gateway() as gateway:
        trial.platform.write("one")
        await trial.shows("You said: one")
        await settled(gateway)
    trial.platform.write("two")
    async with trial.gateway() as gateway:
        await trial.shows("You said: one", "You said: two")
        await settled(gateway)
    assert trial.asked() == ["one", "two"]


async def repeated_events_are_answered_once(trial: Trial) -> None:
    """Check that an event that arrives twice is one message."""
    trial.platform.repeat()
    async with trial.gateway() as gateway:
        trial.platform.write("one")
        await trial.shows("You said: one")
        trial.platform.write("two")
        await trial.shows("You said: one", "You said: two")
        await settled(gateway)
    assert trial.asked() == ["one", "two"]


async def reordered_events_are_answered_in_order(trial: Trial) -> None:
    """Check that messages that arrive in reverse order are answered in the order of the platform."""
    gate = asyncio.Event()
    trial.models.then(Reply((Gate(gate), Say("You said: one"))))
    async with trial.gateway() as gateway:
        trial.platform.write("one")
        await until(lambda: trial.asked() == ["one"])
        with trial.platform.reordered():
            for text in ("two", "three", "four"):
                trial.platform.write(text)
        await until(lambda: gateway.parts.dispatcher.waiting == 4)
        gate.set()
        await trial.shows(*(f"You said: {text}" for text in ("one", "two", "three", "four")))
        await settled(gateway)
    assert trial.asked() == ["one", "two", "three", "four"]


def a_call_may_fail(fault: Fault) -> Callable[[Trial], Awaitable[None]]:
    """Return the check that a call with this fault leaves exactly one message."""

    async def check(trial: Trial) -> None:
        async with trial.gateway() as gateway:
            trial.platform.fail(fault)
            trial.platform.write("one")
            await trial.shows("You said: one")
            await settled(gateway)
            trial.platform.write("two")
            await trial.shows("You said: one", "You said: two")
            await settled(gateway)
        assert trial.asked() == ["one", "two"]

    check.__name__ = f"one_message_after_{fault}"
    return check


async def a_kill_after_placing_leaves_one_message(trial: Trial) -> None:
    """Check that a message that was placed and not recorded is found by the next process."""
    async with trial.gateway() as gateway:
        placed = freeze_after_placing(gateway, trial.platform.name)
        trial.platform.write("one")
        async with asyncio.timeout(60):
            await placed.wait()
        gateway.parts.dispatcher.cancel()
    assert len(trial.platform.shown()) == 1
    async with trial.gateway() as gateway:
        await trial.shows("You said: one")
        await settled(gateway)
        trial.platform.write("two")
        await trial.shows("You said: one", "You said: two")
        await settled(gateway)


async def a_kill_in_mid_answer_leaves_one_answer(trial: Trial) -> None:
    """Check that an answer whose beginning may be shown already is shown once, after the restart."""
    trial.models.then(Reply((Say("You said"), Gate(asyncio.Event()))))
    async with trial.gateway() as gateway:
        trial.platform.write("one")
        await until(lambda: trial.asked() == ["one"])
        gateway.parts.dispatcher.cancel()
    async with trial.gateway() as gateway:
        await trial.shows("You said: one")
        await settled(gateway)


async def an_edited_message_is_answered_again(trial: Trial) -> None:
    """Check that an edit is a revision of its message: the model gets the new text and not the old one."""
    async with trial.gateway() as gateway:
        key = trial.platform.write("helo")
        await trial.shows("You said: helo")
        await settled(gateway)
        trial.platform.edit(key, "greetings")
        await until(lambda: trial.platform.shown()[-1:] == ["You said: greetings"])
        await settled(gateway)
    assert trial.asked() == ["helo", "greetings"]
    assert "helo" not in str(trial.models.requests[-1].body)


async def a_deleted_message_is_not_answered(trial: Trial) -> None:
    """Check that a deletion withdraws a queued message, and ends the answer to a message in progress."""
    trial.models.then(Reply((Say("never"), Gate(asyncio.Event()))))
    async with trial.gateway() as gateway:
        first = trial.platform.write("one")
        await until(lambda: trial.asked() == ["one"])
        second = trial.platform.write("two")
        await until(lambda: gateway.parts.dispatcher.waiting == 2)
        trial.platform.delete(second)
        trial.platform.delete(first)
        trial.platform.write("three")
        await trial.shows("You said: three")
        await settled(gateway)
    assert trial.asked() == ["one", "three"]


async def a_long_answer_is_complete(trial: Trial) -> None:
    """Check that an answer beyond the platform's limit is shown in full, in order, and within the limit."""
    length = min(trial.platform.longest * 3 // 2, _MOST_CHARACTERS)
    words = [f"word{number:05}" for number in range(length // 10)]
    trial.models.then(Reply((Say(" ".join(words)),)))
    async with trial.gateway() as gateway:
        trial.platform.write("recite")
        await until(lambda: words[-1] in " ".join(trial.platform.shown()).split())
        await settled(gateway)
        shown = trial.platform.shown()
    assert " ".join(shown).split() == words
    assert max(map(len, shown)) <= trial.platform.longest


async def a_message_that_is_not_for_the_bot_is_remembered(trial: Trial) -> None:
    """Check that a message in a room that does not address the bot is neither answered nor lost.

    The gateway shows it to the model with the next message that is for the bot.
    """
    async with trial.gateway(envelope="off") as gateway:
        trial.platform.write_in_room("the shop is closed on Monday", addressed=False)
        trial.platform.write_in_room("hello", addressed=True)
        await until(lambda: any("You said: hello" in text for text in trial.platform.shown_in_room()))
        await settled(gateway)
    assert len(trial.models.requests) == 1
    assert len(trial.platform.shown_in_room()) == 1
    assert "the shop is closed on Monday" in str(trial.models.requests[0].body)


async def a_file_that_is_not_for_the_bot_is_not_downloaded(trial: Trial) -> None:
    """Check that files are downloaded only for messages that are answered."""
    async with trial.gateway(envelope="off") as gateway:
        trial.platform.write_in_room("look", addressed=False, file=_FILE)
        trial.platform.write_in_room("hello", addressed=True)
        await until(lambda: len(trial.models.requests) == 1)
        await settled(gateway)
        assert trial.platform.downloads() == 0
        trial.platform.write_in_room("read this", addressed=True, file=_FILE)
        await until(lambda: len(trial.models.requests) == 2)
        await settled(gateway)
        assert trial.platform.downloads() == 1


class ChannelCheck(Struct, frozen=True):
    """A check of the suite, with the features of the platform that it needs."""

    run: Callable[[Trial], Awaitable[None]]
    needs: tuple[Feature, ...] = ()

    def __str__(self) -> str:
        return getattr(self.run, "__name__", "check")

    async def __call__(self, platform: Platform, directory: Path) -> None:
        """Run the check. Raises AssertionError if the channel fails it."""
        async with trial(platform, directory) as made:
            await self.run(made)


CHECKS = (
    ChannelCheck(a_message_is_answered),
    ChannelCheck(malformed_events_stop_nothing, ("events",)),
    ChannelCheck(a_refused_message_is_not_acknowledged),
    ChannelCheck(a_full_gateway_takes_messages_later),
    ChannelCheck(messages_during_an_outage_are_answered),
    ChannelCheck(repeated_events_are_answered_once, ("events",)),
    ChannelCheck(reordered_events_are_answered_in_order, ("reordering",)),
    *(ChannelCheck(a_call_may_fail(fault), ("sending",)) for fault in FAULTS),
    ChannelCheck(a_kill_after_placing_leaves_one_message, ("sending",)),
    ChannelCheck(a_kill_in_mid_answer_leaves_one_answer),
    ChannelCheck(an_edited_message_is_answered_again, ("edits",)),
    ChannelCheck(a_deleted_message_is_not_answered, ("deletions",)),
    ChannelCheck(a_long_answer_is_complete),
    ChannelCheck(a_message_that_is_not_for_the_bot_is_remembered, ("rooms",)),
    ChannelCheck(a_file_that_is_not_for_the_bot_is_not_downloaded, ("rooms", "files")),
)


def checks_for(platform: type[Platform]) -> Sequence[ChannelCheck]:
    """Return the checks for a platform, without those that need a feature that it lacks.

    Raises ValueError if it declares an unknown feature, or one without a reason.
    """
    for feature, reason in platform.lacks.items():
        if feature not in get_args(Feature) or not reason:
            raise ValueError(f"{platform.__name__}.lacks has {feature!r}: {reason!r}")
    return [check for check in CHECKS if not platform.lacks.keys() & set(check.needs)]
