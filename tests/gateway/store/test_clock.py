"""The clock of retention does not follow a jump of the machine's clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.channel import Address, InboundMessage, Sender
from gateway.store import Store
from gateway.store.inbox import Entry
from gateway.store.retention import Retention
from gateway.tables.clock import TrustedClock, find_jump

HOUR = 3_600_000
DAY = 24 * HOUR
NOW = 20_000 * DAY
YEARS = 3_650 * DAY


def unexpected(error: BaseException) -> None:
    raise AssertionError(error)


def opened(folder: Path) -> Store:
    return Store.open(f"sqlite:///{folder}/t.db", "full", unexpected)


async def settle(store: Store, at: int) -> None:
    """Store an answered message of this time."""
    inbound = InboundMessage(
        session="s", dedup_key="m", address=Address("line"), sender=Sender("u"), text="hi"
    )
    entry = Entry.of("line", inbound, 1, attempts=1)
    entry.received_at = at
    entry.id = f"{at >> 16:08x}-{at & 0xFFFF:04x}{entry.id[13:]}"
    await store.write(entry.accept())
    await store.write(*entry.settle_silently())


async def found(store: Store, now: int) -> str:
    return await store.read(lambda c: find_jump(c, now))


async def test_a_clock_that_is_years_ahead_removes_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    await settle(store, NOW)
    await TrustedClock(store).read_at(NOW + HOUR)
    await store.close()
    store = opened(tmp_path)  # a restart does not hide the jump
    for later in (0, HOUR, 2 * DAY):
        at = await TrustedClock(store).read_at(NOW + YEARS + later)
        assert at == NOW + HOUR
        assert await Retention(store, days=30).clean(at) == 0
    assert "(3,649 days)" in await found(store, NOW + YEARS + 2 * DAY)
    await store.close()


async def test_a_gateway_that_never_read_the_clock_goes_by_its_newest_message(tmp_path: Path) -> None:
    store = opened(tmp_path)
    await settle(store, NOW)
    assert await TrustedClock(store).read_at(NOW + YEARS) == NOW
    await store.close()


async def test_a_clock_that_stays_ahead_is_believed_after_three_days(tmp_path: Path) -> None:
    store = opened(tmp_path)
    await settle(store, NOW)
    clock = TrustedClock(store)
    for hours in range(72):
        assert await clock.read_at(NOW + 40 * DAY + hours * HOUR) == NOW
    after = NOW + 43 * DAY
    assert await clock.read_at(after) == after
    assert await found(store, after) == ""
    assert await Retention(store, days=30).clean(after) == 1
    await store.close()


async def test_a_clock_that_is_set_right_is_believed_at_once(tmp_path: Path) -> None:
    store = opened(tmp_path)
    clock = TrustedClock(store)
    assert await clock.read_at(NOW) == NOW
    assert await clock.read_at(NOW + YEARS) == NOW
    assert await found(store, NOW + 2 * HOUR) == ""
    assert await clock.read_at(NOW + 2 * HOUR) == NOW + 2 * HOUR
    assert await clock.read_at(NOW + 3 * HOUR) == NOW + 3 * HOUR
    await store.close()


async def test_a_second_jump_keeps_the_time_of_before_the_first(tmp_path: Path) -> None:
    store = opened(tmp_path)
    clock = TrustedClock(store)
    for at in (NOW, NOW + YEARS, NOW + 2 * YEARS):
        assert await clock.read_at(at) == NOW
    await store.close()


@pytest.mark.parametrize("pause", [HOUR, 6 * DAY])
async def test_a_short_pause_is_not_a_jump(tmp_path: Path, pause: int) -> None:
    store = opened(tmp_path)
    clock = TrustedClock(store)
    await clock.read_at(NOW)
    assert await clock.read_at(NOW + pause) == NOW + pause
    await store.close()
