"""A stranger is given a code; who may say so lets them in, and out again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import func, select

from gateway import NotFoundError
from gateway.access import THE_OWNER, Access, UserRef
from gateway.access.codes import ADD_CODE, ALPHABET, LENGTH
from gateway.channel import Sender, TooManyRequestsError
from gateway.contract.errors import ForbiddenError
from gateway.events import AccessRevoked
from gateway.extensions.registry import ChannelRegistry
from gateway.settings import ChannelRules
from gateway.store import Store
from gateway.store import schema as t
from gateway.testing.chat import written
from gateway.testing.fake_models.script import Gate, Reply, Say
from tests.gateway.access.conftest import Clock
from tests.gateway.access.rooms import audited, code_in, guarded

pytestmark = pytest.mark.slow

EVE = Sender("666", "Eve")


@pytest.fixture
async def access(store: Store, clock: Clock) -> Access:
    """Access to two closed channels, on each kind of database."""
    made = Access(store, {"home": ChannelRules(), "away": ChannelRules()}.get, ChannelRegistry(), clock)
    await made.load()
    return made


async def code_for(access: Access, stranger: Sender = EVE, channel: str = "home") -> str:
    told = await access.pairing.greet(channel, stranger)
    assert told is not None
    return code_in(told)


def role_of(access: Access, channel: str) -> str | None:
    """What eve may do there."""
    return access.policy.role(channel, written("hi", user=EVE.id, role=None))


# In the chat


async def test_a_stranger_is_let_in_by_an_admin_in_the_chat(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        room = platforms.room("1")
        code = code_in(await room.ask("eve", "hi", name="Eve"))
        said = await platforms.room("2").ask("root", f"/pair {code.lower()[:4]}-{code.lower()[4:]} ")
        assert said == "Approved: `eve` (Eve) on home."
        assert await room.ask("eve", "hi") == "You said: hi"
        assert platforms.heard[-1] == ("hi", "user")
        assert await audited(chat) == [("home:root", "pair.approve", "home:eve")]


async def test_who_was_let_in_still_is_after_a_restart(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, platforms):
        code = code_in(await platforms.room("1").ask("eve", "hi"))
        await platforms.room("2").ask("root", f"/pair {code}")
    async with guarded(tmp_path) as (_, platforms):
        assert await platforms.room("1").ask("eve", "hi") == "You said: hi"


async def test_only_admins_can_pair_users(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        room = platforms.room("1")
        code = code_in(await room.ask("eve", "hi"))
        assert await platforms.room("2").ask("ada", f"/pair {code}") == "/pair is for admins."
        assert "You are not authorised" in await room.ask("eve", f"/pair {code}")
        assert await audited(chat) == []


async def test_an_admin_lets_people_in_on_their_own_channel_alone(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, platforms):
        code = code_in(await platforms.room("1").ask("eve", "hi"))
        said = await platforms.room("2", "away").ask("chief", f"/pair {code}")
        assert said.startswith("This code is not valid")
        assert "You are not authorised" in await platforms.room("1").ask("eve", "hi")


async def test_the_owner_lets_people_in_everywhere(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        code = code_in(await platforms.room("1").ask("eve", "hi"))
        assert "Approved" in (await chat.say(f"/pair {code}", user="owner", role="admin")).text
        assert await platforms.room("1").ask("eve", "hi") == "You said: hi"


@pytest.mark.parametrize("given", ["", "34679CDF", "\ud83d\ude00", "ü" * 8, "x" * 5_000])
async def test_a_wrong_code_pairs_no_user(tmp_path: Path, given: str) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        await platforms.room("1").ask("eve", "hi")
        said = await platforms.room("2").ask("root", f"/pair {given}")
        assert said.startswith("This code is not valid" if given else "Type `/pair CODE`")
        assert await audited(chat) == []


async def test_a_running_answer_ends_when_its_asker_is_let_out(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        room = platforms.room("1")
        code = code_in(await room.ask("eve", "hi"))
        await platforms.room("2").ask("root", f"/pair {code}")
        chat.model.then(Reply((Say("Secr"), Gate(asyncio.Event()), Say("et"))))
        await room.write("eve", "tell me")
        watcher = await chat.watch(room.session)
        await watcher.until(lambda frame: getattr(frame, "content", "") == "Secr")
        await chat.gateway.parts.access.revoke(UserRef("home", "eve"), THE_OWNER)
        assert (await platforms.home.until(3))[2].message.text == "Secr"
        assert "You are not authorised" in await room.ask("eve", "hi")


async def test_what_waited_when_its_writer_was_let_out_is_not_answered(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with guarded(tmp_path) as (chat, platforms):
        room, group = platforms.room("1"), platforms.room("g", group=True)
        code = code_in(await room.ask("eve", "hi"))
        await platforms.room("2").ask("root", f"/pair {code}")
        chat.model.then(Reply((Gate(gate), Say("Done."))))
        await group.write("ada", "go")
        await group.write("eve", "and for me?")
        await chat.gateway.parts.access.revoke(UserRef("home", "eve"), THE_OWNER)
        gate.set()
        assert await group.ask("ada", "next") in ("Done.", "You said: next")
        await platforms.home.until(4)
        asked = [m.text for call in chat.model.calls for m in call.messages]
        assert "and for me?" not in asked


# Codes


def test_the_alphabet_cannot_be_misread() -> None:
    assert (len(set(ALPHABET)), LENGTH) == (22, 8)
    assert not set(ALPHABET) & set("0O1IL2Z5S8BAEU")


async def test_the_same_code_is_shown_while_it_is_valid(access: Access, clock: Clock) -> None:
    code = await code_for(access)
    clock.minutes(59)
    assert await code_for(access) == code
    clock.minutes(1)
    assert await code_for(access) != code


async def test_the_store_holds_no_code_and_what_was_reported_before_a_restart_still_works(
    access: Access, store: Store, clock: Clock
) -> None:
    code = await code_for(access)
    rows = await store.read(lambda c: [tuple(row) for row in c.execute(select(t.one_time_code))])
    assert len(rows) == 1
    assert not any(code in str(field) for field in rows[0])
    restarted = Access(store, {"home": ChannelRules()}.get, ChannelRegistry(), clock)
    await restarted.load()
    assert [waiting.code for waiting in await restarted.pairing.waiting()] == [""]
    assert (await restarted.pairing.approve(code.lower(), THE_OWNER, "admin")).user_id == EVE.id


async def test_a_stranger_who_knocks_again_after_a_restart_gets_a_new_code_in_place_of_the_old(
    access: Access, store: Store, clock: Clock
) -> None:
    code = await code_for(access)
    restarted = Access(store, {"home": ChannelRules()}.get, ChannelRegistry(), clock)
    await restarted.load()
    new = await code_for(restarted)
    assert new != code
    with pytest.raises(NotFoundError):
        await restarted.pairing.approve(code, THE_OWNER, "admin")
    assert (await restarted.pairing.approve(new, THE_OWNER, "admin")).user_id == EVE.id


async def test_two_messages_at_once_get_one_code(access: Access) -> None:
    told = await asyncio.gather(*(access.pairing.greet("home", EVE) for _ in range(4)))
    assert len({code_in(text) for text in told if text}) == 1
    assert len(await access.pairing.waiting()) == 1


async def test_a_channel_has_only_so_many_open_codes(access: Access, store: Store, clock: Clock) -> None:
    rows = [
        (str(n), "pair", f"code {n}", "home", f"flood {n}", "", "", clock(), clock() + 3_600_000, 0)
        for n in range(1_000)
    ]
    await store.write(*((ADD_CODE, row) for row in rows))
    assert await access.pairing.greet("home", EVE) is None
    assert await code_for(access, channel="away")
    clock.minutes(60)
    assert await code_for(access)


async def test_a_code_is_old_after_an_hour(access: Access, clock: Clock) -> None:
    code = await code_for(access)
    clock.minutes(60)
    with pytest.raises(NotFoundError, match="expired"):
        await access.pairing.approve(code, THE_OWNER, "admin")
    assert await access.pairing.waiting() == []


async def test_a_code_works_once(access: Access) -> None:
    code = await code_for(access)
    both = [access.pairing.approve(code, THE_OWNER, "admin") for _ in range(2)]
    done = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in done) == ["Member", "NotFoundError"]
    await access.revoke(UserRef("home", "666"), THE_OWNER)
    with pytest.raises(NotFoundError):
        await access.pairing.approve(code, THE_OWNER, "admin")


@pytest.mark.parametrize("minutes", [61, 1_440, 525_600])
async def test_a_code_is_valid_no_longer_if_the_clock_is_set_back(
    access: Access, clock: Clock, minutes: int
) -> None:
    code = await code_for(access)
    clock.minutes(-minutes)
    assert await access.pairing.waiting() == []
    with pytest.raises(NotFoundError):
        await access.pairing.approve(code, THE_OWNER, "admin")
    # It does not count as one of the three in an hour, nor at the time of its issue once more.
    for _ in range(3):
        await access.pairing.approve(await code_for(access), THE_OWNER, "admin")
        await access.revoke(UserRef("home", "666"), THE_OWNER)
    clock.minutes(minutes)
    assert await access.pairing.waiting() == []


async def test_a_stranger_gets_three_codes_in_an_hour(access: Access, clock: Clock) -> None:
    for _ in range(3):
        await access.pairing.approve(await code_for(access), THE_OWNER, "admin")
        await access.revoke(UserRef("home", "666"), THE_OWNER)
    assert await access.pairing.greet("home", EVE) is None
    assert await code_for(access, Sender("667"))
    clock.minutes(61)
    assert await code_for(access)


async def test_a_stranger_is_answered_five_times_and_then_no_more(access: Access) -> None:
    told = [await access.pairing.greet("home", EVE) for _ in range(7)]
    assert [text is not None for text in told] == [True] * 5 + [False] * 2
    assert len({code_in(text) for text in told if text}) == 1
    assert await code_for(access, Sender("667"))
    assert await code_for(access, channel="away")


async def test_a_removed_user_gets_a_code_again(access: Access) -> None:
    for _ in range(5):
        code = await code_for(access)
    await access.pairing.approve(code, THE_OWNER, "admin")
    await access.revoke(UserRef("home", "666"), THE_OWNER)
    assert await code_for(access) != code


async def test_codes_that_count_for_nothing_any_more_are_removed(
    access: Access, store: Store, clock: Clock
) -> None:
    for n in range(5):
        await code_for(access, Sender(str(n)))
    clock.minutes(121)
    await code_for(access)
    count = select(func.count()).select_from(t.one_time_code)
    assert await store.read(lambda c: c.execute(count).scalar_one()) == 1


async def test_a_user_who_guesses_five_times_has_to_wait_and_no_other(access: Access) -> None:
    code, root = await code_for(access), UserRef("home", "root")
    for n in range(5):
        with pytest.raises(NotFoundError):
            await access.pairing.approve(f"guess {n}", root, "admin")
    with pytest.raises(TooManyRequestsError, match="ten minutes"):
        await access.pairing.approve(code, root, "admin")
    assert (await access.pairing.approve(code, THE_OWNER, "admin")).user_id == "666"


# Members


async def test_an_admin_cannot_grant_a_higher_role_than_their_own(access: Access) -> None:
    code = await code_for(access)
    with pytest.raises(ForbiddenError):
        await access.pairing.approve(code, UserRef("home", "ada"), "user")
    with pytest.raises(NotFoundError):
        await access.pairing.approve(code, UserRef("away", "chief"), "admin")
    assert role_of(access, "home") is None
    member = await access.pairing.approve(code, UserRef("home", "root"), "admin")
    assert (member.role, member.approved_by, role_of(access, "home")) == ("user", "home:root", "user")
    assert role_of(access, "away") is None


async def test_the_owner_may_make_admins(access: Access) -> None:
    await access.pairing.approve(await code_for(access), THE_OWNER, "admin", "admin")
    assert role_of(access, "home") == "admin"


async def test_who_is_let_out_is_a_stranger_at_once_and_permanently(access: Access, store: Store) -> None:
    await access.pairing.approve(await code_for(access), THE_OWNER, "admin")
    told: list[AccessRevoked] = []
    access.events.subscribe(AccessRevoked, told.append)
    await access.revoke(UserRef("home", "666"), THE_OWNER)
    assert (role_of(access, "home"), told) == (None, [AccessRevoked("home", "666")])
    again = Access(store, {"home": ChannelRules()}.get, ChannelRegistry())
    await again.load()
    assert (role_of(again, "home"), again.members.list()) == (None, [])
    with pytest.raises(NotFoundError, match="users allowed in the settings are removed there"):
        await access.revoke(UserRef("home", "666"), THE_OWNER)


async def test_members_and_those_who_wait_are_listed_the_latest_first(access: Access, clock: Clock) -> None:
    for user in ("1", "2", "3", "4"):
        code = await code_for(access, Sender(user, f"name {user}"))
        if user in "13":
            await access.pairing.approve(code, THE_OWNER, "admin")
        clock.minutes(1)
    assert [(m.user_id, m.name) for m in access.members.list()] == [("3", "name 3"), ("1", "name 1")]
    assert [(c.user_id, c.name) for c in await access.pairing.waiting()] == [("4", "name 4"), ("2", "name 2")]


async def test_names_are_cut_to_a_length_and_hold_what_a_database_can_hold(access: Access) -> None:
    await code_for(access, Sender("1", "\0\ud800" + "x" * 10_000))
    [code] = await access.pairing.waiting()
    assert code.name == "\ufffd\ufffd" + "x" * 78


async def test_every_grant_has_a_row_in_the_audit(access: Access, store: Store) -> None:
    await access.pairing.approve(await code_for(access), THE_OWNER, "admin", "admin")
    await access.revoke(UserRef("home", "666"), THE_OWNER)
    a = t.audit.c
    query = select(a.actor, a.action, a.subject, a.detail).order_by(a.id)
    assert await store.read(lambda c: [tuple(row) for row in c.execute(query)]) == [
        ("owner", "pair.approve", "home:666", "role admin"),
        ("owner", "pair.revoke", "home:666", "role admin"),
    ]
