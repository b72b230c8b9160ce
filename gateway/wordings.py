"""Wordings: people change what they wrote, and of all wordings of a message the last one counts.

What is not answered yet is answered in its last wording alone. A wording that comes after the answer is
answered anew where that was the last word, and else it is only kept.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.inbox import Entry, Inbox
from gateway.session import Session


def replace_older(waiting: Iterable[Entry]) -> list[Entry]:
    """Let the newest wording of each message stand for the older ones, which are returned.

    What is answered already, or together with others, stays as it is.
    """
    wordings: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in waiting:
        if not (entry.answered or entry.merged):
            inbound = entry.inbound
            name = (entry.channel, inbound.address.account, inbound.original)
            wordings.setdefault(name, []).append(entry)
    replaced: list[Entry] = []
    for several in wordings.values():
        *older, newest = sorted(several, key=lambda entry: (entry.ord, entry.seq))
        for entry in older:
            entry.silent, entry.replaced_by = True, newest.id
        replaced += older
    return replaced


async def takes_place(inbox: Inbox, session: Session, entry: Entry) -> bool:
    """Whether a message is to be answered: always, but for a wording that comes too late or says the same.

    What it takes the place of is not shown to the model any more.
    """
    inbound = entry.inbound
    if inbound.revises is None:
        return True
    before = await inbox.wording(entry.channel, inbound.address.account, inbound.revises)
    if before is None or before.id == entry.id or not before.answered:
        return True
    is_last_word = session.last_word == before.id and before.inbound.original == inbound.revises
    if not is_last_word or before.ord > entry.ord or _is_same(before, entry):
        return False
    await session.hide((before.id, before.answer_id), [before.replace_by(entry.id)])
    return True


def _is_same(one: Entry, other: Entry) -> bool:
    return (one.inbound.text, one.inbound.parts) == (other.inbound.text, other.inbound.parts)
