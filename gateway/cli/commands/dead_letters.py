"""``trunkline dead``: list, show, replay and drop messages that failed and events that were unreadable.

Uses the running gateway, which answers a replayed message at once; without one, changes the store, and the
next start answers. Several letters are replayed or dropped after a dry run, which lists them, and a question.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, urlencode

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from gateway.cli.gateway_or_store import GatewayOrStore
from gateway.cli.options import FAILED, REFUSED, AsJson, File, fail, not_empty, settings_from
from gateway.cli.output import echo_json, moment, plain, print_table
from gateway.contract.errors import InvalidStateError, NotFoundError
from gateway.settings import Settings
from gateway.store import Store
from gateway.store.writes import Op, audit_op
from gateway.why.dead_letters import DeadCause, DeadLetter, DeadLetters, LetterChoice
from gateway.why.replays import Action, ReplayPlan, ReplayState, planned
from gateway.why.words import ENGLISH

_PAGE = 1_000
_PAUSE = 0.2
_LEAST_WIDTH = 18
"""Columns of a terminal for each column of the list, which leave room for reasons and texts."""
_OWNER = "owner"
"""The name of who uses the store itself, in the audit log."""


class DeadLetterClient:
    """Client for dead letters. An error ends the command."""

    def __init__(self, settings: Settings) -> None:
        self._access = GatewayOrStore(settings)
        self.running = self._access.running

    def list(self, cause: str | None = None) -> list[DeadLetter]:
        """Return all dead letters, or those with a cause, newest first."""
        letters, more = list[DeadLetter](), True
        while more:
            page = self._read_page(letters[-1] if letters else None, cause)
            letters += page
            more = len(page) == _PAGE
        return letters

    def causes(self) -> list[DeadCause]:
        """Return the causes of dead letters."""
        if not self.running:
            return self._access.run_in_store(lambda store: DeadLetters(store).causes())
        return msgspec.convert(self._access.request("GET", "/api/dead/causes")["causes"], list[DeadCause])

    def get(self, letter_id: str) -> DeadLetter:
        """Return one with its whole text and its trace."""
        if not self.running:
            return self._access.run_in_store(lambda store: DeadLetters(store).get(letter_id))
        return msgspec.convert(self._access.request("GET", _path(letter_id)), DeadLetter)

    def replay(self, letter_id: str) -> None:
        """Process a message again."""
        audit = audit_op(_OWNER, "message.replay", letter_id)
        self._do("POST", f"{_path(letter_id)}/replay", lambda dead: dead.replay(letter_id, audit))

    def drop(self, letter_id: str) -> None:
        """Delete one."""
        audit = audit_op(_OWNER, "message.drop", letter_id)
        self._do("DELETE", _path(letter_id), lambda dead: dead.drop(letter_id, audit))

    def plan(self, choice: LetterChoice, action: Action, *, old: bool) -> ReplayPlan:
        """Return what an action would do to some letters."""
        if not self.running:
            return self._access.run_in_store(lambda store: _plan_in_store(store, choice, action))
        body: dict[str, object] = {"action": action, "old": old}
        if choice.ids is not None:
            body["ids"] = [*choice.ids]
        elif choice.cause is not None:
            body["cause"] = choice.cause
        else:
            body["all"] = True
        return msgspec.convert(self._access.request("POST", "/api/dead/plan", body), ReplayPlan)

    def carry_out(self, plan: ReplayPlan) -> ReplayState:
        """Carry out a plan, and return its state once each letter has been taken up."""
        if not self.running:
            return self._access.run_in_store(lambda store: _carry_out_in_store(store, plan))
        while True:
            given = self._access.request("POST", f"/api/why/plans/{plan.plan}")
            state = msgspec.convert(given, ReplayState)
            if state.state == "done":
                return state
            time.sleep(_PAUSE)

    def _read_page(self, last: DeadLetter | None, cause: str | None) -> list[DeadLetter]:
        if not self.running:
            before = None if last is None else (last.at, last.id)
            return self._access.run_in_store(lambda store: DeadLetters(store).list(_PAGE, before, cause))
        query = {"limit": str(_PAGE)}
        if last is not None:
            query["cursor"] = f"{last.at}:{last.id}"
        if cause is not None:
            query["cause"] = cause
        page = self._access.request("GET", f"/api/dead?{urlencode(query)}")
        return msgspec.convert(page["dead"], list[DeadLetter])

    def _do(self, method: str, path: str, locally: Callable[[DeadLetters], Awaitable[None]]) -> None:
        if self.running:
            self._access.request(method, path)
        else:
            self._access.run_in_store(lambda store: locally(DeadLetters(store)))


async def _plan_in_store(store: Store, choice: LetterChoice, action: Action) -> ReplayPlan:
    letters, omitted = await DeadLetters(store).choose(choice)
    if not letters:
        raise NotFoundError("no dead letter is chosen")
    unreadable = ENGLISH("plan.unreadable")
    found = tuple(
        planned(one, unreadable if action == "replay" and one.kind == "event" else "") for one in letters
    )
    return ReplayPlan("", 0, found, None, action, omitted)


async def _carry_out_in_store(store: Store, plan: ReplayPlan) -> ReplayState:
    """Carry out a plan while no gateway runs: no other process changes the store."""
    letters, chosen = DeadLetters(store), [message for message in plan.messages if message.ok]

    def audit(letter_id: str) -> Op:
        return audit_op(_OWNER, f"message.{plan.action}", letter_id)

    if plan.action == "drop":
        dropped = await letters.drop_unchanged({one.id: one.at for one in chosen}, audit)
        return ReplayState("", "done", 0, len(chosen) - len(dropped), 0, len(dropped))
    replayed = 0
    for message in chosen:
        try:
            await letters.replay(message.id, audit(message.id))
        except (InvalidStateError, NotFoundError):
            continue
        replayed += 1
    return ReplayState("", "done", replayed, len(chosen) - replayed, 0)


def _path(letter_id: str) -> str:
    return f"/api/dead/{quote(letter_id, safe='')}"


Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID...", help="Ids of dead letters.", show_default=False, callback=not_empty),
]
All = Annotated[bool, typer.Option("--all", help="All dead letters.")]
Cause = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="Only those with this cause; see `dead causes`.", show_default=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", help="With --all or --cause, do not ask.")]


def list_(cause: Cause = None, as_json: AsJson = False, config: File = None) -> None:
    """List dead letters, newest first. A text has at most 500 characters here.

    \b
    Examples:
      trunkline dead list
      trunkline dead list --cause=-:AuthFailedError:- --json
    """
    letters = _client(config).list(cause)
    if as_json:
        echo_json(letters)
    elif letters:
        _print_table(letters)
    else:
        typer.echo("There are no dead letters.", err=True)


def causes(as_json: AsJson = False, config: File = None) -> None:
    """Group dead letters by cause. That of the newest letter is the first.

    \b
    Examples:
      trunkline dead causes
      trunkline dead causes --json
    """
    found = _client(config).causes()
    if as_json:
        echo_json(found)
        return
    if not found:
        typer.echo("There are no dead letters.", err=True)
        return
    table = Table(box=None, header_style="bold")
    for title in ("letters", "since", "last", "cause", "key"):
        table.add_column(title, no_wrap=title != "cause")
    for one in found:
        cells = (str(one.count), moment(one.since), moment(one.last), one.text, one.key)
        table.add_row(*(Text(plain(cell)) for cell in cells))
    print_table(table)


def show(
    letter_id: Annotated[
        str,
        typer.Argument(metavar="ID", help="Id of a dead letter.", show_default=False, callback=not_empty),
    ],
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Print one dead letter with the traceback of its failure.

    \b
    Examples:
      trunkline dead show 6f1c0d52-6b1e-4a53-9d6a-0f0f3e0a7c11
    """
    letter = _client(config).get(letter_id)
    if as_json:
        echo_json(letter)
    else:
        _print_one(letter)


