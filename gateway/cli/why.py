"""``trunkline why``: explain why a message was answered or not, in a sentence, a line and a table.

Uses the running gateway; without one, reads the store."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from urllib.parse import quote

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from gateway.cli.gateway_or_store import GatewayOrStore
from gateway.cli.options import FAILED, REFUSED, AsJson, File, fail, refuse, settings_from
from gateway.cli.output import echo_json, moment, plain, print_table
from gateway.cli.store_reader import reading
from gateway.contract.errors import StoreError
from gateway.settings import Settings
from gateway.why import Choice, Explanation, ReplayPlan, Station, Subject, Verdict, explain_stored
from gateway.why.words import ENGLISH

_MARKS = {
    "ok": "o",
    "changed": "o",
    "failed": "x",
    "refused": "x",
    "running": ">",
    "waiting": "~",
    "unrecorded": "?",
    "skipped": "-",
}


def why(
    message: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Id of a message or of its answer, the platform's id of either, or a link to it.",
            show_default=False,
        ),
    ],
    replay: Annotated[
        bool, typer.Option("--replay", help="Answer the message now, after showing the plan and asking.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="With --replay, all messages that got no answer for this cause.")
    ] = False,
    old: Annotated[
        bool, typer.Option("--old", help="With --replay, also messages that are older than a day.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --replay, do not ask.")] = False,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Explain why a message was answered or not. Prints the cause, the line of its steps, and what to do.

    \b
    Examples:
      trunkline why 01936f1c-6b1e-7a53-9d6a-0f0f3e0a7c11
      trunkline why https://t.me/c/1234567890/412
      trunkline why 412 --json
      trunkline why 01936f1c-6b1e-7a53-9d6a-0f0f3e0a7c11 --replay --all
    """
    if not message.strip():
        fail("ID is empty: give the id of a message or of its answer, or a link to it", REFUSED)
    settings = settings_from(config)
    found = _explain(settings, message)
    if as_json:
        echo_json(found)
    elif isinstance(found.choices, tuple):
        _print_choices(found.choices)
    else:
        _print(found)
    if isinstance(found.choices, tuple):
        raise typer.Exit(REFUSED)
    if not found.message:
        raise typer.Exit(FAILED)
    if replay:
        _replay(settings, found, "?old=true" if old else "", everything=everything, yes=yes)


def _explain(settings: Settings, message: str) -> Explanation:
    access = GatewayOrStore(settings)
    if access.running:
        answer = access.request("GET", f"/api/why/{quote(message, safe='')}")
        return msgspec.convert(answer, Explanation)
    try:
        with reading(settings) as connection:
            return explain_stored(connection, message)
    except StoreError as error:
        refuse(error)


def _replay(settings: Settings, found: Explanation, query: str, *, everything: bool, yes: bool) -> None:
    """Show the plan of a replay, ask, and carry it out. Ends the command if there is nothing to answer."""
    access = GatewayOrStore(settings)
    if not access.running:
        fail("a running gateway answers messages; start it with `trunkline run`")
    of = found.message.id if found.message else ""
    if everything:
        if not found.same_cause:
            fail("no message is left without an answer for this cause", REFUSED)
        of = f"same-cause/{quote(found.same_cause.key, safe='')}"
    plan = msgspec.convert(access.request("POST", f"/api/why/{of}/plan{query}"), ReplayPlan)
    chosen = sum(message.ok for message in plan.messages)
    for message in plan.messages:
        reason = "" if message.ok else f"  not answered: {message.reason}"
        typer.echo(f"{message.id}  {moment(message.at)}{reason}")
    if not chosen:
        fail("none of them can be answered again", REFUSED)
    cost = plan.estimated_nano_usd
    price = "unknown cost" if cost is None else f"about ${cost / 1e9:.4f}"
    if not yes and not typer.confirm(f"Answer {chosen} now ({price})?"):
        raise typer.Exit(FAILED)
    access.request("POST", f"/api/why/plans/{plan.plan}")
    typer.echo(f"{chosen} {'is' if chosen == 1 else 'are'} being answered.")


def _print(found: Explanation) -> None:
    verdict, subject = found.verdict, found.message
    if not isinstance(verdict, Verdict):
        return
    typer.secho(plain(verdict.text), bold=True)
    if verdict.rule:
        typer.echo(plain(f"Rule: {verdict.rule}"))
    if verdict.more:
        typer.echo(plain(verdict.more))
    if found.same_cause:
        same = found.same_cause
        typer.echo(f"{same.count} without an answer for this reason since {moment(same.since)}.")
    for action in verdict.actions:
        if action.command:
            typer.echo(f"  {action.label}: {plain(action.command)}")
    if subject:
        _print_path(found, subject)


def _print_path(found: Explanation, subject: Subject) -> None:
    typer.echo(f"\n{subject.channel}  {plain(subject.person)}  {_clock(subject.at)}  message {subject.id}")
    for station in found.stations or ():
        _print_station(station)
    rows = ", ".join(f"{count} {table}" for table, count in (found.proof or {}).items())
    typer.echo(f"Read: {rows}.")
    if found.steps:
        table = Table(box=None, header_style="bold")
        for title in ("step", "start", "took", "cost"):
            table.add_column(title, justify="left" if title == "step" else "right")
        first = found.steps[0].at
        for step in found.steps:
            cost = "" if step.cost is None else f"${step.cost:.4f}"
            name = plain(
                " ".join(filter(None, (step.kind, step.name, step.state if step.state != "ok" else "")))
            )
            start = f"{(step.at - first) / 1000:.3f} s"
            took = ENGLISH.duration(step.took // 1000) if step.took else ""
            table.add_row(*(Text(cell) for cell in (name, start, took, cost)))
        typer.echo("")
        print_table(table)


def _print_station(station: Station) -> None:
    took = f"  {ENGLISH.duration(station.took // 1000)}" if station.took >= 1000 else ""
    detail = f"  ({station.detail})" if station.detail else ""
    typer.echo(plain(f"  {_MARKS.get(station.state, 'o')} {station.text}{detail}{took}"))
    for siding in station.sidings or ():
        yours = " · yours to fix" if siding.yours else ""
        typer.echo(plain(f"      {_MARKS.get(siding.state, 'o')} {siding.text}: {siding.reason}{yours}"))


def _print_choices(choices: tuple[Choice, ...]) -> None:
    typer.echo("Several messages have this id; choose one:", err=True)
    for choice in choices:
        text = " ".join(plain(choice.text).split())[:60]
        typer.echo(f"{choice.id}  {moment(choice.at)}  {text}")


def _clock(at: int) -> str:
    return datetime.fromtimestamp(at / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
