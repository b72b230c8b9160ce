"""Needs of a person: questions, pairing codes, failing parts, rejected keys, budgets, dead letters, disk.

Each has its cause, since when, what it causes, and one action. Counts and times come from the database every
few seconds while there are readers; all else is in memory.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection, func, select

from gateway.access.questions import Held
from gateway.app import Gateway
from gateway.contract.messages import now_ms
from gateway.models import format_usd
from gateway.models.report import BudgetState, budget_state
from gateway.server.now.shapes import (
    Asked,
    ChannelNow,
    Headline,
    Need,
    NeedAction,
    NeedKind,
    ProviderNow,
)
from gateway.store import schema as t

_NEAR = Decimal("0.9")
"""Share of a budget's limit from which it needs a person."""
_BUDGET_SECONDS = 30.0
_LEAST_FREE, _LITTLE_FREE, _LITTLE_SHARE = 1 << 30, 10 << 30, 0.05
"""Free bytes below which a disk is nearly full: always, or if that is also little of it."""


class StoredState(Struct, frozen=True):
    """State of the database and the disk: counts, and times in milliseconds (None without any)."""

    dead_letters: int = 0
    oldest_dead: int | None = None
    oldest_message: int | None = None
    sending: int = 0
    oldest_sending: int | None = None
    pairings: int = 0
    oldest_pairing: int | None = None
    budgets: tuple[BudgetState, ...] = ()
    free_bytes: int = 0
    disk_bytes: int = 0