def replay(
    ids: Ids = None,
    cause: Cause = None,
    everything: All = False,
    old: Annotated[
        bool, typer.Option("--old", help="With --all or --cause, also messages that are older than a day.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Process messages again, and delete their error notices. Several are listed first, with the cost.

    \b
    Examples:
      trunkline dead replay 6f1c0d52-6b1e-4a53-9d6a-0f0f3e0a7c11
      trunkline dead replay --cause=-:ZeroDivisionError:- --dry-run
      trunkline dead replay --all --yes
    """
    client = _client(config)
    choice = _choice(ids, cause, everything)
    if choice.ids is None or dry_run:
        _act_on(client, choice, "replay", old=old, dry_run=dry_run, yes=yes, as_json=as_json)
        return
    for letter_id in choice.ids:
        client.replay(letter_id)
        typer.echo(f"{'replayed' if client.running else 'replayed at the next start'}: {letter_id}")


def drop(
    ids: Ids = None,
    cause: Cause = None,
    everything: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Delete dead letters; the notices in their sessions remain. Several are listed first.

    \b
    Examples:
      trunkline dead drop 6f1c0d52-6b1e-4a53-9d6a-0f0f3e0a7c11
      trunkline dead drop --cause=telegram:UnreadableEvent:-
      trunkline dead drop --all --dry-run --json
    """
    client = _client(config)
    choice = _choice(ids, cause, everything)
    if choice.ids is None or dry_run:
        _act_on(client, choice, "drop", old=True, dry_run=dry_run, yes=yes, as_json=as_json)
        return
    for letter_id in choice.ids:
        client.drop(letter_id)
        typer.echo(f"dropped: {letter_id}")


def _act_on(
    client: DeadLetterClient,
    choice: LetterChoice,
    action: Action,
    *,
    old: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show a plan, ask, carry it out, and print the result."""
    plan = client.plan(choice, action, old=old)
    chosen = sum(message.ok for message in plan.messages)
    if dry_run and as_json:
        echo_json(plan)
        return
    if not as_json:
        _print_plan(plan, chosen)
    if dry_run:
        return
    if not chosen:
        fail("none of them can be answered again", REFUSED)
    if not yes:
        if not sys.stdin.isatty():
            fail(
                "stdin is not a terminal: add --yes, or --dry-run to see the list only",
                REFUSED,
            )
        if not typer.confirm(
            "Answer them now?" if action == "replay" else "Delete them permanently?", err=True
        ):
            raise typer.Exit(FAILED)
    state = client.carry_out(plan)
    if as_json:
        echo_json(state)
        return
    done = f"{state.dropped} dropped" if action == "drop" else f"{state.replayed} replayed"
    later = " at the next start" if action == "replay" and not client.running else ""
    typer.echo(f"{done}{later}, {state.skipped} had changed and were skipped.")


def _print_plan(plan: ReplayPlan, chosen: int) -> None:
    for message in plan.messages:
        end = " ".join(plain(message.text).split()) if message.ok else f"skipped: {message.reason}"
        typer.echo(f"{message.id}  {moment(message.at)}  {end}".rstrip())
    if plan.omitted:
        typer.echo(f"{plan.omitted} more are too many for one list.")
    if plan.action == "drop":
        typer.echo(f"{chosen} would be dropped.")
        return
    cost = plan.estimated_nano_usd
    price = "unknown cost" if cost is None else f"about ${cost / 1e9:.4f}"
    typer.echo(f"{chosen} would be answered ({price}).")


def _client(config: Path | None) -> DeadLetterClient:
    return DeadLetterClient(settings_from(config))


def _choice(ids: list[str] | None, cause: str | None, everything: bool) -> LetterChoice:
    if (bool(ids), cause is not None, everything).count(True) != 1:
        fail("give the ids of dead letters, --cause or --all", REFUSED)
    return LetterChoice(ids or None, cause)


def _print_table(letters: list[DeadLetter]) -> None:
    table = Table(box=None, header_style="bold")
    for title, width in (("id", 36), ("kind", 7), ("channel", 9), ("tries", 5), ("at", 16)):
        table.add_column(title, no_wrap=True, min_width=width)
    for title in ("reason", "text"):
        table.add_column(title, no_wrap=True, overflow="ellipsis")
    for letter in letters:
        tries = str(letter.attempts or "")
        cells = (letter.id, letter.kind, letter.channel, tries, moment(letter.at), letter.reason, letter.text)
        table.add_row(*(Text(" ".join(plain(cell).split())) for cell in cells))
    print_table(table, least=_LEAST_WIDTH)


def _print_one(letter: DeadLetter) -> None:
    for name in ("id", "kind", "session", "channel", "attempts", "reason"):
        if value := getattr(letter, name):
            typer.echo(f"{name:>8}  {plain(str(value))}")
    typer.echo(f"{'at':>8}  {moment(letter.at)}\n\n{plain(letter.text)}")
    if letter.trace:
        typer.echo(f"\n{plain(letter.trace)}")
