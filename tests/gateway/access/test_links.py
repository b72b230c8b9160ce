"""Users of different channels who say that they are one person."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway import NotFoundError
from gateway.access import THE_OWNER, Access, UserRef
from gateway.contract.errors import InvalidStateError
from gateway.extensions.registry import ChannelRegistry
from gateway.store import Store
from tests.gateway.access.conftest import Clock
from tests.gateway.access.rooms import audited, code_in, guarded

ADA, LOVELACE, BYRON = UserRef("home", "ada"), UserRef("away", "lovelace"), UserRef("away", "byron")


@pytest.fixture
async def access(store: Store, clock: Clock) -> Access:
    """Access, on each kind of database."""
    return Access(store, lambda _channel: None, ChannelRegistry(), clock)


async def link(access: Access, one: UserRef, other: UserRef) -> None:
    code = await access.links.begin(one)
    assert code is not None
    assert await access.links.finish(code.code, other) == one


async def test_a_code_of_one_channel_typed_on_another_links_both(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        told = await platforms.room("1").ask("ada", "/link")
        assert "on the other channel, within ten minutes" in told
        said = await platforms.room("1", "away").ask("lovelace", f"/link {code_in(told)}")
        assert said == "Linked with `home:ada`."
        assert await chat.gateway.parts.access.links.same(LOVELACE) == {ADA}
        assert await audited(chat) == [("away:lovelace", "link", "home:ada")]
        assert chat.model.calls == []


async def test_the_owner_can_be_linked_from_the_web(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        code = code_in((await chat.say("/link", user="owner", role="admin")).text)
        assert "`owner`" in await platforms.room("1").ask("ada", f"/link {code}")
        assert await chat.gateway.parts.access.links.same(THE_OWNER) == {ADA}


async def test_a_link_gives_no_rights(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, platforms):
        code = code_in(await platforms.room("1").ask("root", "/link"))
        room = platforms.room("1", "away")
        await room.ask("lovelace", f"/link {code}")
        assert await room.ask("lovelace", "/pair 34679CDF") == "/pair is for admins."


async def test_a_stranger_cannot_link(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        code = code_in(await platforms.room("1").ask("ada", "/link"))
        assert "You are not authorised" in await platforms.room("1", "away").ask("eve", f"/link {code}")
        assert await chat.gateway.parts.access.links.same(ADA) == set()


async def test_no_code_is_shown_where_others_read_it(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (_, platforms):
        group = platforms.room("g", group=True)
        assert (
            await group.ask("ada", "/link")
            == "Link accounts in a private chat: other users can read this one."
        )
        assert (await group.ask("ada", "/link 34679CDF")).startswith("Link accounts in a private chat")


async def test_one_s_own_code_is_for_elsewhere(access: Access) -> None:
    code = await access.links.begin(ADA)
    assert code is not None
    with pytest.raises(InvalidStateError, match="another channel"):
        await access.links.finish(code.code, ADA)
    await access.links.finish(code.code, LOVELACE)


async def test_a_code_links_one_account_and_no_second(access: Access) -> None:
    code = await access.links.begin(ADA)
    assert code is not None
    both = [access.links.finish(code.code, who) for who in (LOVELACE, BYRON)]
    done = await asyncio.gather(*both, return_exceptions=True)
    assert sum(isinstance(outcome, NotFoundError) for outcome in done) == 1
    assert len(await access.links.same(ADA)) == 1


async def test_a_code_is_old_after_ten_minutes(access: Access, clock: Clock) -> None:
    code = await access.links.begin(ADA)
    assert code is not None
    clock.minutes(10)
    with pytest.raises(NotFoundError):
        await access.links.finish(code.code, LOVELACE)


async def test_links_of_links_are_one_person(access: Access) -> None:
    await link(access, ADA, LOVELACE)
    await link(access, BYRON, THE_OWNER)
    assert await access.links.same(ADA) == {LOVELACE}
    await link(access, LOVELACE, BYRON)
    everyone = {ADA, LOVELACE, BYRON, THE_OWNER}
    for who in everyone:
        assert await access.links.same(who) == everyone - {who}


async def test_a_link_can_be_undone(tmp_path: Path) -> None:
    async with guarded(tmp_path) as (chat, platforms):
        await link(chat.gateway.parts.access, ADA, LOVELACE)
        room = platforms.room("1")
        assert await room.ask("ada", "/link off") == "Your account is no longer linked."
        assert await room.ask("ada", "/link off") == "Your account is not linked."
        assert await chat.gateway.parts.access.links.same(LOVELACE) == set()


async def test_ten_codes_an_hour_are_enough(access: Access) -> None:
    for _ in range(10):
        await link(access, ADA, LOVELACE)
    assert await access.links.begin(ADA) is None
