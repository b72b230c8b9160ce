"""The trail of every message against what the database and the platforms hold: it tells what happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from record import Record
from verdict import Verdict

from gateway.trail import Path, Step


def check_trails(verdict: Verdict, record: Record) -> None:
    """Compare the path of each message with its rows: accepted, attempts, placements and outcome."""
    answered = {message.id for message in record.messages()}
    pages: dict[str, list[Mapping[str, Any]]] = {}
    for row in record.outbox:
        pages.setdefault(row["inbox_id"], []).append(row)
    for row in record.inbox:
        # The trail of a message that its sender deleted goes with it, also in the middle of its turn.
        if row["interrupted"] == "withdrawn" or not row["session"]:
            continue
        path = record.paths[row["id"]]
        for what in _differences(row, path, pages.get(row["id"], []), row["answer_id"] in answered):
            verdict.add("wrong", f"the trail of {row['id']} ({row['dedup_key']}) {what}: {_short(path)}")


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
