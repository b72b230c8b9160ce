"""Checks of the trail of every message against the database and the platforms."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from chat_platform import Rooms
from client import Client
from model import WORD, pieces
from record import Record
from verdict import Verdict

from gateway.trail import Path, Step


def check_trails(
    verdict: Verdict,
    record: Record,
    clients: Sequence[Client],
    rooms: Mapping[str, Rooms],
    asked: Collection[str],
) -> None:
    """Compare the path of each message with its rows, and with what clients, platforms and the model saw.

    ``asked`` are the words about which the model was asked.
    """
    answered = {message.id for message in record.messages()}
    pages: dict[str, list[Mapping[str, Any]]] = {}
    for row in record.outbox:
        pages.setdefault(row["inbox_id"], []).append(row)
    for row in record.inbox:
        # The trail of a message that its sender deleted goes with it, also in the middle of its turn.
        if row["interrupted"] == "withdrawn" or not row["session"]:
            continue
        path = record.paths[row["id"]]
        found = _differences(row, path, pages.get(row["id"], []), row["answer_id"] in answered)
        for what in (*found, *_unlike_calls(record, row, path, asked)):
            verdict.add("wrong", f"the trail of {row['id']} ({row['dedup_key']}) {what}: {_short(path)}")
    _check_acknowledged(verdict, record, clients)
    _check_placed(verdict, record, rooms)


def _check_acknowledged(verdict: Verdict, record: Record, clients: Sequence[Client]) -> None:
    """Check that each message with an acknowledgement has a path that begins with its acceptance."""
    for client in clients:
        for sent in client.sent:
            path = record.paths.get(sent.message_id or "")
            if sent.message_id and (path is None or "accepted" not in {step.kind for step in path.steps}):
                verdict.add("wrong", f"{sent.word} was acknowledged, and no trail has {sent.message_id}")


def _check_placed(verdict: Verdict, record: Record, rooms: Mapping[str, Rooms]) -> None:
    """Check that each part of an answer on a platform is a placement in some trail."""
    withdrawn = {row["id"] for row in record.inbox if row["interrupted"] == "withdrawn"}
    placed = {str(page["platform_id"]) for page in record.outbox if page["inbox_id"] in withdrawn}
    for path in record.paths.values():
        placed |= {str(step.detail.get("platform_id", "")) for step in path.steps if step.kind == "placement"}
    # A channel's ids may have the room before the platform's own.
    placed |= {platform_id.rpartition(":")[2] for platform_id in placed}
    for platform, spoken in rooms.items():
        for room, messages in spoken.items():
            for message in messages:
                own = message.id.rpartition(":")[2]
                if pieces(message.text) and not message.unfinished and own not in placed:
                    verdict.add("wrong", f"{platform} {room} has {message.id}, and no trail has placed it")


def _unlike_calls(record: Record, row: Mapping[str, Any], path: Path, asked: Collection[str]) -> list[str]:
    """Compare the calls of the model in a path with those that the model saw."""
    merged = [other for other in record.inbox if other["merged_into"] == row["id"]]
    words = {word for one in (row, *merged) for word in WORD.findall(one["payload"])}
    called = any(step.kind == "model" for step in path.steps)
    cut = any(step.kind == "restart" and step.state in ("unrecorded", "waiting") for step in path.steps)
    # A process that finds a newer edit beside a message after a kill does not begin that message again.
    cut |= any(step.kind == "superseded" for step in path.steps)
    # A call that failed may not have reached the model.
    succeeded = any((step.kind, step.state) == ("model", "ok") for step in path.steps)
    if succeeded and not words.intersection(asked):
        return ["shows a call of the model, which was not asked"]
    # If several messages share a word, the call may have been for another one.
    alone = not merged and all(len(record.rows(word)) == 1 for word in words)
    if alone and words.intersection(asked) and _ends(path.steps) and not (called or cut):
        return ["shows no call of the model, which was asked"]
    return []


def _differences(
    row: Mapping[str, Any], path: Path, pages: list[Mapping[str, Any]], has_answer: bool
) -> list[str]:
    steps, found = path.steps, list[str]()
    accepted = [step.detail.get("session") for step in steps if step.kind == "accepted"]
    if accepted != [row["session"]]:
        found.append("does not show where it was accepted")
    if row["state"] == "merged":
        into = [step.detail.get("into", step.detail.get("by")) for step in steps]
        if row["merged_into"] not in into:
            found.append("does not name the message that answered it")
    attempts = [step.detail["attempt"] for step in steps if step.kind == "restart" and step.state == "ok"]
    # The first attempt is counted by accepting, every other one by its claim, which commits the step.
    if row["attempts"] > 1 and attempts[-1:] != [row["attempts"]]:
        found.append(f"shows the attempts {attempts}, and there were {row['attempts']}")
    if row["state"] in ("done", "dead") and has_answer and not _ends(steps):
        found.append("does not end, and its answer is settled")
    placed = {
        (step.detail.get("nonce"), step.detail.get("platform_id"))
        for step in steps
        if step.kind == "placement" and step.state == "ok"
    }
    found += [
        f"does not show the page {page['part']} that was placed as {page['platform_id']}"
        for page in pages
        if page["state"] == "final" and (page["nonce"], page["platform_id"]) not in placed
    ]
    return found


def _ends(steps: tuple[Step, ...]) -> bool:
    """Return whether the last step of a path is the outcome, but for a revision that came later."""
    kinds = [step.kind for step in steps if step.kind not in ("merged", "superseded")]
    return kinds[-1] == "final"


def _short(path: Path) -> str:
    return " ".join(f"{step.kind}={step.state}" for step in path.steps)
