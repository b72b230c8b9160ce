"""Revisions: users edit their messages, and only the newest revision of a message counts.

Of the revisions that are not answered yet, only the newest is answered. A revision that arrives after the
answer is answered again if the message was the user's last one in the session; otherwise it is only stored.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.session import Session
from gateway.store.inbox import Entry, Inbox


def supersede_older(waiting: Iterable[Entry]) -> list[Entry]:
    """Let the newest revision of each message replace the older ones, which are returned.

    Entries that are answered, or merged with others, are not replaced.
    """
    revisions: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in waiting:
        if not (entry.answered or entry.merged or entry.refused):
            inbound = entry.inbound
            name = (entry.channel, inbound.address.account, inbound.original)
            revisions.setdefault(name, []).append(entry)
    replaced: list[Entry] = []
    for several in revisions.values():
        # Not by time of arrival: platforms repeat and reorder events after a reconnect.
        *older, newest = sorted(several, key=lambda entry: (entry.inbound.order, entry.seq))
        for entry in older:
            entry.silent, entry.replaced_by = True, newest.id
        replaced += older
    return replaced


async def should_answer(inbox: Inbox, session: Session, entry: Entry) -> bool:
    """Return False for an edit that is outdated, unchanged or of a deleted message, or older than the inbox.

    An edit that is answered hides the original and its answer from the model.
    """
    inbound = entry.inbound
    if inbound.revises is None:
        return True
    before = await inbox.find_current(entry.channel, inbound.address.account, inbound.revises)
    if before is None:
        # Retention removes settled rows: an original that old may have been answered, so its edit is ignored.
        return not inbox.may_have_expired(inbound.sent_at)
    if before.interrupted == "withdrawn":
        return False
    if before.id == entry.id or not before.answered:
        return True
    # Answering an edit further up in the conversation would contradict what was said since.
    # Not by the message: the model may not have got it, such as a misspelled command, and plugins may have
    # added their own messages to its turn.
    is_last_word = session.is_last_answer(before.answer_id) and before.inbound.original == inbound.revises
    if not is_last_word or before.inbound.order > inbound.order or _is_same(before, entry):
        return False
    await session.exclude_messages((before.id, before.answer_id), [before.replace_by(entry.id)])
    return True


def _is_same(one: Entry, other: Entry) -> bool:
    # Platforms also send an edit when only a link preview was added.
    return (one.inbound.text, one.inbound.parts) == (other.inbound.text, other.inbound.parts)
