"""``trunkline nodes``: the nodes of a cluster, the hand-over from one to another, and their certificate."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from sqlalchemy import Connection
from sqlalchemy.exc import DatabaseError

from gateway import cluster
from gateway.cli.options import UNAVAILABLE, AsJson, File, fail, refuse, settings_from
from gateway.cli.output import echo_json, plain, print_table
from gateway.cli.store_reader import reading
from gateway.cluster import NodeRow
from gateway.contract.errors import StoreError, TrunklineError
from gateway.settings import Settings
from gateway.store.engine import open_engine, open_error

_LOOK_SECONDS = 0.2
_TAKEOVER_SECONDS = 30.0
"""Time beyond ``limits.drain_seconds`` that a hand-over may take."""
_ROTATION_SECONDS = 30.0
"""Time beyond ``limits.drain_seconds`` that a rotation of the certificate may take."""
_CLI = "cli"

Name = Annotated[str, typer.Argument(help="Name of the node.", show_default=False)]
NameOrActive = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="Name of the node; the active one if omitted.", show_default=False),
]


def list_(as_json: AsJson = False, config: File = None) -> None:
    """List the nodes of the cluster with their states.

    A node without a heartbeat for 5 s is shown as gone; one that was stopped in order is not listed. Below
    the table are the settings, and the approved plugins, that are not those of the active node, and the
    nodes whose clock is wrong: those stand by, and do not take over.

    \b
    Examples:
      trunkline nodes
      trunkline nodes --json
    """
    found = _read(settings_from(config))
    if as_json:
        echo_json(found)
    elif not found:
        typer.echo(cluster.NO_CLUSTER)
    else:
        table = Table("node", "state", "since", "version", "machine", "last heartbeat", box=box.SIMPLE_HEAD)
        for node in found:
            since = node.owner_since or node.started_at
            table.add_row(
                *map(plain, (node.name, node.state, since, node.version, node.machine, node.heartbeat_at))
            )
        print_table(table)
        for node in found:
            if node.differs and node.state != "gone":
                typer.echo(plain(f"{node.name} has other settings: {', '.join(node.differs)}"))
            if node.clock_seconds and node.state != "gone":
                typer.echo(plain(f"{cluster.say_clock(node)}; synchronize it, for example with chrony"))


def drain(name: NameOrActive = None, as_json: AsJson = False, config: File = None) -> None:
    """Let a node hand over to another one and stay on standby until it is resumed.

    The node finishes running answers within `limits.drain_seconds`. It stays in the cluster, and takes over
    again only after `trunkline nodes resume`, a restart, or when no other node lives. The command waits until
    another node is active; a node that only stood by is drained at once.

    \b
    Examples:
      trunkline nodes drain
      trunkline nodes drain node-2 --json
    """
    settings = settings_from(config)
    with _changing(settings) as connection:
        node = cluster.request_drain(connection, name, _CLI).node
    begun = time.monotonic()
    active = _wait(settings, node.name, settings.limits.drain_seconds + _TAKEOVER_SECONDS)
    seconds = round(time.monotonic() - begun, 1)
    if as_json:
        echo_json({"node": node.name, "state": "drained", "active": active, "seconds": seconds})
    else:
        typer.echo(
            f"{active} is active, after {seconds} s. {node.name} stands by, and takes over again after "
            f"`trunkline nodes resume {node.name}` or its restart"
        )


def resume(name: Name, as_json: AsJson = False, config: File = None) -> None:
    """Let a drained node take over again.

    \b
    Examples:
      trunkline nodes resume node-2
    """
    settings = settings_from(config)
    with _changing(settings) as connection:
        before, changed = cluster.resume(connection, name, _CLI)
    if as_json:
        echo_json({"node": name, "changed": changed})
    elif changed:
        typer.echo(f"{name} may take over again")
    else:
        typer.echo(f"{name} was not drained: it is {before.state}")


def rotate(as_json: AsJson = False, config: File = None) -> None:
    """Replace the certificate of the link between nodes.

    Do so if its key may have leaked, for example with a dump of the database. The nodes work meanwhile. The
    command waits until all live nodes refuse the old certificate: connections between nodes that use it end
    within `limits.drain_seconds`, and clients connect again. If the command ends early, the nodes continue;
    run it again to wait.

    \b
    Examples:
      trunkline nodes rotate
      trunkline nodes rotate --json
    """
    settings = settings_from(config)
    with _changing(settings) as connection:
        changed = cluster.rotate_certificate(connection, _CLI)
    begun, shown = time.monotonic(), ""
    while True:
        with _changing(settings) as connection:
            rotation = cluster.advance_rotation(connection)
        if rotation.is_done:
            break
        waits_for = ", ".join(rotation.waiting)
        if time.monotonic() - begun >= settings.limits.drain_seconds + _ROTATION_SECONDS:
            fail(
                f"the old certificate is still accepted: {waits_for} did not follow in time; see the logs "
                "there. The nodes continue; run the command again to wait",
                UNAVAILABLE,
            )
        if waits_for not in ("", shown):
            typer.echo(f"waiting for {waits_for}", err=True)
            shown = waits_for
        time.sleep(_LOOK_SECONDS)
    seconds = round(time.monotonic() - begun, 1)
    if as_json:
        echo_json({"changed": changed, "gone": rotation.gone, "seconds": seconds})
        return
    typer.echo(f"all live nodes use the new certificate, after {seconds} s, and refuse the old one")
    if not changed:
        typer.echo("An earlier rotation was completed. If the key leaked since that began, run this again")
    if rotation.gone:
        typer.echo(
            f"{', '.join(rotation.gone)} did not follow, without a heartbeat. A process that still runs "
            "there accepts the old certificate until it reaches PostgreSQL again"
        )


def _wait(settings: Settings, name: str, seconds: float) -> str:
    """Wait until a node is drained and another one is active. Return the name of that one."""
    deadline, shown = time.monotonic() + seconds, ""
    while True:
        nodes = _read(settings)
        node = next((one for one in nodes if one.name == name), None)
        worker = next((one for one in nodes if one.owner_since is not None and one.state != "gone"), None)
        if node is None or node.state == "gone":
            fail(f"{name} ended before it handed over")
        # A newer version may have taken over, and migrated the database.
        if node.state not in ("draining", "drained", "outdated"):
            fail(f"{name} is {node.state} again: it was resumed, or no other node lives")
        if node.state != "draining" and worker is not None and worker.state == "active":
            return worker.name
        progress = _progress(node, worker, settings)
        if progress != shown:
            typer.echo(progress, err=True)
            shown = progress
        if time.monotonic() >= deadline:
            _give_up(settings, node)
        time.sleep(_LOOK_SECONDS)


def _progress(node: NodeRow, worker: NodeRow | None, settings: Settings) -> str:
    if worker is not None and worker.name == node.name:
        return f"{node.name} finishes running answers, within {settings.limits.drain_seconds:g} s"
    if worker is None:
        return f"{node.name} is no longer active; waiting for another node"
    return (
        f"{worker.name} took over and is starting" if worker.state == "starting" else f"{node.name} stands by"
    )


def _give_up(settings: Settings, node: NodeRow) -> None:
    """Withdraw the request if the node still works: it must not hand over when no command waits for it."""
    if node.owner_since is None:
        fail(f"{node.name} handed over, but no other node is active yet; see `trunkline nodes`", UNAVAILABLE)
    with _changing(settings) as connection:
        cluster.resume(connection, node.name, _CLI)
    fail(
        f"{node.name} did not hand over in time, and stays active. It hands over only while it and another "
        "node are connected to RabbitMQ; see `trunkline doctor` and the logs of both",
        UNAVAILABLE,
    )


def _read(settings: Settings) -> Sequence[NodeRow]:
    try:
        with reading(settings, any_schema=True) as connection:
            return cluster.read_nodes(connection)
    except StoreError as error:
        refuse(error)


@contextmanager
def _changing(settings: Settings) -> Generator[Connection]:
    """Open a transaction in the database. An error ends the command."""
    if not _read(settings):
        fail(cluster.NO_CLUSTER)
    engine = open_engine(settings.store_url, settings.durability)
    try:
        with engine.begin() as connection:
            yield connection
    except DatabaseError as error:
        refuse(open_error(engine, error))
    except TrunklineError as error:
        refuse(error)
    finally:
        engine.dispose()
