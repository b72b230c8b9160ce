"""Rooms for the console: the chats that channels have seen, with their settings, conversations and cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct, structs
from sqlalchemy import Connection, func, select

from gateway.access import Access
from gateway.access.rooms import SeenRoom
from gateway.contract.errors import NotFoundError
from gateway.contract.messages import now_ms
from gateway.extensions.registry import ChannelRegistry
from gateway.models import MAIN, Agents
from gateway.models.ledger import PLACES, in_chat, to_usd
from gateway.server.console.setting_values import SettingInfo, SettingReading, SettingValues
from gateway.server.plugins.configuration import in_thread
from gateway.server.routes import Call, Nothing, PlainCall, Route
from gateway.settings import Settings
from gateway.settings.channels import ChannelRules, RoomsSettings
from gateway.settings.entries import KeyPath
from gateway.store import Store
from gateway.store import schema as t

DAYS = 30
"""Period of the costs, up to now."""
_DAY_MS = 86_400_000
_MOST_CONVERSATIONS = 20
_Id = Annotated[str, Meta(min_length=1, max_length=500)]


class ConsoleRoom(Struct, frozen=True):
    """A chat. ``state`` is on, off (its messages are ignored), unseen (it is only in the settings), or gone.

    A chat is gone if the gateway has no such channel any more. ``allow`` is the number of listed users who
    may write, null if everyone may; paired users may, too. ``seen_at`` is in milliseconds, null if unseen.
    ``usd`` is the cost of the last 30 days; calls without a known price (``unpriced``) do not count in it.
    """

    channel: str
    account: str
    chat: str
    name: str
    kind: Literal["group", "private"]
    state: Literal["on", "off", "unseen", "gone"]
    agent: str
    groups: Literal["command", "reply", "mention", "always"]
    allow: int | None
    seen_at: int | None
    calls: int
    usd: float
    unpriced: int


class RoomTable(Struct, frozen=True):
    """A channel, or an account of one, with its table in the settings."""

    channel: str
    path: list[str]


class ConsoleRooms(Struct, frozen=True):
    """The chats, the latest first; then those that only the settings name.

    ``tables`` are the channels whose rooms the console makes.
    """

    rooms: list[ConsoleRoom]
    tables: list[RoomTable]


class RoomQuery(Struct, frozen=True):
    """A chat of a channel, by its id in the settings."""

    channel: _Id
    chat: _Id


class RoomConversation(Struct, frozen=True):
    """A conversation of a chat, with its cost of the last 30 days. Times are in milliseconds."""

    session: str
    title: str
    updated_at: int
    usd: float


class RoomSettingList(Struct, frozen=True):
    """The settings in effect in a chat, and its latest conversations, 20 at most.

    ``texts`` are the settings with prompts and ids of users. ``fixed`` says why none of them can be changed:
    "file" (they are not from a TOML file), "channel" (the settings have no table of the channel) or
    "no-rooms" (the channel has none); it is empty if they can.
    """

    settings: list[SettingInfo]
    texts: list[SettingInfo]
    conversations: list[RoomConversation]
    fixed: Literal["", "file", "channel", "no-rooms"]


class _Spent(NamedTuple):
    calls: int = 0
    usd: float = 0.0
    unpriced: int = 0


class RoomRoutes:
    """The routes of the screen Rooms."""

    def __init__(
        self, access: Access, store: Store, channels: ChannelRegistry, agents: Agents, values: SettingValues
    ) -> None:
        self._access = access
        self._store = store
        self._channels = channels
        self._agents = agents
        self._values = values

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(
                "GET",
                "/api/console/rooms",
                "listConsoleRooms",
                "List the chats with agent, rules, last activity and cost.",
                self._list,
                role="viewer",
            ),
            Route(
                "GET",
                "/api/console/room",
                "showConsoleRoom",
                "Show the settings of a chat with their sources, and its conversations.",
                self._show,
                role="viewer",
                hides=("texts", "settings.source", "conversations.title"),
                errors=(NotFoundError,),
            ),
        ]

    async def _list(self, _call: PlainCall) -> ConsoleRooms:
        seen, spent = await self._access.seen_rooms.list(), await self._spent()
        # In a thread: there may be 10,000 rooms, and the rules of an account are merged at each look.
        rooms = await asyncio.to_thread(lambda: [*self._rooms(seen, spent)])
        tables = [
            RoomTable(name, [*path]) for name, path in _tables(self._values.started) if not self._fixed(name)
        ]
        return ConsoleRooms(rooms, tables)

    def _rooms(
        self, seen: list[SeenRoom], spent: Mapping[tuple[str, str, str], _Spent]
    ) -> Iterator[ConsoleRoom]:
        settings, policy = self._values.started, self._access.policy
        rules: dict[str, ChannelRules] = {}
        usual: dict[tuple[str, bool], ConsoleRoom] = {}
        for each in seen:
            known = rules.get(each.channel)
            if known is None:
                known = rules[each.channel] = policy.rules(each.channel)
            own = each.chat in known.rooms.named
            like = None if own else usual.get((each.channel, each.group))
            if like is None:
                like = self._room(each, known)
                if not own:
                    usual[each.channel, each.group] = like
            cost = spent.get((each.channel, each.account, each.chat), _Spent())
            yield structs.replace(
                like,
                account=each.account,
                chat=each.chat,
                name=each.title,
                seen_at=each.seen_at,
                **cost._asdict(),
            )
        there = {(each.channel, each.chat) for each in seen}
        for channel, chat in _named(settings):
            if (channel, chat) not in there:
                new = SeenRoom(channel, "", chat, "", group=True, seen_at=0)
                room = self._room(new, policy.rules(channel))
                state = room.state if room.state == "gone" else "unseen"
                yield structs.replace(room, state=state, seen_at=None)

    def _room(self, seen: SeenRoom, rules: ChannelRules) -> ConsoleRoom:
        room = self._access.policy.rooms.room(seen.channel, seen.chat, seen.group)
        allow = rules.allow if room.allow is None else room.allow
        gone = self._channels.get(seen.channel) is None
        return ConsoleRoom(
            channel=seen.channel,
            account=seen.account,
            chat=seen.chat,
            name=seen.title,
            kind="group" if seen.group else "private",
            state="gone" if gone else "on" if room.enabled else "off",
            agent=self._agents.choose(None, seen.channel, seen.chat),
            groups=room.groups,
            allow=None if "*" in allow else len(allow),
            seen_at=seen.seen_at,
            **_Spent()._asdict(),
        )

    async def _spent(self) -> Mapping[tuple[str, str, str], _Spent]:
        """Return what the conversations of each chat cost."""
        s, m = t.spend.c, t.sessions.c
        sums = func.count(), func.coalesce(func.sum(s.nano_usd), 0), func.count(s.nano_usd)
        query = (
            select(m.channel, m.address, *sums)
            .join_from(t.spend, t.sessions, s.session == m.id)
            .where(s.at >= now_ms() - DAYS * _DAY_MS)
            .group_by(m.channel, m.address)
        )

        def read(connection: Connection) -> dict[tuple[str, str, str], _Spent]:
            found: dict[tuple[str, str, str], _Spent] = {}
            for channel, written, calls, nano, priced in connection.execute(query):
                address = PLACES.decode(written)
                key = (channel, address.account, address.chat)
                before = found.get(key, _Spent())
                found[key] = _Spent(
                    before.calls + calls,
                    before.usd + float(to_usd(int(nano))),
                    before.unpriced + calls - priced,
                )
            return found

        return await self._store.read(read)

    async def _show(self, call: Call[Nothing, RoomQuery, Nothing, None]) -> RoomSettingList:
        channel, chat = call.query.channel, call.query.chat
        group = await self._is_group(channel, chat)
        conversations = await self._conversations(channel, chat)
        fixed = self._fixed(channel)
        settings, texts = await in_thread(lambda: self._settings(channel, chat, group))
        return RoomSettingList(settings, texts, conversations, fixed)

    async def _is_group(self, channel: str, chat: str) -> bool:
        """Return whether several people write in a chat. Raises NotFoundError for an unknown one."""
        c = t.room.c
        query = (
            select(c.group).where(c.channel == channel, c.chat == chat).order_by(c.seen_at.desc()).limit(1)
        )
        found = await self._store.read(lambda connection: connection.execute(query).scalar())
        if found is None and (channel, chat) not in _named(self._values.started):
            raise NotFoundError(f"no message of the chat {chat!r} of {channel!r} was seen")
        return found is None or bool(found)

    def _fixed(self, channel: str) -> Literal["", "file", "channel", "no-rooms"]:
        started = self._values.started
        if getattr(self._channels.get(channel), "follows_session", False):
            return "no-rooms"
        if _table(started, channel) is None:
            return "channel"
        return "" if started.origin.reread is not None and started.file.suffix == ".toml" else "file"

    def _settings(self, channel: str, chat: str, group: bool) -> tuple[list[SettingInfo], list[SettingInfo]]:
        reading = self._values.read()
        table = _table(reading.now, channel) or ("channels", channel)
        shared: tuple[KeyPath, ...] = tuple(dict.fromkeys((table, table[:2])))
        room = (*_home(reading.now, table, chat), "rooms", chat)

        def one(key: str, *, own: bool = False, choices: tuple[str, ...] = ()) -> SettingInfo:
            broader = () if own else tuple((*each, key) for each in shared)
            return reading.one((*room, key), *broader, choices=choices)

        agent = one("agent", choices=tuple(self._agents.all))
        if agent.value is None:
            agent = structs.replace(agent, value=MAIN, running=agent.running or MAIN, inherited=True)
        settings = [
            self._enabled(reading, (*room, "enabled"), shared, group),
            agent,
            *([one("groups"), one("envelope"), one("context_messages")] if group else []),
            one("tools", own=True),
        ]
        return settings, [one("allow"), one("system_prompt", own=True)]

    @staticmethod
    def _enabled(
        reading: SettingReading, path: KeyPath, shared: tuple[KeyPath, ...], group: bool
    ) -> SettingInfo:
        """Return whether the bot takes part: by the room's own table, or the rule for rooms without one."""
        found = reading.one(path)
        if path[-2] in _rooms(reading.now, path[:-3]) or not group:
            return structs.replace(found, value=found.value is not False, running=found.running is not False)
        said = (each for each in shared if "default" in _rooms_of(reading.now, each).model_fields_set)
        rule = reading.one((*next(said, shared[-1]), "rooms", "default"))
        return structs.replace(
            found,
            value=rule.value != "deny",
            running=found.running if found.running is not None else rule.running != "deny",
            source=rule.source,
            layer=rule.layer,
            inherited=True,
        )

    async def _conversations(self, channel: str, chat: str) -> list[RoomConversation]:
        m, s = t.sessions.c, t.spend.c
        query = (
            select(m.id, m.title, m.updated_at, m.address)
            .where(m.channel == channel, m.root.is_(None), in_chat(chat))
            .order_by(m.updated_at.desc(), m.id)
            .limit(_MOST_CONVERSATIONS)
        )
        since = now_ms() - DAYS * _DAY_MS

        def read(connection: Connection) -> list[RoomConversation]:
            rows = [row for row in connection.execute(query) if PLACES.decode(row.address).chat == chat]
            sums = select(s.session, func.coalesce(func.sum(s.nano_usd), 0)).group_by(s.session)
            sums = sums.where(s.session.in_([row.id for row in rows]), s.at >= since)
            cost = {session: float(to_usd(int(nano))) for session, nano in connection.execute(sums)}
            return [
                RoomConversation(row.id, row.title, row.updated_at, cost.get(row.id, 0.0)) for row in rows
            ]

        return await self._store.read(read)