class StoredReader:
    """Reader of the stored state, for the observer."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._budgets: tuple[BudgetState, ...] = ()
        self._budgets_at = -_BUDGET_SECONDS

    async def read(self) -> StoredState:
        """Read the state. Raises StoreError."""
        parts, loop = self._gateway.parts, asyncio.get_running_loop()
        if loop.time() - self._budgets_at >= _BUDGET_SECONDS:
            self._budgets_at = loop.time()
            spending, now = parts.spending, now_ms()
            self._budgets = tuple(
                [await budget_state(spending.ledger, each, now) for each in spending.budgets.all]
            )
        counts = await parts.store.read(_counts)
        codes = await parts.access.pairing.waiting()
        disk = await asyncio.to_thread(_disk_usage, self._gateway.settings.data_dir)
        return StoredState(
            *counts,
            pairings=len(codes),
            oldest_pairing=min((code.created_at for code in codes), default=None),
            budgets=self._budgets,
            free_bytes=disk[0],
            disk_bytes=disk[1],
        )


def _counts(connection: Connection) -> tuple[int, int | None, int | None, int, int | None]:
    dead, events, box = t.dead_letter.c, t.quarantine.c, t.inbox
    letters = [
        connection.execute(select(func.count(), func.min(at)).select_from(table)).one()
        for table, at in ((t.dead_letter, dead.at), (t.quarantine, events.at))
    ]
    is_open = box.c.state == "new"
    received = connection.execute(select(func.min(box.c.received_at)).where(is_open)).scalar()
    unfinished = t.outbox.c.state.in_(("intent", "placed", "unfit"))
    joined = box.join(t.outbox, t.outbox.c.inbox_id == box.c.id)
    sent = select(func.count(), func.min(t.outbox.c.sent_at)).select_from(joined).where(is_open, unfinished)
    sending, since = connection.execute(sent).one()
    oldest = min((at for _, at in letters if at is not None), default=None)
    return sum(count for count, _ in letters), oldest, received, sending, since


def _disk_usage(folder: Path) -> tuple[int, int]:
    """Return the free bytes and the size of the file system of a folder; zeros if it cannot be read."""
    try:
        used = shutil.disk_usage(folder)
    except OSError:
        return 0, 0
    return used.free, used.total


class Needs:
    """The list of what needs a person now. ``since`` of a part is when it was first seen to fail."""

    def __init__(self) -> None:
        self._since: dict[tuple[NeedKind, str], int] = {}

    def find(
        self,
        asked: Sequence[Held],
        channels: Sequence[ChannelNow],
        rejected: Sequence[tuple[ProviderNow, int]],
        parts: Mapping[str, tuple[bool, str]],
        stored: StoredState,
        now: int,
    ) -> list[Need]:
        """Return what needs a person, what stops answers first."""
        found = [
            *(_of_store(detail) for ok, detail in [parts.get("store", (True, ""))] if not ok),
            *(_of_provider(provider, calls) for provider, calls in rejected),
            *(_of_channel(channel) for channel in channels if not channel.ok),
            *_of_questions(asked, now),
            *_of_pairings(stored),
            *(need for budget in stored.budgets for need in _of_budget(budget)),
            *_of_dead_letters(stored),
            *_of_disk(stored),
            *(_of_plugin(name, detail) for name, (ok, detail) in parts.items() if not ok),
        ]
        needs = [need for need in found if need is not None]
        self._since = {
            (need.kind, need.name): need.since or self._since.get((need.kind, need.name), now)
            for need in needs
        }
        return [replace(need, since=self._since[need.kind, need.name]) for need in needs]


def headline_of(needs: Sequence[Need]) -> Headline:
    """Return the sentence that counts the problems."""
    count = len(needs)
    if not count:
        return Headline(0, "Nothing needs you. Everything works.")
    things = "1 thing needs" if count == 1 else f"{count} things need"
    return Headline(count, f"{things} you. Everything else works.")


def asked_of(asked: Sequence[Held], stored: StoredState) -> Asked:
    """Return the figures of what waits for an answer."""
    questions = [held.question for held in asked]
    return Asked(
        len(questions),
        stored.pairings,
        min((one.created_at for one in questions), default=None),
    )


def _open(label: str, target: str, command: str = "") -> NeedAction:
    return NeedAction("open", label, target, command)


def _of_store(detail: str) -> Need:
    return Need(
        "store",
        "store",
        1,
        0,
        "The database is slow",
        detail,
        "messages are acknowledged late, and the gateway stops if it does not recover",
        _open("See the settings", "/console/settings", "trunkline doctor"),
    )


def _of_provider(provider: ProviderNow, calls: int) -> Need:
    some = provider.circuit != "rejected"
    keys = f"{provider.refused_keys} of {provider.keys} keys" if some else "the key"
    refused = "1 call was refused" if calls == 1 else f"{calls} calls were refused"
    return Need(
        "provider",
        provider.name,
        max(1, provider.refused_keys),
        provider.since,
        f"{provider.name} rejects {keys}",
        provider.text,
        "the other keys are used" if some else f"{refused}; answers come from other models, or not at all",
        NeedAction(
            "replace_key",
            "Replace the key",
            f"/console/models/{provider.id}",
            f"trunkline auth login {provider.id}",
        ),
    )


def _of_channel(channel: ChannelNow) -> Need:
    name = channel.id.partition(".")[0]
    return Need(
        "channel",
        channel.id,
        1,
        channel.since,
        f"{channel.id} does not work",
        channel.detail,
        "its messages are not received until it is connected again",
        _open("See the channel", f"/console/settings?section=channels.{name}", "trunkline channels status"),
    )


def _of_questions(asked: Sequence[Held], now: int) -> list[Need]:
    if not asked:
        return []
    questions, count = [held.question for held in asked], len(asked)
    left = max(0, min(one.expires_at for one in questions) - now) // 60_000
    return [
        Need(
            "question",
            "",
            count,
            min(one.created_at for one in questions),
            "1 question waits for a person" if count == 1 else f"{count} questions wait for a person",
            "a tool, a budget or a plugin asks",
            f"the answers wait; the next question expires within {left + 1} min",
            _open("Answer them", "/console/waiting"),
        )
    ]


def _of_pairings(stored: StoredState) -> list[Need]:
    count = stored.pairings
    if not count:
        return []
    return [
        Need(
            "pairing",
            "",
            count,
            stored.oldest_pairing or 0,
            "1 person waits for access" if count == 1 else f"{count} people wait for access",
            "they wrote to the bot and got a pairing code",
            "they get no answers until then",
            _open("Decide", "/console/waiting", "trunkline pair list"),
        )
    ]


def _of_budget(budget: BudgetState) -> list[Need]:
    limits = [amount for amount in (budget.ask, budget.stop) if amount is not None]
    near = min((amount * _NEAR for amount in limits), default=None)
    low = budget.warn if near is None else near if budget.warn is None else min(near, budget.warn)
    over = [holder for holder in budget.holders if low is not None and holder.usd >= low]
    if not over:
        return []
    first = over[0]
    most = min((amount for amount in limits if amount > first.usd), default=max([*limits, low or Decimal(0)]))
    stopped = budget.stop is not None and first.usd >= budget.stop
    return [
        Need(
            "budget",
            budget.name,
            len(over),
            0,
            f"The budget {budget.name} is {'spent' if stopped else 'nearly spent'}",
            f"{format_usd(first.usd)} of {format_usd(most)} in {budget.period}",
            "calls are refused" if stopped else "calls will need an approval, or be refused",
            NeedAction(
                "raise_budget",
                "Raise it",
                f"/console/money?budget={budget.name}",
                "trunkline usage",
            ),
        )
    ]


def _of_dead_letters(stored: StoredState) -> list[Need]:
    count = stored.dead_letters
    if not count:
        return []
    return [
        Need(
            "dead_letter",
            "",
            count,
            stored.oldest_dead or 0,
            "1 message got no answer" if count == 1 else f"{count} messages got no answer",
            "each attempt failed, or the event could not be read",
            "their senders saw an error",
            _open("See them", "/console/dead", "trunkline dead list"),
        )
    ]


def _of_disk(stored: StoredState) -> list[Need]:
    free, whole = stored.free_bytes, stored.disk_bytes
    if not whole or (free >= _LEAST_FREE and (free >= _LITTLE_FREE or free >= whole * _LITTLE_SHARE)):
        return []
    return [
        Need(
            "disk",
            "data_dir",
            1,
            0,
            "The disk is nearly full",
            f"{free // (1 << 20):,} MB of {whole // (1 << 20):,} MB are free",
            "a full disk stops the intake of messages",
            _open("See the settings", "/console/settings", "trunkline doctor"),
        )
    ]


def _of_plugin(name: str, detail: str) -> Need | None:
    if not name.startswith("plugin "):
        return None
    plugin = name.removeprefix("plugin ")
    return Need(
        "plugin",
        plugin,
        1,
        0,
        f"The plugin {plugin} failed",
        detail,
        "its tools and hooks are missing",
        _open("See the plugin", f"/console/plugins/{plugin}", f"trunkline plugin info {plugin}"),
    )
