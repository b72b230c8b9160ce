"""The chats that channels have seen, for operators who need their ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gateway.access.rooms import SeenRoom, SeenRooms
from gateway.channel import Address, InboundMessage, Sender
from gateway.store import Store
from gateway.store.writes import audit_op
from tests.gateway.access.rooms import guarded

HOUR = 3_600_000


class Clock:
    """A clock in milliseconds that a test moves."""

    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def message(chat: str, title: str = "", name: str = "", *, group: bool = True) -> InboundMessage:
    """A message in a chat."""
    address = Address("home", "bot", chat, group=group, title=title)
    return InboundMessage(session="s", dedup_key="k", address=address, sender=Sender("ada", name))


async def stored(store: Store, rooms: SeenRooms) -> list[SeenRoom]:
    """The chats, once all writes so far are committed."""
    await store.write(audit_op("test", "wait", ""))
    return await rooms.list()


async def listed(store: Store, rooms: SeenRooms) -> list[tuple[str, str, bool, int]]:
    """The chats as they are stored: id, name, whether it is a group, time."""
    return [(room.chat, room.title, room.group, room.seen_at) for room in await stored(store, rooms)]


async def test_a_chat_is_stored_once_and_again_when_its_name_changes(store: Store) -> None:
    clock = Clock(1_000)
    rooms = SeenRooms(store, clock)
    rooms.note("home", message("-1", "Kitchen"))
    rooms.note("home", message("7", name="Ada", group=False))
    assert await listed(store, rooms) == [("-1", "Kitchen", True, 1_000), ("7", "Ada", False, 1_000)]
    clock.now += 1
    rooms.note("home", message("-1", "Kitchen"))
    rooms.note("home", message("7", name="", group=False))
    assert {at for *_, at in await listed(store, rooms)} == {1_000}, "nothing has changed"
    rooms.note("home", message("-1", "Hall\0way"))
    assert (await listed(store, rooms))[0] == ("-1", "Hall\ufffdway", True, 1_001)
    clock.now += HOUR
    rooms.note("home", message("-1"))
    assert (await listed(store, rooms))[0] == ("-1", "Hall\ufffdway", True, 1_001 + HOUR)


async def test_a_name_outlives_a_restart_and_a_message_without_it(store: Store) -> None:
    clock = Clock(5)
    SeenRooms(store, clock).note("home", message("-1", "Kitchen"))
    clock.now += 5
    later = SeenRooms(store, clock)
    later.note("home", message("-1"))
    assert await stored(store, later) == [SeenRoom("home", "bot", "-1", "Kitchen", True, 10)]


async def test_memory_is_bounded_and_the_list_is_too(store: Store) -> None:
    rooms = SeenRooms(store)
    for number in range(5_000):
        rooms.note("home", message(str(number), "x" * 500))
    assert len(rooms._stored) == 4_096
    found = await stored(store, rooms)
    assert (len(found), len(found[0].title)) == (5_000, 200)


CHANNELS: dict[str, Any] = {
    "home": {"allow": ["ada"], "rooms": {"default": "deny", "7": {}, "kitchen": {"enabled": False}}}
}


async def test_rooms_that_the_bot_ignores_are_listed_as_well(tmp_path: Path) -> None:
    async with guarded(tmp_path, channels=CHANNELS) as (chat, platforms):
        seen = chat.gateway.parts.access.seen_rooms
        denied = platforms.room("hall", group=True).message("eve", "hi")
        assert chat.host.attention("home", denied) == "ignore"
        titled = replace(denied, address=replace(denied.address, chat="kitchen", title="Kitchen"))
        assert chat.host.attention("home", titled) == "ignore"
        await platforms.room("7").write("ada", "hi", name="Ada")
        await platforms.home.until(1)
        found = {(room.chat, room.title, room.group) for room in await stored(chat.gateway.parts.store, seen)}
        assert found == {("hall", "", True), ("kitchen", "Kitchen", True), ("7", "Ada", False)}


async def test_clients_of_the_gateway_are_not_rooms(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, _):
        await chat.say("hi")
        assert await chat.gateway.parts.access.seen_rooms.list() == []