def _table(settings: Settings, channel: str) -> KeyPath | None:
    """Return the path of a channel's or an account's table in the settings, or None."""
    if channel in settings.channels:
        return ("channels", channel)
    name, _, account = channel.partition(".")
    found = settings.channels.get(name)
    if found is None or account not in found.accounts:
        return None
    return ("channels", name, "accounts", account)


def _tables(settings: Settings) -> Iterator[tuple[str, KeyPath]]:
    """Yield the channels and accounts of the settings with their tables."""
    for name, channel in settings.channels.items():
        if not channel.accounts:
            yield name, ("channels", name)
        for account in channel.accounts:
            yield f"{name}.{account}", ("channels", name, "accounts", account)


def _home(settings: Settings, table: KeyPath, chat: str) -> KeyPath:
    """Return the table whose ``rooms`` has a room: of an account's channel, if that alone names it.

    A table of the account would replace the whole room of the channel.
    """
    channel = table[:2]
    if table != channel and chat in _rooms(settings, channel) and chat not in _rooms(settings, table):
        return channel
    return table


def _rooms(settings: Settings, table: KeyPath) -> Mapping[str, object]:
    """Return the rooms that a table names."""
    return _rooms_of(settings, table).named


def _rooms_of(settings: Settings, table: KeyPath) -> RoomsSettings:
    """Return the rooms of the table of a channel or an account."""
    found = settings.channels.get(table[1]) if len(table) > 1 else None
    if found is None:
        return RoomsSettings()
    return found.accounts[table[3]].rooms if len(table) == 4 else found.rooms


def _named(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the rooms that the settings name, as channel and chat."""
    for name, channel in settings.channels.items():
        if not channel.accounts:
            yield from ((name, chat) for chat in channel.rooms.named)
        for account, own in channel.accounts.items():
            chats = {**channel.rooms.named, **own.rooms.named}
            yield from ((f"{name}.{account}", chat) for chat in chats)
